//! Bindings, from the decision until it is known what became of them.
//!
//! Owns the order of things: decided, announced, posted, answered, confirmed. Until a pod is seen with a
//! node, or the API has rejected the binding for good, nobody knows; then the pod is looked at. A binding
//! insists on the version that the pod had *before* it was announced: whoever takes over later touches
//! the pod, and a version that was seen after that would let the binding of somebody deposed land. So a pod
//! that has changed is announced again. Must not know why a node was chosen.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use berth_engine::decision::{Binding, DelayedVolume};
use berth_model::alignment::Alignment;
use berth_model::spec::PodObject;

use super::Settings;
use super::effect::{Effect, SeenPod};
use super::pods::Pods;
use super::rejections::Rejections;
use crate::lease::PodRef;

/// A pod whose decision did not hold any more is looked at again after this part of a rest.
const PAUSES_PER_REST: i64 = 4;

/// How soon to try again something that has been prepared for so long: every second at first, then less often.
fn next_try_in_ms(since_ms: i64) -> i64 {
    (since_ms / 4).clamp(1_000, 5_000)
}

/// The longest rest of a pod for whom nobody may be evicted, in rests.
const SHORT_RESTS: i64 = 10;

/// A binding to be posted.
#[derive(Clone, Debug)]
pub struct BindOrder {
    /// The pod.
    pub pod: PodRef,
    /// The resource version at which it was seen before it was announced: if it has changed since, or
    /// somebody else has taken over, the API refuses the binding.
    pub version: u64,
    /// What was decided.
    pub binding: Binding,
    /// The claims that the pod refers to.
    pub claims: Arc<[berth_model::dra::pod::PodClaim]>,
    /// The claims of storage that have to be bound first.
    pub volumes: Vec<DelayedVolume>,
    /// How often what the pod needs was not ready yet.
    pub attempts: u32,
    /// Whether it has been waited for long enough.
    pub is_last_attempt: bool,
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
    /// It was not done, as devices or volumes of the pod are still being prepared. It is to be tried again.
    NotReady,
    /// It was not done, as the pod's claims could not be written in time. A write may still land.
    Unprepared,
    /// It was not done, and will not be.
    Refused,
    /// It was not done, because something it stood on is not so any more: what that is like now was told.
    Stale,
    /// Nobody knows whether it was done.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for its announcement.
    Decided,
    /// Is being announced.
    Announcing,
    /// Announced, waits for its turn to be posted.
    Announced,
    /// Announced, and not to be posted again at once.
    Pausing { until_ms: i64 },
    /// Posted, no answer yet.
    Posted,
    /// Answered with success; news of it will come.
    Answered { look_at_ms: i64 },
    /// The pod was not as we thought, or the answer was lost: what it is like decides.
    Unsettled { look_at_ms: i64, seen: u64 },
    /// It is being looked at.
    Looking { seen: u64 },
    /// It is being fenced, so that nothing of earlier attempts can land while it is prepared.
    Fencing,
    /// What it needs is being prepared. It is not announced, and counts for nothing but its place.
    Preparing { until_ms: i64 },
}

impl Stage {
    /// When somebody has to look after it even if nothing happens.
    fn due_ms(self) -> Option<i64> {
        match self {
            Self::Unsettled { look_at_ms, .. } | Self::Answered { look_at_ms } => Some(look_at_ms),
            Self::Pausing { until_ms } | Self::Preparing { until_ms } => Some(until_ms),
            _ => None,
        }
    }
}

/// What follows from an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FollowUp {
    /// The decision stands.
    Keep,
    /// The decision is to be taken back.
    TakeBack,
    /// The decision is to be taken back, and the pod is not to be scheduled before it is fenced.
    Isolate(PodRef),
}

#[derive(Debug)]
struct Under {
    order: BindOrder,
    stage: Stage,
    /// Whether it stands on the list of those that are announced.
    listed: bool,
    /// Tells it from other orders for the same pod.
    number: u64,
    /// Whether an earlier binding at this version may still land.
    in_doubt: bool,
    /// Since when something is being prepared for it.
    preparing_since_ms: Option<i64>,
}

/// Everything that is under way.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    orders: HashMap<Arc<str>, Under>,
    decided: VecDeque<Arc<str>>,
    announcing: Option<Vec<(PodRef, u64)>>,
    announced: VecDeque<Arc<str>>,
    posted: usize,
    /// Those that were announced and whose fate is known.
    settled: Vec<PodRef>,
    /// Those that are to be fenced.
    unfenced: Vec<PodRef>,
    /// Pods that rest after a rejection: until when, and how many there were.
    resting: HashMap<Arc<str>, (Option<i64>, u32)>,
    /// By time, those that have to be looked after.
    due: BTreeSet<(i64, Arc<str>)>,
    /// How many are in [`Stage::Preparing`].
    preparing: usize,
    /// How those that were bound lately had been predicted to lie.
    predicted: HashMap<Arc<str>, bool>,
    numbers: u64,
}

