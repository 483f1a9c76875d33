//! What the core wants done, and what it knows of pods.

use std::num::NonZeroU64;
use std::sync::Arc;

use berth_inspect::Record;
use berth_model::spec::PodObject;

use super::bindings::BindOrder;
use crate::lease::PodRef;

/// A pod as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenPod {
    pub object: PodObject,
    /// Resource version; larger is later.
    pub version: u64,
    /// Whether Berth schedules it.
    pub ours: bool,
    /// `schedulerName`, if it is one of Berth's.
    pub scheduler: Option<Arc<str>>,
    /// What annotations say that it holds on its node.
    pub record: Option<Arc<Record>>,
    /// Why its kubelet rejected it, if it did.
    pub rejected: Option<Arc<str>>,
    /// The condition `PodScheduled`, while that is false.
    pub condition: Option<Condition>,
    /// Which request in a label or annotation is invalid, and how to correct it. Such a pod is not scheduled;
    /// if it is bound, the rest of its requests counts.
    pub invalid: Option<Arc<str>>,
    /// Hash by which the watch recognizes an unchanged pod without decoding it.
    pub outline: Option<NonZeroU64>,
}

impl SeenPod {
    pub fn reference(&self) -> PodRef {
        PodRef {
            namespace: self.object.spec.namespace.clone(),
            name: self.object.name.clone(),
            uid: self.object.uid.clone(),
        }
    }
}

/// Why a pod is not scheduled, as in its condition `PodScheduled`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// One word. Autoscalers act on [`UNSCHEDULABLE`](super::UNSCHEDULABLE) only.
    pub reason: Arc<str>,
    pub message: Arc<str>,
}

/// Something to do. Unless stated otherwise, its completion is reported to [`Core::settle`], or as an update.
///
/// [`Core::settle`]: super::Core::settle
#[derive(Clone, Debug)]
pub enum Effect {
    /// Announce in the Lease that these pods may be bound, before any of them is:
    /// [`Completion::Announced`](super::Completion::Announced). If that fails, the term is over.
    Announce(Vec<PodRef>),
    /// Remove these pods from the Lease: their bindings are no longer in flight. Has no completion.
    Settle(Vec<PodRef>),
    /// [`Completion::Bound`](super::Completion::Bound).
    Bind(Box<BindOrder>),
    /// Read a pod and report it, or that it is gone, as an update.
    ReadPod(PodRef),
    /// [`Completion::Evicted`](super::Completion::Evicted).
    Evict(Eviction),
    /// Fence a pod that could not be fenced before: [`Completion::Fenced`](super::Completion::Fenced).
    Fence(PodRef),
    /// [`Completion::StatusWritten`](super::Completion::StatusWritten).
    WriteStatus(StatusUpdate),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub pod: PodRef,
    /// The pod to make room for, if there is one.
    pub waiting: Option<Arc<str>>,
    /// One word.
    pub why: &'static str,
}

/// What to write about a pod: its condition, its nominated node, an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusUpdate {
    pub pod: PodRef,
    /// The pod's resource version. If it has changed since, the pod may be bound by now, and nothing is
    /// written.
    pub version: u64,
    pub condition: Option<Condition>,
    /// `Some(None)` removes the nomination.
    pub nominated: Option<Option<Arc<str>>>,
    pub event: Option<EventNote>,
}

/// An event about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    pub note: Arc<str>,
}
