//! Decisions about gangs, in this order: hold it, place it, keep waiting for a reservation that may
//! succeed, evict for it, or wait.
//!
//! Nodes are reserved once all pending pods have been tried, for one gang that has waited long
//! enough: what is free then is of no use to any other pod, and every pod gets its chance between
//! two reservations.

use std::sync::Arc;

use super::queueing::GangStatus;
use super::state::Reserved;
use crate::decision::{Binding, Decision, GangBinding, GangDisbandment, GangName, HeldBy};
use crate::engine::Engine;
use crate::explain::Unreserved;
use crate::state::{FullName, Place};
use crate::table::PodIx;

/// Limit of gangs tried for one reservation; others follow with the next decision.
const TURNS_MAX: usize = 8;

impl Engine {
    /// Decides about a gang; `None` if there is nothing new to report. Its head is parked then.
    pub(crate) fn decide_gang(
        &mut self,
        gang: &FullName,
        head: PodIx,
        now_ms: i64,
    ) -> Option<Decision> {
        let Some(status) = self.gang_status(gang) else {
            self.queue.park(head);
            return None;
        };
        status.waiting.iter().for_each(|pod| self.record_arrival(*pod));
        let held = self.state.held_together(&status.waiting, status.need);
        if held.is_none() {
            self.gangs.row(gang).held = None;
            if let Some(bindings) = self.place_gang(&status) {
                return Some(self.bind_gang(&status, head, bindings, now_ms));
            }
        }
        self.queue.park(head);
        if let Some(disbanding) = self.disband(&status, now_ms) {
            return Some(disbanding);
        }
        if let Some(by) = held {
            return self.hold_gang(gang, head, by, now_ms);
        }
        let reserved = self.gangs.row(gang).reserved;
        let awaits_end = matches!(reserved, Some(Reserved::Until(until_ms)) if now_ms < until_ms);
        if awaits_end || status.waiting.iter().any(|pod| self.awaits_room(*pod)) {
            return self.report_wait(gang, head, false);
        }
        let released = self.release_gang(&status, now_ms);
        if let Some(plan) = self.gang_evictions(&status, now_ms) {
            self.gangs.await_evictions(gang);
            return Some(self.carry_out(&status, plan, None, now_ms));
        }
        self.gangs.recheck_line();
        self.report_wait(gang, head, released)
    }

    /// Reserves nodes for the first gang in line that the budget allows, or reports that it does
    /// not.
    pub(crate) fn reserve_nodes(&mut self, now_ms: i64) -> Option<Decision> {
        for _ in 0..TURNS_MAX {
            let gang = self.gangs.first_in_line(now_ms, self.config.gang_patience_ms)?;
            match self.reserve_for(&gang, now_ms) {
                Ok(decision) => return Some(decision),
                Err((why, retry_ms)) => {
                    let head = self.gangs.row(&gang).head;
                    let head = head.filter(|_| self.gangs.refuse(&gang, why, retry_ms));
                    if let Some(head) = head {
                        return Some(Decision::Wait { pod: self.state.pods[head].uid.clone() });
                    }
                }
            }
        }
        None
    }

    /// Reserves nodes for a gang, or returns why not and when to try again.
    fn reserve_for(&mut self, gang: &FullName, now_ms: i64) -> Result<Decision, (Unreserved, i64)> {
        let retry_ms = now_ms.saturating_add(self.config.gang_patience_ms.max(1));
        let none = (Unreserved::NothingEnds, retry_ms);
        let status = self.gang_status(gang).ok_or(none.clone())?;
        let tenant = self.tenant(&status).ok_or(none.clone())?;
        if let Some(until_ms) = self.gangs.paused_until(&tenant, now_ms) {
            return Err((Unreserved::Resting(tenant), until_ms));
        }
        let plan = self.nodes_to_keep(&status).ok_or(none)?;
        if let Some(beyond) = self.beyond_share(&plan.places) {
            return Err((beyond, retry_ms));
        }
        let max_ms = status.terms.timeout_ms.min(self.config.reservations.max_ms).max(1);
        let until_ms = now_ms.saturating_add(max_ms);
        self.state.reservation = Some(Arc::new(self.reservation(gang, &plan.blockers, max_ms)));
        self.gangs.reserve(gang, tenant, now_ms, until_ms);
        Ok(self.carry_out(&status, plan, Some(until_ms), now_ms))
    }

