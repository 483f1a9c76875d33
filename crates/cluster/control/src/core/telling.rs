//! When to write the condition, nominated node and events of which pod.
//!
//! A pod that more nodes would help is `Unschedulable`, which autoscalers act upon. A pod that a quota, a share or
//! its gang holds back is `Held`, which they ignore.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use berth_engine::explain::{Explanation, render};
use berth_model::spec::PodObject;

use super::Settings;
use super::effect::{Condition, EventNote, SeenPod, StatusUpdate};
use crate::lease::PodRef;

/// Reason of a pod that another node would help. Karpenter and the Cluster Autoscaler look for it.
pub const UNSCHEDULABLE: &str = "Unschedulable";

/// Reason of a pod that no node would help.
pub const HELD: &str = "Held";

/// Reason of a pod with an invalid request in a label or annotation.
pub const INVALID: &str = "InvalidRequest";

/// How long an explanation is reused for pods of the same template.
const REMEMBERED_MS: i64 = 5_000;

const REMEMBERED_MAX: usize = 1_024;

/// Events waiting to be written; beyond this the oldest are dropped.
const RECORDS_MAX: usize = 10_000;

/// After a write, its slot pauses for this many times the duration of the write. A slow API server thus has most
/// of its time for bindings, however many pods are to be explained.
const PAUSE_FACTOR: i64 = 3;

/// The longest pause.
const PAUSE_MS_MAX: i64 = 5_000;

/// An explanation, and when it was made.
type Found = (Condition, i64);

#[derive(Debug, Default)]
pub(super) struct Telling {
    /// Pods to explain, not yet sorted by namespace.
    fresh: Vec<Arc<str>>,
    /// Pods to explain by namespace. Namespaces take turns.
    due: BTreeMap<Arc<str>, VecDeque<Arc<str>>>,
    /// The namespace whose turn was last.
    served: Option<Arc<str>>,
    queued: HashSet<Arc<str>>,
    /// Pods to explain later, by time: writes that failed or came too soon after another.
    later: BTreeSet<(i64, Arc<str>)>,
    /// Nominations that are not written yet.
    nominations: BTreeMap<Arc<str>, Option<Arc<str>>>,
    /// What is being written, and since when.
    writing: HashMap<Arc<str>, (StatusUpdate, i64)>,
    /// When the pause of each pausing slot ends.
    pausing: BinaryHeap<Reverse<i64>>,
    /// Pods to explain after their current write: the order of concurrent writes is undefined.
    after_writing: HashSet<Arc<str>>,
    /// Nominations written, or being written, that no watch event has shown yet.
    nominated: HashMap<Arc<str>, Option<Arc<str>>>,
    /// Events to be written.
    records: VecDeque<StatusUpdate>,
    /// Conditions last written, and when.
    last: HashMap<Arc<str>, (Condition, i64)>,
    /// Explanations by template, and whether the pod is held.
    remembered: HashMap<(u64, bool), Found>,
}

impl Telling {
    /// Queues a pod for an explanation.
    pub(super) fn explain(&mut self, uid: &Arc<str>) {
        if self.queued.insert(uid.clone()) {
            self.fresh.push(uid.clone());
        }
    }

    /// `None` removes the nomination.
    pub(super) fn nominate(&mut self, uid: &Arc<str>, node: Option<Arc<str>>) {
        self.nominations.insert(uid.clone(), node);
        self.explain(uid);
    }

    /// A pod is to be bound: there is nothing to explain.
    pub(super) fn placed(&mut self, uid: &Arc<str>) {
        self.nominations.remove(uid);
        self.queued.remove(uid);
    }

    pub(super) fn forget(&mut self, uid: &Arc<str>) {
        self.placed(uid);
        self.last.remove(uid);
        self.nominated.remove(uid);
    }

    pub(super) fn seen(&mut self, pod: &PodObject) {
        if self.nominated.get(&pod.uid) == Some(&pod.nominated) {
            self.nominated.remove(&pod.uid);
        }
    }

