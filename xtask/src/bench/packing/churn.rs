//! The same mix with departures: pods arrive at random, stay for a random time and go.
//!
//! Arrivals are drawn from a list; lifetimes are exponential and all of one mean, so that the GPUs
//! asked for at any time are 95 % of those there are, on average. From an empty cluster, three mean
//! lifetimes pass before five are measured. A pod without a place is dropped, unless moving a few
//! others makes room for it and so few have been moved before.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use anyhow::{Context as _, Result};
use berth_packing::request::Request;
use berth_testkit::cluster::Dice;

use super::baselines::FgdTies;
use super::moves::plan;
use super::scheduler::{Ledger, PodIx, Scheduler};
use super::trace::{Cluster, PodList};
use super::{Policy, Selection, Spread, for_seeds};

/// GPUs asked for, of those there are.
const LOAD: f64 = 0.95;

/// In mean lifetimes.
const WARM: f64 = 3.0;
const END: f64 = 8.0;

/// Moves may be this part of arrivals.
const MOVES: f64 = 0.01;

/// What came of one run.
#[derive(Clone, Copy, Debug, Default)]
struct Churned {
    /// Allocated GPUs in percent, mean over time.
    allocated: f64,
    /// Dropped pods in percent of those that arrived.
    rejected: f64,
    /// The same by GPUs asked for.
    rejected_gpus: f64,
    /// Moved pods in percent of those that arrived.
    moved: f64,
}

/// A cluster in time.
struct Run<'a> {
    list: &'a PodList,
    scheduler: &'a mut dyn Scheduler,
    ledger: Ledger,
    dice: Dice,
    /// Times of departures, as the bits of positive numbers, which order like them.
    departures: BinaryHeap<Reverse<(u64, PodIx)>>,
    now: f64,
    area: f64,
    arrived: u64,
    moved: u64,
    measured: Tally,
}

#[derive(Default)]
struct Tally {
    pods: u64,
    gpus_milli: u64,
    rejected: u64,
    rejected_milli: u64,
}

