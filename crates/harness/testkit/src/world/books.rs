//! What is known of a cluster, kept in the plainest possible way.
//!
//! Owns books of its own, made from the same events and decisions that the engine sees: maps of
//! objects as they were last told, and a real kubelet model for every node whose inside is known.
//! Nothing is counted ahead; whoever wants a sum adds it up. Must share nothing with the engine but
//! its vocabulary.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_engine::decision::{Binding, GangReservation, PodPreemption};
use berth_engine::event::Event;
use berth_engine::headroom::ReservedHeadroom;
use berth_kubelet::NodeTopology;
use berth_model::gang::GangTerms;
use berth_model::label::Labels;
use berth_model::node::Node;
use berth_model::policy::{DisruptionBudget, Pool, Quota};
use berth_model::resource::ResourceName;
use berth_model::spec::{GpuGrant, Phase, PodObject, PodSpec};
use berth_model::workload::{ClassRules, Headroom};
use berth_tenancy::share::Team;

use super::offer::offers;
use super::twin::Twin;

/// Namespace and name.
pub(super) type FullName = (Arc<str>, Arc<str>);

/// Where a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// Nowhere.
    Nowhere,
    /// Nowhere yet, but it waits for this node.
    Awaits(Arc<str>),
    /// On this node, which need not exist.
    On(Arc<str>),
}

/// A pod as it is known.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// As last told.
    pub(super) object: PodObject,
    pub(super) spot: Spot,
    /// Whether the spot is a decision that no event has confirmed.
    pub(super) decided: bool,
    /// When it was decided that it is to be evicted.
    pub(super) evicted_at_ms: Option<i64>,
    /// When the last pod of its workload had been evicted, if that was before it was created.
    pub(super) replaces_evicted_at_ms: Option<i64>,
    /// What it has for the part of a GPU that it needs.
    pub(super) grant: Option<ResourceName>,
}

impl Entry {
    pub(super) fn spec(&self) -> &PodSpec {
        &self.object.spec
    }

    /// The node it is on.
    pub(super) fn node(&self) -> Option<&Arc<str>> {
        match &self.spot {
            Spot::On(node) => Some(node),
            _ => None,
        }
    }

    pub(super) fn is_terminating(&self) -> bool {
        matches!(self.object.phase, Phase::Terminating { .. })
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.evicted_at_ms.is_some()
    }

    /// Whether it is evicted for others that still count on its room: it may take as long as its own
    /// grace period and a minute more, up to a limit.
    pub(super) fn makes_room(&self, now_ms: i64, max_wait_ms: Option<i64>) -> bool {
        let preempted = self.object.phase == (Phase::Terminating { by_preemption: true });
        let Some(max_wait_ms) = max_wait_ms else { return self.is_leaving() || preempted };
        let deletion = self.object.deletion.filter(|_| self.is_leaving() || preempted);
        let wait_ms = deletion.map_or(max_wait_ms, |one| max_wait_ms.min(one.grace_ms + 60_000));
        match self.evicted_at_ms.or(deletion.map(|one| one.requested_at_ms)) {
            Some(since_ms) => now_ms < since_ms.saturating_add(wait_ms),
            None => preempted,
        }
    }

    /// Whether it looks for its place.
    pub(super) fn waits(&self) -> bool {
        self.node().is_none() && self.object.phase == Phase::Alive && self.spec().gates.is_empty()
    }

    /// Whether it waits for this node, which is kept for it meanwhile.
    pub(super) fn awaits(&self, node: &Arc<str>) -> bool {
        self.object.phase == Phase::Alive && self.spot == Spot::Awaits(node.clone())
    }

    /// What it is a replica of: its controller, or itself.
    pub(super) fn workload(&self) -> FullName {
        let controller = self.spec().controller.as_ref().map(|controller| &controller.name);
        let name = controller.unwrap_or(&self.object.name);
        (self.spec().namespace.clone(), name.clone())
    }
}

