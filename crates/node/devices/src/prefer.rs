//! Which of the devices on offer are the best to give.
//!
//! Owns the rule, a cost that is compared part by part: first what can be given together at all, then what the
//! scheduler decided and what it decided for others, then as few GPUs broken into and NUMA nodes spanned as possible, nearness of what is
//! given, and nearness of what is left. Must not know how devices come to be on offer.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::cdi;
use crate::device::{Device, FAR, GpuIndex, Inventory, Kind, SharingMode};

/// Sets of devices that are compared one by one; beyond it devices are added one after the other.
const SETS_MAX: usize = 20_000;

/// What is wished and what is to be avoided.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    /// Devices that were decided on.
    pub(crate) devices: BTreeSet<usize>,
    /// NUMA nodes that were decided on; none: any.
    pub(crate) numa: Vec<u32>,
    /// The GPU that was decided on.
    pub(crate) gpu: Option<GpuIndex>,
    /// Devices that were decided on for others.
    pub(crate) others: BTreeSet<usize>,
}

/// The cost of giving a set, the most important part first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Shares of more than one GPU: they would be refused.
    apart: usize,
    not_wished: usize,
    elsewhere: usize,
    of_others: usize,
    gpus_broken_into: usize,
    gpus: usize,
    numa_nodes: usize,
    distance: u64,
    room_left_on_them: usize,
    nearness_left: Reverse<u64>,
    order: Vec<(GpuIndex, u8, usize)>,
}

/// Chooses among what is on offer.
pub(crate) struct Chooser<'a> {
    pub(crate) inventory: &'a Inventory,
    /// Devices on offer, `must` included.
    pub(crate) offer: &'a BTreeSet<usize>,
    /// GPUs on which somebody holds something.
    pub(crate) in_use: &'a BTreeSet<GpuIndex>,
    pub(crate) wish: &'a Wish,
}

impl Chooser<'_> {
    /// The best `size` devices, with all of `must` among them; fewer if there are not as many.
    pub(crate) fn choose(&self, must: &BTreeSet<usize>, size: usize) -> BTreeSet<usize> {
        let free: Vec<usize> = self.offer.difference(must).copied().collect();
        let needed = size.saturating_sub(must.len()).min(free.len());
        if needed == 0 {
            return must.clone();
        }
        if sets(free.len(), needed).is_some_and(|sets| sets <= SETS_MAX) {
            self.of_all(must, &free, needed)
        } else {
            self.one_by_one(must, &free, needed)
        }
    }

    fn of_all(&self, must: &BTreeSet<usize>, free: &[usize], needed: usize) -> BTreeSet<usize> {
        let mut at: Vec<usize> = (0..needed).collect();
        let mut best: Option<(Cost, BTreeSet<usize>)> = None;
        loop {
            let mut set = must.clone();
            set.extend(at.iter().map(|place| free[*place]));
            let cost = self.cost(&set);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, set));
            }
            // The next combination in order: the last place that can move on does.
            let movable = (0..needed).rev().find(|place| at[*place] < free.len() - needed + *place);
            let Some(place) = movable else { break };
            at[place] += 1;
            for later in place + 1..needed {
                at[later] = at[later - 1] + 1;
            }
        }
        best.map_or_else(|| must.clone(), |(_, set)| set)
    }

    fn one_by_one(&self, must: &BTreeSet<usize>, free: &[usize], needed: usize) -> BTreeSet<usize> {
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
            let wrong_gpu = self.wish.gpu.is_some_and(|gpu| gpu != device.gpu);
            let nodes = numa(&device.gpu);
            let wrong_node = !self.wish.numa.is_empty()
                && !nodes.is_empty()
                && !nodes.iter().any(|node| self.wish.numa.contains(node));
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
            not_wished: self.wish.devices.difference(set).count(),
            elsewhere: given().filter(elsewhere).count(),
            of_others: set.intersection(&self.wish.others).count(),
            gpus_broken_into: if whole { 0 } else { broken },
            gpus: if whole { 0 } else { gpus.len() },
            numa_nodes: numa_nodes.len(),
            distance: self.pairs(&given_gpus, |one, other| self.inventory.distance(one, other)),
            room_left_on_them: if whole {
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

    /// What a pair is worth. It falls off steeply, so that two pairs that are linked are worth more than three
    /// GPUs that merely share a socket: most work asks for 1, 2, 4 or 8.
    fn nearness(&self, one: GpuIndex, other: GpuIndex) -> u32 {
        let numa = |gpu| self.inventory.gpu(gpu).map(|gpu| &gpu.numa);
        let linked = FAR * FAR / (self.inventory.distance(one, other) + FAR / 10);
        linked + if numa(one) == numa(other) { FAR } else { 0 }
    }

    /// The sum of something over all pairs.
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

/// How many sets of `of` there are among `all`; `None`: very many.
fn sets(all: usize, of: usize) -> Option<usize> {
    let of = of.min(all - of.min(all));
    (0..of).try_fold(1_usize, |sets, step| Some(sets.checked_mul(all - step)? / (step + 1)))
}
