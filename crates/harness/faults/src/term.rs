//! One time of leading: fences what was inherited, lists, watches, decides and acts, as `serve` does.
//!
//! Owns the order of things and what answers mean to the core. Must not know how calls travel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_control::core::{
    BindOutcome, Completion, Core, Effect, EvictOutcome, SeenPod, Settings as CoreSettings,
    StatusUpdate, Update,
};
use berth_control::lease::{PodRef, Tenure};
use berth_engine::event::Event;

use crate::calls::{Answer, CallId, Request};
use crate::election::Writer;
use crate::server::{Change, Shown};

/// A call of a leader's actor may take so long, by its own clock; one that fences, less.
const CALL_MS: u64 = 10_000;
const FENCE_CALL_MS: u64 = 2_000;

/// Between two attempts to fence a pod.
const FENCE_AGAIN_MS: u64 = 250;

/// A pod that is not fenced within this time is isolated.
const FENCING_MAX_MS: u64 = 15_000;

/// Between two looks at a pod that could not be seen.
const LOOK_AGAIN_MS: u64 = 1_000;

/// Answers a binding whose devices or volumes are being prepared, of which the world knows nothing else.
pub(crate) const UNREADY: u16 = 425;

/// Attempts before a pod is isolated, at least.
const FENCE_ATTEMPTS_MIN: u32 = 5;

/// Answers a change of a pod that its owner has made so that the API refuses it.
pub(crate) const UNPROCESSABLE: u16 = 422;

/// What is waited for at the end.
const DRAIN_MS: u64 = 10_000;

/// What an unanswered call is for.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    FenceLook(PodRef),
    Fence(PodRef),
    ListPods,
    ListOthers,
    Bind(Arc<str>),
    Look(PodRef),
    Evict(Arc<str>),
    Tell(Arc<str>),
}

/// Something to be done later, by the replica's own clock.
#[derive(Clone, Debug)]
pub(crate) enum Later {
    Call(Purpose, Request),
    Announce(Vec<PodRef>),
}

impl Purpose {
    /// How long the call may take.
    pub(crate) fn limit_ms(&self) -> u64 {
        match self {
            Self::FenceLook(_) | Self::Fence(_) => FENCE_CALL_MS,
            _ => CALL_MS,
        }
    }
}

/// What is to be done next.
#[derive(Debug)]
pub(crate) enum Deed {
    Call(Purpose, Request),
    After(u64, Later),
    /// Everything of a kind was listed, as it was at this version: watch on from there.
    Follow {
        pods: bool,
        from: u64,
    },
    /// It begins to decide.
    Begins,
    /// Time to give the Lease back.
    Drained,
}

/// Which objects of the kinds there are, so that those that are not listed any more are gone.
#[derive(Debug, Default)]
struct Known {
    pods: BTreeMap<Arc<str>, Arc<str>>,
    nodes: BTreeSet<Arc<str>>,
}

/// The time of leading.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) writer: Writer,
    pub(crate) core: Core,
    /// The time of day when it began, and the clock then.
    started: (i64, u64),
    unfenced: BTreeSet<PodRef>,
    inherited: BTreeSet<PodRef>,
    isolated: BTreeSet<PodRef>,
    fence_failures: BTreeMap<PodRef, u32>,
    unlisted: usize,
    known: Known,
    pub(crate) deciding: bool,
    drains_until_ms: Option<u64>,
    pub(crate) calls: BTreeMap<CallId, Purpose>,
}

impl Term {
    pub(crate) fn new(
        tenure: Tenure,
        inherited: BTreeSet<PodRef>,
        settings: CoreSettings,
        started: (i64, u64),
    ) -> Self {
        Self {
            writer: Writer::new(tenure, inherited.clone()),
            core: Core::new(settings),
            started,
            unfenced: inherited.clone(),
            inherited,
            isolated: BTreeSet::new(),
            fence_failures: BTreeMap::new(),
            unlisted: 2,
            known: Known::default(),
            deciding: false,
            drains_until_ms: None,
            calls: BTreeMap::new(),
        }
    }

    /// The time of day as the core is told: it does not jump.
    fn day_ms(&self, now_ms: u64) -> i64 {
        self.started.0 + (now_ms - self.started.1) as i64
    }

