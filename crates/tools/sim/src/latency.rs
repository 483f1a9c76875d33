//! Latency distributions of requests.
//!
//! Service times are log-normal. A replica is an M/G/c queue: Erlang's C gives the probability of
//! waiting, and the wait has an exponential tail that grows with the variance of service times. Latencies
//! are distributions over bins that grow by a constant factor, so those of many replicas add up exactly.

use std::collections::BTreeMap;

use libm::{erfc, exp, log, pow, sqrt};

/// Service time of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Speed {
    /// Without waiting.
    pub mean_us: u64,
    pub p99_us: u64,
    /// Requests that it serves concurrently.
    pub slots: u32,
}

impl Default for Speed {
    fn default() -> Self {
        Self { mean_us: 8_200, p99_us: 14_100, slots: 10 }
    }
}

impl Speed {
    pub fn capacity_per_s(self) -> f64 {
        f64::from(self.slots.max(1)) * 1e6 / self.mean_us.max(1) as f64
    }
}

/// Bins for each factor of ten.
const PER_DECADE: usize = 64;
/// End of the first bin in microseconds.
const FIRST_US: f64 = 10.0;
const DECADES: usize = 8;
const BINS: usize = PER_DECADE * DECADES;
/// The 99th percentile of the standard normal distribution.
const Z99: f64 = 2.326_347_874_040_841;
/// Quantiles of the waiting time.
const WAITS: usize = 24;

/// Utilisation is rounded to steps of so many thousandths.
const RHO_STEP_MILLI: u32 = 20;
/// Utilisation above which a backlog builds up.
pub(crate) const RHO_MAX: f64 = 0.97;

/// Requests with the same latency distribution: service time, utilisation of the replica, and wait for
/// its backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    speed: Speed,
    rho_step: u8,
    /// Bin of the wait, from 1; 0: no backlog.
    wait_bin: u16,
}

impl Cell {
    /// Requests to a replica with this utilisation.
    pub(crate) fn busy(speed: Speed, rho: f64) -> Self {
        let milli = (rho.clamp(0.0, RHO_MAX) * 1000.0) as u32;
        Self { speed, rho_step: (milli / RHO_STEP_MILLI) as u8, wait_bin: 0 }
    }

    /// Requests that waited for a backlog.
    pub(crate) fn behind(speed: Speed, wait_us: f64) -> Self {
        Self { wait_bin: (bin_of(wait_us) + 1) as u16, ..Self::busy(speed, RHO_MAX) }
    }
}

/// Number of requests by distribution.
pub(crate) type Mix = BTreeMap<Cell, f64>;

/// A cache of distributions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curves {
    /// Share of requests that take at most as long as the end of each bin.
    known: BTreeMap<Cell, Vec<f32>>,
}

impl Curves {
    /// A quantile of a mix; 0 without requests.
    pub(crate) fn quantile_us<'a>(
        &mut self,
        requests: impl Iterator<Item = (&'a Cell, &'a f64)>,
        part: f64,
    ) -> f64 {
        let requests: Vec<(Cell, f64)> = requests.map(|(cell, count)| (*cell, *count)).collect();
        let all: f64 = requests.iter().map(|(_, count)| count).sum();
        if all <= 0.0 {
            return 0.0;
        }
        for (cell, _) in &requests {
            self.known.entry(*cell).or_insert_with(|| curve(*cell));
        }
        let curves: Vec<(&[f32], f64)> = requests
            .iter()
            .filter_map(|(cell, count)| Some((self.known.get(cell)?.as_slice(), count / all)))
            .collect();
        let below = |bin: usize| -> f64 {
            curves
                .iter()
                .map(|(curve, weight)| f64::from(curve.get(bin).copied().unwrap_or(1.0)) * weight)
                .sum()
        };
        let (mut low, mut high) = (0, BINS - 1);
        while low < high {
            let middle = usize::midpoint(low, high);
            if below(middle) < part { low = middle + 1 } else { high = middle }
        }
        let before = if low == 0 { 0.0 } else { below(low - 1) };
        let within = ((part - before) / (below(low) - before).max(1e-12)).clamp(0.0, 1.0);
        end_us(low) / pow(10.0, (1.0 - within) / PER_DECADE as f64)
    }
}