    /// Records the event `Scheduled`. Nothing depends on it, so it is written last.
    pub(super) fn record_placed(&mut self, pod: PodRef, node: &str) {
        // kube-scheduler's text, which tools look for.
        let note = format!("Successfully assigned {}/{} to {node}", pod.namespace, pod.name);
        self.record(pod, false, "Scheduled", note);
    }

    /// Queues an event.
    pub(super) fn record(
        &mut self,
        pod: PodRef,
        warning: bool,
        reason: &'static str,
        note: String,
    ) {
        if self.records.len() >= RECORDS_MAX {
            self.records.pop_front();
        }
        let event = EventNote { warning, reason, note: note.into() };
        let update =
            StatusUpdate { pod, version: 0, condition: None, nominated: None, event: Some(event) };
        self.records.push_back(update);
    }

    /// The next event, if another write may start.
    pub(super) fn next_record(&mut self, now_ms: i64, settings: &Settings) -> Option<StatusUpdate> {
        if !self.has_slot(settings) {
            return None;
        }
        let update = self.records.pop_front()?;
        self.writing.insert(update.pod.uid.clone(), (update.clone(), now_ms));
        Some(update)
    }

    pub(super) fn is_due(&self, settings: &Settings) -> bool {
        self.has_any() && self.has_slot(settings)
    }

    fn has_any(&self) -> bool {
        !self.fresh.is_empty() || !self.due.is_empty() || !self.records.is_empty()
    }

    fn has_slot(&self, settings: &Settings) -> bool {
        self.writing.len() + self.pausing.len() < settings.status_writes_max
    }

    /// When the next delayed write is due.
    pub(super) fn next_ms(&self) -> Option<i64> {
        let later = self.later.first().map(|(at, _)| *at);
        let slot = self.pausing.peek().filter(|_| self.has_any()).map(|Reverse(at)| *at);
        later.into_iter().chain(slot).min()
    }

    pub(super) fn wake(&mut self, now_ms: i64) {
        while self.pausing.peek().is_some_and(|Reverse(at)| *at <= now_ms) {
            self.pausing.pop();
        }
        while let Some((at, _)) = self.later.first()
            && *at <= now_ms
            && let Some((_, uid)) = self.later.pop_first()
        {
            self.explain(&uid);
        }
    }

    /// Sorts queued pods by namespace; pods that are gone have none.
    pub(super) fn file(&mut self, namespace_of: impl Fn(&str) -> Option<Arc<str>>) {
        for uid in self.fresh.drain(..) {
            match namespace_of(&uid) {
                Some(namespace) => self.due.entry(namespace).or_default().push_back(uid),
                None => {
                    self.queued.remove(&uid);
                }
            }
        }
    }

    /// The first pod of the next namespace.
    fn pop(&mut self) -> Option<Arc<str>> {
        let after = |served: &Arc<str>| {
            let next = (Bound::Excluded(served.clone()), Bound::Unbounded);
            self.due.range::<Arc<str>, _>(next).next()
        };
        let next = self.served.as_ref().and_then(after).or_else(|| self.due.first_key_value());
        let namespace = next?.0.clone();
        let pods = self.due.get_mut(&namespace)?;
        let uid = pods.pop_front();
        if pods.is_empty() {
            self.due.remove(&namespace);
        }
        self.served = Some(namespace);
        uid
    }

    /// The next pod to explain, if another write may start.
    pub(super) fn next(&mut self, settings: &Settings) -> Option<Arc<str>> {
        while self.has_slot(settings) {
            let uid = self.pop()?;
            if !self.queued.remove(&uid) {
                continue;
            }
            if !self.writing.contains_key(&uid) {
                return Some(uid);
            }
            self.after_writing.insert(uid);
        }
        None
    }

    /// A recent explanation of a similar pod.
    pub(super) fn remembered(&self, alike: (u64, bool), now_ms: i64) -> Option<Condition> {
        let (found, at) = self.remembered.get(&alike)?;
        (now_ms - at < REMEMBERED_MS).then(|| found.clone())
    }

    pub(super) fn remember(&mut self, alike: (u64, bool), found: Condition, now_ms: i64) {
        if self.remembered.len() >= REMEMBERED_MAX {
            self.remembered.retain(|_, (_, at)| now_ms - *at < REMEMBERED_MS);
        }
        if self.remembered.len() < REMEMBERED_MAX {
            self.remembered.insert(alike, (found, now_ms));
        }
    }

