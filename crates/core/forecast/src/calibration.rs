//! Corrects forecasts by how past ones turned out.
//!
//! Simulated futures are biased: lifetimes are learned, and some rules are left out. So every bound
//! is corrected by conformal prediction: among past forecasts with the most similar simulated
//! bound, the ratios of actual to simulated waits give the factor by which the wanted share comes
//! true. Pending pods count as censored waits (Kaplan and Meier), because otherwise only short
//! waits would be learned from. Only events up to the time of the forecast are used.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::forecast::{HORIZON_MS, LEVELS, LEVELS_MILLI};

const SETTLED_MAX: usize = 1_536;

const OPEN_MAX: usize = 4_096;

/// Limit of similar forecasts used.
const SIMILAR_MAX: usize = 160;

/// From this number of similar forecasts on, the correction has full weight.
const SIMILAR_ENOUGH: f64 = 40.0;

/// Step and limit by which the aimed share moves when a bound is kept or missed. Similar past
/// forecasts come in bursts, which conformal prediction takes for more evidence than they are; this
/// keeps the share right in the long run (adaptive conformal inference, Gibbs and Candès 2021).
const AIM_STEP: f64 = 0.02;
const AIM_OFF_MAX: f64 = 0.16;

/// Bounds share an aim per doubling, from half a minute up.
const AIMS: usize = 12;
const AIM_FIRST_MS: u64 = 30_000;

/// Limit of the extrapolation beyond the longest wait, if too many pods are pending.
const TAIL_MAX: f64 = 8.0;

/// Shorter waits are not distinguished.
const SHORTEST_MS: f64 = 1_000.0;

#[derive(Clone, Copy, Debug)]
struct OpenForecast {
    at_ms: i64,
    simulated_ms: [f64; LEVELS],
    within_ms: [Option<u64>; LEVELS],
    /// Bounds already judged, as bits.
    judged: u8,
}

