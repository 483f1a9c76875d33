//! Runs arbitrary worlds, many more than the tests do, and prints what does not hold in them.
//!
//! Owns counting and printing. What a world is and what is asked of it is testkit's and `berth-faults`'.

mod live;

use anyhow::Result;
use berth_engine::Config;
use berth_engine::config::{Profile, ReservationBudget, UnknownTopology};
use berth_testkit::cluster::BuildError;
use berth_testkit::contest::{self, Outcome};
use berth_testkit::world::{
    Size, breaks_a_law, depends_on_order, gives_parts_wrongly, proposes_wrongly, remembers_trials,
};

pub(crate) use self::live::live;

/// Findings printed in full; the rest is only counted.
const SHOWN: usize = 20;

const SMALL: Size = Size { nodes: 6, rounds: 12 };
const LARGE: Size = Size { nodes: 12, rounds: 40 };

/// A question that every world is asked; the answer is what is wrong.
type Question = fn(u64, Size, Config) -> Result<Option<String>, BuildError>;

/// Asks the engine about `seeds` worlds from `first` on; whether nothing was wrong.
pub(crate) fn engine(first: u64, seeds: u64) -> Result<bool> {
    let kube = Config::from(Profile::KubeScheduler);
    let refuse = Config { unknown_topology: UnknownTopology::Refuse, ..Config::default() };
    let reserving = Config { reservations: ReservationBudget::UNLIMITED, ..Config::default() };
    let questions: [(&str, Question, Size, Config); 9] = [
        ("laws", breaks_a_law, LARGE, Config::default()),
        ("laws, all may be reserved", breaks_a_law, LARGE, reserving),
        ("laws, unknown topologies refused", breaks_a_law, LARGE, refuse),
        ("laws, kube-scheduler", breaks_a_law, SMALL, kube),
        ("order of news", depends_on_order, LARGE, Config::default()),
        ("rollback", remembers_trials, SMALL, Config::default()),
        ("proposals", proposes_wrongly, LARGE, Config::default()),
        ("parts of GPUs", gives_parts_wrongly, LARGE, Config::default()),
        ("rollback, kube-scheduler", remembers_trials, SMALL, kube),
    ];
    let mut wrong = 0;
    for (name, question, size, config) in questions {
        let mut found = 0;
        for seed in first..first.saturating_add(seeds) {
            let answer = question(seed, size, config).map_err(anyhow::Error::from_boxed)?;
            if let Some(answer) = answer {
                if found < SHOWN {
                    println!("{name}: {answer}");
                }
                found += 1;
            }
        }
        println!("{found:>6} of {seeds} worlds  {name}");
        wrong += found;
    }
    println!("sweep: {seeds} worlds, {wrong} findings");
    Ok(wrong == 0)
}

/// Runs `seeds` contests of gangs from `first` on; whether nothing was wrong.
pub(crate) fn gangs(first: u64, seeds: u64) -> Result<bool> {
    let mut sum = Outcome::default();
    let mut wrong = 0;
    for seed in first..first.saturating_add(seeds) {
        let outcome = contest::run(seed).map_err(anyhow::Error::from_boxed)?;
        if let Some(broken) = &outcome.broken {
            if wrong < SHOWN {
                println!("seed {seed}, {broken}");
            }
            wrong += 1;
        }
        sum.gangs += outcome.gangs;
        sum.started += outcome.started;
        sum.reserved += outcome.reserved;
        sum.evicted += outcome.evicted;
        sum.decisions += outcome.decisions;
        sum.kept_out_ms_max = sum.kept_out_ms_max.max(outcome.kept_out_ms_max);
        sum.wait_ms_max = sum.wait_ms_max.max(outcome.wait_ms_max);
        sum.wait_percent_max = sum.wait_percent_max.max(outcome.wait_percent_max);
    }
    let Outcome { gangs, started, reserved, evicted, decisions, .. } = sum;
    println!("{gangs} gangs that fit an empty cluster, {started} started");
    println!("{decisions} decisions, {evicted} evictions, nodes kept {reserved} times");
    println!("longest that reservations kept out a pod {} s", sum.kept_out_ms_max / 1000);
    println!("longest wait {} s", sum.wait_ms_max / 1000);
    println!("longest wait where a bound is known: {} % of the bound", sum.wait_percent_max);
    println!("sweep: {seeds} contests, {wrong} findings");
    Ok(wrong == 0)
}
