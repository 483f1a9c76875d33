//! Worlds run: an engine decides, the world goes on, and the checker watches.
//!
//! Owns the loop. Must not know what happens in a world.

use std::sync::Arc;

use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::{Config, Engine};

use super::checker::{Checker, Violation};
use super::happening::{Act, Round, Size, World};
use crate::cluster::BuildError;

/// So many decisions without news are too many.
const DECISIONS_MAX: usize = 5_000;

/// What came of a world.
#[derive(Debug, Default)]
pub struct Run {
    /// What happened.
    pub rounds: Vec<Round>,
    /// What was decided in each round.
    pub decisions: Vec<Vec<Decision>>,
    /// The first law that was broken, and in which round.
    pub broken: Option<(usize, Violation)>,
}

/// An engine with a checker at its side.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The engine.
    pub engine: Engine,
    pub(super) checker: Checker,
}

impl Watched {
    /// Neither knows of anything yet.
    pub fn new(config: Config) -> Self {
        Self { engine: Engine::new(config), checker: Checker::new(config) }
    }

    /// Something happens.
    pub fn tell(&mut self, event: Event) {
        self.checker.apply(&event);
        self.engine.apply(event);
    }

    /// The last decision about a pod could not be carried out.
    pub fn undo(&mut self, uid: &Arc<str>) {
        self.checker.undo(uid);
        self.engine.undo(uid);
    }

    /// One decision.
    pub fn decide(&mut self, now_ms: i64) -> Option<Decision> {
        let decision = self.engine.decide(now_ms);
        self.checker.kept(self.engine.headroom());
        self.checker.decided(decision.as_ref(), now_ms);
        decision
    }

    /// Decisions until nothing is left.
    pub fn settle(&mut self, now_ms: i64) -> Vec<Decision> {
        let decisions = (0..DECISIONS_MAX).map_while(|_| self.decide(now_ms));
        decisions.collect()
    }

    /// What was broken so far.
    pub fn violations(&self) -> &[Violation] {
        self.checker.violations()
    }
}

/// Tells an engine what happens.
fn act(engine: &mut Engine, act: &Act) {
    match act {
        Act::Tell(event) => engine.apply((**event).clone()),
        Act::Undo(uid) => engine.undo(uid),
    }
}

/// Runs the world of a seed under the eyes of the checker, until a law is broken.
pub fn run(seed: u64, size: Size, config: Config) -> Result<Run, BuildError> {
    let (mut world, mut round) = World::new(seed, size)?;
    let mut watched = Watched::new(config);
    let mut run = Run::default();
    for number in 0..size.rounds {
        for one in &round.acts {
            match one {
                Act::Tell(event) => watched.tell((**event).clone()),
                Act::Undo(uid) => watched.undo(uid),
            }
        }
        let most = round.decisions_max.min(DECISIONS_MAX);
        let decisions: Vec<Decision> =
            (0..most).map_while(|_| watched.decide(round.now_ms)).collect();
        decisions.iter().for_each(|decision| world.decided(decision));
        run.decisions.push(decisions);
        run.rounds.push(round);
        if let Some(violation) = watched.violations().first() {
            run.broken = Some((number, violation.clone()));
            break;
        }
        round = world.round()?;
    }
    Ok(run)
}

/// Runs the world of a seed without a checker.
pub fn record(seed: u64, size: Size, config: Config) -> Result<Run, BuildError> {
    let (mut world, mut round) = World::new(seed, size)?;
    let mut engine = Engine::new(config);
    let mut run = Run::default();
    for _ in 0..size.rounds {
        let decisions = play(&mut engine, &round);
        decisions.iter().for_each(|decision| world.decided(decision));
        run.decisions.push(decisions);
        run.rounds.push(round);
        round = world.round()?;
    }
    Ok(run)
}

/// One round: what happens, and what an engine decides.
pub fn play(engine: &mut Engine, round: &Round) -> Vec<Decision> {
    round.acts.iter().for_each(|one| act(engine, one));
    let most = round.decisions_max.min(DECISIONS_MAX);
    (0..most).map_while(|_| engine.decide(round.now_ms)).collect()
}
