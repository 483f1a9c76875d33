//! What is remembered of gangs: since when they wait, and what is set aside for them.
//!
//! Owns times and the line of gangs for which something is to be set aside. It is saved and restored
//! with the queue. Must not know nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::gang::GangTopology;

use crate::decision::HeldBy;
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
    /// Not even with every pod gone would it fit; true until something changes.
    pub(crate) hopeless: bool,
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
    holder: Option<FullName>,
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

    /// Whether nodes may be set aside for a gang now: for nobody else are, and it is the first in
    /// line that has waited long enough.
    pub(crate) fn may_reserve(&self, gang: &FullName, now_ms: i64, patience_ms: i64) -> bool {
        self.holder.is_none() && self.first_in_line(now_ms, patience_ms) == Some(gang)
    }

    /// The most important and then longest in line for whom nodes could be set aside.
    fn first_in_line(&self, now_ms: i64, patience_ms: i64) -> Option<&FullName> {
        let waits = |(_, row): &(&FullName, &Standing)| {
            let patient = row
                .complete_since_ms
                .is_some_and(|since| since.saturating_add(patience_ms) <= now_ms);
            patient
                && row.head.is_some()
                && row.reserved.is_none()
                && !row.hopeless
                && row.held.is_none()
        };
        let line = self.rows.iter().filter(waits);
        let first = line.min_by_key(|(gang, row)| {
            (Reverse(row.priority), row.in_line_since_ms, (*gang).clone())
        });
        first.map(|(gang, _)| gang)
    }

    /// Nodes are kept for a gang.
    pub(crate) fn reserve(&mut self, gang: &FullName, reserved: Reserved) {
        if let Reserved::Until(until_ms) = reserved {
            self.holder = Some(gang.clone());
            self.remind(until_ms, gang);
        }
        self.row(gang).reserved = Some(reserved);
    }

    /// Nothing is kept for a gang any more; the next in line is looked at.
    pub(crate) fn release(&mut self, gang: &FullName, now_ms: i64, patience_ms: i64) {
        if let Some(row) = self.rows.get_mut(gang) {
            row.reserved = None;
        }
        if self.holder.as_ref() == Some(gang) {
            self.holder = None;
            self.pass_on(now_ms, patience_ms);
        }
    }

    /// The first in line is looked at.
    pub(crate) fn pass_on(&mut self, now_ms: i64, patience_ms: i64) {
        if self.holder.is_none()
            && let Some(next) = self.first_in_line(now_ms, patience_ms).cloned()
        {
            self.remind(now_ms, &next);
        }
    }
}
