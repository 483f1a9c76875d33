//! What becomes of MIG requests under several rules: how many are accepted, and what is stranded.
//!
//! Requests for slices of one board come in four mixes, at loads of 85 to 100 % of the memory units
//! of all GPUs; once with departures, in the steady state, and once arriving only, until the load has
//! come. All rules see the same requests. A request that fits nowhere is lost; none is refused that
//! fits. Berth starts from an even mix and learns the real one from what arrives; nobody tells it.
//!
//! - *accepted*: of the requests, and of the units they ask for.
//! - *stranded*: free units that no profile of the mix can use, on average over time.
//! - *unusable*: of the free units, those on GPUs that cannot take the next request, on average over
//!   the mix and time; this is the measure of FGD (ATC'23).

mod claims;
mod parvagpu;
mod policies;
mod world;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use berth_model::mig::{Attribute, Board, Profile};
use clap::Args;

use policies::Rule;
use world::{Mode, Outcome, Requests};

/// What to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// Seeds per cell
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// GPUs
    #[arg(long, default_value_t = 100)]
    gpus: usize,
    /// Measure only this mix
    #[arg(long)]
    mix: Option<String>,
    /// Also measure slices claimed by DRA, at 95 % with departures
    #[arg(long)]
    claims: bool,
    /// Directory of ParvaGPU's data; plans its six scenarios, too
    #[arg(long, value_name = "DIR")]
    parvagpu: Option<PathBuf>,
    /// Board id
    #[arg(long, default_value = "a100-80gb")]
    board: String,
}

/// The mixes in per cent, for 1g, 1g with double memory, 2g, 3g, 4g and 7g.
pub(crate) const MIXES: [(&str, [u32; 6]); 4] = [
    ("uniform", [1, 1, 1, 1, 1, 1]),
    ("small", [30, 25, 20, 10, 10, 5]),
    ("large", [5, 10, 10, 20, 25, 30]),
    ("bimodal", [30, 15, 5, 5, 15, 30]),
];

const LOADS_PERCENT: [u32; 4] = [85, 90, 95, 100];

/// By rule, what came of all seeds.
type Cell = BTreeMap<Rule, Vec<Outcome>>;

pub(crate) fn run(options: &Options) -> Result<bool> {
    let board = Board::by_id(&options.board)
        .with_context(|| format!("no board {:?}; try a100-80gb", options.board))?;
    let profiles = plain_profiles(board);
    ensure!(
        profiles.len() == MIXES[0].1.len(),
        "the mixes are for boards of eight units; {} has {} plain profiles",
        board.id(),
        profiles.len()
    );
    let mut behind: BTreeMap<Rule, Vec<String>> = BTreeMap::new();
    let mut all = 0;
    for mode in [Mode::Steady, Mode::Filling] {
        println!("\n{} GPUs ({}), {} seeds, {mode}", options.gpus, board.id(), options.seeds);
        println!(
            "{:<8} {:>4} {:<15} {:>7} {:>15} {:>8} {:>9} {:>9} {:>12}",
            "mix",
            "load",
            "rule",
            "req. %",
            "range",
            "units %",
            "stranded",
            "unusable",
            "decisions/s"
        );
        let asked = |name: &str| options.mix.as_ref().is_none_or(|mix| mix == name);
        for (name, weights) in MIXES.into_iter().filter(|(name, _)| asked(name)) {
            for load in LOADS_PERCENT {
                let mut cell = Cell::new();
                for seed in 0..options.seeds {
                    let requests =
                        Requests::draw(&profiles, weights, load, options.gpus, mode, seed);
                    let claims = options.claims && load == 95 && mode == Mode::Steady;
                    let claims = Rule::CLAIMS.into_iter().filter(|_| claims);
                    for rule in Rule::ALL.into_iter().chain(claims) {
                        let outcome = world::run(rule, board, options.gpus, &requests)?;
                        cell.entry(rule).or_default().push(outcome);
                    }
                }
                all += 1;
                print_cell(name, load, &cell);
                compare(&cell, &format!("{name} at {load} %, {mode}"), &mut behind);
            }
        }
    }
    println!();
    for rule in Rule::ALL.into_iter().filter(|rule| rule.is_online_baseline()) {
        let cells = behind.get(&rule).map_or(&[][..], Vec::as_slice);
        println!("berth accepts less than {rule} in {} of {all} cells {cells:?}", cells.len());
    }
    options.parvagpu.as_deref().map_or(Ok(true), parvagpu::run)
}

