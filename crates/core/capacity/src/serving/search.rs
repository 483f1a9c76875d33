//! The search: how many segments of each profile each service gets, by branch and bound.

use berth_model::mig::{Board, Profile};

use super::lp::{Program, Solved};
use super::pack::{Counts, pack, patterns};
use super::{EXACT_SERVICES_MAX, GPUS_MAX, Point, Service, ServingError};

/// Cost of a compute slice beside a GPU's: enough to prefer fewer, never a GPU's worth.
const SLICE_COST: f64 = 1e-5;

/// What counts as an integer.
const INTEGRAL: f64 = 1e-6;

pub(super) struct Problem {
    board: &'static Board,
    /// The profiles with measured points, in the order of the board's table.
    pub(super) profiles: Vec<&'static Profile>,
    /// By service and profile: the point with the highest throughput within the limit.
    pub(super) best: Vec<Vec<Option<Point>>>,
    rates: Vec<u64>,
}

/// Segments by service and profile, with totals.
#[derive(Debug, Clone)]
pub(super) struct Solution {
    pub(super) chosen: Vec<Counts>,
    pub(super) gpus: usize,
    pub(super) slices: u64,
    /// The proven lower bound of GPUs.
    pub(super) gpus_min: usize,
}

impl Solution {
    /// Slices by profile, over all services.
    pub(super) fn counts(&self) -> Counts {
        sum(&self.chosen)
    }
}

fn sum(chosen: &[Counts]) -> Counts {
    let mut total: Counts = Vec::new();
    for counts in chosen {
        total.resize(total.len().max(counts.len()), 0);
        total.iter_mut().zip(counts).for_each(|(t, c)| *t = t.saturating_add(*c));
    }
    total
}

/// The weight of a slice when a service is considered by itself.
pub(super) type Weight = fn(&Profile) -> usize;

/// Compute slices, memory units, and both.
pub(super) const WEIGHTS: [Weight; 3] = [
    |profile| usize::from(profile.compute_slices()),
    |profile| usize::from(profile.memory_units().unwrap_or(0)),
    |profile| usize::from(profile.compute_slices() + profile.memory_units().unwrap_or(0)),
];

impl Problem {
    pub(super) fn new(board: &'static Board, services: &[Service]) -> Result<Self, ServingError> {
        let points = || services.iter().flat_map(|s| s.points.iter().map(move |p| (s, p)));
        if let Some((service, point)) = points().find(|(_, p)| board.share(p.profile).is_none()) {
            let (service, profile) = (service.name.clone(), point.profile.name());
            return Err(ServingError::ForeignProfile { service, profile, board: board.id() });
        }
        let measured = |p: &&'static Profile| points().any(|(_, point)| point.profile == *p);
        let profiles: Vec<&'static Profile> = board.profiles().iter().filter(measured).collect();
        let best: Vec<Vec<Option<Point>>> = services
            .iter()
            .map(|service| profiles.iter().map(|profile| best_point(service, profile)).collect())
            .collect();
        for (service, best) in services.iter().zip(&best) {
            let most = best.iter().flatten().map(|p| p.throughput_milli).max().unwrap_or(0);
            let (name, latency_us_max) = (service.name.clone(), service.latency_us_max);
            if service.rate_milli > 0 && most == 0 {
                return Err(ServingError::TooSlow { service: name, latency_us_max });
            }
            if most > 0 && service.rate_milli / most > GPUS_MAX * 7 {
                return Err(ServingError::TooMuch { service: name });
            }
        }
        let rates = services.iter().map(|s| s.rate_milli).collect();
        Ok(Self { board, profiles, best, rates })
    }

