//! The cluster as the engine knows it.
//!
//! Owns nodes, pods and everything else that events tell of, and keeps what follows from them (use
//! of nodes, counts by domain, mirrors of kubelets) up to date event by event. Must not decide
//! anything.

mod apply;
mod classes;
pub(crate) mod headroom;
mod journal;
mod node;
mod placing;
mod pools;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::dra::pod::PodClaim;
use berth_model::policy::{DisruptionBudget, Grouping, Pool, PriorityClass, Quota};
use berth_model::spec::{Deletion, GpuGrant, Phase, PodObject, PodSpec};
use berth_model::workload::ClassRules;
use smallvec::SmallVec;

use crate::amounts::{self, Resources};
use crate::berth::economy::Economy;
use crate::census::{Census, Resident};
use crate::changes::Changes;
use crate::class::Class;
use crate::devices::Devices;
use crate::event::NodeTopology;
use crate::gang::{Reservation, Roster};
use crate::offer::Accelerators;
use crate::query::Namespaces;
use crate::shares::{self, Grant, Shares};
use crate::table::{ClassIx, Interner, Lookup, NodeIx, PodIx, ResourceIx, Slab};
use crate::tenancy::Tenancy;
use crate::volume::Storage;

use headroom::Headrooms;

pub use journal::Checkpoint;
pub(crate) use journal::Journal;
pub(crate) use node::NodeState;

/// Namespace and name.
pub(crate) type FullName = (Arc<str>, Arc<str>);

/// Kind, namespace and name.
type GroupingName = (Arc<str>, Arc<str>, Arc<str>);

/// The cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) resources: Resources,
    pub(crate) nodes: Slab<NodeIx, NodeState>,
    node_names: Lookup<Arc<str>, NodeIx>,
    pub(crate) pods: Slab<PodIx, PodState>,
    pod_uids: Lookup<Arc<str>, PodIx>,
    /// Pods that are bound or nominated to nodes that are not there, by node name.
    strays: BTreeMap<Arc<str>, Vec<PodIx>>,
    class_specs: Interner<ClassIx, Arc<PodSpec>>,
    class_rows: Slab<ClassIx, Class>,
    class_pointers: Lookup<usize, ClassIx>,
    pub(crate) census: Census,
    pub(crate) namespaces: Namespaces,
    pub(crate) budgets: BTreeMap<FullName, DisruptionBudget>,
    pub(crate) priority_classes: BTreeMap<Arc<str>, PriorityClass>,
    pub(crate) quotas: BTreeMap<FullName, Quota>,
    pub(crate) pools: BTreeMap<Arc<str>, Pool>,
    /// Whether a pool says for which classes it is, or on which terms its nodes are had.
    pools_say: bool,
    /// Nodes whose labels say that they are spot instances.
    spot_nodes: u32,
    class_rules: ClassRules,
    /// Whether anybody cares which class of work a pod is of.
    classes_matter: bool,
    pub(crate) headrooms: Headrooms,
    pub(crate) groupings: BTreeMap<GroupingName, Grouping>,
    /// What is said about device resources.
    accelerators: Accelerators,
    pub(crate) tenancy: Tenancy,
    pub(crate) storage: Storage,
    /// Devices that pods claim.
    pub(crate) devices: Devices,
    /// Resources that such devices serve.
    pub(crate) served: Vec<ResourceIx>,
    /// Who belongs to which gang.
    pub(crate) gangs: Roster,
    /// The nodes that are reserved for a gang.
    pub(crate) reservation: Option<Arc<Reservation>>,
    /// The time of the last decision.
    pub(crate) now_ms: i64,
    /// How many pods on nodes use each claim.
    claim_users: Lookup<FullName, u32>,
    topologies: BTreeMap<Arc<str>, Arc<NodeTopology>>,
    /// How many nodes hold each image.
    images: Lookup<Arc<str>, u32>,
    bindings: u64,
    /// Pods that are to be evicted and have not left yet.
    leaving: BTreeSet<PodIx>,
    /// How long the room of an evicted pod is counted on at most; `None`: as long as it takes.
    pub(crate) eviction_max_wait_ms: Option<i64>,
    /// Pods evicted for others, by the time after which their room is not counted on.
    awaited: BTreeSet<(i64, PodIx)>,
    /// How many pods on nodes have each priority.
    priorities: BTreeMap<i32, u32>,
    /// When a pod of each workload was last evicted for another.
    evictions: BTreeMap<FullName, i64>,
    eviction_times: BTreeSet<(i64, FullName)>,
    /// What GPUs are worth to the work that arrives.
    pub(crate) economy: Economy,
    pub(crate) changes: Changes,
    pub(crate) journal: Journal,
}

