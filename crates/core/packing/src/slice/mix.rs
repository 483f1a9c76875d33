//! The mix: kinds of slice requests with weights learned from arrivals. Weights are integers, so
//! they depend on the arrivals and their order alone.

use super::want::SliceRequest;

/// Weight added by one arrival.
const ARRIVAL: u64 = 1 << 16;

/// After this many arrivals, all weights are halved: older arrivals count for less and less.
const HALVED_AFTER: u32 = 1_024;

/// Limit of kinds; a stream of ever new kinds drops the lightest.
const KINDS_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    pub want: SliceRequest,
    /// Relative frequency.
    pub weight: u64,
}

/// Kinds of requests with their weights, in the order in which they were first seen.
///
/// Begin with what may come, such as one of each profile: a mix that has seen two small requests
/// knows of no large ones, and spares nothing for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mix {
    kinds: Vec<Kind>,
    since_halved: u32,
}

impl Mix {
    pub fn new() -> Self {
        Self::default()
    }

    /// Weights of equal kinds add up; kinds with weight 0 are dropped.
    pub fn from_weights(weights: impl IntoIterator<Item = (SliceRequest, u32)>) -> Self {
        let mut mix = Self::new();
        for (want, weight) in weights {
            mix.add(&want, u64::from(weight).saturating_mul(ARRIVAL));
        }
        mix
    }

    pub fn arrived(&mut self, want: &SliceRequest) {
        self.since_halved += 1;
        if self.since_halved >= HALVED_AFTER {
            self.since_halved = 0;
            self.kinds.iter_mut().for_each(|kind| kind.weight /= 2);
            self.kinds.retain(|kind| kind.weight > 0);
        }
        self.add(want, ARRIVAL);
    }

    /// The mix with pending requests counted as arrivals.
    pub fn with_pending<'a>(
        &self,
        pending: impl IntoIterator<Item = (&'a SliceRequest, u32)>,
    ) -> Self {
        let mut mix = self.clone();
        for (want, count) in pending {
            mix.add(want, u64::from(count).saturating_mul(ARRIVAL));
        }
        mix
    }

    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    fn add(&mut self, want: &SliceRequest, weight: u64) {
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
