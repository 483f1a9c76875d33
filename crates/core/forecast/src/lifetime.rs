//! How long pods live, learned from pods that ended and pods still running.
//!
//! Ends are counted by age for each workload, each class of similar pods, and all. A curve is
//! Kaplan and Meier's: per bin of ages, the share of pods reaching it that ended there. Pods that
//! still run, or were evicted, count as censored. A workload seen rarely leans on its class, and a
//! class on all.

use std::collections::BTreeMap;

use crate::bins::{BINS, bin_of, start_ms};

/// Weight of the level above, in pods.
const LEAN: f64 = 6.0;

/// Prior without any data: the hazard per bin, about a quarter per doubling of age, and its weight
/// in pods.
const UNKNOWN_HAZARD: f64 = 0.07;
const UNKNOWN_WEIGHT: f64 = 1.0;

/// Beyond this total all counts are halved, so that recent ends weigh more.
const WORKLOAD_COUNT_MAX: f64 = 128.0;
const CLASS_COUNT_MAX: f64 = 512.0;
const ALL_COUNT_MAX: f64 = 8_192.0;

/// Limit of workloads and of classes; those not seen for longest are forgotten.
const REMEMBERED_MAX: usize = 4_096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LifeKey {
    /// Pods of the same controller; `None` without one.
    pub workload: Option<u64>,
    /// Pods of the same namespace with the same requests.
    pub class: u64,
}

#[derive(Clone, Debug)]
struct Tally {
    ended: Vec<f32>,
    cut: Vec<f32>,
    total: f64,
    seen: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self { ended: vec![0.0; BINS], cut: vec![0.0; BINS], total: 0.0, seen: 0 }
    }
}