    pub(crate) fn begin(&mut self) -> Vec<Deed> {
        let looks = self.unfenced.iter().map(|pod| fence_look(pod.clone()));
        let mut deeds: Vec<Deed> = looks.collect();
        if self.unfenced.is_empty() {
            deeds.extend(self.fenced(self.started.0));
        }
        deeds
    }

    fn fenced(&mut self, day_ms: i64) -> [Deed; 2] {
        let isolated = std::mem::take(&mut self.isolated);
        let inherited = std::mem::take(&mut self.inherited);
        self.writer.settle(inherited.difference(&isolated).cloned().collect());
        for pod in isolated {
            self.core.isolate(pod, "it could not be fenced", day_ms);
        }
        [
            Deed::Call(Purpose::ListPods, Request::ListPods),
            Deed::Call(Purpose::ListOthers, Request::ListOthers),
        ]
    }

    /// Stops to decide, and ends when nothing is under way.
    pub(crate) fn drain(&mut self, now_ms: u64) {
        self.drains_until_ms.get_or_insert(now_ms + DRAIN_MS);
    }

    /// An answer, or that there was none in time.
    pub(crate) fn answered(
        &mut self,
        call: CallId,
        answer: Option<Answer>,
        now_ms: u64,
    ) -> Vec<Deed> {
        let Some(purpose) = self.calls.remove(&call) else { return Vec::new() };
        let day_ms = self.day_ms(now_ms);
        match purpose {
            Purpose::FenceLook(pod) => self.fence_seen(pod, answer, now_ms),
            Purpose::Fence(pod) => match answer {
                Some(Answer::Done) => self.fence_done(&pod, day_ms),
                answer => self.fence_failed(pod, answer.as_ref(), now_ms),
            },
            Purpose::ListPods => match answer {
                Some(Answer::Pods(pods, from)) => self.listed_pods(&pods, from, day_ms),
                _ => vec![Deed::After(200, Later::Call(Purpose::ListPods, Request::ListPods))],
            },
            Purpose::ListOthers => match answer {
                Some(Answer::Others(all, from)) => self.listed_others(all, from, day_ms),
                _ => vec![Deed::After(200, Later::Call(Purpose::ListOthers, Request::ListOthers))],
            },
            Purpose::Bind(uid) => {
                let outcome = bind_outcome(answer.as_ref());
                self.core.settle(Completion::Bound(uid, outcome), day_ms);
                Vec::new()
            }
            Purpose::Look(pod) => self.looked(pod, answer, day_ms),
            Purpose::Evict(uid) => {
                let outcome = match answer {
                    Some(Answer::Done | Answer::Failed(404 | 409)) => EvictOutcome::Going,
                    Some(_) => EvictOutcome::Blocked,
                    None => EvictOutcome::Unknown,
                };
                self.core.settle(Completion::Evicted(uid, outcome), day_ms);
                Vec::new()
            }
            Purpose::Tell(uid) => {
                let written = matches!(answer, Some(Answer::Done | Answer::Failed(404)));
                self.core.settle(Completion::StatusWritten(uid, written), day_ms);
                Vec::new()
            }
        }
    }

    fn fence_seen(&mut self, pod: PodRef, answer: Option<Answer>, now_ms: u64) -> Vec<Deed> {
        let day_ms = self.day_ms(now_ms);
        match answer {
            Some(Answer::Pod(found)) if found.object.node.is_some() => {
                self.fence_done(&pod, day_ms)
            }
            Some(Answer::Pod(_)) => {
                let touch = Request::Touch(pod.clone());
                vec![Deed::Call(Purpose::Fence(pod), touch)]
            }
            Some(Answer::Failed(404)) => self.fence_done(&pod, day_ms),
            answer => self.fence_failed(pod, answer.as_ref(), now_ms),
        }
    }

    fn fence_done(&mut self, pod: &PodRef, day_ms: i64) -> Vec<Deed> {
        if !self.unfenced.remove(pod) {
            self.core.settle(Completion::Fenced(pod.uid.clone(), true), day_ms);
            return Vec::new();
        }
        if self.unfenced.is_empty() { self.fenced(day_ms).into() } else { Vec::new() }
    }

