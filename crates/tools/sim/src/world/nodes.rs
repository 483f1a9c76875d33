//! What nodes do: they come, fail, are given up, mend, and are given back.
//!
//! Owns failures and growth. Must not know what pods are for.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::Engine;
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_model::node::Node;
use berth_model::spec::{Phase, PodObject, PodSpec};
use berth_model::taint::{Effect, Taint};

use super::pods::{Fate, Past};
use super::{Coming, World};
use crate::experiment::{Experiment, Fault, WorkloadKind};
use crate::node::{NodeError, VirtualNode};

/// More pods of a kind are not tried on a new node.
const TRIED_MAX: u32 = 64;

const ZONE: &str = "topology.kubernetes.io/zone";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Nodes that were asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Growth {
    /// How many of each pool there are beyond those of the beginning, with those that are coming.
    added: Vec<u32>,
    /// How much longer new ones take, in thousandths.
    factor_milli: Vec<u32>,
    orders: u64,
    /// Room that is left on nodes that are coming: the pool, and the part of the node.
    coming: BTreeMap<u64, (usize, f64)>,
    /// Which pod expects which node.
    expected: BTreeMap<u64, u64>,
    /// How many pods of a template a new node takes.
    takes: BTreeMap<(usize, usize), u32>,
}

impl Growth {
    pub(super) fn new(experiment: &Experiment) -> Self {
        let pools = experiment.pools.len();
        Self { added: vec![0; pools], factor_milli: vec![1000; pools], ..Self::default() }
    }

    /// Whether there are nodes that were not there in the beginning.
    pub(super) fn has_added(&self) -> bool {
        self.added.iter().any(|added| *added > 0)
    }
}

/// Whether a DaemonSet has a pod on a node.
fn is_meant(spec: &PodSpec, node: &Node) -> bool {
    let affinity = spec.node_affinity.required.as_ref();
    let tolerated =
        |taint: &Taint| spec.tolerations.iter().any(|toleration| toleration.tolerates(taint));
    node.labels.contains_all(&spec.node_selector)
        && affinity.is_none_or(|terms| terms.iter().any(|term| term.matches(node)))
        && node.taints.iter().filter(|taint| taint.effect.is_hard()).all(tolerated)
}

