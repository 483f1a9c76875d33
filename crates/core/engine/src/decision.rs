//! What the engine decides.
//!
//! Owns the vocabulary only. A decision counts in the engine from the moment it is made; whoever
//! drives the engine carries it out and tells it what became of it.

use std::sync::Arc;

use berth_dra::Placement;
use berth_model::spec::GpuGrant;
use berth_tenancy::quota::Refusal;
use berth_tenancy::share::Hold;

use crate::state::FullName;

pub use crate::berth::room::Alignment;

/// What to do for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Bind it.
    Bind(Binding),
    /// Evict others; it waits for their node.
    Preempt(Preempting),
    /// It is not to start now, whatever room there is, and more nodes would not help. It is looked at
    /// again when what holds it changes. For a gang it is said of one member, and means all of them.
    Hold {
        /// The pod's UID.
        pod: Arc<str>,
        /// Why.
        by: HeldBy,
    },
    /// Bind all of them. If one cannot be bound, the others keep their place while a new one is looked
    /// for, but not for longer than the gang's timeout: then the gang is disbanded.
    BindAll(GangBinding),
    /// Keep nodes for a gang, and evict others where that is said. The members wait for their nodes;
    /// none of them is bound before all that are needed can be.
    Reserve(Reserving),
    /// A gang that holds some places, and did not get the others in time, gives them back.
    Disband(Disbanding),
    /// Nothing can be done until something changes. If it waited for a node that nobody is leaving, it
    /// does not any more. For a gang it is said of one member, and means all of them.
    Wait {
        /// The pod's UID.
        pod: Arc<str>,
    },
}

/// What came of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A decision.
    Decided(Decision),
    /// No decision yet: more parked pods are to be looked at again.
    Unfinished,
    /// Nothing can be decided until something changes.
    Settled,
}

/// What looking for places has cost, counted rather than timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// How often a class of parked pods was looked at again.
    pub rechecks: u64,
    /// How often a node was looked at for a class.
    pub looks: u64,
}

/// A claim of storage that is bound or provisioned where its pod goes, before the pod is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateVolume {
    /// The claim's name, in the pod's namespace.
    pub claim: Arc<str>,
    /// The volume that suits it; `None`: one is to be made for the node.
    pub volume: Option<Arc<str>>,
}

/// What keeps a pod from starting that is no node's fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// A ResourceQuota of its namespace. Where an API server enforces quotas, only pods that were
    /// there before one was lowered; otherwise those beyond it in the order of creation.
    Quota(Refusal),
    /// A limit on what its team may borrow, or on what others lend.
    Share(Hold),
}

/// A gang, by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl GangName {
    pub(crate) fn of((namespace, name): &FullName) -> Self {
        Self { namespace: namespace.clone(), name: name.clone() }
    }
}

/// Members of a gang are to be bound together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangBinding {
    /// The gang.
    pub gang: GangName,
    /// Where its members go: as many as it needs to start, and those beyond that for whom there is
    /// room as well.
    pub bindings: Vec<Binding>,
}

/// Nodes are kept for a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserving {
    /// The gang.
    pub gang: GangName,
    /// UIDs of members, each with the node it waits for. Other members wait for none.
    pub places: Vec<(Arc<str>, Arc<str>)>,
    /// UIDs of pods to evict.
    pub victims: Vec<Arc<str>>,
    /// How many of the evictions violate a disruption budget.
    pub budget_violations: usize,
    /// UIDs of less important pods that waited for the nodes and have to look elsewhere.
    pub displaced: Vec<Arc<str>>,
    /// When it is another gang's turn, if nobody is evicted.
    pub until_ms: Option<i64>,
}

/// A gang gives its places back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disbanding {
    /// The gang.
    pub gang: GangName,
    /// UIDs of the members to evict.
    pub pods: Vec<Arc<str>>,
}

/// A pod is to be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The pod's UID.
    pub pod: Arc<str>,
    /// The node.
    pub node: Arc<str>,
    /// What it gets for the part of a GPU it needs.
    pub gpu_grant: Option<GpuGrant>,
    /// What its claims are given that have nothing yet: to be written before it is bound.
    pub devices: Option<Box<Placement>>,
    /// How it will lie there.
    pub alignment: Alignment,
}

/// Pods are to be evicted for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preempting {
    /// The UID of the pod that waits.
    pub pod: Arc<str>,
    /// The node it waits for.
    pub node: Arc<str>,
    /// UIDs of the pods to evict.
    pub victims: Vec<Arc<str>>,
    /// How many of the evictions violate a disruption budget.
    pub budget_violations: usize,
    /// UIDs of less important pods that waited for the node and have to look elsewhere.
    pub displaced: Vec<Arc<str>>,
}

/// What changes when a pod that was to be evicted stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spared {
    /// UIDs of pods that waited for its room. They look for a place again.
    pub pending: Vec<Arc<str>>,
    /// UIDs of pods that are not to be evicted any more, itself among them.
    pub staying: Vec<Arc<str>>,
}
