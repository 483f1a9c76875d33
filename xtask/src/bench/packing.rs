//! Fills Alibaba's cluster the way the FGD paper did, under four policies, one of them with two rules for ties.
//!
//! Pods arrive and stay. Each is placed whenever any node can take it, or dropped for good; a ledger
//! checks both. What counts is how much of the GPUs is allocated when the GPUs asked for so far reach
//! 100 and 130 % of those there are.

mod arrivals;
mod baselines;
mod berth;
mod churn;
mod moves;
mod published;
mod ranked;
mod scheduler;
mod trace;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use berth_packing::request::Request;
use berth_testkit::cluster::Dice;

use arrivals::arrivals;
use baselines::{BestFit, Fgd, FgdTies, Random};
use berth::Berth;
use published::Published;
use ranked::Ranked;
use scheduler::{Ledger, PodIx, Scheduler, empty_nodes};
use trace::{Cluster, Directory, PodList};

pub(crate) use churn::run as run_churn;

/// Who places pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Random,
    BestFit,
    Fgd(FgdTies),
    Berth,
}

impl Policy {
    const ALL: [Self; 5] = [
        Self::Random,
        Self::BestFit,
        Self::Fgd(FgdTies::Name),
        Self::Fgd(FgdTies::BestFit),
        Self::Berth,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Random => "Random",
            Self::BestFit => "BestFit",
            Self::Fgd(FgdTies::Name) => "FGD",
            Self::Fgd(FgdTies::BestFit) => "FGD, best-fit ties",
            Self::Berth => "Berth",
        }
    }

    /// On an empty cluster.
    fn scheduler(self, cluster: &Cluster, list: &PodList, seed: u64) -> Result<Box<dyn Scheduler>> {
        let nodes = empty_nodes(cluster);
        Ok(match self {
            Self::Random => Box::new(Ranked::new(nodes, Random(Dice::new(!seed)))),
            Self::BestFit => Box::new(Ranked::new(nodes, BestFit)),
            Self::Fgd(ties) => Box::new(Ranked::new(nodes, Fgd::new(list, ties))),
            Self::Berth => Box::new(Berth::new(cluster)?),
        })
    }
}

/// The data and which parts of it to use.
pub(crate) struct Selection {
    cluster: Cluster,
    lists: Vec<PodList>,
    seeds: Vec<u64>,
    published: Published,
}

impl Selection {
    /// Seeds as `42..51`, both included, or one; lists by name, all if there are none.
    pub(crate) fn new(data: &Path, seeds: &str, lists: &[String]) -> Result<Self> {
        let directory = Directory::find(data)?;
        let cluster = directory.cluster()?;
        let names = if lists.is_empty() { directory.list_names()? } else { lists.to_vec() };
        let lists = names.iter().map(|name| directory.list(name, &cluster));
        let lists = lists.collect::<Result<_>>()?;
        let published = directory
            .published()
            .map_or(Ok(Published::default()), |path| Published::read(&path))?;
        Ok(Self { cluster, lists, seeds: parse_seeds(seeds)?, published })
    }
}

fn parse_seeds(text: &str) -> Result<Vec<u64>> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let number = |text: &str| {
        text.parse::<u64>().map_err(|_| anyhow!("{text:?} is no seed; write them as 42..51"))
    };
    let (first, last) = (number(first)?, number(last)?);
    ensure!(first <= last && last - first < 10_000, "seeds {first}..{last}: none, or too many");
    Ok((first..=last).collect())
}

/// What came of one run.
#[derive(Clone, Copy, Debug)]
struct Filled {
    /// Allocated GPUs in percent, at a demand of 100 and of 130 percent.
    at_100: f64,
    at_130: f64,
    decisions_per_s: f64,
}

/// Lets all pods arrive.
fn fill(cluster: &Cluster, pods: &[Request], scheduler: &mut dyn Scheduler) -> Result<Filled> {
    let capacity = cluster.gpu_milli();
    let mut ledger = Ledger::new(cluster);
    let (mut asked, mut at_100, mut took) = (0, 0.0, Duration::ZERO);
    let percent = |ledger: &Ledger| ledger.allocated_milli as f64 * 100.0 / capacity as f64;
    for (pod, request) in (0..).map(PodIx).zip(pods) {
        let start = Instant::now();
        let placement = scheduler.arrive(pod, request)?;
        took += start.elapsed();
        ledger.record(pod, request, placement.as_ref())?;
        asked += request.gpus.total_milli();
        if asked <= capacity {
            at_100 = percent(&ledger);
        }
    }
    let decisions_per_s = pods.len() as f64 / took.as_secs_f64();
    Ok(Filled { at_100, at_130: percent(&ledger), decisions_per_s })
}

