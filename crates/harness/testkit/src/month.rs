//! Teams over a long time: a simulated cluster that four teams share, one of them greedy.
//!
//! Owns the workload, virtual time and what is measured, with books of its own; a real engine decides.
//! Two teams work by day and by night and want more than their guarantee when they do, one comes in
//! bursts, and one always has more work than there is room for. Pods that are evicted end after their
//! grace period and come back as new pods that begin anew.
//!
//! The same seed gives the same work, whatever becomes of it. Were a team to bring new work only as its
//! old work starts, its queue would fill up with what fits nowhere, and the GPUs left over beside that
//! would be idle for want of work: how much would tell of the workload, not of who decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::{Config, Engine};
use berth_kubelet::TopologyPolicy;
use berth_model::spec::{PodObject, PodSpec};
use berth_tenancy::share::{Dimension, Entitlement, GPU_PARTS, Team};

use crate::cluster::{BuildError, Dice, NodeKind, gpu_template, pending};

/// How long a pod that is evicted still runs.
pub const GRACE_MS: i64 = 30_000;

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
/// Work arrives so often.
const TICK_MS: i64 = 10 * MINUTE_MS;
const GPUS_PER_NODE: i64 = 8;

/// The teams, and how many of 512 GPUs each is guaranteed.
const TEAMS: [(&str, i64); 4] = [("day", 160), ("night", 160), ("burst", 96), ("greedy", 64)];
const GREEDY: usize = 3;
/// Sizes of pods, in GPUs.
const SIZES: [i64; 6] = [1, 1, 2, 2, 4, 8];
/// What the guarantees above are parts of.
const OF: i64 = 512;

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Month {
    /// So many nodes of 8 GPUs.
    pub nodes: usize,
    /// So many days.
    pub days: i64,
    /// The same seed gives the same work.
    pub seed: u64,
    /// Whether the engine knows of the teams.
    pub shares: bool,
}

/// What came of it for one team.
#[derive(Clone, Copy, Debug, Default)]
pub struct TeamReport {
    /// Its name.
    pub name: &'static str,
    /// GPUs it is guaranteed.
    pub guaranteed: i64,
    /// GPUs it had, on average, in thousandths.
    pub used_milli: i64,
    /// GPUs it had beyond its guarantee, on average, in thousandths.
    pub borrowed_milli: i64,
    /// For how long at most it had work that its guarantee covers and no place for it, though there
    /// was a node with enough that is free or lent to others.
    pub longest_below_ms: i64,
    /// How many of its pods were evicted.
    pub evicted: u64,
    /// How many of its pods started.
    pub started: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// By team.
    pub teams: Vec<TeamReport>,
    /// How much of all GPUs was used, on average, in thousandths.
    pub utilisation_milli: i64,
    /// How much of all GPUs was used for work that was lost when it was evicted, in thousandths.
    pub lost_milli: i64,
    /// How much of all GPUs was idle on a node on which a pod that waited would have fitted, in
    /// thousandths.
    pub idle_milli: i64,
    /// How many decisions were made.
    pub decisions: u64,
}

/// What is going to happen.
#[derive(Clone, Debug)]
enum Upcoming {
    Work,
    End(Arc<str>),
    Evicted(Arc<str>),
}

#[derive(Clone, Debug)]
struct Life {
    object: PodObject,
    team: usize,
    gpus: i64,
    duration_ms: i64,
    evicted: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    has: i64,
    /// Pods that wait, by GPUs.
    waiting: [u64; 9],
    below_since_ms: Option<i64>,
    used_ms: i64,
    borrowed_ms: i64,
    report: TeamReport,
}

struct Cluster {
    month: Month,
    engine: Engine,
    /// Of each team.
    dice: [Dice; 4],
    /// Work that each team has yet to bring, in milliseconds of a GPU.
    owed_ms: [i64; 4],
    now_ms: i64,
    comings: BTreeMap<(i64, u64), Upcoming>,
    serial: u64,
    pods: BTreeMap<Arc<str>, Life>,
    specs: BTreeMap<(usize, i64), Arc<PodSpec>>,
    tallies: [Tally; 4],
    /// GPUs on every node, by team.
    nodes: BTreeMap<Arc<str>, [i64; 4]>,
    decisions: u64,
    /// Milliseconds of a GPU.
    lost_ms: i64,
    idle_ms: i64,
}

