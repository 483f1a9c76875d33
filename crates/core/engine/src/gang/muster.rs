//! Who of a gang stands in the queue: nobody while members are missing, one for all while the gang
//! waits, and each for himself once it has started.
//!
//! Owns the way from members to the queue. It is taken once for all news since the last decision, so
//! that the order of the news does not matter. Must not decide anything.

use std::sync::Arc;

use berth_model::gang::GangTerms;
use berth_model::spec::{Phase, PodObject};

use super::roster::gang_name;
use crate::config::Profile;
use crate::decision::HeldBy;
use crate::engine::Engine;
use crate::queue::Turn;
use crate::state::{FullName, Place};
use crate::table::PodIx;

/// A gang as it is now.
#[derive(Clone)]
pub(super) struct Roll {
    pub(super) gang: FullName,
    pub(super) terms: GangTerms,
    /// Members that look for their place, whose turn it is first.
    pub(super) waiting: Vec<PodIx>,
    /// Members that have a place, or have finished.
    pub(super) served: usize,
    /// So many of those waiting have to get a place together.
    pub(super) need: usize,
}

impl Engine {
    /// Whether gangs are looked at; other profiles see single pods.
    pub(crate) fn minds_gangs(&self) -> bool {
        self.config.profile == Profile::Berth
    }

    /// Whether nobody is or was in a gang.
    fn has_no_gangs(&self) -> bool {
        self.state.gangs.is_empty() && !self.gangs.has_finished()
    }

    /// News of a pod, before it is applied: what it means for the gang it is in, and was in.
    pub(crate) fn note_news(&mut self, pod: &PodObject) {
        let nobody = pod.spec.gang.is_none() && self.has_no_gangs();
        if nobody || !self.minds_gangs() {
            return;
        }
        let before = self.state.pod_by_uid(&pod.uid).and_then(|at| self.state.gang_of(at));
        let finished = self.gangs.unfinish(&pod.uid);
        let now = gang_name(&pod.spec);
        if let (Some(gang), Phase::Finished) = (&now, pod.phase) {
            self.gangs.finish(&pod.uid, gang.clone());
        }
        [before, finished, now].into_iter().flatten().for_each(|gang| self.gangs.note(gang));
    }

    /// What a gang asks for is another thing now.
    pub(crate) fn note_gang(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        if self.minds_gangs() {
            self.gangs.note((namespace.clone(), name.clone()));
        }
    }

    /// A pod is about to be gone.
    pub(crate) fn note_gone(&mut self, uid: &Arc<str>) {
        if self.minds_gangs() && !self.has_no_gangs() {
            let before = self.state.pod_by_uid(uid).and_then(|at| self.state.gang_of(at));
            let finished = self.gangs.unfinish(uid);
            [before, finished].into_iter().flatten().for_each(|gang| self.gangs.note(gang));
        }
    }

    /// A pod is to be evicted.
    pub(crate) fn evict(&mut self, at: PodIx, now_ms: i64) {
        self.state.evict(at, now_ms);
        if let Some(gang) = self.gang_minded(at) {
            self.gangs.note(gang);
        }
    }

    /// The gang a pod is in, if gangs are looked at.
    #[inline]
    pub(crate) fn gang_minded(&self, at: PodIx) -> Option<FullName> {
        if self.state.gangs.is_empty() || !self.minds_gangs() {
            return None;
        }
        self.state.gang_of(at)
    }

    /// The gang for which a pod stands in the queue.
    pub(crate) fn led_by(&self, at: PodIx) -> Option<FullName> {
        let gang = self.gang_minded(at)?;
        let leads = self.gangs.get(&gang).is_some_and(|row| row.head == Some(at));
        leads.then_some(gang)
    }

    /// The member that stands in the queue for a pod and its mates.
    pub(crate) fn head_for(&self, at: PodIx) -> Option<PodIx> {
        self.gangs.get(&self.gang_minded(at)?)?.head
    }

    /// A decision about a pod could not be carried out. If nodes were kept for its gang, none is any
    /// more, and who was to be evicted stays; if it was bound, the others keep their place.
    pub(crate) fn undo_gang(&mut self, at: PodIx) {
        let Some(gang) = self.gang_minded(at) else { return };
        self.gangs.note(gang.clone());
        if matches!(self.state.pods[at].place, Place::Nominated(..)) {
            let mates: Vec<PodIx> = self.state.gangs.members(&gang).collect();
            for pod in mates {
                let row = &self.state.pods[pod];
                if pod != at && row.decided && matches!(row.place, Place::Nominated(..)) {
                    self.state.undo(pod);
                }
            }
        }
    }

    /// How many members wait without standing in the queue themselves.
    pub(crate) fn held_back(&self) -> usize {
        let members = self.state.gangs.names().flat_map(|gang| self.state.gangs.members(gang));
        members.filter(|pod| self.state.waits(*pod) && !self.queue.contains(*pod)).count()
    }

    /// How many members wait because the one that stands in the queue for them is held.
    pub(crate) fn held_mates(&self) -> usize {
        let state = &self.state;
        let held = self.gangs.held().flat_map(|(gang, head)| {
            state.gangs.members(gang).filter(move |pod| state.waits(*pod) && *pod != head)
        });
        held.count()
    }

