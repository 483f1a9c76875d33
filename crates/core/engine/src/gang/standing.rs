//! What is remembered of gangs: since when they wait, and what is set aside for them.
//!
//! Owns times, the line of gangs that wait for a reservation, and how long each team has to rest after
//! one. It is saved and restored with the queue. Must not know nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::gang::GangTopology;

use crate::config::Config;
use crate::decision::HeldBy;
use crate::explain::{Tenant, Unreserved};
use crate::state::FullName;
use crate::table::PodIx;

/// How a gang stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    /// Since when enough members exist.
    pub(crate) complete_since_ms: Option<i64>,
    /// Since when it is in line for something to be set aside: since it is complete, or since it was
    /// its turn in vain.
    pub(crate) in_line_since_ms: i64,
    /// The member that stands in the queue for all.
    pub(crate) head: Option<PodIx>,
    pub(crate) priority: i32,
    /// Nodes are kept for it.
    pub(crate) reserved: Option<Reserved>,
    /// Since when some members have a place, but too few.
    pub(crate) short_since_ms: Option<i64>,
    /// It was whole once: whoever comes now is a pod like any other.
    pub(crate) started: bool,
    /// Where those who come now are to be, as it was last: the label, and the value of the others.
    pub(crate) near: Option<(Option<GangTopology>, Option<Arc<str>>)>,
    /// What keeps it from starting that is no node's fault, as it was said last.
    pub(crate) held: Option<HeldBy>,
    /// It has been said that it waits.
    pub(crate) told: bool,
    /// Why nothing was reserved for it when it was its turn, and until when it is not tried again.
    pub(crate) refused: Option<(Unreserved, i64)>,
    /// How often something was set aside in vain.
    pub(crate) timeouts: u32,
}

/// Why nodes are kept for a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// Others are evicted for it.
    Evicting,
    /// Until then, for what is there to end by itself.
    Until(i64),
}

/// The gang for which nodes are reserved.
#[derive(Clone, Debug)]
struct Holder {
    gang: FullName,
    tenant: Tenant,
    since_ms: i64,
}

/// All gangs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gangs {
    rows: BTreeMap<FullName, Standing>,
    /// Gangs of whose members something is new.
    changed: BTreeSet<FullName>,
    /// When to look at gangs again.
    due: BTreeSet<(i64, FullName)>,
    /// Members that have finished, by UID.
    finished: BTreeMap<Arc<str>, FullName>,
    finished_of: BTreeMap<FullName, u32>,
    /// The gang for which nodes are set aside until others have ended. There is one at most, so that
    /// no two wait for what is kept for the other.
    holder: Option<Holder>,
    /// Until when nothing is reserved for the gangs of a team or namespace.
    rests: BTreeMap<Tenant, i64>,
    /// When it can be some gang's turn; nothing has to be looked at before.
    turn_at_ms: i64,
}

impl Gangs {
    pub(crate) fn get(&self, gang: &FullName) -> Option<&Standing> {
        self.rows.get(gang)
    }

    pub(crate) fn row(&mut self, gang: &FullName) -> &mut Standing {
        self.rows.entry(gang.clone()).or_default()
    }

    /// Something is new about the members of a gang.
    pub(crate) fn note(&mut self, gang: FullName) {
        self.changed.insert(gang);
    }

    pub(crate) fn take_changed(&mut self) -> BTreeSet<FullName> {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Nobody is in the gang any more.
    pub(crate) fn forget(&mut self, gang: &FullName) {
        self.rows.remove(gang);
    }

    pub(crate) fn finish(&mut self, uid: &Arc<str>, gang: FullName) {
        self.unfinish(uid);
        *self.finished_of.entry(gang.clone()).or_insert(0) += 1;
        self.finished.insert(uid.clone(), gang);
    }

    /// A pod of this UID is gone for good, or is not what it was; the gang it had finished for.
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

    /// Whether any member of a gang has finished.
    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// How many members of a gang have finished.
    pub(crate) fn finished(&self, gang: &FullName) -> u32 {
        self.finished_of.get(gang).copied().unwrap_or(0)
    }

    /// Gangs that quotas or shares keep from starting, and who stands in the queue for them.
    pub(crate) fn held(&self) -> impl Iterator<Item = (&FullName, PodIx)> {
        let held = self.rows.iter().filter(|(_, row)| row.held.is_some());
        held.filter_map(|(gang, row)| Some((gang, row.head?)))
    }

    /// A gang is to be looked at again at a time.
    pub(crate) fn remind(&mut self, due_ms: i64, gang: &FullName) {
        self.due.insert((due_ms, gang.clone()));
    }

    /// The heads of the gangs that are to be looked at again by now.
    pub(crate) fn take_due(&mut self, now_ms: i64) -> Vec<PodIx> {
        let mut heads = Vec::new();
        while self.due.first().is_some_and(|(due, _)| *due <= now_ms) {
            let Some((_, gang)) = self.due.pop_first() else { break };
            heads.extend(self.rows.get(&gang).and_then(|row| row.head));
        }
        heads
    }

    /// Something changed for a gang in line.
    pub(crate) fn look_at_line(&mut self) {
        self.turn_at_ms = i64::MIN;
    }

    /// The most important and then longest in line for which nodes could be reserved now.
    pub(crate) fn first_in_line(&mut self, now_ms: i64, patience_ms: i64) -> Option<FullName> {
        if self.holder.is_some() || now_ms < self.turn_at_ms {
            return None;
        }
        let due = |(gang, row): (&FullName, &Standing)| {
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

    /// Nothing is reserved for a gang whose turn it is, and it is not tried again for a while; whether
    /// the reason is news.
    pub(crate) fn refuse(&mut self, gang: &FullName, why: Unreserved, retry_ms: i64) -> bool {
        let before = self.row(gang).refused.replace((why.clone(), retry_ms));
        before.is_none_or(|(before, _)| before != why)
    }

    /// Until when a team or namespace rests, if it does.
    pub(crate) fn rests_until(&self, tenant: &Tenant, now_ms: i64) -> Option<i64> {
        self.rests.get(tenant).copied().filter(|until_ms| now_ms < *until_ms)
    }

    /// Others are evicted for a gang.
    pub(crate) fn await_evictions(&mut self, gang: &FullName) {
        self.row(gang).reserved = Some(Reserved::Evicting);
    }

    /// Nodes are reserved for a gang.
    pub(crate) fn reserve(&mut self, gang: &FullName, tenant: Tenant, now_ms: i64, until_ms: i64) {
        self.holder = Some(Holder { gang: gang.clone(), tenant, since_ms: now_ms });
        self.remind(until_ms, gang);
        let row = self.row(gang);
        (row.reserved, row.refused) = (Some(Reserved::Until(until_ms)), None);
    }

    /// Nothing is kept for a gang any more; whether nodes were reserved for it until others had ended.
    /// Its team rests for as long as the budget says.
    pub(crate) fn release(&mut self, gang: &FullName, now_ms: i64, config: &Config) -> bool {
        if let Some(row) = self.rows.get_mut(gang) {
            row.reserved = None;
        }
        let Some(holder) = self.holder.take_if(|holder| holder.gang == *gang) else { return false };
        let rest_ms = config.reservations.rest_ms(now_ms.saturating_sub(holder.since_ms));
        self.rests.retain(|_, until_ms| now_ms < *until_ms);
        if rest_ms > 0 {
            self.rests.insert(holder.tenant, now_ms.saturating_add(rest_ms));
        }
        self.look_at_line();
        true
    }
}