impl Bindings {
    /// How many are under way. Those for whom something is being prepared are not: that can take long, and
    /// must keep nobody else waiting.
    pub(super) fn len(&self) -> usize {
        self.orders.len() - self.preparing
    }

    /// Whether nothing waits to be posted.
    pub(super) fn is_calm(&self) -> bool {
        self.decided.is_empty() && self.announcing.is_none() && self.announced.is_empty()
    }

    /// Whether somebody is writing a pod's claims at this moment.
    pub(super) fn is_writing_claims(&self, uid: &str) -> bool {
        self.orders.get(uid).is_some_and(|under| {
            let order = &under.order;
            under.stage == Stage::Posted
                && (order.binding.devices.is_some() || !order.claims.is_empty())
        })
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.orders.contains_key(uid)
    }

    pub(super) fn rests(&self, uid: &str) -> bool {
        self.resting.get(uid).is_some_and(|(until, _)| until.is_some())
    }

    /// Whether we had foreseen that a kubelet admits a pod; `None`: it was not for us to foresee.
    pub(super) fn was_predicted(&self, uid: &str) -> Option<bool> {
        self.predicted.get(uid).copied()
    }

    pub(super) fn add(&mut self, binding: Binding, volumes: Vec<DelayedVolume>, pod: &PodObject) {
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
            volumes,
            attempts: 0,
            is_last_attempt: false,
            created_at_ms: pod.created_at_ms,
        };
        self.numbers += 1;
        let number = self.numbers;
        let preparing_since_ms = None;
        let under = Under {
            order,
            stage: Stage::Decided,
            listed: false,
            number,
            in_doubt: false,
            preparing_since_ms,
        };
        self.orders.insert(uid.clone(), under);
        self.decided.push_back(uid);
    }

    /// The announcement is written.
    pub(super) fn announced(&mut self) {
        for (pod, number) in self.announcing.take().into_iter().flatten() {
            match self.orders.get_mut(&pod.uid) {
                Some(under) if under.number == number => {
                    under.listed = true;
                    under.stage = Stage::Announced;
                    self.announced.push_back(pod.uid);
                }
                // It came to its end meanwhile. If there is another by now, it is announced later.
                _ => self.settled.push(pod),
            }
        }
    }

    /// Update of a pod. Gives its order if that is now confirmed.
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
                self.again(uid);
            }
            // Looked at, and nothing has changed: whatever was posted can still arrive. The next one
            // will have the same version, and only one of both can succeed.
            Stage::Looking { .. } => {
                under.stage = Stage::Announced;
                self.announced.push_back(uid.clone());
            }
            _ => {}
        }
        None
    }

    /// It is to be tried again, with the pod as it is now: that has to be announced first.
    fn again(&mut self, uid: &Arc<str>) {
        self.leave_stage(uid);
        if let Some(under) = self.orders.get_mut(uid) {
            under.stage = Stage::Decided;
            self.decided.push_back(uid.clone());
        }
    }

    /// An answer. `known` is the version at which the pod was last seen.
    pub(super) fn answered(
        &mut self,
        uid: &Arc<str>,
        outcome: BindOutcome,
        (now_ms, known): (i64, u64),
        settings: &Settings,
    ) -> FollowUp {
        let Some(under) = self.orders.get_mut(uid) else {
            // Update was faster than the answer.
            return FollowUp::Keep;
        };
        if under.stage != Stage::Posted {
            return FollowUp::Keep;
        }
        self.posted = self.posted.saturating_sub(1);
        let seen = under.order.version;
        let look_at_ms = now_ms + settings.reread_after_ms;
        match outcome {
            BindOutcome::Bound => {
                self.resting.remove(uid);
                // Update will come. If it does not for long, something is wrong with the watch.
                let look_at_ms = now_ms + 10 * settings.reread_after_ms;
                under.stage = Stage::Answered { look_at_ms };
                under.listed = false;
                self.settled.push(under.order.pod.clone());
                self.due.insert((look_at_ms, uid.clone()));
                FollowUp::Keep
            }
            BindOutcome::NotReady if !under.in_doubt => {
                self.prepare(uid, now_ms, settings);
                FollowUp::Keep
            }
            // Its place on the list is for pods of which something may land any moment, not for those that
            // wait: first nothing must be able to.
            BindOutcome::NotReady | BindOutcome::Unprepared => {
                under.stage = Stage::Fencing;
                self.unfenced.push(under.order.pod.clone());
                FollowUp::Keep
            }
            BindOutcome::Busy => {
                let until_ms = now_ms + settings.backoff_ms;
                under.stage = Stage::Pausing { until_ms };
                self.due.insert((until_ms, uid.clone()));
                FollowUp::Keep
            }
            // Why there was a conflict is known already.
            BindOutcome::Conflict if known > seen => {
                self.again(uid);
                FollowUp::Keep
            }
            BindOutcome::Conflict | BindOutcome::Gone | BindOutcome::Unknown => {
                under.stage = Stage::Unsettled { look_at_ms, seen };
                under.in_doubt = true;
                self.due.insert((look_at_ms, uid.clone()));
                FollowUp::Keep
            }
            BindOutcome::Refused => {
                self.end(uid);
                self.rest(uid, now_ms, settings);
                FollowUp::TakeBack
            }
            BindOutcome::Stale => {
                self.end(uid);
                self.pause(uid, now_ms, settings);
                FollowUp::TakeBack
            }
        }
    }

    /// Devices or volumes of a pod are being prepared. What was written for it stands in the API, so it need
    /// not stand on the list meanwhile.
    fn prepare(&mut self, uid: &Arc<str>, now_ms: i64, settings: &Settings) {
        let Some(under) = self.orders.get_mut(uid) else { return };
        let since_ms = *under.preparing_since_ms.get_or_insert(now_ms);
        let until_ms = now_ms + next_try_in_ms(now_ms - since_ms);
        under.stage = Stage::Preparing { until_ms };
        under.listed = false;
        under.order.attempts += 1;
        under.order.is_last_attempt = until_ms - since_ms >= settings.prepare_max_ms;
        self.settled.push(under.order.pod.clone());
        self.due.insert((until_ms, uid.clone()));
        self.preparing += 1;
    }

    /// A pod was fenced, or could not be; `None`: not for a binding.
    pub(super) fn fenced(
        &mut self,
        uid: &Arc<str>,
        is_fenced: bool,
        now_ms: i64,
        settings: &Settings,
    ) -> Option<FollowUp> {
        let under = self.orders.get_mut(uid).filter(|under| under.stage == Stage::Fencing)?;
        if !is_fenced {
            // It stays on the list until it is.
            under.listed = false;
            return self.end(uid).map(|under| FollowUp::Isolate(under.order.pod));
        }
        under.in_doubt = false;
        if under.order.is_last_attempt {
            self.end(uid);
            self.pause(uid, now_ms, settings);
            return Some(FollowUp::TakeBack);
        }
        self.prepare(uid, now_ms, settings);
        Some(FollowUp::Keep)
    }

    /// A pod is left alone for a moment: nobody rejected it anything.
    fn pause(&mut self, uid: &Arc<str>, now_ms: i64, settings: &Settings) {
        let (until, _) = self.resting.entry(uid.clone()).or_insert((None, 0));
        *until = Some(now_ms + settings.backoff_ms / PAUSES_PER_REST);
    }

    /// A pod for whom nobody may be evicted now is left alone for a while, but not so long that it misses
    /// room which comes by itself.
    pub(super) fn rest_shortly(&mut self, uid: &Arc<str>, now_ms: i64, settings: &Settings) {
        self.rest(uid, now_ms, settings);
        if let Some((Some(until), _)) = self.resting.get_mut(uid) {
            *until = (*until).min(now_ms + SHORT_RESTS * settings.backoff_ms);
        }
    }

    /// A pod is left alone for a while.
    pub(super) fn rest(&mut self, uid: &Arc<str>, now_ms: i64, settings: &Settings) {
        let (until, times) = self.resting.entry(uid.clone()).or_insert((None, 0));
        let backoff_ms =
            settings.backoff_ms.saturating_mul(1 << (*times).min(20)).min(settings.backoff_max_ms);
        *until = Some(now_ms + backoff_ms);
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

    /// No earlier binding of a pod can land any more: it need not be announced.
    pub(super) fn settle(&mut self, pod: PodRef) {
        self.settled.push(pod);
    }

    fn end(&mut self, uid: &Arc<str>) -> Option<Under> {
        self.leave_stage(uid);
        let under = self.orders.remove(uid)?;
        // One that is being announced is settled when that is done.
        if under.listed && under.stage != Stage::Announcing {
            self.settled.push(under.order.pod.clone());
        }
        if under.stage == Stage::Posted {
            self.posted = self.posted.saturating_sub(1);
        }
        Some(under)
    }

    /// Whoever had to look after it need not any more.
    fn leave_stage(&mut self, uid: &Arc<str>) {
        let Some(under) = self.orders.get(uid) else { return };
        if let Some(due_ms) = under.stage.due_ms() {
            self.due.remove(&(due_ms, uid.clone()));
        }
        self.preparing -= usize::from(matches!(under.stage, Stage::Preparing { .. }));
    }

    /// What is to be done next. Gives the pods whose decision is to be taken back, because the node has
    /// rejected their like meanwhile.
    pub(super) fn effects(
        &mut self,
        now_ms: i64,
        settings: &Settings,
        (pods, rejections): (&Pods, &Rejections),
        effects: &mut Vec<Effect>,
    ) -> Vec<Arc<str>> {
        if !self.settled.is_empty() {
            effects.push(Effect::Settle(std::mem::take(&mut self.settled)));
        }
        effects.extend(self.unfenced.drain(..).map(Effect::Fence));
        self.look_after(now_ms, effects);
        self.post(settings, pods, effects);
        // Ahead of what is posted: posting must not wait for the Lease to be written.
        let short = self.announced.len() < settings.posting_max;
        let mut withdrawn = Vec::new();
        if self.announcing.is_none() && !self.decided.is_empty() && short {
            withdrawn = self.withdraw(pods, rejections);
            self.announce(settings, pods, effects);
        }
        withdrawn
    }

    /// Ends those that are about to be announced and go to nodes that have rejected their like since they
    /// were decided, or whose requests cannot be read any more. Nothing that was posted for them can land.
    fn withdraw(&mut self, pods: &Pods, rejections: &Rejections) -> Vec<Arc<str>> {
        let is_refused = |uid: &&Arc<str>| {
            let under = self.orders.get(*uid).filter(|under| under.stage == Stage::Decided);
            under.zip(pods.get(uid)).is_some_and(|(under, pod)| {
                pod.invalid.is_some()
                    || rejections.has_rejected(&under.order.binding.node, &pod.object)
            })
        };
        let withdrawn: Vec<Arc<str>> = self.decided.iter().filter(is_refused).cloned().collect();
        withdrawn.iter().for_each(|uid| drop(self.end(uid)));
        withdrawn
    }

    fn look_after(&mut self, now_ms: i64, effects: &mut Vec<Effect>) {
        while self.due.first().is_some_and(|(at, _)| *at <= now_ms) {
            let Some((_, uid)) = self.due.pop_first() else { break };
            let Some(under) = self.orders.get_mut(&uid) else { continue };
            let seen = match under.stage {
                Stage::Preparing { .. } => {
                    self.again(&uid);
                    continue;
                }
                Stage::Pausing { .. } => {
                    under.stage = Stage::Announced;
                    self.announced.push_back(uid);
                    continue;
                }
                Stage::Unsettled { seen, .. } => seen,
                _ => under.order.version,
            };
            under.stage = Stage::Looking { seen };
            effects.push(Effect::ReadPod(under.order.pod.clone()));
        }
    }

    fn post(&mut self, settings: &Settings, pods: &Pods, effects: &mut Vec<Effect>) {
        while self.posted < settings.posting_max
            && let Some(uid) = self.announced.pop_front()
        {
            let Some(under) = self.orders.get_mut(&uid) else { continue };
            match under.stage {
                // It has changed since it was announced: the binding would fail.
                Stage::Announced
                    if pods.get(&uid).is_some_and(|pod| pod.version > under.order.version) =>
                {
                    self.again(&uid);
                }
                Stage::Announced => {
                    under.stage = Stage::Posted;
                    self.posted += 1;
                    effects.push(Effect::Bind(Box::new(under.order.clone())));
                }
                _ => {}
            }
        }
    }

    /// Announces what is decided, though not all at once: a gang can be larger than the list of the Lease.
    fn announce(&mut self, settings: &Settings, pods: &Pods, effects: &mut Vec<Effect>) {
        let mut fresh = Vec::new();
        while fresh.len() < settings.announcing_max
            && let Some(uid) = self.decided.pop_front()
        {
            let Some(under) = self.orders.get_mut(&uid) else { continue };
            if under.stage == Stage::Decided {
                under.stage = Stage::Announcing;
                let version = pods.get(&uid).map_or(0, |pod| pod.version);
                under.in_doubt &= version == under.order.version;
                under.order.version = version;
                fresh.push((under.order.pod.clone(), under.number));
            }
        }
        if !fresh.is_empty() {
            effects.push(Effect::Announce(fresh.iter().map(|(pod, _)| pod.clone()).collect()));
            self.announcing = Some(fresh);
        }
    }

    pub(super) fn next_ms(&self) -> Option<i64> {
        let due = self.due.first().map(|(at, _)| *at);
        let rest = self.resting.values().filter_map(|(until, _)| *until).min();
        [due, rest].into_iter().flatten().min()
    }
}
