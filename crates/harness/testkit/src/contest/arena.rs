//! A contest, run: the engine decides, time passes, and every step is checked.
//!
//! Owns the calendar and the checks. Must not look into the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_engine::config::ReservationBudget;
use berth_engine::decision::{Binding, Decision, GangReservation};
use berth_engine::event::Event;
use berth_engine::{Config, Engine};
use berth_model::spec::{PodObject, PodSpec};

use super::books::{Books, Pod};
use super::plan::{ContestPlan, LIFE_MS_MAX, member};
use crate::cluster::{BuildError, Dice, pending};

/// Time is looked at so often, if nothing happens.
const TICK_MS: i64 = 5_000;

/// So many decisions at one moment are too many.
const DECISIONS_MAX: usize = 2_000;

/// Evicted pods need so long to leave.
const GRACE_MS: i64 = 1_000;

/// What came of a contest.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was wrong first.
    pub broken: Option<String>,
    /// How many gangs there were that fit an empty cluster.
    pub gangs: usize,
    /// How many of them started.
    pub started: usize,
    /// The longest that one of them waited.
    pub wait_ms_max: i64,
    /// The longest that a pod waited at a stretch for which there was room but for reservations.
    pub kept_out_ms_max: i64,
    /// The longest wait as a share of what was allowed, in percent, where that is known.
    pub wait_percent_max: i64,
    /// How often nodes were kept for a gang without evictions.
    pub reserved: usize,
    /// How many pods were evicted.
    pub evicted: usize,
    /// How many decisions there were.
    pub decisions: usize,
}

/// What happens at some time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Single(usize),
    Gang(usize),
    Ends(Arc<str>),
    Look,
}

/// How a gang is doing.
#[derive(Clone, Debug, Default)]
struct Fate {
    came_at_ms: Option<i64>,
    started_at_ms: Option<i64>,
    /// How many gangs waited when it came.
    ahead: i64,
    /// A binding failed, or a member was evicted.
    is_disturbed: bool,
}

struct Arena {
    dice: Dice,
    plan: ContestPlan,
    engine: Engine,
    books: Books,
    fates: Vec<Fate>,
    calendar: BTreeSet<(i64, Happening)>,
    objects: BTreeMap<Arc<str>, PodObject>,
    /// How long pods live at most that do not live as long as others.
    lives_ms: BTreeMap<Arc<str>, i64>,
    /// Since when pods wait for which there is room but for reservations.
    kept_out_since_ms: BTreeMap<Arc<str>, i64>,
    /// The gang for which nodes are reserved, and since when.
    reserved: Option<(usize, i64)>,
    /// By namespace: since when nodes were reserved for its gangs, and for how long in all.
    reserved_ms: BTreeMap<Arc<str>, (i64, i64)>,
    numbered: u64,
    now_ms: i64,
    config: Config,
    outcome: Outcome,
}

/// Runs the contest of a seed, until something is wrong or all is done.
pub fn run(seed: u64) -> Result<Outcome, BuildError> {
    let mut dice = Dice::new(seed);
    let plan = ContestPlan::new(&mut dice)?;
    let config = Config {
        gang_patience_ms: 20_000,
        eviction_cooldown_ms: 60_000,
        reservations: plan.budget,
        ..Config::default()
    };
    let mut arena = Arena {
        dice,
        engine: Engine::new(config),
        books: Books { nodes: plan.nodes.clone(), ..Books::default() },
        fates: vec![Fate::default(); plan.gangs.len()],
        calendar: BTreeSet::new(),
        objects: BTreeMap::new(),
        lives_ms: BTreeMap::new(),
        kept_out_since_ms: BTreeMap::new(),
        reserved: None,
        reserved_ms: BTreeMap::new(),
        numbered: 0,
        now_ms: 0,
        config,
        outcome: Outcome::default(),
        plan,
    };
    arena.prepare();
    while let Some((at_ms, happening)) = arena.calendar.pop_first() {
        arena.now_ms = at_ms;
        arena.happen(&happening)?;
        while arena.calendar.first().is_some_and(|(next, _)| *next == at_ms) {
            if let Some((_, happening)) = arena.calendar.pop_first() {
                arena.happen(&happening)?;
            }
        }
        arena.decide()?;
        arena.check();
        if arena.outcome.broken.is_some() {
            break;
        }
    }
    arena.conclude();
    Ok(arena.outcome)
}

