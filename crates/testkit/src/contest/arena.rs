//! A contest, run: the engine decides, time passes, and every step is checked.
//!
//! Owns the calendar and the checks. Must not look into the engine.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_engine::decision::{Binding, Decision};
use berth_engine::event::Event;
use berth_engine::{Config, Engine};
use berth_model::spec::{PodObject, PodSpec};

use super::books::{Books, Pod};
use super::plan::{LIFE_MS_MAX, Plan, member, single};
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
    plan: Plan,
    engine: Engine,
    books: Books,
    fates: Vec<Fate>,
    calendar: BTreeSet<(i64, Happening)>,
    objects: std::collections::BTreeMap<Arc<str>, PodObject>,
    numbered: u64,
    now_ms: i64,
    config: Config,
    outcome: Outcome,
}

/// Runs the contest of a seed, until something is wrong or all is done.
pub fn run(seed: u64) -> Result<Outcome, BuildError> {
    let mut dice = Dice::new(seed);
    let plan = Plan::new(&mut dice)?;
    let config = Config { gang_patience_ms: 20_000, eviction_rest_ms: 60_000, ..Config::default() };
    let mut arena = Arena {
        dice,
        engine: Engine::new(config),
        books: Books { nodes: plan.nodes.clone(), ..Books::default() },
        fates: vec![Fate::default(); plan.gangs.len()],
        calendar: BTreeSet::new(),
        objects: std::collections::BTreeMap::new(),
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
        for (number, (at_ms, _, _)) in self.plan.singles.iter().enumerate() {
            self.calendar.insert((*at_ms, Happening::Single(number)));
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
                let (_, gpus, priority) = self.plan.singles[*number];
                self.create(&single(gpus, priority)?, None, gpus);
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

    fn create(&mut self, spec: &Arc<PodSpec>, gang: Option<usize>, gpus: i64) {
        self.numbered += 1;
        let mut object = pending(spec, self.numbered);
        object.created_at_ms = self.now_ms;
        let pod = Pod { gang, gpus, node: None, awaits: None, leaving: false };
        self.books.pods.insert(object.uid.clone(), pod);
        self.objects.insert(object.uid.clone(), object.clone());
        self.engine.apply(Event::Pod(object));
    }

    fn leave(&mut self, uid: &Arc<str>) {
        if self.books.pods.remove(uid).is_some() {
            self.objects.remove(uid);
            self.engine.apply(Event::PodGone(uid.clone()));
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
                    self.await_nodes(&[(preempting.pod, preempting.node)]);
                }
                Decision::Reserve(reserving) => {
                    self.outcome.reserved += usize::from(reserving.until_ms.is_some());
                    self.evict(&reserving.victims)?;
                    self.await_nodes(&reserving.places);
                }
                Decision::Disband(disbanding) => self.evict(&disbanding.pods)?,
                Decision::Wait { pod } | Decision::Hold { pod, .. } => self.wait(&pod),
            }
        }
        self.broken("decisions do not end".to_owned());
        Ok(())
    }

    fn bind(&mut self, binding: &Binding) {
        if let Some(pod) = self.books.pods.get_mut(&binding.pod) {
            (pod.node, pod.awaits) = (Some(binding.node.clone()), None);
            match pod.gang {
                // Members live while the gang is not whole.
                Some(gang) if self.fates[gang].started_at_ms.is_none() => {}
                _ => self.live(&binding.pod),
            }
        }
    }

    /// A pod begins its work, and ends it some time.
    fn live(&mut self, uid: &Arc<str>) {
        let life_ms = 1 + self.dice.below(LIFE_MS_MAX as usize) as i64;
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

    fn await_nodes(&mut self, places: &[(Arc<str>, Arc<str>)]) {
        for (pod, node) in places {
            if let Some(pod) = self.books.pods.get_mut(pod) {
                pod.awaits = Some(node.clone());
            }
        }
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
        } else if self.plan.is_calm && self.books.fits_when_empty(gang) {
            let allowed_ms = self.allowed_ms(number);
            if self.now_ms - came_at_ms > allowed_ms {
                self.broken(format!("{gang:?} waits for more than {allowed_ms} ms"));
            }
        }
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
                self.broken(format!("{gang:?} never starts"));
                continue;
            };
            self.outcome.started += 1;
            let wait_ms = started_at_ms - came_at_ms;
            self.outcome.wait_ms_max = self.outcome.wait_ms_max.max(wait_ms);
            if self.plan.is_calm {
                let percent = 100 * wait_ms / self.allowed_ms(number);
                self.outcome.wait_percent_max = self.outcome.wait_percent_max.max(percent);
            }
        }
    }
}
