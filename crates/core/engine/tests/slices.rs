//! MIG slices, and repartitioning for pending pods.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use berth_engine::decision::{Binding, Decision};
use berth_engine::event::Event;
use berth_engine::explain::{Explanation, Remedy, render};
use berth_engine::repartition::{GpuLayoutChange, RepartitionProposal, Terms, Touch};
use berth_engine::{Engine, Profile};
use berth_kubelet::NodeTopology;
use berth_model::device::PreferredAllocation;
use berth_model::spec::{Controller, GpuNeed, PodObject, PodSpec};
use berth_model::workload::{Headroom, WorkloadClass};
use berth_testkit::cluster::{SlicedNode, pending, sliced_node, template};

const SEVENTHS: &str =
    "1g.10gb@0 + 1g.10gb@1 + 1g.10gb@2 + 1g.10gb@3 + 1g.10gb@4 + 1g.10gb@5 + 1g.10gb@6";
const HALVES: &str = "3g.40gb@0 + 3g.40gb@4";

fn engine(nodes: &[SlicedNode]) -> Engine {
    let mut engine = Engine::new(Profile::Berth);
    for node in nodes {
        node.events().unwrap().into_iter().for_each(|event| engine.apply(event));
    }
    engine
}

/// Pods of a Job that ask for slices of a profile.
fn slices(profile: &str, count: u32) -> PodSpec {
    let resource = format!("nvidia.com/mig-{profile}");
    let limits = [("cpu", "1"), ("memory", "1Gi"), (&resource, &count.to_string())];
    let mut spec = template(profile, 0, &limits).unwrap();
    spec.controller = Some(Controller { kind: "Job".into(), name: "batch".into() });
    spec
}

fn part(memory_gib: u64, compute_milli: u16) -> PodSpec {
    let mut spec = template("part", 0, &[("cpu", "1"), ("memory", "1Gi")]).unwrap();
    spec.gpu = Some(GpuNeed { memory_bytes: memory_gib << 30, compute_milli });
    spec
}

fn pod(spec: &PodSpec, number: u64) -> PodObject {
    pending(&Arc::new(spec.clone()), number)
}

/// A pod that runs on a node, since longer the lower its number.
fn running(spec: &PodSpec, number: u64, node: &str) -> Event {
    let started_at_ms = Some(number as i64);
    Event::Pod(PodObject { node: Some(node.into()), started_at_ms, ..pod(spec, number) })
}

fn bind(engine: &mut Engine, spec: &PodSpec, number: u64) -> Option<Binding> {
    engine.apply(Event::Pod(pod(spec, number)));
    match engine.decide(0) {
        Some(Decision::Bind(binding)) => Some(binding),
        _ => None,
    }
}

fn wait(engine: &mut Engine, spec: &PodSpec, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        engine.apply(Event::Pod(pod(spec, number)));
    }
    while let Some(decision) = engine.decide(0) {
        assert!(matches!(decision, Decision::Wait { .. }), "{decision:?}");
    }
}

/// Tells what becomes of nodes when a proposal is carried out.
fn carry_out(engine: &mut Engine, nodes: &[SlicedNode], steps: &[GpuLayoutChange]) {
    for node in nodes {
        let own = steps.iter().filter(|step| *step.node == *node.name);
        let own: Vec<_> = own.map(|step| (step.gpu, step.to)).collect();
        if own.is_empty() {
            continue;
        }
        let after: NodeTopology = node.topology().unwrap().repartitioned(&own).unwrap();
        let events = sliced_node(node.name, node.product, Arc::new(after));
        events.into_iter().for_each(|event| engine.apply(event));
    }
}

/// Pods that are bound until nothing can be decided any more.
fn bound(engine: &mut Engine) -> Vec<(String, String)> {
    let mut all = Vec::new();
    while let Some(decision) = engine.decide(0) {
        if let Decision::Bind(binding) = decision {
            all.push((binding.pod.to_string(), binding.node.to_string()));
        }
    }
    all
}

fn admitted(proposal: &RepartitionProposal) -> Vec<(String, String)> {
    let tell =
        |one: &berth_engine::repartition::Admitted| (one.pod.to_string(), one.node.to_string());
    proposal.admits.iter().map(tell).collect()
}

#[test]
fn an_idle_gpu_is_repartitioned_and_the_proposal_holds() {
    let nodes = [SlicedNode::a100("one", &[SEVENTHS, SEVENTHS])];
    let mut engine = engine(&nodes);
    engine.apply(running(&slices("1g.10gb", 1), 1, "one"));
    wait(&mut engine, &slices("3g.40gb", 1), 10..13);
    let proposal = engine.repartition(&Terms::default(), 0).unwrap();
    assert_eq!(proposal.steps.len(), 1, "{proposal:?}");
    assert_eq!(proposal.steps[0].gpu, 1, "work runs on the first");
    assert_eq!(proposal.admits.len(), 2, "two fit on one GPU");
    let disturbance = proposal.disturbance;
    assert_eq!((disturbance.gpus, disturbance.gpus_with_work, disturbance.nodes), (1, 0, 1));
    assert_eq!((disturbance.slices_destroyed, disturbance.slices_created), (7, 2));
    assert_eq!(disturbance.duration_ms, 30_000 + 9 * 1_000);
    assert!(engine.decide(0).is_none(), "nothing has been carried out");
    carry_out(&mut engine, &nodes, &proposal.steps);
    assert_eq!(bound(&mut engine), admitted(&proposal));
}

