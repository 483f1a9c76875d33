//! Inputs and results of forecasts.

use std::sync::Arc;

use berth_model::node::Node;

/// The probabilities for which a bound is given, in thousandths.
pub const LEVELS_MILLI: [u16; LEVELS] = [100, 250, 500, 650, 800, 900, 950];

pub const LEVELS: usize = 7;

/// The end of every forecast: a fortnight.
pub const HORIZON_MS: u64 = 14 * 86_400_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the latest: a deadline (`activeDeadlineSeconds`), or the end of its grace period.
    By(i64),
    /// Declared by its owner.
    At(i64),
}

/// What keeps a pod from being scheduled at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    Quota(Arc<str>),
    Share,
    /// `spec.schedulingGates`.
    Gates(Vec<Arc<str>>),
}

#[derive(Clone, Debug)]
pub struct PlannedNode {
    pub node: Node,
    /// Not before this time.
    pub earliest_ms: i64,
    /// At the latest, if it comes at all; uniformly distributed.
    pub latest_ms: i64,
    /// Probability that it comes, in thousandths.
    pub chance_milli: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    pub pod: Arc<str>,
    pub at_ms: i64,
    pub outlook: Outlook,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlook {
    Starts(Box<Eta>),
    /// Not before it is released.
    Held(Hold),
    /// Not before capacity is added: no existing or planned node would do even if it were empty.
    NeedsCapacity(Lack),
    /// Never: it requests one node by name, which is too small even when empty.
    Never {
        node: Arc<str>,
    },
}

/// Why no node would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// No node has the labels it selects and only taints it tolerates.
    Match,
    /// Nodes match, but none is large enough.
    Size,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eta {
    /// For each of [`LEVELS_MILLI`]: it starts within this time, with that probability. `None`: not
    /// within [`HORIZON_MS`].
    pub within_ms: [Option<u64>; LEVELS],
    /// The same before correction by past forecasts.
    pub simulated_ms: [Option<u64>; LEVELS],
    pub futures: usize,
    pub confidence: Confidence,
    /// Running pods whose ends made room most often.
    pub waits_for: Vec<Blocker>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    pub pod: Arc<str>,
    pub name: Arc<str>,
    /// In how many of a thousand futures its end made room.
    pub share_milli: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confidence {
    pub grade: Grade,
    /// Reasons for a lower grade, worst first.
    pub doubts: Vec<Doubt>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    Low,
    /// The order of magnitude is right.
    Medium,
    /// Similar forecasts came true as often as they said.
    High,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Number of similar pods that have ended.
    FewLifetimes(usize),
    /// Number of similar forecasts that were settled.
    FewForecasts(usize),
    /// In how many of a thousand futures it did not start.
    OftenNotStarting(u16),
    /// The pod has affinity, spread constraints or volumes, which futures leave out.
    RulesLeftOut,
}

impl Eta {
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

    /// The probability that it starts within this time, in thousandths, at most the highest level.
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
