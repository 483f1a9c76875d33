//! The same events give the same decisions: again, in any other order that is just as true, and
//! whatever was tried out and undone in between.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;

use berth_engine::config::Profile;
use berth_engine::decision::Decision;
use berth_engine::{Config, Engine};
use berth_testkit::cluster::Dice;
use berth_testkit::world::{Round, Size, play, record};

const SMALL: Size = Size { nodes: 6, rounds: 12 };

/// The first round in which an engine decides otherwise, told in words.
fn difference(config: Config, rounds: &[Round], expected: &[Vec<Decision>]) -> Option<String> {
    let mut engine = Engine::new(config);
    rounds.iter().zip(expected).enumerate().find_map(|(number, (round, expected))| {
        let got = play(&mut engine, round);
        (got != *expected).then(|| {
            let at = got.iter().zip(expected).take_while(|(one, other)| one == other).count();
            let (got, expected) = (got.get(at), expected.get(at));
            format!("round {number}, decision {at}: {got:?}, before {expected:?}")
        })
    })
}

fn assert_same(seeds: Range<u64>, config: Config) {
    let mut differences = Vec::new();
    for seed in seeds {
        let run = record(seed, SMALL, config).unwrap();
        let again = difference(config, &run.rounds, &run.decisions);
        differences.extend(again.map(|how| format!("seed {seed}, again: {how}")));
        let reordered = run.reordered(&mut Dice::new(seed));
        let reordered = difference(config, &reordered, &run.decisions);
        differences.extend(reordered.map(|how| format!("seed {seed}, reordered: {how}")));
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn the_order_of_news_does_not_matter() {
    assert_same(0..500, Config::default());
}

#[test]
fn the_order_of_news_does_not_matter_in_other_worlds() {
    assert_same(500..1_000, Config::default());
}

#[test]
fn the_order_of_news_does_not_matter_to_the_rules_of_kube_scheduler() {
    assert_same(1_000..1_100, Profile::KubeScheduler.into());
    assert_same(1_100..1_150, Profile::KubeSchedulerPacking.into());
}
