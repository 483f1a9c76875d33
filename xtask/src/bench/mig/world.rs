//! The world of the MIG bench: requests that come and go, and what a rule makes of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use berth_model::mig::{Board, Layout, Profile};
use berth_testkit::cluster::Dice;

use super::policies::{Cluster, Rule};

/// Mean lifetimes until the steady state is counted, and until the end.
const WARM_UP: f64 = 8.0;
const END: f64 = 30.0;

/// Whether requests leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Poisson arrivals, exponential lifetimes; counted after a warm-up.
    Steady,
    /// Nothing leaves; requests come until they ask for the load.
    Filling,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Steady => "with departures",
            Self::Filling => "arrivals only",
        })
    }
}

struct Request {
    at: f64,
    until: f64,
    /// Index into the profiles.
    profile: usize,
}

/// What comes, the same for all rules.
pub(super) struct Requests {
    pub(super) profiles: Vec<&'static Profile>,
    /// By profile.
    pub(super) weights: Vec<u32>,
    list: Vec<Request>,
    counted_from: f64,
}

fn units(profile: &Profile) -> f64 {
    f64::from(profile.memory_units().unwrap_or(0))
}

/// A number between 0 and 1, neither of both.
fn fraction(dice: &mut Dice) -> f64 {
    ((dice.roll() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

impl Requests {
    pub(super) fn draw(
        profiles: &[&'static Profile],
        weights: [u32; 6],
        load_percent: u32,
        gpus: usize,
        mode: Mode,
        seed: u64,
    ) -> Self {
        let mut dice = Dice::new(seed.wrapping_mul(0x9E37_79B9).wrapping_add(load_percent.into()));
        let total: u32 = weights.iter().sum();
        let of = |weight: u32| f64::from(weight) / f64::from(total);
        let mean: f64 = profiles.iter().zip(weights).map(|(p, w)| units(p) * of(w)).sum();
        let capacity = gpus as f64 * profiles.iter().map(|p| units(p)).fold(0.0, f64::max);
        let wanted = capacity * f64::from(load_percent) / 100.0;
        let rate = wanted / mean;
        let mut list: Vec<Request> = Vec::new();
        let (mut now, mut asked) = (0.0, 0.0);
        loop {
            now -= fraction(&mut dice).ln() / rate;
            let life = -fraction(&mut dice).ln();
            let mut drawn = dice.below(total as usize) as u32;
            let mut profile = 0;
            while drawn >= weights[profile] {
                drawn -= weights[profile];
                profile += 1;
            }
            asked += units(profiles[profile]);
            let until = if mode == Mode::Steady { now + life } else { f64::INFINITY };
            if (mode == Mode::Steady && now > END) || (mode == Mode::Filling && asked > wanted) {
                break;
            }
            list.push(Request { at: now, until, profile });
        }
        let counted_from = if mode == Mode::Steady { WARM_UP } else { 0.0 };
        Self { profiles: profiles.to_vec(), weights: weights.to_vec(), list, counted_from }
    }
}

/// What became of the requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Of all requests, between 0 and 1.
    pub(super) accepted: f64,
    /// Of all units asked for, between 0 and 1.
    pub(super) accepted_units: f64,
    /// Units, on average.
    pub(super) stranded: f64,
    /// Units, on average.
    pub(super) unusable: f64,
    pub(super) decisions_per_s: f64,
}

/// A time that orders as numbers do.
struct Time(f64);

impl PartialEq for Time {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

pub(super) fn run(
    rule: Rule,
    board: &'static Board,
    gpus: usize,
    requests: &Requests,
) -> Result<Outcome> {
    let mut cluster = Cluster::new(rule, board, gpus, requests)?;
    let meter = Meter::new(board, requests)?;
    let mut leaving: BinaryHeap<Reverse<(Time, usize, usize, u8)>> = BinaryHeap::new();
    let mut outcome = Outcome::default();
    let (mut came, mut came_units) = (0.0, 0.0);
    let mut spent = Duration::ZERO;
    for request in &requests.list {
        while leaving.peek().is_some_and(|Reverse((until, ..))| until.0 <= request.at) {
            let Some(Reverse((_, profile, gpu, start))) = leaving.pop() else { break };
            cluster.release(profile, gpu, start)?;
        }
        let start = Instant::now();
        let placed = cluster.place(request.profile)?;
        spent += start.elapsed();
        if let Some((gpu, start)) = placed {
            leaving.push(Reverse((Time(request.until), request.profile, gpu, start)));
        }
        if request.at < requests.counted_from {
            continue;
        }
        let size = units(requests.profiles[request.profile]);
        came += 1.0;
        came_units += size;
        if placed.is_some() {
            outcome.accepted += 1.0;
            outcome.accepted_units += size;
        }
        for layout in cluster.layouts() {
            let (stranded, unusable) = meter.read(layout.occupied());
            outcome.stranded += stranded;
            outcome.unusable += unusable;
        }
    }
    Ok(Outcome {
        accepted: outcome.accepted / came,
        accepted_units: outcome.accepted_units / came_units,
        stranded: outcome.stranded / came,
        unusable: outcome.unusable / came,
        decisions_per_s: requests.list.len() as f64 / spent.as_secs_f64(),
    })
}

/// By occupancy: units out of reach of the mix, and units that the next request cannot use.
pub(super) struct Meter {
    by_occupancy: Vec<(f64, f64)>,
}

impl Meter {
    pub(super) fn new(board: &'static Board, requests: &Requests) -> Result<Self> {
        let all = u32::from(board.memory_units().unwrap_or(0));
        Layout::empty(board)?;
        let wanted: Vec<(&Profile, u32)> =
            requests.profiles.iter().copied().zip(requests.weights.iter().copied()).collect();
        let covered = covered(&wanted, all);
        let by_occupancy = (0..1_u32 << all)
            .map(|occupied| {
                let free = f64::from(all - occupied.count_ones());
                let total: u32 = wanted.iter().map(|(_, w)| w).sum();
                let fits = |p: &Profile| masks(p).any(|mask| mask & occupied == 0);
                let cannot: u32 = wanted.iter().filter(|(p, _)| !fits(p)).map(|(_, w)| w).sum();
                let stranded = free - f64::from(covered[occupied as usize]);
                (stranded, free * f64::from(cannot) / f64::from(total))
            })
            .collect();
        Ok(Self { by_occupancy })
    }

    pub(super) fn read(&self, occupied: u16) -> (f64, f64) {
        self.by_occupancy[usize::from(occupied)]
    }
}

/// The units that each placement of a profile covers.
pub(super) fn masks(profile: &Profile) -> impl Iterator<Item = u32> {
    let units = profile.memory_units().unwrap_or(0);
    let starts: Vec<u8> = profile.starts().iter().flat_map(|starts| starts.iter()).collect();
    starts.into_iter().map(move |start| ((1_u32 << units) - 1) << start)
}

/// By occupancy, the most free units that instances of the wanted profiles cover. Whatever is placed
/// makes the occupancy a larger number, so going downwards finds what follows done.
fn covered(wanted: &[(&Profile, u32)], all: u32) -> Vec<u32> {
    let placements: Vec<u32> =
        wanted.iter().filter(|(_, w)| *w > 0).flat_map(|(p, _)| masks(p)).collect();
    let mut table = vec![0; 1 << all];
    for occupied in (0..1_u32 << all).rev() {
        let open = placements.iter().filter(|mask| **mask & occupied == 0);
        let most = open.map(|mask| mask.count_ones() + table[(occupied | mask) as usize]).max();
        table[occupied as usize] = most.unwrap_or(0);
    }
    table
}
