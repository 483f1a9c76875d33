//! Pods that are to go, from the decision until they are going.
//!
//! Owns who was asked to go for whom. Must not know how pods are made to go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::spec::Phase;

use super::effect::{Effect, Eviction, SeenPod};
use crate::lease::PodRef;

/// What the API answered to an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictOutcome {
    /// The pod is going, or is gone.
    Going,
    /// It may not go now: a disruption budget, or the API, says no.
    Blocked,
    /// Nobody knows.
    Unknown,
}

#[derive(Debug)]
struct Under {
    order: Eviction,
    /// Pods that have to be going before this one is evicted: a budget may keep them, and this one would
    /// go in vain.
    after: BTreeSet<Arc<str>>,
    sent: bool,
}

/// Evictions that are under way.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    by_uid: BTreeMap<Arc<str>, Under>,
}

impl Evictions {
    /// Why a pod goes that makes room for another, as kube-scheduler has it.
    pub(super) const PREEMPTED: &'static str = "PreemptionByScheduler";
    /// Why a member of a gang goes that cannot start as a whole.
    pub(super) const DISBANDED: &'static str = "GangDisbanded";

    /// A pod is to go. `guarded` are those, of all that go with it, that budgets may keep.
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
        self.by_uid.entry(uid).or_insert(Under { order, after, sent: false });
    }

    /// Update of a pod: one that is going need not be asked again.
    pub(super) fn seen(&mut self, seen: &SeenPod) {
        if matches!(seen.object.phase, Phase::Terminating { .. } | Phase::Finished) {
            self.forget(&seen.object.uid);
        }
    }

    /// A pod is going, or gone.
    pub(super) fn forget(&mut self, uid: &Arc<str>) {
        self.by_uid.remove(uid);
        for under in self.by_uid.values_mut() {
            under.after.remove(uid);
        }
    }

    /// The API did not evict a pod, or did not answer. Returns the pods that stay: this one and those that
    /// were to be evicted after it.
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

    /// A pod is to stay: its eviction is cancelled, unless that is in flight.
    pub(super) fn cancel(&mut self, uid: &Arc<str>) {
        if self.by_uid.get(uid).is_some_and(|under| !under.sent) {
            self.forget(uid);
        }
    }

    pub(super) fn effects(&mut self, effects: &mut Vec<Effect>) {
        let may_go = |under: &&mut Under| !under.sent && under.after.is_empty();
        for under in self.by_uid.values_mut().filter(may_go) {
            under.sent = true;
            effects.push(Effect::Evict(under.order.clone()));
        }
    }
}
