//! The scheduler without the network: updates in, effects out.
//!
//! It owns the engine and what is in flight: bindings from decision to confirmation, evictions, pod statuses, and
//! what kubelets rejected. Every answer of the API, and every missing one, is an update or a completion. The core
//! never assumes that a call succeeded, except that a decision counts in the engine until the opposite is
//! known. It has no clock: time is an argument.

mod bindings;
mod claims;
mod effect;
mod evictions;
mod fencing;
mod pods;
mod rejections;
mod telling;
#[cfg(test)]
mod tests;
mod tombstones;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use berth_engine::decision::{
    Binding, CancelledEvictions, Decision, GangBinding, GangDisbandment, GangReservation,
    PodPreemption, Step,
};
use berth_engine::event::Event;
use berth_engine::{Config, Engine};
use berth_kubelet::NodeTopology;
use berth_model::dra::claim::Claim;
use berth_model::policy::Quota;
use berth_model::spec::{Phase, PodSpec};
use berth_model::workload::ClassRules;

pub use self::bindings::{BindOrder, BindOutcome};
pub use self::effect::{Condition, Effect, EventNote, Eviction, SeenPod, StatusUpdate};
pub use self::evictions::EvictOutcome;
pub use self::fencing::UNFENCED_LISTED_MAX;
pub(crate) use self::pods::Pods;
pub use self::pods::Residents;
pub use self::telling::{HELD, INVALID, UNSCHEDULABLE};

use self::bindings::Bindings;
use self::claims::Claims;
use self::evictions::Evictions;
use self::fencing::Fencing;
use self::rejections::Rejections;
use self::telling::Telling;

/// Pods explained in one turn. Most of them take over the explanation of a similar pod.
const EXPLAINED_MAX: usize = 64;

/// Limits and intervals of the core.
#[derive(Clone, Debug)]
pub struct Settings {
    pub engine: Config,
    /// Classes of pods without the label.
    pub classes: ClassRules,
    /// Unsettled bindings. The Lease must have room for them.
    pub unsettled_max: usize,
    /// Bindings posted concurrently.
    pub posting_max: usize,
    /// Bindings announced in one write of the Lease.
    pub announcing_max: usize,
    /// How long to wait for a watch event before re-reading a pod whose binding outcome is unknown.
    pub reread_after_ms: i64,
    /// Initial backoff of a pod whose binding the API server rejected; doubles each time.
    pub backoff_ms: i64,
    pub backoff_max_ms: i64,
    /// Timeout for preparing a pod's devices and volumes.
    pub prepare_max_ms: i64,
    /// How long the topology of a node is distrusted after its kubelet rejected a pod, unless it is exported again.
    pub distrust_ms: i64,
    /// Pod statuses written concurrently.
    pub status_writes_max: usize,
    /// How long a changed message with the same reason is not written.
    pub status_repeat_ms: i64,
    /// After this time statuses are written even if there are bindings to post.
    pub status_delay_max_ms: i64,
    /// Steps of the engine per turn. Updates are applied between turns.
    pub steps_max: usize,
    /// Nodes that the engine visits in a turn before it takes no further step.
    pub node_visits_max: u64,
    /// Pods per turn that are explained by evaluating every node.
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
            reread_after_ms: 2_000,
            backoff_ms: 1_000,
            backoff_max_ms: 300_000,
            prepare_max_ms: 600_000,
            distrust_ms: 300_000,
            status_writes_max: 8,
            status_repeat_ms: 10_000,
            status_delay_max_ms: 1_000,
            steps_max: 512,
            node_visits_max: 65_536,
            surveys_max: 1,
        }
    }
}

/// A change of the cluster.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "moved once; a box for each would cost more")]
pub enum Update {
    Pod(Box<SeenPod>),
    /// By UID.
    PodGone(Arc<str>),
    Topology {
        node: Arc<str>,
        /// `None` if it is unknown.
        topology: Option<Arc<NodeTopology>>,
        /// Whether the exporter has seen the pods of the node, so that the topology can be trusted again.
        fresh: bool,
    },
    Claim {
        claim: Box<Claim>,
        /// Resource version; larger is later, 0 is unknown.
        version: u64,
    },
    Other(Event),
}

