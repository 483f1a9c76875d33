//! Scheduling state of gangs: pending times, the line for reservations, and how long each team
//! pauses after one.
//!
//! Saved and restored with the queue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::gang::GangTopology;

use crate::config::Config;
use crate::decision::HeldBy;
use crate::explain::{Tenant, Unreserved};
use crate::state::FullName;
use crate::table::PodIx;

#[derive(Clone, Debug, Default)]
pub(crate) struct GangState {
    /// Since when enough members exist.
    pub(crate) complete_since_ms: Option<i64>,
    /// Since when it is in line for a reservation: since it is complete, or since its last
    /// reservation failed.
    pub(crate) in_line_since_ms: i64,
    /// The member in the queue.
    pub(crate) head: Option<PodIx>,
    pub(crate) priority: i32,
    /// Set while it has a reservation.
    pub(crate) reserved: Option<Reserved>,
    /// Since when some members are placed, but too few.
    pub(crate) short_since_ms: Option<i64>,
    /// It was complete once: later members are scheduled on their own.
    pub(crate) started: bool,
    /// The topology and domain used for later members.
    pub(crate) near: Option<(Option<GangTopology>, Option<Arc<str>>)>,
    /// What held it when last reported.
    pub(crate) held: Option<HeldBy>,
    pub(crate) reported: bool,
    /// Why it got no reservation at its turn, and when to try again.
    pub(crate) refused: Option<(Unreserved, i64)>,
    pub(crate) timeouts: u32,
}

/// What a gang's nominations wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    Evicting,
    /// Pods on reserved nodes to end, until this time.
    Until(i64),
}

#[derive(Clone, Debug)]
struct Holder {
    gang: FullName,
    tenant: Tenant,
    since_ms: i64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Gangs {
    rows: BTreeMap<FullName, GangState>,
    changed: BTreeSet<FullName>,
    /// When to evaluate gangs again.
    due: BTreeSet<(i64, FullName)>,
    /// Finished members by UID.
    finished: BTreeMap<Arc<str>, FullName>,
    finished_of: BTreeMap<FullName, u32>,
    /// At most one gang has reserved nodes, so that no two wait for each other.
    holder: Option<Holder>,
    /// End of the pause in reservations, by team or namespace.
    pauses: BTreeMap<Tenant, i64>,
    /// Earliest time at which a gang can be first in line.
    turn_at_ms: i64,
}

impl Gangs {
    pub(crate) fn get(&self, gang: &FullName) -> Option<&GangState> {
        self.rows.get(gang)
    }

    pub(crate) fn row(&mut self, gang: &FullName) -> &mut GangState {
        self.rows.entry(gang.clone()).or_default()
    }

    pub(crate) fn note(&mut self, gang: FullName) {
        self.changed.insert(gang);
    }

