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
    /// For whom: others may have come to wait for the same room since.
    waiting: BTreeSet<Arc<str>>,
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

    pub(super) fn add(&mut self, pod: PodRef, waiting: Option<Arc<str>>, why: &'static str) {
        let order = Eviction { pod, waiting: waiting.clone(), why };
        let under = Under { order, waiting: BTreeSet::new(), sent: false };
        let under = self.by_uid.entry(under.order.pod.uid.clone()).or_insert(under);
        under.waiting.extend(waiting);
    }

    /// News of a pod: one that is going need not be asked again.
    pub(super) fn seen(&mut self, seen: &SeenPod) {
        if matches!(seen.object.phase, Phase::Terminating { .. } | Phase::Finished) {
            self.by_uid.remove(&seen.object.uid);
        }
    }

    pub(super) fn forget(&mut self, uid: &Arc<str>) {
        self.by_uid.remove(uid);
    }

    /// An answer. Gives those who wait in vain if the pod stays.
    pub(super) fn answered(&mut self, uid: &Arc<str>, outcome: EvictOutcome) -> BTreeSet<Arc<str>> {
        let Some(under) = self.by_uid.remove(uid) else { return BTreeSet::new() };
        // What is unknown becomes known by news; whoever waits for the room looks again meanwhile.
        if outcome == EvictOutcome::Going { BTreeSet::new() } else { under.waiting }
    }

    pub(super) fn effects(&mut self, effects: &mut Vec<Effect>) {
        for under in self.by_uid.values_mut().filter(|under| !under.sent) {
            under.sent = true;
            effects.push(Effect::Evict(under.order.clone()));
        }
    }
}
