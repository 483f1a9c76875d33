//! The rules that the MIG bench compares.
//!
//! - *first-fit*: the first GPU that has room, the lowest start.
//! - *best-fit*: the GPU with the fewest free units, the lowest start.
//! - *best-fit-start*: the same, at the start that leaves the greatest `Future`.
//! - *min-frag*: the GPU and start by which the GPU's fragmentation grows least, the first of equals.
//!   The fragmentation of a GPU is, over all profiles that its number of free units would suffice
//!   for and over all their placements, the size of those that meet a taken unit (Zambianco, Fasol
//!   and Doriguzzi-Corin, arXiv 2511.18906, 2025, as understood from what is public of it).
//! - *mix-frag*: as min-frag, but with FGD's measure: the free units that a request of the mix, which
//!   is told to the rule, cannot use; the fullest of equals.
//! - *oracle*: no online rule: at every moment, the instances of each GPU are where the least is
//!   stranded and the most of the mix fits, as if they could move within their GPU at no cost; and
//!   a request is taken whenever any arrangement of some GPU has room. GPUs are chosen as Berth does.
//! - *berth*: `berth_packing::slice`, with the mix learned.
//! - *claims, kube*: slices are claimed as devices, and the engine's profile `kube-scheduler` places
//!   the pods: its scores choose the node, and of its devices the first is taken that fits.
//! - *claims, berth*: the same with the profile `berth`.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context as _, Result, ensure};
use berth_engine::Profile as SchedulerProfile;
use berth_model::mig::{Board, Layout, Profile};
use berth_packing::slice::{Fleet, GpuIndex, Mix, Placement, SliceRequest};

use super::claims::Claims;
use super::world::{Meter, Requests, masks};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
    FirstFit,
    BestFit,
    BestFitStart,
    MinFrag,
    MixFrag,
    Berth,
    Oracle,
    ClaimsKube,
    ClaimsBerth,
}

impl Rule {
    /// Those for slices that are claimed, which take much longer.
    pub(super) const CLAIMS: [Self; 2] = [Self::ClaimsKube, Self::ClaimsBerth];

    pub(super) const ALL: [Self; 7] = [
        Self::FirstFit,
        Self::BestFit,
        Self::BestFitStart,
        Self::MinFrag,
        Self::MixFrag,
        Self::Berth,
        Self::Oracle,
    ];

    pub(super) fn is_online_baseline(self) -> bool {
        !matches!(self, Self::Berth | Self::Oracle | Self::ClaimsKube | Self::ClaimsBerth)
    }

    /// The profile of the engine that places claims.
    fn scheduler(self) -> Option<SchedulerProfile> {
        match self {
            Self::ClaimsKube => Some(SchedulerProfile::KubeScheduler),
            Self::ClaimsBerth => Some(SchedulerProfile::Berth),
            _ => None,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FirstFit => "first-fit",
            Self::BestFit => "best-fit",
            Self::BestFitStart => "best-fit-start",
            Self::MinFrag => "min-frag",
            Self::MixFrag => "mix-frag",
            Self::Berth => "berth",
            Self::Oracle => "oracle",
            Self::ClaimsKube => "claims, kube",
            Self::ClaimsBerth => "claims, berth",
        })
    }
}

/// GPUs under one rule.
pub(super) struct Cluster {
    rule: Rule,
    profiles: Vec<&'static Profile>,
    layouts: Vec<Layout>,
    meter: Meter,
    /// By occupancy: the published fragmentation.
    fragmentation: Vec<i64>,
    /// How a set of profiles, by index and ascending, is arranged best.
    arranged: BTreeMap<Vec<usize>, Option<Layout>>,
    fleet: Fleet,
    wants: Vec<SliceRequest>,
    mix: Mix,
    claims: Option<Claims>,
}