/// The outcome of an effect. A flag says whether it succeeded.
#[derive(Clone, Debug)]
pub enum Completion {
    Announced,
    Bound(Arc<str>, BindOutcome),
    Evicted(Arc<str>, EvictOutcome),
    StatusWritten(Arc<str>, bool),
    Fenced(Arc<str>, bool),
}

/// Counts since the last call of [`Core::take_tally`], for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub binds: u64,
    pub preemptions: u64,
    pub waits: u64,
    pub holds: u64,
    /// For each confirmed binding, the time since the pod's creation.
    pub bound_after_ms: Vec<i64>,
    /// Pods bound by Berth that a kubelet rejected: the reason, and whether admission had been predicted.
    pub rejections: Vec<(Arc<str>, bool)>,
    /// Updates older than what was known.
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
    /// The latest update of each pod whose claims are being written. It is applied afterwards, because the
    /// allocated devices are unknown until then.
    deferred: HashMap<Arc<str>, Update>,
    evictions: Evictions,
    fencing: Fencing,
    rejections: Rejections,
    telling: Telling,
    tally: Tally,
    /// By namespace and name.
    quotas: BTreeMap<(Arc<str>, Arc<str>), Quota>,
    /// When pods were last explained, or nothing was left to explain or decide.
    explained_at_ms: i64,
    /// Whether the last turn ended before the engine had decided all it can.
    unfinished: bool,
    /// Whether the last turn left nothing to decide.
    idle: bool,
}

