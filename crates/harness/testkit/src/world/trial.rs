//! What is asked of every world: that its laws hold, that the order of news does not matter, and
//! that trying things out leaves no trace.
//!
//! Owns the questions; each gives the first difference in words, if there is one.

use berth_engine::decision::Decision;
use berth_engine::{Config, Engine};

use super::happening::{Size, World};
use super::run::{play, record, run};
use crate::cluster::{BuildError, Dice};

/// How the world of a seed breaks a law, if it does.
pub fn breaks_a_law(seed: u64, size: Size, config: Config) -> Result<Option<String>, BuildError> {
    let broken = run(seed, size, config)?.broken;
    Ok(broken.map(|(round, violation)| format!("seed {seed}, round {round}: {violation}")))
}

/// How decisions differ if the same is told again, or in another order that is just as true.
pub fn depends_on_order(
    seed: u64,
    size: Size,
    config: Config,
) -> Result<Option<String>, BuildError> {
    let recorded = record(seed, size, config)?;
    let reordered = recorded.reordered(&mut Dice::new(seed));
    for (how, rounds) in [("again", &recorded.rounds), ("reordered", &reordered)] {
        let mut engine = Engine::new(config);
        for (number, (round, expected)) in rounds.iter().zip(&recorded.decisions).enumerate() {
            if let Some(what) = difference(&play(&mut engine, round), expected) {
                return Ok(Some(format!("seed {seed}, {how}, round {number}: {what}")));
            }
        }
    }
    Ok(None)
}

/// How decisions differ if before every round an engine tries out what would happen if the world
/// went on otherwise, and rolls back.
pub fn remembers_trials(
    seed: u64,
    size: Size,
    config: Config,
) -> Result<Option<String>, BuildError> {
    let (mut world, mut round) = World::new(seed, size)?;
    let (mut plain, mut trying) = (Engine::new(config), Engine::new(config));
    for number in 0..size.rounds {
        let mut other = world.fork(seed.wrapping_add(1_000_000 + number as u64));
        let outer = trying.checkpoint();
        for _ in 0..2 {
            let tried = other.round()?;
            play(&mut trying, &tried).iter().for_each(|decision| other.decided(decision));
        }
        let inner = trying.checkpoint();
        play(&mut trying, &other.round()?);
        if number % 2 == 0 {
            trying.rollback(inner);
        } else {
            trying.commit(inner);
        }
        trying.rollback(outer);
        let (expected, got) = (play(&mut plain, &round), play(&mut trying, &round));
        if let Some(what) = difference(&got, &expected) {
            return Ok(Some(format!("seed {seed}, round {number}: {what}")));
        }
        expected.iter().for_each(|decision| world.decided(decision));
        round = world.round()?;
    }
    Ok(None)
}

/// The first decision that differs, in words.
fn difference(got: &[Decision], expected: &[Decision]) -> Option<String> {
    let at = got.iter().zip(expected).take_while(|(one, other)| one == other).count();
    let (got, expected) = (got.get(at), expected.get(at));
    (got != expected).then(|| format!("decision {at}: {got:?}, expected {expected:?}"))
}
