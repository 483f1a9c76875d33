//! Who comes, and how close together: learned from those who came lately.
//!
//! Owns the last arrivals. A future in which nobody else comes is too rosy, so futures replay a stretch
//! of the recent past from a moment just after some arrival: bursts, quiet hours and the mix of kinds
//! come along without being modelled. Must not know what arrivals do.

use std::collections::VecDeque;

use crate::scene::KindIx;
use berth_model::dice::Dice;

/// So many arrivals are remembered.
const REMEMBERED_MAX: usize = 1_024;

/// With fewer there is nothing to learn from.
const REMEMBERED_MIN: usize = 8;

/// The last arrivals.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals {
    /// When, and which kind.
    recent: VecDeque<(i64, KindIx)>,
}

impl Arrivals {
    /// A pod of a kind has come. Gives the kind that is forgotten for it.
    pub(crate) fn record(&mut self, at_ms: i64, kind: KindIx) -> Option<KindIx> {
        // Told late is as good as now: gaps are what counts.
        let at_ms = self.recent.back().map_or(at_ms, |(last_ms, _)| at_ms.max(*last_ms));
        self.recent.push_back((at_ms, kind));
        (self.recent.len() > REMEMBERED_MAX)
            .then(|| self.recent.pop_front())
            .flatten()
            .map(|(_, kind)| kind)
    }

    /// A stretch of the past to be replayed.
    pub(crate) fn replay(&self, dice: Dice) -> Replay<'_> {
        let known = self.recent.len();
        // If all came at once, nothing says how close together the next will come.
        let spread = self.recent.front().map(|one| one.0) != self.recent.back().map(|one| one.0);
        let last = (known >= REMEMBERED_MIN && spread).then(|| dice.below(0, known - 1));
        Replay { arrivals: self, last }
    }
}

/// A stretch of the past, arrival by arrival; after the last comes the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replay<'a> {
    arrivals: &'a Arrivals,
    last: Option<usize>,
}

impl Replay<'_> {
    /// How long after the one before the next comes, and which kind.
    pub(crate) fn next(&mut self) -> Option<(u64, KindIx)> {
        let recent = &self.arrivals.recent;
        let last = self.last?;
        let next = if last + 1 < recent.len() { last + 1 } else { 0 };
        self.last = Some(next);
        let (at_ms, kind) = *recent.get(next)?;
        let since_ms = recent.get(last).map_or(at_ms, |(last_ms, _)| *last_ms);
        // From the end back to the beginning there is no gap of its own: take the mean.
        let gap_ms = if next > last {
            at_ms.saturating_sub(since_ms)
        } else {
            since_ms.saturating_sub(at_ms) / recent.len().max(1) as i64
        };
        let least_ms = i64::from(next < last);
        Some((gap_ms.max(least_ms) as u64, kind))
    }
}