impl Month {
    /// Runs it.
    pub fn run(self) -> Result<Report, BuildError> {
        let mut cluster = Cluster::new(self)?;
        let end_ms = self.days * 24 * HOUR_MS;
        while let Some(((at_ms, _), coming)) = cluster.comings.pop_first() {
            if at_ms >= end_ms {
                break;
            }
            cluster.pass(at_ms);
            cluster.happen(coming)?;
            // What happens at the same time is decided about together.
            let next = cluster.comings.first_key_value().map(|((at_ms, _), _)| *at_ms);
            if next != Some(at_ms) {
                cluster.decide();
                cluster.look();
            }
        }
        cluster.pass(end_ms);
        Ok(cluster.report())
    }

    fn gpus(self) -> i64 {
        self.nodes as i64 * GPUS_PER_NODE
    }

    fn guaranteed(self, team: usize) -> i64 {
        TEAMS[team].1 * self.gpus() / OF
    }
}

/// Pods run for an hour, and for up to so much longer.
fn spread_ms(team: usize) -> i64 {
    if team == GREEDY { 16 * HOUR_MS } else { 6 * HOUR_MS }
}

/// For how long a team's pods run on average.
fn mean_ms(team: usize) -> i64 {
    HOUR_MS + spread_ms(team) / 2
}

/// How many of 512 GPUs a team would use if it got everything.
fn demand(team: usize, now_ms: i64) -> i64 {
    let hours = now_ms / HOUR_MS;
    let by_day = (8..20).contains(&(hours % 24));
    let bursts = hours % 48 >= 42;
    match team {
        0 => [40, 220][usize::from(by_day)],
        1 => [220, 40][usize::from(by_day)],
        2 => [4, 110][usize::from(bursts)],
        _ => OF,
    }
}