    fn report_wait(&mut self, gang: &FullName, head: PodIx, is_new: bool) -> Option<Decision> {
        let row = self.gangs.row(gang);
        let is_new = is_new || !row.reported;
        row.reported = true;
        is_new.then(|| Decision::Wait { pod: self.state.pods[head].uid.clone() })
    }

    /// Holds a gang: its reservation is released for the next gang in line. Reported only if the
    /// cause is new.
    fn hold_gang(
        &mut self,
        gang: &FullName,
        head: PodIx,
        by: HeldBy,
        now_ms: i64,
    ) -> Option<Decision> {
        self.park_held(head);
        self.give_up_reserved(gang);
        let row = self.gangs.row(gang);
        row.reported = false;
        let before = row.held.replace(by.clone());
        self.release(gang, now_ms);
        let is_new = before.as_ref() != Some(&by);
        is_new.then(|| Decision::Hold { pod: self.state.pods[head].uid.clone(), by })
    }

    fn bind_gang(
        &mut self,
        status: &GangStatus,
        head: PodIx,
        bindings: Vec<Binding>,
        now_ms: i64,
    ) -> Decision {
        self.queue.remove(head);
        self.release(&status.gang, now_ms);
        let row = self.gangs.row(&status.gang);
        (row.head, row.short_since_ms, row.reported) = (None, None, false);
        self.gangs.note(status.gang.clone());
        Decision::BindAll(GangBinding { gang: GangName::of(&status.gang), bindings })
    }

    /// Releases a reservation that did not help and moves the gang to the end of the line. Whether
    /// members were nominated.
    fn release_gang(&mut self, status: &GangStatus, now_ms: i64) -> bool {
        let waited = |pod: &PodIx| matches!(self.state.pods[*pod].place, Place::Nominated(..));
        let waited = status.waiting.iter().any(waited);
        self.give_up_reserved(&status.gang);
        let row = self.gangs.row(&status.gang);
        if let Some(reserved) = row.reserved {
            row.in_line_since_ms = now_ms;
            row.timeouts += u32::from(matches!(reserved, Reserved::Until(_)));
            self.release(&status.gang, now_ms);
        }
        waited
    }

    /// Members that are placed give their places back if the others are not placed in time, so that
    /// an incomplete gang does not block others forever.
    fn disband(&mut self, status: &GangStatus, now_ms: i64) -> Option<Decision> {
        let state = &self.state;
        let members = state.gangs.members(&status.gang).filter(|pod| state.is_placed(*pod));
        let mut holding: Vec<PodIx> = members.collect();
        if holding.is_empty() {
            self.gangs.row(&status.gang).short_since_ms = None;
            return None;
        }
        let since_ms = *self.gangs.row(&status.gang).short_since_ms.get_or_insert(now_ms);
        let until_ms = since_ms.saturating_add(status.terms.timeout_ms);
        if now_ms < until_ms {
            self.gangs.remind(until_ms, &status.gang);
            return None;
        }
        holding.sort_by_key(|pod| self.state.pods[*pod].uid.clone());
        for pod in &holding {
            self.evict(*pod, now_ms);
        }
        self.gangs.row(&status.gang).short_since_ms = None;
        let pods = holding.iter().map(|pod| self.state.pods[*pod].uid.clone()).collect();
        Some(Decision::Disband(GangDisbandment { gang: GangName::of(&status.gang), pods }))
    }
}