/// A cluster as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Books {
    pub(super) nodes: BTreeMap<Arc<str>, Node>,
    pub(super) topologies: BTreeMap<Arc<str>, Arc<NodeTopology>>,
    /// Of nodes that exist and whose inside is known.
    pub(super) twins: BTreeMap<Arc<str>, Twin>,
    pub(super) pods: BTreeMap<Arc<str>, Entry>,
    pub(super) namespaces: BTreeMap<Arc<str>, Labels>,
    pub(super) budgets: BTreeMap<FullName, DisruptionBudget>,
    pub(super) quotas: BTreeMap<FullName, Quota>,
    pub(super) teams: BTreeMap<Arc<str>, Team>,
    pub(super) pools: BTreeMap<Arc<str>, Pool>,
    pub(super) class_rules: ClassRules,
    pub(super) headrooms: BTreeMap<Arc<str>, Headroom>,
    /// Where headroom is kept, by the engine's word.
    pub(super) warm: Vec<ReservedHeadroom>,
    /// When a pod of each workload was last evicted.
    pub(super) evictions: BTreeMap<FullName, i64>,
    /// What gangs ask for that are objects of their own.
    pub(super) gangs: BTreeMap<FullName, GangTerms>,
    /// Members of gangs that have finished, by UID.
    pub(super) finished: BTreeMap<Arc<str>, FullName>,
    /// Gangs that were whole once.
    pub(super) started: BTreeSet<FullName>,
    /// The gang for which nodes were reserved last, without evictions.
    pub(super) reserved_for: Option<FullName>,
    /// The time of the decision that is checked.
    pub(super) now_ms: i64,
    /// How long the room of evicted pods is counted on at most; `None`: as long as it takes.
    pub(super) max_wait_ms: Option<i64>,
}

