//! What there is to say about a pod: why it waits and what would help, or where it is and why.
//!
//! Owns the vocabulary only, in figures that a person can check. Must not know how any of it is
//! found out, nor how it is worded.

use std::sync::Arc;

use berth_model::label::{Requirement, Selector};
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::ResourceName;
use berth_model::spec::{GpuGrant, GpuNeed, HostPort};
use berth_model::taint::Taint;
use berth_model::workload::{ClassSet, WorkloadClass};

use super::relax::Relaxation;
use crate::decision::{Alignment, GangName, HeldBy};
use crate::slices::Redivision;
use crate::verdict::{Plugin, Reason};

/// A pod, as people name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name; empty: withheld from a reader who may not see the namespace.
    pub name: Arc<str>,
    /// Its priority.
    pub priority: i32,
}

impl PodName {
    /// Whether its name is withheld.
    pub fn is_withheld(&self) -> bool {
        self.name.is_empty()
    }
}

/// What there is to say about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Explanation {
    /// It is not to be scheduled yet.
    Gated {
        /// The pod.
        pod: PodName,
        /// Its scheduling gates.
        gates: Vec<Arc<str>>,
    },
    /// It is being deleted and has no place.
    Leaving {
        /// The pod.
        pod: PodName,
    },
    /// A quota or its team's share holds it; more nodes would not help.
    Held {
        /// The pod.
        pod: PodName,
        /// Its team; empty if it has none.
        team: Arc<str>,
        /// What holds it.
        by: HeldBy,
    },
    /// Pods are leaving a node to make room for it.
    AwaitsRoom {
        /// The pod.
        pod: PodName,
        /// The node.
        node: Arc<str>,
        /// Those who leave, in name order.
        leaving: Vec<PodName>,
        /// Preempted pods that are still terminating and that it no longer waits for, in name order.
        overdue: Vec<PodName>,
    },
    /// It has no place.
    Waiting {
        /// The pod.
        pod: PodName,
        /// How many nodes there are.
        nodes: usize,
        /// On how many of them it fits now; if there are any, it only waits for its turn.
        fitting: usize,
        /// Why the others will not do, most nodes first.
        groups: Vec<Group>,
        /// Where the least is missing, least first.
        nearest: Vec<Miss>,
        /// What would make it fit, each by itself. All of it has been tried out.
        remedies: Vec<Remedy>,
        /// Preempted pods that are still terminating and that it no longer waits for, in name order.
        overdue: Vec<PodName>,
    },
    /// It waits with its gang, which starts together or not at all.
    InGang {
        /// The pod.
        pod: PodName,
        /// The gang.
        gang: Box<GangReport>,
        /// What there is to say about the first member for which there is no room beside the
        /// others.
        next: Option<Box<Explanation>>,
    },
    /// It has its place.
    Placed {
        /// The pod.
        pod: PodName,
        /// The node.
        node: Arc<str>,
        /// How it lies there.
        alignment: Alignment,
        /// What it has been given for the part of a GPU it needs.
        grant: Option<GpuGrant>,
        /// Why there, as far as that can be seen now.
        why: Box<Why>,
    },
}

/// How a gang stands that has not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangReport {
    /// Its name.
    pub name: GangName,
    /// How many members start together; `None` if there is no PodGroup that says so.
    pub min: Option<usize>,
    /// How many members look for their place.
    pub waiting: usize,
    /// How many have one, or have finished.
    pub served: usize,
    /// Its members say different things about it. What the oldest says counts.
    pub disagrees: bool,
    /// The node label of which all members are to get one value.
    pub topology_key: Option<Arc<str>>,
    /// Whether they wait for that.
    pub required: bool,
    /// How many values there are.
    pub domains: usize,
    /// Where most of those waiting fit now, found out by trying.
    pub rooms: Vec<DomainRoom>,
    /// Others are leaving to make room for it.
    pub evicting: bool,
    /// How long nodes are kept for it at most, if they are.
    pub reserved_max_ms: Option<i64>,
    /// Why none were reserved for it when it was its turn.
    pub unreserved: Option<Unreserved>,
    /// How often nodes were kept for it in vain.
    pub timeouts: u32,
}

