//! The log of changed nodes.
//!
//! Readers keep a cursor and catch up when they are used; a reader whose cursor has been dropped
//! starts over.

use std::ops::Range;

use crate::table::NodeIx;

const KEPT_MIN: usize = 1 << 16;

/// How a node changed, most significant first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    /// The node object or its topology.
    Node,
    Freed,
    Taken,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cursor(u64);

#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    entries: Vec<(NodeIx, Change)>,
    /// Entries dropped before the first one kept.
    dropped: u64,
    /// Counts changes that can affect every pod and node (volumes, namespaces).
    pub(crate) epoch: u64,
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

    pub(crate) fn now(&self) -> Cursor {
        Cursor(self.dropped + self.entries.len() as u64)
    }

    /// Changes since the cursor; `None` if some were dropped.
    pub(crate) fn since(&self, cursor: Cursor) -> Option<&[(NodeIx, Change)]> {
        let skip = usize::try_from(cursor.0.checked_sub(self.dropped)?).ok()?;
        self.entries.get(skip..)
    }

    /// The same, leaving out some ranges of the log.
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
