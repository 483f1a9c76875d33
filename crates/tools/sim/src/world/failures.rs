//! The effects of faults on nodes and pools, and of their end.

use std::sync::Arc;

use berth_model::taint::{Effect, Taint};

use super::{SimEvent, World};
use crate::experiment::Fault;
use crate::node::VirtualNode;

const ZONE: &str = "topology.kubernetes.io/zone";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

impl World<'_> {
    /// A fault begins.
    pub(super) fn fail(&mut self, number: usize) {
        let Some(failure) = self.experiment.failures.get(number) else { return };
        let text = match &failure.fault {
            Fault::NodeLoss(name) => {
                let nodes = self.node_by_name.get(name).copied().into_iter().collect();
                self.lose_nodes(number, nodes);
                format!("{name} is lost")
            }
            Fault::ZoneLoss(zone) => {
                let in_zone =
                    |node: &VirtualNode| !node.gone && node.object.labels.get(ZONE) == Some(zone);
                let nodes = self.nodes.iter().enumerate().filter(|(_, node)| in_zone(node));
                let nodes = nodes.map(|(number, _)| number).collect();
                self.lose_nodes(number, nodes);
                format!("zone {zone} is lost")
            }
            Fault::KubeletRestart(name) => {
                let assumed_ms = self.experiment.assumptions.plugin_gap_ms;
                let back_ms = self.now_ms + failure.for_ms.unwrap_or(assumed_ms);
                let node = self.node_by_name.get(name).copied();
                if let Some(node) = node.and_then(|node| self.nodes.get_mut(node)) {
                    node.plugin_back_ms = back_ms;
                }
                format!("the kubelet of {name} restarts")
            }
            Fault::SlowProvisioning { pool, factor } => {
                self.set_provision_factor(pool, *factor);
                format!("new nodes of {pool} take {factor} times as long")
            }
        };
        self.meter.log("failure", || text);
        if let Some(for_ms) = failure.for_ms {
            self.schedule(self.now_ms + for_ms, SimEvent::Recover(number));
        }
    }

    /// A fault ends.
    pub(super) fn recover(&mut self, number: usize) {
        let Some(failure) = self.experiment.failures.get(number) else { return };
        let text = match &failure.fault {
            Fault::NodeLoss(name) => {
                self.bring_back_nodes(number);
                format!("{name} is back")
            }
            Fault::ZoneLoss(zone) => {
                self.bring_back_nodes(number);
                format!("zone {zone} is back")
            }
            Fault::KubeletRestart(name) => format!("the device plugin of {name} is back"),
            Fault::SlowProvisioning { pool, .. } => {
                self.set_provision_factor(pool, 1.0);
                format!("new nodes of {pool} take the normal time")
            }
        };
        self.meter.log("recovery", || text);
    }

    fn set_provision_factor(&mut self, pool: &Arc<str>, factor: f64) {
        let pools = self.experiment.pools.iter().zip(&mut self.growth.provision_factor);
        for (_, current) in pools.filter(|(described, _)| described.name == *pool) {
            *current = factor;
        }
    }

    fn lose_nodes(&mut self, failure: usize, nodes: Vec<usize>) {
        nodes.iter().for_each(|node| self.lose_node(*node));
        self.lost_by_failure.insert(failure, nodes);
    }

    /// A node stops. The control plane notices later.
    fn lose_node(&mut self, number: usize) {
        let Some(node) = self.nodes.get_mut(number) else { return };
        node.active_faults += 1;
        if node.active_faults > 1 {
            return;
        }
        node.losses += 1;
        let loss = node.losses;
        let pods: Vec<u64> = node.pods.iter().copied().collect();
        pods.into_iter().for_each(|pod| self.halt(pod));
        let assumed = &self.experiment.assumptions;
        let noticed_ms = self.now_ms + assumed.unreachable_ms;
        self.schedule(noticed_ms, SimEvent::Unreachable { node: number, loss });
        self.schedule(noticed_ms + assumed.evict_ms, SimEvent::ReplacePods { node: number, loss });
    }

    /// The node, if it has been lost since this loss.
    fn still_lost(&self, number: usize, loss: u64) -> Option<&VirtualNode> {
        let is_lost = |node: &&VirtualNode| !node.is_up() && node.losses == loss && !node.gone;
        self.nodes.get(number).filter(is_lost)
    }

    /// The node controller taints a lost node, and its pods leave their services.
    pub(super) fn mark_unreachable(&mut self, number: usize, loss: u64) {
        let Some(node) = self.still_lost(number, loss) else { return };
        let mut object = node.object.clone();
        for effect in [Effect::NoSchedule, Effect::NoExecute] {
            object.taints.push(Taint { key: UNREACHABLE.into(), value: "".into(), effect });
        }
        let pods: Vec<u64> = node.pods.iter().copied().collect();
        self.send_node(&object);
        pods.into_iter().for_each(|pod| self.leave_service(pod));
    }

    /// Controllers replace the pods of a node that is still lost.
    pub(super) fn give_up(&mut self, number: usize, loss: u64) {
        if self.still_lost(number, loss).is_some() {
            self.lose_pods(number);
        }
    }

    fn bring_back_nodes(&mut self, failure: usize) {
        for node in self.lost_by_failure.remove(&failure).unwrap_or_default() {
            self.bring_back(node);
        }
    }

    /// The node comes back, empty, unless another fault still affects it.
    fn bring_back(&mut self, number: usize) {
        let Some(node) = self.nodes.get_mut(number) else { return };
        node.active_faults = node.active_faults.saturating_sub(1);
        if !node.is_up() {
            return;
        }
        let object = node.object.clone();
        self.lose_pods(number);
        self.send_node(&object);
        self.make_daemons(number);
    }
}
