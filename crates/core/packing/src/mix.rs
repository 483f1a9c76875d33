//! The mix of work, learned from arrivals. Every arriving pod counts, placed or not; nothing is
//! known in advance.

use std::collections::BTreeMap;

use crate::request::{GpuRequest, Request};

/// Beyond this number of observations all counts are halved, so half of the memory is recent.
const OBSERVATIONS_MAX: u64 = 16_384;

/// Limit of distinct requests; beyond it the rarest are forgotten.
const REQUESTS_MAX: usize = 1_024;

/// The mix is compared again after an eighth as many observations as there are, within these
/// bounds.
const LOOK_AFTER: (u64, u64) = (16, 512);

/// The part of the mix that must have moved to count as a change, in thousandths.
const CHANGED_MILLI: u64 = 20;

/// How often requests for GPUs were observed.
#[derive(Clone, Debug, Default)]
pub struct Mix {
    counts: BTreeMap<Request, Count>,
    total: u64,
    /// Observations at the last comparison, and since.
    settled_total: u64,
    since_look: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    now: u64,
    /// The count when the mix last changed.
    settled: u64,
}

impl Mix {
    /// Counts an arrival. Returns whether the mix has changed enough for a new
    /// [`Rule`](crate::score::Rule).
    pub fn observe(&mut self, request: &Request) -> bool {
        if request.gpus == GpuRequest::None {
            return false;
        }
        self.counts.entry(*request).or_default().now += 1;
        self.total += 1;
        self.since_look += 1;
        if self.total > OBSERVATIONS_MAX || self.counts.len() > REQUESTS_MAX {
            self.halve();
        }
        if self.since_look < (self.total / 8).clamp(LOOK_AFTER.0, LOOK_AFTER.1) {
            return false;
        }
        self.since_look = 0;
        let changed = self.has_changed();
        if changed {
            self.settled_total = self.total;
            self.counts.values_mut().for_each(|count| count.settled = count.now);
        }
        changed
    }

    /// Replaces model indexes: `moved[old]` is the new index.
    pub fn renumber(&mut self, moved: &[u8]) {
        let counts = std::mem::take(&mut self.counts);
        for (request, count) in counts {
            let sum = self.counts.entry(request.with_models(request.models.moved(moved)));
            let sum = sum.or_default();
            sum.now += count.now;
            sum.settled += count.settled;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Request, u64)> {
        self.counts.iter().map(|(request, count)| (request, count.now))
    }

    /// Whether the shares of requests differ from those at the last change.
    fn has_changed(&self) -> bool {
        if self.settled_total == 0 {
            return true;
        }
        // Half the sum of differences of shares; both sides times the product of the totals.
        let moved: u64 = self
            .counts
            .values()
            .map(|count| (count.now * self.settled_total).abs_diff(count.settled * self.total))
            .sum();
        moved * 1_000 / 2 > CHANGED_MILLI * self.total * self.settled_total
    }

    fn halve(&mut self) {
        self.counts.retain(|_, count| {
            count.now /= 2;
            count.settled /= 2;
            count.now > 0
        });
        self.total = self.counts.values().map(|count| count.now).sum();
        self.settled_total = self.counts.values().map(|count| count.settled).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Models, Part};

    fn share(milli: u16) -> Request {
        Request { gpus: GpuRequest::Share(Part::even(milli)), ..Request::default() }
    }

    #[test]
    fn a_steady_mix_stops_changing_and_a_new_kind_of_work_changes_it() {
        let mut mix = Mix::default();
        let steady = |mix: &mut Mix, pods: usize| {
            (0..pods).filter(|at| mix.observe(&share(if at % 3 == 0 { 470 } else { 810 }))).count()
        };
        assert!(steady(&mut mix, 1_000) >= 1);
        assert_eq!(steady(&mut mix, 10_000), 0);
        assert!((0..2_000).any(|_| mix.observe(&share(200))));
    }

    #[test]
    fn pods_without_gpus_do_not_count() {
        let mut mix = Mix::default();
        assert!((0..1_000).all(|_| !mix.observe(&Request::default())));
        assert_eq!(mix.iter().count(), 0);
    }

    #[test]
    fn models_can_be_numbered_anew() {
        let mut mix = Mix::default();
        let of = |models| share(500).with_models(models);
        mix.observe(&of(Models(0b11)));
        mix.observe(&of(Models::ANY));
        mix.renumber(&[0, 2]);
        let seen: Vec<Request> = mix.iter().map(|(request, _)| *request).collect();
        assert_eq!(seen, [of(Models(0b101)), of(Models::ANY)]);
    }

    #[test]
    fn the_mix_is_bounded() {
        let mut mix = Mix::default();
        for cpu_milli in 0..100_000 {
            mix.observe(&Request { cpu_milli, gpus: GpuRequest::Whole(1), ..Request::default() });
            mix.observe(&share(500));
        }
        assert!(mix.iter().count() <= REQUESTS_MAX);
        assert!(mix.total <= OBSERVATIONS_MAX);
        let (_, halves) = mix.iter().find(|(request, _)| **request == share(500)).unwrap();
        assert!(halves * 2 > mix.total, "{halves} of {}", mix.total);
    }
}
