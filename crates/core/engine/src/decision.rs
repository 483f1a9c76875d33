//! The engine's decisions.
//!
//! A decision counts in the engine from the moment it is made; the driver carries it out and
//! reports the outcome.

use std::sync::Arc;

use berth_dra::Placement;
use berth_model::alignment::Alignment;
use berth_model::numa::NumaMask;
use berth_model::spec::GpuGrant;
use berth_tenancy::quota::Refusal;
use berth_tenancy::share::Hold;

use crate::state::FullName;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Bind(Binding),
    /// Evict pods; the pod waits for their node.
    Preempt(PodPreemption),
    /// It must not start now, whatever room there is, and more nodes would not help. It is
    /// evaluated again when the cause changes. For a gang, names one member and applies to all.
    Hold {
        pod: Arc<str>,
        by: HeldBy,
    },
    /// Bind all members. If one cannot be bound, the others keep their place while a new one is
    /// found, at most for the gang's timeout: then the gang is disbanded.
    BindAll(GangBinding),
    /// Reserve nodes for a gang and evict the victims. No member is bound before enough of them can
    /// be.
    Reserve(GangReservation),
    /// A gang that did not get all its places in time gives them back.
    Disband(GangDisbandment),
    /// Nothing can be done until something changes. Any nomination ends. For a gang, names one
    /// member and applies to all.
    Wait {
        pod: Arc<str>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Decided(Decision),
    /// No decision yet: more parked pods must be evaluated.
    Unfinished,
    /// Nothing to decide until something changes.
    Settled,
}

/// Cost of scheduling, counted rather than timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    pub rechecks: u64,
    pub looks: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayedVolume {
    pub claim: Arc<str>,
    /// The matching volume; `None` to provision one on the node.
    pub volume: Option<Arc<str>>,
}

/// Why a pod must not start, apart from nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// A ResourceQuota of its namespace. If the API server enforces quotas, this concerns only pods
    /// created before a quota was lowered; otherwise the latest pods beyond it.
    Quota(Refusal),
    /// A limit on what its team may borrow, or on what others lend.
    Share(Hold),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl GangName {
    pub(crate) fn of((namespace, name): &FullName) -> Self {
        Self { namespace: namespace.clone(), name: name.clone() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangBinding {
    pub gang: GangName,
    /// At least the minimum, and further members if there is room.
    pub bindings: Vec<Binding>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangReservation {
    pub gang: GangName,
    /// UIDs of members with the node each waits for.
    pub places: Vec<(Arc<str>, Arc<str>)>,
    /// Their UIDs.
    pub victims: Vec<Arc<str>>,
    /// Evictions that violate a disruption budget.
    pub budget_violations: usize,
    /// UIDs of less important pods nominated to the nodes, which must look elsewhere.
    pub displaced: Vec<Arc<str>>,
    /// When the next gang's turn is, if nothing is evicted.
    pub until_ms: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangDisbandment {
    pub gang: GangName,
    pub pods: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    pub pod: Arc<str>,
    pub node: Arc<str>,
    /// The device or share for a part of a GPU.
    pub gpu_grant: Option<GpuGrant>,
    /// New allocations for its claims, to be written before binding.
    pub devices: Option<Box<Placement>>,
    pub alignment: Alignment,
    /// The NUMA nodes of everything pinned, if aligned or misaligned.
    pub numa: Option<NumaMask>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPreemption {
    /// UID of the pending pod.
    pub pod: Arc<str>,
    pub node: Arc<str>,
    pub victims: Vec<Arc<str>>,
    pub budget_violations: usize,
    /// UIDs of less important pods nominated to the node, which must look elsewhere.
    pub displaced: Vec<Arc<str>>,
}

/// The effect of cancelling an eviction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CancelledEvictions {
    /// UIDs of pods nominated to its room; they are scheduled again.
    pub pending: Vec<Arc<str>>,
    /// UIDs of pods that stay, itself among them.
    pub staying: Vec<Arc<str>>,
}