    /// The gang as it is now; `None` if nobody says what it asks for.
    pub(super) fn roll(&self, gang: &FullName) -> Option<Roll> {
        let state = &self.state;
        let terms = state.gang_terms(gang)?;
        let members = || state.gangs.members(gang);
        let mut waiting: Vec<(Turn, PodIx)> = members()
            .filter(|pod| state.waits(*pod))
            .map(|pod| (state.queue_turn(pod), pod))
            .collect();
        waiting.sort_unstable();
        let bound = members().filter(|pod| state.stays(*pod)).count();
        let served = bound + self.gangs.finished(gang) as usize;
        Some(Roll {
            gang: gang.clone(),
            need: (terms.min as usize).saturating_sub(served),
            terms,
            waiting: waiting.into_iter().map(|(_, pod)| pod).collect(),
            served,
        })
    }

    /// What keeps a gang waiting that is no node's fault: too few of its members may start together.
    pub(crate) fn gang_held_by(&self, gang: &FullName) -> Option<HeldBy> {
        let roll = self.roll(gang)?;
        self.state.held_together(&roll.waiting, roll.need)
    }

    /// Lets members into the queue, or one for all of them, for gangs of which there is news.
    pub(crate) fn muster(&mut self, now_ms: i64) {
        if self.gangs.has_changed() {
            for gang in self.gangs.take_changed() {
                self.muster_gang(&gang, now_ms);
            }
        }
    }

    fn muster_gang(&mut self, gang: &FullName, now_ms: i64) {
        if self.state.gangs.members(gang).next().is_none() {
            self.release(gang, now_ms);
            return self.gangs.forget(gang);
        }
        let roll = self.roll(gang);
        let confirmed = self
            .state
            .gangs
            .members(gang)
            .filter(|pod| self.state.stays(*pod) && !self.state.pods[*pod].decided);
        let confirmed = confirmed.count() + self.gangs.finished(gang) as usize;
        if let Some(row) = self.gangs.get(gang)
            && row.reserved.is_some()
            && !self.awaits_nodes(gang)
        {
            // What was kept for it was taken back.
            self.release(gang, now_ms);
        }
        let row = self.gangs.row(gang);
        if let Some(roll) = &roll {
            // When the last has gone, those who replace them start together again.
            row.started &= roll.served > 0;
            row.started |= confirmed >= roll.terms.min as usize;
        }
        let started = row.started;
        match roll {
            Some(roll) if started || roll.need == 0 => self.let_in_all(&roll, now_ms),
            Some(roll) if roll.waiting.len() >= roll.need => self.let_in_one(&roll, now_ms),
            _ => self.hold_back(gang, now_ms),
        }
    }

    /// The gang has started: whoever is left looks for its place by itself.
    fn let_in_all(&mut self, roll: &Roll, now_ms: i64) {
        self.release(&roll.gang, now_ms);
        let row = self.gangs.row(&roll.gang);
        (row.head, row.complete_since_ms, row.short_since_ms) = (None, None, None);
        row.told = false;
        let topology = roll.terms.topology.clone();
        let domain = topology.as_ref().and_then(|one| self.state.gang_domain(&roll.gang, &one.key));
        let near = Some((topology, domain));
        let row = self.gangs.row(&roll.gang);
        let elsewhere = row.near != near;
        row.near = near;
        for pod in &roll.waiting {
            self.line_up(*pod);
            if elsewhere {
                self.queue.wake(*pod);
            }
        }
    }

    /// One stands for all.
    fn let_in_one(&mut self, roll: &Roll, now_ms: i64) {
        let Some(head) = roll.waiting.first().copied() else { return };
        let priority = self.state.class_of(head).spec.priority;
        let row = self.gangs.row(&roll.gang);
        if row.complete_since_ms.is_none() {
            (row.complete_since_ms, row.in_line_since_ms) = (Some(now_ms), now_ms);
        }
        (row.head, row.priority) = (Some(head), priority);
        self.gangs.look_at_line();
        for pod in roll.waiting.iter().skip(1) {
            self.queue.remove(*pod);
        }
        self.line_up(head);
        self.queue.wake(head);
    }

    /// Members are missing, or nobody says what the gang asks for: it waits outside.
    fn hold_back(&mut self, gang: &FullName, now_ms: i64) {
        self.give_up_reserved(gang);
        self.release(gang, now_ms);
        let row = self.gangs.row(gang);
        (row.head, row.complete_since_ms, row.short_since_ms) = (None, None, None);
        row.told = false;
        let members: Vec<PodIx> = self.state.gangs.members(gang).collect();
        members.into_iter().for_each(|pod| self.queue.remove(pod));
    }

    /// Whether a member waits for a node.
    fn awaits_nodes(&self, gang: &FullName) -> bool {
        let mut members = self.state.gangs.members(gang);
        members.any(|pod| matches!(self.state.pods[pod].place, Place::Nominated(..)))
    }

    /// Nothing is kept for a gang any more.
    pub(super) fn release(&mut self, gang: &FullName, now_ms: i64) {
        if self.gangs.release(gang, now_ms, &self.config) {
            self.state.reservation = None;
        }
    }

    /// Members do not wait for nodes any more.
    pub(super) fn give_up_reserved(&mut self, gang: &FullName) {
        let members: Vec<PodIx> = self.state.gangs.members(gang).collect();
        for pod in members {
            if matches!(self.state.pods[pod].place, Place::Nominated(..)) {
                self.state.nominate(pod, None);
            }
        }
    }
}