impl Arena {
    fn prepare(&mut self) {
        for node in self.plan.nodes.clone() {
            self.engine.apply(Event::Node(node));
        }
        for (number, single) in self.plan.singles.iter().enumerate() {
            self.calendar.insert((single.at_ms, Happening::Single(number)));
        }
        for (number, gang) in self.plan.gangs.iter().enumerate() {
            self.calendar.insert((gang.at_ms, Happening::Gang(number)));
        }
        // Long enough for every gang to have its turn after the last pod has come.
        let last = self.calendar.last().map_or(0, |(at_ms, _)| *at_ms);
        let end = last + (3 + self.plan.gangs.len() as i64) * 4 * LIFE_MS_MAX;
        for at_ms in (0..end).step_by(TICK_MS as usize) {
            self.calendar.insert((at_ms, Happening::Look));
        }
    }

    fn broken(&mut self, text: String) {
        if self.outcome.broken.is_none() {
            self.outcome.broken = Some(format!("at {} ms: {text}", self.now_ms));
        }
    }

    fn happen(&mut self, happening: &Happening) -> Result<(), BuildError> {
        match happening {
            Happening::Look => {}
            Happening::Single(number) => {
                let single = self.plan.singles[*number].clone();
                let uid = self.create(&single.spec()?, None, single.gpus);
                self.lives_ms.insert(uid, single.life_ms_max());
            }
            Happening::Gang(number) => {
                let gang = self.plan.gangs[*number].clone();
                let waits =
                    |fate: &&Fate| fate.came_at_ms.is_some() && fate.started_at_ms.is_none();
                self.fates[*number].ahead = self.fates.iter().filter(waits).count() as i64;
                self.fates[*number].came_at_ms = Some(self.now_ms);
                for gpus in &gang.gpus {
                    self.create(&member(&gang, *gpus)?, Some(*number), *gpus);
                }
            }
            Happening::Ends(uid) => self.leave(uid),
        }
        Ok(())
    }

    fn create(&mut self, spec: &Arc<PodSpec>, gang: Option<usize>, gpus: i64) -> Arc<str> {
        self.numbered += 1;
        let mut object = pending(spec, self.numbered);
        object.created_at_ms = self.now_ms;
        let priority = spec.priority;
        let (node, awaits, is_reserved, leaving) = (None, None, false, false);
        let pod = Pod { gang, gpus, node, priority, awaits, is_reserved, leaving };
        let uid = object.uid.clone();
        self.books.pods.insert(uid.clone(), pod);
        self.objects.insert(uid.clone(), object.clone());
        self.engine.apply(Event::Pod(object));
        uid
    }

    fn leave(&mut self, uid: &Arc<str>) {
        let Some(pod) = self.books.pods.remove(uid) else { return };
        self.objects.remove(uid);
        self.engine.apply(Event::PodGone(uid.clone()));
        // Nothing is kept for a gang whose members are missing.
        if let Some(number) = pod.gang {
            let pods = || self.books.pods.iter().filter(|(_, one)| one.gang == pod.gang);
            if pods().filter(|(_, one)| !one.leaving).count() < self.plan.gangs[number].min {
                let uids: Vec<Arc<str>> = pods().map(|(uid, _)| uid.clone()).collect();
                self.displace(&uids);
            }
        }
    }