/// Whose gangs share the time in which nodes may be reserved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenant {
    /// A team.
    Team(Arc<str>),
    /// A namespace, for pods without a team.
    Namespace(Arc<str>),
}

/// Why no nodes are reserved for a gang that has waited long enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreserved {
    /// It needs more than may be reserved.
    BeyondShare {
        /// The model of the GPUs; `None`: nodes without GPUs.
        model: Option<Arc<str>>,
        /// How many it needs of them.
        needs: i64,
        /// How many may be reserved.
        allowed: i64,
        /// The share that may be reserved, in percent.
        percent: u8,
    },
    /// Its team or namespace had its share of time.
    Resting(Tenant),
    /// It would not fit even if all pods had ended that end by themselves.
    NothingEnds,
}

/// How many members of a gang fit somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainRoom {
    /// The value of the label that the nodes share; `None`: on any nodes.
    pub value: Option<Arc<str>>,
    /// So many.
    pub room: usize,
}

/// Nodes that will not do for one and the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The reason.
    pub cause: Cause,
    /// How many nodes.
    pub nodes: usize,
    /// The first of them by name.
    pub examples: Vec<Arc<str>>,
}

/// Why a node will not do. Where nodes of a group differ in a figure, it is the one nearest to what
/// is wanted; what they differ in otherwise is left out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The pod asks for another node by name.
    OtherNode {
        /// The one it asks for.
        wanted: Arc<str>,
    },
    /// It is cordoned.
    Cordoned,
    /// A taint is not tolerated. An empty value can stand for several.
    Taint(Taint),
    /// It does not have a label that the pod's node selector wants.
    NodeLabel {
        /// The label's key.
        key: Arc<str>,
        /// The value wanted.
        value: Arc<str>,
    },
    /// It does not match the pod's required node affinity.
    NodeAffinity {
        /// What fails; `None` if there are several alternatives, of which none matches. The key of
        /// a condition on the node's name is `metadata.name`.
        requirement: Option<Requirement>,
    },
    /// A host port is taken.
    Port(HostPort),
    /// It holds as many pods as it may.
    TooManyPods,
    /// Some resources are short.
    Short(Vec<Shortage>),
    /// Nothing it offers is a large enough part of a GPU.
    NoOffer {
        /// What is needed.
        need: GpuNeed,
        /// The largest there is; `None` if it has no GPUs of which that is known.
        largest: Option<Offered>,
    },
    /// Every part of a GPU that is large enough is taken.
    OffersTaken {
        /// What is needed.
        need: GpuNeed,
    },
    /// There are enough free devices, but not together, and the kubelet insists on that.
    Split {
        /// The devices.
        resource: ResourceName,
        /// How many are wanted.
        wanted: u64,
        /// How many are free on each part of the node, most first; empty where nodes differ.
        free: Vec<u64>,
        /// The most that are together.
        most: u64,
        /// What the parts are.
        parts: PartKind,
    },
    /// There are not enough CPUs or memory together, and the kubelet insists on that.
    Crowded {
        /// CPU or memory.
        resource: ResourceName,
        /// How much is wanted.
        wanted: Quantity,
        /// The most that is together.
        most: Quantity,
        /// What the parts of the node are.
        parts: PartKind,
    },
    /// There is enough of everything, but not on the same part of the node.
    Apart {
        /// What is wanted together.
        wanted: Vec<(ResourceName, Quantity)>,
        /// What the parts of the node are.
        parts: PartKind,
    },
    /// The kubelet would reject the pod.
    Kubelet {
        /// Why, as the pod's status would show it.
        reason: berth_kubelet::Reason,
        /// In its own words on the first of the nodes.
        words: String,
    },
    /// Whether the kubelet takes the pod depends on which devices it has handed out at random.
    Uncertain,
    /// Nothing is known of the node's inside, and such nodes are not to be used.
    UnknownTopology {
        /// Something was told, but a pod runs there that could not run if it were true.
        doubted: bool,
    },
    /// It does not have a label by which pods are to be spread.
    SpreadLabel {
        /// The label's key.
        key: Arc<str>,
    },
    /// Pods would be spread too unevenly.
    Spread {
        /// The label by which they are spread.
        key: Arc<str>,
        /// Its value there; `None`: several.
        domain: Option<Arc<str>>,
        /// By how many pods that value would exceed the least.
        skew: i64,
        /// By how many it may.
        max_skew: i32,
    },
    /// No pod is near that must be.
    NoNeighbour {
        /// Nodes with the same value of this label are near.
        key: Arc<str>,
        /// Which pods.
        selector: Option<Selector>,
    },
    /// A pod is near that must not be.
    Unwelcome {
        /// Nodes with the same value of this label are near.
        key: Arc<str>,
        /// Its value there; `None`: several.
        domain: Option<Arc<str>>,
        /// Which pods.
        selector: Option<Selector>,
    },
    /// A pod is near that does not want this one.
    Refused {
        /// Nodes with the same value of this label are near.
        key: Arc<str>,
        /// Its value there; `None`: several.
        domain: Option<Arc<str>>,
        /// One such pod, if it is on the first of the nodes.
        by: Option<PodName>,
    },
    /// What is free is kept for pods that wait for the node.
    Reserved {
        /// One of them.
        by: PodName,
    },
    /// What is free is reserved for a gang, until what is in its way has ended.
    ReservedForGang {
        /// The gang.
        gang: GangName,
        /// For how long at most.
        max_ms: i64,
    },
    /// Its pool is for other classes of work only.
    OtherClasses {
        /// The pool.
        pool: Arc<str>,
        /// Which classes it is for.
        classes: ClassSet,
        /// That of the pod.
        class: WorkloadClass,
    },
    /// What is free is kept warm for work with a stronger claim, which could not use it any more.
    KeptWarm {
        /// Under this name.
        headroom: Arc<str>,
        /// For this class.
        class: WorkloadClass,
        /// What is kept.
        room: Vec<(ResourceName, Quantity)>,
        /// The part of a GPU that is kept.
        need: Option<GpuNeed>,
        /// It must be together on one such part of the node, because the kubelet insists on that.
        on_one: Option<PartKind>,
    },
    /// In kube-scheduler's own words: volumes, mostly.
    Said {
        /// Who says so.
        plugin: Plugin,
        /// What.
        reason: Reason,
    },
    /// Other reasons, each on fewer nodes.
    Others {
        /// How many reasons.
        reasons: usize,
    },
}

