//! Bindings, from the decision until it is known what became of them.
//!
//! Owns the order of things: decided, announced, posted, answered, confirmed. Until a pod is seen with a
//! node, or the API has refused the binding for good, nobody knows; then the pod is looked at. Must not
//! know why a node was chosen.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use berth_engine::decision::{Alignment, Binding};
use berth_model::spec::PodObject;

use super::Settings;
use super::effect::{Effect, SeenPod};
use super::pods::Pods;
use crate::lease::PodRef;

/// A binding to be posted.
#[derive(Clone, Debug)]
pub struct BindOrder {
    /// The pod.
    pub pod: PodRef,
    /// The resource version at which it was last seen: if it has changed since, or somebody else has
    /// taken over, the API refuses the binding.
    pub version: u64,
    /// What was decided.
    pub binding: Binding,
    /// The claims that the pod refers to.
    pub claims: Arc<[berth_model::dra::pod::PodClaim]>,
    /// When the pod was created.
    pub created_at_ms: i64,
}

/// What the API answered to a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindOutcome {
    /// Bound.
    Bound,
    /// The pod is not as it was, or it has a node already: news of it will come.
    Conflict,
    /// There is no such pod.
    Gone,
    /// It was not done, and might be if tried again.
    Busy,
    /// It was not done, and will not be.
    Refused,
    /// Nobody knows whether it was done.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for its announcement.
    Decided,
    /// Announced, waits for its turn to be posted.
    Announced { not_before_ms: i64 },
    /// Posted, no answer yet.
    Posted,
    /// Answered with success; news of it will come.
    Answered { look_at_ms: i64 },
    /// The pod was not as we thought, or the answer was lost: what it is like decides.
    Unsettled { look_at_ms: i64, seen: u64 },
    /// It is being looked at.
    Looking { seen: u64 },
}

#[derive(Debug)]
struct Under {
    order: BindOrder,
    stage: Stage,
}

/// Everything that is under way.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    orders: HashMap<Arc<str>, Under>,
    decided: VecDeque<Arc<str>>,
    announcing: Option<Vec<Arc<str>>>,
    announced: VecDeque<Arc<str>>,
    posted: usize,
    /// Those that were announced and whose fate is known.
    settled: Vec<PodRef>,
    /// Pods that rest after a refusal: until when, and how many there were.
    resting: HashMap<Arc<str>, (Option<i64>, u32)>,
    /// By time, those that have to be looked at.
    looks: BTreeMap<(i64, Arc<str>), ()>,
    /// How those that were bound lately had been predicted to lie.
    predicted: HashMap<Arc<str>, bool>,
}

impl Bindings {
    pub(super) fn len(&self) -> usize {
        self.orders.len()
    }

    /// Whether nothing waits to be posted or answered.
    pub(super) fn is_calm(&self) -> bool {
        self.decided.is_empty() && self.announced.is_empty() && self.posted == 0
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.orders.contains_key(uid)
    }

    pub(super) fn rests(&self, uid: &str) -> bool {
        self.resting.get(uid).is_some_and(|(until, _)| until.is_some())
    }

    pub(super) fn was_predicted(&self, uid: &str) -> bool {
        self.predicted.get(uid).copied().unwrap_or(false)
    }

    pub(super) fn add(&mut self, binding: Binding, pod: &PodObject) {
        let uid = binding.pod.clone();
        let known = !matches!(binding.alignment, Alignment::Unknown);
        self.predicted.insert(uid.clone(), known);
        let reference = PodRef {
            namespace: pod.spec.namespace.clone(),
            name: pod.name.clone(),
            uid: uid.clone(),
        };
        let order = BindOrder {
            pod: reference,
            version: 0,
            binding,
            claims: pod.claims.clone(),
            created_at_ms: pod.created_at_ms,
        };
        self.orders.insert(uid.clone(), Under { order, stage: Stage::Decided });
        self.decided.push_back(uid);
    }