    /// The best solution found within this many nodes.
    pub(super) fn solve(&self, nodes_max: usize) -> Result<Solution, ServingError> {
        let mut best: Option<Solution> = None;
        for weight in WEIGHTS {
            let alone = |at: usize| self.completed(at, vec![0; self.profiles.len()], weight);
            let chosen: Vec<Counts> = (0..self.rates.len()).map(alone).collect();
            self.offer(chosen, &mut best)?;
        }
        let Some(mut best) = best else { return Err(ServingError::TooMuchTogether) };
        best.gpus_min = self.bound_by_slices();
        if self.rates.len() > EXACT_SERVICES_MAX || nodes_max == 0 || best.gpus == 0 {
            return Ok(best);
        }
        let root = self.program()?;
        // Its first node is the bound by the linear relaxation.
        self.branch(&root, 1, Objective::Gpus, &mut best)?;
        let mut exhausted = false;
        for gpus in best.gpus_min..=best.gpus {
            exhausted = self.tight(gpus, &mut best)?;
            if best.gpus <= gpus {
                break;
            }
        }
        if best.gpus > best.gpus_min && self.branch(&root, nodes_max, Objective::Gpus, &mut best)? {
            best.gpus_min = best.gpus;
        }
        if !exhausted {
            self.branch(&root, nodes_max / 2, Objective::Slices, &mut best)?;
        }
        Ok(best)
    }

    pub(super) fn services(&self) -> usize {
        self.rates.len()
    }

    pub(super) fn rate(&self, service: usize) -> u64 {
        self.rates[service]
    }

    /// The compute slices and memory units of GPUs.
    pub(super) fn room(&self, gpus: usize) -> (usize, usize) {
        let units = self.board.memory_units().unwrap_or(0);
        (gpus * usize::from(self.board.compute_slices()), gpus * usize::from(units))
    }

    pub(super) fn throughput(&self, service: usize, profile: usize) -> u64 {
        self.best[service][profile].map_or(0, |point| point.throughput_milli)
    }

    fn reached(&self, service: usize, counts: &Counts) -> u64 {
        let one = |(at, count): (usize, &u32)| {
            self.throughput(service, at).saturating_mul(u64::from(*count))
        };
        counts.iter().enumerate().map(one).fold(0, u64::saturating_add)
    }

    /// By weight up to a few GPUs: the highest throughput, and the last profile of it.
    fn knapsack(&self, service: usize, weight: Weight) -> Vec<(u64, Option<usize>)> {
        let most = self.profiles.iter().map(|p| weight(p)).max().unwrap_or(0);
        let mut table: Vec<(u64, Option<usize>)> = vec![(0, None)];
        for total in 1..=4 * most {
            let mut entry = (table[total - 1].0, None);
            for (at, profile) in self.profiles.iter().enumerate() {
                let w = weight(profile);
                if w == 0 || w > total {
                    continue;
                }
                let reached = table[total - w].0.saturating_add(self.throughput(service, at));
                if reached > entry.0 {
                    entry = (reached, Some(at));
                }
            }
            table.push(entry);
        }
        table
    }

    /// Adds the lightest segments that reach the rest of the rate, then drops those that are not
    /// needed.
    fn completed(&self, service: usize, mut counts: Counts, weight: Weight) -> Counts {
        let rate = self.rates[service];
        let table = self.knapsack(service, weight);
        let last = table.len() - 1;
        loop {
            let left = rate.saturating_sub(self.reached(service, &counts));
            if left == 0 {
                break;
            }
            let mut at = table.iter().position(|(t, _)| *t >= left).unwrap_or(last);
            let rounds = match table[at].0 {
                0 => break,
                // Many times the heaviest, except for the last two.
                most => (left / most).saturating_sub(2).max(1),
            };
            while at > 0 {
                match table[at].1 {
                    Some(profile) => {
                        let more = u32::try_from(rounds).unwrap_or(u32::MAX);
                        counts[profile] = counts[profile].saturating_add(more);
                        at -= weight(self.profiles[profile]);
                    }
                    None => at -= 1,
                }
            }
        }
        for at in (0..counts.len()).rev() {
            let spare = self.reached(service, &counts).saturating_sub(rate);
            let drop = spare.checked_div(self.throughput(service, at)).unwrap_or(u64::MAX);
            counts[at] -= u32::try_from(drop).unwrap_or(u32::MAX).min(counts[at]);
        }
        counts
    }

