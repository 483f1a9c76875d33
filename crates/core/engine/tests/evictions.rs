//! How long a preemptor waits for victims that do not terminate.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::ops::Range;
use std::sync::Arc;

use berth_engine::Config;
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::explain::render;
use berth_kubelet::TopologyPolicy;
use berth_model::gang::{Disruption, GangMembership, GangTerms};
use berth_model::spec::{Deletion, Phase, PodObject, PodSpec};
use berth_testkit::cluster::{NodeKind, gpu_template, pending};
use berth_testkit::world::Watched;

const MAX_WAIT_MS: i64 = 600_000;
const HOUR_MS: i64 = 3_600_000;

/// Nodes of 8 GPUs, each held by one pod: number 1 has priority 0, number 2 has 10, and so on.
struct World {
    watched: Watched,
    nodes: Vec<PodObject>,
}

fn gpus(name: &str, priority: i32) -> Arc<PodSpec> {
    Arc::new(gpu_template(name, priority, 8).unwrap())
}

fn world(nodes: Range<u64>) -> World {
    let config = Config { eviction_max_wait_ms: MAX_WAIT_MS, ..Config::default() };
    let mut watched = Watched::new(config);
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::None);
    let count = usize::try_from(nodes.end - nodes.start).unwrap();
    kind.nodes(0, count).unwrap().into_iter().for_each(|event| watched.tell(event));
    let mut all = Vec::new();
    for (number, priority) in nodes.zip((0..).step_by(10)) {
        let mut pod = pending(&gpus("batch", priority), number);
        watched.tell(Event::Pod(pod.clone()));
        let Some(Decision::Bind(binding)) = watched.decide(0) else {
            panic!("{number} has no place")
        };
        pod.node = Some(binding.node);
        watched.tell(Event::Pod(pod.clone()));
        all.push(pod);
    }
    World { watched, nodes: all }
}

fn uid(number: u64) -> Arc<str> {
    format!("uid-{number:08}").into()
}

impl World {
    fn come(&mut self, spec: &Arc<PodSpec>, number: u64) {
        self.watched.tell(Event::Pod(pending(spec, number)));
    }

    fn terminates(&mut self, number: u64, requested_at_ms: i64, grace_ms: i64) {
        let pod = self.nodes.iter().find(|pod| pod.uid == uid(number)).unwrap().clone();
        let deletion = Some(Deletion { requested_at_ms, grace_ms });
        let phase = Phase::Terminating { by_preemption: true };
        self.watched.tell(Event::Pod(PodObject { deletion, phase, ..pod }));
    }

