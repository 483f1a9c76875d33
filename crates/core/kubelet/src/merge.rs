//! The topology manager's merge: one hint out of the hints of all resources.
//!
//! The kubelet forms every combination of one hint per resource, ANDs the masks of each, and keeps
//! the best result; with 255 hints per resource on 8 NUMA nodes that is billions of combinations.
//! This computes the same choice without them:
//!
//! - A combination is preferred only if all its masks are the same one and each is preferred, so a
//!   preferred result is found by asking about single masks, narrowest first.
//! - Only if there is none, and the policy admits such pods, it matters which masks some
//!   combination ANDs to. The number of combinations that give exactly mask `M` is, by inclusion
//!   and exclusion over the supersets of `M`, obtained from how many hints of each resource contain
//!   it (a zeta transform over the lattice of masks, a product, and the inverse transform).

use berth_model::machine::Machine;
use berth_model::numa::NumaMask;
use smallvec::SmallVec;

use crate::config::TopologyPolicy;
use crate::hint::{Hint, HintSource, Hints};

type Requests<'v> = SmallVec<[&'v dyn Hints; 8]>;

/// One entry per subset of the relevant NUMA nodes; on the stack up to 8 of them.
type PerMask = SmallVec<[u64; 256]>;

pub(crate) struct Merge<'m> {
    pub(crate) machine: &'m Machine,
    pub(crate) policy: TopologyPolicy,
    pub(crate) prefer_closest: bool,
}

impl Merge<'_> {
    /// `None` if the policy does not admit the best hint.
    pub(crate) fn best(&self, sources: &[HintSource<'_>]) -> Option<Hint> {
        let possible = !sources.iter().any(|hints| matches!(hints, HintSource::Impossible));
        let requests: Requests<'_> = sources.iter().filter_map(HintSource::hints).collect();
        let all = self.machine.all_numa();
        let preferred = |numa| Some(Hint { numa, preferred: true });
        match self.policy {
            TopologyPolicy::None => Some(Hint::NO_POLICY),
            TopologyPolicy::SingleNumaNode if !possible => None,
            TopologyPolicy::SingleNumaNode if requests.is_empty() => preferred(None),
            TopologyPolicy::SingleNumaNode => {
                let single = self.preferred_of_size(&requests, common_domain(&requests), 1)?;
                preferred((single != all).then_some(single))
            }
            _ if possible && requests.is_empty() => preferred(Some(all)),
            _ => match possible.then(|| self.preferred(&requests)).flatten() {
                Some(mask) => preferred(Some(mask)),
                None if self.policy == TopologyPolicy::Restricted => None,
                None => Some(Hint { numa: Some(self.compromise(&requests)), preferred: false }),
            },
        }
    }

    /// The best mask that every resource prefers.
    fn preferred(&self, requests: &Requests<'_>) -> Option<NumaMask> {
        let domain = common_domain(requests);
        // Resources that prefer one size leave no choice of size; the others prefer several.
        let mut fixed =
            requests.iter().filter(|request| !request.prefers_wider()).map(|w| w.narrowest());
        match fixed.next() {
            Some(size) if fixed.all(|other| other == size) => {
                self.preferred_of_size(requests, domain, size)
            }
            Some(_) => None,
            None => {
                (1..=domain.count()).find_map(|size| self.preferred_of_size(requests, domain, size))
            }
        }
    }

    fn preferred_of_size(
        &self,
        requests: &Requests<'_>,
        domain: NumaMask,
        size: usize,
    ) -> Option<NumaMask> {
        let mut agreed = domain.subsets(size).filter(|mask| {
            requests.iter().all(|request| request.preferred(*mask) && request.feasible(*mask))
        });
        if self.compares_distances() {
            agreed.min_by_key(|mask| (self.total_distance(*mask), *mask))
        } else {
            agreed.next()
        }
    }

    /// The best mask that some combination of hints ANDs to, if none is preferred.
    fn compromise(&self, requests: &Requests<'_>) -> NumaMask {
        // The result is within every domain, so the hints' parts in the common domain suffice.
        let domain = common_domain(requests) & self.machine.all_numa();
        let mut reached: Option<PerMask> = None;
        let mut widest_need = 0;
        for request in requests {
            let (hints, narrowest) = hint_table(*request, domain);
            widest_need = widest_need.max(narrowest);
            for _ in 0..request.resources() {
                reached = Some(match reached {
                    None => hints.clone(),
                    Some(reached) => intersections(reached, hints.clone()),
                });
            }
        }
        let reached = reached.unwrap_or_default();
        (1..reached.len())
            .filter(|index| reached[*index] != 0)
            .map(|index| domain.spread(index as u64))
            .min_by_key(|mask| self.rank(*mask, widest_need))
            .unwrap_or(self.machine.all_numa())
    }

    /// Lower is better: as many nodes as the neediest resource needs at least, else the most below
    /// that, else the fewest above.
    fn rank(&self, mask: NumaMask, widest_need: usize) -> (usize, u64, NumaMask) {
        let size = mask.count();
        let by_size =
            if size <= widest_need { widest_need - size } else { NumaMask::CAPACITY + size };
        let distance = if self.compares_distances() { self.total_distance(mask) } else { 0 };
        (by_size, distance, mask)
    }

    fn compares_distances(&self) -> bool {
        self.prefer_closest && self.policy != TopologyPolicy::SingleNumaNode
    }

    /// Sum of the distances between all pairs of nodes, each with itself included. Masks are
    /// compared only with masks of the same size, so this orders them as their mean does.
    fn total_distance(&self, mask: NumaMask) -> u64 {
        let distances = |from: usize| {
            let row = self.machine.numa()[from].distances.as_slice();
            mask.iter().filter_map(move |to| row.get(to)).map(|distance| u64::from(*distance))
        };
        mask.iter().flat_map(distances).sum()
    }
}

