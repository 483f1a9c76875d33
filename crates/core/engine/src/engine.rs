//! The engine: events in, decisions out. Time is an argument.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use berth_dra::Placement;
use berth_kubelet::Kubelet;
use berth_model::alignment::Alignment;
use berth_model::dra::claim::Claim;
use berth_model::node::Node;
use berth_model::spec::{PodObject, PodSpec, PreemptionPolicy};
use berth_tenancy::quota::Expiry;
use berth_tenancy::share::{Account, LedgerChanges, TeamError};

use crate::changes::Cursor;
use crate::class::Class;
use crate::config::{Config, Profile};
use crate::decision::{Binding, CancelledEvictions, Decision, Effort, HeldBy, PodPreemption, Step};
use crate::devices::{Devices, Order};
use crate::event::Event;
use crate::explain::{self, Explanation};
use crate::filter::{IncomingPod, Inquiry};
use crate::gang::{Gangs, Reservation};
use crate::headroom::ReservedHeadroom;
use crate::kube::preempt::Evictions;
use crate::kube::{self, Verdicts};
use crate::placement::gpu_values::GpuValues;
use crate::placement::headroom;
use crate::placement::preemption::PreemptionSearch;
use crate::placement::rank::{Ranking, Rankings};
use crate::placement::room::{NumaFit, Room, View};
use crate::placement::select::{allows, select};
use crate::placement::victims::Preemptor;
use crate::queue::Queue;
use crate::rechecks::Trigger;
use crate::shares::Grant;
use crate::state::headroom::Places;
use crate::state::{Checkpoint, Place, State};
use crate::table::{Bits, ClassIx, NodeIx, PodIx};
use crate::verdict::Diagnosis;

#[derive(Clone, Debug, Default)]
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) state: State,
    pub(crate) queue: Queue,
    pub(crate) gangs: Gangs,
    saved: Vec<SavedState>,
    pub(crate) rankings: Rankings,
    pub(crate) preemption: PreemptionSearch,
    /// Position in the log of changes up to which parked pods were woken.
    pub(crate) woken: Cursor,
    pub(crate) woken_epoch: u64,
    pub(crate) woken_at_ms: i64,
    /// Rolled-back changes, which wake no pods.
    pub(crate) undone: Vec<Range<Cursor>>,
    pub(crate) effort: Effort,
    gpu_value_generation: u64,
}

/// What a rollback restores beside the state.
#[derive(Clone, Debug)]
struct SavedState {
    queue: Queue,
    gangs: Gangs,
    woken: Cursor,
    woken_epoch: u64,
    woken_at_ms: i64,
    at: Cursor,
    epoch: u64,
    undone: Vec<Range<Cursor>>,
    gpu_values: GpuValues,
    devices: Devices,
    reservation: Option<Arc<Reservation>>,
    /// Pods whose quota state changed, not yet processed.
    by_quota: BTreeSet<Arc<str>>,
    /// Pods that have yet to stop counting against quotas.
    expiring: BTreeSet<Expiry>,
    places: Places,
    of_teams: LedgerChanges,
}

pub(crate) struct FoundPlace {
    pub(crate) node: NodeIx,
    pub(crate) grant: Option<Grant>,
    pub(crate) fit: NumaFit,
    pub(crate) devices: Option<Box<Placement>>,
}

