//! Arrival times, run times and load, drawn from a seed.
//!
//! The same seed and name give the same draws, whatever else is drawn.

use std::ops::Range;
use std::sync::Arc;

use berth_model::dice::Dice;
use libm::{cos, exp, log, sqrt};

use crate::experiment::Load;

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
const WEEK_MS: i64 = 7 * DAY_MS;

/// Independent draws for every name.
pub fn dice_for(seed: u64, name: &str) -> Dice {
    // FNV-1a.
    let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    Dice::new(seed).of(hash)
}

/// Daily and weekly rhythm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rhythm {
    /// Level at the quietest hour, relative to the peak.
    pub trough: f64,
    /// From 0 to 24.
    pub peak_hour: f64,
    /// Level on the sixth and seventh day of the week, relative to other days.
    pub weekend: f64,
}

impl Rhythm {
    pub const STEADY: Self = Self { trough: 1.0, peak_hour: 12.0, weekend: 1.0 };

    /// Level relative to the peak: a cosine over the day. The first day is a Monday.
    pub fn at(&self, now_ms: i64) -> f64 {
        let hour = now_ms.rem_euclid(DAY_MS) as f64 / HOUR_MS as f64;
        let phase = (hour - self.peak_hour) / 24.0 * std::f64::consts::TAU;
        let day = self.trough + (1.0 - self.trough) * f64::midpoint(1.0, cos(phase));
        let is_weekend = now_ms.rem_euclid(WEEK_MS) >= 5 * DAY_MS;
        if is_weekend { day * self.weekend } else { day }
    }
}

/// Times of a Poisson process, by its rate at the peak.
pub fn poisson(dice: Dice, per_hour: f64, rhythm: Rhythm, when: Range<i64>) -> Vec<i64> {
    let mut times = Vec::new();
    if per_hour <= 0.0 {
        return times;
    }
    let (gaps, kept) = (dice.of(1), dice.of(2));
    // Drawn at the highest possible rate, then thinned to the rhythm.
    let most = rhythm.trough.max(1.0) * rhythm.weekend.max(1.0);
    let mut now = when.start as f64;
    for number in 0.. {
        now += -log(1.0 - gaps.share(number)) * HOUR_MS as f64 / (per_hour * most);
        if now >= when.end as f64 {
            break;
        }
        if kept.share(number) * most < rhythm.at(now as i64) {
            times.push(now as i64);
        }
    }
    times
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lifetime {
    Fixed(i64),
    LogNormal {
        p50_ms: i64,
        p90_ms: i64,
    },
    /// By its mean.
    Exponential(i64),
}

impl Lifetime {
    pub fn draw(self, dice: Dice, number: u64) -> i64 {
        let ms = match self {
            Self::Fixed(ms) => ms as f64,
            Self::Exponential(mean_ms) => -log(1.0 - dice.share(number)) * mean_ms as f64,
            Self::LogNormal { p50_ms, p90_ms } => {
                let p50 = p50_ms.max(1) as f64;
                let sigma = log((p90_ms.max(1) as f64 / p50).max(1.0)) / 1.281_551_565_544_600_5;
                p50 * exp(sigma * normal(dice, number))
            }
        };
        (ms as i64).max(1)
    }
}

/// A draw from the standard normal distribution, by Box and Muller.
fn normal(dice: Dice, number: u64) -> f64 {
    let radius = sqrt(-2.0 * log(1.0 - dice.of(1).share(number)));
    radius * cos(std::f64::consts::TAU * dice.of(2).share(number))
}

/// Load that follows a rhythm. `peaks_per_s` are start times with requests per second at the peak;
/// `noise` is the standard deviation from minute to minute, relative to the load.
pub fn rhythmic(
    dice: Dice,
    peaks_per_s: &[(i64, f64)],
    rhythm: Rhythm,
    noise: f64,
    duration_ms: i64,
) -> Load {
    const STEP_MS: i64 = 60_000;
    let steps = (duration_ms / STEP_MS + 1).max(1);
    let per_s: Vec<f32> = (0..steps)
        .map(|step| {
            let now_ms = step * STEP_MS;
            let peak = peaks_per_s.iter().rfind(|(at_ms, _)| *at_ms <= now_ms);
            let noisy = 1.0 + noise * normal(dice, step as u64).clamp(-3.0, 3.0);
            let peak_per_s = peak.map_or(0.0, |(_, per_s)| *per_s);
            (peak_per_s * rhythm.at(now_ms) * noisy.max(0.0)) as f32
        })
        .collect();
    Load { step_ms: STEP_MS, per_s: per_s.into(), weight: Arc::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poisson_process_comes_as_often_as_it_should() {
        let times = poisson(Dice::new(7), 10.0, Rhythm::STEADY, 0..1_000 * HOUR_MS);
        assert!((9_600..10_400).contains(&times.len()), "{}", times.len());
        assert!(times.is_sorted());
    }

    #[test]
    fn work_follows_the_day_and_the_week() {
        let rhythm = Rhythm { trough: 0.2, peak_hour: 15.0, weekend: 0.5 };
        assert!((rhythm.at(15 * HOUR_MS) - 1.0).abs() < 1e-9);
        assert!((rhythm.at(3 * HOUR_MS) - 0.2).abs() < 1e-9);
        assert!((rhythm.at(5 * DAY_MS + 15 * HOUR_MS) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn lifetimes_have_the_quantiles_they_are_given() {
        let lifetime = Lifetime::LogNormal { p50_ms: 1_000, p90_ms: 5_000 };
        let mut drawn: Vec<i64> = (0..10_000).map(|n| lifetime.draw(Dice::new(1), n)).collect();
        drawn.sort_unstable();
        assert!((950..1_050).contains(&drawn[5_000]), "{}", drawn[5_000]);
        assert!((4_700..5_300).contains(&drawn[9_000]), "{}", drawn[9_000]);
    }

    #[test]
    fn draws_depend_on_the_name_only() {
        assert_eq!(dice_for(1, "a").roll(3), dice_for(1, "a").roll(3));
        assert_ne!(dice_for(1, "a").roll(3), dice_for(1, "b").roll(3));
    }
}
