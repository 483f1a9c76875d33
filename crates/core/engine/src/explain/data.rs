//! The data of an explanation, without wording.

use std::sync::Arc;

use berth_model::alignment::Alignment;
use berth_model::label::{Requirement, Selector};
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::ResourceName;
use berth_model::spec::{GpuGrant, GpuNeed, HostPort};
use berth_model::taint::Taint;
use berth_model::workload::{ClassSet, WorkloadClass};

use super::relax::Relaxation;
use crate::decision::{GangName, HeldBy};
use crate::slices::GpuLayoutChange;
use crate::verdict::{Plugin, Reason};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodName {
    pub namespace: Arc<str>,
    /// Empty if withheld because the reader may not see the namespace.
    pub name: Arc<str>,
    pub priority: i32,
}

impl PodName {
    pub fn is_withheld(&self) -> bool {
        self.name.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Explanation {
    Gated {
        pod: PodName,
        gates: Vec<Arc<str>>,
    },
    /// Deleted without ever being bound.
    Leaving {
        pod: PodName,
    },
    Held {
        pod: PodName,
        team: Arc<str>,
        by: HeldBy,
    },
    /// Nominated: pods are leaving the node to make room.
    AwaitsRoom {
        pod: PodName,
        node: Arc<str>,
        leaving: Vec<PodName>,
        /// Preempted pods still terminating that it no longer waits for.
        overdue: Vec<PodName>,
    },
    /// Pending without a nominated node.
    Waiting {
        pod: PodName,
        nodes: usize,
        /// Nodes where it fits now; if there are any, it only waits for its turn.
        fitting: usize,
        /// Why other nodes are rejected, most nodes first.
        groups: Vec<Group>,
        /// Nodes where least is missing, least first.
        nearest: Vec<Miss>,
        /// Changes after which it would fit, each on its own, each tried.
        remedies: Vec<Remedy>,
        /// Preempted pods still terminating that it no longer waits for.
        overdue: Vec<PodName>,
    },
    InGang {
        pod: PodName,
        gang: Box<GangReport>,
        /// About the first member that does not fit beside the others.
        next: Option<Box<Explanation>>,
    },
    Placed {
        pod: PodName,
        node: Arc<str>,
        alignment: Alignment,
        grant: Option<GpuGrant>,
        /// As of now; the state at placement time is not kept.
        why: Box<Why>,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GangReport {
    pub name: GangName,
    /// Members that start together; `None` without a PodGroup.
    pub min: Option<usize>,
    pub waiting: usize,
    pub served: usize,
    /// Its members disagree about the gang; the oldest member's values count.
    pub disagrees: bool,
    pub topology_key: Option<Arc<str>>,
    /// Whether one value is required.
    pub required: bool,
    pub domains: usize,
    /// The domains where most pending members fit now, by trial.
    pub rooms: Vec<DomainRoom>,
    pub evicting: bool,
    /// Maximum duration of its reservation, if it has one.
    pub reserved_max_ms: Option<i64>,
    /// Why it got no reservation at its turn.
    pub unreserved: Option<Unreserved>,
    pub timeouts: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenant {
    Team(Arc<str>),
    Namespace(Arc<str>),
}

/// Why a gang that has waited long enough gets no reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreserved {
    BeyondShare {
        model: Option<Arc<str>>,
        needs: i64,
        allowed: i64,
        percent: u8,
    },
    /// The team or namespace has used its reservation time.
    Resting(Tenant),
    /// It would not fit even after all pods that run to completion have ended.
    NothingEnds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainRoom {
    pub value: Option<Arc<str>>,
    pub room: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub cause: Cause,
    pub nodes: usize,
    /// First nodes by name.
    pub examples: Vec<Arc<str>>,
}

/// Why a node is rejected. For nodes grouped together, amounts are the nearest to what is
/// requested, and other differences are dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    OtherNode {
        wanted: Arc<str>,
    },
    Cordoned,
    /// An untolerated taint. An empty value can stand for several.
    Taint(Taint),
    NodeLabel {
        key: Arc<str>,
        value: Arc<str>,
    },
    NodeAffinity {
        /// The failing requirement; `None` if there are several alternatives. The key of a
        /// condition on the node's name is `metadata.name`.
        requirement: Option<Requirement>,
    },
    Port(HostPort),
    TooManyPods,
    Short(Vec<Shortage>),
    NoOffer {
        need: GpuNeed,
        /// `None` if the node has no GPUs of known size.
        largest: Option<Offered>,
    },
    OffersTaken {
        need: GpuNeed,
    },
    /// Enough free devices, but not within one part of the node, which the kubelet requires.
    Split {
        resource: ResourceName,
        wanted: u64,
        /// Free devices by part, most first; empty if nodes differ.
        free: Vec<u64>,
        /// The most on one part.
        most: u64,
        parts: PartKind,
    },
    /// Not enough CPU or memory within one part of the node, which the kubelet requires.
    Crowded {
        resource: ResourceName,
        wanted: Quantity,
        /// The most on one part.
        most: Quantity,
        parts: PartKind,
    },
    /// Enough of everything, but not within the same part of the node.
    Apart {
        wanted: Vec<(ResourceName, Quantity)>,
        parts: PartKind,
    },
    Kubelet {
        reason: berth_kubelet::Reason,
        /// The kubelet's message on the first of the nodes.
        words: String,
    },
    /// Admission depends on which devices the kubelet allocated at random.
    Uncertain,
    UnknownTopology {
        /// A topology was given, but contradicted by a pod that runs there.
        doubted: bool,
    },
    SpreadLabel {
        key: Arc<str>,
    },
    Spread {
        key: Arc<str>,
        /// Its value there; `None`: several.
        domain: Option<Arc<str>>,
        skew: i64,
        max_skew: i32,
    },
    /// No pod is near that the required pod affinity asks for.
    NoNeighbour {
        key: Arc<str>,
        selector: Option<Selector>,
    },
    /// A pod is near that the pod's anti-affinity excludes.
    Unwelcome {
        key: Arc<str>,
        /// Its value there; `None`: several.
        domain: Option<Arc<str>>,
        selector: Option<Selector>,
    },
    /// A pod is near whose anti-affinity excludes this one.
    Refused {
        key: Arc<str>,
        /// Its value there; `None`: several.
        domain: Option<Arc<str>>,
        /// One such pod, if it is on the first of the nodes.
        by: Option<PodName>,
    },
    /// The free room is for pods nominated to the node.
    Reserved {
        by: PodName,
    },
    /// The free room is reserved for a gang until other pods there have ended.
    ReservedForGang {
        gang: GangName,
        max_ms: i64,
    },
    /// The node's pool is for other classes of work only.
    OtherClasses {
        pool: Arc<str>,
        classes: ClassSet,
        class: WorkloadClass,
    },
    /// The free room is headroom for work with a stronger claim.
    Headroom {
        headroom: Arc<str>,
        class: WorkloadClass,
        room: Vec<(ResourceName, Quantity)>,
        need: Option<GpuNeed>,
        /// Everything must be on one such part of the node, because the kubelet requires it.
        on_one: Option<PartKind>,
    },
    Plugin {
        plugin: Plugin,
        reason: Reason,
    },
    /// Other causes, each on fewer nodes.
    Others {
        reasons: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shortage {
    pub resource: ResourceName,
    pub wanted: Quantity,
    /// The most that is free; the node's capacity if that is too little already.
    pub most: Quantity,
    pub ever: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Offered {
    pub resource: ResourceName,
    pub memory_bytes: u64,
    pub compute_milli: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartKind {
    /// Each socket is one NUMA node.
    Socket,
    NumaNode,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    pub kind: PartKind,
    /// Ascending.
    pub ids: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss {
    pub node: Arc<str>,
    pub lacks: Vec<Lack>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    pub resource: ResourceName,
    pub amount: Quantity,
    /// Where, if it must be on one part of the node.
    pub on: Option<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    Evict {
        node: Arc<str>,
        /// The least important first; empty if `leaving` is enough.
        victims: Vec<PodName>,
        leaving: Vec<PodName>,
        /// Evictions that violate a disruption budget.
        budget_violations: usize,
        /// Whether Berth evicts them by itself at the pod's turn.
        by_preemption: bool,
    },
    Grow {
        pool: Arc<str>,
        alignment: Alignment,
    },
    Relax {
        change: Relaxation,
        /// A node where it would fit then.
        node: Arc<str>,
    },
    Uncordon {
        node: Arc<str>,
    },
    Repartition {
        node: Arc<str>,
        steps: Vec<GpuLayoutChange>,
    },
    /// The node's kubelet uses `topologyManagerPolicy: best-effort`.
    Loosen {
        node: Arc<str>,
    },
}

/// Why a pod is on its node, as of now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// `None` if the node's topology is unknown.
    pub holds: Option<Holding>,
    /// Devices of the resources it holds, by part of the node.
    pub parts: Vec<PartUse>,
    /// `None` if no other such pod could be placed anywhere.
    pub others: Option<Others>,
    pub preferences: Vec<Preference>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// The parts of the node; `None` if the kubelet does not choose any.
    pub on: Option<Part>,
    pub cpus: usize,
    pub devices: Vec<HeldDevices>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDevices {
    pub resource: ResourceName,
    pub count: usize,
    /// Empty if the kubelet picks at random.
    pub ids: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartUse {
    /// `None` for devices not attached to a part.
    pub part: Option<Part>,
    pub resource: ResourceName,
    pub free: usize,
    pub all: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Others {
    pub nodes: usize,
    /// Nodes that would take one more such pod.
    pub open: usize,
    /// Those of `open` that would align it; `None` if none aligns such pods.
    pub aligned: Option<usize>,
    /// Devices it asks for, free on its node and on the `open` ones.
    pub free: Option<FreeDevices>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeDevices {
    pub resource: ResourceName,
    pub here: i64,
    /// Minimum and maximum.
    pub elsewhere: (i64, i64),
}

/// A soft preference, compared with the nodes that would take one more such pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Sum of matching weights; `elsewhere` is the maximum.
    NodeAffinity { here: i64, elsewhere: i64 },
    /// Number of untolerated PreferNoSchedule taints; `elsewhere` is the minimum.
    Taints { here: i64, elsewhere: i64 },
    /// Number of pods in the domain that a spread constraint counts, itself included.
    Spread {
        key: Arc<str>,
        /// Its value on the pod's node.
        domain: Arc<str>,
        here: i64,
        /// The minimum on the other nodes.
        elsewhere: i64,
    },
}

/// An amount in the engine's units as a quantity.
pub(super) fn quantity(resource: &ResourceName, amount: i64) -> Quantity {
    match resource.as_str() {
        "cpu" => Quantity::from_milli(amount),
        _ if resource.is_extended() => Quantity::from_units(amount, Format::DecimalSi),
        _ => Quantity::from_bytes(amount),
    }
}
