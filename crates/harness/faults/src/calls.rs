//! What replicas ask of the API server, and what comes back.
//!
//! Owns the vocabulary only.

use std::sync::Arc;

use berth_control::core::{SeenPod, StatusUpdate};
use berth_control::lease::PodRef;
use berth_model::spec::GpuGrant;
use k8s_openapi::api::coordination::v1::Lease;

use crate::server::Shown;

/// Who asks: a replica, its process, and its time of leading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Caller {
    pub(crate) replica: usize,
    pub(crate) life: u64,
    pub(crate) term: u64,
}

/// Tells calls apart.
pub(crate) type CallId = u64;

/// A call.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    ReadLease,
    CreateLease(Box<Lease>),
    ReplaceLease(Box<Lease>),
    ListPods,
    ListOthers,
    ReadPod(PodRef),
    Touch(PodRef),
    Bind { pod: PodRef, version: u64, node: Arc<str>, grant: Option<GpuGrant> },
    Evict(PodRef),
    Tell(Box<StatusUpdate>),
}

/// An answer; its absence is none.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// Completion, and nothing to say about it.
    Done,
    Lease(Box<Lease>),
    NoLease,
    Pod(Box<SeenPod>),
    /// Everything of a kind, and the version at which that was so.
    Pods(Vec<SeenPod>, u64),
    Others(Vec<Shown>, u64),
    /// An HTTP status that is not success.
    Failed(u16),
}
