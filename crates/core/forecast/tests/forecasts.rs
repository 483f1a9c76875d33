//! Forecasts for small clusters with a known future.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::{Engine, Profile};
use berth_forecast::forecast::{
    Doubt, End, Eta, Forecast, Grade, Hold, Lack, Outlook, PlannedNode,
};
use berth_forecast::{Effort, Forecaster};
use berth_model::node::Node;
use berth_model::spec::{Controller, GpuNeed, PodSpec};
use berth_testkit::cluster::{pending, resources, template};

const MINUTE_MS: i64 = 60_000;

struct World {
    engine: Engine,
    forecaster: Forecaster,
    now_ms: i64,
    pods: u64,
}

fn node(name: &str, gpus: u32) -> Node {
    let gpus = gpus.to_string();
    let all = [("cpu", "64"), ("memory", "512Gi"), ("pods", "110"), ("nvidia.com/gpu", &gpus)];
    let mut node =
        Node { name: name.into(), allocatable: resources(&all).unwrap(), ..Node::default() };
    node.labels.insert("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3");
    node.labels.insert("berth.dev/gpu-division", "shares");
    node
}

fn spec(app: &str, gpus: u32, priority: i32) -> PodSpec {
    let gpus = gpus.to_string();
    let limits = [("cpu", "1"), ("memory", "1Gi"), ("nvidia.com/gpu", gpus.as_str())];
    let mut spec = template(app, priority, &limits).unwrap();
    spec.controller = Some(Controller { kind: "Job".into(), name: app.into() });
    spec.preemption = berth_model::spec::PreemptionPolicy::Never;
    spec
}

impl World {
    fn new(nodes: &[Node]) -> Self {
        let effort = Effort::default();
        let (engine, forecaster) = (Engine::new(Profile::Berth), Forecaster::new(effort));
        let mut world = Self { engine, forecaster, now_ms: 0, pods: 0 };
        nodes.iter().for_each(|node| world.process(Event::Node(node.clone())));
        world
    }

    fn process(&mut self, event: Event) {
        self.forecaster.observe(&event, self.now_ms);
        self.engine.apply(event);
        while let Some(decision) = self.engine.decide(self.now_ms) {
            self.forecaster.observe_decision(&decision, self.now_ms);
            assert!(!matches!(decision, Decision::Preempt(_)));
        }
    }

    fn come(&mut self, spec: &PodSpec) -> Arc<str> {
        self.pods += 1;
        let mut pod = pending(&Arc::new(spec.clone()), self.pods);
        pod.created_at_ms = self.now_ms;
        let uid = pod.uid.clone();
        self.process(Event::Pod(pod));
        uid
    }

    fn leave(&mut self, uid: &Arc<str>) {
        self.process(Event::PodGone(uid.clone()));
    }

    /// Many of a workload have lived for so long.
    fn lived(&mut self, spec: &PodSpec, minutes: i64, count: u64) {
        for _ in 0..count {
            self.pods += 1;
            let mut pod = pending(&Arc::new(spec.clone()), self.pods);
            pod.node = Some("gone".into());
            let uid = pod.uid.clone();
            self.forecaster.observe(&Event::Pod(pod), self.now_ms);
            let end_ms = self.now_ms + minutes * MINUTE_MS;
            self.forecaster.observe(&Event::PodGone(uid), end_ms);
        }
    }

    fn outlook(&mut self, uid: &str) -> Outlook {
        self.forecaster.forecast(uid, self.now_ms).unwrap().outlook
    }

    fn eta(&mut self, uid: &str) -> Eta {
        match self.outlook(uid) {
            Outlook::Starts(eta) => *eta,
            other => panic!("{other:?}"),
        }
    }

    /// Half of such pods start within so many minutes.
    fn median_minutes(&mut self, uid: &str) -> i64 {
        self.eta(uid).within_ms(500).map_or(i64::MAX, |ms| ms as i64 / MINUTE_MS)
    }
}

#[test]
fn a_pod_waits_for_the_usual_lifetime_of_the_one_before() {
    let mut world = World::new(&[node("one", 1)]);
    let job = spec("job", 1, 0);
    world.lived(&job, 60, 200);
    let runs = world.come(&job);
    world.now_ms += 20 * MINUTE_MS;
    let waits = world.come(&job);
    assert!((33..=47).contains(&world.median_minutes(&waits)), "{:?}", world.eta(&waits));
    let eta = world.eta(&waits);
    assert_eq!(eta.waits_for[0].pod, runs);
    assert_eq!(eta.waits_for[0].share_milli, 1000);
    // Who is behind waits for a whole life longer.
    let behind = world.come(&job);
    assert!((85..=115).contains(&world.median_minutes(&behind)), "{:?}", world.eta(&behind));
}