    fn decide(&mut self) -> Result<(), BuildError> {
        for _ in 0..DECISIONS_MAX {
            let Some(decision) = self.engine.decide(self.now_ms) else { return Ok(()) };
            self.outcome.decisions += 1;
            match decision {
                Decision::Bind(binding) => {
                    self.bind(&binding);
                    self.confirm(&[binding]);
                }
                Decision::BindAll(all) => {
                    let number = self.plan.gangs.iter().position(|one| one.name == all.gang.name);
                    let pods = self.books.pods.values_mut();
                    pods.filter(|pod| pod.gang == number).for_each(|pod| pod.awaits = None);
                    self.look_at_reservation();
                    all.bindings.iter().for_each(|binding| self.bind(binding));
                    let fails = !self.plan.is_calm && self.dice.below(8) == 0;
                    if let (true, Some(binding), Some(number)) =
                        (fails, all.bindings.last(), number)
                    {
                        self.fail(&binding.pod);
                        self.fates[number].is_disturbed = true;
                    }
                    self.confirm(&all.bindings);
                }
                Decision::Preempt(preempting) => {
                    self.evict(&preempting.victims)?;
                    self.displace(&preempting.displaced);
                    self.await_nodes(&[(preempting.pod, preempting.node)], false);
                }
                Decision::Reserve(reserving) => {
                    self.evict(&reserving.victims)?;
                    self.displace(&reserving.displaced);
                    self.await_nodes(&reserving.places, reserving.until_ms.is_some());
                    self.reserve(&reserving);
                }
                Decision::Disband(disbanding) => self.evict(&disbanding.pods)?,
                Decision::Wait { pod } | Decision::Hold { pod, .. } => self.wait(&pod),
            }
        }
        self.broken("decisions do not end".to_owned());
        Ok(())
    }

    /// Nodes are reserved for a gang: no more of them, no longer and no more often than the budget says.
    fn reserve(&mut self, reserving: &GangReservation) {
        self.look_at_reservation();
        let number = self.plan.gangs.iter().position(|one| one.name == reserving.gang.name);
        let (Some(until_ms), Some(number)) = (reserving.until_ms, number) else { return };
        self.outcome.reserved += 1;
        let budget = self.plan.budget;
        let gpus =
            |(uid, _): &(Arc<str>, Arc<str>)| self.books.pods.get(uid).map_or(0, |pod| pod.gpus);
        let kept: i64 = reserving.places.iter().map(gpus).sum();
        if 100 * kept > self.books.gpus() * i64::from(budget.share_percent) {
            self.broken(format!("{kept} GPUs are reserved, allowed {} %", budget.share_percent));
        }
        if until_ms - self.now_ms > budget.max_ms {
            self.broken(format!("nodes are reserved until {until_ms}"));
        }
        let (since_ms, sum_ms) =
            *self.reserved_ms.entry(reserving.gang.namespace.clone()).or_insert((self.now_ms, 0));
        if 100 * sum_ms > (self.now_ms - since_ms) * i64::from(budget.time_percent) {
            let namespace = &reserving.gang.namespace;
            self.broken(format!("{namespace} had {sum_ms} ms since {since_ms}, and has more"));
        }
        self.reserved = Some((number, self.now_ms));
    }

    /// Counts the time of a reservation when it is over.
    fn look_at_reservation(&mut self) {
        let Some((number, since_ms)) = self.reserved else { return };
        let mut pods = self.books.pods.values();
        if !pods.any(|pod| pod.is_reserved && pod.awaits.is_some()) {
            let namespace = self.plan.gangs[number].namespace.clone();
            self.reserved_ms.entry(namespace).or_default().1 += self.now_ms - since_ms;
            self.reserved = None;
        }
    }

    fn bind(&mut self, binding: &Binding) {
        self.spares_reserved(binding);
        if let Some(pod) = self.books.pods.get_mut(&binding.pod) {
            (pod.node, pod.awaits) = (Some(binding.node.clone()), None);
            match pod.gang {
                // Members live while the gang is not whole.
                Some(gang) if self.fates[gang].started_at_ms.is_none() => {}
                _ => self.live(&binding.pod),
            }
        }
    }

    /// A pod takes nothing that is reserved for others as important, unless it ends in time.
    fn spares_reserved(&mut self, binding: &Binding) {
        let (Some(pod), Some(object)) =
            (self.books.pods.get(&binding.pod), self.objects.get(&binding.pod))
        else {
            return;
        };
        let (free, reserved) = self.books.reserved(&binding.node, pod.priority);
        let takes = pod.gpus > 0 && free - pod.gpus < reserved;
        if reserved > 0 && takes && object.spec.deadline_ms.is_none() {
            let (uid, node) = (&binding.pod, &binding.node);
            self.broken(format!("{uid} takes what is reserved on {node}: {reserved} of {free}"));
        }
    }

