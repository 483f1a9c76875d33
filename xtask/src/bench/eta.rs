//! Measures forecasts of when pods start: of those told "within T, p %", how many did.

mod replay;
mod trace;

use std::path::Path;

use anyhow::Result;
use berth_forecast::Effort;
use berth_forecast::forecast::{HORIZON_MS, LEVELS_MILLI};

use replay::{METHOD_NAMES, METHODS, Record, Replayed, Scenario};
use trace::Trace;

/// The first part of every replay is not counted: nothing is known yet. In hundredths.
const WARM_UP_PERCENT: i64 = 20;

const MINUTE_MS: u64 = 60_000;

/// Horizons in minutes.
const HORIZONS: [u64; 6] = [1, 5, 10, 30, 60, 240];

/// Levels that are reported, as places in [`LEVELS_MILLI`].
const REPORTED: [usize; 4] = [2, 4, 5, 6];

/// How often the trace is laid over itself, the load in hundredths, and whether latency-sensitive pods
/// go first.
const SCENARIOS: [(usize, i64, bool); 5] =
    [(1, 70, false), (2, 75, false), (4, 80, false), (4, 85, false), (4, 85, true)];

/// The cluster on which speed is measured.
const SPEED_NODES: usize = 1_000;
const SPEED_WAITING: usize = 200;

/// Told and kept.
#[derive(Clone, Copy, Default)]
struct Kept {
    told: u64,
    kept: u64,
}

impl Kept {
    fn add(&mut self, other: Self) {
        self.told += other.told;
        self.kept += other.kept;
    }

    fn percent(self) -> f64 {
        self.kept as f64 * 100.0 / self.told.max(1) as f64
    }
}

/// Statements by level: with a bound in each stretch between horizons, and with one up to each.
#[derive(Clone, Copy, Default)]
struct Table {
    between: [[Kept; HORIZONS.len() + 1]; REPORTED.len()],
    up_to: [[Kept; HORIZONS.len()]; REPORTED.len()],
}

/// What is measured of each method.
#[derive(Clone, Default)]
struct Score {
    tables: [Table; METHODS],
    /// Pinball loss in seconds, summed over the reported levels, and how many pods it is of.
    pinball_s: [f64; METHODS],
    pinball_log: [f64; METHODS],
    pods: u64,
}

pub(crate) fn run(data: &Path, seeds: &[u64]) -> Result<()> {
    let mut all = Score::default();
    println!(
        "of pods told \"within 10 minutes, 80 %\" after the first {WARM_UP_PERCENT} % of each replay: \
         with any bound up to 10 minutes, and with one of 5 to 10"
    );
    println!(
        "{:<34} {:>5} {:>5} {:>6} {:>6} {:>6} {:>7} {:>9} {:>7} {:>9} {:>6} {:>6}",
        "scenario",
        "nodes",
        "GPUs",
        "pods",
        "waited",
        "queue",
        "<= 10",
        "kept",
        "(5,10]",
        "kept",
        "us",
        "unfit"
    );
    for (copies, load_percent, classes) in SCENARIOS {
        let trace = Trace::read(data, classes)?;
        for seed in seeds {
            let scenario = Scenario { copies, load_percent, classes, seed: *seed };
            let replayed = scenario.replay(&trace, Effort::default())?;
            let score = score(&replayed);
            print_scenario(&scenario, &replayed, &score);
            all.merge(&score);
        }
    }
    print_tables(&all);
    let (pods, time) = replay::speed(&Trace::read(data, false)?, SPEED_NODES, SPEED_WAITING)?;
    println!(
        "\non {SPEED_NODES} nodes with {pods} pods, {SPEED_WAITING} of them waiting: {} us a forecast",
        time.as_micros() / SPEED_WAITING as u128
    );
    Ok(())
}

/// Kept, as far as that can be known by the end; `None` if it is not due.
fn kept(record: &Record, bound_ms: u64, end_ms: i64) -> Option<Kept> {
    let due_ms = record.at_ms.saturating_add(bound_ms as i64);
    let kept = record.wait_ms.is_some_and(|wait_ms| wait_ms <= bound_ms as i64);
    (due_ms <= end_ms).then_some(Kept { told: 1, kept: u64::from(kept) })
}