fn common_domain(requests: &Requests<'_>) -> NumaMask {
    let all = NumaMask::first(NumaMask::CAPACITY);
    requests.iter().fold(all, |common, request| common & request.domain())
}

/// 1 for every subset of `common` that is a hint's part in it, and the size of the narrowest hint.
fn hint_table(request: &dyn Hints, common: NumaMask) -> (PerMask, usize) {
    let mut table = PerMask::from_elem(0, 1 << common.count());
    let domain = request.domain();
    let mut narrowest = usize::MAX;
    for index in 1..1 << domain.count() {
        let mask = domain.spread(index);
        if request.feasible(mask) {
            narrowest = narrowest.min(mask.count());
            let part = if domain == common { index } else { common.gather(mask) };
            table[part as usize] = 1;
        }
    }
    (table, if narrowest == usize::MAX { 0 } else { narrowest })
}

/// 1 for every mask that is the intersection of one mask of each table.
fn intersections(mut one: PerMask, mut other: PerMask) -> PerMask {
    sum_over_supersets(&mut one, u64::wrapping_add);
    sum_over_supersets(&mut other, u64::wrapping_add);
    one.iter_mut().zip(&other).for_each(|(one, other)| *one *= other);
    sum_over_supersets(&mut one, u64::wrapping_sub);
    one.iter_mut().for_each(|pairs| *pairs = u64::from(*pairs != 0));
    one
}

/// Replaces every entry by the sum over its supersets, or the inverse.
fn sum_over_supersets(table: &mut [u64], combine: impl Fn(u64, u64) -> u64) {
    let mut stride = 1;
    while stride < table.len() {
        for block in table.chunks_exact_mut(2 * stride) {
            let (without, with) = block.split_at_mut(stride);
            for (without, with) in without.iter_mut().zip(with) {
                *without = combine(*without, *with);
            }
        }
        stride *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intersections_are_those_of_the_cross_product() {
        let mut seed = 1u64;
        let mut random = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed >> 33
        };
        for nodes in 1..=6 {
            for _ in 0..50 {
                let size = 1usize << nodes;
                let table = |density: u64, random: &mut dyn FnMut() -> u64| -> PerMask {
                    (0..size).map(|i| u64::from(i > 0 && random() % 8 < density)).collect()
                };
                let (a, b) = (table(3, &mut random), table(5, &mut random));
                let mut expected = PerMask::from_elem(0, size);
                for i in (0..size).filter(|i| a[*i] == 1) {
                    for j in (0..size).filter(|j| b[*j] == 1) {
                        expected[i & j] = 1;
                    }
                }
                assert_eq!(intersections(a, b), expected);
            }
        }
    }
}