#[test]
fn pods_keep_their_slices_across_a_repartition() {
    // The work is on the second GPU, since both slices of the first were taken when it came.
    let nodes = [SlicedNode::a100("one", &["1g.10gb@0 + 1g.10gb@1", SEVENTHS])];
    let mut engine = engine(&nodes);
    let small = slices("1g.10gb", 1);
    for number in 1..=3 {
        engine.apply(running(&small, number, "one"));
    }
    for number in 1..=2 {
        engine.apply(Event::PodGone(format!("uid-{number:08}").into()));
    }
    let large = slices("7g.80gb", 1);
    wait(&mut engine, &large, [10]);
    let proposal = engine.repartition(&Terms::default(), 0).unwrap();
    assert_eq!(proposal.steps[0].gpu, 0, "{proposal:?}");
    carry_out(&mut engine, &nodes, &proposal.steps);
    assert_eq!(bound(&mut engine).len(), 1);
    // The first is divided into sevenths again; the pod is still on the second.
    engine.apply(Event::PodGone("uid-00000010".into()));
    carry_out(
        &mut engine,
        &nodes,
        &[GpuLayoutChange { to: proposal.steps[0].from, ..proposal.steps[0].clone() }],
    );
    wait(&mut engine, &large, [11]);
    let again = engine.repartition(&Terms::default(), 0).unwrap();
    assert_eq!(again.steps[0].gpu, 0, "{again:?}");
}

#[test]
fn a_slice_that_a_pod_may_hold_is_left_alone() {
    for (preferred, spared) in
        [(PreferredAllocation::LowestId, true), (PreferredAllocation::Unpredictable, false)]
    {
        let node = SlicedNode { preferred, ..SlicedNode::a100("one", &[HALVES, HALVES]) };
        let mut engine = engine(&[node]);
        engine.apply(running(&slices("3g.40gb", 1), 1, "one"));
        wait(&mut engine, &slices("7g.80gb", 1), [10]);
        let proposal = engine.repartition(&Terms::default(), 0);
        assert_eq!(proposal.is_some(), spared, "{preferred:?}");
    }
}

#[test]
fn running_pods_are_not_touched_unless_the_terms_allow_it() {
    let nodes = [SlicedNode::a100("one", &[SEVENTHS]), SlicedNode::a100("two", &["1g.10gb@0"])];
    let mut engine = engine(&nodes);
    engine.apply(running(&slices("1g.10gb", 1), 1, "one"));
    wait(&mut engine, &slices("3g.40gb", 1), [10, 11]);
    // The idle GPU of the other node serves both.
    let idle = engine.repartition(&Terms::default(), 0).unwrap();
    assert_eq!(idle.steps.iter().map(|step| &*step.node).collect::<Vec<_>>(), ["two"]);
    wait(&mut engine, &slices("3g.40gb", 1), [12]);
    let around = Terms { touch: Touch::AroundWork, ..Terms::default() };
    let around = engine.repartition(&around, 0).unwrap();
    assert_eq!((around.admits.len(), around.disturbance.gpus_with_work), (3, 1), "{around:?}");
    assert!(around.moves.is_empty());
    // A whole GPU more is there only if the pod goes to the other node.
    engine.apply(Event::PodGone("uid-00000012".into()));
    for number in [10, 11] {
        engine.apply(Event::PodGone(format!("uid-{number:08}").into()));
    }
    engine.apply(running(&slices("1g.10gb", 1), 2, "two"));
    wait(&mut engine, &slices("7g.80gb", 1), [20]);
    assert_eq!(engine.repartition(&Terms::default(), 0), None);
    let moving = Terms { touch: Touch::MovablePods, moves_max: 1, ..Terms::default() };
    let moved = engine.repartition(&moving, 0).unwrap();
    assert_eq!((moved.moves.len(), &*moved.moves[0].to), (1, "one"), "{moved:?}");
    assert_eq!(engine.repartition(&Terms { moves_max: 0, ..moving }, 0), None);
}

#[test]
fn a_gpu_is_repartitioned_for_a_part_of_a_gpu() {
    let nodes = [SlicedNode::a100("one", &[SEVENTHS])];
    let mut engine = engine(&nodes);
    wait(&mut engine, &part(30, 400), [10]);
    let proposal = engine.repartition(&Terms::default(), 0).unwrap();
    assert!(proposal.steps[0].to.to_string().contains("3g.40gb"), "{proposal:?}");
    carry_out(&mut engine, &nodes, &proposal.steps);
    let Some(Decision::Bind(binding)) = engine.decide(0) else { panic!("not bound") };
    assert_eq!(binding.gpu_grant.unwrap().resource.as_str(), "nvidia.com/mig-3g.40gb");
}

