//! Pods that could not be fenced when the term began, or before waiting for devices or volumes. An earlier binding
//! of them may be in flight, so they are not scheduled until they are fenced; all other pods are.

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

/// Delay between attempts to fence a pod: initial and maximum.
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
            "Not scheduled: an earlier binding may be in flight, and fencing the pod failed: {why}. \
             Will retry; other pods are not affected."
        );
        self.telling.record(pod.clone(), true, "FencingFailed", note);
        self.fencing.add(pod, now_ms);
    }

    /// Pods that are not scheduled because they could not be fenced yet.
    pub fn unfenced(&self) -> impl ExactSizeIterator<Item = &PodRef> {
        self.fencing.pods()
    }

    /// No earlier binding of the pod is in flight any more.
    pub(super) fn unfence(&mut self, uid: &str) {
        if let Some(pod) = self.fencing.remove(uid) {
            self.bindings.settle(pod);
        }
    }

    /// Applies the consequences of a binding that failed.
    pub(super) fn follow(&mut self, uid: &Arc<str>, verdict: FollowUp, now_ms: i64) {
        if verdict == FollowUp::Keep {
            return;
        }
        self.engine.undo(uid);
        // Out of the queue until its backoff is over, or it is fenced.
        self.engine.apply(Event::PodGone(uid.clone()));
        if let FollowUp::Isolate(pod) = verdict {
            if self.fencing.pods().len() >= UNFENCED_LISTED_MAX {
                // Whatever denies a fence also denies a binding.
                self.bindings.settle(pod.clone());
            }
            self.isolate(pod, "the API server did not answer in time", now_ms);
        }
    }
}
