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
use berth_model::spec::PodObject;
use berth_testkit::cluster::{NodeKind, gpu_template, pending};
use berth_testkit::world::{Size, remembers_trials};

const SMALL: Size = Size { nodes: 6, rounds: 12 };

fn assert_no_trace(seeds: Range<u64>, config: Config) {
    let differ = seeds.filter_map(|seed| remembers_trials(seed, SMALL, config).unwrap());
    let differ: Vec<String> = differ.collect();
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
}

#[test]
fn a_rollback_leaves_no_trace() {
    assert_no_trace(0..300, Config::default());
}

#[test]
fn a_rollback_leaves_no_trace_with_kube_schedulers_profile() {
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
    let other = PodObject { spec: Arc::new(spec), ..pod.clone() };
    engine.apply(Event::Pod(other));
    engine.rollback(checkpoint);
    node().into_iter().for_each(|event| engine.apply(event));
    assert!(matches!(engine.decide(1), Some(Decision::Bind(binding)) if binding.pod == pod.uid));
}

fn node() -> Vec<Event> {
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::None);
    kind.nodes(0, 1).unwrap()
}

#[test]
fn a_pod_that_waits_for_a_node_still_does_after_the_node_was_gone_for_a_while() {
    let mut engine = Engine::new(Config::default());
    node().into_iter().for_each(|event| engine.apply(event));
    let pod = |number: u64, priority: i32| {
        pending(&Arc::new(gpu_template("app", priority, 8).unwrap()), number)
    };
    engine.apply(Event::Pod(pod(1, 0)));
    assert!(matches!(engine.decide(0), Some(Decision::Bind(_))));
    engine.apply(Event::Pod(pod(2, 20)));
    assert!(matches!(engine.decide(0), Some(Decision::Preempt(_))));
    let checkpoint = engine.checkpoint();
    engine.apply(Event::NodeGone("h100-000000".into()));
    engine.rollback(checkpoint);
    engine.apply(Event::PodGone(pod(1, 0).uid));
    // The room is kept for the pod that waits.
    engine.apply(Event::Pod(pod(0, 20)));
    let mut decisions = std::iter::from_fn(|| engine.decide(1));
    let bound = decisions.find_map(|decision| match decision {
        Decision::Bind(binding) => Some(binding.pod),
        _ => None,
    });
    assert_eq!(bound, Some(pod(2, 20).uid));
}