    fn victims(&mut self, now_ms: i64) -> Vec<Arc<str>> {
        match &self.settle(now_ms)[..] {
            [Decision::Preempt(preempting)] => preempting.victims.clone(),
            [Decision::Reserve(reserving)] => reserving.victims.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self, now_ms: i64) -> Vec<Decision> {
        let decisions = self.watched.settle(now_ms);
        assert!(self.watched.violations().is_empty(), "{:?}", self.watched.violations());
        decisions
    }

    /// The node that a pod has held from the beginning.
    fn node_of(&self, number: u64) -> Arc<str> {
        let pod = self.nodes.iter().find(|pod| pod.uid == uid(number)).unwrap();
        pod.node.clone().unwrap()
    }

    fn explained(&mut self, number: u64, now_ms: i64) -> String {
        render(&self.watched.engine.explain(&uid(number), now_ms).unwrap())
    }
}

#[test]
fn a_preemptor_looks_elsewhere_after_the_limit() {
    let mut world = world(1..3);
    world.come(&gpus("urgent", 100), 9);
    assert_eq!(world.victims(0), [uid(1)]);
    world.terminates(1, 0, HOUR_MS);
    assert_eq!(world.settle(MAX_WAIT_MS - 1), []);
    assert_eq!(world.victims(MAX_WAIT_MS), [uid(2)]);
    let text = world.explained(9, MAX_WAIT_MS);
    let start = format!("Nominated to {}; waiting for", world.node_of(2));
    assert!(text.starts_with(&start), "{text}");
    let why =
        "No longer waiting for serving/pod-00000001 (priority 0), preempted but still terminating.";
    assert!(text.ends_with(why), "{text}");
    // Whichever leaves first makes room.
    world.watched.tell(Event::PodGone(uid(1)));
    world.settle(MAX_WAIT_MS + 1);
    assert_eq!(world.watched.engine.node_of(&uid(9)), Some(&world.node_of(1)));
}

#[test]
fn a_short_grace_period_makes_the_wait_shorter() {
    let mut world = world(1..3);
    world.come(&gpus("urgent", 100), 9);
    assert_eq!(world.victims(0), [uid(1)]);
    world.terminates(1, 0, 30_000);
    assert_eq!(world.settle(89_999), []);
    assert_eq!(world.victims(90_000), [uid(2)]);
}

#[test]
fn the_wait_for_an_unconfirmed_eviction_is_bounded() {
    let mut world = world(1..3);
    world.come(&gpus("urgent", 100), 9);
    assert_eq!(world.victims(5), [uid(1)]);
    assert_eq!(world.settle(MAX_WAIT_MS + 4), []);
    assert_eq!(world.victims(MAX_WAIT_MS + 5), [uid(2)]);
}

#[test]
fn the_wait_for_victims_uses_the_leaders_clock() {
    let mut world = world(1..3);
    world.come(&gpus("urgent", 100), 9);
    assert_eq!(world.victims(HOUR_MS), [uid(1)]);
    world.terminates(1, 0, 30_000);
    assert_eq!(world.settle(HOUR_MS + 89_999), []);
    assert_eq!(world.victims(HOUR_MS + 90_000), [uid(2)]);
}

/// A leader that has just begun knows the time of an eviction from the API alone.
#[test]
fn a_new_leader_does_not_restart_the_wait() {
    let mut world = world(1..2);
    world.terminates(1, 0, HOUR_MS);
    let mut waits = pending(&gpus("urgent", 100), 9);
    waits.nominated = world.nodes[0].node.clone();
    world.watched.tell(Event::Pod(waits));
    world.settle(MAX_WAIT_MS - 1);
    assert!(world.explained(9, MAX_WAIT_MS - 1).starts_with("Nominated to"), "still awaited");
    let waits = world.settle(MAX_WAIT_MS);
    assert!(matches!(waits[..], [Decision::Wait { .. }]), "{waits:?}");
    let text = world.explained(9, MAX_WAIT_MS);
    assert!(
        text.starts_with("0 of 1 nodes fit. No longer waiting for serving/pod-00000001"),
        "{text}"
    );
}

#[test]
fn a_node_is_open_to_others_once_its_preemptor_has_gone_elsewhere() {
    let mut world = world(1..3);
    world.come(&gpus("urgent", 100), 9);
    assert_eq!(world.victims(0), [uid(1)]);
    world.terminates(1, 0, HOUR_MS);
    assert_eq!(world.victims(MAX_WAIT_MS), [uid(2)]);
    world.come(&gpus("late", 5), 10);
    world.settle(MAX_WAIT_MS);
    world.watched.tell(Event::PodGone(uid(2)));
    world.settle(MAX_WAIT_MS);
    assert_eq!(world.watched.engine.node_of(&uid(9)), Some(&world.node_of(2)));
    world.watched.tell(Event::PodGone(uid(1)));
    world.settle(MAX_WAIT_MS);
    assert_eq!(world.watched.engine.node_of(&uid(10)), Some(&world.node_of(1)));
}

#[test]
fn a_gang_looks_elsewhere_after_the_limit() {
    let mut world = world(1..4);
    let terms =
        GangTerms { min: 2, topology: None, timeout_ms: HOUR_MS, disruption: Disruption::Whole };
    let mut spec = gpu_template("train", 100, 8).unwrap();
    spec.gang = Some(GangMembership { name: "train".into(), terms: Some(terms) });
    let spec = Arc::new(spec);
    (11..13).for_each(|number| world.come(&spec, number));
    let first = world.victims(0);
    assert_eq!(first.len(), 2);
    world.terminates(1, 0, HOUR_MS);
    world.watched.tell(Event::PodGone(first.into_iter().find(|one| *one != uid(1)).unwrap()));
    assert_eq!(world.settle(MAX_WAIT_MS - 1), []);
    assert_eq!(world.victims(MAX_WAIT_MS), [uid(3)]);
    world.watched.tell(Event::PodGone(uid(3)));
    assert!(matches!(world.settle(MAX_WAIT_MS + 1)[..], [Decision::BindAll(_)]));
}