#[derive(Clone, Copy, Debug)]
struct Settled {
    simulated_ms: [f64; LEVELS],
    wait_ms: f64,
    /// The pod started; otherwise it was deleted while pending.
    started: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reliability {
    /// For each level: number of settled bounds, and of those kept.
    pub judged_bounds: [(u64, u64); LEVELS],
    /// Mean Brier score: the squared difference between the forecast probability and the outcome (1
    /// or 0).
    pub brier: f64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Calibration {
    open: BTreeMap<Arc<str>, Vec<OpenForecast>>,
    open_count: usize,
    settled: VecDeque<Settled>,
    judged_bounds: [(u64, u64); LEVELS],
    squares: f64,
    /// By level and length of the bound: correction of the aimed share.
    aims: [[f64; AIMS]; LEVELS],
}

/// A past forecast as evidence: its dissimilarity, the ratio of actual to simulated wait, and
/// whether the wait is complete.
#[derive(Clone, Copy, Debug)]
struct Evidence {
    unlike: f64,
    ratio: f64,
    certain: bool,
}

impl Calibration {
    /// The corrected bounds, and the number of similar forecasts used.
    pub(crate) fn correct(
        &self,
        simulated_ms: &[Option<u64>; LEVELS],
        now_ms: i64,
    ) -> ([Option<u64>; LEVELS], usize) {
        let mut within_ms = [None; LEVELS];
        let mut floor_ms = 0.0;
        let mut similar = 0;
        for (level, bound_ms) in in_numbers(simulated_ms).into_iter().enumerate() {
            let evidence = sorted(self.similar(level, bound_ms, now_ms));
            similar = evidence.len();
            let wanted = f64::from(LEVELS_MILLI[level]) / 1000.0;
            let count = evidence.len() as f64;
            let believed = (count / SIMILAR_ENOUGH).min(1.0);
            let stretched_ms =
                |aim: f64| bound_ms * (1.0 + (stretch(&evidence, aim) - 1.0) * believed);
            let off = self.aims[level][aim_of(stretched_ms(wanted) as u64)];
            let corrected_ms = stretched_ms((wanted + off).clamp(0.02, 0.985));
            floor_ms = corrected_ms.max(floor_ms);
            within_ms[level] = (floor_ms < HORIZON_MS as f64).then_some(floor_ms as u64);
        }
        (within_ms, similar)
    }

    fn similar(&self, level: usize, bound_ms: f64, now_ms: i64) -> Vec<Evidence> {
        let evidence = |simulated_ms: f64, wait_ms: f64, certain: bool| Evidence {
            unlike: if simulated_ms > bound_ms {
                simulated_ms / bound_ms
            } else {
                bound_ms / simulated_ms
            },
            ratio: wait_ms / simulated_ms,
            certain,
        };
        let settled = self.settled.iter();
        let settled =
            settled.map(|one| evidence(one.simulated_ms[level], one.wait_ms, one.started));
        let open = self.open.values().flatten().map(|forecast| {
            let waited_ms = now_ms.saturating_sub(forecast.at_ms).max(0) as f64;
            evidence(forecast.simulated_ms[level], waited_ms, false)
        });
        let mut all: Vec<Evidence> = settled.chain(open).collect();
        if all.len() > SIMILAR_MAX {
            let by_likeness = |one: &Evidence, two: &Evidence| one.unlike.total_cmp(&two.unlike);
            all.select_nth_unstable_by(SIMILAR_MAX, by_likeness);
            all.truncate(SIMILAR_MAX);
        }
        all
    }

    pub(crate) fn record(
        &mut self,
        uid: &Arc<str>,
        now_ms: i64,
        simulated_ms: &[Option<u64>; LEVELS],
        within_ms: [Option<u64>; LEVELS],
    ) {
        self.judge_overdue(now_ms);
        if self.open_count < OPEN_MAX {
            self.open_count += 1;
            let simulated_ms = in_numbers(simulated_ms);
            let forecast = OpenForecast { at_ms: now_ms, simulated_ms, within_ms, judged: 0 };
            self.open.entry(uid.clone()).or_default().push(forecast);
        }
    }

    fn judge(&mut self, level: usize, bound_ms: u64, kept: bool) {
        let (judged, kept_count) = &mut self.judged_bounds[level];
        *judged += 1;
        *kept_count += u64::from(kept);
        let off = f64::from(LEVELS_MILLI[level]) / 1000.0 - f64::from(u8::from(kept));
        self.squares += off * off;
        let aim = &mut self.aims[level][aim_of(bound_ms)];
        *aim = (*aim + AIM_STEP * off).clamp(-AIM_OFF_MAX, AIM_OFF_MAX);
    }

    /// Counts bounds as missed that pending pods have exceeded.
    fn judge_overdue(&mut self, now_ms: i64) {
        let mut overdue = Vec::new();
        for forecast in self.open.values_mut().flatten() {
            let waited_ms = now_ms.saturating_sub(forecast.at_ms).max(0) as u64;
            for (level, bound_ms) in forecast.within_ms.into_iter().enumerate() {
                let bound_ms = bound_ms.filter(|bound_ms| waited_ms > *bound_ms);
                if let Some(bound_ms) = bound_ms.filter(|_| forecast.judged & 1 << level == 0) {
                    forecast.judged |= 1 << level;
                    overdue.push((level, bound_ms));
                }
            }
        }
        overdue.into_iter().for_each(|(level, bound_ms)| self.judge(level, bound_ms, false));
    }

    /// Settles the forecasts for a pod that started or was deleted.
    pub(crate) fn settle(&mut self, uid: &str, now_ms: i64, started: bool) {
        for forecast in self.open.remove(uid).unwrap_or_default() {
            self.open_count -= 1;
            let wait_ms = now_ms.saturating_sub(forecast.at_ms).max(0) as u64;
            for (level, bound_ms) in forecast.within_ms.into_iter().enumerate() {
                let bound_ms = bound_ms.filter(|_| forecast.judged & 1 << level == 0);
                // A pod deleted within the bound shows nothing.
                if let Some(bound_ms) = bound_ms.filter(|bound_ms| started || wait_ms > *bound_ms) {
                    self.judge(level, bound_ms, started && wait_ms <= bound_ms);
                }
            }
            let (simulated_ms, wait_ms) = (forecast.simulated_ms, wait_ms as f64);
            self.settled.push_back(Settled { simulated_ms, wait_ms, started });
            if self.settled.len() > SETTLED_MAX {
                self.settled.pop_front();
            }
        }
    }

    pub(crate) fn reliability(&self) -> Reliability {
        let count: u64 = self.judged_bounds.iter().map(|(judged, _)| judged).sum();
        Reliability { judged_bounds: self.judged_bounds, brier: self.squares / count.max(1) as f64 }
    }
}

fn in_numbers(bounds_ms: &[Option<u64>; LEVELS]) -> [f64; LEVELS] {
    bounds_ms.map(|bound_ms| (bound_ms.unwrap_or(HORIZON_MS) as f64).max(SHORTEST_MS))
}

fn aim_of(bound_ms: u64) -> usize {
    let doublings = (bound_ms / AIM_FIRST_MS).checked_ilog2();
    doublings.map_or(0, |doublings| 1 + doublings as usize).min(AIMS - 1)
}

fn sorted(mut evidence: Vec<Evidence>) -> Vec<Evidence> {
    evidence.sort_unstable_by(|one, two| {
        one.ratio.total_cmp(&two.ratio).then(two.certain.cmp(&one.certain))
    });
    evidence
}

/// The factor below which the wanted share came true, and slightly more, because the new wait is as
/// likely to be the next largest. The evidence is sorted.
fn stretch(evidence: &[Evidence], wanted: f64) -> f64 {
    let count = evidence.len() as f64;
    let wanted_left = 1.0 - (wanted * (count + 1.0) / count.max(1.0)).min(1.0);
    let (mut left, mut largest) = (1.0_f64, 1.0);
    for (before, one) in evidence.iter().enumerate() {
        largest = one.ratio;
        if one.certain {
            left *= 1.0 - 1.0 / (count - before as f64);
            if left <= wanted_left + 1e-9 {
                return one.ratio;
            }
        }
    }
    // Too many are pending. Longer waits are assumed to be as rare as they are long.
    largest * (left / wanted_left.max(left / TAIL_MAX)).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_MS: u64 = 1_000;

    /// Forecasts of `bound`, one after another, each settled by `wait` before the next.
    fn run(mut calibration: Calibration, waits_s: impl Iterator<Item = u64>) -> (Calibration, f64) {
        let mut now_ms = 0;
        let (mut judged, mut kept) = (0.0, 0.0);
        for (at, wait_s) in waits_s.enumerate() {
            let simulated_ms = [Some(100 * SECOND_MS); LEVELS];
            let (within_ms, _) = calibration.correct(&simulated_ms, now_ms);
            let uid: Arc<str> = format!("pod-{at}").into();
            calibration.record(&uid, now_ms, &simulated_ms, within_ms);
            now_ms += (wait_s * SECOND_MS) as i64;
            calibration.settle(&uid, now_ms, true);
            if at >= 200 {
                judged += 1.0;
                kept +=
                    f64::from(u8::from(within_ms[4].is_some_and(|ms| wait_s * SECOND_MS <= ms)));
            }
        }
        (calibration, kept / judged)
    }

    #[test]
    fn bounds_come_true_as_often_as_they_say_however_wrong_the_simulation_is() {
        for factor in [1, 30, 500] {
            let dice = berth_model::dice::Dice::new(factor);
            let waits = (0..1_000).map(|at| 1 + dice.below(at, 100) as u64 * factor / 10);
            let (calibration, share) = run(Calibration::default(), waits);
            // This number of similar forecasts leaves a standard error of three points.
            assert!((0.72..0.88).contains(&share), "{factor}: {share}");
            let reliability = calibration.reliability();
            assert_eq!(reliability.judged_bounds[4].0, 1_000);
            assert!(reliability.brier < 0.2, "{reliability:?}");
        }
    }

    #[test]
    fn pending_pods_count_as_censored_waits() {
        let mut calibration = Calibration::default();
        let simulated_ms = [Some(100 * SECOND_MS); LEVELS];
        for at in 0..100 {
            let uid: Arc<str> = format!("pod-{at}").into();
            calibration.record(&uid, 0, &simulated_ms, simulated_ms);
            // Half start soon, half are pending after an hour.
            if at % 2 == 0 {
                calibration.settle(&uid, 10_000, true);
            }
        }
        let (within_ms, similar) = calibration.correct(&simulated_ms, 3_600_000);
        assert_eq!(similar, 100);
        assert!(within_ms[1].unwrap() < 40_000, "a quarter start soon: {within_ms:?}");
        assert!(within_ms[4].unwrap() > 3_000_000, "most do not: {within_ms:?}");
    }

    #[test]
    fn bounds_never_fall_with_the_level() {
        let (calibration, _) = run(Calibration::default(), (0..300).map(|at: u64| at * 37 % 211));
        let simulated_ms = std::array::from_fn(|level| Some((10 * SECOND_MS) << level));
        let (within_ms, _) = calibration.correct(&simulated_ms, 10_000_000);
        assert!(within_ms.is_sorted(), "{within_ms:?}");
    }
}
