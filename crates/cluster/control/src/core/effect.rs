//! What the core wants done, and what it is shown of pods.
//!
//! Owns the vocabulary only.

use std::num::NonZeroU64;
use std::sync::Arc;

use berth_inspect::Record;
use berth_model::spec::PodObject;

use super::bindings::BindOrder;
use crate::lease::PodRef;

/// A pod as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenPod {
    /// What the model knows of it.
    pub object: PodObject,
    /// Its resource version. Larger is later.
    pub version: u64,
    /// Whether it is ours to place.
    pub ours: bool,
    /// Its schedulerName if it is ours.
    pub scheduler: Option<Arc<str>>,
    /// What annotations say that it holds on its node.
    pub record: Option<Arc<Record>>,
    /// Why its kubelet did not let it start, if that is so.
    pub refused: Option<Arc<str>>,
    /// What its condition `PodScheduled` says, while that is false.
    pub condition: Option<Condition>,
    /// Which of its requests in labels or annotations cannot be read, and how to write it. Such a pod
    /// is not scheduled; if it is bound, the rest of what it holds is counted.
    pub invalid: Option<Arc<str>>,
    /// What whoever read it will know it by, if it comes again.
    pub outline: Option<NonZeroU64>,
}

impl SeenPod {
    /// As calls name it.
    pub fn reference(&self) -> PodRef {
        PodRef {
            namespace: self.object.spec.namespace.clone(),
            name: self.object.name.clone(),
            uid: self.object.uid.clone(),
        }
    }
}

/// Why a pod is not scheduled, in the words of its condition `PodScheduled`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// One word. Autoscalers act on [`UNSCHEDULABLE`](super::UNSCHEDULABLE) only.
    pub reason: Arc<str>,
    /// For people.
    pub message: Arc<str>,
}

/// Something to be done. Each has one outcome, which is told to the core by [`Core::settle`] or as news.
///
/// [`Core::settle`]: super::Core::settle
#[derive(Clone, Debug)]
pub enum Effect {
    /// Write down that these pods may be bound, too, before any of them is:
    /// [`Done::Announced`](super::Done::Announced). If that fails, we lead no more.
    Announce(Vec<PodRef>),
    /// The bindings of these pods have landed or never will: they need not stand there any more. Has no
    /// outcome.
    Settled(Vec<PodRef>),
    /// Bind a pod: [`Done::Bound`](super::Done::Bound).
    Bind(Box<BindOrder>),
    /// Look at a pod and tell how it is, or that it is gone, as news.
    Look(PodRef),
    /// Evict a pod: [`Done::Evicted`](super::Done::Evicted).
    Evict(Eviction),
    /// Fence a pod that could not be fenced before: [`Done::Fenced`](super::Done::Fenced).
    Fence(PodRef),
    /// Tell those who look at a pod how it stands: [`Done::Told`](super::Done::Told).
    Tell(Told),
}

/// A pod is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The pod.
    pub pod: PodRef,
    /// For whom, if it is for one.
    pub waiting: Option<Arc<str>>,
    /// Why, in one word.
    pub why: &'static str,
}

/// How a pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The pod.
    pub pod: PodRef,
    /// The version at which it was seen. If it has changed since, it may have a node by now, and
    /// nothing of this is to be written.
    pub version: u64,
    /// Its condition, if that is to be written.
    pub condition: Option<Condition>,
    /// The node it waits for (`Some(None)`: none any more), if that is to be written.
    pub nominated: Option<Option<Arc<str>>>,
    /// What to record as an event, if anything.
    pub event: Option<EventNote>,
}

/// An event to be recorded about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    /// Whether it is a warning.
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    /// For people.
    pub note: Arc<str>,
}
