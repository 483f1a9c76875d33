//! What changed, so that only that is looked at again.
//!
//! Owns the log of changed nodes. Readers keep their own place in it and catch up when they are
//! asked; what was dropped from the log makes a reader start anew. Must not know what readers do.

use std::ops::Range;

use crate::table::NodeIx;

/// The log keeps at least so many entries.
const KEPT_MIN: usize = 1 << 16;

/// How a node changed, what matters most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// The node itself, or what is known of its inside.
    Node,
    /// Something on it was given back.
    Freed,
    /// Something on it was taken.
    Taken,
}

/// A place in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cursor(u64);

/// Changed nodes in the order of the changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    entries: Vec<(NodeIx, Change)>,
    /// How many entries were dropped before the first.
    dropped: u64,
    /// Something changed that can concern every pod and node (volumes, namespaces).
    epoch: u64,
}

impl Changes {
    pub(crate) fn push(&mut self, node: NodeIx, change: Change, nodes: usize) {
        if self.entries.len() >= KEPT_MIN.max(4 * nodes) {
            let half = self.entries.len() / 2;
            self.entries.drain(..half);
            self.dropped += half as u64;
        }
        self.entries.push((node, change));
    }

    pub(crate) fn everything(&mut self) {
        self.epoch += 1;
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The end of the log.
    pub(crate) fn now(&self) -> Cursor {
        Cursor(self.dropped + self.entries.len() as u64)
    }

    /// What changed since; `None` if that is not known any more.
    pub(crate) fn since(&self, cursor: Cursor) -> Option<&[(NodeIx, Change)]> {
        let skip = usize::try_from(cursor.0.checked_sub(self.dropped)?).ok()?;
        self.entries.get(skip..)
    }

    /// What changed since, leaving out some parts of the log.
    pub(crate) fn since_but(
        &self,
        cursor: Cursor,
        without: &[Range<Cursor>],
    ) -> Option<Vec<(NodeIx, Change)>> {
        let places = (cursor.0..).map(Cursor);
        let counts = |place: &Cursor| !without.iter().any(|range| range.contains(place));
        let entries = self.since(cursor)?.iter().zip(places);
        Some(entries.filter(|(_, place)| counts(place)).map(|(entry, _)| *entry).collect())
    }
}