impl Core {
    pub fn new(settings: Settings) -> Self {
        let mut engine = Engine::new(settings.engine);
        engine.apply(Event::Classes(settings.classes.clone()));
        Self {
            engine,
            pods: Pods::default(),
            claims: Claims::default(),
            bindings: Bindings::default(),
            deferred: HashMap::new(),
            evictions: Evictions::default(),
            fencing: Fencing::default(),
            rejections: Rejections::default(),
            telling: Telling::default(),
            tally: Tally::default(),
            quotas: BTreeMap::new(),
            explained_at_ms: 0,
            unfinished: false,
            idle: false,
            settings,
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, and beside it what reports need. Whatever is tried on the engine has to be rolled back.
    pub(crate) fn inspected(&mut self) -> (&mut Engine, &Pods, &ClassRules) {
        (&mut self.engine, &self.pods, &self.settings.classes)
    }

    pub fn pod(&self, uid: &str) -> Option<&SeenPod> {
        self.pods.get(uid)
    }

    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Bindings decided and not settled, except those whose devices or volumes are being prepared.
    pub fn unsettled(&self) -> usize {
        self.bindings.len()
    }

    pub fn apply(&mut self, update: Update, now_ms: i64) {
        match update {
            Update::Pod(seen) if self.bindings.is_writing_claims(&seen.object.uid) => {
                self.defer(seen.object.uid.clone(), Update::Pod(seen));
            }
            Update::PodGone(uid) if self.bindings.is_writing_claims(&uid) => {
                self.defer(uid.clone(), Update::PodGone(uid));
            }
            Update::Pod(seen) => self.apply_pod(*seen, now_ms),
            Update::PodGone(uid) => self.forget_pod(&uid, now_ms),
            Update::Claim { claim, version } => {
                if self.claims.see(&claim, version) {
                    self.engine.apply(Event::DeviceClaim(*claim));
                }
            }
            Update::Topology { node, topology, fresh } => {
                if fresh {
                    self.trust(&node, now_ms);
                }
                self.rejections.set_topology(&node, topology.clone());
                let topology = topology.filter(|_| !self.rejections.is_distrusted(&node));
                self.engine.apply(Event::Topology { node, topology });
            }
            Update::Other(event) => {
                match &event {
                    Event::Node(node) if self.rejections.has_changed(node) => {
                        self.trust(&node.name.clone(), now_ms)
                    }
                    Event::NodeGone(node) => self.rejections.forget_node(node),
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

    fn defer(&mut self, uid: Arc<str>, update: Update) {
        let is_older = match (self.deferred.get(&uid), &update) {
            (Some(Update::PodGone(_)), _) => true,
            (Some(Update::Pod(deferred)), Update::Pod(seen)) => deferred.version > seen.version,
            _ => false,
        };
        if !is_older {
            self.deferred.insert(uid, update);
        }
    }

    fn apply_pod(&mut self, mut seen: SeenPod, now_ms: i64) {
        let uid = seen.object.uid.clone();
        self.keep_holdings(&mut seen);
        let before = self.pods.see(&seen);
        // A pod that is gone by now counts as well, for others of its template.
        if let (Some(reason), Some(node)) = (&seen.rejected, &seen.object.node)
            && self.rejections.is_new(&uid)
        {
            let witnessed = before.as_ref().is_some_and(Option::is_some);
            self.note_rejection(&seen, (reason.clone(), witnessed), &node.clone(), now_ms);
        }
        let Some(before) = before else {
            self.tally.stale += 1;
            return;
        };
        let is_new = before.is_none();
        let had_ended =
            before.as_ref().is_some_and(|before| before.object.phase == Phase::Finished);
        if seen.object.phase == Phase::Finished {
            // Watches repeat events: a pod leaves its node only once.
            if !had_ended {
                let ended = Some(seen.version).filter(|_| seen.rejected.is_none());
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
            self.engine.apply(Event::Pod(self.rejections.excluding(&seen.object)));
            if let Some(invalid) =
                seen.invalid.as_ref().filter(|now| known_invalid.as_ref() != Some(now))
            {
                let note = format!(
                    "Invalid request ignored: {invalid}. A GPU share counts as a whole GPU."
                );
                self.telling.record(seen.reference(), true, "InvalidRequest", note);
            }
        } else if seen.ours {
            self.offer(&uid);
        }
        if is_new {
            // Nothing is decided about an incomplete gang, but its members get a status.
            self.explain_gang(&uid);
        }
    }

    /// Gives a pod to the engine, unless it backs off or has to be fenced first.
    fn offer(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.pods.get(uid) else { return };
        if pod.invalid.is_some() {
            self.telling.explain(uid);
        }
        if self.bindings.rests(uid) || self.fencing.contains(uid) {
            return;
        }
        if pod.invalid.is_none() {
            self.engine.apply(Event::Pod(self.rejections.excluding(&pod.object)));
        } else if !self.bindings.has(uid) {
            // It may have been valid before. While a binding is in flight, its resources stay taken.
            self.engine.apply(Event::PodGone(uid.clone()));
        }
    }

    /// What a pod holds is fixed when it is bound, but its owner can still change the annotations that state it.
    /// Their values at binding time count for as long as the pod is bound.
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

    /// Explains all pending members of the pod's gang.
    fn explain_gang(&mut self, uid: &str) {
        let Some(pod) = self.pods.get(uid) else { return };
        let mates = self.pods.mates(&pod.object);
        self.explain_again(&mates);
    }

    /// Explains pods even if similar pods were explained a moment ago.
    fn explain_again(&mut self, pods: &[Arc<str>]) {
        for uid in pods {
            if let Some(pod) = self.pods.get(uid) {
                self.telling.reconsider(Rejections::template(&pod.object));
                self.telling.explain(uid);
            }
        }
    }

    /// The namespace whose quota an event changes. Most events only change its usage, which the engine counts itself.
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

    /// A quota has changed: other pods may be held now.
    fn explain_namespace(&mut self, namespace: &str) {
        let there = |pod: &&SeenPod| &*pod.object.spec.namespace == namespace;
        let waiting = self.pods.waiting().filter(there).map(|pod| pod.object.uid.clone());
        let waiting: Vec<Arc<str>> = waiting.collect();
        self.explain_again(&waiting);
    }

    fn forget_pod(&mut self, uid: &Arc<str>, now_ms: i64) {
        if self.pods.get(uid).is_some_and(|pod| pod.object.phase != Phase::Finished) {
            // The version of the deletion is unknown: later than all known ones.
            self.note_departure(uid, Some(u64::MAX), now_ms);
        }
        self.pods.remove(uid);
        self.bindings.drop_pod(uid);
        self.unfence(uid);
        self.evictions.forget(uid);
        self.telling.forget(uid);
        self.engine.apply(Event::PodGone(uid.clone()));
    }

    /// A node changes when a pod leaves that ran there. `version` is that of the pod's end; `None` if a kubelet
    /// rejected it.
    fn note_departure(&mut self, uid: &Arc<str>, version: Option<u64>, now_ms: i64) {
        let Some(pod) = self.pods.get(uid).filter(|pod| pod.rejected.is_none()) else { return };
        let Some((node, version)) = pod.object.node.clone().zip(version) else { return };
        // Whether a pod ran that was not seen running is unknown: watches omit short-lived states, and a pod that
        // was re-read is known before earlier watch events arrive.
        let since = if pod.object.started_at_ms.is_some() { version } else { 0 };
        let templates = self.rejections.left(&node, since, (now_ms, self.settings.distrust_ms));
        self.reapply_like(&templates);
    }

    fn note_rejection(
        &mut self,
        seen: &SeenPod,
        (reason, witnessed): (Arc<str>, bool),
        node: &Arc<str>,
        now_ms: i64,
    ) {
        // Rejections before this term were counted by the previous leader.
        if let Some(predicted) = self.bindings.was_predicted(&seen.object.uid) {
            self.tally.rejections.push((reason.clone(), predicted));
        }
        let until_ms = now_ms + self.settings.distrust_ms;
        self.rejections.add(seen, (node, reason), witnessed, (now_ms, until_ms));
        self.engine.apply(Event::Topology { node: node.clone(), topology: None });
        self.reapply_like(&[Rejections::template(&seen.object)]);
    }

    /// A node has changed: templates that its kubelet rejected may be bound there again.
    fn reconsider(&mut self, node: &Arc<str>, now_ms: i64) {
        let templates = self.rejections.lift(node, now_ms);
        self.reapply_like(&templates);
    }

    /// Trusts the topology of a node again.
    fn believe(&mut self, node: &Arc<str>) {
        if let Some(topology) = self.rejections.trust(node) {
            self.engine.apply(Event::Topology { node: node.clone(), topology });
        }
    }

    /// A node or its topology has changed.
    fn trust(&mut self, node: &Arc<str>, now_ms: i64) {
        self.believe(node);
        self.reconsider(node, now_ms);
    }

    /// Pending pods of these templates may go to other nodes than before.
    fn reapply_like(&mut self, templates: &[u64]) {
        if templates.is_empty() {
            return;
        }
        let mut alike: Vec<Arc<str>> = self
            .pods
            .waiting()
            .filter(|pod| templates.contains(&Rejections::template(&pod.object)))
            .filter(|pod| !self.bindings.has(&pod.object.uid))
            .map(|pod| pod.object.uid.clone())
            .collect();
        // Deterministic order.
        alike.sort_unstable();
        alike.iter().for_each(|uid| self.offer(uid));
    }

    pub fn settle(&mut self, completion: Completion, now_ms: i64) {
        match completion {
            Completion::Announced => self.bindings.announced(),
            Completion::Bound(uid, outcome) => {
                let known = self.pods.get(&uid).map_or(0, |pod| pod.version);
                let verdict =
                    self.bindings.answered(&uid, outcome, (now_ms, known), &self.settings);
                self.follow(&uid, verdict, now_ms);
                if let Some(update) = self.deferred.remove(&uid) {
                    self.apply(update, now_ms);
                }
            }
            Completion::Evicted(uid, EvictOutcome::Going) => self.evictions.forget(&uid),
            Completion::Evicted(uid, EvictOutcome::Blocked | EvictOutcome::Unknown) => {
                for victim in self.evictions.failed(&uid) {
                    self.spare(&victim, now_ms);
                }
            }
            Completion::StatusWritten(uid, written) => {
                self.telling.written(&uid, written, now_ms, &self.settings);
            }
            Completion::Fenced(uid, true) if self.fencing.contains(&uid) => {
                self.unfence(&uid);
                self.offer(&uid);
            }
            Completion::Fenced(uid, is_fenced) => {
                match self.bindings.fenced(&uid, is_fenced, now_ms, &self.settings) {
                    Some(verdict) => self.follow(&uid, verdict, now_ms),
                    None if !is_fenced => self.fencing.failed(&uid, now_ms),
                    None => {}
                }
            }
        }
    }

    /// A victim stays. Pods that were to take its resources back off, then look for another node.
    fn spare(&mut self, victim: &Arc<str>, now_ms: i64) {
        let CancelledEvictions { pending, staying } = self.engine.cancel_eviction(victim);
        staying.iter().for_each(|uid| self.evictions.cancel(uid));
        for uid in pending {
            self.telling.nominate(&uid, None);
            self.bindings.back_off_shortly(&uid, now_ms, &self.settings);
            self.engine.apply(Event::PodGone(uid));
        }
    }

    /// Decides what can be decided now. Statuses of pods come from [`explain_some`](Self::explain_some).
    pub fn turn(&mut self, now_ms: i64) -> Vec<Effect> {
        for node in self.rejections.expired(now_ms) {
            self.believe(&node);
        }
        let faded = self.rejections.fade(now_ms);
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

    fn has_leisure(&self) -> bool {
        self.idle && self.bindings.is_calm()
    }

    /// Whether to call [`explain_some`](Self::explain_some): there is a status to write, and either nothing else to do
    /// or it has been delayed for too long.
    pub fn can_explain(&self, now_ms: i64) -> bool {
        let is_overdue = now_ms - self.explained_at_ms >= self.settings.status_delay_max_ms;
        (self.has_leisure() || is_overdue) && self.telling.is_due(&self.settings)
    }

    /// Decides within the limits of a turn; whether nothing is left to decide.
    fn decide(&mut self, now_ms: i64) -> bool {
        self.unfinished = false;
        let looks_end = self.engine.effort().looks + self.settings.node_visits_max;
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

    /// Starts bindings that were decided. Returns the pods whose decision was undone.
    fn bind(&mut self, now_ms: i64, effects: &mut Vec<Effect>) -> Vec<Arc<str>> {
        let known = (&self.pods, &self.rejections);
        let withdrawn = self.bindings.effects(now_ms, &self.settings, known, effects);
        withdrawn.iter().for_each(|uid| self.engine.undo(uid));
        withdrawn
    }

    /// Posts what is decided, without deciding anything more.
    pub fn drain(&mut self, now_ms: i64) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.bind(now_ms, &mut effects);
        effects
    }

    /// Pods on a node, as fingerprints of exporters count them.
    pub fn residents(&self, node: &str) -> Residents {
        self.pods.residents(node)
    }

    /// When the next turn is due without any update.
    pub fn next_turn_ms(&self, now_ms: i64) -> Option<i64> {
        let at_once = self.unfinished.then_some(now_ms);
        let times = [
            self.bindings.next_ms(),
            self.rejections.next_ms(),
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
            // The pod is gone, and the engine does not know yet.
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

    /// Explains a few pending pods. An explanation can take as long as many decisions: the caller applies updates
    /// and carries out the effects of a turn before each call.
    pub fn explain_some(&mut self, now_ms: i64) -> Vec<Effect> {
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
            let alike = (Rejections::template(&pod.object), self.engine.is_held(&uid));
            let excluded = self.rejections.note(&pod.object);
            let invalid = pod.invalid.as_ref().map(telling::invalid);
            let recent = invalid.or_else(|| self.telling.remembered(alike, now_ms));
            let condition = recent.or_else(|| {
                surveys += 1;
                let explanation = self.engine.explain(&uid, now_ms)?;
                let namespace = &pod.object.spec.namespace;
                let condition = telling::condition(explanation, namespace, &excluded)?;
                self.telling.remember(alike, condition.clone(), now_ms);
                Some(condition)
            });
            let update = self.telling.status(pod, condition, now_ms, &self.settings);
            effects.extend(update.map(Effect::WriteStatus));
        }
        while let Some(update) = self.telling.next_record(now_ms, &self.settings) {
            effects.push(Effect::WriteStatus(update));
        }
        effects
    }
}
