//! Evictions, from the decision until the pod is terminating.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::spec::Phase;

use super::effect::{Effect, Eviction, SeenPod};
use crate::lease::PodRef;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictOutcome {
    /// The pod is terminating or gone.
    Going,
    /// A disruption budget or the API server denies it.
    Blocked,
    Unknown,
}

#[derive(Debug)]
struct Order {
    order: Eviction,
    /// Pods that must be terminating before this one is evicted: if a budget keeps them, this eviction would be in
    /// vain.
    after: BTreeSet<Arc<str>>,
    sent: bool,
}

#[derive(Debug, Default)]
pub(super) struct Evictions {
    by_uid: BTreeMap<Arc<str>, Order>,
}

impl Evictions {
    /// Reason of a preemption, as in kube-scheduler.
    pub(super) const PREEMPTED: &'static str = "PreemptionByScheduler";
    /// Reason for members of a gang that cannot start as a whole.
    pub(super) const DISBANDED: &'static str = "GangDisbanded";

    /// `guarded` are the pods evicted with this one that disruption budgets may keep.
    pub(super) fn add(
        &mut self,
        pod: PodRef,
        waiting: Option<Arc<str>>,
        why: &'static str,
        guarded: &BTreeSet<Arc<str>>,
    ) {
        let uid = pod.uid.clone();
        let after = if guarded.contains(&uid) { BTreeSet::new() } else { guarded.clone() };
        let order = Eviction { pod, waiting, why };
        self.by_uid.entry(uid).or_insert(Order { order, after, sent: false });
    }

    pub(super) fn seen(&mut self, seen: &SeenPod) {
        if matches!(seen.object.phase, Phase::Terminating { .. } | Phase::Finished) {
            self.forget(&seen.object.uid);
        }
    }

    /// A pod is terminating or gone.
    pub(super) fn forget(&mut self, uid: &Arc<str>) {
        self.by_uid.remove(uid);
        for under in self.by_uid.values_mut() {
            under.after.remove(uid);
        }
    }

    /// The eviction was denied, or its outcome is unknown. Returns the pods that stay: this one and those that were to
    /// be evicted after it.
    pub(super) fn failed(&mut self, uid: &Arc<str>) -> Vec<Arc<str>> {
        if self.by_uid.remove(uid).is_none() {
            return Vec::new();
        }
        let followers = self.by_uid.iter().filter(|(_, under)| under.after.contains(uid));
        let mut staying: Vec<Arc<str>> = followers.map(|(uid, _)| uid.clone()).collect();
        staying.iter().for_each(|follower| self.forget(follower));
        staying.push(uid.clone());
        staying
    }

    /// Cancels an eviction, unless it is in flight.
    pub(super) fn cancel(&mut self, uid: &Arc<str>) {
        if self.by_uid.get(uid).is_some_and(|under| !under.sent) {
            self.forget(uid);
        }
    }

    pub(super) fn effects(&mut self, effects: &mut Vec<Effect>) {
        let may_go = |under: &&mut Order| !under.sent && under.after.is_empty();
        for under in self.by_uid.values_mut().filter(may_go) {
            under.sent = true;
            effects.push(Effect::Evict(under.order.clone()));
        }
    }
}