impl Curves {
    /// Whether a quantile of a mix exceeds a latency.
    pub(crate) fn exceeds<'a>(
        &mut self,
        requests: impl Iterator<Item = (&'a Cell, &'a f64)>,
        part: f64,
        us: f64,
    ) -> bool {
        let (mut all, mut within) = (0.0, 0.0);
        let bin = bin_of(us);
        for (cell, count) in requests {
            let curve = self.known.entry(*cell).or_insert_with(|| curve(*cell));
            all += count;
            within += f64::from(curve.get(bin).copied().unwrap_or(1.0)) * count;
        }
        within < part * all
    }
}

fn end_us(bin: usize) -> f64 {
    FIRST_US * pow(10.0, bin as f64 / PER_DECADE as f64)
}

fn bin_of(us: f64) -> usize {
    let bin = log(us.max(FIRST_US) / FIRST_US) / log(10.0) * PER_DECADE as f64;
    (bin.round() as usize).min(BINS - 1)
}

/// A log-normal distribution by its mean and p99.
struct LogNormal {
    mu: f64,
    sigma: f64,
}

impl LogNormal {
    fn new(speed: Speed) -> Self {
        let mean = speed.mean_us.max(1) as f64;
        let ratio = log((speed.p99_us as f64 / mean).max(1.0));
        // p99/mean = exp(z σ - σ²/2); no log-normal has a greater ratio than exp(z²/2).
        let sigma = Z99 - sqrt((Z99 * Z99 - 2.0 * ratio).max(0.0));
        let sigma = sigma.max(1e-3);
        Self { mu: log(mean) - sigma * sigma / 2.0, sigma }
    }

    fn below(&self, us: f64) -> f64 {
        if us <= 0.0 {
            return 0.0;
        }
        erfc((self.mu - log(us)) / (self.sigma * std::f64::consts::SQRT_2)) / 2.0
    }

    /// The variance in terms of the squared mean.
    fn spread(&self) -> f64 {
        exp(self.sigma * self.sigma) - 1.0
    }
}

/// Limit for the recursion of Erlang's formula.
const SERVERS_MAX: u32 = 4_096;

/// Erlang's C: the probability that a request has to wait.
fn erlang_c(servers: u32, rho: f64) -> f64 {
    // With many servers hardly any request waits, and the sum would take long.
    let servers = servers.min(SERVERS_MAX);
    let offered = rho * f64::from(servers);
    // The inverse of Erlang's B, which has no large intermediate values.
    let blocked =
        (1..=servers).fold(1.0, |inverse, n| 1.0 + inverse * f64::from(n) / offered.max(1e-9));
    let blocked = 1.0 / blocked;
    blocked / (1.0 - rho * (1.0 - blocked))
}