/// A resource that is short.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shortage {
    /// The resource.
    pub resource: ResourceName,
    /// How much is wanted.
    pub wanted: Quantity,
    /// The most that is free; that the node has at all, if that is too little already.
    pub most: Quantity,
    /// Whether there would be enough if nobody used any.
    pub ever: bool,
}

/// A part of a GPU that a node offers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Offered {
    /// The resource.
    pub resource: ResourceName,
    /// The memory it certainly comes with.
    pub memory_bytes: u64,
    /// Its part of the GPU's compute, in thousandths.
    pub compute_milli: u16,
}

/// What the parts of a node are within which things are together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartKind {
    /// Sockets; each is one NUMA node.
    Socket,
    /// NUMA nodes.
    NumaNode,
}

/// Parts of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// What they are.
    pub kind: PartKind,
    /// Their ids, ascending.
    pub ids: Vec<u32>,
}

/// A node and what is missing there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The node.
    pub node: Arc<str>,
    /// What is missing.
    pub lacks: Vec<Lack>,
}

/// Something that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// The resource.
    pub resource: ResourceName,
    /// How much more there would have to be free.
    pub amount: Quantity,
    /// Where, if it must be together.
    pub on: Option<Part>,
}

/// What would make a pod fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// These pods leave the node.
    Evict {
        /// The node.
        node: Arc<str>,
        /// The pods, the least important first; none if those who leave anyway are enough.
        victims: Vec<PodName>,
        /// Others that are leaving the node already.
        leaving: Vec<PodName>,
        /// How many of the evictions violate a disruption budget.
        budget_violations: usize,
        /// Whether Berth evicts them by itself when the pod's turn comes.
        by_preemption: bool,
    },
    /// One more node of a pool.
    Grow {
        /// The pool.
        pool: Arc<str>,
        /// How the pod would lie there.
        alignment: Alignment,
    },
    /// The pod asks for something else.
    Relax {
        /// What to change.
        change: Relaxation,
        /// A node where it would fit then.
        node: Arc<str>,
    },
    /// The node is used again.
    Uncordon {
        /// The node.
        node: Arc<str>,
    },
    /// GPUs of a node are divided into other MIG slices; nobody uses those that go.
    Repartition {
        /// The node.
        node: Arc<str>,
        /// Its GPUs, by place.
        steps: Vec<Redivision>,
    },
    /// The node's kubelet does not insist on alignment (`topologyManagerPolicy: best-effort`).
    Loosen {
        /// The node.
        node: Arc<str>,
    },
}

