//! What those who look at pods are told: people by conditions and events, autoscalers by the reason of
//! the condition.
//!
//! Owns when a statement is worth a write. A pod for which more nodes would help is `Unschedulable`, which
//! autoscalers act upon; one that a quota, a share or its gang holds back is `Held`, which they do not. Must not
//! know how statements are written.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use berth_engine::explain::{Explanation, render};
use berth_model::spec::PodObject;

use super::Settings;
use super::effect::{Condition, EventNote, SeenPod, Told};
use crate::lease::PodRef;

/// Why a pod has no node for which another node would help. Karpenter and the Cluster Autoscaler look for
/// this word.
pub const UNSCHEDULABLE: &str = "Unschedulable";

/// Why a pod has no node for which no node would help.
pub const HELD: &str = "Held";

/// Why a pod is not scheduled one of whose requests cannot be read.
pub const INVALID: &str = "InvalidRequest";

/// For so long what was found out about one pod goes for all alike.
const REMEMBERED_MS: i64 = 5_000;

/// So many kinds of pods are remembered at a time.
const REMEMBERED_MAX: usize = 1_024;

/// Events that wait to be written, at most; beyond that the oldest are dropped.
const RECORDS_MAX: usize = 10_000;

/// What was found out, and when.
type Found = (Condition, i64);

/// What has been told, and what is to be.
#[derive(Debug, Default)]
pub(super) struct Telling {
    /// What is to be explained, not sorted by namespace yet.
    fresh: Vec<Arc<str>>,
    /// What is to be explained by namespace. Namespaces take turns.
    due: BTreeMap<Arc<str>, VecDeque<Arc<str>>>,
    /// The namespace that had its turn last.
    served: Option<Arc<str>>,
    queued: HashSet<Arc<str>>,
    /// What is to be looked at again, and when: what could not be written, or was said a moment ago.
    later: BTreeSet<(i64, Arc<str>)>,
    /// Nominations that are not written yet.
    nominations: BTreeMap<Arc<str>, Option<Arc<str>>>,
    writing: HashMap<Arc<str>, Told>,
    /// Those of whom there is more to tell when what is being written is done: of two writes at a time
    /// nobody knows which comes last.
    after_writing: HashSet<Arc<str>>,
    /// Nominations that were written, or are being, and are not seen yet.
    nominated: HashMap<Arc<str>, Option<Arc<str>>>,
    /// Events to be written.
    records: VecDeque<Told>,
    /// What was last written about whom, and when.
    last: HashMap<Arc<str>, (Condition, i64)>,
    /// What was found out about pods of one template, and held or not.
    remembered: HashMap<(u64, bool), Found>,
}

impl Telling {
    /// Something is to be told about a pod.
    pub(super) fn explain(&mut self, uid: &Arc<str>) {
        if self.queued.insert(uid.clone()) {
            self.fresh.push(uid.clone());
        }
    }

    /// A pod waits for a node, or does not any more.
    pub(super) fn nominate(&mut self, uid: &Arc<str>, node: Option<Arc<str>>) {
        self.nominations.insert(uid.clone(), node);
        self.explain(uid);
    }

    /// A pod has its place: there is nothing to explain.
    pub(super) fn placed(&mut self, uid: &Arc<str>) {
        self.nominations.remove(uid);
        self.queued.remove(uid);
    }

    pub(super) fn forget(&mut self, uid: &Arc<str>) {
        self.placed(uid);
        self.last.remove(uid);
        self.nominated.remove(uid);
    }

    /// A pod is as seen.
    pub(super) fn seen(&mut self, pod: &PodObject) {
        if self.nominated.get(&pod.uid) == Some(&pod.nominated) {
            self.nominated.remove(&pod.uid);
        }
    }

    /// A pod is on its node, and that is to be recorded. Nothing depends on it, so it comes last.
    pub(super) fn record_placed(&mut self, pod: PodRef, node: &str) {
        // In the words of kube-scheduler, which tools look for.
        let note = format!("Successfully assigned {}/{} to {node}", pod.namespace, pod.name);
        self.record(pod, false, "Scheduled", note);
    }

