//! Arrivals of pods, learned from the recent past.
//!
//! Futures replay a stretch of past arrivals that begins just after one of them, so bursts, quiet
//! hours and the mix of kinds need no model.

use std::collections::VecDeque;

use crate::cluster::KindIx;
use berth_model::dice::Dice;

const REMEMBERED_MAX: usize = 1_024;

/// With fewer arrivals nothing is replayed.
const REMEMBERED_MIN: usize = 8;

#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals {
    recent: VecDeque<(i64, KindIx)>,
}

impl Arrivals {
    /// Records an arrival; returns the kind of the arrival that is forgotten.
    pub(crate) fn record(&mut self, at_ms: i64, kind: KindIx) -> Option<KindIx> {
        // Only gaps matter, so late events count as of now.
        let at_ms = self.recent.back().map_or(at_ms, |(last_ms, _)| at_ms.max(*last_ms));
        self.recent.push_back((at_ms, kind));
        (self.recent.len() > REMEMBERED_MAX)
            .then(|| self.recent.pop_front())
            .flatten()
            .map(|(_, kind)| kind)
    }

    pub(crate) fn replay(&self, dice: Dice) -> Replay<'_> {
        let known = self.recent.len();
        // If all arrived at once, the gaps are unknown.
        let spread = self.recent.front().map(|one| one.0) != self.recent.back().map(|one| one.0);
        let last = (known >= REMEMBERED_MIN && spread).then(|| dice.below(0, known - 1));
        Replay { arrivals: self, last }
    }
}

/// A replay of past arrivals, starting over after the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replay<'a> {
    arrivals: &'a Arrivals,
    last: Option<usize>,
}

impl Replay<'_> {
    /// The time since the previous arrival, and the kind.
    pub(crate) fn next(&mut self) -> Option<(u64, KindIx)> {
        let recent = &self.arrivals.recent;
        let last = self.last?;
        let next = if last + 1 < recent.len() { last + 1 } else { 0 };
        self.last = Some(next);
        let (at_ms, kind) = *recent.get(next)?;
        let since_ms = recent.get(last).map_or(at_ms, |(last_ms, _)| *last_ms);
        // From the end back to the beginning there is no gap, so the mean is used.
        let gap_ms = if next > last {
            at_ms.saturating_sub(since_ms)
        } else {
            since_ms.saturating_sub(at_ms) / recent.len().max(1) as i64
        };
        let least_ms = i64::from(next < last);
        Some((gap_ms.max(least_ms) as u64, kind))
    }
}
