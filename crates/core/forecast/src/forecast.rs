//! What is told about a waiting pod, and what is told to those who foresee.
//!
//! Owns the vocabulary only. English is in [`words`](crate::words).

use std::sync::Arc;

use berth_model::node::Node;

/// The probabilities for which a bound is given, in thousandths.
pub const LEVELS_MILLI: [u16; LEVELS] = [100, 250, 500, 650, 800, 900, 950];

/// How many there are.
pub const LEVELS: usize = 7;

/// Nothing later is foretold: a fortnight.
pub const HORIZON_MS: u64 = 14 * 86_400_000;

/// When a running pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At this time at the latest: a deadline (`activeDeadlineSeconds`), or the end of its grace.
    By(i64),
    /// At this time, as whoever runs it has declared.
    At(i64),
}

/// What keeps a pod from looking for a place at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// A quota of this name is used up.
    Quota(Arc<str>),
    /// Its team has as much as it may have.
    Share,
    /// It is not to be scheduled yet (`schedulingGates`).
    Gates(Vec<Arc<str>>),
}

/// A node that is to come.
#[derive(Clone, Debug)]
pub struct PlannedNode {
    /// The node as it will be.
    pub node: Node,
    /// Not before this time.
    pub earliest_ms: i64,
    /// By this time, if it comes at all; any time between is as likely.
    pub latest_ms: i64,
    /// How likely it is to come, in thousandths.
    pub chance_milli: u16,
}

/// What is to be expected for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The pod's UID.
    pub pod: Arc<str>,
    /// When this was said.
    pub at_ms: i64,
    /// What was said.
    pub outlook: Outlook,
}

/// When a pod starts, or why that cannot be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// As room comes free.
    Starts(Box<Eta>),
    /// Not before whatever holds it lets go.
    Held(Hold),
    /// Not before capacity is added: no node, present or planned, would do even if it were empty.
    NeedsCapacity(Lack),
    /// Never: it insists on one node by name, and that is too small even when it is empty.
    Never {
        /// The node.
        node: Arc<str>,
    },
}

/// What no node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The labels it selects, or no taint that it does not tolerate.
    Match,
    /// Nodes match, but none is large enough.
    Size,
}

/// The time until a pod starts, as a distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eta {
    /// For each of [`LEVELS_MILLI`]: it starts within so long, with that probability. `None`: not
    /// within [`HORIZON_MS`].
    pub within_ms: [Option<u64>; LEVELS],
    /// The same as the futures gave it, before past forecasts corrected it.
    pub simulated_ms: [Option<u64>; LEVELS],
    /// In how many futures that was tried.
    pub futures: usize,
    /// How far it can be relied on.
    pub confidence: Confidence,
    /// Whose ends made room most often, most often first.
    pub waits_for: Vec<Blocker>,
}

/// A running pod that is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its UID.
    pub pod: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// In how many of a thousand futures its end made room.
    pub share_milli: u16,
}

/// How far a forecast can be relied on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confidence {
    /// In one word.
    pub grade: Grade,
    /// What keeps it from being higher, worst first.
    pub doubts: Vec<Doubt>,
}

/// How far a forecast can be relied on, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// It is a guess.
    Low,
    /// The order of magnitude is right.
    Medium,
    /// Forecasts like it have come true as often as they said.
    High,
}

/// A reason to rely on a forecast less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Few pods like those that run have been seen to end.
    FewLifetimes(usize),
    /// Few forecasts like this one have been checked.
    FewForecasts(usize),
    /// In so many of a thousand futures it did not start at all.
    OftenNotAtAll(u16),
    /// The pod has wishes about neighbours or volumes that futures leave out.
    WishesLeftOut,
}

impl Eta {
    /// Half of such pods start within this time.
    pub fn median_ms(&self) -> Option<u64> {
        self.within_ms(500)
    }

    /// The time within which it starts with this probability, in thousandths.
    pub fn within_ms(&self, probability_milli: u16) -> Option<u64> {
        let above = LEVELS_MILLI.iter().position(|level| *level >= probability_milli)?;
        let (to, to_ms) = (LEVELS_MILLI[above], self.within_ms[above]?);
        let (from, from_ms) = match above.checked_sub(1) {
            Some(below) => (LEVELS_MILLI[below], self.within_ms[below]?),
            None => (0, 0),
        };
        let share = f64::from(probability_milli - from) / f64::from(to - from);
        Some(from_ms + (to_ms.saturating_sub(from_ms) as f64 * share) as u64)
    }

    /// The probability that it starts within this time, in thousandths. Never more than the highest
    /// level: beyond that, nothing is known.
    pub fn probability_milli(&self, span_ms: u64) -> u16 {
        let (mut from, mut from_ms) = (0, 0);
        for (level, within_ms) in LEVELS_MILLI.into_iter().zip(self.within_ms) {
            match within_ms {
                Some(within_ms) if within_ms <= span_ms => (from, from_ms) = (level, within_ms),
                Some(within_ms) => {
                    let share = (span_ms - from_ms) as f64 / (within_ms - from_ms) as f64;
                    return from + (f64::from(level - from) * share) as u16;
                }
                None => break,
            }
        }
        from
    }
}