    /// A pod begins its work, and ends it some time.
    fn live(&mut self, uid: &Arc<str>) {
        let life_ms_max = self.lives_ms.get(uid).copied().unwrap_or(LIFE_MS_MAX);
        let life_ms = 1 + self.dice.below(life_ms_max as usize) as i64;
        self.calendar.insert((self.now_ms + life_ms, Happening::Ends(uid.clone())));
    }

    /// Tells that pods are bound, unless that failed.
    fn confirm(&mut self, bindings: &[Binding]) {
        for binding in bindings {
            let Some(pod) = self.books.pods.get(&binding.pod) else { continue };
            if let (Some(node), Some(object)) = (&pod.node, self.objects.get_mut(&binding.pod)) {
                object.node = Some(node.clone());
                object.started_at_ms = Some(self.now_ms);
                self.engine.apply(Event::Pod(object.clone()));
            }
        }
    }

    fn fail(&mut self, uid: &Arc<str>) {
        if let Some(pod) = self.books.pods.get_mut(uid) {
            pod.node = None;
            self.calendar.retain(|(_, one)| *one != Happening::Ends(uid.clone()));
            self.engine.undo(uid);
        }
    }

    fn await_nodes(&mut self, places: &[(Arc<str>, Arc<str>)], is_reserved: bool) {
        for (pod, node) in places {
            if let Some(pod) = self.books.pods.get_mut(pod) {
                (pod.awaits, pod.is_reserved) = (Some(node.clone()), is_reserved);
            }
        }
    }

    /// Pods wait for no node any more.
    fn displace(&mut self, displaced: &[Arc<str>]) {
        for uid in displaced {
            if let Some(pod) = self.books.pods.get_mut(uid) {
                pod.awaits = None;
            }
        }
        self.look_at_reservation();
    }

    /// A pod, with its gang if it is in one, waits for no node, unless somebody is leaving that.
    fn wait(&mut self, uid: &Arc<str>) {
        let gang = self.books.pods.get(uid).and_then(|pod| pod.gang);
        let means = |one: &Arc<str>, pod: &Pod| one == uid || gang.is_some() && pod.gang == gang;
        let pods = &self.books.pods;
        let is_left = |node: &Arc<str>| {
            pods.values().any(|pod| pod.leaving && pod.node.as_ref() == Some(node))
        };
        let meant = pods.iter().filter(|(one, pod)| means(one, pod));
        if meant.filter_map(|(_, pod)| pod.awaits.as_ref()).any(is_left) {
            return;
        }
        for (one, pod) in &mut self.books.pods {
            if means(one, pod) {
                pod.awaits = None;
            }
        }
        self.look_at_reservation();
    }

    /// Evicted pods leave after a while; those of gangs come back.
    fn evict(&mut self, victims: &[Arc<str>]) -> Result<(), BuildError> {
        for uid in victims {
            self.outcome.evicted += 1;
            let Some(pod) = self.books.pods.get_mut(uid) else { continue };
            pod.leaving = true;
            let (gang, gpus) = (pod.gang, pod.gpus);
            self.calendar.retain(|(_, one)| *one != Happening::Ends(uid.clone()));
            self.calendar.insert((self.now_ms + GRACE_MS, Happening::Ends(uid.clone())));
            if let Some(number) = gang {
                self.fates[number].is_disturbed = true;
                self.create(&member(&self.plan.gangs[number], gpus)?, gang, gpus);
            }
        }
        Ok(())
    }

    fn check(&mut self) {
        if let Some(node) = self.books.overcommitted() {
            return self.broken(format!("{node} has too many pods"));
        }
        for number in 0..self.fates.len() {
            self.check_gang(number);
        }
        self.check_singles();
    }