/// A pod.
#[derive(Clone, Debug)]
pub(crate) struct PodState {
    pub(crate) uid: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) class: ClassIx,
    pub(crate) created_at_ms: i64,
    pub(crate) started_at_ms: Option<i64>,
    pub(crate) phase: Phase,
    pub(crate) deletion: Option<Deletion>,
    pub(crate) place: Place,
    /// Whether the place is a decision of ours that no event has confirmed yet.
    pub(crate) decided: bool,
    /// Which of our bindings it was.
    bound_serial: Option<u64>,
    /// When a decision was made to evict it.
    pub(crate) evicted_at_ms: Option<i64>,
    /// Until when its room on the node is counted on for others, if it is evicted for them.
    awaited_until_ms: Option<i64>,
    /// When the pod was evicted that this one replaces; it is left alone for a while.
    pub(crate) replaces_evicted_at_ms: Option<i64>,
    /// Whether it has been counted as an arrival.
    pub(crate) counted: bool,
    /// What it has been given for a part of a GPU it needs.
    pub(crate) grant: Option<Grant>,
    /// The claims of devices it refers to.
    pub(crate) claims: Arc<[PodClaim]>,
    /// UIDs of the claims that were given devices by a decision about this pod.
    pub(crate) devices: Vec<Arc<str>>,
}

/// Where a pod is or wants to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere yet.
    Pending,
    /// Waiting for this node.
    Nominated(Arc<str>, Option<NodeIx>),
    /// On this node. Known by number while the node exists.
    Bound(Arc<str>, Option<NodeIx>),
}

impl Place {
    /// The node it is on, if that exists.
    pub(crate) fn node(&self) -> Option<NodeIx> {
        match self {
            Self::Bound(_, node) => *node,
            _ => None,
        }
    }

    /// Whether it is the same place, known by number or not.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pending, Self::Pending) => true,
            (Self::Nominated(one, _), Self::Nominated(other, _))
            | (Self::Bound(one, _), Self::Bound(other, _)) => one == other,
            _ => false,
        }
    }

    fn of(object: &PodObject) -> Self {
        match (&object.node, &object.nominated) {
            (Some(node), _) => Self::Bound(node.clone(), None),
            (None, Some(node)) => Self::Nominated(node.clone(), None),
            (None, None) => Self::Pending,
        }
    }
}

impl PodState {
    pub(crate) fn is_terminating(&self) -> bool {
        matches!(self.phase, Phase::Terminating { .. })
    }

    /// Whether it is evicted for others.
    fn is_victim(&self) -> bool {
        self.evicted_at_ms.is_some() || self.phase == (Phase::Terminating { by_preemption: true })
    }

    fn resident(&self) -> Resident {
        Resident { class: self.class, terminating: self.is_terminating() }
    }

    /// When its kubelet took it: by start, and then in the order in which we bound.
    fn arrival(&self) -> (i64, u64, i64, &Arc<str>) {
        let bound = self.bound_serial.unwrap_or(u64::MAX);
        (self.started_at_ms.unwrap_or(i64::MAX), bound, self.created_at_ms, &self.uid)
    }
}

impl State {
    pub(crate) fn node_by_name(&self, name: &str) -> Option<NodeIx> {
        self.node_names.get(name).copied()
    }

    pub(crate) fn pod_by_uid(&self, uid: &str) -> Option<PodIx> {
        self.pod_uids.get(uid).copied()
    }

    /// What is known of a node's inside.
    pub(crate) fn topology(&self, node: &str) -> Option<&Arc<NodeTopology>> {
        self.topologies.get(node)
    }

    pub(crate) fn class(&self, at: ClassIx) -> &Class {
        &self.class_rows[at]
    }

    pub(crate) fn class_of(&self, pod: PodIx) -> &Class {
        self.class(self.pods[pod].class)
    }

    /// Nodes in name order.
    pub(crate) fn nodes_by_name(&self) -> Vec<NodeIx> {
        let mut nodes: Vec<NodeIx> = self.nodes.indexes().collect();
        nodes.sort_unstable_by(|one, other| {
            self.nodes[*one].object.name.cmp(&self.nodes[*other].object.name)
        });
        nodes
    }