impl Engine {
    pub fn new(config: impl Into<Config>) -> Self {
        let config = config.into();
        let rankings = Rankings::new(config.unknown_topology);
        // kube-scheduler orders by priority and age only.
        let queue = Queue::new(config.profile == Profile::Berth);
        let mut engine = Self { config, queue, rankings, ..Self::default() };
        // kube-scheduler waits for victims without limit.
        engine.state.eviction_max_wait_ms =
            (config.profile == Profile::Berth).then_some(config.eviction_max_wait_ms);
        engine
    }

    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Pod(pod) => {
                self.note_pod(&pod);
                let uid = pod.uid.clone();
                let before = self.state.pod_by_uid(&uid);
                self.state.apply(Event::Pod(pod));
                match self.state.pod_by_uid(&uid) {
                    Some(_) => self.enqueue(&uid),
                    // The pod has finished.
                    None => before.into_iter().for_each(|at| self.queue.remove(at)),
                }
            }
            Event::PodGone(uid) => {
                self.note_gone(&uid);
                if let Some(at) = self.state.pod_by_uid(&uid) {
                    self.queue.remove(at);
                }
                self.state.apply(Event::PodGone(uid));
            }
            // kube-scheduler has no teams.
            Event::Team(_) | Event::TeamGone(_) if self.config.profile != Profile::Berth => {}
            Event::Team(_) | Event::TeamGone(_) => {
                self.state.apply(event);
                self.renumber();
            }
            Event::Gang(gang) => {
                self.note_gang(&gang.namespace, &gang.name);
                self.state.apply(Event::Gang(gang));
            }
            Event::GangGone(namespace, name) => {
                self.note_gang(&namespace, &name);
                self.state.apply(Event::GangGone(namespace, name));
            }
            other => self.state.apply(other),
        }
    }

    fn renumber(&mut self) {
        let state = &self.state;
        self.queue.renumber(state.tenancy.has_teams(), |pod| {
            let class = state.pods[pod].class;
            (class, state.class(class).team_charge.team)
        });
    }

    /// Queues a pod, or removes it from the queue, according to its state.
    fn enqueue(&mut self, uid: &Arc<str>) {
        let Some(at) = self.state.pod_by_uid(uid) else { return };
        let class = self.state.pods[at].class;
        if !self.state.is_pending(at) {
            self.queue.remove(at);
        } else if self.state.class(class).spec.gang.is_none() || !self.schedules_gangs() {
            self.line_up(at);
        } else if !self.queue.contains_as(at, class) {
            // Its class changed, and the new class has not been evaluated.
            self.queue.remove(at);
        }
    }

    /// Queues a pod, on its own or for its gang.
    pub(crate) fn line_up(&mut self, at: PodIx) {
        let class = self.state.pods[at].class;
        let row = self.state.class(class);
        let (team, namespace) = (row.team_charge.team, &row.spec.namespace);
        self.queue.add(at, class, team, namespace, self.state.queue_turn(at));
    }

    pub(crate) fn park_held(&mut self, at: PodIx) {
        self.queue.park(at);
        self.queue.hold(self.state.pods[at].class);
    }

    pub fn checkpoint(&mut self) -> Checkpoint {
        self.saved.push(SavedState {
            queue: self.queue.clone(),
            gangs: self.gangs.clone(),
            woken: self.woken,
            woken_epoch: self.woken_epoch,
            woken_at_ms: self.woken_at_ms,
            at: self.state.changes.now(),
            epoch: self.state.changes.epoch,
            undone: self.undone.clone(),
            gpu_values: self.state.gpu_values.clone(),
            devices: self.state.devices.clone(),
            reservation: self.state.reservation.clone(),
            by_quota: self.state.tenancy.books.changed().clone(),
            expiring: self.state.tenancy.books.expiring().clone(),
            places: self.state.headrooms.places(),
            of_teams: self.state.tenancy.ledger.changes().clone(),
        });
        self.state.checkpoint()
    }

    pub fn commit(&mut self, checkpoint: Checkpoint) {
        self.saved.pop();
        self.state.commit(checkpoint);
    }

    /// Restores the checkpoint. Checkpoints are rolled back last first.
    pub fn rollback(&mut self, checkpoint: Checkpoint) {
        self.state.rollback(checkpoint);
        if let Some(saved) = self.saved.pop() {
            self.state.restore_places(&saved.places);
            // Rolled-back changes wake no pods.
            self.state.restore_gpu_values(saved.gpu_values);
            self.state.restore_devices(saved.devices);
            self.state.reservation = saved.reservation;
            self.state.touch_overdue(saved.woken_at_ms, self.woken_at_ms);
            self.woken_at_ms = saved.woken_at_ms;
            self.undone = saved.undone;
            self.undone.push(saved.at..self.state.changes.now());
            self.woken = saved.woken;
            self.woken_epoch = if saved.woken_epoch == saved.epoch {
                self.state.changes.epoch
            } else {
                saved.woken_epoch
            };
            self.gangs = saved.gangs;
            self.queue = saved.queue;
            self.queue.rechecks.invalidate_tallies();
            self.state.tenancy.books.set_expiring(saved.expiring);
            self.state.tenancy.books.set_changed(saved.by_quota);
            self.state.tenancy.ledger.restore_changes(saved.of_teams);
            self.renumber();
        }
    }

    pub fn node_of(&self, uid: &str) -> Option<&Arc<str>> {
        let at = self.state.pod_by_uid(uid)?;
        match &self.state.pods[at].place {
            Place::Bound(node, _) => Some(node),
            _ => None,
        }
    }

    pub fn claim(&self, namespace: &str, name: &str) -> Option<&Claim> {
        self.state.devices.claim(namespace, name)
    }

    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        Some(&self.state.nodes[self.state.node_by_name(name)?].object)
    }

    /// The kubelet model of a node, and whether it has not been contradicted; `None` if the
    /// topology is unknown.
    pub fn kubelet(&self, node: &str) -> Option<(&Kubelet, bool)> {
        let mirror = self.state.nodes[self.state.node_by_name(node)?].mirror.as_deref()?;
        Some((mirror.kubelet(), mirror.is_trusted()))
    }

    pub fn queued(&self) -> (usize, usize) {
        let (all, parked) = self.queue.len();
        let unqueued_members = self.unqueued_members();
        (all + unqueued_members, parked + unqueued_members)
    }

    /// Marks the changes since `from` as rolled back.
    pub(crate) fn forget_changes(&mut self, from: Cursor) {
        let to = self.state.changes.now();
        match self.undone.last_mut().filter(|last| last.end == from) {
            Some(last) => last.end = to,
            None => self.undone.push(from..to),
        }
    }

    pub fn held(&self) -> usize {
        self.queue.held_pods + self.held_members()
    }

    pub fn is_held(&self, uid: &str) -> bool {
        self.state.pod_by_uid(uid).is_some_and(|at| self.held_by(at).is_some())
    }

    pub fn team_of(&self, spec: &PodSpec) -> Option<&Arc<str>> {
        let ledger = &self.state.tenancy.ledger;
        Some(ledger.name(self.state.team_of(spec))).filter(|name| !name.is_empty())
    }

    pub fn teams(&self) -> impl Iterator<Item = &Arc<str>> {
        self.state.teams().keys()
    }

    pub fn team_problems(&self) -> Vec<TeamError> {
        self.state.team_problems()
    }

    pub fn accounts(&self) -> Vec<Account> {
        self.state.accounts()
    }

    /// Reserved and missing headroom as of the last decision, the strongest claim first.
    pub fn headroom(&self) -> Vec<ReservedHeadroom> {
        self.state.reserved_headroom()
    }

    pub fn decide(&mut self, now_ms: i64) -> Option<Decision> {
        loop {
            match self.step(now_ms) {
                Step::Decided(decision) => return Some(decision),
                Step::Unfinished => {}
                Step::Settled => return None,
            }
        }
    }

    /// Takes the next decision after a bounded number of rechecks, so that a caller can apply
    /// events in between, however many pods are parked.
    pub fn step(&mut self, now_ms: i64) -> Step {
        self.state.now_ms = now_ms;
        self.update_gpu_values();
        self.place_headroom();
        self.queue_gangs(now_ms);
        self.wake(now_ms);
        self.recheck_held(now_ms);
        self.recheck_some(now_ms);
        let mut is_changed = false;
        loop {
            let state = &self.state;
            let Some(at) = self.queue.next(|pod| state.turn(pod)) else {
                if !self.queue.rechecks.is_settled() {
                    return Step::Unfinished;
                }
                // Nodes are reserved once all pods have been tried, including for what gangs gave
                // back.
                if !std::mem::take(&mut is_changed) {
                    return self.reserve_nodes(now_ms).map_or(Step::Settled, Step::Decided);
                }
                self.wake(now_ms);
                self.recheck_some(now_ms);
                continue;
            };
            is_changed = true;
            let decision = match self.led_by(at) {
                Some(gang) => self.decide_gang(&gang, at, now_ms),
                None => Some(self.decide_pod(at, now_ms)),
            };
            if let Some(decision) = decision {
                return Step::Decided(decision);
            }
        }
    }

    pub fn effort(&self) -> Effort {
        let Effort { rechecks, looks } = self.effort;
        Effort { rechecks, looks: looks + self.rankings.looks }
    }

    fn decide_pod(&mut self, at: PodIx, now_ms: i64) -> Decision {
        self.record_arrival(at);
        if let Some(by) = self.held_by(at) {
            self.park_held(at);
            if matches!(self.state.pods[at].place, Place::Nominated(..)) {
                self.state.nominate(at, None);
            }
            return Decision::Hold { pod: self.state.pods[at].uid.clone(), by };
        }
        if let Some(found) = self.place_near(at) {
            return self.bind(at, found);
        }
        self.queue.park(at);
        if matches!(self.state.pods[at].place, Place::Nominated(..)) && !self.awaits_room(at) {
            // Its nomination did not lead to a place.
            self.state.nominate(at, None);
        }
        let near = self.gang_nodes(at).filter(|(_, required)| *required);
        if let Some(evictions) = self.evictions(at, now_ms, near.as_ref().map(|(nodes, _)| nodes)) {
            // The others of its class have not been evaluated.
            self.set_trigger(at, Trigger::Anything);
            return self.preempt(at, evictions, now_ms);
        }
        let cut_short = self.preemption.cut_short;
        self.set_trigger(at, if cut_short { Trigger::Anything } else { self.trigger_of(at) });
        Decision::Wait { pod: self.state.pods[at].uid.clone() }
    }

    pub(crate) fn place_near(&mut self, at: PodIx) -> Option<FoundPlace> {
        let Some((nodes, required)) = self.gang_nodes(at) else { return self.place(at, None) };
        let found = self.place(at, Some(&nodes));
        if found.is_none() && !required { self.place(at, None) } else { found }
    }

    fn update_gpu_values(&mut self) {
        if self.config.profile == Profile::Berth && self.state.gpu_values.take_fleet_change() {
            self.gpu_value_generation += 1;
            self.state.rebuild_gpu_values(self.gpu_value_generation);
        }
    }

    /// Counts a pod as an arrival when it is evaluated for the first time.
    pub(crate) fn record_arrival(&mut self, at: PodIx) {
        let pod = &self.state.pods[at];
        if pod.counted || self.config.profile != Profile::Berth {
            return;
        }
        let class = pod.class;
        self.state.count_arrival(at);
        let Class { spec, requests, .. } = self.state.class(class);
        let extended =
            |(resource, _): &(_, i64)| self.state.resources.name(*resource).is_extended();
        if spec.gpu.is_none() && !requests.iter().any(extended) {
            return;
        }
        let request = self.rankings.typical_request(&mut self.state, class);
        if self.state.gpu_values.observe(&request) {
            self.gpu_value_generation += 1;
            self.state.rebuild_gpu_values(self.gpu_value_generation);
        }
    }

    /// Takes back a decision that could not be carried out: the pod is pending again.
    pub fn undo(&mut self, uid: &Arc<str>) {
        if let Some(at) = self.state.pod_by_uid(uid)
            && self.state.pods[at].decided
        {
            self.queue.remove(at);
            self.undo_gang(at);
            self.state.undo(at);
            self.enqueue(uid);
        }
    }

    /// Cancels the eviction of a pod. Every pod nominated to its room is scheduled again, and the
    /// victims of those pods stay, too.
    pub fn cancel_eviction(&mut self, victim: &Arc<str>) -> CancelledEvictions {
        let Some(at) =
            self.state.pod_by_uid(victim).filter(|at| self.state.pods[*at].evicted_at_ms.is_some())
        else {
            return CancelledEvictions::default();
        };
        let leaving: Vec<PodIx> = self.state.leaving().collect();
        let pending = self.uids(self.waiting_for_room_of(at));
        pending.iter().for_each(|uid| self.undo(uid));
        self.state.cancel_gang_eviction(at);
        let spared: Vec<PodIx> = leaving
            .into_iter()
            .filter(|pod| self.state.pods[*pod].evicted_at_ms.is_none())
            .collect();
        for pod in &spared {
            if let Some(gang) = self.scheduled_gang(*pod) {
                self.gangs.note(gang);
            }
        }
        CancelledEvictions { pending, staying: self.uids(spared) }
    }

    /// Pods nominated by a decision that a pod is leaving for, and other members of their gangs.
    fn waiting_for_room_of(&self, leaving: PodIx) -> Vec<PodIx> {
        let state = &self.state;
        let waits = |pod: &PodIx| {
            let row = &state.pods[*pod];
            row.decided && matches!(row.place, Place::Nominated(..))
        };
        let node = state.pods[leaving].place.node();
        let nominated = node.into_iter().flat_map(|node| state.nodes[node].nominated.iter());
        let mut waiting: Vec<PodIx> = nominated
            .copied()
            .filter(|pod| waits(pod) && state.making_room(*pod).any(|one| one == leaving))
            .collect();
        let gangs: BTreeSet<_> =
            waiting.iter().filter_map(|pod| self.scheduled_gang(*pod)).collect();
        waiting.extend(gangs.iter().flat_map(|gang| state.gangs.members(gang)).filter(waits));
        waiting
    }

    fn uids(&self, pods: Vec<PodIx>) -> Vec<Arc<str>> {
        let uids: BTreeSet<Arc<str>> =
            pods.into_iter().map(|pod| self.state.pods[pod].uid.clone()).collect();
        uids.into_iter().collect()
    }

    pub(crate) fn bind(&mut self, at: PodIx, found: FoundPlace) -> Decision {
        self.queue.remove(at);
        self.state.bind(at, found.node, found.grant);
        if let Some(placement) = &found.devices {
            self.state.take_devices(at, placement);
        }
        Decision::Bind(self.binding(at, &found))
    }

    pub(crate) fn binding(&self, at: PodIx, found: &FoundPlace) -> Binding {
        Binding {
            pod: self.state.pods[at].uid.clone(),
            node: self.state.nodes[found.node].object.name.clone(),
            gpu_grant: found.grant.map(|grant| self.state.named_grant(grant)),
            devices: found.devices.clone(),
            alignment: found.fit.alignment,
            numa: found.fit.numa,
        }
    }

    fn preempt(&mut self, at: PodIx, evictions: Evictions, now_ms: i64) -> Decision {
        let node = self.state.nodes[evictions.node].object.name.clone();
        for victim in &evictions.victims {
            self.evict(*victim, now_ms);
        }
        // Less important pods nominated to the node must look elsewhere.
        let class = self.state.pods[at].class;
        let mut displaced = self.state.nodes[evictions.node].nominated.to_vec();
        displaced.retain(|pod| *pod != at && !self.state.goes_before(*pod, class, Some(at)));
        let displaced = self.displace(displaced, now_ms);
        self.state.nominate(at, Some(node.clone()));
        let uid = |pod: &PodIx| self.state.pods[*pod].uid.clone();
        Decision::Preempt(PodPreemption {
            pod: uid(&at),
            node,
            victims: evictions.victims.iter().map(uid).collect(),
            budget_violations: evictions.budget_violations,
            displaced,
        })
    }

    /// The victims that disruption budgets may keep, by UID. Evict them first: the other evictions
    /// are pointless if one of these stays.
    pub fn guarded(&self, victims: &[Arc<str>]) -> BTreeSet<Arc<str>> {
        let known = victims.iter().filter_map(|uid| self.state.pod_by_uid(uid));
        let known: Vec<PodIx> = known.collect();
        let (guarded, _) = kube::preempt::split_by_budgets(&self.state, &known);
        guarded.into_iter().map(|pod| self.state.pods[pod].uid.clone()).collect()
    }

    /// Whether pods are leaving the node for a nominated pod, so that it keeps waiting.
    pub(crate) fn awaits_room(&self, at: PodIx) -> bool {
        self.state.making_room(at).next().is_some()
    }

    pub(crate) fn place(&mut self, at: PodIx, within: Option<&Bits>) -> Option<FoundPlace> {
        let class = self.state.pods[at].class;
        match self.config.profile {
            Profile::Berth => self.place_ranked(at, class, within, None),
            Profile::KubeScheduler | Profile::KubeSchedulerPacking => {
                self.state.rules(class);
                self.place_scored(at, class)
            }
        }
    }

    /// Calls `ask` with a pod's inquiry and ranking; `None` if the pod is rejected for the whole
    /// cluster.
    pub(crate) fn with_inquiry<T>(
        &mut self,
        at: PodIx,
        ask: impl FnOnce(&Inquiry<'_>, &mut Ranking) -> T,
    ) -> Option<T> {
        let class = self.state.pods[at].class;
        self.state.rules(class);
        self.rankings.with(&mut self.state, class, |state, ranking, _| {
            let inquiry = Inquiry::new(state, IncomingPod::of(state, at)).ok()?.0;
            Some(ask(&inquiry, ranking))
        })
    }

    /// A place for a pod, on nodes `within`; preferably its nominated node, else `wanted`.
    pub(crate) fn place_ranked(
        &mut self,
        at: PodIx,
        class: ClassIx,
        within: Option<&Bits>,
        wanted: Option<NodeIx>,
    ) -> Option<FoundPlace> {
        self.state.rules(class);
        if !self.may_have_room(at) {
            return None;
        }
        self.rankings.with(&mut self.state, class, |state, ranking, coarse| {
            if ranking.feasible == 0 {
                return None;
            }
            let mut inquiry = Inquiry::new(state, IncomingPod::of(state, at)).ok()?.0;
            let nominated = match state.pods[at].place {
                Place::Nominated(_, node) => node,
                _ => wanted,
            };
            let node = |inquiry: &Inquiry<'_>| {
                let nominated = nominated.filter(|node| {
                    within.is_none_or(|nodes| nodes.contains(*node))
                        && is_open(inquiry, ranking, *node)
                });
                nominated.or_else(|| select(inquiry, ranking, coarse, within))
            };
            // First with claimed devices near what the kubelet allocates.
            inquiry.near_devices = inquiry.devices.is_some();
            let mut chosen = node(&inquiry);
            if chosen.is_none() && inquiry.near_devices {
                inquiry.near_devices = false;
                chosen = node(&inquiry);
            }
            let node = chosen?;
            let room = ranking.judge(state, View::of(&state.nodes[node])).ok()?;
            found(&inquiry, node, &room)
        })
    }

    fn place_scored(&mut self, at: PodIx, class: ClassIx) -> Option<FoundPlace> {
        let spread = self.state.default_spread(class);
        let packing = self.config.profile == Profile::KubeSchedulerPacking;
        let state = &self.state;
        let node =
            Inquiry::new(state, IncomingPod::of(state, at)).ok().and_then(|(inquiry, narrowed)| {
                let feasible = Verdicts::of(&inquiry, &narrowed).feasible();
                let nominated = match state.pods[at].place {
                    Place::Nominated(_, node) => node.filter(|node| feasible.contains(node)),
                    _ => None,
                };
                let node =
                    nominated.or_else(|| kube::pick(&inquiry, &feasible, &spread, packing))?;
                Some((node, inquiry.devices_on(node, None, Order::Listed).ok()?.map(Box::new)))
            });
        self.state.release_spread(spread);
        let (node, devices) = node?;
        Some(FoundPlace { node, grant: None, fit: NumaFit::UNKNOWN, devices })
    }

    pub(crate) fn evictions(
        &mut self,
        at: PodIx,
        now_ms: i64,
        within: Option<&Bits>,
    ) -> Option<Evictions> {
        let class = self.state.pods[at].class;
        let spec = self.state.class(class).spec.clone();
        if spec.preemption != PreemptionPolicy::LowerPriority || self.awaits_room(at) {
            return None;
        }
        self.preemption.begin();
        let preemptor = Preemptor::new(&self.state, at, now_ms, self.config.eviction_cooldown_ms);
        if !preemptor.has_victims(&self.state) {
            return None;
        }
        if self.config.profile != Profile::Berth {
            return kube::preempt::select(&self.state, at, IncomingPod::of(&self.state, at));
        }
        if !self.may_make_room(class, &preemptor) {
            return None;
        }
        let preemption = &mut self.preemption;
        let plan = self.rankings.with(&mut self.state, class, |state, ranking, _| {
            let inquiry = Inquiry::new(state, IncomingPod::of(state, at)).ok()?.0;
            preemption.find(&inquiry, ranking, &preemptor, within)
        });
        plan.map(Evictions::from)
    }

    pub(crate) fn held_by(&self, at: PodIx) -> Option<HeldBy> {
        if self.config.profile != Profile::Berth {
            return None;
        }
        match self.led_by(at) {
            Some(gang) => self.gang_held_by(&gang),
            None => self.state.held_by(at),
        }
    }

    pub(crate) fn place_headroom(&mut self) {
        if self.config.profile == Profile::Berth && !self.state.headrooms.is_empty() {
            headroom::keep(&mut self.state, &mut self.rankings);
        }
    }

    /// Why a pod is pending and what would help, or why it is on its node. `None` if it is unknown.
    pub fn explain(&mut self, uid: &str, now_ms: i64) -> Option<Explanation> {
        let with_gang = self.explain_gang(uid, now_ms);
        with_gang.or_else(|| explain::explain(&mut self.state, &self.config, uid, now_ms))
    }

    /// kube-scheduler's verdicts for a pod against all nodes. The pod need not have been applied.
    pub fn diagnose(&mut self, pod: &PodObject) -> Diagnosis {
        let class = self.state.acquire_class(&pod.spec);
        self.state.rules(class);
        let default_spread = self.state.default_spread(class);
        let incoming = IncomingPod { class, uid: &pod.uid, name: &pod.name, claims: &pod.claims };
        let diagnosis = match Inquiry::new(&self.state, incoming) {
            Err(rejection) => {
                kube::excluded_diagnosis(&self.state, Verdicts::excluded(&self.state, &rejection))
            }
            Ok((inquiry, narrowed)) => {
                kube::diagnose(&inquiry, &narrowed, &default_spread, pod.nominated.as_ref())
            }
        };
        self.state.release_spread(default_spread);
        self.state.release_class(class);
        diagnosis
    }
}

pub(crate) fn is_open(inquiry: &Inquiry<'_>, ranking: &Ranking, node: NodeIx) -> bool {
    ranking.rank(inquiry.state, node).is_some()
        && allows(inquiry, ranking, node, inquiry.has_neighbour_rules())
}

/// The place for a pod on a node. Claimed devices far from what the kubelet allocates make it
/// misaligned.
pub(crate) fn found(inquiry: &Inquiry<'_>, node: NodeIx, room: &Room) -> Option<FoundPlace> {
    let state = inquiry.state;
    let numa = room.fit.numa.filter(|_| inquiry.near_devices);
    let devices = inquiry.devices_on(node, numa, Order::LeavingMost).ok()?.map(Box::new);
    let of_devices = devices.as_ref().and_then(|devices| state.numa_of_devices(devices, node));
    let fit = match (room.fit, of_devices) {
        (NumaFit { alignment: Alignment::Aligned, numa: Some(numa) }, Some(of_devices))
            if !of_devices.is_subset(numa) =>
        {
            NumaFit::misaligned(numa | of_devices)
        }
        (fit, _) => fit,
    };
    Some(FoundPlace { node, grant: room.grant, fit, devices })
}