fn curve(cell: Cell) -> Vec<f32> {
    let service = LogNormal::new(cell.speed);
    let rho = (f64::from(u32::from(cell.rho_step) * RHO_STEP_MILLI) / 1000.0).min(RHO_MAX);
    let waits = erlang_c(cell.speed.slots.max(1), rho);
    let idle_per_us = cell.speed.capacity_per_s() * (1.0 - rho) / 1e6;
    let mean_wait_us = (1.0 + service.spread()) / 2.0 / idle_per_us.max(1e-12);
    let quantiles: Vec<f64> =
        (0..WAITS).map(|at| -log(1.0 - (at as f64 + 0.5) / WAITS as f64) * mean_wait_us).collect();
    let backlog_us = match cell.wait_bin {
        0 => 0.0,
        bin => end_us(usize::from(bin) - 1),
    };
    let at = |bin: usize| {
        let us = end_us(bin) - backlog_us;
        let after_wait: f64 = if waits < 1e-6 {
            service.below(us)
        } else {
            quantiles.iter().map(|wait| service.below(us - wait)).sum::<f64>() / WAITS as f64
        };
        ((1.0 - waits) * service.below(us) + waits * after_wait) as f32
    };
    (0..BINS).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BERT: Speed = Speed { mean_us: 8_200, p99_us: 14_100, slots: 10 };

    fn quantile(requests: &[(Cell, f64)], part: f64) -> f64 {
        let mix: Mix = requests.iter().copied().collect();
        Curves::default().quantile_us(mix.iter(), part)
    }

    #[test]
    fn an_idle_replica_takes_what_its_speed_says() {
        let p99 = quantile(&[(Cell::busy(BERT, 0.0), 1.0)], 0.99);
        assert!((p99 - 14_100.0).abs() < 30.0, "{p99}");
        let p50 = quantile(&[(Cell::busy(BERT, 0.0), 1.0)], 0.5);
        // The median of a log-normal distribution is below its mean.
        assert!((7_900.0..8_200.0).contains(&p50), "{p50}");
    }

    #[test]
    fn waiting_follows_erlang() {
        // Two servers that are busy for half the time: one in three waits.
        assert!((erlang_c(2, 0.5) - 1.0 / 3.0).abs() < 1e-9);
        // One server: as often as it is busy.
        assert!((erlang_c(1, 0.7) - 0.7).abs() < 1e-9);
    }

    #[test]
    fn one_server_with_exponential_like_spread_waits_as_pollaczek_and_khinchine_say() {
        let speed = Speed { mean_us: 1_000, p99_us: 4_000, slots: 1 };
        let cell = Cell::busy(speed, 0.5);
        let service = LogNormal::new(speed);
        let known = curve(cell);
        // The mean of the distribution, by its bins.
        let mean: f64 = (0..BINS)
            .map(|bin| {
                let before = if bin == 0 { 0.0 } else { f64::from(known[bin - 1]) };
                (f64::from(known[bin]) - before) * end_us(bin)
            })
            .sum();
        let expected = 1_000.0 + 0.5 * (1.0 + service.spread()) / 2.0 / (1.0 - 0.5) * 1_000.0;
        assert!((mean / expected - 1.0).abs() < 0.05, "{mean} against {expected}");
    }

    #[test]
    fn a_mixture_lies_between_its_parts() {
        let slow = Speed { mean_us: 10_700, p99_us: 23_800, slots: 10 };
        let mixed = quantile(&[(Cell::busy(BERT, 0.3), 1.0), (Cell::busy(slow, 0.3), 1.0)], 0.99);
        assert!((14_100.0..23_800.0).contains(&mixed), "{mixed}");
        let few = quantile(&[(Cell::busy(BERT, 0.3), 99.9), (Cell::busy(slow, 0.3), 0.1)], 0.99);
        assert!(few < 14_300.0, "{few}");
    }

    #[test]
    fn a_backlog_is_waited_for() {
        let p50 = quantile(&[(Cell::behind(BERT, 1e6), 1.0)], 0.5);
        assert!((p50 / 1_008_000.0 - 1.0).abs() < 0.03, "{p50}");
    }

    #[test]
    fn more_load_never_makes_requests_faster() {
        let one = Speed { mean_us: 10_000, p99_us: 20_000, slots: 1 };
        let busy = [0.0, 0.5, 0.9, 0.96, 0.97].map(|rho| Cell::busy(one, rho));
        let behind = [0.0, 1e4, 1e6].map(|wait_us| Cell::behind(one, wait_us));
        let p99: Vec<f64> =
            busy.into_iter().chain(behind).map(|cell| quantile(&[(cell, 1.0)], 0.99)).collect();
        assert!(p99.is_sorted(), "{p99:?}");
    }

    #[test]
    fn no_requests_take_no_time() {
        assert_eq!(quantile(&[], 0.99).to_bits(), 0.0_f64.to_bits());
    }
}
