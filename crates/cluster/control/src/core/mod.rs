//! The scheduler without the network: news in, effects out.
//!
//! Owns the engine and what is under way: bindings from decision to confirmation, evictions, what users
//! were told, and what kubelets refused. Whatever the API answers, also nothing, becomes news; the core
//! never assumes that a call did what it was sent for, except that a decision counts in the engine until
//! the opposite is known. Must not know how calls are made, and has no clock: the caller tells the time.

mod bindings;
mod buried;
mod claims;
mod effect;
mod evictions;
mod fencing;
mod pods;
mod refusals;
mod telling;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use berth_engine::decision::{
    Binding, CancelledEvictions, Decision, GangBinding, GangDisbandment, GangReservation,
    PodPreemption, Step,
};
use berth_engine::event::Event;
use berth_kubelet::NodeTopology;
use berth_engine::explain::Explanation;
use berth_engine::{Config, Engine};
use berth_model::dra::claim::Claim;
use berth_model::policy::Quota;
use berth_model::spec::{Phase, PodSpec};
use berth_model::workload::ClassRules;

pub use self::bindings::{BindOrder, BindOutcome};
pub use self::effect::{Condition, Effect, EventNote, Eviction, SeenPod, Told};
pub use self::evictions::EvictOutcome;
pub use self::fencing::UNFENCED_LISTED_MAX;
pub(crate) use self::pods::Pods;
pub use self::pods::Residents;
pub use self::telling::{HELD, INVALID, UNSCHEDULABLE};

use self::bindings::Bindings;
use self::claims::Claims;
use self::evictions::Evictions;
use self::fencing::Fencing;
use self::refusals::Refusals;
use self::telling::Telling;

/// How many pods are explained in one turn, most of them as others like them were a moment ago.
const EXPLAINED_MAX: usize = 64;

/// Every number the core goes by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How the engine decides.
    pub engine: Config,
    /// How pods without a class label come by a class.
    pub classes: ClassRules,
    /// Decided bindings that are not settled yet, at most. The Lease has to have room for them.
    pub unsettled_max: usize,
    /// Bindings that are posted at the same time, at most.
    pub posting_max: usize,
    /// Bindings that are announced at the same time, at most. Each announcement is a write of the Lease.
    pub announcing_max: usize,
    /// After so long without news of a binding whose fate is unknown, the pod is looked at.
    pub look_after_ms: i64,
    /// A pod whose binding the API refused for good rests for so long, twice as long each time.
    pub rest_ms: i64,
    /// The longest rest.
    pub rest_max_ms: i64,
    /// For so long devices and volumes of a pod may be prepared.
    pub prepare_max_ms: i64,
    /// A node whose kubelet refused a pod is distrusted for so long if nobody exports its topology.
    pub distrust_ms: i64,
    /// Statements about pods that are written at the same time, at most.
    pub telling_max: usize,
    /// The same reason is not told again with other words before so long.
    pub retell_ms: i64,
    /// However much there is to bind, pods are told how they stand after so long.
    pub talk_after_ms: i64,
    /// How many steps the engine may take in one turn. News is taken in between turns.
    pub steps_max: usize,
    /// How many nodes the engine may look at in one turn before it takes no further step.
    pub looks_max: u64,
    /// How many pods may be explained in one turn by asking every node about them.
    pub surveys_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            engine: Config::default(),
            classes: ClassRules::default(),
            unsettled_max: 400,
            posting_max: 64,
            announcing_max: 256,
            look_after_ms: 2_000,
            rest_ms: 1_000,
            rest_max_ms: 300_000,
            prepare_max_ms: 600_000,
            distrust_ms: 300_000,
            telling_max: 8,
            retell_ms: 10_000,
            talk_after_ms: 1_000,
            steps_max: 512,
            looks_max: 65_536,
            surveys_max: 1,
        }
    }
}