    /// Drops explanations of a template.
    pub(super) fn reconsider(&mut self, template: u64) {
        self.remembered.remove(&(template, false));
        self.remembered.remove(&(template, true));
    }

    /// What to write about a pod, if anything has changed.
    pub(super) fn status(
        &mut self,
        pod: &SeenPod,
        found: Option<Condition>,
        now_ms: i64,
        settings: &Settings,
    ) -> Option<StatusUpdate> {
        let uid = &pod.object.uid;
        let shown = self.nominated.get(uid).unwrap_or(&pod.object.nominated);
        let nominated = self.nominations.remove(uid).filter(|node| node != shown);
        let known = match self.last.get(uid) {
            Some((condition, at)) => Some((condition.clone(), *at)),
            None => pod.condition.clone().map(|condition| (condition, i64::MIN / 2)),
        };
        let condition = found.filter(|found| match &known {
            None => true,
            Some((known, _)) if known.reason != found.reason => true,
            Some((known, _)) if known.message == found.message => false,
            Some((_, at)) => {
                let again_ms = at.saturating_add(settings.status_repeat_ms);
                if again_ms > now_ms {
                    self.later.insert((again_ms, uid.clone()));
                }
                again_ms <= now_ms
            }
        });
        if condition.is_none() && nominated.is_none() {
            return None;
        }
        let event = condition.as_ref().map(|condition| EventNote {
            warning: true,
            reason: "FailedScheduling",
            note: condition.message.clone(),
        });
        if let Some(condition) = &condition {
            self.last.insert(uid.clone(), (condition.clone(), now_ms));
        }
        if let Some(node) = &nominated {
            self.nominated.insert(uid.clone(), node.clone());
        }
        let update = StatusUpdate {
            pod: pod.reference(),
            version: pod.version,
            condition,
            nominated,
            event,
        };
        self.writing.insert(uid.clone(), (update.clone(), now_ms));
        Some(update)
    }

    pub(super) fn written(
        &mut self,
        uid: &Arc<str>,
        written: bool,
        now_ms: i64,
        settings: &Settings,
    ) {
        let Some((update, since_ms)) = self.writing.remove(uid) else { return };
        let pause_ms = (now_ms - since_ms).saturating_mul(PAUSE_FACTOR).min(PAUSE_MS_MAX);
        if pause_ms > 0 {
            self.pausing.push(Reverse(now_ms + pause_ms));
        }
        if self.after_writing.remove(uid) {
            self.explain(uid);
        }
        if !written {
            // Try again later: nothing else may cause a write.
            self.last.remove(uid);
            self.nominated.remove(uid);
            self.later.insert((now_ms + settings.backoff_ms, uid.clone()));
            if let Some(node) = update.nominated {
                self.nominations.entry(uid.clone()).or_insert(node);
            }
        }
    }
}

pub(super) fn invalid(problem: &Arc<str>) -> Condition {
    Condition { reason: INVALID.into(), message: problem.clone() }
}

/// The condition for an explanation; `None` if the pod only waits for its turn or is bound. Everybody who can read
/// the pod sees it, so it names no pods of other namespaces.
pub(super) fn condition(
    explanation: Explanation,
    namespace: &str,
    excluded: &str,
) -> Option<Condition> {
    let reason = match &explanation {
        Explanation::Held { .. } => HELD,
        // It fits, and only waits for its turn.
        Explanation::Waiting { fitting: 1.., .. } => return None,
        Explanation::Waiting { .. } | Explanation::AwaitsRoom { .. } => UNSCHEDULABLE,
        // An incomplete gang needs members, not nodes.
        Explanation::InGang { next: None, .. } => HELD,
        Explanation::InGang { .. } => UNSCHEDULABLE,
        Explanation::Gated { .. } | Explanation::Leaving { .. } | Explanation::Placed { .. } => {
            return None;
        }
    };
    let message = format!("{}{excluded}", render(&explanation.for_namespace(namespace)));
    Some(Condition { reason: reason.into(), message: message.into() })
}
