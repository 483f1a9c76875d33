//! Nodes that join, are requested from a growing pool, and are removed when idle.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::Engine;
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_model::node::Node;
use berth_model::spec::{Phase, PodObject, PodSpec};
use berth_model::taint::Taint;

use super::pods::{History, PodState};
use super::{SimEvent, World};
use crate::experiment::{Experiment, WorkloadKind};
use crate::node::{NodeError, VirtualNode};

/// Most pods of a template that are tried on a new node.
const TRIED_MAX: u32 = 64;

/// Nodes beyond those of the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Growth {
    /// By pool: added and ordered nodes.
    added: Vec<u32>,
    /// By pool: the factor of the time until a new node is ready.
    pub(super) provision_factor: Vec<f64>,
    orders: u64,
    /// By order: the pool, and the part of the node that no pending pod expects yet.
    ordered: BTreeMap<u64, (usize, f64)>,
    /// By pod: the order that it expects.
    expected: BTreeMap<u64, u64>,
    /// By pool and template: how many of its pods fit on a new node.
    takes: BTreeMap<(usize, usize), u32>,
}

impl Growth {
    pub(super) fn new(experiment: &Experiment) -> Self {
        let pools = experiment.pools.len();
        Self { added: vec![0; pools], provision_factor: vec![1.0; pools], ..Self::default() }
    }

    pub(super) fn has_added(&self) -> bool {
        self.added.iter().any(|added| *added > 0)
    }
}

fn daemon_matches(spec: &PodSpec, node: &Node) -> bool {
    let affinity = spec.node_affinity.required.as_ref();
    let tolerated =
        |taint: &Taint| spec.tolerations.iter().any(|toleration| toleration.tolerates(taint));
    node.labels.contains_all(&spec.node_selector)
        && affinity.is_none_or(|terms| terms.iter().any(|term| term.matches(node)))
        && node.taints.iter().filter(|taint| taint.effect.is_hard()).all(tolerated)
}

impl World<'_> {
    pub(super) fn join(&mut self, mut node: VirtualNode) -> usize {
        node.from_ms = self.now_ms;
        let number = self.nodes.len();
        self.meter.levels.gpus += node.gpus.len() as i64;
        self.node_by_name.insert(node.object.name.clone(), number);
        self.send_node(&node.object);
        let topology = Some(node.topology.clone());
        self.engine.apply(Event::Topology { node: node.object.name.clone(), topology });
        self.nodes.push(node);
        number
    }

    pub(super) fn send_node(&mut self, node: &Node) {
        self.engine.apply(Event::Node(node.clone()));
    }

    /// Creates the pods of DaemonSets.
    pub(super) fn make_daemons(&mut self, node: usize) {
        let Some(name) = self.nodes.get(node).map(|node| node.object.name.clone()) else { return };
        for (workload, one) in self.experiment.workloads.iter().enumerate() {
            let WorkloadKind::Daemon(template) = &one.kind else { continue };
            let Some(object) = self.nodes.get(node).map(|node| &node.object) else { continue };
            if !daemon_matches(template, object) {
                continue;
            }
            // Kept because templates are cached by address.
            let spec = self.daemons.entry((workload, node)).or_insert_with(|| {
                let node_name = Some(name.clone());
                Arc::new(PodSpec { node_name, ..PodSpec::clone(template) })
            });
            let spec = spec.clone();
            let history = History { since_ms: self.now_ms, ..History::default() };
            self.create(workload, None, &spec, history);
        }
    }

    /// Orders a node for a pod that fits nowhere, unless one is expected.
    pub(super) fn request_node(&mut self, uid: &Arc<str>) {
        let Ok(id) = uid.parse::<u64>() else { return };
        let Some(pod) = self.pods.get(&id).filter(|pod| pod.state == PodState::Pending) else {
            return;
        };
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
            let ordered = self.growth.ordered.iter_mut();
            let mut roomy = ordered.filter(|(_, (of, left))| *of == pool && *left >= part);
            let order = match roomy.next() {
                Some((order, (_, left))) => {
                    *left -= part;
                    *order
                }
                None => match self.order_node(pool) {
                    Some(order) => {
                        self.growth.ordered.insert(order, (pool, 1.0 - part));
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
        let factor = self.growth.provision_factor.get(pool).copied().unwrap_or(1.0);
        let at_ms = self.now_ms + (described.provision_ms as f64 * factor) as i64;
        self.schedule(at_ms, SimEvent::Provisioned { pool, order });
        Some(order)
    }

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
        // The classes of pools count there, too.
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

    pub(super) fn provisioned(&mut self, pool: usize, order: u64) -> Result<(), NodeError> {
        self.growth.ordered.remove(&order);
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
        self.meter.log("provision", || format!("{name} is ready"));
        Ok(())
    }

    /// Removes added nodes that have been without pods for long enough.
    pub(super) fn remove_idle_nodes(&mut self) {
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
                Some(idle_ms) if now_ms - since_ms >= idle_ms => self.remove_node(number, pool),
                _ => {}
            }
        }
    }

    fn remove_node(&mut self, number: usize, pool: usize) {
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

    /// Stops counting a node's GPUs and cost.
    fn count_out(&mut self, number: usize) {
        let Some(node) = self.nodes.get(number) else { return };
        self.meter.levels.gpus -= node.gpus.len() as i64;
        let hours = (self.now_ms - node.from_ms) as f64 / 3_600_000.0;
        self.node_cost += node.microusd_per_hour as f64 * hours;
    }

    pub(super) fn lose_pods(&mut self, number: usize) {
        let pods: Vec<u64> = self
            .nodes
            .get(number)
            .map(|node| node.pods.iter().copied().collect())
            .unwrap_or_default();
        pods.into_iter().for_each(|pod| self.lose(pod));
    }
}