/// The plain profiles, the smallest first.
fn plain_profiles(board: &'static Board) -> Vec<&'static Profile> {
    let mut plain: Vec<&'static Profile> =
        board.profiles().iter().filter(|p| p.attribute() == Attribute::Plain).collect();
    plain.sort_by_key(|p| (p.memory_units(), p.compute_slices()));
    plain
}

fn mean(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64
}

fn print_cell(mix: &str, load: u32, cell: &Cell) {
    for (rule, outcomes) in cell {
        let accepted = |o: &Outcome| 100.0 * o.accepted;
        let least = outcomes.iter().map(accepted).fold(f64::INFINITY, f64::min);
        let most = outcomes.iter().map(accepted).fold(0.0, f64::max);
        println!(
            "{mix:<8} {load:>4} {:<15} {:>7.2} {:>15} {:>8.2} {:>9.2} {:>9.1} {:>12.0}",
            rule.to_string(),
            mean(outcomes, accepted),
            format!("{least:.2}–{most:.2}"),
            mean(outcomes, |o| 100.0 * o.accepted_units),
            mean(outcomes, |o| o.stranded),
            mean(outcomes, |o| o.unusable),
            mean(outcomes, |o| o.decisions_per_s),
        );
    }
}

/// Notes where Berth's mean acceptance is below a baseline's, in requests or in units, by more than
/// a hundredth of a per cent.
fn compare(cell: &Cell, place: &str, behind: &mut BTreeMap<Rule, Vec<String>>) {
    let Some(berth) = cell.get(&Rule::Berth) else { return };
    for (rule, outcomes) in cell.iter().filter(|(rule, _)| rule.is_online_baseline()) {
        let requests = mean(outcomes, |o| o.accepted) - mean(berth, |o| o.accepted);
        let units = mean(outcomes, |o| o.accepted_units) - mean(berth, |o| o.accepted_units);
        if requests > 1e-4 || units > 1e-4 {
            let lag = format!("{place} (by {:.2}/{:.2})", 100.0 * requests, 100.0 * units);
            behind.entry(*rule).or_default().push(lag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(rule: Rule, weights: [u32; 6]) -> (f64, f64) {
        let board = Board::by_id("a100-80gb").unwrap();
        let profiles = plain_profiles(board);
        let run = |seed| {
            let requests = Requests::draw(&profiles, weights, 100, 40, Mode::Steady, seed);
            world::run(rule, board, 40, &requests).unwrap()
        };
        let all: Vec<Outcome> = (0..3).map(run).collect();
        (mean(&all, |o| o.accepted), mean(&all, |o| o.stranded))
    }

    #[test]
    fn berth_accepts_more_and_strands_less_than_every_online_rule() {
        for (mix, weights) in MIXES {
            let (accepted, stranded) = outcomes(Rule::Berth, weights);
            for rule in [Rule::FirstFit, Rule::BestFit, Rule::MinFrag] {
                let (theirs, lost) = outcomes(rule, weights);
                assert!(accepted >= theirs, "{mix}: {accepted}, {rule} {theirs}");
                assert!(stranded <= lost, "{mix}: {stranded}, {rule} {lost}");
            }
        }
    }

    #[test]
    fn the_same_requests_give_the_same_outcome() {
        let twice = [0, 1].map(|_| outcomes(Rule::Berth, MIXES[0].1));
        assert_eq!(twice[0], twice[1]);
    }
}
