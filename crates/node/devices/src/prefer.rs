//! Chooses the best available devices for a container.
//!
//! Candidates are compared by the parts of [`Cost`] in order: can the set be allocated at all, the scheduler's
//! decisions, GPUs broken into, NUMA nodes spanned, nearness of the set, and nearness of what remains.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::cdi;
use crate::device::{Device, FAR, GpuIndex, Inventory, Kind, SharingMode};

/// Up to this many sets are all compared; otherwise devices are added greedily.
const SETS_MAX: usize = 20_000;

/// The scheduler's decision for a container.
#[derive(Debug, Default)]
pub(crate) struct Preference {
    pub(crate) devices: BTreeSet<usize>,
    /// Empty: any.
    pub(crate) numa: Vec<u32>,
    pub(crate) gpu: Option<GpuIndex>,
    /// Devices decided on for other pods.
    pub(crate) others: BTreeSet<usize>,
}

/// Cost of a set, the most important part first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// GPUs beyond the first, for shares: such a set would be refused.
    apart: usize,
    not_preferred: usize,
    elsewhere: usize,
    preferred_by_others: usize,
    gpus_broken_into: usize,
    gpus: usize,
    numa_nodes: usize,
    distance: u64,
    room_left_on_gpus: usize,
    nearness_left: Reverse<u64>,
    order: Vec<(GpuIndex, u8, usize)>,
}

pub(crate) struct Chooser<'a> {
    pub(crate) inventory: &'a Inventory,
    /// Available devices, including `must`.
    pub(crate) offer: &'a BTreeSet<usize>,
    /// GPUs with any held device.
    pub(crate) in_use: &'a BTreeSet<GpuIndex>,
    pub(crate) preference: &'a Preference,
}

impl Chooser<'_> {
    /// The best `size` devices, including all of `must`; fewer if not enough are available.
    pub(crate) fn choose(&self, must: &BTreeSet<usize>, size: usize) -> BTreeSet<usize> {
        let free: Vec<usize> = self.offer.difference(must).copied().collect();
        let needed = size.saturating_sub(must.len()).min(free.len());
        if needed == 0 {
            return must.clone();
        }
        if sets(free.len(), needed).is_some_and(|sets| sets <= SETS_MAX) {
            self.exhaustive(must, &free, needed)
        } else {
            self.greedy(must, &free, needed)
        }
    }

    fn exhaustive(&self, must: &BTreeSet<usize>, free: &[usize], needed: usize) -> BTreeSet<usize> {
        let mut at: Vec<usize> = (0..needed).collect();
        let mut best: Option<(Cost, BTreeSet<usize>)> = None;
        loop {
            let mut set = must.clone();
            set.extend(at.iter().map(|place| free[*place]));
            let cost = self.cost(&set);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, set));
            }
            // The next combination in lexicographic order.
            let movable = (0..needed).rev().find(|place| at[*place] < free.len() - needed + *place);
            let Some(place) = movable else { break };
            at[place] += 1;
            for later in place + 1..needed {
                at[later] = at[later - 1] + 1;
            }
        }
        best.map_or_else(|| must.clone(), |(_, set)| set)
    }

    fn greedy(&self, must: &BTreeSet<usize>, free: &[usize], needed: usize) -> BTreeSet<usize> {
        let mut set = must.clone();
        for _ in 0..needed {
            let left = free.iter().filter(|device| !set.contains(device));
            let next = left.copied().min_by_key(|device| {
                let mut with = set.clone();
                with.insert(*device);
                self.cost(&with)
            });
            set.extend(next);
        }
        set
    }

    fn cost(&self, set: &BTreeSet<usize>) -> Cost {
        let given = || set.iter().map(|at| &self.inventory.devices()[*at]);
        let gpus: BTreeSet<GpuIndex> = given().map(|device| device.gpu).collect();
        let numa = |gpu: &GpuIndex| self.inventory.gpu(*gpu).map_or(&[][..], |gpu| &gpu.numa[..]);
        let numa_nodes: BTreeSet<&[u32]> = gpus.iter().map(numa).collect();
        let elsewhere = |device: &&Device| {
            let wrong_gpu = self.preference.gpu.is_some_and(|gpu| gpu != device.gpu);
            let nodes = numa(&device.gpu);
            let wrong_node = !self.preference.numa.is_empty()
                && !nodes.is_empty()
                && !nodes.iter().any(|node| self.preference.numa.contains(node));
            wrong_gpu || wrong_node
        };
        let whole = given().all(is_whole);
        let left: Vec<GpuIndex> =
            self.offer.difference(set).map(|at| self.inventory.devices()[*at].gpu).collect();
        let broken = gpus.iter().filter(|gpu| !self.in_use.contains(gpu)).count();
        let given_gpus: Vec<GpuIndex> = gpus.iter().copied().collect();
        let shares = given().filter(|device| matches!(device.sharing, SharingMode::Mps(_)));
        let shared: BTreeSet<&str> =
            shares.map(|device| cdi::name(self.inventory, device)).collect();
        Cost {
            apart: shared.len().saturating_sub(1),
            not_preferred: self.preference.devices.difference(set).count(),
            elsewhere: given().filter(elsewhere).count(),
            preferred_by_others: set.intersection(&self.preference.others).count(),
            gpus_broken_into: if whole { 0 } else { broken },
            gpus: if whole { 0 } else { gpus.len() },
            numa_nodes: numa_nodes.len(),
            distance: self.pairs(&given_gpus, |one, other| self.inventory.distance(one, other)),
            room_left_on_gpus: if whole {
                0
            } else {
                left.iter().filter(|gpu| gpus.contains(gpu)).count()
            },
            nearness_left: Reverse(if whole {
                self.pairs(&left, |one, other| self.nearness(one, other))
            } else {
                0
            }),
            order: set.iter().map(|at| self.order(*at)).collect(),
        }
    }

    fn order(&self, at: usize) -> (GpuIndex, u8, usize) {
        let device = &self.inventory.devices()[at];
        let start = match device.kind {
            Kind::Mig { start, .. } => start,
            Kind::Whole => 0,
        };
        (device.gpu, start, at)
    }

    /// Value of keeping a pair free. It falls off steeply, so that two linked pairs are worth more than three GPUs
    /// of one socket: most pods ask for 1, 2, 4 or 8.
    fn nearness(&self, one: GpuIndex, other: GpuIndex) -> u32 {
        let numa = |gpu| self.inventory.gpu(gpu).map(|gpu| &gpu.numa);
        let linked = FAR * FAR / (self.inventory.distance(one, other) + FAR / 10);
        linked + if numa(one) == numa(other) { FAR } else { 0 }
    }

    fn pairs(&self, gpus: &[GpuIndex], of: impl Fn(GpuIndex, GpuIndex) -> u32) -> u64 {
        let mut sum = 0;
        for (at, one) in gpus.iter().enumerate() {
            for other in &gpus[at + 1..] {
                sum += u64::from(of(*one, *other));
            }
        }
        sum
    }
}

fn is_whole(device: &Device) -> bool {
    device.kind == Kind::Whole && device.sharing == SharingMode::Exclusive
}

/// Number of subsets of size `of`; `None` on overflow.
fn sets(all: usize, of: usize) -> Option<usize> {
    let of = of.min(all - of.min(all));
    (0..of).try_fold(1_usize, |sets, step| Some(sets.checked_mul(all - step)? / (step + 1)))
}