    /// Refused for good, or not done yet.
    fn fence_failed(&mut self, pod: PodRef, answer: Option<&Answer>, now_ms: u64) -> Vec<Deed> {
        let day_ms = self.day_ms(now_ms);
        if !self.unfenced.contains(&pod) {
            self.core.settle(Completion::Fenced(pod.uid, false), day_ms);
            return Vec::new();
        }
        let is_refused = matches!(answer, Some(Answer::Failed(UNPROCESSABLE)));
        let failures = self.fence_failures.entry(pod.clone()).or_insert(0);
        *failures += 1;
        let is_late = now_ms >= self.started.1 + FENCING_MAX_MS && *failures >= FENCE_ATTEMPTS_MIN;
        if !is_refused && !is_late {
            return vec![fence_later(pod)];
        }
        self.isolated.insert(pod.clone());
        self.fence_done(&pod, day_ms)
    }

    fn looked(&mut self, pod: PodRef, answer: Option<Answer>, day_ms: i64) -> Vec<Deed> {
        match answer {
            Some(Answer::Pod(found)) if found.object.uid == pod.uid => {
                self.core.apply(Update::Pod(found), day_ms);
            }
            Some(Answer::Pod(_) | Answer::Failed(404)) => {
                self.core.apply(Update::PodGone(pod.uid), day_ms);
            }
            _ => {
                let look = Later::Call(Purpose::Look(pod.clone()), Request::ReadPod(pod));
                return vec![Deed::After(LOOK_AGAIN_MS, look)];
            }
        }
        Vec::new()
    }

    fn listed_pods(&mut self, pods: &[SeenPod], from: u64, day_ms: i64) -> Vec<Deed> {
        let there: BTreeSet<&Arc<str>> = pods.iter().map(|pod| &pod.object.name).collect();
        for pod in pods {
            self.see_pod(pod.clone(), day_ms);
        }
        let gone: Vec<Arc<str>> =
            self.known.pods.keys().filter(|name| !there.contains(name)).cloned().collect();
        for name in gone {
            if let Some(uid) = self.known.pods.remove(&name) {
                self.core.apply(Update::PodGone(uid), day_ms);
            }
        }
        self.listed(true, from)
    }

    fn listed_others(&mut self, all: Vec<Shown>, from: u64, day_ms: i64) -> Vec<Deed> {
        let there: BTreeSet<Arc<str>> = all
            .iter()
            .filter_map(|shown| match shown {
                Shown::Node(node, ..) => Some(node.name.clone()),
                _ => None,
            })
            .collect();
        let gone: Vec<Arc<str>> = self.known.nodes.difference(&there).cloned().collect();
        all.into_iter().for_each(|shown| self.see_other(shown, day_ms));
        gone.into_iter().for_each(|name| self.see_other(Shown::NodeGone(name), day_ms));
        self.listed(false, from)
    }

    fn listed(&mut self, pods: bool, from: u64) -> Vec<Deed> {
        self.unlisted = self.unlisted.saturating_sub(1);
        let mut deeds = vec![Deed::Follow { pods, from }];
        if self.unlisted == 0 && !self.deciding {
            self.deciding = true;
            deeds.push(Deed::Begins);
        }
        deeds
    }

    /// A line of the history, as a watch tells it.
    pub(crate) fn see(&mut self, change: Change, now_ms: u64) {
        let day_ms = self.day_ms(now_ms);
        match change {
            Change::Pod(seen) => self.see_pod(*seen, day_ms),
            Change::PodGone(pod) => {
                self.known.pods.remove(&pod.name);
                self.core.apply(Update::PodGone(pod.uid), day_ms);
            }
            Change::Other(shown) => self.see_other(shown, day_ms),
        }
    }

    fn see_pod(&mut self, seen: SeenPod, day_ms: i64) {
        let (name, uid) = (seen.object.name.clone(), seen.object.uid.clone());
        let before = self.known.pods.insert(name, uid.clone());
        if let Some(before) = before.filter(|before| *before != uid) {
            self.core.apply(Update::PodGone(before), day_ms);
        }
        self.core.apply(Update::Pod(Box::new(seen)), day_ms);
    }

    fn see_other(&mut self, shown: Shown, day_ms: i64) {
        match shown {
            Shown::Node(node, topology, fresh) => {
                let name = node.name.clone();
                self.known.nodes.insert(name.clone());
                self.core.apply(Update::Other(Event::Node(*node)), day_ms);
                self.core.apply(Update::Topology { node: name, topology, fresh }, day_ms);
            }
            Shown::NodeGone(name) => {
                self.known.nodes.remove(&name);
                self.core.apply(Update::Other(Event::NodeGone(name.clone())), day_ms);
                let gone = Update::Topology { node: name, topology: None, fresh: false };
                self.core.apply(gone, day_ms);
            }
            Shown::Budget(budget) => self.core.apply(Update::Other(Event::Budget(budget)), day_ms),
        }
    }