fn score(replayed: &Replayed) -> Score {
    let mut score = Score::default();
    let from_ms = replayed.end_ms * WARM_UP_PERCENT / 100;
    for record in replayed.records.iter().filter(|record| record.at_ms >= from_ms) {
        for method in 0..METHODS {
            for (row, level) in REPORTED.into_iter().enumerate() {
                let Some(bound_ms) = record.bounds[method][level] else { continue };
                let Some(kept) = kept(record, bound_ms, replayed.end_ms) else { continue };
                let table = &mut score.tables[method];
                let within = |minutes: &u64| bound_ms <= minutes * MINUTE_MS;
                let column = HORIZONS.iter().position(within).unwrap_or(HORIZONS.len());
                table.between[row][column].add(kept);
                table.up_to[row][column.min(HORIZONS.len())..]
                    .iter_mut()
                    .for_each(|cell| cell.add(kept));
            }
        }
        score.pinball(record, replayed.end_ms);
    }
    score
}

impl Score {
    /// A pod that has not started by the end counts as starting then, for all methods alike.
    fn pinball(&mut self, record: &Record, end_ms: i64) {
        let wait_s = record.wait_ms.unwrap_or(end_ms - record.at_ms) as f64 / 1e3;
        self.pods += 1;
        for method in 0..METHODS {
            for level in REPORTED {
                let share = f64::from(LEVELS_MILLI[level]) / 1e3;
                let bound_s = record.bounds[method][level].unwrap_or(HORIZON_MS) as f64 / 1e3;
                let loss = |off: f64| if off > 0.0 { share * off } else { (share - 1.0) * off };
                self.pinball_s[method] += loss(wait_s - bound_s);
                self.pinball_log[method] += loss((wait_s + 10.0).log2() - (bound_s + 10.0).log2());
            }
        }
    }

    fn merge(&mut self, other: &Self) {
        for method in 0..METHODS {
            let (to, from) = (&mut self.tables[method], &other.tables[method]);
            let cells = to.between.as_flattened_mut().iter_mut().zip(from.between.as_flattened());
            cells.for_each(|(to, from)| to.add(*from));
            let cells = to.up_to.as_flattened_mut().iter_mut().zip(from.up_to.as_flattened());
            cells.for_each(|(to, from)| to.add(*from));
            self.pinball_s[method] += other.pinball_s[method];
            self.pinball_log[method] += other.pinball_log[method];
        }
        self.pods += other.pods;
    }
}

fn print_scenario(scenario: &Scenario, replayed: &Replayed, score: &Score) {
    let Scenario { copies, load_percent, classes, seed } = scenario;
    let name = format!(
        "x{copies}, load {load_percent} %{}, seed {seed}",
        if *classes { ", classes" } else { "" }
    );
    let [up_to, between] = [score.tables[0].up_to[1][2], score.tables[0].between[1][2]];
    let each_us = replayed.time.as_micros() / replayed.records.len().max(1) as u128;
    println!(
        "{name:<34} {:>5} {:>5} {:>6} {:>6} {:>6} {:>7} {:>7.1} % {:>7} {:>7.1} % {:>6} {:>6}",
        replayed.nodes,
        replayed.gpus,
        replayed.pods,
        replayed.records.len(),
        replayed.waiting_max,
        up_to.told,
        up_to.percent(),
        between.told,
        between.percent(),
        each_us,
        replayed.impossible,
    );
}

fn print_tables(score: &Score) {
    for (method, (table, name)) in score.tables.iter().zip(METHOD_NAMES).enumerate() {
        println!("\n{name}: of those told \"within T, p %\", how many did (and of how many)");
        print!("{:>5}", "p");
        let mut from = 0;
        for to in HORIZONS {
            print!("{:>17}", format!("T in ({from},{to}]"));
            from = to;
        }
        println!("{:>17}", format!("T > {from}"));
        for (row, level) in REPORTED.into_iter().enumerate() {
            print!("{:>3} %", LEVELS_MILLI[level] / 10);
            for cell in table.between[row] {
                print!("{:>17}", format!("{:.1} ({})", cell.percent(), cell.told));
            }
            print!("\n  up to");
            for cell in table.up_to[row] {
                print!("{:>15}  ", format!("{:.1} ({})", cell.percent(), cell.told));
            }
            println!();
        }
        let pods = (score.pods * REPORTED.len() as u64).max(1) as f64;
        println!(
            "pinball loss: {:.0} s, {:.3} doublings",
            score.pinball_s[method] / pods,
            score.pinball_log[method] / pods
        );
    }
}
