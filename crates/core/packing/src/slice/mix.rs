//! The mix: what kinds of requests come, and how often.
//!
//! Owns the weights and how they are learned. It must not know GPUs. Weights are integers, so what
//! is learned depends on the arrivals and their order alone.

use super::want::Want;

/// What one arrival adds to its kind's weight.
const ARRIVAL: u64 = 1 << 16;

/// After so many arrivals, all weights are halved: older arrivals count for less and less.
const HALVED_AFTER: u32 = 1_024;

/// The most kinds that are kept; a stream of ever new kinds drops the lightest.
const KINDS_MAX: usize = 64;

/// One kind of request and its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// What it asks for.
    pub want: Want,
    /// How often it comes, relative to the others.
    pub weight: u64,
}

/// Kinds of requests with their weights; kinds come in the order in which they were first seen.
///
/// Begin with what may come, such as one of each profile: a mix that has seen two small requests
/// knows of no large ones, and would spare nothing for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mix {
    kinds: Vec<Kind>,
    since_halved: u32,
}

impl Mix {
    /// Nothing known.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Kinds with these weights; of equal kinds the weights add up, and a weight of 0 is no kind.
    #[must_use]
    pub fn from_weights(weights: impl IntoIterator<Item = (Want, u32)>) -> Self {
        let mut mix = Self::new();
        for (want, weight) in weights {
            mix.add(&want, u64::from(weight).saturating_mul(ARRIVAL));
        }
        mix
    }

    /// Counts an arrival.
    pub fn arrived(&mut self, want: &Want) {
        self.since_halved += 1;
        if self.since_halved >= HALVED_AFTER {
            self.since_halved = 0;
            self.kinds.iter_mut().for_each(|kind| kind.weight /= 2);
            self.kinds.retain(|kind| kind.weight > 0);
        }
        self.add(want, ARRIVAL);
    }

    /// This mix and so many requests that wait, each counted as an arrival.
    #[must_use]
    pub fn with_pending<'a>(&self, pending: impl IntoIterator<Item = (&'a Want, u32)>) -> Self {
        let mut mix = self.clone();
        for (want, count) in pending {
            mix.add(want, u64::from(count).saturating_mul(ARRIVAL));
        }
        mix
    }

    /// The kinds.
    #[must_use]
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    fn add(&mut self, want: &Want, weight: u64) {
        if weight == 0 {
            return;
        }
        if let Some(kind) = self.kinds.iter_mut().find(|kind| kind.want == *want) {
            kind.weight = kind.weight.saturating_add(weight);
            return;
        }
        if self.kinds.len() >= KINDS_MAX
            && let Some((lightest, _)) =
                self.kinds.iter().enumerate().min_by_key(|(_, kind)| kind.weight)
        {
            self.kinds.remove(lightest);
        }
        self.kinds.push(Kind { want: want.clone(), weight });
    }
}