impl Cluster {
    fn new(month: Month) -> Result<Self, BuildError> {
        let mut engine = Engine::new(Config::default());
        let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::None);
        kind.nodes(0, month.nodes)?.into_iter().for_each(|event| engine.apply(event));
        for (number, (name, _)) in TEAMS.iter().enumerate().filter(|_| month.shares) {
            let guaranteed = month.guaranteed(number) * GPU_PARTS;
            let share = Entitlement { guaranteed, ..Entitlement::default() };
            engine.apply(Event::Team(Team {
                name: (*name).into(),
                namespaces: BTreeSet::from([(*name).into()]),
                entitlements: [(Dimension::Gpus, share)].into(),
                ..Team::default()
            }));
        }
        let mut tallies = [Tally::default(); 4];
        for (number, tally) in tallies.iter_mut().enumerate() {
            let (name, guaranteed) = (TEAMS[number].0, month.guaranteed(number));
            tally.report = TeamReport { name, guaranteed, ..TeamReport::default() };
        }
        Ok(Self {
            month,
            engine,
            dice: [0, 1, 2, 3].map(|team| Dice::new(month.seed.wrapping_mul(4).wrapping_add(team))),
            // The greedy one comes with work for half of all GPUs.
            owed_ms: [0, 0, 0, month.gpus() / 2 * mean_ms(GREEDY)],
            now_ms: 0,
            comings: BTreeMap::from([((0, 0), Upcoming::Work)]),
            serial: 1,
            pods: BTreeMap::new(),
            specs: BTreeMap::new(),
            tallies,
            nodes: BTreeMap::new(),
            decisions: 0,
            lost_ms: 0,
            idle_ms: 0,
        })
    }

    fn later(&mut self, at_ms: i64, coming: Upcoming) {
        self.serial += 1;
        self.comings.insert((at_ms, self.serial), coming);
    }

    /// Time goes by.
    fn pass(&mut self, now_ms: i64) {
        let passed_ms = now_ms - std::mem::replace(&mut self.now_ms, now_ms);
        self.idle_ms += self.idle() * passed_ms;
        for tally in &mut self.tallies {
            tally.used_ms += tally.has * passed_ms;
            tally.borrowed_ms += (tally.has - tally.report.guaranteed).max(0) * passed_ms;
        }
    }

    /// GPUs that are idle on nodes on which a pod that waits would fit.
    fn idle(&self) -> i64 {
        let waits = |gpus: usize| self.tallies.iter().any(|tally| tally.waiting[gpus] > 0);
        let Some(least) = (1..=8).find(|gpus| waits(*gpus)) else { return 0 };
        let free = |used: &[i64; 4]| GPUS_PER_NODE - used.iter().sum::<i64>();
        let of_used = self.nodes.values().map(free).filter(|free| *free >= least as i64);
        of_used.sum::<i64>() + (self.month.nodes - self.nodes.len()) as i64 * GPUS_PER_NODE
    }

    fn happen(&mut self, coming: Upcoming) -> Result<(), BuildError> {
        match coming {
            Upcoming::Work => {
                (0..TEAMS.len()).try_for_each(|team| self.work(team))?;
                self.later(self.now_ms + TICK_MS, Upcoming::Work);
            }
            Upcoming::End(uid) => {
                if self.pods.get(&uid).is_some_and(|life| !life.evicted) {
                    self.leave(&uid);
                }
            }
            Upcoming::Evicted(uid) => {
                if let Some(life) = self.leave(&uid) {
                    let started_at_ms = life.object.started_at_ms.unwrap_or(self.now_ms);
                    self.lost_ms += (self.now_ms - started_at_ms) * life.gpus;
                    // Under the same name, so that it is known to replace the one that was evicted.
                    let name = Some(life.object.name);
                    self.create(life.team, life.gpus, life.duration_ms, name)?;
                }
            }
        }
        Ok(())
    }

    /// A team's work of ten minutes.
    fn work(&mut self, team: usize) -> Result<(), BuildError> {
        self.owed_ms[team] += demand(team, self.now_ms) * self.month.gpus() * TICK_MS / OF;
        while self.owed_ms[team] > 0 {
            let dice = &mut self.dice[team];
            let size = SIZES[dice.below(SIZES.len())];
            let spread = dice.below((spread_ms(team) / 1000) as usize) as i64 * 1000;
            self.owed_ms[team] -= size * mean_ms(team);
            self.create(team, size, HOUR_MS + spread, None)?;
        }
        Ok(())
    }

    fn create(
        &mut self,
        team: usize,
        gpus: i64,
        duration_ms: i64,
        name: Option<Arc<str>>,
    ) -> Result<(), BuildError> {
        let spec = match self.specs.get(&(team, gpus)) {
            Some(spec) => spec.clone(),
            None => {
                let (name, number) = (TEAMS[team].0, gpus as u32);
                let mut spec = gpu_template(name, 0, number)?;
                spec.namespace = name.into();
                let spec = Arc::new(spec);
                self.specs.insert((team, gpus), spec.clone());
                spec
            }
        };
        self.serial += 1;
        let mut object = PodObject { created_at_ms: self.now_ms, ..pending(&spec, self.serial) };
        object.name = name.unwrap_or(object.name);
        self.engine.apply(Event::Pod(object.clone()));
        self.tallies[team].waiting[gpus as usize] += 1;
        let uid = object.uid.clone();
        self.pods.insert(uid, Life { object, team, gpus, duration_ms, evicted: false });
        Ok(())
    }

    fn leave(&mut self, uid: &Arc<str>) -> Option<Life> {
        let life = self.pods.remove(uid)?;
        let tally = &mut self.tallies[life.team];
        if let Some(node) = &life.object.node {
            tally.has -= life.gpus;
            self.nodes.entry(node.clone()).or_default()[life.team] -= life.gpus;
        } else {
            tally.waiting[life.gpus as usize] -= 1;
        }
        self.engine.apply(Event::PodGone(uid.clone()));
        Some(life)
    }

    fn decide(&mut self) {
        while let Some(decision) = self.engine.decide(self.now_ms) {
            self.decisions += 1;
            match decision {
                Decision::Bind(binding) => self.start(&binding.pod, binding.node),
                Decision::Preempt(preempting) => {
                    for victim in preempting.victims {
                        let Some(life) = self.pods.get_mut(&victim) else { continue };
                        life.evicted = true;
                        self.tallies[life.team].report.evicted += 1;
                        self.later(self.now_ms + GRACE_MS, Upcoming::Evicted(victim));
                    }
                }
                // There are no gangs here.
                Decision::BindAll(_) | Decision::Reserve(_) | Decision::Disband(_) => {}
                Decision::Hold { .. } | Decision::Wait { .. } => {}
            }
        }
    }

    fn start(&mut self, uid: &Arc<str>, node: Arc<str>) {
        let Some(life) = self.pods.get_mut(uid) else { return };
        life.object.node = Some(node.clone());
        self.nodes.entry(node).or_default()[life.team] += life.gpus;
        life.object.started_at_ms = Some(self.now_ms);
        let (object, ends_at_ms) = (life.object.clone(), self.now_ms + life.duration_ms);
        let tally = &mut self.tallies[life.team];
        tally.waiting[life.gpus as usize] -= 1;
        tally.has += life.gpus;
        tally.report.started += 1;
        self.engine.apply(Event::Pod(object));
        self.later(ends_at_ms, Upcoming::End(uid.clone()));
    }

    /// The most GPUs that a pod of a team would find on one node if others gave back there what they
    /// have beyond their guarantees.
    fn within_reach(&self, team: usize) -> i64 {
        let beyond = self.tallies.map(|tally| (tally.has - tally.report.guaranteed).max(0));
        let on_node = |used: &[i64; 4]| {
            let free = GPUS_PER_NODE - used.iter().sum::<i64>();
            let others = used.iter().zip(beyond).enumerate().filter(|(other, _)| *other != team);
            free + others.map(|(_, (used, beyond))| beyond.min(*used)).sum::<i64>()
        };
        let empty = (self.nodes.len() < self.month.nodes).then_some(GPUS_PER_NODE);
        self.nodes.values().map(on_node).chain(empty).max().unwrap_or(0)
    }

    /// Whether a team has work that its guarantee covers, and no place for it though there is one.
    fn look(&mut self) {
        let reach: Vec<i64> = (0..TEAMS.len()).map(|team| self.within_reach(team)).collect();
        for (tally, reach) in self.tallies.iter_mut().zip(reach) {
            let room = reach.min(tally.report.guaranteed - tally.has);
            let mut covered = (1_i64..).zip(&tally.waiting[1..]);
            let is_below = covered.any(|(gpus, waiting)| *waiting > 0 && gpus <= room);
            match (is_below, tally.below_since_ms) {
                (true, None) => tally.below_since_ms = Some(self.now_ms),
                (false, Some(since_ms)) => {
                    let longest_ms = &mut tally.report.longest_below_ms;
                    *longest_ms = (*longest_ms).max(self.now_ms - since_ms);
                    tally.below_since_ms = None;
                }
                _ => {}
            }
        }
    }

    fn report(mut self) -> Report {
        let all_ms = (self.month.gpus() * self.now_ms).max(1);
        let used_ms: i64 = self.tallies.iter().map(|tally| tally.used_ms).sum();
        let now_ms = self.now_ms.max(1);
        let teams = self.tallies.iter_mut().map(|tally| {
            if let Some(since_ms) = tally.below_since_ms {
                let longest_ms = &mut tally.report.longest_below_ms;
                *longest_ms = (*longest_ms).max(now_ms - since_ms);
            }
            TeamReport {
                used_milli: tally.used_ms / (now_ms / 1000).max(1),
                borrowed_milli: tally.borrowed_ms / (now_ms / 1000).max(1),
                ..tally.report
            }
        });
        Report {
            teams: teams.collect(),
            utilisation_milli: used_ms * 1000 / all_ms,
            lost_milli: self.lost_ms * 1000 / all_ms,
            idle_milli: self.idle_ms * 1000 / all_ms,
            decisions: self.decisions,
        }
    }
}