    /// So many announcements are written.
    pub(crate) fn announced(&mut self, count: usize, now_ms: u64) {
        let day_ms = self.day_ms(now_ms);
        (0..count).for_each(|_| self.core.settle(Completion::Announced, day_ms));
    }

    /// Decides, and begins what follows.
    pub(crate) fn turn(&mut self, now_ms: u64) -> Vec<Deed> {
        if !self.deciding {
            let over = self.drains_until_ms.is_some();
            return if over { vec![Deed::Drained] } else { Vec::new() };
        }
        if let Some(until_ms) = self.drains_until_ms
            && (self.core.unsettled() == 0 || until_ms <= now_ms)
        {
            return vec![Deed::Drained];
        }
        let day_ms = self.day_ms(now_ms);
        let mut effects = match self.drains_until_ms {
            Some(_) => self.core.drain(day_ms),
            None => self.core.turn(day_ms),
        };
        if self.drains_until_ms.is_none() && self.core.can_explain(day_ms) {
            effects.extend(self.core.explain_some(day_ms));
        }
        effects.into_iter().filter_map(|effect| self.begin_effect(effect)).collect()
    }

    fn begin_effect(&mut self, effect: Effect) -> Option<Deed> {
        Some(match effect {
            Effect::Settle(pods) => {
                self.writer.settle(pods);
                return None;
            }
            Effect::Announce(pods) => return self.announce(pods),
            Effect::Bind(order) => {
                let pod = order.pod;
                let request = Request::Bind {
                    version: order.version,
                    node: order.binding.node,
                    grant: order.binding.gpu_grant,
                    pod: pod.clone(),
                };
                Deed::Call(Purpose::Bind(pod.uid), request)
            }
            Effect::ReadPod(pod) => Deed::Call(Purpose::Look(pod.clone()), Request::ReadPod(pod)),
            Effect::Evict(order) => {
                Deed::Call(Purpose::Evict(order.pod.uid.clone()), Request::Evict(order.pod))
            }
            Effect::Fence(pod) => fence_look(pod),
            Effect::WriteStatus(told) => {
                let StatusUpdate { pod, .. } = &told;
                Deed::Call(Purpose::Tell(pod.uid.clone()), Request::Tell(Box::new(told)))
            }
        })
    }

    pub(crate) fn announce(&mut self, pods: Vec<PodRef>) -> Option<Deed> {
        if self.writer.announce(pods.clone()) {
            return None;
        }
        Some(Deed::After(LOOK_AGAIN_MS / 10, Later::Announce(pods)))
    }

    /// When there is something to do even if nothing happens, by the replica's clock.
    pub(crate) fn next_ms(&self, now_ms: u64) -> u64 {
        let beat_ms = now_ms + 1_000;
        if !self.deciding {
            return beat_ms;
        }
        let day_ms = self.day_ms(now_ms);
        let tells_ms = self.core.can_explain(day_ms).then_some(day_ms);
        let next_ms = self.core.next_turn_ms(day_ms).into_iter().chain(tells_ms).min();
        let left_ms = next_ms.map_or(i64::MAX, |next| next - day_ms);
        beat_ms.min(now_ms.saturating_add(left_ms.max(1) as u64))
    }
}

fn fence_look(pod: PodRef) -> Deed {
    Deed::Call(Purpose::FenceLook(pod.clone()), Request::ReadPod(pod))
}

fn fence_later(pod: PodRef) -> Deed {
    let look = Later::Call(Purpose::FenceLook(pod.clone()), Request::ReadPod(pod));
    Deed::After(FENCE_AGAIN_MS, look)
}

fn bind_outcome(answer: Option<&Answer>) -> BindOutcome {
    match answer {
        Some(Answer::Failed(409)) => BindOutcome::Conflict,
        Some(Answer::Failed(404)) => BindOutcome::Gone,
        Some(Answer::Failed(429)) => BindOutcome::Busy,
        Some(Answer::Failed(UNREADY)) => BindOutcome::NotReady,
        Some(Answer::Failed(400..=499)) => BindOutcome::Refused,
        Some(Answer::Failed(_)) | None => BindOutcome::Unknown,
        Some(_) => BindOutcome::Bound,
    }
}