    /// Takes these segments if they are better than the best so far.
    pub(super) fn offer(
        &self,
        chosen: Vec<Counts>,
        best: &mut Option<Solution>,
    ) -> Result<(), ServingError> {
        let counts = sum(&chosen);
        let slices = |(p, n): (&&Profile, &u32)| u64::from(p.compute_slices()) * u64::from(*n);
        let slices: u64 = self.profiles.iter().zip(&counts).map(slices).sum();
        let whole = u64::from(self.board.compute_slices());
        if slices > GPUS_MAX * whole {
            return Ok(());
        }
        let gpus = pack(self.board, &self.profiles, &counts)?.len();
        if best.as_ref().is_none_or(|b| (gpus, slices) < (b.gpus, b.slices)) {
            let gpus_min = best.as_ref().map_or(0, |b| b.gpus_min);
            *best = Some(Solution { chosen, gpus, slices, gpus_min });
        }
        Ok(())
    }

    /// The least weight that reaches the service's rate, if a few GPUs do.
    pub(super) fn least_weight(&self, service: usize, weight: Weight) -> Option<usize> {
        let table = self.knapsack(service, weight);
        table.iter().position(|(reached, _)| *reached >= self.rates[service])
    }

    /// A lower bound without the program: the slices and units that services need by themselves.
    fn bound_by_slices(&self) -> usize {
        let bound = |weight: Weight, whole: usize| {
            let need = |at| self.least_weight(at, weight).unwrap_or(0);
            (0..self.rates.len()).map(need).sum::<usize>().div_ceil(whole.max(1))
        };
        let compute = bound(WEIGHTS[0], usize::from(self.board.compute_slices()));
        let units = bound(WEIGHTS[1], usize::from(self.board.memory_units().unwrap_or(0)));
        compute.max(units)
    }

    /// The linear relaxation: segments by service and profile, then full GPUs by pattern.
    fn program(&self) -> Result<Program, ServingError> {
        let patterns = patterns(self.board, &self.profiles)?;
        let (services, width) = (self.rates.len(), self.profiles.len());
        let all = services * width + patterns.len();
        let mut costs = vec![1.0; all];
        for (at, cost) in costs.iter_mut().enumerate().take(services * width) {
            *cost = SLICE_COST * f64::from(self.profiles[at % width].compute_slices());
        }
        let mut program = Program::new(costs);
        for (profile, _) in self.profiles.iter().enumerate() {
            let mut row = vec![0.0; all];
            (0..services).for_each(|service| row[service * width + profile] = -1.0);
            for (at, pattern) in patterns.iter().enumerate() {
                row[services * width + at] = f64::from(pattern[profile]);
            }
            program.at_least(row, 0.0);
        }
        for service in (0..services).filter(|at| self.rates[*at] > 0) {
            for (coefficients, least) in self.cuts(service) {
                let mut row = vec![0.0; all];
                row[service * width..(service + 1) * width].copy_from_slice(&coefficients);
                program.at_least(row, least);
            }
        }
        Ok(program)
    }

    /// Constraints on a service's segments: the rate itself, and what follows from integrality. All
    /// are scaled so that the right side is one.
    fn cuts(&self, service: usize) -> Vec<(Vec<f64>, f64)> {
        let rate = self.rates[service];
        let width = 0..self.profiles.len();
        let scaled = |values: Vec<u64>, least: u64| {
            let scale = |v: u64| v.min(least) as f64 / least as f64;
            (values.into_iter().map(scale).collect::<Vec<f64>>(), 1.0)
        };
        let throughput = |at: usize| self.throughput(service, at);
        let mut cuts = vec![scaled(width.clone().map(throughput).collect(), rate)];
        // Divided by one profile's throughput and rounded up on both sides.
        for unit in width.clone().map(throughput).filter(|t| *t > 0) {
            let values = width.clone().map(|at| throughput(at).div_ceil(unit));
            cuts.push(scaled(values.collect(), rate.div_ceil(unit)));
        }
        for weight in WEIGHTS {
            if let Some(least) = self.least_weight(service, weight).filter(|least| *least > 0) {
                let value = |at: usize| match throughput(at) {
                    0 => 0,
                    _ => weight(self.profiles[at]) as u64,
                };
                // Not capped at the right side: the weight of a slice is exact.
                let values = width.clone().map(|at| value(at) as f64 / least as f64).collect();
                cuts.push((values, 1.0));
            }
        }
        cuts
    }

