//! Which members of a gang are in the queue: none while members are missing, the head while the
//! gang is pending, and all once it has started.
//!
//! Updated once before each decision for all events since the last one, so that the order of events
//! does not matter.

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

#[derive(Clone)]
pub(super) struct GangStatus {
    pub(super) gang: FullName,
    pub(super) terms: GangTerms,
    /// Pending members in queue order.
    pub(super) waiting: Vec<PodIx>,
    /// Number of members that are placed or finished.
    pub(super) served: usize,
    /// Number of pending members that must be placed together.
    pub(super) need: usize,
}

impl Engine {
    /// Whether gangs are scheduled together; other profiles see single pods.
    pub(crate) fn schedules_gangs(&self) -> bool {
        self.config.profile == Profile::Berth
    }

    fn has_no_gangs(&self) -> bool {
        self.state.gangs.is_empty() && !self.gangs.has_finished()
    }

    /// Marks the gangs that a pod was in and is in as changed, before its event is applied.
    pub(crate) fn note_pod(&mut self, pod: &PodObject) {
        let without_gangs = pod.spec.gang.is_none() && self.has_no_gangs();
        if without_gangs || !self.schedules_gangs() {
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

    pub(crate) fn note_gang(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        if self.schedules_gangs() {
            self.gangs.note((namespace.clone(), name.clone()));
        }
    }

    /// Marks a pod's gang as changed before the pod is deleted.
    pub(crate) fn note_gone(&mut self, uid: &Arc<str>) {
        if self.schedules_gangs() && !self.has_no_gangs() {
            let before = self.state.pod_by_uid(uid).and_then(|at| self.state.gang_of(at));
            let finished = self.gangs.unfinish(uid);
            [before, finished].into_iter().flatten().for_each(|gang| self.gangs.note(gang));
        }
    }

    pub(crate) fn evict(&mut self, at: PodIx, now_ms: i64) {
        self.state.evict(at, now_ms);
        if let Some(gang) = self.scheduled_gang(at) {
            self.gangs.note(gang);
        }
    }

    #[inline]
    pub(crate) fn scheduled_gang(&self, at: PodIx) -> Option<FullName> {
        if self.state.gangs.is_empty() || !self.schedules_gangs() {
            return None;
        }
        self.state.gang_of(at)
    }

    pub(crate) fn led_by(&self, at: PodIx) -> Option<FullName> {
        let gang = self.scheduled_gang(at)?;
        let leads = self.gangs.get(&gang).is_some_and(|row| row.head == Some(at));
        leads.then_some(gang)
    }

    pub(crate) fn head_for(&self, at: PodIx) -> Option<PodIx> {
        self.gangs.get(&self.scheduled_gang(at)?)?.head
    }

    /// Undoes a decision for a gang member. If its gang had a reservation, no member keeps its
    /// nomination and victims stay; if it was bound, the others keep their place.
    pub(crate) fn undo_gang(&mut self, at: PodIx) {
        let Some(gang) = self.scheduled_gang(at) else { return };
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

    /// Number of pending members that are not in the queue.
    pub(crate) fn unqueued_members(&self) -> usize {
        let members = self.state.gangs.names().flat_map(|gang| self.state.gangs.members(gang));
        members.filter(|pod| self.state.is_pending(*pod) && !self.queue.contains(*pod)).count()
    }

    /// Number of pending members behind a held head.
    pub(crate) fn held_members(&self) -> usize {
        let state = &self.state;
        let held = self.gangs.held().flat_map(|(gang, head)| {
            state.gangs.members(gang).filter(move |pod| state.is_pending(*pod) && *pod != head)
        });
        held.count()
    }

    /// `None` if no terms are known.
    pub(super) fn gang_status(&self, gang: &FullName) -> Option<GangStatus> {
        let state = &self.state;
        let terms = state.gang_terms(gang)?;
        let members = || state.gangs.members(gang);
        let mut waiting: Vec<(Turn, PodIx)> = members()
            .filter(|pod| state.is_pending(*pod))
            .map(|pod| (state.queue_turn(pod), pod))
            .collect();
        waiting.sort_unstable();
        let bound = members().filter(|pod| state.is_placed(*pod)).count();
        let served = bound + self.gangs.finished(gang) as usize;
        Some(GangStatus {
            gang: gang.clone(),
            need: (terms.min as usize).saturating_sub(served),
            terms,
            waiting: waiting.into_iter().map(|(_, pod)| pod).collect(),
            served,
        })
    }

    pub(crate) fn gang_held_by(&self, gang: &FullName) -> Option<HeldBy> {
        let status = self.gang_status(gang)?;
        self.state.held_together(&status.waiting, status.need)
    }

    pub(crate) fn queue_gangs(&mut self, now_ms: i64) {
        if self.gangs.has_changed() {
            for gang in self.gangs.take_changed() {
                self.queue_gang(&gang, now_ms);
            }
        }
    }

    fn queue_gang(&mut self, gang: &FullName, now_ms: i64) {
        if self.state.gangs.members(gang).next().is_none() {
            self.release(gang, now_ms);
            return self.gangs.forget(gang);
        }
        let status = self.gang_status(gang);
        let confirmed = self
            .state
            .gangs
            .members(gang)
            .filter(|pod| self.state.is_placed(*pod) && !self.state.pods[*pod].decided);
        let confirmed = confirmed.count() + self.gangs.finished(gang) as usize;
        if let Some(row) = self.gangs.get(gang)
            && row.reserved.is_some()
            && !self.awaits_nodes(gang)
        {
            // Its reservation was taken back.
            self.release(gang, now_ms);
        }
        let row = self.gangs.row(gang);
        if let Some(status) = &status {
            // Once all members are gone, their replacements start together again.
            row.started &= status.served > 0;
            row.started |= confirmed >= status.terms.min as usize;
        }
        let started = row.started;
        match status {
            Some(status) if started || status.need == 0 => self.queue_members(&status, now_ms),
            Some(status) if status.waiting.len() >= status.need => self.queue_head(&status, now_ms),
            _ => self.remove_members(gang, now_ms),
        }
    }

    /// The gang has started: every other member is scheduled on its own.
    fn queue_members(&mut self, status: &GangStatus, now_ms: i64) {
        self.release(&status.gang, now_ms);
        let row = self.gangs.row(&status.gang);
        (row.head, row.complete_since_ms, row.short_since_ms) = (None, None, None);
        row.reported = false;
        let topology = status.terms.topology.clone();
        let domain =
            topology.as_ref().and_then(|one| self.state.gang_domain(&status.gang, &one.key));
        let near = Some((topology, domain));
        let row = self.gangs.row(&status.gang);
        let elsewhere = row.near != near;
        row.near = near;
        for pod in &status.waiting {
            self.line_up(*pod);
            if elsewhere {
                self.queue.wake(*pod);
            }
        }
    }

    fn queue_head(&mut self, status: &GangStatus, now_ms: i64) {
        let Some(head) = status.waiting.first().copied() else { return };
        let priority = self.state.class_of(head).spec.priority;
        let row = self.gangs.row(&status.gang);
        if row.complete_since_ms.is_none() {
            (row.complete_since_ms, row.in_line_since_ms) = (Some(now_ms), now_ms);
        }
        (row.head, row.priority) = (Some(head), priority);
        self.gangs.recheck_line();
        for pod in status.waiting.iter().skip(1) {
            self.queue.remove(*pod);
        }
        self.line_up(head);
        self.queue.wake(head);
    }

    /// Members or the gang's terms are missing.
    fn remove_members(&mut self, gang: &FullName, now_ms: i64) {
        self.give_up_reserved(gang);
        self.release(gang, now_ms);
        let row = self.gangs.row(gang);
        (row.head, row.complete_since_ms, row.short_since_ms) = (None, None, None);
        row.reported = false;
        let members: Vec<PodIx> = self.state.gangs.members(gang).collect();
        members.into_iter().for_each(|pod| self.queue.remove(pod));
    }

    fn awaits_nodes(&self, gang: &FullName) -> bool {
        let mut members = self.state.gangs.members(gang);
        members.any(|pod| matches!(self.state.pods[pod].place, Place::Nominated(..)))
    }

    pub(super) fn release(&mut self, gang: &FullName, now_ms: i64) {
        if self.gangs.release(gang, now_ms, &self.config) {
            self.state.reservation = None;
        }
    }

    pub(super) fn give_up_reserved(&mut self, gang: &FullName) {
        let members: Vec<PodIx> = self.state.gangs.members(gang).collect();
        for pod in members {
            if matches!(self.state.pods[pod].place, Place::Nominated(..)) {
                self.state.nominate(pod, None);
            }
        }
    }
}