impl Books {
    /// Takes in an event. Objects that no rule here looks at are left out.
    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Node(node) => {
                let known = self.nodes.insert(node.name.clone(), node.clone());
                if known.is_none() {
                    self.twin_anew(&node.name);
                }
            }
            Event::NodeGone(name) => {
                self.nodes.remove(name);
                self.twins.remove(name);
                // Nobody makes room there any more for those that we let wait for it.
                let awaits = Spot::Awaits(name.clone());
                for pod in self.pods.values_mut().filter(|pod| pod.decided && pod.spot == awaits) {
                    (pod.spot, pod.decided) = (Spot::Nowhere, false);
                }
            }
            Event::Topology { node, topology } => self.set_topology(node, topology.as_ref()),
            Event::Pod(pod) => {
                self.finished.remove(&pod.uid);
                let gang = pod.spec.gang.as_ref().filter(|_| pod.phase == Phase::Finished);
                if let Some(gang) = gang {
                    let name = (pod.spec.namespace.clone(), gang.name.clone());
                    self.finished.insert(pod.uid.clone(), name);
                }
                self.set_pod(pod);
            }
            Event::PodGone(uid) => {
                self.finished.remove(uid);
                self.remove_pod(uid);
            }
            Event::Gang(gang) => {
                let name = (gang.namespace.clone(), gang.name.clone());
                self.gangs.insert(name, gang.terms.clone());
            }
            Event::GangGone(namespace, name) => {
                self.gangs.remove(&(namespace.clone(), name.clone()));
            }
            Event::Namespace(namespace) => {
                self.namespaces.insert(namespace.name.clone(), namespace.labels.clone());
            }
            Event::NamespaceGone(name) => {
                self.namespaces.remove(name);
            }
            Event::Budget(budget) => {
                let name = (budget.namespace.clone(), budget.name.clone());
                self.budgets.insert(name, budget.clone());
            }
            Event::BudgetGone(namespace, name) => {
                self.budgets.remove(&(namespace.clone(), name.clone()));
            }
            other => self.apply_tenancy(other),
        }
    }

    fn apply_tenancy(&mut self, event: &Event) {
        match event {
            Event::Quota(quota) => {
                let name = (quota.namespace.clone(), quota.name.clone());
                self.quotas.insert(name, quota.clone());
            }
            Event::QuotaGone(namespace, name) => {
                self.quotas.remove(&(namespace.clone(), name.clone()));
            }
            Event::Team(team) => {
                self.teams.insert(team.name.clone(), team.clone());
            }
            Event::TeamGone(name) => {
                self.teams.remove(name);
            }
            other => self.apply_classes(other),
        }
    }

    fn apply_classes(&mut self, event: &Event) {
        match event {
            Event::Pool(pool) => {
                self.pools.insert(pool.name.clone(), pool.clone());
            }
            Event::PoolGone(name) => {
                self.pools.remove(name);
            }
            Event::Classes(rules) => self.class_rules.clone_from(rules),
            Event::Headroom(headroom) => {
                self.headrooms.insert(headroom.name.clone(), headroom.clone());
            }
            Event::HeadroomGone(name) => {
                self.headrooms.remove(name);
            }
            _ => {}
        }
    }

    fn set_topology(&mut self, node: &Arc<str>, topology: Option<&Arc<NodeTopology>>) {
        let before = match topology {
            Some(topology) => self.topologies.insert(node.clone(), topology.clone()),
            None => self.topologies.remove(node),
        };
        let both = before.as_ref().zip(topology);
        let same = both.is_some_and(|(one, other)| Arc::ptr_eq(one, other));
        // Whoever holds a slice keeps it while others are made or destroyed.
        if let Some((one, other)) = both.filter(|_| !same)
            && (one.gpus().is_some() && other.gpus().is_some())
            && let Some(twin) = self.twins.get(node).and_then(|twin| twin.redivided(other))
        {
            self.twins.insert(node.clone(), twin);
            return;
        }
        // Of a kubelet that has shown itself to be another, what is told again is news.
        if !same || self.twins.get(node).is_some_and(|twin| !twin.is_known()) {
            self.twin_anew(node);
        }
    }

    /// The kubelet of a node that appears, or of whose inside something new is told. Which of the
    /// pods that run there came first is not known, so it is not trusted unless there are none.
    fn twin_anew(&mut self, name: &Arc<str>) {
        self.twins.remove(name);
        let (Some(topology), true) = (self.topologies.get(name), self.nodes.contains_key(name))
        else {
            return;
        };
        let mut twin = Twin::new(topology);
        for pod in self.pods.values().filter(|pod| pod.node() == Some(name)) {
            twin.distrust();
            twin.admit(pod);
        }
        self.twins.insert(name.clone(), twin);
    }

    fn set_pod(&mut self, object: &PodObject) {
        if object.phase == Phase::Finished {
            return self.remove_pod(&object.uid);
        }
        let told = match (&object.node, &object.nominated) {
            (Some(node), _) => Spot::On(node.clone()),
            (None, Some(node)) => Spot::Awaits(node.clone()),
            (None, None) => Spot::Nowhere,
        };
        let Some(entry) = self.pods.get_mut(&object.uid) else {
            let mut entry = Entry {
                object: object.clone(),
                spot: Spot::Nowhere,
                decided: false,
                evicted_at_ms: None,
                replaces_evicted_at_ms: None,
                grant: device(object.gpu_grant.as_ref()),
            };
            // Creation is told in whole seconds.
            let evicted_at_ms = self.evictions.get(&entry.workload()).copied();
            entry.replaces_evicted_at_ms =
                evicted_at_ms.filter(|at| object.created_at_ms >= at.div_euclid(1_000) * 1_000);
            self.pods.insert(object.uid.clone(), entry);
            return self.put(&object.uid, told, None);
        };
        entry.object = object.clone();
        if object.gpu_grant.is_some() {
            entry.grant = device(object.gpu_grant.as_ref());
        }
        // News without a node may be from before our decision.
        if entry.decided && object.node.is_none() {
            return;
        }
        entry.decided = false;
        if entry.spot != told {
            self.put(&object.uid, told, None);
        }
    }

    /// Puts a pod somewhere else.
    fn put(&mut self, uid: &Arc<str>, spot: Spot, grant: Option<ResourceName>) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        if let Some(twin) = entry.node().and_then(|node| self.twins.get_mut(node)) {
            twin.remove(uid);
        }
        entry.spot = spot;
        entry.grant = grant.or(entry.grant.take());
        let Some(node) = entry.node().and_then(|name| self.nodes.get(name)) else { return };
        if let (Some(need), None) = (&entry.spec().gpu, &entry.grant) {
            // Nobody said what it got: the least that will do.
            let enough = offers(node).into_iter().find(|offer| offer.is_enough(need));
            entry.grant = enough.map(|offer| offer.resource);
        }
        if let Some(twin) = self.twins.get_mut(&node.name) {
            twin.admit(entry);
        }
    }

    pub(super) fn remove_pod(&mut self, uid: &Arc<str>) {
        self.put(uid, Spot::Nowhere, None);
        self.pods.remove(uid);
    }

    /// A decision to bind.
    pub(super) fn bind(&mut self, binding: &Binding) {
        if let Some(entry) = self.pods.get_mut(&binding.pod) {
            entry.decided = true;
            entry.grant = None;
        }
        self.put(&binding.pod, Spot::On(binding.node.clone()), device(binding.gpu_grant.as_ref()));
    }

    /// A decision to evict.
    pub(super) fn preempt(&mut self, preempting: &PodPreemption, now_ms: i64) {
        self.evict(&preempting.victims, now_ms);
        self.displace(&preempting.displaced);
        let awaits = Spot::Awaits(preempting.node.clone());
        let Some(own) = self.pods.get(&preempting.pod) else { return };
        // Whoever waits for the node and matters less has to look elsewhere.
        let lower = self.pods.values().filter(|pod| {
            let other = pod.object.uid != preempting.pod && pod.spot == awaits;
            other && !self.goes_before(pod, own)
        });
        let lower: Vec<Arc<str>> = lower.map(|pod| pod.object.uid.clone()).collect();
        for uid in lower {
            if let Some(pod) = self.pods.get_mut(&uid) {
                (pod.spot, pod.decided) = (Spot::Nowhere, false);
            }
        }
        if let Some(entry) = self.pods.get_mut(&preempting.pod) {
            (entry.spot, entry.decided) = (awaits, true);
        }
    }

    /// A decision to hold a pod: it waits for no node.
    pub(super) fn hold(&mut self, uid: &Arc<str>) {
        if let Some(entry) = self.pods.get_mut(uid) {
            (entry.spot, entry.decided) = (Spot::Nowhere, false);
        }
    }

    /// A decision to keep nodes for a gang.
    pub(super) fn reserve(&mut self, reserving: &GangReservation, now_ms: i64) {
        self.evict(&reserving.victims, now_ms);
        self.displace(&reserving.displaced);
        for (pod, node) in &reserving.places {
            if let Some(entry) = self.pods.get_mut(pod) {
                (entry.spot, entry.decided) = (Spot::Awaits(node.clone()), true);
            }
        }
    }

    /// Pods are to be evicted.
    pub(super) fn evict(&mut self, pods: &[Arc<str>], now_ms: i64) {
        for uid in pods {
            let Some(entry) = self.pods.get_mut(uid) else { continue };
            entry.evicted_at_ms = Some(now_ms);
            self.evictions.insert(entry.workload(), now_ms);
        }
    }

    /// Pods do not wait for their node any more.
    fn displace(&mut self, pods: &[Arc<str>]) {
        for uid in pods {
            let Some(entry) = self.pods.get_mut(uid) else { continue };
            (entry.spot, entry.decided) = (Spot::Nowhere, false);
        }
    }

    /// A decision to wait: it waits for no node in particular, unless pods are leaving that.
    pub(super) fn wait(&mut self, uid: &Arc<str>) {
        if self.pods.get(uid).is_some_and(|pod| !self.awaits_room(pod))
            && let Some(entry) = self.pods.get_mut(uid)
        {
            entry.spot = Spot::Nowhere;
            entry.decided = false;
        }
    }

    /// A decision could not be carried out: no kubelet ever saw the pod.
    pub(super) fn undo(&mut self, uid: &Arc<str>) {
        let Some(entry) = self.pods.get_mut(uid).filter(|entry| entry.decided) else { return };
        if let Some(twin) = entry.node().and_then(|node| self.twins.get_mut(node)) {
            twin.unsee(uid);
        }
        entry.decided = false;
        entry.spot = Spot::Nowhere;
        entry.grant = None;
    }

    /// Whether less important pods are leaving the node that a pod waits for.
    pub(super) fn awaits_room(&self, pod: &Entry) -> bool {
        let Spot::Awaits(node) = &pod.spot else { return false };
        self.pods.values().any(|other| {
            self.nodes.contains_key(node)
                && other.node() == Some(node)
                && other.makes_room(self.now_ms, self.max_wait_ms)
                && self.may_leave_for(other, pod)
        })
    }
}

/// The device given for a part of a GPU.
pub(super) fn device(grant: Option<&GpuGrant>) -> Option<ResourceName> {
    grant.map(|grant| grant.resource.clone())
}
