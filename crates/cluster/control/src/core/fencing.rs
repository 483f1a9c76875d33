//! Pods that could not be fenced when this term began, or before they were to wait for devices or volumes.
//!
//! Owns which pods these are and when fencing them is tried again. An earlier binding may still land on one
//! of them, so they are not scheduled before they are fenced; all other pods are.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::event::Event;

use super::Core;
use super::bindings::FollowUp;
use super::effect::Effect;
use crate::lease::PodRef;

/// Unfenced pods that are kept in the Lease for the next leader, at most: they must leave room for the
/// bindings of all others.
pub const UNFENCED_LISTED_MAX: usize = 64;

/// Between two attempts to fence a pod: at first, and at most.
const RETRY_MS: i64 = 1_000;
const RETRY_MS_MAX: i64 = 60_000;

#[derive(Debug)]
struct Unfenced {
    pod: PodRef,
    failures: u32,
    /// When to try again; `None` during an attempt.
    due_ms: Option<i64>,
}

/// Every unfenced pod, by UID.
#[derive(Debug, Default)]
pub(super) struct Fencing(BTreeMap<Arc<str>, Unfenced>);

impl Fencing {
    pub(super) fn add(&mut self, pod: PodRef, now_ms: i64) {
        let unfenced = Unfenced { pod, failures: 1, due_ms: Some(now_ms + RETRY_MS) };
        self.0.insert(unfenced.pod.uid.clone(), unfenced);
    }

    pub(super) fn contains(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    pub(super) fn pods(&self) -> impl ExactSizeIterator<Item = &PodRef> {
        self.0.values().map(|unfenced| &unfenced.pod)
    }

    /// The pod is fenced, bound or gone.
    pub(super) fn remove(&mut self, uid: &str) -> Option<PodRef> {
        self.0.remove(uid).map(|unfenced| unfenced.pod)
    }

    /// An attempt failed.
    pub(super) fn failed(&mut self, uid: &str, now_ms: i64) {
        let Some(unfenced) = self.0.get_mut(uid) else { return };
        let retry_ms = RETRY_MS << unfenced.failures.min(6);
        unfenced.failures = unfenced.failures.saturating_add(1);
        unfenced.due_ms = Some(now_ms + retry_ms.min(RETRY_MS_MAX));
    }

    /// Starts the attempts that are due.
    pub(super) fn effects(&mut self, now_ms: i64, effects: &mut Vec<Effect>) {
        for unfenced in self.0.values_mut() {
            if unfenced.due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
                unfenced.due_ms = None;
                effects.push(Effect::Fence(unfenced.pod.clone()));
            }
        }
    }

    pub(super) fn next_ms(&self) -> Option<i64> {
        self.0.values().filter_map(|unfenced| unfenced.due_ms).min()
    }
}

impl Core {
    /// A pod could not be fenced when the term began. It is not scheduled until it is.
    pub fn isolate(&mut self, pod: PodRef, why: &str, now_ms: i64) {
        let note = format!(
            "Not scheduled: an earlier binding of it may be in flight, and fencing the pod failed: \
             {why}. Trying again; other pods are not affected."
        );
        self.telling.record(pod.clone(), true, "FencingFailed", note);
        self.fencing.add(pod, now_ms);
    }

    /// Pods that are not scheduled because they could not be fenced yet.
    pub fn unfenced(&self) -> impl ExactSizeIterator<Item = &PodRef> {
        self.fencing.pods()
    }

    /// No earlier binding of a pod can land any more, or it has landed.
    pub(super) fn unfence(&mut self, uid: &str) {
        if let Some(pod) = self.fencing.remove(uid) {
            self.bindings.settle(pod);
        }
    }

    /// Does what follows for a pod from what became of its binding.
    pub(super) fn follow(&mut self, uid: &Arc<str>, verdict: FollowUp, now_ms: i64) {
        if verdict == FollowUp::Keep {
            return;
        }
        self.engine.undo(uid);
        // Out of the queue until it has rested, or is fenced.
        self.engine.apply(Event::PodGone(uid.clone()));
        if let FollowUp::Isolate(pod) = verdict {
            if self.fencing.pods().len() >= UNFENCED_LISTED_MAX {
                // What refuses a fence also refuses a binding.
                self.bindings.settle(pod.clone());
            }
            self.isolate(pod, "the API server did not carry it out in time", now_ms);
        }
    }
}
