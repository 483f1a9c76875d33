//! Bindings, from the decision until their outcome is known: decided, announced, posted, answered, confirmed.
//!
//! Until a pod is seen with a node, or the API server has rejected the binding for good, the outcome is unknown; then the
//! pod is read again. A binding requires the version that the pod had *before* it was announced. A later leader fences
//! announced pods by changing them; with a version seen after that, the binding of a deposed leader would succeed. So a
//! pod that has changed is announced again.

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

/// A pod whose decision was undone backs off for this part of the initial backoff.
const PAUSES_PER_REST: i64 = 4;

/// Delay before the next attempt, by how long preparation has taken: one second at first, then longer.
fn next_try_in_ms(since_ms: i64) -> i64 {
    (since_ms / 4).clamp(1_000, 5_000)
}

/// The longest backoff of a pod whose victims may not be evicted, in initial backoffs.
const SHORT_RESTS: i64 = 10;

/// A binding to be posted.
#[derive(Clone, Debug)]
pub struct BindOrder {
    /// The pod.
    pub pod: PodRef,
    /// The resource version before the announcement. If the pod has changed since, or a later leader has fenced it, the
    /// API server rejects the binding.
    pub version: u64,
    pub binding: Binding,
    pub claims: Arc<[berth_model::dra::pod::PodClaim]>,
    /// PersistentVolumeClaims to bind first.
    pub volumes: Vec<DelayedVolume>,
    /// Attempts at which devices or volumes were not ready.
    pub attempts: u32,
    /// Whether the time for preparation is over.
    pub is_last_attempt: bool,
    pub created_at_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindOutcome {
    Bound,
    /// The pod has changed or is bound already; a watch event will follow.
    Conflict,
    Gone,
    /// Not done; may succeed if repeated.
    Busy,
    /// Not done: devices or volumes are still being prepared.
    NotReady,
    /// Not done: the pod's claims could not be written in time. A write may still be in flight.
    Unprepared,
    /// Rejected for good.
    Refused,
    /// Not done: an object that the decision depended on has changed, which was reported as an update.
    Stale,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Decided,
    Announcing,
    /// Waits to be posted.
    Announced,
    /// Announced, to be posted later.
    Pausing {
        until_ms: i64,
    },
    Posted,
    /// Succeeded; a watch event will confirm it.
    Answered {
        reread_at_ms: i64,
    },
    /// Conflict, or no answer: the state of the pod decides.
    Unsettled {
        reread_at_ms: i64,
        seen: u64,
    },
    /// The pod is being read.
    Reading {
        seen: u64,
    },
    /// Being fenced, so that earlier attempts cannot succeed during preparation.
    Fencing,
    /// Devices or volumes are being prepared. Not announced, but its resources stay taken.
    Preparing {
        until_ms: i64,
    },
}

impl Stage {
    /// When to act without any update.
    fn due_ms(self) -> Option<i64> {
        match self {
            Self::Unsettled { reread_at_ms, .. } | Self::Answered { reread_at_ms } => {
                Some(reread_at_ms)
            }
            Self::Pausing { until_ms } | Self::Preparing { until_ms } => Some(until_ms),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FollowUp {
    Keep,
    /// Undo the decision.
    Undo,
    /// Undo the decision, and do not schedule the pod until it is fenced.
    Isolate(PodRef),
}

#[derive(Debug)]
struct Order {
    order: BindOrder,
    stage: Stage,
    /// Whether it is announced in the Lease.
    listed: bool,
    /// Distinguishes orders for the same pod.
    number: u64,
    /// Whether an earlier binding with this version may be in flight.
    in_doubt: bool,
    /// Since when devices or volumes are being prepared.
    preparing_since_ms: Option<i64>,
}

/// All bindings that are not settled.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    orders: HashMap<Arc<str>, Order>,
    decided: VecDeque<Arc<str>>,
    announcing: Option<Vec<(PodRef, u64)>>,
    announced: VecDeque<Arc<str>>,
    posted: usize,
    /// Announced pods whose outcome is known.
    settled: Vec<PodRef>,
    /// Pods to fence.
    unfenced: Vec<PodRef>,
    /// Pods that back off: until when, and how many rejections there were.
    backing_off: HashMap<Arc<str>, (Option<i64>, u32)>,
    /// Orders that are due, by time.
    due: BTreeSet<(i64, Arc<str>)>,
    /// Orders in [`Stage::Preparing`].
    preparing: usize,
    /// Whether admission had been predicted, for recently bound pods.
    predicted: HashMap<Arc<str>, bool>,
    numbers: u64,
}

impl Bindings {
    /// Without those in preparation, which can take long and must not delay others.
    pub(super) fn len(&self) -> usize {
        self.orders.len() - self.preparing
    }

    pub(super) fn is_calm(&self) -> bool {
        self.decided.is_empty() && self.announcing.is_none() && self.announced.is_empty()
    }

    /// Whether the pod's claims are being written.
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
        self.backing_off.get(uid).is_some_and(|(until, _)| until.is_some())
    }

    /// Whether admission of a pod had been predicted; `None` if Berth did not bind it.
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
        let under = Order {
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

    pub(super) fn announced(&mut self) {
        for (pod, number) in self.announcing.take().into_iter().flatten() {
            match self.orders.get_mut(&pod.uid) {
                Some(under) if under.number == number => {
                    under.listed = true;
                    under.stage = Stage::Announced;
                    self.announced.push_back(pod.uid);
                }
                // The order has ended meanwhile. A new one is announced later.
                _ => self.settled.push(pod),
            }
        }
    }

    /// Returns the order if this confirms it.
    pub(super) fn seen(&mut self, seen: &SeenPod) -> Option<BindOrder> {
        let uid = &seen.object.uid;
        let under = self.orders.get_mut(uid)?;
        if seen.object.node.is_some() {
            let ours = seen.object.node.as_ref() == Some(&under.order.binding.node);
            let under = self.end(uid)?;
            return ours.then_some(under.order);
        }
        match under.stage {
            // The pod has changed and is not bound, so the binding was not done. One that is still in flight fails,
            // because the version has changed.
            Stage::Unsettled { seen: at, .. } | Stage::Reading { seen: at }
                if seen.version > at =>
            {
                self.again(uid);
            }
            // Read, and unchanged: the binding can still be in flight. The next one has the same version, so only one
            // of them can succeed.
            Stage::Reading { .. } => {
                under.stage = Stage::Announced;
                self.announced.push_back(uid.clone());
            }
            _ => {}
        }
        None
    }

    /// Tries again with the current version, which has to be announced first.
    fn again(&mut self, uid: &Arc<str>) {
        self.leave_stage(uid);
        if let Some(under) = self.orders.get_mut(uid) {
            under.stage = Stage::Decided;
            self.decided.push_back(uid.clone());
        }
    }

    /// `known` is the version at which the pod was last seen.
    pub(super) fn answered(
        &mut self,
        uid: &Arc<str>,
        outcome: BindOutcome,
        (now_ms, known): (i64, u64),
        settings: &Settings,
    ) -> FollowUp {
        let Some(under) = self.orders.get_mut(uid) else {
            // The watch was faster than the answer.
            return FollowUp::Keep;
        };
        if under.stage != Stage::Posted {
            return FollowUp::Keep;
        }
        self.posted = self.posted.saturating_sub(1);
        let seen = under.order.version;
        let reread_at_ms = now_ms + settings.reread_after_ms;
        match outcome {
            BindOutcome::Bound => {
                self.backing_off.remove(uid);
                // A watch event follows. If it does not for long, something is wrong with the watch.
                let reread_at_ms = now_ms + 10 * settings.reread_after_ms;
                under.stage = Stage::Answered { reread_at_ms };
                under.listed = false;
                self.settled.push(under.order.pod.clone());
                self.due.insert((reread_at_ms, uid.clone()));
                FollowUp::Keep
            }
            BindOutcome::NotReady if !under.in_doubt => {
                self.prepare(uid, now_ms, settings);
                FollowUp::Keep
            }
            // The list of the Lease is for bindings in flight, not for pods that wait. To leave it, the pod is fenced.
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
            // The change that caused the conflict is known already.
            BindOutcome::Conflict if known > seen => {
                self.again(uid);
                FollowUp::Keep
            }
            BindOutcome::Conflict | BindOutcome::Gone | BindOutcome::Unknown => {
                under.stage = Stage::Unsettled { reread_at_ms, seen };
                under.in_doubt = true;
                self.due.insert((reread_at_ms, uid.clone()));
                FollowUp::Keep
            }
            BindOutcome::Refused => {
                self.end(uid);
                self.rest(uid, now_ms, settings);
                FollowUp::Undo
            }
            BindOutcome::Stale => {
                self.end(uid);
                self.pause(uid, now_ms, settings);
                FollowUp::Undo
            }
        }
    }

    /// Devices or volumes are being prepared. Nothing is in flight, so the pod is not announced meanwhile.
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

    /// A pod was fenced, or could not be; `None` if that was not for a binding.
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
            return Some(FollowUp::Undo);
        }
        self.prepare(uid, now_ms, settings);
        Some(FollowUp::Keep)
    }