impl Tally {
    fn count(&mut self, bin: usize, natural: bool, total_max: f64, seen: u64) {
        let counts = if natural { &mut self.ended } else { &mut self.cut };
        if let Some(count) = counts.get_mut(bin) {
            *count += 1.0;
        }
        self.total += 1.0;
        self.seen = seen;
        if self.total > total_max {
            self.ended.iter_mut().chain(&mut self.cut).for_each(|count| *count *= 0.5);
            self.total *= 0.5;
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Lifetimes {
    all: Tally,
    classes: BTreeMap<u64, Tally>,
    workloads: BTreeMap<u64, Tally>,
    counted: u64,
}

impl Lifetimes {
    /// Records a lifetime. `natural`: the pod ended by itself; otherwise it was evicted.
    pub fn record(&mut self, key: LifeKey, life_ms: u64, natural: bool) {
        self.counted += 1;
        let (bin, seen) = (bin_of(life_ms), self.counted);
        self.all.count(bin, natural, ALL_COUNT_MAX, seen);
        let class = self.classes.entry(key.class).or_default();
        class.count(bin, natural, CLASS_COUNT_MAX, seen);
        forget(&mut self.classes);
        if let Some(workload) = key.workload {
            let workload = self.workloads.entry(workload).or_default();
            workload.count(bin, natural, WORKLOAD_COUNT_MAX, seen);
            forget(&mut self.workloads);
        }
    }

    /// Number of lifetimes behind a curve: of the workload, of the class, of all.
    pub fn evidence(&self, key: LifeKey) -> [f64; 3] {
        let of = |tally: Option<&Tally>| tally.map_or(0.0, |tally| tally.total);
        let workload = key.workload.and_then(|workload| self.workloads.get(&workload));
        [of(workload), of(self.classes.get(&key.class)), self.all.total]
    }

    /// Curves as of now, given the running pods and their ages.
    pub(crate) fn curves(&self, running: impl Iterator<Item = (LifeKey, u64)>) -> Curves<'_> {
        let mut curves = Curves {
            lifetimes: self,
            all: vec![0.0; BINS],
            classes: BTreeMap::new(),
            workloads: BTreeMap::new(),
            made: BTreeMap::new(),
            list: Vec::new(),
            all_hazards: Vec::new(),
            class_hazards: BTreeMap::new(),
        };
        let none = || vec![0.0; BINS];
        for (key, age_ms) in running {
            let bin = bin_of(age_ms);
            curves.all[bin] += 1.0;
            curves.classes.entry(key.class).or_insert_with(none)[bin] += 1.0;
            if let Some(workload) = key.workload {
                curves.workloads.entry(workload).or_insert_with(none)[bin] += 1.0;
            }
        }
        curves
    }
}

/// Forgets the half not seen for longest if there are too many.
fn forget(tallies: &mut BTreeMap<u64, Tally>) {
    if tallies.len() > REMEMBERED_MAX {
        let mut seen: Vec<u64> = tallies.values().map(|tally| tally.seen).collect();
        let middle = seen.len() / 2;
        let (_, median, _) = seen.select_nth_unstable(middle);
        let median = *median;
        tallies.retain(|_, tally| tally.seen > median);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CurveIx(pub(crate) u32);

pub(crate) struct Curves<'a> {
    lifetimes: &'a Lifetimes,
    all: Vec<f32>,
    classes: BTreeMap<u64, Vec<f32>>,
    workloads: BTreeMap<u64, Vec<f32>>,
    made: BTreeMap<(Option<u64>, u64), CurveIx>,
    list: Vec<Survival>,
    all_hazards: Vec<f64>,
    class_hazards: BTreeMap<u64, Vec<f64>>,
}

impl Curves<'_> {
    pub(crate) fn number(&mut self, key: LifeKey) -> CurveIx {
        let tally = key.workload.and_then(|workload| self.lifetimes.workloads.get(&workload));
        // A workload without ended pods uses its class.
        let workload = key.workload.filter(|_| tally.is_some());
        if let Some(made) = self.made.get(&(workload, key.class)) {
            return *made;
        }
        if self.all_hazards.is_empty() {
            let start = (vec![UNKNOWN_HAZARD; BINS], UNKNOWN_WEIGHT);
            self.all_hazards =
                hazards(Some(&self.lifetimes.all), Some(&self.all), &start.0, start.1);
        }
        let all = &self.all_hazards;
        let of_class = self.class_hazards.entry(key.class).or_insert_with(|| {
            let tally = self.lifetimes.classes.get(&key.class);
            hazards(tally, self.classes.get(&key.class), all, LEAN)
        });
        let survival = match workload {
            None => Survival::new(of_class),
            Some(workload) => {
                let running = self.workloads.get(&workload);
                Survival::new(&hazards(tally, running, of_class, LEAN))
            }
        };
        let number = CurveIx(self.list.len() as u32);
        self.list.push(survival);
        self.made.insert((workload, key.class), number);
        number
    }

    pub(crate) fn get(&self, number: CurveIx) -> &Survival {
        &self.list[number.0 as usize]
    }
}

/// The hazard per bin, leaning on the level above.
fn hazards(
    tally: Option<&Tally>,
    running: Option<&Vec<f32>>,
    above: &[f64],
    lean: f64,
) -> Vec<f64> {
    let mut hazards = vec![0.0; BINS];
    let mut beyond = 0.0;
    for bin in (0..BINS).rev() {
        let at = |counts: &[f32]| f64::from(counts.get(bin).copied().unwrap_or(0.0));
        let ended = tally.map_or(0.0, |tally| at(&tally.ended));
        let cut =
            tally.map_or(0.0, |tally| at(&tally.cut)) + running.map_or(0.0, |counts| at(counts));
        // Censored pods have, on average, been through half of the bin.
        let reached = beyond + ended + cut * 0.5;
        beyond += ended + cut;
        hazards[bin] = (ended + lean * above[bin]) / (reached + lean);
    }
    hazards
}

/// The share alive at each age.
#[derive(Clone, Debug)]
pub(crate) struct Survival {
    /// At the start of each bin, and at the end of the last.
    left: Vec<f64>,
}

/// Smaller shares count as 0.
const LEFT_MIN: f64 = 1e-9;

impl Survival {
    fn new(hazards: &[f64]) -> Self {
        let mut left = Vec::with_capacity(BINS + 1);
        let mut share = 1.0;
        left.push(share);
        for hazard in hazards {
            share *= 1.0 - hazard;
            left.push(share);
        }
        Self { left }
    }

    fn left_at(&self, age_ms: u64) -> f64 {
        let bin = bin_of(age_ms);
        let (from_ms, to_ms) = (start_ms(bin), start_ms(bin + 1));
        let within = (age_ms.min(to_ms) - from_ms) as f64 / (to_ms - from_ms) as f64;
        self.left[bin] + (self.left[bin + 1] - self.left[bin]) * within
    }

    /// The probability that a pod of this age ends within the next `span_ms`.
    pub(crate) fn ends_within(&self, age_ms: u64, span_ms: u64) -> f64 {
        let now = self.left_at(age_ms);
        if now < LEFT_MIN {
            return 1.0;
        }
        1.0 - self.left_at(age_ms.saturating_add(span_ms)) / now
    }

    /// The remaining lifetime of a pod of this age that outlives the share `luck` of similar pods;
    /// `None` if beyond all bins.
    pub(crate) fn remaining_ms(&self, age_ms: u64, luck: f64) -> Option<u64> {
        let now = self.left_at(age_ms);
        if now < LEFT_MIN {
            return Some(0);
        }
        let wanted = now * (1.0 - luck);
        let first = bin_of(age_ms);
        // The first bin at whose end no more than that are alive.
        let later = self.left[first + 1..].partition_point(|left| *left > wanted);
        let bin = first + later;
        if bin >= BINS {
            return None;
        }
        let (from_ms, to_ms) = (start_ms(bin), start_ms(bin + 1));
        let (from, to) = (self.left[bin], self.left[bin + 1]);
        let within = if from > to { ((from - wanted) / (from - to)).clamp(0.0, 1.0) } else { 1.0 };
        let end_ms = from_ms + ((to_ms - from_ms) as f64 * within) as u64;
        Some(end_ms.saturating_sub(age_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_MS: u64 = 60_000;

    fn key(workload: u64, class: u64) -> LifeKey {
        LifeKey { workload: Some(workload), class }
    }

    fn median(lifetimes: &Lifetimes, key: LifeKey, age_ms: u64) -> u64 {
        let mut curves = lifetimes.curves(std::iter::empty());
        let number = curves.number(key);
        curves.get(number).remaining_ms(age_ms, 0.5).unwrap()
    }

    #[test]
    fn a_workload_seen_often_is_believed_and_one_seen_seldom_leans_on_its_class() {
        let mut lifetimes = Lifetimes::default();
        for _ in 0..100 {
            lifetimes.record(key(1, 1), 10 * MINUTE_MS, true);
            lifetimes.record(key(2, 1), 60 * MINUTE_MS, true);
        }
        lifetimes.record(key(3, 1), 600 * MINUTE_MS, true);
        let near =
            |got: u64, minutes: u64| got.abs_diff(minutes * MINUTE_MS) < minutes * MINUTE_MS / 5;
        assert!(near(median(&lifetimes, key(1, 1), 0), 10));
        assert!(near(median(&lifetimes, key(2, 1), 0), 60));
        assert!(median(&lifetimes, key(3, 1), 0) < 100 * MINUTE_MS, "one is not enough");
        assert_eq!(
            median(&lifetimes, key(9, 1), 0),
            median(&lifetimes, LifeKey { workload: None, class: 1 }, 0)
        );
        // A pod that outlived the short ones is one of the long ones.
        assert!(near(median(&lifetimes, key(9, 1), 20 * MINUTE_MS), 40));
    }

    #[test]
    fn running_pods_make_lifetimes_longer() {
        let mut lifetimes = Lifetimes::default();
        for _ in 0..20 {
            lifetimes.record(key(1, 1), 10 * MINUTE_MS, true);
        }
        let running = (0..60).map(|_| (key(1, 1), 500 * MINUTE_MS));
        let mut curves = lifetimes.curves(running);
        let number = curves.number(key(1, 1));
        let ends = curves.get(number).ends_within(0, 20 * MINUTE_MS);
        assert!((0.2..0.4).contains(&ends), "a quarter has ended early: {ends}");
        assert!(curves.get(number).remaining_ms(0, 0.5).is_none_or(|ms| ms > 500 * MINUTE_MS));
    }

    #[test]
    fn evicted_pods_are_not_ends() {
        let (mut natural, mut cut) = (Lifetimes::default(), Lifetimes::default());
        for at in 0..50 {
            natural.record(key(1, 1), MINUTE_MS, at % 2 == 0);
            cut.record(key(1, 1), MINUTE_MS, at % 10 == 0);
            natural.record(key(1, 1), 100 * MINUTE_MS, true);
            cut.record(key(1, 1), 100 * MINUTE_MS, true);
        }
        assert!(median(&cut, key(1, 1), 0) > median(&natural, key(1, 1), 0));
    }

    #[test]
    fn chance_and_span_agree() {
        let mut lifetimes = Lifetimes::default();
        (1..400).for_each(|at| lifetimes.record(key(1, at % 3), at * at * 1_000, true));
        let mut curves = lifetimes.curves(std::iter::empty());
        let number = curves.number(key(1, 1));
        for age_ms in [0, 5_000, 100_000, 90_000_000] {
            for percent in 1..95 {
                let luck = f64::from(percent) / 100.0;
                let Some(span_ms) = curves.get(number).remaining_ms(age_ms, luck) else { continue };
                let back = curves.get(number).ends_within(age_ms, span_ms);
                assert!((back - luck).abs() < 0.01, "{age_ms} {luck} {span_ms} {back}");
            }
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut lifetimes = Lifetimes::default();
        (0..20_000).for_each(|at| lifetimes.record(key(at, at), at, true));
        assert!(lifetimes.workloads.len() <= REMEMBERED_MAX);
        assert!(lifetimes.classes.contains_key(&19_999) && !lifetimes.classes.contains_key(&0));
    }
}