#[test]
fn no_proposal_without_an_admitted_pod() {
    let nodes = [SlicedNode::a100("one", &[SEVENTHS])];
    let mut engine = engine(&nodes);
    let mut elsewhere = slices("3g.40gb", 1);
    elsewhere.node_selector.insert("zone", "other");
    let mut large = slices("3g.40gb", 1);
    large.pod.containers[0].resources.requests.insert("cpu".into(), "200".parse().unwrap());
    wait(&mut engine, &elsewhere, [10]);
    wait(&mut engine, &large, [11]);
    wait(&mut engine, &slices("9g.80gb", 1), [12]);
    assert_eq!(engine.repartition(&Terms::default(), 0), None);
}

#[test]
fn a_repartition_does_not_break_headroom() {
    let nodes = [SlicedNode::a100("one", &[SEVENTHS])];
    let mut engine = engine(&nodes);
    engine.apply(Event::Headroom(Headroom {
        name: "warm".into(),
        class: WorkloadClass::Interactive,
        template: Arc::new(slices("1g.10gb", 1)),
        count: 1,
    }));
    wait(&mut engine, &slices("7g.80gb", 1), [10]);
    assert_eq!(engine.repartition(&Terms::default(), 0), None);
    engine.apply(Event::HeadroomGone("warm".into()));
    wait(&mut engine, &slices("7g.80gb", 1), [11]);
    assert!(engine.repartition(&Terms::default(), 0).is_some());
}

#[test]
fn gpus_without_slices_get_a_first_layout() {
    let nodes = [SlicedNode::a100("one", &["", ""]), SlicedNode::a100("two", &[HALVES])];
    let mut engine = engine(&nodes);
    assert_eq!(engine.first_slices(), [], "nobody wants any");
    let (small, large) = (slices("2g.20gb", 1), slices("7g.80gb", 1));
    wait(&mut engine, &small, 1..4);
    wait(&mut engine, &large, [4]);
    let first = engine.first_slices();
    let to: Vec<String> = first.iter().map(|step| step.to.to_string()).collect();
    assert_eq!(to, ["7g.80gb@0", "2g.20gb@0 + 2g.20gb@2 + 2g.20gb@4"].map(String::from));
    // The plugin offers nothing while one of them has no slices, so both are divided.
    let proposal = engine.repartition(&Terms::default(), 0).unwrap();
    assert_eq!(proposal.admits.len(), 4, "{proposal:?}");
    carry_out(&mut engine, &nodes, &proposal.steps);
    assert_eq!(bound(&mut engine).len(), 4);
}

#[test]
fn repartition_remedies_are_correct() {
    let nodes = [SlicedNode::a100("one", &[SEVENTHS, SEVENTHS])];
    let mut engine = engine(&nodes);
    engine.apply(running(&slices("1g.10gb", 1), 1, "one"));
    wait(&mut engine, &slices("4g.40gb", 1), [10]);
    let explanation = engine.explain("uid-00000010", 0).unwrap();
    let Explanation::Waiting { remedies, .. } = &explanation else { panic!("{explanation:?}") };
    let repartition = remedies.iter().find_map(|remedy| match remedy {
        Remedy::Repartition { steps, .. } => Some(steps.clone()),
        _ => None,
    });
    let text = render(&explanation);
    assert!(text.contains("on one after repartitioning its GPU 1 to 4g.40gb@0"), "{text}");
    carry_out(&mut engine, &nodes, &repartition.unwrap());
    assert_eq!(bound(&mut engine).len(), 1);
}

#[test]
fn the_smallest_sufficient_slice_is_granted() {
    let nodes = [
        SlicedNode::a100("halves", &[HALVES]),
        SlicedNode::a100("mixed", &["3g.40gb@4 + 2g.20gb@0 + 1g.10gb@2"]),
        SlicedNode::a100("sevenths", &["1g.10gb@0 + 1g.10gb@1"]),
    ];
    let mut engine = engine(&nodes);
    let mut given = |memory_gib, number| {
        let binding = bind(&mut engine, &part(memory_gib, 0), number).unwrap();
        let resource = binding.gpu_grant.unwrap().resource;
        resource.as_str().trim_start_matches("nvidia.com/mig-").to_owned()
    };
    let small: Vec<String> = (1..=3).map(|number| given(8, number)).collect();
    assert_eq!(small, ["1g.10gb", "1g.10gb", "1g.10gb"]);
    assert_eq!(given(8, 4), "2g.20gb", "the small ones are gone");
    assert_eq!(given(30, 5), "3g.40gb");
}