    /// Something is to be recorded as an event.
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
        let told = Told { pod, version: 0, condition: None, nominated: None, event: Some(event) };
        self.records.push_back(told);
    }

    /// The next record, if there is room for another write.
    pub(super) fn next_record(&mut self, settings: &Settings) -> Option<Told> {
        if self.writing.len() >= settings.telling_max {
            return None;
        }
        let told = self.records.pop_front()?;
        self.writing.insert(told.pod.uid.clone(), told.clone());
        Some(told)
    }

    /// Whether something can be told now.
    pub(super) fn is_due(&self, settings: &Settings) -> bool {
        let has_any = !self.fresh.is_empty() || !self.due.is_empty() || !self.records.is_empty();
        has_any && self.writing.len() < settings.telling_max
    }

    /// When something that was put off can be told.
    pub(super) fn next_ms(&self) -> Option<i64> {
        self.later.first().map(|(at, _)| *at)
    }

    /// What was put off until now is due.
    pub(super) fn wake(&mut self, now_ms: i64) {
        while let Some((at, _)) = self.later.first()
            && *at <= now_ms
            && let Some((_, uid)) = self.later.pop_first()
        {
            self.explain(&uid);
        }
    }

    /// Sorts what is to be explained by namespace; pods that are gone have none.
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

    /// The next pod to be explained, if there is room for another write.
    pub(super) fn next(&mut self, settings: &Settings) -> Option<Arc<str>> {
        while self.writing.len() < settings.telling_max {
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

    /// What was found out about such a pod a moment ago.
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

    /// What was found out about such pods goes no more.
    pub(super) fn reconsider(&mut self, template: u64) {
        self.remembered.remove(&(template, false));
        self.remembered.remove(&(template, true));
    }

    /// What to write about a pod, if it is worth it.
    pub(super) fn statement(
        &mut self,
        pod: &SeenPod,
        found: Option<Condition>,
        now_ms: i64,
        settings: &Settings,
    ) -> Option<Told> {
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
                let again_ms = at.saturating_add(settings.retell_ms);
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
        let told = Told { pod: pod.reference(), version: pod.version, condition, nominated, event };
        self.writing.insert(uid.clone(), told.clone());
        Some(told)
    }

    /// A statement was written, or not.
    pub(super) fn written(
        &mut self,
        uid: &Arc<str>,
        written: bool,
        now_ms: i64,
        settings: &Settings,
    ) {
        let Some(told) = self.writing.remove(uid) else { return };
        if self.after_writing.remove(uid) {
            self.explain(uid);
        }
        if !written {
            // As if it had never been said. There may be no other occasion to say it.
            self.last.remove(uid);
            self.nominated.remove(uid);
            self.later.insert((now_ms + settings.rest_ms, uid.clone()));
            if let Some(node) = told.nominated {
                self.nominations.entry(uid.clone()).or_insert(node);
            }
        }
    }
}

/// The condition of a pod one of whose requests cannot be read.
pub(super) fn invalid(problem: &Arc<str>) -> Condition {
    Condition { reason: INVALID.into(), message: problem.clone() }
}

/// What a pod's condition should say; `None`: nothing, it only waits for its turn or has a place. Every
/// reader of the pod sees it, so it names no pods of other namespaces.
pub(super) fn condition(
    explanation: Explanation,
    namespace: &str,
    excluded: &str,
) -> Option<Condition> {
    let reason = match &explanation {
        Explanation::Held { .. } => HELD,
        // There is room, and it only waits for its turn.
        Explanation::Waiting { fitting: 1.., .. } => return None,
        Explanation::Waiting { .. } | Explanation::AwaitsRoom { .. } => UNSCHEDULABLE,
        // A gang that is not complete needs members, not nodes.
        Explanation::InGang { next: None, .. } => HELD,
        Explanation::InGang { .. } => UNSCHEDULABLE,
        Explanation::Gated { .. } | Explanation::Leaving { .. } | Explanation::Placed { .. } => {
            return None;
        }
    };
    let message = format!("{}{excluded}", render(&explanation.for_namespace(namespace)));
    Some(Condition { reason: reason.into(), message: message.into() })
}