/// Something the cluster says.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is moved once, and a box for each would cost more"
)]
pub enum News {
    /// A pod is as seen.
    Pod(Box<SeenPod>),
    /// No pod of this UID any more.
    PodGone(Arc<str>),
    /// What a node looks like inside.
    Topology {
        /// The node.
        node: Arc<str>,
        /// What is known; `None`: nothing.
        topology: Option<Arc<NodeTopology>>,
        /// Whether the exporter has seen the pods that are on the node: then it is to be believed again.
        fresh: bool,
    },
    /// A claim of devices is as given.
    Claim {
        /// The claim.
        claim: Box<Claim>,
        /// Its resource version. Larger is later; 0: unknown.
        version: u64,
    },
    /// Anything else.
    Other(Event),
}

/// What became of an effect.
#[derive(Clone, Debug)]
pub enum Done {
    /// The list of announced bindings was written.
    Announced,
    /// A binding was answered.
    Bound(Arc<str>, BindOutcome),
    /// An eviction was answered.
    Evicted(Arc<str>, EvictOutcome),
    /// A statement about a pod was written, or not.
    Told(Arc<str>, bool),
    /// A pod was fenced, or not.
    Fenced(Arc<str>, bool),
}

/// What happened since the last time it was asked for; for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Decisions to bind.
    pub binds: u64,
    /// Decisions to evict for another.
    pub preemptions: u64,
    /// Pods found to have no place.
    pub waits: u64,
    /// Pods found to be held by quotas or shares.
    pub holds: u64,
    /// Bindings that the API confirmed: for each, how long after its creation.
    pub bound_after_ms: Vec<i64>,
    /// Kubelets' refusals of pods that we bound: the reason, and whether admission had been predicted.
    pub refusals: Vec<(Arc<str>, bool)>,
    /// News that was older than what was known.
    pub stale: u64,
}

/// The scheduler's state.
#[derive(Debug)]
pub struct Core {
    settings: Settings,
    engine: Engine,
    pods: Pods,
    claims: Claims,
    bindings: Bindings,
    /// News of pods whose claims are being written, for when that is done: until then nobody knows
    /// which devices are taken.
    held: HashMap<Arc<str>, News>,
    evictions: Evictions,
    fencing: Fencing,
    refusals: Refusals,
    telling: Telling,
    tally: Tally,
    /// By namespace and name.
    quotas: BTreeMap<(Arc<str>, Arc<str>), Quota>,
    /// When pods were last explained, or there were none to explain and nothing else to do.
    explained_at_ms: i64,
    /// Whether the last turn ended before the engine had decided all it can.
    unfinished: bool,
    /// Whether the last turn left nothing to decide.
    idle: bool,
}

impl Core {
    /// A scheduler that knows of nothing yet.
    pub fn new(settings: Settings) -> Self {
        let mut engine = Engine::new(settings.engine);
        engine.apply(Event::Classes(settings.classes.clone()));
        Self {
            engine,
            pods: Pods::default(),
            claims: Claims::default(),
            bindings: Bindings::default(),
            held: HashMap::new(),
            evictions: Evictions::default(),
            fencing: Fencing::default(),
            refusals: Refusals::default(),
            telling: Telling::default(),
            tally: Tally::default(),
            quotas: BTreeMap::new(),
            explained_at_ms: 0,
            unfinished: false,
            idle: false,
            settings,
        }
    }

    /// The engine, to look at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, and beside it what reports need. Whatever is tried on the engine has to be rolled back.
    pub(crate) fn inspected(&mut self) -> (&mut Engine, &Pods, &ClassRules) {
        (&mut self.engine, &self.pods, &self.settings.classes)
    }

    /// The UID of the pod of this name.
    pub fn uid_of(&self, namespace: &str, name: &str) -> Option<Arc<str>> {
        self.pods.uid_of(namespace, name)
    }

    /// Pods that wait for a place, ours only.
    pub fn waiting(&self) -> impl Iterator<Item = &SeenPod> {
        self.pods.waiting()
    }

    /// The pod of this UID.
    pub fn pod(&self, uid: &str) -> Option<&SeenPod> {
        self.pods.get(uid)
    }