/// Does something for every seed, on all cores.
fn for_seeds<T: Send>(seeds: &[u64], run: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(seeds.len()).max(1);
    let mut results = thread::scope(|scope| {
        let start = |first: usize| {
            let run = &run;
            scope.spawn(move || {
                let mine = seeds.iter().enumerate().skip(first).step_by(threads);
                mine.map(|(at, seed)| Ok((at, run(*seed)?))).collect::<Result<Vec<_>>>()
            })
        };
        let running: Vec<_> = (0..threads).map(start).collect();
        let mut results = Vec::new();
        for thread in running {
            match thread.join() {
                Ok(result) => results.extend(result?),
                Err(_) => bail!("a run panicked"),
            }
        }
        Ok(results)
    })?;
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Mean and range.
#[derive(Clone, Copy, Debug)]
struct Spread {
    mean: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Result<Self> {
        let values: Vec<f64> = values.collect();
        let least = values.iter().copied().reduce(f64::min).context("no runs")?;
        let most = values.iter().copied().reduce(f64::max).context("no runs")?;
        Ok(Self { mean: values.iter().sum::<f64>() / values.len() as f64, least, most })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>6.2} ({:.2}–{:.2})", self.mean, self.least, self.most)
    }
}

/// Allocated percent aimed at on the default list.
const AIM_DEFAULT: f64 = 96.0;

/// Prints the table.
pub(crate) fn run(selection: &Selection) -> Result<()> {
    let (first, last) = (selection.seeds.first(), selection.seeds.last());
    println!(
        "{} nodes, {} GPUs, seeds {}–{}; allocated GPUs in %, mean (range); ties: smallest name unless said\n",
        selection.cluster.machines.len(),
        selection.cluster.gpu_milli() / 1_000,
        first.context("no seeds")?,
        last.context("no seeds")?,
    );
    println!(
        "{:<12} {:<18} {:<21} {:<21} {:>14} {:>12}",
        "list", "policy", "at 100 % demand", "at 130 % demand", "published", "decisions/s"
    );
    let mut behind = Vec::new();
    for list in &selection.lists {
        let mut fgd = f64::NEG_INFINITY;
        for policy in Policy::ALL {
            let (at_130, published) = row(selection, list, policy)?;
            match policy {
                Policy::Fgd(_) => fgd = fgd.max(at_130).max(published.unwrap_or(at_130)),
                Policy::Berth if at_130 <= fgd => behind.push(list.name.as_str()),
                Policy::Berth if list.name == "default" => {
                    println!(
                        "{:<12} Berth {at_130:.2} at 130 %; the aim is {AIM_DEFAULT}",
                        "default"
                    );
                }
                Policy::Random | Policy::BestFit | Policy::Berth => {}
            }
        }
    }
    let lists = selection.lists.len();
    println!(
        "\nBerth is above FGD, with either ties and as published, on {} of {lists} lists at 130 %{}{}",
        lists - behind.len(),
        if behind.is_empty() { "" } else { "; not on " },
        behind.join(", ")
    );
    Ok(())
}

/// Runs and prints one row: the mean at 130 percent, and the published one.
fn row(selection: &Selection, list: &PodList, policy: Policy) -> Result<(f64, Option<f64>)> {
    let runs = for_seeds(&selection.seeds, |seed| {
        let pods = arrivals(list, &selection.cluster, seed);
        let mut scheduler = policy.scheduler(&selection.cluster, list, seed)?;
        fill(&selection.cluster, &pods, scheduler.as_mut())
            .with_context(|| format!("{} on {}, seed {seed}", policy.name(), list.name))
    })?;
    let at_100 = Spread::of(runs.iter().map(|run| run.at_100))?;
    let at_130 = Spread::of(runs.iter().map(|run| run.at_130))?;
    // The median: a busy machine slows some runs down.
    let mut speeds: Vec<f64> = runs.iter().map(|run| run.decisions_per_s).collect();
    speeds.sort_by(f64::total_cmp);
    let speed = speeds.get(speeds.len() / 2).context("no runs")?;
    let published = selection.published.get(&list.name, policy.name());
    let told = published.map_or(String::new(), |(a, b)| format!("{a:.2} / {b:.2}"));
    println!(
        "{:<12} {:<18} {at_100:<21} {at_130:<21} {told:>14} {speed:>12.0}",
        list.name,
        policy.name(),
        at_100 = at_100.to_string(),
        at_130 = at_130.to_string(),
    );
    Ok((at_130.mean, published.map(|(_, at_130)| at_130)))
}
