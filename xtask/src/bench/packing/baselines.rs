//! Random, BestFit and FGD as in the simulator of the FGD paper (hkust-adsl's
//! kubernetes-scheduler-simulator, 8f3d641), for comparison only.
//!
//! Owns their definitions, with their truncations. Ties go to the smallest node name, as there.
//! Means agree with the published ones to 0.4 points, but for FGD where CPU is scarce: 91.5 instead of
//! 93.4 on `cpu250`. Ties decide there. With the nodes put into other orders first, FGD gives 93.3 to
//! 93.5 on that list, so the published runs probably had other names.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use berth_packing::node::{FreeNode, GpuPositions};
use berth_packing::request::{GpuRequest, Models, Part, Request};
use berth_testkit::cluster::Dice;

use super::ranked::{IMPOSSIBLE, Judge};
use super::trace::PodList;

/// Any node that can take the pod; any of its GPUs.
pub(crate) struct Random(pub(crate) Dice);

impl Judge for Random {
    fn cost(&self, _node: &FreeNode, _request: &Request) -> i64 {
        0
    }

    fn gpus(&mut self, node: &FreeNode, request: &Request) -> GpuPositions {
        let GpuRequest::Share(part) = request.gpus else {
            return node.first_unused(request.gpus.count());
        };
        let fitting: Vec<u16> = fitting(node, part).collect();
        fitting.get(self.0.below(fitting.len())).copied().into_iter().collect()
    }

    fn pick(&mut self, costs: &[i64]) -> Option<usize> {
        let able: Vec<usize> = costs
            .iter()
            .zip(0..)
            .filter(|(cost, _)| **cost != IMPOSSIBLE)
            .map(|(_, at)| at)
            .collect();
        able.get(self.0.below(able.len())).copied()
    }
}

/// The fullest node by CPU and GPUs, and the fullest of its GPUs.
pub(crate) struct BestFit;

/// The largest machine there, by which free amounts are scaled.
const CPU_MILLI_MAX: f64 = 128_000.0;
const GPU_MILLI_MAX: f64 = 8_000.0;

impl Judge for BestFit {
    fn cost(&self, node: &FreeNode, request: &Request) -> i64 {
        let cpu = (node.cpu_milli - request.cpu_milli) as f64;
        let gpu = (free_milli(node) - request.gpus.total_milli()) as f64;
        let free = cpu / CPU_MILLI_MAX * 0.5 + gpu / GPU_MILLI_MAX * 0.5;
        -(((1.0 - free) * 100.0) as i64)
    }

    fn gpus(&mut self, node: &FreeNode, request: &Request) -> GpuPositions {
        let GpuRequest::Share(part) = request.gpus else {
            return node.first_unused(request.gpus.count());
        };
        let free = |at: &u16| node.gpus.get(usize::from(*at)).map(|free| free.room_milli());
        fitting(node, part).min_by_key(free).into_iter().collect()
    }

    /// Costs are spread over 0 to 100 first, which makes neighbours equal where they differ much.
    fn pick(&mut self, costs: &[i64]) -> Option<usize> {
        let able = || costs.iter().copied().filter(|cost| *cost != IMPOSSIBLE);
        let (least, most) = (able().min()?, able().max()?);
        let score =
            |cost: i64| if most == least { 0 } else { (most - cost) * 100 / (most - least) };
        let best = score(least);
        costs.iter().position(|cost| *cost != IMPOSSIBLE && score(*cost) == best)
    }
}

/// How much of the largest machine is free: from 0 to 2, for CPU and GPUs together.
fn free_part(node: &FreeNode) -> f64 {
    node.cpu_milli as f64 / CPU_MILLI_MAX + free_milli(node) as f64 / GPU_MILLI_MAX
}

fn free_milli(node: &FreeNode) -> u64 {
    node.gpus.iter().map(|free| u64::from(free.room_milli())).sum()
}

fn fitting(node: &FreeNode, part: Part) -> impl Iterator<Item = u16> {
    (0_u16..).zip(&node.gpus).filter(move |(_, free)| free.holds(part)).map(|(at, _)| at)
}