impl Cluster {
    pub(super) fn new(
        rule: Rule,
        board: &'static Board,
        gpus: usize,
        requests: &Requests,
    ) -> Result<Self> {
        let empty = Layout::empty(board)?;
        let mut fleet = Fleet::new();
        if matches!(rule, Rule::Berth | Rule::Oracle) {
            for _ in 0..gpus {
                fleet.add(empty)?;
            }
        }
        let wants = requests.profiles.iter().map(|p| SliceRequest::profile(board, p));
        let wants: Vec<SliceRequest> = wants.collect::<Result<_, _>>()?;
        Ok(Self {
            rule,
            layouts: vec![empty; gpus],
            meter: Meter::new(board, requests)?,
            fragmentation: fragmentation(board, &requests.profiles),
            arranged: BTreeMap::new(),
            fleet,
            // One of each, until the arrivals tell more.
            mix: Mix::from_weights(wants.iter().map(|want| (want.clone(), 1))),
            wants,
            profiles: requests.profiles.clone(),
            claims: match rule.scheduler() {
                Some(profile) => Some(Claims::new(profile, board, gpus, &requests.profiles)?),
                None => None,
            },
        })
    }

    pub(super) fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// Places a request; the oracle's start is of no meaning.
    pub(super) fn place(&mut self, profile: usize) -> Result<Option<(usize, u8)>> {
        if let Some(claims) = &mut self.claims {
            let found = claims.place(profile)?;
            if let Some((gpu, start)) = found {
                self.layouts[gpu].add(self.profiles[profile], start)?;
            }
            return Ok(found);
        }
        match self.rule {
            Rule::Berth => self.place_by_berth(profile),
            Rule::Oracle => self.place_by_oracle(profile),
            _ => {
                let found = self.choose(self.profiles[profile]);
                if let Some((gpu, start)) = found {
                    self.layouts[gpu].add(self.profiles[profile], start)?;
                }
                Ok(found)
            }
        }
    }

    pub(super) fn release(&mut self, profile: usize, gpu: usize, start: u8) -> Result<()> {
        let kind = self.profiles[profile];
        if self.rule == Rule::Oracle {
            let mut held = self.held(gpu);
            let at = held.iter().position(|h| *h == profile).context("nothing to release")?;
            held.remove(at);
            let layout = self.arrangement(&held).context("fewer fit as well")?;
            return self.arrange(gpu, layout);
        }
        self.layouts[gpu].remove(kind, start)?;
        if let Some(claims) = &mut self.claims {
            claims.release(gpu, start)?;
        }
        if self.rule == Rule::Berth {
            self.fleet.release(Placement { gpu: GpuIndex(gpu as u32), profile: kind, start })?;
        }
        Ok(())
    }

    fn place_by_berth(&mut self, profile: usize) -> Result<Option<(usize, u8)>> {
        let want = &self.wants[profile];
        self.mix.arrived(want);
        let Some(placement) = self.fleet.choose(want, &self.mix) else { return Ok(None) };
        let gpu = placement.gpu.0 as usize;
        ensure!(self.layouts[gpu].fits(placement.profile, placement.start), "illegal choice");
        self.fleet.place(placement)?;
        self.layouts[gpu].add(placement.profile, placement.start)?;
        Ok(Some((gpu, placement.start)))
    }

    fn place_by_oracle(&mut self, profile: usize) -> Result<Option<(usize, u8)>> {
        let want = &self.wants[profile];
        self.mix.arrived(want);
        let chosen = self.fleet.choose(want, &self.mix).map(|p| p.gpu.0 as usize);
        // What an arrangement for the mix does not leave room for, another one may.
        for gpu in chosen.into_iter().chain(0..self.layouts.len()) {
            let mut held = self.held(gpu);
            held.push(profile);
            held.sort_unstable();
            if let Some(layout) = self.arrangement(&held) {
                self.arrange(gpu, layout)?;
                return Ok(Some((gpu, 0)));
            }
        }
        Ok(None)
    }

    /// Makes a GPU hold exactly this.
    fn arrange(&mut self, gpu: usize, layout: Layout) -> Result<()> {
        let at = GpuIndex(gpu as u32);
        for i in self.layouts[gpu].instances() {
            self.fleet.release(Placement { gpu: at, profile: i.profile, start: i.start })?;
        }
        for i in layout.instances() {
            self.fleet.place(Placement { gpu: at, profile: i.profile, start: i.start })?;
        }
        self.layouts[gpu] = layout;
        Ok(())
    }