    /// The announcement is written.
    pub(super) fn announced(&mut self) {
        for uid in self.announcing.take().into_iter().flatten() {
            if let Some(under) = self.orders.get_mut(&uid) {
                under.stage = Stage::Announced { not_before_ms: i64::MIN };
                self.announced.push_back(uid);
            }
        }
    }

    /// News of a pod. Gives its order if that is now confirmed.
    pub(super) fn seen(&mut self, seen: &SeenPod) -> Option<BindOrder> {
        let uid = &seen.object.uid;
        let under = self.orders.get_mut(uid)?;
        if seen.object.node.is_some() {
            let ours = seen.object.node.as_ref() == Some(&under.order.binding.node);
            let under = self.end(uid)?;
            return ours.then_some(under.order);
        }
        match under.stage {
            // It is without a node after all that happened: the binding was not done. A binding that is
            // still under way fails, because the pod has changed since it was posted.
            Stage::Unsettled { seen: at, .. } | Stage::Looking { seen: at }
                if seen.version > at =>
            {
                self.unlook(uid);
                if let Some(under) = self.orders.get_mut(uid) {
                    under.stage = Stage::Announced { not_before_ms: i64::MIN };
                    self.announced.push_back(uid.clone());
                }
            }
            // Looked at, and nothing has changed: whatever was posted can still arrive. The next one
            // will have the same version, and only one of both can succeed.
            Stage::Looking { .. } => {
                under.stage = Stage::Announced { not_before_ms: i64::MIN };
                self.announced.push_back(uid.clone());
            }
            _ => {}
        }
        None
    }

    /// An answer. Says whether the decision is to be taken back.
    pub(super) fn answered(
        &mut self,
        uid: &Arc<str>,
        outcome: BindOutcome,
        now_ms: i64,
        settings: &Settings,
    ) -> bool {
        let Some(under) = self.orders.get_mut(uid) else {
            // News was faster than the answer.
            return false;
        };
        if under.stage != Stage::Posted {
            return false;
        }
        self.posted = self.posted.saturating_sub(1);
        let seen = under.order.version;
        let look_at_ms = now_ms + settings.look_after_ms;
        match outcome {
            BindOutcome::Bound => {
                self.resting.remove(uid);
                // News will come. If it does not for long, something is wrong with the watch.
                let look_at_ms = now_ms + 10 * settings.look_after_ms;
                under.stage = Stage::Answered { look_at_ms };
                self.settled.push(under.order.pod.clone());
                self.looks.insert((look_at_ms, uid.clone()), ());
                false
            }
            BindOutcome::Busy => {
                under.stage = Stage::Announced { not_before_ms: now_ms + settings.rest_ms };
                self.announced.push_back(uid.clone());
                false
            }
            BindOutcome::Conflict | BindOutcome::Gone | BindOutcome::Unknown => {
                under.stage = Stage::Unsettled { look_at_ms, seen };
                self.looks.insert((look_at_ms, uid.clone()), ());
                false
            }
            BindOutcome::Refused => {
                self.end(uid);
                self.rest(uid, now_ms, settings);
                true
            }
        }
    }

    /// A pod is left alone for a while.
    pub(super) fn rest(&mut self, uid: &Arc<str>, now_ms: i64, settings: &Settings) {
        let (until, times) = self.resting.entry(uid.clone()).or_insert((None, 0));
        let rest_ms =
            settings.rest_ms.saturating_mul(1 << (*times).min(20)).min(settings.rest_max_ms);
        *until = Some(now_ms + rest_ms);
        *times += 1;
    }

    /// Pods that have rested.
    pub(super) fn rested(&mut self, now_ms: i64) -> Vec<Arc<str>> {
        let mut rested = Vec::new();
        for (uid, (until, _)) in &mut self.resting {
            if until.is_some_and(|until| until <= now_ms) {
                *until = None;
                rested.push(uid.clone());
            }
        }
        rested.sort_unstable();
        rested
    }