impl World<'_> {
    /// A node is there.
    pub(super) fn join(&mut self, mut node: VirtualNode) -> usize {
        node.from_ms = self.now_ms;
        let number = self.nodes.len();
        self.meter.levels.gpus += node.gpus.len() as i64;
        self.node_by_name.insert(node.object.name.clone(), number);
        self.tell_node(&node.object);
        let topology = Some(node.topology.clone());
        self.engine.apply(Event::Topology { node: node.object.name.clone(), topology });
        self.nodes.push(node);
        number
    }

    fn tell_node(&mut self, node: &Node) {
        self.engine.apply(Event::Node(node.clone()));
    }

    /// Pods that are to be on every node.
    pub(super) fn make_daemons(&mut self, node: usize) {
        let Some(name) = self.nodes.get(node).map(|node| node.object.name.clone()) else { return };
        for (workload, one) in self.experiment.workloads.iter().enumerate() {
            let WorkloadKind::Daemon(template) = &one.kind else { continue };
            let Some(object) = self.nodes.get(node).map(|node| &node.object) else { continue };
            if !is_meant(template, object) {
                continue;
            }
            // Kept, because what is known of a template is known by its address.
            let spec = self.daemons.entry((workload, node)).or_insert_with(|| {
                let node_name = Some(name.clone());
                Arc::new(PodSpec { node_name, ..PodSpec::clone(template) })
            });
            let spec = spec.clone();
            let past = Past { since_ms: self.now_ms, ..Past::default() };
            self.create(workload, None, &spec, past);
        }
    }

    /// A pod has no place: a new node might have one.
    pub(super) fn wish_for_node(&mut self, uid: &Arc<str>) {
        let Ok(id) = uid.parse::<u64>() else { return };
        let Some(pod) = self.pods.get(&id).filter(|pod| pod.fate == Fate::Waiting) else { return };
        if self.experiment.pools.is_empty() || self.growth.expected.contains_key(&id) {
            return;
        }
        let spec = pod.object.spec.clone();
        for pool in 0..self.experiment.pools.len() {
            let takes = self.takes(pool, &spec);
            if takes == 0 {
                continue;
            }
            let part = 1.0 / f64::from(takes) - 1e-9;
            let coming = self.growth.coming.iter_mut();
            let mut roomy = coming.filter(|(_, (of, left))| *of == pool && *left >= part);
            let order = match roomy.next() {
                Some((order, (_, left))) => {
                    *left -= part;
                    *order
                }
                None => match self.order_node(pool) {
                    Some(order) => {
                        self.growth.coming.insert(order, (pool, 1.0 - part));
                        order
                    }
                    None => continue,
                },
            };
            self.growth.expected.insert(id, order);
            return;
        }
    }

    fn order_node(&mut self, pool: usize) -> Option<u64> {
        let described = self.experiment.pools.get(pool)?;
        let added = self.growth.added.get_mut(pool)?;
        if *added >= described.growth {
            return None;
        }
        *added += 1;
        self.growth.orders += 1;
        let order = self.growth.orders;
        let factor = i64::from(self.growth.factor_milli.get(pool).copied().unwrap_or(1000));
        let at_ms = self.now_ms + described.provision_ms * factor / 1000;
        self.later(at_ms, Coming::Provisioned { pool, order });
        Some(order)
    }

    /// How many such pods a new node of the pool takes.
    fn takes(&mut self, pool: usize, spec: &Arc<PodSpec>) -> u32 {
        let key = (pool, Arc::as_ptr(spec) as usize);
        if let Some(known) = self.growth.takes.get(&key) {
            return *known;
        }
        let takes = self.try_pool(pool, spec).unwrap_or(0);
        self.growth.takes.insert(key, takes);
        takes
    }

    fn try_pool(&self, pool: usize, spec: &Arc<PodSpec>) -> Option<u32> {
        let node = VirtualNode::new(&self.experiment.pools.get(pool)?.template, self.setup).ok()?;
        let mut engine = Engine::new(self.setup.profile);
        // For whom pools are counts there as it does here.
        let pools = self.experiment.objects.iter().filter(|one| matches!(one, Event::Pool(_)));
        pools.cloned().for_each(|pool| engine.apply(pool));
        engine.apply(Event::Node(node.object.clone()));
        let topology = Some(node.topology.clone());
        engine.apply(Event::Topology { node: node.object.name, topology });
        let mut lone = PodSpec::clone(spec);
        lone.gang = None;
        let lone = Arc::new(lone);
        let mut takes = 0;
        while takes < TRIED_MAX {
            engine.apply(Event::Pod(PodObject {
                uid: format!("try-{takes}").into(),
                name: format!("try-{takes}").into(),
                spec: lone.clone(),
                created_at_ms: 0,
                started_at_ms: None,
                node: None,
                nominated: None,
                phase: Phase::Alive,
                deletion: None,
                gpu_grant: None,
                claims: Arc::default(),
            }));
            match engine.decide(0) {
                Some(Decision::Bind(_)) => takes += 1,
                _ => break,
            }
        }
        Some(takes)
    }

    /// A node that was asked for is there.
    pub(super) fn provisioned(&mut self, pool: usize, order: u64) -> Result<(), NodeError> {
        self.growth.coming.remove(&order);
        self.growth.expected.retain(|_, expected| *expected != order);
        let Some(described) = self.experiment.pools.get(pool) else { return Ok(()) };
        let mut template = described.template.clone();
        let name: Arc<str> = format!("{}-new-{order}", described.name).into();
        template.node.name = name.clone();
        template.node.labels.insert("kubernetes.io/hostname", name.clone());
        let mut node = VirtualNode::new(&template, self.setup)?;
        node.added = Some((pool, self.now_ms));
        let number = self.join(node);
        self.make_daemons(number);
        self.meter.tell("provision", || format!("{name} is there"));
        Ok(())
    }

    /// Nodes that were added and have been idle for long are given back.
    pub(super) fn give_back_idle_nodes(&mut self) {
        for number in 0..self.nodes.len() {
            let Some(node) = self.nodes.get(number).filter(|node| node.is_up()) else { continue };
            let Some((pool, since_ms)) = node.added else { continue };
            let idle_ms = self.experiment.pools.get(pool).and_then(|pool| pool.idle_ms);
            let is_daemon = |id: &u64| {
                let workload = self.pods.get(id).map(|pod| pod.workload);
                let of = workload.and_then(|at| self.experiment.workloads.get(at));
                of.is_some_and(|of| matches!(of.kind, WorkloadKind::Daemon(_)))
            };
            let is_idle = node.pods.iter().all(is_daemon);
            let now_ms = self.now_ms;
            match idle_ms {
                _ if !is_idle => {
                    if let Some(node) = self.nodes.get_mut(number) {
                        node.added = Some((pool, now_ms));
                    }
                }
                Some(idle_ms) if now_ms - since_ms >= idle_ms => self.give_back(number, pool),
                _ => {}
            }
        }
    }

    fn give_back(&mut self, number: usize, pool: usize) {
        self.lose_pods(number);
        self.count_out(number);
        let Some(node) = self.nodes.get_mut(number) else { return };
        node.gone = true;
        let name = node.object.name.clone();
        self.node_by_name.remove(&name);
        self.engine.apply(Event::NodeGone(name));
        if let Some(added) = self.growth.added.get_mut(pool) {
            *added = added.saturating_sub(1);
        }
    }

    /// Its GPUs do not count any more, and it is paid up to now.
    fn count_out(&mut self, number: usize) {
        let Some(node) = self.nodes.get(number) else { return };
        self.meter.levels.gpus -= node.gpus.len() as i64;
        let hours = (self.now_ms - node.from_ms) as f64 / 3_600_000.0;
        self.node_cost += node.microusd_per_hour as f64 * hours;
    }

    fn lose_pods(&mut self, number: usize) {
        let pods: Vec<u64> = self
            .nodes
            .get(number)
            .map(|node| node.pods.iter().copied().collect())
            .unwrap_or_default();
        pods.into_iter().for_each(|pod| self.lose(pod));
    }

    /// The nodes a fault strikes.
    fn struck(&self, fault: &Fault) -> Vec<usize> {
        let of_zone = |zone: &Arc<str>| {
            let nodes = self.nodes.iter().enumerate();
            let there =
                nodes.filter(|(_, node)| !node.gone && node.object.labels.get(ZONE) == Some(zone));
            there.map(|(number, _)| number).collect()
        };
        match fault {
            Fault::Node(name) | Fault::Kubelet(name) => {
                self.node_by_name.get(name).copied().into_iter().collect()
            }
            Fault::Zone(zone) => of_zone(zone),
            Fault::Provisioning { .. } => Vec::new(),
        }
    }

    pub(super) fn fail(&mut self, number: usize) {
        let Some(failure) = self.experiment.failures.get(number) else { return };
        self.meter.tell("failure", || match &failure.what {
            Fault::Node(node) => format!("{node} is lost"),
            Fault::Zone(zone) => format!("zone {zone} is lost"),
            Fault::Kubelet(node) => format!("the kubelet of {node} restarts"),
            Fault::Provisioning { pool, .. } => format!("new nodes of {pool} take longer"),
        });
        let assumed = &self.experiment.assumptions;
        match &failure.what {
            Fault::Node(_) | Fault::Zone(_) => {
                let struck = self.struck(&failure.what);
                struck.iter().for_each(|node| self.strike(*node));
                self.struck_by.insert(number, struck);
            }
            Fault::Kubelet(_) => {
                let back_ms = self.now_ms + failure.for_ms.unwrap_or(assumed.plugin_gap_ms);
                for node in self.struck(&failure.what) {
                    if let Some(node) = self.nodes.get_mut(node) {
                        node.plugin_back_ms = back_ms;
                    }
                }
            }
            Fault::Provisioning { pool, factor_milli } => self.slow_down(pool, *factor_milli),
        }
        if let Some(for_ms) = failure.for_ms {
            self.later(self.now_ms + for_ms, Coming::Mend(number));
        }
    }

    fn slow_down(&mut self, pool: &Arc<str>, factor_milli: u32) {
        let pools = self.experiment.pools.iter().zip(&mut self.growth.factor_milli);
        for (described, factor) in pools {
            if described.name == *pool {
                *factor = factor_milli;
            }
        }
    }

    /// A node is lost. Nobody knows it yet.
    fn strike(&mut self, number: usize) {
        let Some(node) = self.nodes.get_mut(number) else { return };
        node.struck += 1;
        node.losses += u64::from(node.struck == 1);
        let (is_new, loss) = (node.struck == 1, node.losses);
        if !is_new {
            return;
        }
        let pods: Vec<u64> = node.pods.iter().copied().collect();
        pods.into_iter().for_each(|pod| self.halt(pod));
        let assumed = &self.experiment.assumptions;
        let noticed_ms = self.now_ms + assumed.unreachable_ms;
        self.later(noticed_ms, Coming::Unreachable { node: number, loss });
        self.later(noticed_ms + assumed.evict_ms, Coming::GiveUp { node: number, loss });
    }

    /// The node, if it is still lost as it was then.
    fn still_lost(&self, number: usize, loss: u64) -> Option<&VirtualNode> {
        let lost = |node: &&VirtualNode| node.struck > 0 && node.losses == loss && !node.gone;
        self.nodes.get(number).filter(lost)
    }

    pub(super) fn mark_unreachable(&mut self, number: usize, loss: u64) {
        let Some(node) = self.still_lost(number, loss) else { return };
        let mut object = node.object.clone();
        for effect in [Effect::NoSchedule, Effect::NoExecute] {
            object.taints.push(Taint { key: UNREACHABLE.into(), value: "".into(), effect });
        }
        // Nobody sends requests there any more.
        let pods: Vec<u64> = node.pods.iter().copied().collect();
        self.tell_node(&object);
        pods.into_iter().for_each(|pod| self.leave_service(pod));
    }

    /// Pods on a node that does not answer are given up.
    pub(super) fn give_up(&mut self, number: usize, loss: u64) {
        if self.still_lost(number, loss).is_some() {
            self.lose_pods(number);
        }
    }

    /// A failure is over for a node; it comes back, empty, when no other strikes it.
    fn bring_back(&mut self, number: usize) {
        let Some(node) = self.nodes.get_mut(number) else { return };
        node.struck = node.struck.saturating_sub(1);
        if !node.is_up() {
            return;
        }
        let object = node.object.clone();
        self.lose_pods(number);
        self.tell_node(&object);
        self.make_daemons(number);
    }

    /// Something works again. A node comes back empty.
    pub(super) fn mend(&mut self, number: usize) -> Result<(), NodeError> {
        let Some(failure) = self.experiment.failures.get(number) else { return Ok(()) };
        match &failure.what {
            Fault::Node(_) | Fault::Zone(_) => {
                for node in self.struck_by.remove(&number).unwrap_or_default() {
                    self.bring_back(node);
                }
            }
            Fault::Kubelet(_) => {}
            Fault::Provisioning { pool, .. } => self.slow_down(pool, 1000),
        }
        self.meter.tell("recovery", || match &failure.what {
            Fault::Node(node) => format!("{node} is back"),
            Fault::Zone(zone) => format!("zone {zone} is back"),
            Fault::Kubelet(node) => format!("the device plugin of {node} is back"),
            Fault::Provisioning { pool, .. } => format!("new nodes of {pool} take as long as ever"),
        });
        Ok(())
    }
}