/// Fragmentation gradient descent: least growth of the GPUs that typical pods cannot use.
pub(crate) struct Fgd {
    typical: Vec<Typical>,
    ties: FgdTies,
}

/// Whom FGD takes among nodes of one score. Its scores are whole numbers, so there are many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FgdTies {
    /// The smallest name, as in the published runs.
    Name,
    /// The fullest node, which serves it better on most lists.
    BestFit,
}

/// A frequent kind of pod. Memory does not count.
struct Typical {
    cpu_milli: u64,
    gpus: u16,
    /// Of each GPU; 0 without GPUs.
    milli: u16,
    models: Models,
    /// How frequent, of 1.
    part: f64,
}

/// Typical pods are the most frequent ones that make up so much of all.
const TYPICAL_PART: f64 = 0.95;

impl Fgd {
    /// Knows the whole list in advance, as published.
    pub(crate) fn new(list: &PodList, ties: FgdTies) -> Self {
        let mut counts: BTreeMap<(u64, u16, u16, Models), u32> = BTreeMap::new();
        for pod in &list.pods {
            let milli = match pod.gpus {
                GpuRequest::None => 0,
                GpuRequest::Whole(_) => 1_000,
                GpuRequest::Share(part) => part.size_milli(),
            };
            let key = (pod.cpu_milli, milli, pod.gpus.count(), pod.models);
            *counts.entry(key).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(kind, count)| Reverse((*count, *kind)));
        let enough = TYPICAL_PART * list.pods.len() as f64;
        let mut covered = 0.0;
        let mut typical: Vec<Typical> = Vec::new();
        for ((cpu_milli, milli, gpus, models), count) in counts {
            if covered >= enough {
                break;
            }
            covered += f64::from(count);
            typical.push(Typical { cpu_milli, gpus, milli, models, part: f64::from(count) });
        }
        typical.iter_mut().for_each(|typical| typical.part /= covered);
        Self { typical, ties }
    }

    /// GPUs that typical pods cannot use, in thousandths, on average.
    fn fragmented(&self, node: &FreeNode) -> f64 {
        let free = free_milli(node) as f64;
        let fragmented = |typical: &Typical| {
            if typical.gpus == 0
                || typical.cpu_milli > node.cpu_milli
                || !typical.models.contains(node.model)
            {
                return free;
            }
            let (mut large, mut small) = (0, 0);
            for room in node.gpus.iter().map(|free| free.room_milli()) {
                if room >= typical.milli {
                    large += 1;
                } else {
                    small += u64::from(room);
                }
            }
            if large >= typical.gpus { small as f64 } else { free }
        };
        self.typical.iter().map(|typical| typical.part * fragmented(typical)).sum()
    }

    /// Score from 0 to 100 of taking these GPUs.
    fn score(&self, node: &FreeNode, before: f64, request: &Request, gpus: &[u16]) -> i64 {
        let mut after = node.clone();
        after.take(request, gpus);
        let gain = (before - self.fragmented(&after)) / 1_000.0;
        (100.0 / (1.0 + (-gain).exp())) as i64
    }

    /// The best score and its GPUs: the first of equals.
    fn best(&self, node: &FreeNode, request: &Request) -> (i64, GpuPositions) {
        let before = self.fragmented(node);
        let choices: Vec<GpuPositions> = match request.gpus {
            GpuRequest::Share(part) => {
                fitting(node, part).map(|at| GpuPositions::from_slice(&[at])).collect()
            }
            ask => vec![node.first_unused(ask.count())],
        };
        let mut best = (i64::MIN, GpuPositions::new());
        for gpus in choices {
            let score = self.score(node, before, request, &gpus);
            if score > best.0 {
                best = (score, gpus);
            }
        }
        best
    }
}

impl Judge for Fgd {
    fn cost(&self, node: &FreeNode, request: &Request) -> i64 {
        let score = self.best(node, request).0;
        match self.ties {
            FgdTies::Name => -score,
            // Less than one score apart.
            FgdTies::BestFit => -score * 1_000 + (free_part(node) * 400.0) as i64,
        }
    }

    fn gpus(&mut self, node: &FreeNode, request: &Request) -> GpuPositions {
        self.best(node, request).1
    }
}