    pub(crate) fn take_changed(&mut self) -> BTreeSet<FullName> {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    pub(crate) fn forget(&mut self, gang: &FullName) {
        self.rows.remove(gang);
    }

    pub(crate) fn finish(&mut self, uid: &Arc<str>, gang: FullName) {
        self.unfinish(uid);
        *self.finished_of.entry(gang.clone()).or_insert(0) += 1;
        self.finished.insert(uid.clone(), gang);
    }

    pub(crate) fn unfinish(&mut self, uid: &str) -> Option<FullName> {
        let gang = self.finished.remove(uid)?;
        if let Some(count) = self.finished_of.get_mut(&gang) {
            *count -= 1;
            if *count == 0 {
                self.finished_of.remove(&gang);
            }
        }
        Some(gang)
    }

    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    pub(crate) fn finished(&self, gang: &FullName) -> u32 {
        self.finished_of.get(gang).copied().unwrap_or(0)
    }

    /// Gangs held by quotas or shares, with their heads.
    pub(crate) fn held(&self) -> impl Iterator<Item = (&FullName, PodIx)> {
        let held = self.rows.iter().filter(|(_, row)| row.held.is_some());
        held.filter_map(|(gang, row)| Some((gang, row.head?)))
    }

    pub(crate) fn remind(&mut self, due_ms: i64, gang: &FullName) {
        self.due.insert((due_ms, gang.clone()));
    }

    pub(crate) fn take_due(&mut self, now_ms: i64) -> Vec<PodIx> {
        let mut heads = Vec::new();
        while self.due.first().is_some_and(|(due, _)| *due <= now_ms) {
            let Some((_, gang)) = self.due.pop_first() else { break };
            heads.extend(self.rows.get(&gang).and_then(|row| row.head));
        }
        heads
    }

    /// Evaluates the line again.
    pub(crate) fn recheck_line(&mut self) {
        self.turn_at_ms = i64::MIN;
    }

    /// The most important and then longest waiting gang for which nodes could be reserved now.
    pub(crate) fn first_in_line(&mut self, now_ms: i64, patience_ms: i64) -> Option<FullName> {
        if self.holder.is_some() || now_ms < self.turn_at_ms {
            return None;
        }
        let due = |(gang, row): (&FullName, &GangState)| {
            let in_line = row.head.is_some() && row.reserved.is_none() && row.held.is_none();
            let patient_ms = row.complete_since_ms.filter(|_| in_line)?.saturating_add(patience_ms);
            let retry_ms = row.refused.as_ref().map_or(i64::MIN, |(_, retry_ms)| *retry_ms);
            let turn = (Reverse(row.priority), row.in_line_since_ms, gang.clone());
            Some((patient_ms.max(retry_ms), turn))
        };
        let line: Vec<_> = self.rows.iter().filter_map(due).collect();
        let ready = line.iter().filter(|(due_ms, _)| *due_ms <= now_ms);
        let first = ready.min_by(|(_, one), (_, other)| one.cmp(other));
        if first.is_none() {
            self.turn_at_ms = line.iter().map(|(due_ms, _)| *due_ms).min().unwrap_or(i64::MAX);
        }
        first.map(|(_, (_, _, gang))| gang.clone())
    }

    /// Records why a gang gets no reservation, and when to try again. Whether the reason is new.
    pub(crate) fn refuse(&mut self, gang: &FullName, why: Unreserved, retry_ms: i64) -> bool {
        let before = self.row(gang).refused.replace((why.clone(), retry_ms));
        before.is_none_or(|(before, _)| before != why)
    }

    /// End of a tenant's pause, if it is not over.
    pub(crate) fn paused_until(&self, tenant: &Tenant, now_ms: i64) -> Option<i64> {
        self.pauses.get(tenant).copied().filter(|until_ms| now_ms < *until_ms)
    }

    pub(crate) fn await_evictions(&mut self, gang: &FullName) {
        self.row(gang).reserved = Some(Reserved::Evicting);
    }

    pub(crate) fn reserve(&mut self, gang: &FullName, tenant: Tenant, now_ms: i64, until_ms: i64) {
        self.holder = Some(Holder { gang: gang.clone(), tenant, since_ms: now_ms });
        self.remind(until_ms, gang);
        let row = self.row(gang);
        (row.reserved, row.refused) = (Some(Reserved::Until(until_ms)), None);
    }

    /// Releases a gang's reservation and starts its team's pause. Whether nodes were reserved.
    pub(crate) fn release(&mut self, gang: &FullName, now_ms: i64, config: &Config) -> bool {
        if let Some(row) = self.rows.get_mut(gang) {
            row.reserved = None;
        }
        let Some(holder) = self.holder.take_if(|holder| holder.gang == *gang) else { return false };
        let cooldown_ms = config.reservations.cooldown_ms(now_ms.saturating_sub(holder.since_ms));
        self.pauses.retain(|_, until_ms| now_ms < *until_ms);
        if cooldown_ms > 0 {
            self.pauses.insert(holder.tenant, now_ms.saturating_add(cooldown_ms));
        }
        self.recheck_line();
        true
    }
}
