//! The examples tell the stories they are there for.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use berth_scenario::scenario::load;
use berth_sim::experiment::Experiment;
use berth_sim::report::{Report, Run};

fn example(name: &str) -> Experiment {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples").join(name);
    load(&path, None).map_err(|error| error.to_string()).unwrap()
}

fn played(name: &str) -> Report {
    berth_sim::run(&example(&format!("failure-modes/{name}.yaml")), &mut |_, _| {}).unwrap()
}

/// The runs under kube-scheduler and under Berth.
fn both(report: &Report) -> (&Run, &Run) {
    let named = |name: &str| report.runs.iter().find(|run| run.name == name).unwrap();
    (named("kube-scheduler"), named("berth"))
}

fn longest_wait_ms(run: &Run, class: &str) -> i64 {
    run.classes.iter().find(|one| one.class == class).map_or(0, |one| one.wait_max_ms)
}

const MINUTE_MS: i64 = 60_000;

#[test]
fn warm_room_serves_while_nodes_come_and_models_load() {
    let report = played("slow-model-load");
    let (kube, berth) = both(&report);
    assert!(kube.summary.above_ms > 5 * berth.summary.above_ms, "{}", kube.summary.above_ms);
    assert!(longest_wait_ms(kube, "interactive") > 60 * MINUTE_MS);
    assert!(longest_wait_ms(berth, "interactive") < 10 * MINUTE_MS);
}

#[test]
fn a_model_is_not_put_on_gpus_it_does_not_fit() {
    let report = played("wrong-gpu-memory");
    let (kube, berth) = both(&report);
    assert!(kube.summary.out_of_memory > 100);
    assert_eq!((berth.summary.out_of_memory, berth.summary.breaches), (0, 0));
}

#[test]
fn general_work_leaves_the_cpus_of_gpu_nodes_alone() {
    let report = played("general-work-on-gpu-nodes");
    let (kube, berth) = both(&report);
    assert!(kube.summary.waiting > 0);
    assert_eq!(berth.summary.waiting, 0);
}

#[test]
fn a_selector_that_matches_nothing_is_named() {
    let report = played("selector-matches-no-pool");
    for run in &report.runs {
        let why = &run.waiting[0].why;
        assert!(why.contains("accelerator.platform.example.com/type=nvidia-h100"), "{why}");
        assert_eq!(report.nodes.len(), 1, "no node is bought in vain");
    }
}

#[test]
fn large_models_find_whole_sockets_beside_small_ones() {
    let report = played("small-and-large-models");
    let (kube, berth) = both(&report);
    assert!(kube.summary.rejections > 100);
    assert_eq!(berth.summary.rejections, 0);
    assert!(longest_wait_ms(berth, "batch") < longest_wait_ms(kube, "batch"));
}

#[test]
fn serving_finds_room_though_batch_came_first() {
    let report = played("batch-before-serving");
    let (kube, berth) = both(&report);
    assert!(longest_wait_ms(kube, "interactive") > 60 * MINUTE_MS);
    assert_eq!(longest_wait_ms(berth, "interactive"), 0);
    assert!(kube.summary.requests_lost > 100 * berth.summary.requests_lost);
}

#[test]
fn a_split_node_is_no_livelock() {
    let report = played("split-node-livelock");
    let (kube, berth) = both(&report);
    assert!(kube.rejections["TopologyAffinityError"] > 50);
    assert_eq!(berth.summary.rejections, 0);
    assert!(longest_wait_ms(berth, "batch") <= longest_wait_ms(kube, "batch"));
}

#[test]
fn the_48_gpus_begin_as_they_go_on() {
    // The first week of the 90 days; the whole is simulated by `.ci/run`.
    let mut experiment = example("48-gpus/scenario.yaml");
    experiment.duration_ms = 7 * 24 * 60 * MINUTE_MS;
    experiment.goals.as_mut().unwrap().fewest_nodes = false;
    let report = berth_sim::run(&experiment, &mut |_, _| {}).unwrap();
    let [default, tuned, berth] = &report.runs[..] else { panic!("three setups") };
    assert!(default.summary.p99_us > 20_000 && default.summary.breaches > 0);
    assert!((14_000..15_000).contains(&berth.summary.p99_us), "{}", berth.summary.p99_us);
    assert_eq!((berth.summary.breaches, berth.summary.rejections), (0, 0));
    assert!(berth.summary.utilised > 1.22 * default.summary.utilised);
    assert!(tuned.summary.rejections > 500);
}
