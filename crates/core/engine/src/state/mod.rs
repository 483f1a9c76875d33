//! The cluster as the engine knows it: objects from events, and everything derived from them
//! (usage, counts by domain, kubelet mirrors), updated event by event.

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
use crate::census::{Census, Resident};
use crate::changes::Changes;
use crate::class::Class;
use crate::devices::Devices;
use crate::gang::{Reservation, Roster};
use crate::offer::Accelerators;
use crate::placement::gpu_values::GpuValues;
use crate::query::Namespaces;
use crate::shares::{self, Grant, Shares};
use crate::table::{ClassIx, Interner, Lookup, NodeIx, PodIx, ResourceIx, Slab};
use crate::tenancy::Tenancy;
use crate::volume::Storage;
use berth_kubelet::NodeTopology;

use headroom::Headrooms;

pub use journal::Checkpoint;
pub(crate) use journal::Journal;
pub(crate) use node::NodeState;

pub(crate) type FullName = (Arc<str>, Arc<str>);

/// Kind, namespace and name.
type GroupingName = (Arc<str>, Arc<str>, Arc<str>);

#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) resources: Resources,
    pub(crate) nodes: Slab<NodeIx, NodeState>,
    node_names: Lookup<Arc<str>, NodeIx>,
    pub(crate) pods: Slab<PodIx, PodState>,
    pod_uids: Lookup<Arc<str>, PodIx>,
    /// Pods bound or nominated to unknown nodes, by node name.
    on_unknown_nodes: BTreeMap<Arc<str>, Vec<PodIx>>,
    class_specs: Interner<ClassIx, Arc<PodSpec>>,
    class_rows: Slab<ClassIx, Class>,
    class_pointers: Lookup<usize, ClassIx>,
    pub(crate) census: Census,
    pub(crate) namespaces: Namespaces,
    pub(crate) budgets: BTreeMap<FullName, DisruptionBudget>,
    pub(crate) priority_classes: BTreeMap<Arc<str>, PriorityClass>,
    pub(crate) quotas: BTreeMap<FullName, Quota>,
    pub(crate) pools: BTreeMap<Arc<str>, Pool>,
    /// Whether a pool restricts classes or gives its capacity type.
    pools_have_rules: bool,
    /// Number of nodes with labels of spot instances.
    spot_nodes: u32,
    class_rules: ClassRules,
    /// Whether any decision depends on the class of work.
    classes_matter: bool,
    pub(crate) headrooms: Headrooms,
    pub(crate) groupings: BTreeMap<GroupingName, Grouping>,
    accelerators: Accelerators,
    pub(crate) tenancy: Tenancy,
    pub(crate) storage: Storage,
    pub(crate) devices: Devices,
    /// Resources that claims can satisfy.
    pub(crate) served: Vec<ResourceIx>,
    pub(crate) gangs: Roster,
    pub(crate) reservation: Option<Arc<Reservation>>,
    pub(crate) now_ms: i64,
    claim_users: Lookup<FullName, u32>,
    topologies: BTreeMap<Arc<str>, Arc<NodeTopology>>,
    images: Lookup<Arc<str>, u32>,
    bindings: u64,
    /// Pods to be evicted that have not left yet.
    leaving: BTreeSet<PodIx>,
    /// How long the room of an evicted pod is counted on; `None`: without limit.
    pub(crate) eviction_max_wait_ms: Option<i64>,
    /// Preempted pods by the time until which their room is counted on.
    awaited: BTreeSet<(i64, PodIx)>,
    priorities: BTreeMap<i32, u32>,
    evictions: BTreeMap<FullName, i64>,
    eviction_times: BTreeSet<(i64, FullName)>,
    /// The value of GPUs to arriving work.
    pub(crate) gpu_values: GpuValues,
    pub(crate) changes: Changes,
    pub(crate) journal: Journal,
}

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
    pub(crate) decided: bool,
    /// Serial number of this engine's binding.
    bound_serial: Option<u64>,
    pub(crate) evicted_at_ms: Option<i64>,
    /// Until when its room is counted on, if it is preempted.
    awaited_until_ms: Option<i64>,
    /// When the pod it replaces was preempted; it is not preempted itself for a while.
    pub(crate) replaces_evicted_at_ms: Option<i64>,
    pub(crate) counted: bool,
    pub(crate) grant: Option<Grant>,
    pub(crate) claims: Arc<[PodClaim]>,
    /// UIDs of claims allocated by a decision about this pod.
    pub(crate) devices: Vec<Arc<str>>,
}

/// Nodes have a number while they exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Pending,
    Nominated(Arc<str>, Option<NodeIx>),
    Bound(Arc<str>, Option<NodeIx>),
}