    /// The profiles on a GPU, ascending by index.
    fn held(&self, gpu: usize) -> Vec<usize> {
        let index = |profile: &'static Profile| self.profiles.iter().position(|p| *p == profile);
        let mut held: Vec<usize> =
            self.layouts[gpu].instances().filter_map(|i| index(i.profile)).collect();
        held.sort_unstable();
        held
    }

    /// Of all arrangements of these profiles on one GPU, the one that strands least and leaves the
    /// most of the mix room.
    fn arrangement(&mut self, held: &[usize]) -> Option<Layout> {
        if let Some(known) = self.arranged.get(held) {
            return *known;
        }
        let profiles: Vec<&'static Profile> = held.iter().map(|at| self.profiles[*at]).collect();
        let empty = Layout::empty(self.layouts.first()?.board()).ok()?;
        let mut best: Option<((f64, f64), Layout)> = None;
        arrangements(empty, &profiles, &mut |layout| {
            let rank = self.meter.read(layout.occupied());
            if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                best = Some((rank, layout));
            }
        });
        let layout = best.map(|(_, layout)| layout);
        self.arranged.insert(held.to_vec(), layout);
        layout
    }

    /// The choice of a baseline: the least rank, and of equals the first GPU and start.
    fn choose(&self, profile: &'static Profile) -> Option<(usize, u8)> {
        let mut best: Option<((f64, f64), usize, u8)> = None;
        for (gpu, layout) in self.layouts.iter().enumerate() {
            let free = f64::from(layout.occupied().count_zeros());
            let starts = layout.open_starts(profile);
            if starts.is_empty() {
                continue;
            }
            let one = match self.rule {
                Rule::BestFitStart => layout.best_start(profile),
                _ => None,
            };
            for start in starts.iter().filter(|s| one.is_none_or(|one| one == *s)) {
                let before = usize::from(layout.occupied());
                let after = layout.with(profile, start).ok()?.occupied();
                let rank = match self.rule {
                    Rule::FirstFit => return Some((gpu, start)),
                    Rule::MinFrag => {
                        let grown =
                            self.fragmentation[usize::from(after)] - self.fragmentation[before];
                        (grown as f64, 0.0)
                    }
                    Rule::MixFrag => {
                        let unusable = |occupied| self.meter.read(occupied).1;
                        (unusable(after) - unusable(layout.occupied()), free)
                    }
                    _ => (free, 0.0),
                };
                if best.as_ref().is_none_or(|(least, ..)| rank < *least) {
                    best = Some((rank, gpu, start));
                }
            }
        }
        best.map(|(_, gpu, start)| (gpu, start))
    }
}

/// Every way to place these profiles; equal ones follow each other and take ascending starts.
fn arrangements(layout: Layout, rest: &[&'static Profile], found: &mut impl FnMut(Layout)) {
    let Some((first, rest)) = rest.split_first() else { return found(layout) };
    let from = layout.instances().filter(|i| i.profile == *first).map(|i| i.start + 1).max();
    for start in layout.open_starts(first).iter().filter(|s| *s >= from.unwrap_or(0)) {
        if let Ok(next) = layout.with(first, start) {
            arrangements(next, rest, found);
        }
    }
}

/// By occupancy, the published fragmentation.
fn fragmentation(board: &'static Board, profiles: &[&'static Profile]) -> Vec<i64> {
    let all = u32::from(board.memory_units().unwrap_or(0));
    let of = |occupied: u32| {
        let free = all - occupied.count_ones();
        let eligible = profiles.iter().filter(|p| u32::from(p.memory_units().unwrap_or(0)) <= free);
        let met = eligible.flat_map(|p| masks(p)).filter(|mask| mask & occupied != 0);
        met.map(|mask| i64::from(mask.count_ones())).sum()
    };
    (0..1_u32 << all).map(of).collect()
}