    /// The pods that are on a node and have not ended.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &SeenPod> {
        self.pods.on(node)
    }

    /// What was counted since the last call.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// How many bindings are decided and not settled, without those that wait for devices or volumes.
    pub fn unsettled(&self) -> usize {
        self.bindings.len()
    }

    /// Something is as told.
    pub fn tell(&mut self, news: News, now_ms: i64) {
        match news {
            News::Pod(seen) if self.bindings.is_writing_claims(&seen.object.uid) => {
                self.hold(seen.object.uid.clone(), News::Pod(seen));
            }
            News::PodGone(uid) if self.bindings.is_writing_claims(&uid) => {
                self.hold(uid.clone(), News::PodGone(uid));
            }
            News::Pod(seen) => self.tell_pod(*seen, now_ms),
            News::PodGone(uid) => self.forget_pod(&uid, now_ms),
            News::Claim { claim, version } => {
                if self.claims.see(&claim, version) {
                    self.engine.apply(Event::DeviceClaim(*claim));
                }
            }
            News::Topology { node, topology, fresh } => {
                if fresh {
                    self.trust(&node, now_ms);
                }
                self.refusals.set_topology(&node, topology.clone());
                let topology = topology.filter(|_| !self.refusals.is_distrusted(&node));
                self.engine.apply(Event::Topology { node, topology });
            }
            News::Other(event) => {
                match &event {
                    Event::Node(node) if self.refusals.has_changed(node) => {
                        self.trust(&node.name.clone(), now_ms)
                    }
                    Event::NodeGone(node) => self.refusals.forget_node(node),
                    Event::DeviceClaimGone(namespace, name) => {
                        self.claims.forget(namespace, name);
                    }
                    _ => {}
                }
                let quota_of = self.changed_quota(&event);
                self.engine.apply(event);
                if let Some(namespace) = quota_of {
                    self.explain_namespace(&namespace);
                }
            }
        }
    }

    /// Keeps the newest news of a pod for later.
    fn hold(&mut self, uid: Arc<str>, news: News) {
        let is_older = match (self.held.get(&uid), &news) {
            (Some(News::PodGone(_)), _) => true,
            (Some(News::Pod(held)), News::Pod(seen)) => held.version > seen.version,
            _ => false,
        };
        if !is_older {
            self.held.insert(uid, news);
        }
    }

    fn tell_pod(&mut self, mut seen: SeenPod, now_ms: i64) {
        let uid = seen.object.uid.clone();
        self.keep_holdings(&mut seen);
        let before = self.pods.see(&seen);
        // Also of a pod that is gone by now: what happened to it goes for its like.
        if let (Some(reason), Some(node)) = (&seen.refused, &seen.object.node)
            && self.refusals.is_news(&uid)
        {
            let witnessed = before.as_ref().is_some_and(Option::is_some);
            self.note_refusal(&seen, (reason.clone(), witnessed), &node.clone(), now_ms);
        }
        let Some(before) = before else {
            self.tally.stale += 1;
            return;
        };
        let is_new = before.is_none();
        let had_ended =
            before.as_ref().is_some_and(|before| before.object.phase == Phase::Finished);
        if seen.object.phase == Phase::Finished {
            // Watches repeat themselves: it leaves only once.
            if !had_ended {
                let ended = Some(seen.version).filter(|_| seen.refused.is_none());
                self.note_departure(&uid, ended, now_ms);
            }
            self.bindings.drop_pod(&uid);
            self.unfence(&uid);
            self.engine.apply(Event::Pod(seen.object.clone()));
            self.pods.finish(&uid);
            return;
        }
        if let Some(order) = self.bindings.seen(&seen) {
            self.tally.bound_after_ms.push(now_ms - order.created_at_ms);
            self.telling.record_placed(order.pod, &order.binding.node);
        }
        self.evictions.seen(&seen);
        self.telling.seen(&seen.object);
        let known_invalid = before.and_then(|before| before.invalid);
        if seen.object.node.is_some() {
            self.unfence(&uid);
            self.engine.apply(Event::Pod(self.refusals.excluding(&seen.object)));
            if let Some(invalid) =
                seen.invalid.as_ref().filter(|now| known_invalid.as_ref() != Some(now))
            {
                let note = format!(
                    "Invalid request ignored: {invalid}. A share of a GPU counts as the whole GPU."
                );
                self.telling.record(seen.reference(), true, "InvalidRequest", note);
            }
        } else if seen.ours {
            self.offer(&uid);
        }
        if is_new {
            // Nothing is decided about a gang that is not complete, and yet its members want to know.
            self.explain_gang(&uid);
        }
    }

    /// Lets the engine place a pod, unless something else has to happen before.
    fn offer(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.pods.get(uid) else { return };
        if pod.invalid.is_some() {
            self.telling.explain(uid);
        }
        if self.bindings.rests(uid) || self.fencing.contains(uid) {
            return;
        }
        if pod.invalid.is_none() {
            self.engine.apply(Event::Pod(self.refusals.excluding(&pod.object)));
        } else if !self.bindings.has(uid) {
            // It may have been valid before. While a binding of it is in flight its place is held.
            self.engine.apply(Event::PodGone(uid.clone()));
        }
    }

    /// What a pod holds is settled when it is bound, but its owner can still change the annotations that
    /// say so. What they said then counts as long as it has its node.
    fn keep_holdings(&self, seen: &mut SeenPod) {
        let Some(known) = self.pods.get(&seen.object.uid) else { return };
        let is_bound = seen.object.node.is_some();
        let was_bound = is_bound && known.object.node == seen.object.node;
        let is_decided = self.bindings.has(&seen.object.uid);
        if !was_bound && !(is_decided && (is_bound || seen.invalid.is_some())) {
            return;
        }
        if known.object.spec.gpu != seen.object.spec.gpu {
            let gpu = known.object.spec.gpu;
            seen.object.spec = Arc::new(PodSpec { gpu, ..(*seen.object.spec).clone() });
        }
        if was_bound {
            seen.object.gpu_grant.clone_from(&known.object.gpu_grant);
        }
    }

    /// Something is to be told about the gang that a pod is in, if it is in one: about every member that
    /// waits.
    fn explain_gang(&mut self, uid: &str) {
        let Some(pod) = self.pods.get(uid) else { return };
        let mates = self.pods.mates(&pod.object);
        self.explain_again(&mates);
    }

    /// Something is to be told about pods, whatever was found out a moment ago.
    fn explain_again(&mut self, pods: &[Arc<str>]) {
        for uid in pods {
            if let Some(pod) = self.pods.get(uid) {
                self.telling.reconsider(Refusals::template(&pod.object));
                self.telling.explain(uid);
            }
        }
    }

    /// The namespace whose quota an event changes. Most say how much is used, which we count ourselves.
    fn changed_quota(&mut self, event: &Event) -> Option<Arc<str>> {
        match event {
            Event::Quota(quota) => {
                let name = (quota.namespace.clone(), quota.name.clone());
                let before = self.quotas.insert(name, quota.clone());
                (before.as_ref() != Some(quota)).then(|| quota.namespace.clone())
            }
            Event::QuotaGone(namespace, name) => {
                self.quotas.remove(&(namespace.clone(), name.clone()))?;
                Some(namespace.clone())
            }
            _ => None,
        }
    }

    /// A quota of a namespace has changed: others may be held now.
    fn explain_namespace(&mut self, namespace: &str) {
        let there = |pod: &&SeenPod| &*pod.object.spec.namespace == namespace;
        let waiting = self.pods.waiting().filter(there).map(|pod| pod.object.uid.clone());
        let waiting: Vec<Arc<str>> = waiting.collect();
        self.explain_again(&waiting);
    }

    fn forget_pod(&mut self, uid: &Arc<str>, now_ms: i64) {
        if self.pods.get(uid).is_some_and(|pod| pod.object.phase != Phase::Finished) {
            // Which version that was nobody tells: later than all we know.
            self.note_departure(uid, Some(u64::MAX), now_ms);
        }
        self.pods.bury(uid);
        self.bindings.drop_pod(uid);
        self.unfence(uid);
        self.evictions.forget(uid);
        self.telling.forget(uid);
        self.engine.apply(Event::PodGone(uid.clone()));
    }

    /// A pod that ran somewhere makes its node another one when it leaves.
    /// `version` is that of its end; none: a kubelet refused it.
    fn note_departure(&mut self, uid: &Arc<str>, version: Option<u64>, now_ms: i64) {
        let Some(pod) = self.pods.get(uid).filter(|pod| pod.refused.is_none()) else { return };
        let Some((node, version)) = pod.object.node.clone().zip(version) else { return };
        // Of one that we have not seen run nobody knows: watches leave out what was soon over. And what is
        // looked up is known before that which happened earlier and is still to be told.
        let since = if pod.object.started_at_ms.is_some() { version } else { 0 };
        let templates = self.refusals.left(&node, since, (now_ms, self.settings.distrust_ms));
        self.reapply_like(&templates);
    }

    fn note_refusal(
        &mut self,
        seen: &SeenPod,
        (reason, witnessed): (Arc<str>, bool),
        node: &Arc<str>,
        now_ms: i64,
    ) {
        // One that was refused before our time was counted by whoever led then.
        if let Some(predicted) = self.bindings.was_predicted(&seen.object.uid) {
            self.tally.refusals.push((reason.clone(), predicted));
        }
        let until_ms = now_ms + self.settings.distrust_ms;
        self.refusals.add(seen, (node, reason), witnessed, (now_ms, until_ms));
        self.engine.apply(Event::Topology { node: node.clone(), topology: None });
        self.reapply_like(&[Refusals::template(&seen.object)]);
    }

    /// A node is another one now: what its kubelet refused may be sent there again.
    fn reconsider(&mut self, node: &Arc<str>, now_ms: i64) {
        let templates = self.refusals.lift(node, now_ms);
        self.reapply_like(&templates);
    }

    /// What a node says of its inside is to be believed again.
    fn believe(&mut self, node: &Arc<str>) {
        if let Some(topology) = self.refusals.trust(node) {
            self.engine.apply(Event::Topology { node: node.clone(), topology });
        }
    }

    /// A node is another one, inside or outside.
    fn trust(&mut self, node: &Arc<str>, now_ms: i64) {
        self.believe(node);
        self.reconsider(node, now_ms);
    }

    /// Waiting pods of these templates may go to other nodes than before.
    fn reapply_like(&mut self, templates: &[u64]) {
        if templates.is_empty() {
            return;
        }
        let mut alike: Vec<Arc<str>> = self
            .pods
            .waiting()
            .filter(|pod| templates.contains(&Refusals::template(&pod.object)))
            .filter(|pod| !self.bindings.has(&pod.object.uid))
            .map(|pod| pod.object.uid.clone())
            .collect();
        // In the same order in every run.
        alike.sort_unstable();
        alike.iter().for_each(|uid| self.offer(uid));
    }

    /// An effect has had its outcome.
    pub fn settle(&mut self, done: Done, now_ms: i64) {
        match done {
            Done::Announced => self.bindings.announced(),
            Done::Bound(uid, outcome) => {
                let known = self.pods.get(&uid).map_or(0, |pod| pod.version);
                let verdict =
                    self.bindings.answered(&uid, outcome, (now_ms, known), &self.settings);
                self.follow(&uid, verdict, now_ms);
                if let Some(news) = self.held.remove(&uid) {
                    self.tell(news, now_ms);
                }
            }
            Done::Evicted(uid, EvictOutcome::Going) => self.evictions.forget(&uid),
            Done::Evicted(uid, EvictOutcome::Blocked | EvictOutcome::Unknown) => {
                for victim in self.evictions.failed(&uid) {
                    self.spare(&victim, now_ms);
                }
            }
            Done::Told(uid, written) => {
                self.telling.written(&uid, written, now_ms, &self.settings);
            }
            Done::Fenced(uid, true) if self.fencing.contains(&uid) => {
                self.unfence(&uid);
                self.offer(&uid);
            }
            Done::Fenced(uid, is_fenced) => {
                match self.bindings.fenced(&uid, is_fenced, now_ms, &self.settings) {
                    Some(verdict) => self.follow(&uid, verdict, now_ms),
                    None if !is_fenced => self.fencing.failed(&uid, now_ms),
                    None => {}
                }
            }
        }
    }

    /// A victim stays. Pods that wait for its room look for another place, after a while.
    fn spare(&mut self, victim: &Arc<str>, now_ms: i64) {
        let CancelledEvictions { pending, staying } = self.engine.cancel_eviction(victim);
        staying.iter().for_each(|uid| self.evictions.cancel(uid));
        for uid in pending {
            self.telling.nominate(&uid, None);
            self.bindings.rest_shortly(&uid, now_ms, &self.settings);
            self.engine.apply(Event::PodGone(uid));
        }
    }

    /// Decides what can be decided now, and says what is to be done. What there is to tell about pods comes
    /// later, from [`tell_some`](Self::tell_some).
    pub fn turn(&mut self, now_ms: i64) -> Vec<Effect> {
        for node in self.refusals.expired(now_ms) {
            self.believe(&node);
        }
        let faded = self.refusals.fade(now_ms);
        self.reapply_like(&faded);
        for uid in self.bindings.rested(now_ms) {
            self.offer(&uid);
        }
        self.telling.wake(now_ms);
        let mut effects = Vec::new();
        loop {
            self.idle = self.decide(now_ms);
            let withdrawn = self.bind(now_ms, &mut effects);
            if withdrawn.is_empty() {
                break;
            }
            withdrawn.iter().for_each(|uid| self.offer(uid));
        }
        self.evictions.effects(&mut effects);
        self.fencing.effects(now_ms, &mut effects);
        if self.has_leisure() && !self.telling.is_due(&self.settings) {
            self.explained_at_ms = now_ms;
        }
        effects
    }

    /// Whether nothing is left to decide and no binding waits to be posted.
    fn has_leisure(&self) -> bool {
        self.idle && self.bindings.is_calm()
    }

    /// Whether to call [`tell_some`](Self::tell_some): there is something to tell, and either nothing else to do or it
    /// has been put off for too long.
    pub fn can_tell(&self, now_ms: i64) -> bool {
        let is_overdue = now_ms - self.explained_at_ms >= self.settings.talk_after_ms;
        (self.has_leisure() || is_overdue) && self.telling.is_due(&self.settings)
    }

    /// Decides as much as may be in flight and one turn may cost; whether there is nothing left to be
    /// decided.
    fn decide(&mut self, now_ms: i64) -> bool {
        self.unfinished = false;
        let looks_end = self.engine.effort().looks + self.settings.looks_max;
        for _ in 0..self.settings.steps_max {
            if self.bindings.len() >= self.settings.unsettled_max {
                return false;
            }
            match self.engine.step(now_ms) {
                Step::Decided(decision) => self.take_up(decision),
                Step::Unfinished => {}
                Step::Settled => return true,
            }
            if self.engine.effort().looks >= looks_end {
                break;
            }
        }
        self.unfinished = true;
        false
    }

    /// Goes on with what was decided; gives the pods whose decision was taken back.
    fn bind(&mut self, now_ms: i64, effects: &mut Vec<Effect>) -> Vec<Arc<str>> {
        let known = (&self.pods, &self.refusals);
        let withdrawn = self.bindings.effects(now_ms, &self.settings, known, effects);
        withdrawn.iter().for_each(|uid| self.engine.undo(uid));
        withdrawn
    }

    /// Decides nothing more, and says what is to be done about what is under way.
    pub fn wind_up(&mut self, now_ms: i64) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.bind(now_ms, &mut effects);
        effects
    }

    /// The pods that are on a node, as fingerprints count them.
    pub fn residents(&self, node: &str) -> Residents {
        self.pods.residents(node)
    }

    /// When there is something to do even if nothing happens.
    pub fn next_turn_ms(&self, now_ms: i64) -> Option<i64> {
        let at_once = self.unfinished.then_some(now_ms);
        let times = [
            self.bindings.next_ms(),
            self.refusals.next_ms(),
            self.telling.next_ms(),
            self.fencing.next_ms(),
            at_once,
        ];
        times.into_iter().flatten().min()
    }

    fn take_up(&mut self, decision: Decision) {
        match decision {
            Decision::Bind(binding) => self.order(binding),
            Decision::BindAll(GangBinding { bindings, .. }) => {
                bindings.into_iter().for_each(|binding| self.order(binding));
            }
            Decision::Preempt(PodPreemption { pod, node, victims, displaced, .. }) => {
                self.tally.preemptions += 1;
                self.evict(&victims, Some(&pod), Evictions::PREEMPTED);
                self.telling.nominate(&pod, Some(node));
                displaced.iter().for_each(|pod| self.telling.nominate(pod, None));
                self.telling.explain(&pod);
            }
            Decision::Reserve(GangReservation { places, victims, displaced, .. }) => {
                let waiting = places.first().map(|(pod, _)| pod.clone());
                self.tally.preemptions += u64::from(!victims.is_empty());
                self.evict(&victims, waiting.as_ref(), Evictions::PREEMPTED);
                for (pod, node) in places {
                    self.telling.nominate(&pod, Some(node));
                }
                displaced.iter().for_each(|pod| self.telling.nominate(pod, None));
                if let Some(pod) = waiting {
                    self.telling.explain(&pod);
                    self.explain_gang(&pod);
                }
            }
            Decision::Disband(GangDisbandment { pods, .. }) => {
                self.evict(&pods, None, Evictions::DISBANDED);
            }
            Decision::Hold { pod, .. } => {
                self.tally.holds += 1;
                self.telling.explain(&pod);
                self.explain_gang(&pod);
            }
            Decision::Wait { pod } => {
                self.tally.waits += 1;
                self.telling.explain(&pod);
                self.explain_gang(&pod);
            }
        }
    }

    fn order(&mut self, binding: Binding) {
        let Some(pod) = self.pods.get(&binding.pod) else {
            // It is gone, and the engine has not heard: it will.
            return;
        };
        self.tally.binds += 1;
        self.telling.placed(&binding.pod);
        let volumes = self.engine.delayed_volumes(&binding.pod, &binding.node);
        self.bindings.add(binding, volumes, &pod.object);
    }

    fn evict(&mut self, victims: &[Arc<str>], waiting: Option<&Arc<str>>, why: &'static str) {
        let guarded =
            if waiting.is_some() { self.engine.guarded(victims) } else { BTreeSet::new() };
        for victim in victims {
            if let Some(pod) = self.pods.get(victim) {
                self.evictions.add(pod.reference(), waiting.cloned(), why, &guarded);
            }
        }
    }

    /// Explains a few pods for which nothing could be done, and gives what to write about them. An explanation can
    /// take as long as many decisions: the caller looks for news before each call, and carries out the
    /// effects of a turn first.
    pub fn tell_some(&mut self, now_ms: i64) -> Vec<Effect> {
        self.explained_at_ms = now_ms;
        let mut effects = Vec::new();
        let namespace_of = |uid: &str| Some(self.pods.get(uid)?.object.spec.namespace.clone());
        self.telling.file(namespace_of);
        let mut surveys = 0;
        for _ in 0..EXPLAINED_MAX {
            if surveys >= self.settings.surveys_max {
                break;
            }
            let Some(uid) = self.telling.next(&self.settings) else { break };
            let Some(pod) = self.pods.get(&uid) else { continue };
            if pod.object.node.is_some() || self.bindings.has(&uid) {
                continue;
            }
            let alike = (Refusals::template(&pod.object), self.engine.is_held(&uid));
            let excluded = self.refusals.told(&pod.object);
            let said = pod.invalid.as_ref().map(telling::invalid);
            let said = said.or_else(|| self.telling.remembered(alike, now_ms)).or_else(|| {
                surveys += 1;
                let explanation = self.engine.explain(&uid, now_ms)?;
                let namespace = &pod.object.spec.namespace;
                let said = telling::condition(explanation, namespace, &excluded)?;
                self.telling.remember(alike, said.clone(), now_ms);
                Some(said)
            });
            if let Some(told) = self.telling.statement(pod, said, now_ms, &self.settings) {
                effects.push(Effect::Tell(told));
            }
        }
        while let Some(told) = self.telling.next_record(now_ms, &self.settings) {
            effects.push(Effect::Tell(told));
        }
        effects
    }

    /// What there is to say about a pod.
    pub fn explain(&mut self, uid: &str, now_ms: i64) -> Option<Explanation> {
        self.engine.explain(uid, now_ms)
    }
}