    /// Everything about a pod as an event would tell it.
    pub(crate) fn object(&self, at: PodIx) -> PodObject {
        let pod = &self.pods[at];
        let (node, nominated) = match &pod.place {
            Place::Pending => (None, None),
            Place::Nominated(node, _) => (None, Some(node.clone())),
            Place::Bound(node, _) => (Some(node.clone()), None),
        };
        PodObject {
            uid: pod.uid.clone(),
            name: pod.name.clone(),
            spec: self.class(pod.class).spec.clone(),
            created_at_ms: pod.created_at_ms,
            started_at_ms: pod.started_at_ms,
            node,
            nominated,
            phase: pod.phase,
            deletion: pod.deletion,
            gpu_grant: pod.grant.map(|grant| self.named_grant(grant)),
            claims: pod.claims.clone(),
        }
    }

    /// Has what GPUs are worth worked out anew.
    pub(crate) fn remake_economy(&mut self, generation: u64) {
        self.economy.remake(generation);
        self.place_machines();
    }

    /// What GPUs are worth is as it was at some other time.
    pub(crate) fn restore_economy(&mut self, economy: Economy) {
        let is_other = economy.generation != self.economy.generation;
        self.economy = economy;
        if is_other {
            self.place_machines();
        }
    }

    fn place_machines(&mut self) {
        for at in self.nodes.indexes().collect::<Vec<NodeIx>>() {
            let kind = self.economy.kind(&self.nodes[at].machine());
            self.nodes[at].kind = kind;
        }
    }

    /// A grant as it is told.
    pub(crate) fn named_grant(&self, grant: Grant) -> GpuGrant {
        GpuGrant { resource: self.resources.name(grant.resource).clone(), gpu: grant.gpu }
    }

    /// How many nodes hold an image of this name, and its size on the first of them by name:
    /// kube-scheduler takes one node's size for all, that of the node it saw first.
    pub(crate) fn image(&self, name: &str) -> Option<(u32, i64)> {
        let nodes = *self.images.get(name)?;
        let held = self.nodes.iter().filter_map(|(_, node)| {
            let mut images = node.object.images.iter();
            let image = images.find(|image| image.names.iter().any(|one| one.as_ref() == name))?;
            Some((&node.object.name, image.size_bytes))
        });
        held.min().map(|(_, size_bytes)| (nodes, size_bytes))
    }

    /// How many pods on nodes use a claim.
    pub(crate) fn claim_users(&self, namespace: &str, name: &str) -> u32 {
        self.claim_users.get(&(namespace.into(), name.into())).copied().unwrap_or(0)
    }

    /// Pods that are to be evicted and have not left yet.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = PodIx> {
        self.leaving.iter().copied()
    }

    /// Whether a pod on a node has a lower priority.
    pub(crate) fn has_pods_below(&self, priority: i32) -> bool {
        self.priorities.first_key_value().is_some_and(|(lowest, _)| *lowest < priority)
    }

    /// When the pod was evicted that a new one replaces: the last of the same workload, if the new
    /// one was created since. Kubernetes writes down creation in whole seconds.
    fn replaces_evicted_at_ms(&self, pod: &PodObject) -> Option<i64> {
        if self.evictions.is_empty() {
            return None;
        }
        let evicted_at_ms = *self.evictions.get(&workload(&pod.spec, &pod.name))?;
        let second = evicted_at_ms - evicted_at_ms.rem_euclid(1_000);
        (pod.created_at_ms >= second).then_some(evicted_at_ms)
    }

    /// Adds what a pod requests and has been given, or takes it away with a `sign` of -1.
    pub(crate) fn count_requests(
        &self,
        pod: PodIx,
        used: &mut Vec<i64>,
        shares: Option<&mut Shares>,
        sign: i64,
    ) {
        let class = self.class_of(pod);
        amounts::add(used, &class.requests, sign);
        if let Some(grant) = self.pods[pod].grant {
            shares::count(grant, class.spec.gpu.as_ref(), used, shares, sign);
        }
    }

    /// All pods on nodes that exist.
    fn residents(&self) -> impl Iterator<Item = (NodeIx, Resident)> {
        let on = |(at, node): (NodeIx, &NodeState)| {
            node.pods.iter().map(move |pod| (at, *pod)).collect::<SmallVec<[_; 8]>>()
        };
        self.nodes.iter().flat_map(on).map(|(at, pod)| (at, self.pods[pod].resident()))
    }

    /// A grant as told, numbered.
    fn grant(&mut self, grant: Option<&GpuGrant>) -> Option<Grant> {
        let grant = grant?;
        Some(Grant { resource: self.resources.number(&grant.resource), gpu: grant.gpu })
    }
}

/// The name by which the pods of a workload are known: its controller's, or the pod's own.
fn workload(spec: &PodSpec, name: &Arc<str>) -> FullName {
    let name = spec.controller.as_ref().map_or(name, |controller| &controller.name);
    (spec.namespace.clone(), name.clone())
}