impl Run<'_> {
    /// Time passes; pods leave.
    fn pass(&mut self, until: f64) -> Result<()> {
        while let Some(Reverse((at, pod))) = self.departures.peek().copied() {
            if f64::from_bits(at) > until {
                break;
            }
            self.departures.pop();
            self.count(f64::from_bits(at));
            if self.ledger.release(pod).is_some() {
                self.scheduler.depart(pod)?;
            }
        }
        self.count(until);
        Ok(())
    }

    fn count(&mut self, until: f64) {
        if until > WARM {
            self.area += self.ledger.allocated_milli as f64 * (until - self.now.max(WARM));
        }
        self.now = until;
    }

    /// An exponential time with this mean.
    fn wait(&mut self, mean: f64) -> f64 {
        // 53 bits, never 0.
        let even = ((self.dice.roll() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -mean * even.ln()
    }

    /// A pod arrives.
    fn arrive(&mut self, with_moves: bool) -> Result<()> {
        let at = self.dice.below(self.list.pods.len());
        let request = *self.list.pods.get(at).context("an empty list")?;
        let pod = PodIx(self.arrived);
        self.arrived += 1;
        let leaves = self.now + self.wait(1.0);
        let mut placed = self.place(pod, &request)?;
        if !placed && with_moves {
            placed = self.make_room(pod, &request)?;
        }
        if self.now > WARM {
            self.measured.pods += 1;
            self.measured.gpus_milli += request.gpus.total_milli();
        }
        if placed {
            self.departures.push(Reverse((leaves.to_bits(), pod)));
        } else {
            self.reject(&request);
        }
        Ok(())
    }

    fn place(&mut self, pod: PodIx, request: &Request) -> Result<bool> {
        let placement = self.scheduler.arrive(pod, request)?;
        self.ledger.record(pod, request, placement.as_ref())?;
        Ok(placement.is_some())
    }

    fn reject(&mut self, request: &Request) {
        if self.now > WARM {
            self.measured.rejected += 1;
            self.measured.rejected_milli += request.gpus.total_milli();
        }
    }

    /// Moves others away if the budget allows. A moved pod that finds no place after all counts as
    /// rejected.
    fn make_room(&mut self, pod: PodIx, request: &Request) -> Result<bool> {
        let allowed = (self.arrived as f64 * MOVES) as u64 - self.moved;
        let Some(pods) = plan(&self.ledger, request, allowed as usize) else {
            return Ok(false);
        };
        let mut moved = Vec::new();
        for pod in pods {
            moved.extend(self.ledger.release(pod).map(|request| (pod, request)));
            self.scheduler.depart(pod)?;
        }
        self.moved += moved.len() as u64;
        let placed = self.place(pod, request)?;
        for (pod, request) in moved {
            if !self.place(pod, &request)? {
                self.reject(&request);
            }
        }
        Ok(placed)
    }
}

fn churn(
    cluster: &Cluster,
    list: &PodList,
    scheduler: &mut dyn Scheduler,
    seed: u64,
    with_moves: bool,
) -> Result<Churned> {
    let capacity = cluster.gpu_milli() as f64;
    let asked: u64 = list.pods.iter().map(|pod| pod.gpus.total_milli()).sum();
    let between = asked as f64 / list.pods.len() as f64 / (LOAD * capacity);
    let mut run = Run {
        list,
        scheduler,
        ledger: Ledger::new(cluster),
        dice: Dice::new(seed),
        departures: BinaryHeap::new(),
        now: 0.0,
        area: 0.0,
        arrived: 0,
        moved: 0,
        measured: Tally::default(),
    };
    loop {
        let next = run.now + run.wait(between);
        run.pass(next.min(END))?;
        if next >= END {
            break;
        }
        run.arrive(with_moves)?;
    }
    let percent = |part: u64, of: u64| part as f64 * 100.0 / of.max(1) as f64;
    Ok(Churned {
        allocated: run.area / (END - WARM) / capacity * 100.0,
        rejected: percent(run.measured.rejected, run.measured.pods),
        rejected_gpus: percent(run.measured.rejected_milli, run.measured.gpus_milli),
        moved: percent(run.moved, run.arrived),
    })
}

/// Prints the table.
pub(crate) fn run(selection: &Selection) -> Result<()> {
    println!(
        "95 % of the GPUs asked for, exponential lifetimes; means (range) in %; moves: at most 1 %\n"
    );
    println!(
        "{:<12} {:<16} {:<21} {:<20} {:<20} {:>6}",
        "list", "policy", "allocated", "pods rejected", "GPUs rejected", "moved"
    );
    for list in &selection.lists {
        for (policy, with_moves) in [
            (Policy::BestFit, false),
            (Policy::Fgd(FgdTies::Name), false),
            (Policy::Berth, false),
            (Policy::BestFit, true),
            (Policy::Fgd(FgdTies::Name), true),
            (Policy::Berth, true),
        ] {
            row(selection, list, policy, with_moves)?;
        }
    }
    Ok(())
}

fn row(selection: &Selection, list: &PodList, policy: Policy, with_moves: bool) -> Result<()> {
    let runs = for_seeds(&selection.seeds, |seed| {
        let mut scheduler = policy.scheduler(&selection.cluster, list, seed)?;
        churn(&selection.cluster, list, scheduler.as_mut(), seed, with_moves)
            .with_context(|| format!("{} on {}, seed {seed}", policy.name(), list.name))
    })?;
    let spread = |of: fn(&Churned) -> f64| Spread::of(runs.iter().map(of));
    println!(
        "{:<12} {:<16} {:<21} {:<20} {:<20} {:>6.2}",
        list.name,
        format!("{}{}", policy.name(), if with_moves { ", moves" } else { "" }),
        spread(|run| run.allocated)?.to_string(),
        spread(|run| run.rejected)?.to_string(),
        spread(|run| run.rejected_gpus)?.to_string(),
        spread(|run| run.moved)?.mean,
    );
    Ok(())
}
