//! Measurements over time: amounts times their duration, by step of the series and in total.

use std::collections::BTreeMap;

use crate::report::{ClassReport, Happening, Series};

/// Log entries per kind.
const HAPPENINGS_MAX: usize = 200;

/// Current amounts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Levels {
    pub(crate) gpus: i64,
    pub(crate) allocated_milli: i64,
    /// Kept busy by batch pods.
    pub(crate) batch_milli: i64,
    /// GPUs kept busy by replicas.
    pub(crate) serving: f64,
    pub(crate) waiting: i64,
    /// Running GPU pods, and how many of them are aligned.
    pub(crate) gpu_pods: (i64, i64),
}

/// Amounts times milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) gpus: f64,
    pub(crate) allocated: f64,
    pub(crate) utilised: f64,
    pub(crate) batch: f64,
    pub(crate) waiting: f64,
    pub(crate) gpu_pods: f64,
    pub(crate) aligned: f64,
    pub(crate) fragmented: f64,
}

impl Sums {
    fn add(&mut self, levels: &Levels, passed_ms: f64) {
        self.gpus += levels.gpus as f64 * passed_ms;
        self.allocated += levels.allocated_milli as f64 / 1000.0 * passed_ms;
        let batch = levels.batch_milli as f64 / 1000.0;
        self.batch += batch * passed_ms;
        self.utilised += (batch + levels.serving) * passed_ms;
        self.waiting += levels.waiting as f64 * passed_ms;
        self.gpu_pods += levels.gpu_pods.0 as f64 * passed_ms;
        self.aligned += levels.gpu_pods.1 as f64 * passed_ms;
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ClassTally {
    pub(crate) pods: u64,
    pub(crate) waits_ms: Vec<i64>,
    /// Of pods that are still pending.
    pub(crate) still_ms: Vec<i64>,
    pub(crate) preempted: u64,
}

impl ClassTally {
    pub(crate) fn report(mut self, class: &str) -> ClassReport {
        let started = self.waits_ms.len() as u64;
        self.waits_ms.append(&mut self.still_ms);
        self.waits_ms.sort_unstable();
        let at = |part: f64| {
            let place = (self.waits_ms.len() as f64 * part) as usize;
            let last = self.waits_ms.len().saturating_sub(1);
            self.waits_ms.get(place.min(last)).copied().unwrap_or(0)
        };
        ClassReport {
            class: class.to_owned(),
            pods: self.pods,
            started,
            wait_p50_ms: at(0.5),
            wait_p90_ms: at(0.9),
            wait_p99_ms: at(0.99),
            wait_max_ms: at(1.0),
            preempted: self.preempted,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    now_ms: i64,
    pub(crate) levels: Levels,
    pub(crate) all: Sums,
    step: Sums,
    pub(crate) series: Series,
    pub(crate) rejections: BTreeMap<String, u64>,
    step_rejections: u32,
    pub(crate) preemptions: u64,
    step_preemptions: u32,
    pub(crate) classes: BTreeMap<String, ClassTally>,
    pub(crate) happenings: Vec<Happening>,
    logged: BTreeMap<&'static str, usize>,
}

impl Meter {
    pub(crate) fn new(step_ms: i64) -> Self {
        let series = Series { step_ms, ..Series::default() };
        Self { series, ..Self::default() }
    }

    pub(crate) fn pass(&mut self, now_ms: i64) {
        let passed_ms = (now_ms - self.now_ms) as f64;
        self.now_ms = now_ms;
        self.all.add(&self.levels, passed_ms);
        self.step.add(&self.levels, passed_ms);
    }

    pub(crate) fn close_step(&mut self, fragmented: f64, p99_us: f64, lasted_ms: i64) {
        let sums = std::mem::take(&mut self.step);
        let lasted = lasted_ms.max(1) as f64;
        self.all.fragmented += fragmented * lasted;
        let series = &mut self.series;
        let mean = |sum: f64| (sum / lasted) as f32;
        series.gpus.push(mean(sums.gpus));
        series.allocated.push(mean(sums.allocated));
        series.utilised.push(mean(sums.utilised));
        series.fragmented.push(fragmented as f32);
        series.waiting.push(mean(sums.waiting));
        series.rejections.push(std::mem::take(&mut self.step_rejections));
        series.preemptions.push(std::mem::take(&mut self.step_preemptions));
        series.p99_us.push(p99_us as u32);
    }

    pub(crate) fn reject(&mut self, reason: &str) {
        *self.rejections.entry(reason.to_owned()).or_default() += 1;
        self.step_rejections += 1;
    }

    pub(crate) fn preempt(&mut self, class: &str) {
        self.preemptions += 1;
        self.step_preemptions += 1;
        self.class(class).preempted += 1;
    }

    pub(crate) fn class(&mut self, class: &str) -> &mut ClassTally {
        if !self.classes.contains_key(class) {
            self.classes.insert(class.to_owned(), ClassTally::default());
        }
        self.classes.entry(class.to_owned()).or_default()
    }

    /// Adds a log entry, up to the limit per kind.
    pub(crate) fn log(&mut self, kind: &'static str, text: impl FnOnce() -> String) {
        let logged = self.logged.entry(kind).or_default();
        *logged += 1;
        if *logged <= HAPPENINGS_MAX {
            let at_ms = self.now_ms;
            self.happenings.push(Happening { at_ms, kind: kind.to_owned(), text: text() });
        }
    }
}
