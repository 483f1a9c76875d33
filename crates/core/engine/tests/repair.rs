//! Repair: which pods to move so that others fit.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::{Engine, Profile};
use berth_kubelet::TopologyPolicy;
use berth_model::label::Selector;
use berth_model::policy::DisruptionBudget;
use berth_model::spec::{Controller, PodObject, PodSpec};
use berth_testkit::cluster::{NodeKind, gpu_template, pending};

fn cluster(nodes: usize) -> Engine {
    let mut engine = Engine::new(Profile::Berth);
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::SingleNumaNode);
    kind.nodes(0, nodes).unwrap().into_iter().for_each(|event| engine.apply(event));
    engine
}

/// Pods of a Job, which makes them again when they are moved.
fn gpus(count: u32) -> PodSpec {
    let mut spec = gpu_template("batch", 0, count).unwrap();
    spec.controller = Some(Controller { kind: "Job".into(), name: "batch".into() });
    spec
}

fn running(spec: &PodSpec, number: u64, node: usize) -> PodObject {
    let node = Some(format!("h100-{node:06}").into());
    PodObject { node, started_at_ms: Some(1_000), ..pending(&Arc::new(spec.clone()), number) }
}

/// Two nodes with two GPUs taken on each of their sockets, so that four are free on none.
fn split(spec: &PodSpec) -> Engine {
    let mut engine = cluster(2);
    for node in [0, 1] {
        let number = 10 * node as u64;
        // The second fills the first socket, so that the third goes to the other.
        for pod in 1..=3 {
            engine.apply(Event::Pod(running(spec, number + pod, node)));
        }
        engine.apply(Event::PodGone(format!("uid-{:08}", number + 2).into()));
    }
    let four = Arc::new(gpu_template("large", 0, 4).unwrap());
    engine.apply(Event::Pod(pending(&four, 20)));
    assert!(matches!(engine.decide(0), Some(Decision::Wait { .. })), "four are free on no socket");
    engine
}

#[test]
fn one_small_pod_is_moved_so_that_four_gpus_of_one_socket_are_free() {
    let mut engine = split(&gpus(2));
    let repair = engine.repair("uid-00000020", 2, 61_000).unwrap();
    assert_eq!(repair.moves.len(), 1, "{repair:?}");
    assert_eq!(repair.moves[0].lost_run_ms, 60_000);
    assert!(engine.decide(0).is_none(), "nothing has been carried out");
    // Carried out, it is true.
    engine.apply(Event::PodGone(repair.moves[0].pod.clone()));
    let Some(Decision::Bind(binding)) = engine.decide(0) else { panic!("does not fit") };
    assert_eq!((&*binding.pod, &binding.node), ("uid-00000020", &repair.node));
}

#[test]
fn pods_that_must_stay_are_not_moved() {
    let staying = PodSpec { stays: true, ..gpus(2) };
    let bare = PodSpec { controller: None, ..gpus(2) };
    let daemon = Some(Controller { kind: "DaemonSet".into(), name: "daemon".into() });
    let daemon = PodSpec { controller: daemon, ..gpus(2) };
    for spec in [staying, bare, daemon] {
        assert_eq!(split(&spec).repair("uid-00000020", 8, 61_000), None);
    }
}

#[test]
fn budgets_are_kept() {
    let spec = gpus(2);
    let mut engine = split(&spec);
    engine.apply(Event::Budget(DisruptionBudget {
        namespace: spec.namespace.clone(),
        name: "batch".into(),
        selector: Some(Selector::of_labels(&spec.labels)),
        ..DisruptionBudget::default()
    }));
    assert_eq!(engine.repair("uid-00000020", 8, 61_000), None);
}

#[test]
fn stranded_gpus_become_whole_by_few_moves() {
    let mut engine = cluster(2);
    let four = gpus(4);
    let one = gpus(1);
    // The mix is of pods of four, and each node has one GPU taken on each socket.
    for number in 0..40 {
        engine.apply(Event::Pod(pending(&Arc::new(four.clone()), 1_000 + number)));
    }
    for (number, node) in [(1, 0), (3, 1)] {
        engine.apply(Event::Pod(running(&one, number, node)));
    }
    while engine.decide(0).is_some() {}
    let found = engine.consolidate(4, 1, 61_000);
    assert!(found.len() <= 4);
    assert!(found.iter().all(|one| one.gain_micro > 0), "{found:?}");
    let again = engine.consolidate(4, 1, 61_000);
    assert_eq!(found, again, "trying leaves no trace");
}