    /// A short backoff: nothing was rejected.
    fn pause(&mut self, uid: &Arc<str>, now_ms: i64, settings: &Settings) {
        let (until, _) = self.backing_off.entry(uid.clone()).or_insert((None, 0));
        *until = Some(now_ms + settings.backoff_ms / PAUSES_PER_REST);
    }

    /// Backoff of a pod whose victims may not be evicted, short enough to notice capacity that becomes free.
    pub(super) fn back_off_shortly(&mut self, uid: &Arc<str>, now_ms: i64, settings: &Settings) {
        self.rest(uid, now_ms, settings);
        if let Some((Some(until), _)) = self.backing_off.get_mut(uid) {
            *until = (*until).min(now_ms + SHORT_RESTS * settings.backoff_ms);
        }
    }

    /// Exponential backoff.
    pub(super) fn rest(&mut self, uid: &Arc<str>, now_ms: i64, settings: &Settings) {
        let (until, times) = self.backing_off.entry(uid.clone()).or_insert((None, 0));
        let backoff_ms =
            settings.backoff_ms.saturating_mul(1 << (*times).min(20)).min(settings.backoff_max_ms);
        *until = Some(now_ms + backoff_ms);
        *times += 1;
    }

    /// Pods whose backoff is over.
    pub(super) fn rested(&mut self, now_ms: i64) -> Vec<Arc<str>> {
        let mut rested = Vec::new();
        for (uid, (until, _)) in &mut self.backing_off {
            if until.is_some_and(|until| until <= now_ms) {
                *until = None;
                rested.push(uid.clone());
            }
        }
        rested.sort_unstable();
        rested
    }