    /// A pod is gone, or has ended.
    pub(super) fn drop_pod(&mut self, uid: &Arc<str>) {
        self.end(uid);
        self.resting.remove(uid);
        self.predicted.remove(uid);
    }

    fn end(&mut self, uid: &Arc<str>) -> Option<Under> {
        self.unlook(uid);
        let under = self.orders.remove(uid)?;
        if !matches!(under.stage, Stage::Decided | Stage::Answered { .. }) {
            self.settled.push(under.order.pod.clone());
        }
        if under.stage == Stage::Posted {
            self.posted = self.posted.saturating_sub(1);
        }
        Some(under)
    }

    fn unlook(&mut self, uid: &Arc<str>) {
        if let Some(under) = self.orders.get(uid)
            && let Stage::Unsettled { look_at_ms, .. } | Stage::Answered { look_at_ms } =
                under.stage
        {
            self.looks.remove(&(look_at_ms, uid.clone()));
        }
    }

    /// What is to be done next.
    pub(super) fn effects(
        &mut self,
        now_ms: i64,
        settings: &Settings,
        pods: &Pods,
        effects: &mut Vec<Effect>,
    ) {
        if !self.settled.is_empty() {
            effects.push(Effect::Settled(std::mem::take(&mut self.settled)));
        }
        self.look(now_ms, effects);
        self.post(now_ms, settings, pods, effects);
        let short = self.posted + self.announced.len() < settings.posting_max;
        if self.announcing.is_none() && !self.decided.is_empty() && short {
            self.announce(effects);
        }
    }

    fn look(&mut self, now_ms: i64, effects: &mut Vec<Effect>) {
        while let Some(((at, uid), ())) = self.looks.first_key_value()
            && *at <= now_ms
        {
            let key = (*at, uid.clone());
            self.looks.remove(&key);
            if let Some(under) = self.orders.get_mut(&key.1) {
                let seen = match under.stage {
                    Stage::Unsettled { seen, .. } => seen,
                    _ => under.order.version,
                };
                under.stage = Stage::Looking { seen };
                effects.push(Effect::Look(under.order.pod.clone()));
            }
        }
    }

    fn post(&mut self, now_ms: i64, settings: &Settings, pods: &Pods, effects: &mut Vec<Effect>) {
        for _ in 0..self.announced.len() {
            if self.posted >= settings.posting_max {
                break;
            }
            let Some(uid) = self.announced.pop_front() else { break };
            let Some(under) = self.orders.get_mut(&uid) else { continue };
            match under.stage {
                Stage::Announced { not_before_ms } if not_before_ms > now_ms => {
                    self.announced.push_back(uid);
                }
                Stage::Announced { .. } => {
                    under.order.version = pods.get(&uid).map_or(0, |pod| pod.version);
                    under.stage = Stage::Posted;
                    self.posted += 1;
                    effects.push(Effect::Bind(Box::new(under.order.clone())));
                }
                _ => {}
            }
        }
    }

    fn announce(&mut self, effects: &mut Vec<Effect>) {
        let fresh: Vec<Arc<str>> = self.decided.drain(..).collect();
        let known = fresh.iter().filter_map(|uid| self.orders.get(uid));
        effects.push(Effect::Announce(known.map(|under| under.order.pod.clone()).collect()));
        self.announcing = Some(fresh);
    }

    pub(super) fn next_ms(&self) -> Option<i64> {
        let look = self.looks.first_key_value().map(|((at, _), ())| *at);
        let rest = self.resting.values().filter_map(|(until, _)| *until).min();
        let post = self
            .announced
            .iter()
            .filter_map(|uid| match self.orders.get(uid)?.stage {
                Stage::Announced { not_before_ms } => Some(not_before_ms),
                _ => None,
            })
            .min();
        [look, rest, post].into_iter().flatten().min()
    }
}