#[test]
fn deadlines_and_declared_ends_count_for_more_than_lives() {
    let mut world = World::new(&[node("one", 1)]);
    let job = spec("job", 1, 0);
    world.lived(&job, 600, 200);
    let runs = world.come(&job);
    let waits = world.come(&job);
    assert!(world.median_minutes(&waits) > 400);
    world.forecaster.expect_end(&runs, Some(End::By(30 * MINUTE_MS)));
    assert!(world.eta(&waits).within_ms(950).unwrap() as i64 <= 30 * MINUTE_MS);
    world.forecaster.expect_end(&runs, Some(End::At(900 * MINUTE_MS)));
    let eta = world.eta(&waits);
    assert_eq!((eta.within_ms[0], eta.within_ms[6]), (eta.within_ms[2], eta.within_ms[2]));
    assert_eq!(world.median_minutes(&waits), 900);
    // It is told to leave after all: then its grace counts.
    let mut leaving = pending(&Arc::new(job.clone()), 201);
    (leaving.uid, leaving.node) = (runs, Some("one".into()));
    leaving.phase = berth_model::spec::Phase::Terminating { by_preemption: false };
    world.process(Event::Pod(leaving));
    assert!(world.eta(&waits).within_ms(950).unwrap() <= 30_000);
}

#[test]
fn higher_priority_starts_first() {
    let mut world = World::new(&[node("one", 1)]);
    let job = spec("job", 1, 0);
    world.lived(&job, 60, 200);
    world.come(&job);
    let first = world.come(&job);
    let before = world.median_minutes(&first);
    let urgent = world.come(&spec("job", 1, 9));
    assert!(world.median_minutes(&urgent) < world.median_minutes(&first));
    assert!(world.median_minutes(&first) > before + 30);
}

#[test]
fn those_who_come_before_it_in_the_queue_are_expected_too() {
    let run = |urgent: bool| {
        let mut world = World::new(&[node("one", 1)]);
        let (job, other) = (spec("job", 1, 0), spec("other", 1, if urgent { 9 } else { -9 }));
        world.lived(&job, 60, 100);
        world.lived(&other, 60, 100);
        let running = world.come(&job);
        let waits = world.come(&job);
        for _ in 0..100 {
            world.now_ms += 30 * MINUTE_MS;
            let uid = world.come(&other);
            world.leave(&uid);
        }
        world.forecaster.expect_end(&running, Some(End::At(world.now_ms + 40 * MINUTE_MS)));
        world.median_minutes(&waits)
    };
    assert_eq!(run(false), 40, "who matters less does not delay it");
    assert!(run(true) > 100, "every half hour one comes that matters more and stays for an hour");
}

#[test]
fn small_pods_that_slip_in_keep_a_large_one_waiting() {
    let run = |crowded: bool| {
        let mut world = World::new(&[node("one", 4)]);
        let small = spec("small", 1, 0);
        world.lived(&small, 60, 200);
        for _ in 0..4 {
            world.come(&small);
        }
        let large = world.come(&spec("large", 4, 0));
        for _ in 0..if crowded { 12 } else { 0 } {
            world.come(&small);
        }
        world.median_minutes(&large)
    };
    assert!((50..=70).contains(&run(false)), "{}", run(false));
    assert!(run(true) > 200, "{}", run(true));
}

#[test]
fn planned_nodes_count_by_their_probability() {
    let mut world = World::new(&[node("one", 1)]);
    let job = spec("job", 1, 0);
    world.lived(&job, 6_000, 200);
    world.come(&job);
    let waits = world.come(&job);
    let planned = |chance_milli| PlannedNode {
        node: node("two", 1),
        earliest_ms: 10 * MINUTE_MS,
        latest_ms: 20 * MINUTE_MS,
        chance_milli,
    };
    world.forecaster.expect_node(planned(1000));
    assert!((13..=17).contains(&world.median_minutes(&waits)));
    world.forecaster.expect_node(planned(300));
    let eta = world.eta(&waits);
    let likely = eta.probability_milli(20 * MINUTE_MS as u64);
    assert!((150..450).contains(&likely), "{likely}");
    world.forecaster.cancel_plan("two");
    assert!(world.median_minutes(&waits) > 1_000);
}