    /// A pod has finished or is gone.
    pub(super) fn drop_pod(&mut self, uid: &Arc<str>) {
        self.end(uid);
        self.backing_off.remove(uid);
        self.predicted.remove(uid);
    }

    /// No binding of the pod is in flight, so it need not be announced.
    pub(super) fn settle(&mut self, pod: PodRef) {
        self.settled.push(pod);
    }

    fn end(&mut self, uid: &Arc<str>) -> Option<Order> {
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

    /// Drops the due time of the current stage.
    fn leave_stage(&mut self, uid: &Arc<str>) {
        let Some(under) = self.orders.get(uid) else { return };
        if let Some(due_ms) = under.stage.due_ms() {
            self.due.remove(&(due_ms, uid.clone()));
        }
        self.preparing -= usize::from(matches!(under.stage, Stage::Preparing { .. }));
    }

    /// Returns the pods whose decision is to be undone, because a kubelet has rejected their template meanwhile.
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

    /// Ends orders that are not announced yet and go to nodes that have rejected the template since the decision, or
    /// whose pods have become invalid. None of them is in flight.
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
            under.stage = Stage::Reading { seen };
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

    /// Announces decided orders, in portions: a gang can be larger than the list of the Lease.
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
        let rest = self.backing_off.values().filter_map(|(until, _)| *until).min();
        [due, rest].into_iter().flatten().min()
    }
}
