//! What the engine decides.
//!
//! Owns the vocabulary only. A decision counts in the engine from the moment it is made; whoever
//! drives the engine carries it out and tells it what became of it.

use std::sync::Arc;

use berth_dra::Placement;
use berth_model::spec::GpuGrant;
use berth_tenancy::quota::Refusal;
use berth_tenancy::share::Hold;

pub use crate::berth::room::Alignment;

/// What to do for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Bind it.
    Bind(Binding),
    /// Evict others; it waits for their node.
    Preempt(Preempting),
    /// It is not to start now, whatever room there is, and more nodes would not help. It is looked at
    /// again when what holds it changes.
    Hold {
        /// The pod's UID.
        pod: Arc<str>,
        /// Why.
        by: HeldBy,
    },
    /// Nothing can be done until something changes. If it waited for a node that nobody is leaving, it
    /// does not any more.
    Wait {
        /// The pod's UID.
        pod: Arc<str>,
    },
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