/// Why a pod is where it is, as far as that can be seen now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// What it holds there; `None` if the inside of the node is not known.
    pub holds: Option<Holding>,
    /// The devices of the kinds it holds, part by part of the node.
    pub parts: Vec<PartUse>,
    /// The other nodes; `None` if no other pod like this one could be placed anywhere.
    pub others: Option<Others>,
    /// What it prefers, here and there.
    pub preferences: Vec<Preference>,
}

/// What a pod holds on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// The parts of the node that the kubelet has chosen; `None` if it does not choose.
    pub on: Option<Part>,
    /// CPUs of its own.
    pub cpus: usize,
    /// Devices.
    pub devices: Vec<HeldDevices>,
}

/// Devices of one kind that a pod holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDevices {
    /// The resource.
    pub resource: ResourceName,
    /// How many.
    pub count: usize,
    /// Which ones; empty where the kubelet picks at random.
    pub ids: Vec<String>,
}

/// How many devices of a part of a node are free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartUse {
    /// The part; `None`: the devices are not attached to any in particular.
    pub part: Option<Part>,
    /// The resource.
    pub resource: ResourceName,
    /// How many are free.
    pub free: usize,
    /// How many there are.
    pub all: usize,
}

/// The nodes on which a pod is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Others {
    /// How many.
    pub nodes: usize,
    /// How many of them would take one more such pod.
    pub open: usize,
    /// How many of these would take it aligned; `None` if none of them aligns such pods.
    pub aligned: Option<usize>,
    /// The devices it asks for, free on its own node and on those that would take one more.
    pub free: Option<FreeDevices>,
}

/// Free devices here and there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeDevices {
    /// The resource.
    pub resource: ResourceName,
    /// On the pod's own node.
    pub here: i64,
    /// The fewest and the most on one of the others.
    pub elsewhere: (i64, i64),
}

/// Something that a pod prefers, on its own node and on those that would take one more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preference {
    /// The weights of the preferred node affinity that match.
    NodeAffinity {
        /// On its own node.
        here: i64,
        /// The most elsewhere.
        elsewhere: i64,
    },
    /// Taints that make nodes less welcome.
    Taints {
        /// On its own node.
        here: i64,
        /// The fewest elsewhere.
        elsewhere: i64,
    },
    /// How many of the pods with which it is to be spread are near, itself included.
    Spread {
        /// Nodes with the same value of this label are near.
        key: Arc<str>,
        /// Its value on the pod's own node.
        domain: Arc<str>,
        /// How many are near.
        here: i64,
        /// The fewest near one of the other nodes.
        elsewhere: i64,
    },
}

/// An amount of a resource in the engine's units: thousandths of CPUs, and whole units of
/// everything else.
pub(super) fn quantity(resource: &ResourceName, amount: i64) -> Quantity {
    match resource.as_str() {
        "cpu" => Quantity::from_milli(amount),
        _ if resource.is_extended() => Quantity::from_units(amount, Format::DecimalSi),
        _ => Quantity::from_bytes(amount),
    }
}