    /// Branches depth first until nothing better is possible; returns whether that is certain.
    fn branch(
        &self,
        root: &Program,
        nodes_max: usize,
        aim: Objective,
        best: &mut Solution,
    ) -> Result<bool, ServingError> {
        let mut stack = vec![root.clone()];
        let mut certain = true;
        let mut nodes = 0;
        while let Some(mut program) = stack.pop() {
            if nodes == nodes_max {
                return Ok(false);
            }
            nodes += 1;
            let value = match program.solve() {
                Solved::Infeasible => continue,
                Solved::Unknown => {
                    certain = false;
                    continue;
                }
                Solved::Optimal(value) => value,
            };
            if nodes == 1 {
                best.gpus_min = best.gpus_min.max(self.gpus_of(value));
            }
            let values = program.values();
            self.round(&values, best)?;
            let better = match aim {
                Objective::Gpus => self.gpus_of(value) < best.gpus,
                Objective::Slices => {
                    let slices = best.slices.saturating_sub(1) as f64;
                    value <= best.gpus as f64 + SLICE_COST * slices + SLICE_COST / 2.0
                }
            };
            if !better {
                continue;
            }
            let Some((variable, at)) = self.fractional(&values) else {
                // Integral, but placed on more GPUs than the program's bound.
                certain = false;
                continue;
            };
            let (mut up, mut down) = (program.clone(), program);
            up.bound(variable, at.ceil(), true);
            down.bound(variable, at.floor(), false);
            let up_first = at - at.floor() >= 0.5;
            stack.extend(if up_first { [down, up] } else { [up, down] });
        }
        Ok(certain)
    }

    /// The least number of GPUs for a value of the program.
    fn gpus_of(&self, value: f64) -> usize {
        let share = 1.0 + SLICE_COST * f64::from(self.board.compute_slices());
        (value / share - INTEGRAL).ceil().max(0.0) as usize
    }

    /// Turns fractions into plans: rounded down and completed, and rounded up and trimmed.
    fn round(&self, values: &[f64], best: &mut Solution) -> Result<(), ServingError> {
        let width = self.profiles.len();
        let mut found = Some(best.clone());
        for weight in WEIGHTS {
            for up in [0.0 + INTEGRAL, 0.5, 1.0 - INTEGRAL] {
                let whole = |value: &f64| (value + up).floor().max(0.0) as u32;
                let of = |service: usize| -> Counts {
                    values[service * width..(service + 1) * width].iter().map(whole).collect()
                };
                let services = 0..self.rates.len();
                let chosen = services.map(|at| self.completed(at, of(at), weight)).collect();
                self.offer(chosen, &mut found)?;
            }
        }
        if let Some(found) = found {
            *best = found;
        }
        Ok(())
    }

    /// The variable to branch on and its value: the largest slices first, nearest to a half; then
    /// patterns. `None` if all are integral.
    fn fractional(&self, values: &[f64]) -> Option<(usize, f64)> {
        let (services, width) = (self.rates.len(), self.profiles.len());
        let mut best: Option<((u8, f64), usize)> = None;
        for (at, value) in values.iter().enumerate() {
            let off = (value - value.round()).abs();
            if off <= INTEGRAL {
                continue;
            }
            let segment = (at < services * width).then(|| self.profiles[at % width]);
            let size = segment.map_or(0, Profile::compute_slices);
            if best.is_none_or(|(most, _)| (size, off) > most) {
                best = Some(((size, off), at));
            }
        }
        best.map(|(_, at)| (at, values[at]))
    }
}

/// The objective of branching.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Objective {
    /// The fewest GPUs; ends with the first plan that meets the bound.
    Gpus,
    /// The fewest compute slices without more GPUs.
    Slices,
}

/// The point of a profile with the highest throughput within the service's limit; of equals the one
/// with the fewest processes, then the smallest batch.
fn best_point(service: &Service, profile: &Profile) -> Option<Point> {
    let fits = |p: &&Point| {
        p.profile == profile && p.latency_us <= service.latency_us_max && p.throughput_milli > 0
    };
    let rank = |p: &&Point| {
        (p.throughput_milli, std::cmp::Reverse(p.processes), std::cmp::Reverse(p.batch))
    };
    service.points.iter().filter(fits).max_by_key(rank).copied()
}