#[test]
fn forecasts_name_what_time_does_not_solve() {
    let mut world = World::new(&[node("one", 2)]);
    let too_large = world.come(&spec("large", 4, 0));
    assert_eq!(world.outlook(&too_large), Outlook::NeedsCapacity(Lack::Size));
    let mut elsewhere = spec("picky", 1, 0);
    elsewhere.node_selector.insert("zone", "nowhere");
    let elsewhere = world.come(&elsewhere);
    assert_eq!(world.outlook(&elsewhere), Outlook::NeedsCapacity(Lack::Match));
    let mut tied = spec("tied", 4, 0);
    tied.node_name = Some("one".into());
    let tied = world.come(&tied);
    assert_eq!(world.outlook(&tied), Outlook::Never { node: "one".into() });
    let mut gated = spec("gated", 1, 0);
    gated.gates.push("review".into());
    let gated = world.come(&gated);
    assert_eq!(world.outlook(&gated), Outlook::Held(Hold::Gates(vec!["review".into()])));
    world.forecaster.hold(&too_large, Some(Hold::Quota("team".into())));
    assert_eq!(world.outlook(&too_large), Outlook::Held(Hold::Quota("team".into())));
    // Capacity is planned, and the quota has room again.
    world.forecaster.hold(&too_large, None);
    let node = node("two", 8);
    let (earliest_ms, latest_ms, chance_milli) = (0, 60_000, 1000);
    world.forecaster.expect_node(PlannedNode { node, earliest_ms, latest_ms, chance_milli });
    assert!(world.eta(&too_large).within_ms(950).unwrap() <= 60_000);
}

#[test]
fn shares_of_a_gpu_wait_for_shares() {
    let mut world = World::new(&[node("one", 1)]);
    let part = |app: &str, compute_milli| {
        let mut spec = spec(app, 0, 0);
        spec.gpu = Some(GpuNeed { memory_bytes: 0, compute_milli });
        spec
    };
    world.lived(&part("short", 400), 10, 100);
    world.lived(&part("long", 500), 300, 100);
    let short = world.come(&part("short", 400));
    world.come(&part("long", 500));
    let small = world.come(&part("small", 450));
    assert!((8..=12).contains(&world.median_minutes(&small)));
    assert_eq!(world.eta(&small).waits_for[0].pod, short);
    let whole = world.come(&spec("whole", 1, 0));
    assert!(world.median_minutes(&whole) > 200, "both have to go");
}

#[test]
fn confidence_grows_with_what_has_been_seen() {
    let mut world = World::new(&[node("one", 1)]);
    let job = spec("job", 1, 0);
    let mut running = world.come(&job);
    let waits = world.come(&job);
    let confidence = world.eta(&waits).confidence;
    assert_eq!(confidence.grade, Grade::Low);
    assert!(confidence.doubts.contains(&Doubt::FewLifetimes(0)));
    let mut next = waits;
    for at in 0..250 {
        let told = world.forecaster.issue(&next, world.now_ms);
        assert!(matches!(told, Some(Forecast { outlook: Outlook::Starts(_), .. })));
        world.now_ms += (20 + at % 21) * MINUTE_MS;
        world.leave(&running);
        running = next;
        next = world.come(&job);
    }
    let eta = world.eta(&next);
    assert_eq!((eta.confidence.grade, eta.confidence.doubts.len()), (Grade::High, 0));
    let (judged, kept) = world.forecaster.reliability().judged_bounds[4];
    let share = kept as f64 / judged as f64;
    assert!(judged > 200 && (0.74..0.88).contains(&share), "{kept} of {judged}");
}

#[test]
fn the_same_past_gives_the_same_forecast_and_undone_bindings_leave_no_trace() {
    let run = |undo: bool| {
        let mut world = World::new(&[node("one", 2), node("two", 1)]);
        let job = spec("job", 1, 0);
        world.lived(&job, 45, 50);
        (0..3).for_each(|_| drop(world.come(&job)));
        if undo {
            // A pod is bound, that fails, and it is bound again.
            let uid: Arc<str> = format!("uid-{:08}", world.pods).into();
            world.engine.undo(&uid);
            world.forecaster.undo_binding(&uid);
            let decision = world.engine.decide(0).unwrap();
            world.forecaster.observe_decision(&decision, 0);
        }
        let waits = world.come(&job);
        world.eta(&waits)
    };
    assert_eq!(run(false), run(false));
    assert_eq!(run(false).within_ms, run(true).within_ms);
}