    /// Pods in no gang wait for no less important ones, and for reservations no longer than one lasts;
    /// those without GPUs never do.
    fn check_singles(&mut self) {
        let waits = |(_, pod): &(&Arc<str>, &Pod)| pod.gang.is_none() && pod.node.is_none();
        let waiting: Vec<(Arc<str>, Pod)> = self
            .books
            .pods
            .iter()
            .filter(waits)
            .map(|(uid, pod)| (uid.clone(), pod.clone()))
            .collect();
        let mut kept_out_since_ms = BTreeMap::new();
        for (uid, pod) in waiting {
            let keeps = |other: &Pod| {
                other.priority >= pod.priority && (pod.gpus > 0 || !other.is_reserved)
            };
            if let Some(node) = self.books.taker(pod.gpus, keeps) {
                let text = format!("{uid} waits though {} takes it", node.name);
                return self.broken(text);
            }
            if self.books.taker(pod.gpus, |other| !other.is_reserved).is_some() {
                let since_ms = self.kept_out_since_ms.get(&uid).copied().unwrap_or(self.now_ms);
                let kept_out_ms = self.now_ms - since_ms;
                self.outcome.kept_out_ms_max = self.outcome.kept_out_ms_max.max(kept_out_ms);
                if kept_out_ms > self.plan.budget.max_ms.saturating_add(TICK_MS) {
                    let text = format!("{uid} is kept out by reservations since {since_ms}");
                    return self.broken(text);
                }
                kept_out_since_ms.insert(uid, since_ms);
            }
        }
        self.kept_out_since_ms = kept_out_since_ms;
    }

    fn check_gang(&mut self, number: usize) {
        let (gang, fate) = (&self.plan.gangs[number], &self.fates[number]);
        let Some(came_at_ms) = fate.came_at_ms else { return };
        let (bound, domains) = self.books.bound(number, gang);
        if domains > 1 {
            return self.broken(format!("{gang:?} is in {domains} domains"));
        }
        if fate.started_at_ms.is_some() {
            return;
        }
        if bound >= gang.min {
            self.fates[number].started_at_ms = Some(self.now_ms);
            let bound = |pod: &Pod| pod.gang == Some(number) && pod.node.is_some() && !pod.leaving;
            let pods = self.books.pods.iter().filter(|(_, pod)| bound(pod));
            let pods: Vec<Arc<str>> = pods.map(|(uid, _)| uid.clone()).collect();
            pods.iter().for_each(|uid| self.live(uid));
        } else if bound > 0 && !fate.is_disturbed {
            self.broken(format!("{bound} of {gang:?} are bound"));
        } else if bound == 0 && self.books.fits_now(gang) {
            self.broken(format!("{gang:?} waits though there is room"));
        } else if self.knows_waits() && self.books.fits_when_empty(gang) {
            let allowed_ms = self.allowed_ms(number);
            if self.now_ms - came_at_ms > allowed_ms {
                self.broken(format!("{gang:?} waits for more than {allowed_ms} ms"));
            }
        }
    }

    /// Whether it is known how long gangs wait.
    fn knows_waits(&self) -> bool {
        self.plan.is_calm && self.plan.budget == ReservationBudget::UNLIMITED
    }

    /// How long a gang may wait: it runs out of patience, those who came before have their turn, and
    /// in each turn everything that is in the way ends.
    fn allowed_ms(&self, number: usize) -> i64 {
        let turns = self.fates[number].ahead + 1;
        self.config.gang_patience_ms + turns * (LIFE_MS_MAX + TICK_MS)
    }

    fn conclude(&mut self) {
        for number in 0..self.fates.len() {
            let (gang, fate) = (&self.plan.gangs[number], &self.fates[number]);
            let Some(came_at_ms) = fate.came_at_ms else { continue };
            if !self.books.fits_when_empty(gang) {
                continue;
            }
            self.outcome.gangs += 1;
            let Some(started_at_ms) = fate.started_at_ms else {
                // A gang that needs more than the budget starts when it fits by itself.
                if self.plan.budget == ReservationBudget::UNLIMITED {
                    self.broken(format!("{gang:?} never starts"));
                }
                continue;
            };
            self.outcome.started += 1;
            let wait_ms = started_at_ms - came_at_ms;
            self.outcome.wait_ms_max = self.outcome.wait_ms_max.max(wait_ms);
            if self.knows_waits() {
                let percent = 100 * wait_ms / self.allowed_ms(number);
                self.outcome.wait_percent_max = self.outcome.wait_percent_max.max(percent);
            }
        }
    }
}
