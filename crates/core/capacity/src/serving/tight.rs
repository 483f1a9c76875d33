//! Tight plans: the ways to meet each demand with few slices, added up over the services.
//!
//! If `g` GPUs suffice, the services together have no more slices to spare than `g` GPUs have
//! beyond each service's least; a way that wastes more than that is in no plan.

use std::collections::BTreeMap;

use super::ServingError;
use super::pack::Counts;
use super::search::{Problem, Solution, WEIGHTS};

/// Limits: slices beyond its least per service, ways tried and ways kept per service, and sums kept
/// after each service.
const SPARE_MAX: usize = 8;
const TRIED_MAX: usize = 4_000;
const WAYS_MAX: usize = 256;
const SUMS_MAX: usize = 5_000;

/// Limit of sums that are placed on GPUs.
const LAID_MAX: usize = 2_000;

/// Sums of slices after some services: each with the sum before, and the way that was added.
type Layer = BTreeMap<Counts, (Counts, usize)>;

/// Ways to meet one demand, and whether these are all.
struct Ways {
    ways: Vec<Counts>,
    all: bool,
}

impl Problem {
    /// Searches plans on this many GPUs, the fewest slices first; returns whether all were tried.
    pub(super) fn tight(&self, gpus: usize, best: &mut Solution) -> Result<bool, ServingError> {
        let room = self.room(gpus);
        let least = |weight: usize| -> Option<Vec<usize>> {
            (0..self.services()).map(|at| self.least_weight(at, WEIGHTS[weight])).collect()
        };
        let (Some(slices), Some(units)) = (least(0), least(1)) else { return Ok(false) };
        let Some(spare) = room.0.checked_sub(slices.iter().sum()) else { return Ok(true) };
        let each = spare.min(SPARE_MAX);
        let found: Vec<Ways> =
            (0..self.services()).map(|at| self.ways(at, slices[at] + each)).collect();
        let mut all = each == spare && found.iter().all(|ways| ways.all);
        let mut rest = (slices.iter().sum::<usize>(), units.iter().sum::<usize>());
        let mut layers: Vec<Layer> = Vec::with_capacity(found.len());
        let mut sums: Vec<Counts> = vec![vec![0; self.profiles.len()]];
        for (at, ways) in found.iter().enumerate() {
            rest = (rest.0 - slices[at], rest.1 - units[at]);
            let mut layer = Layer::new();
            for sum in &sums {
                for (way, counts) in ways.ways.iter().enumerate() {
                    let next: Counts = sum.iter().zip(counts).map(|(a, b)| a + b).collect();
                    let used = (self.weigh(&next, 0) + rest.0, self.weigh(&next, 1) + rest.1);
                    if used.0 <= room.0 && used.1 <= room.1 {
                        layer.entry(next).or_insert_with(|| (sum.clone(), way));
                    }
                }
            }
            sums = layer.keys().cloned().collect();
            if sums.len() > SUMS_MAX {
                all = false;
                sums.sort_by_key(|sum| (self.weigh(sum, 0), self.weigh(sum, 1)));
                sums.truncate(SUMS_MAX);
            }
            layers.push(layer);
        }
        sums.sort_by_key(|sum| (self.weigh(sum, 0), self.weigh(sum, 1)));
        self.place_first(&sums, &layers, &found, gpus, best).map(|settled| settled && all)
    }

    /// Takes the first of these sums that this many GPUs hold; returns whether none before was left
    /// out.
    fn place_first(
        &self,
        sums: &[Counts],
        layers: &[Layer],
        found: &[Ways],
        gpus: usize,
        best: &mut Solution,
    ) -> Result<bool, ServingError> {
        for sum in sums.iter().take(LAID_MAX) {
            let slices = self.weigh(sum, 0) as u64;
            if (gpus, slices) >= (best.gpus, best.slices) {
                return Ok(true);
            }
            let mut chosen: Vec<Counts> = Vec::with_capacity(layers.len());
            let mut at = sum;
            for (layer, ways) in layers.iter().zip(found).rev() {
                let Some((before, way)) = layer.get(at) else { break };
                chosen.push(ways.ways[*way].clone());
                at = before;
            }
            chosen.reverse();
            let mut offered = Some(best.clone());
            self.offer(chosen, &mut offered)?;
            if let Some(found) = offered {
                *best = found;
            }
            if best.gpus <= gpus {
                return Ok(true);
            }
        }
        Ok(sums.len() <= LAID_MAX)
    }

    fn weigh(&self, counts: &Counts, weight: usize) -> usize {
        let one = |(p, n): (&&'static _, &u32)| WEIGHTS[weight](p) * *n as usize;
        self.profiles.iter().zip(counts).map(one).sum()
    }

    /// The ways to meet a demand with at most this many slices in which every segment is needed.
    fn ways(&self, service: usize, slices_max: usize) -> Ways {
        let mut order: Vec<usize> = (0..self.profiles.len()).collect();
        order.retain(|at| self.throughput(service, *at) > 0);
        order.sort_by_key(|at| std::cmp::Reverse((self.profiles[*at].compute_slices(), *at)));
        let mut found = Ways { ways: Vec::new(), all: true };
        let mut counts = vec![0; self.profiles.len()];
        self.extend(service, &order, self.rate(service), slices_max, &mut counts, &mut found);
        if found.ways.len() > WAYS_MAX {
            found.all = false;
            found.ways.sort_by_key(|way| (self.weigh(way, 0), self.weigh(way, 1)));
            found.ways.truncate(WAYS_MAX);
        }
        found
    }

    /// Adds the ways that continue this one, with the remaining profiles in order. The largest come
    /// first, so that one more of a later profile never makes an earlier one superfluous.
    fn extend(
        &self,
        service: usize,
        order: &[usize],
        left: u64,
        slices_left: usize,
        counts: &mut Counts,
        found: &mut Ways,
    ) {
        if left == 0 {
            found.ways.push(counts.clone());
            return;
        }
        for (at, profile) in order.iter().enumerate() {
            let slices = usize::from(self.profiles[*profile].compute_slices());
            let Some(slices_left) = slices_left.checked_sub(slices) else { continue };
            if found.ways.len() >= TRIED_MAX {
                found.all = false;
                return;
            }
            counts[*profile] += 1;
            let left = left.saturating_sub(self.throughput(service, *profile));
            self.extend(service, &order[at..], left, slices_left, counts, found);
            counts[*profile] -= 1;
        }
    }
}
