//! Trying things out leaves no trace: an engine that had a checkpoint, other events and decisions
//! and a rollback goes on as one that had not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;
use std::sync::Arc;

use berth_engine::config::Profile;
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::{Config, Engine};
use berth_kubelet::TopologyPolicy;
use berth_testkit::cluster::{NodeKind, gpu_template, pending};
use berth_testkit::world::{Size, World, play};

const SMALL: Size = Size { nodes: 6, rounds: 12 };

/// Runs a world, trying out before every round what would happen if it went on otherwise. The first
/// round that ends otherwise than without trying, told in words.
fn difference(seed: u64, config: Config) -> Option<String> {
    let (mut world, mut round) = World::new(seed, SMALL).unwrap();
    let (mut plain, mut trying) = (Engine::new(config), Engine::new(config));
    for number in 0..SMALL.rounds {
        let mut other = world.fork(seed.wrapping_add(1_000_000 + number as u64));
        let outer = trying.checkpoint();
        for _ in 0..2 {
            let tried = other.round().unwrap();
            play(&mut trying, &tried).iter().for_each(|decision| other.decided(decision));
        }
        let inner = trying.checkpoint();
        play(&mut trying, &other.round().unwrap());
        if number % 2 == 0 {
            trying.rollback(inner);
        } else {
            trying.commit(inner);
        }
        trying.rollback(outer);
        let (expected, got) = (play(&mut plain, &round), play(&mut trying, &round));
        if got != expected {
            let at = got.iter().zip(&expected).take_while(|(one, other)| one == other).count();
            let (got, expected) = (got.get(at), expected.get(at));
            return Some(format!("round {number}, decision {at}: {got:?}, plainly {expected:?}"));
        }
        expected.iter().for_each(|decision| world.decided(decision));
        round = world.round().unwrap();
    }
    None
}

fn assert_no_trace(seeds: Range<u64>, config: Config) {
    let differences: Vec<String> = seeds
        .filter_map(|seed| difference(seed, config).map(|how| format!("seed {seed}: {how}")))
        .collect();
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn what_was_rolled_back_leaves_no_trace() {
    assert_no_trace(0..300, Config::default());
}

#[test]
fn what_was_rolled_back_leaves_no_trace_for_the_rules_of_kube_scheduler() {
    assert_no_trace(300..400, Profile::KubeScheduler.into());
}

#[test]
fn a_waiting_pod_that_was_another_for_a_while_finds_its_place() {
    let mut engine = Engine::new(Config::default());
    let pod = pending(&Arc::new(gpu_template("app", 0, 1).unwrap()), 1);
    engine.apply(Event::Pod(pod.clone()));
    assert_eq!(engine.decide(0), Some(Decision::Wait { pod: pod.uid.clone() }));
    let checkpoint = engine.checkpoint();
    let mut spec = (*pod.spec).clone();
    spec.labels.insert("tier", "front");
    let other = berth_model::spec::PodObject { spec: Arc::new(spec), ..pod.clone() };
    engine.apply(Event::Pod(other));
    engine.rollback(checkpoint);
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::None);
    kind.nodes(0, 1).unwrap().into_iter().for_each(|event| engine.apply(event));
    assert!(matches!(engine.decide(1), Some(Decision::Bind(binding)) if binding.pod == pod.uid));
}