impl Place {
    pub(crate) fn node(&self) -> Option<NodeIx> {
        match self {
            Self::Bound(_, node) => *node,
            _ => None,
        }
    }

    /// Ignores node numbers.
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

    /// Whether it is being preempted.
    fn is_victim(&self) -> bool {
        self.evicted_at_ms.is_some() || self.phase == (Phase::Terminating { by_preemption: true })
    }

    fn resident(&self) -> Resident {
        Resident { class: self.class, terminating: self.is_terminating() }
    }

    /// Order of admission by its kubelet: by start, then by this engine's bindings.
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

    pub(crate) fn topology(&self, node: &str) -> Option<&Arc<NodeTopology>> {
        self.topologies.get(node)
    }

    pub(crate) fn class(&self, at: ClassIx) -> &Class {
        &self.class_rows[at]
    }

    pub(crate) fn class_of(&self, pod: PodIx) -> &Class {
        self.class(self.pods[pod].class)
    }

    pub(crate) fn nodes_by_name(&self) -> Vec<NodeIx> {
        let mut nodes: Vec<NodeIx> = self.nodes.indexes().collect();
        nodes.sort_unstable_by(|one, other| {
            self.nodes[*one].object.name.cmp(&self.nodes[*other].object.name)
        });
        nodes
    }

    /// A pod as an event would describe it.
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

    pub(crate) fn rebuild_gpu_values(&mut self, generation: u64) {
        self.gpu_values.rebuild(generation);
        self.update_kinds();
    }

    /// Restores the value of GPUs of a checkpoint.
    pub(crate) fn restore_gpu_values(&mut self, gpu_values: GpuValues) {
        let is_other = gpu_values.generation != self.gpu_values.generation;
        self.gpu_values = gpu_values;
        if is_other {
            self.update_kinds();
        }
    }

    fn update_kinds(&mut self) {
        for at in self.nodes.indexes().collect::<Vec<NodeIx>>() {
            let kind = self.gpu_values.kind(&self.nodes[at].machine());
            self.nodes[at].kind = kind;
        }
    }

    pub(crate) fn named_grant(&self, grant: Grant) -> GpuGrant {
        GpuGrant { resource: self.resources.name(grant.resource).clone(), gpu: grant.gpu }
    }

    /// How many nodes hold an image, and its size. kube-scheduler uses the size on the node it saw
    /// first; here it is the first by name.
    pub(crate) fn image(&self, name: &str) -> Option<(u32, i64)> {
        let nodes = *self.images.get(name)?;
        let held = self.nodes.iter().filter_map(|(_, node)| {
            let mut images = node.object.images.iter();
            let image = images.find(|image| image.names.iter().any(|one| one.as_ref() == name))?;
            Some((&node.object.name, image.size_bytes))
        });
        held.min().map(|(_, size_bytes)| (nodes, size_bytes))
    }

    pub(crate) fn claim_users(&self, namespace: &str, name: &str) -> u32 {
        self.claim_users.get(&(namespace.into(), name.into())).copied().unwrap_or(0)
    }

    /// Pods to be evicted that have not left yet.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = PodIx> {
        self.leaving.iter().copied()
    }

    pub(crate) fn has_pods_below(&self, priority: i32) -> bool {
        self.priorities.first_key_value().is_some_and(|(lowest, _)| *lowest < priority)
    }

    /// When the pod that a new one replaces was preempted: the last of the same workload, if the
    /// new one was created since. Creation times are whole seconds.
    fn replaces_evicted_at_ms(&self, pod: &PodObject) -> Option<i64> {
        if self.evictions.is_empty() {
            return None;
        }
        let evicted_at_ms = *self.evictions.get(&workload(&pod.spec, &pod.name))?;
        let second = evicted_at_ms - evicted_at_ms.rem_euclid(1_000);
        (pod.created_at_ms >= second).then_some(evicted_at_ms)
    }

    /// Adds a pod's requests and grant, or subtracts them with a `sign` of -1.
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

    fn residents(&self) -> impl Iterator<Item = (NodeIx, Resident)> {
        let on = |(at, node): (NodeIx, &NodeState)| {
            node.pods.iter().map(move |pod| (at, *pod)).collect::<SmallVec<[_; 8]>>()
        };
        self.nodes.iter().flat_map(on).map(|(at, pod)| (at, self.pods[pod].resident()))
    }

    fn grant(&mut self, grant: Option<&GpuGrant>) -> Option<Grant> {
        let grant = grant?;
        Some(Grant { resource: self.resources.number(&grant.resource), gpu: grant.gpu })
    }
}

/// Namespace and name of the controller, or of a pod without one.
fn workload(spec: &PodSpec, name: &Arc<str>) -> FullName {
    let name = spec.controller.as_ref().map_or(name, |controller| &controller.name);
    (spec.namespace.clone(), name.clone())
}
