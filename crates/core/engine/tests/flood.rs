//! The cost to others of a flood of pods with distinct shapes, in evaluations.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use berth_engine::Engine;
use berth_engine::config::Profile;
use berth_engine::decision::{Decision, Effort, Step};
use berth_engine::event::Event;
use berth_kubelet::TopologyPolicy;
use berth_model::affinity::PodTerm;
use berth_model::label::Selector;
use berth_model::spec::{PodObject, PodSpec};
use berth_testkit::cluster::{NodeKind, ZONE, gpu_template, pending, template};

const NODES: usize = 100;

const SHAPES: usize = 5_000;

/// What one step may look at beside the decision it takes.
const STEP_LOOKS_MAX: u64 = 20_000;

/// Nodes of 8 GPUs with one pod of 7 GPUs each, by name of the node.
fn full_cluster() -> (Engine, Vec<Arc<str>>) {
    let mut engine = Engine::new(Profile::Berth);
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::None);
    kind.nodes(0, NODES).unwrap().into_iter().for_each(|event| engine.apply(event));
    let spec = Arc::new(gpu_template("residents", 100, 7).unwrap());
    let pods = (0..NODES).map(|number| {
        let pod = pending(&spec, number as u64);
        engine.apply(Event::Pod(pod.clone()));
        assert!(matches!(engine.decide(0), Some(Decision::Bind(_))));
        pod.uid
    });
    let pods = pods.collect();
    (engine, pods)
}

/// A pod of a flood; all of one namespace.
fn flooding(number: usize, change: impl Fn(&mut PodSpec)) -> PodObject {
    let memory = format!("{}Mi", number + 1);
    let mut spec = template("flood", 0, &[("cpu", "64"), ("memory", &memory), GPUS]).unwrap();
    spec.namespace = "flood".into();
    change(&mut spec);
    pending(&Arc::new(spec), 1_000_000 + number as u64)
}

const GPUS: (&str, &str) = ("nvidia.com/gpu", "8");

fn flood(engine: &mut Engine, change: impl Fn(&mut PodSpec)) {
    for number in 0..SHAPES {
        engine.apply(Event::Pod(flooding(number, &change)));
    }
    while let Some(decision) = engine.decide(0) {
        assert!(matches!(decision, Decision::Wait { .. }), "{decision:?}");
    }
    assert_eq!(engine.queued(), (SHAPES, SHAPES));
}

fn since(engine: &Engine, before: Effort) -> Effort {
    let Effort { rechecks, looks } = engine.effort();
    Effort { rechecks: rechecks - before.rechecks, looks: looks - before.looks }
}

/// A pod of one GPU comes, another leaves; how much that makes the engine look at.
fn change(engine: &mut Engine, number: u64) -> Effort {
    let before = engine.effort();
    let normal = pending(&Arc::new(gpu_template("normal", 0, 1).unwrap()), 2_000_000 + number);
    engine.apply(Event::Pod(normal.clone()));
    assert!(matches!(engine.decide(0), Some(Decision::Bind(_))));
    assert_eq!(engine.decide(0), None);
    engine.apply(Event::PodGone(normal.uid));
    assert_eq!(engine.decide(0), None);
    since(engine, before)
}

#[test]
fn what_a_change_costs_does_not_follow_from_how_many_shapes_want_more_than_any_node_has_free() {
    let (mut engine, residents) = full_cluster();
    flood(&mut engine, |_| {});
    change(&mut engine, 0);
    for number in 1..10 {
        let cost = change(&mut engine, number);
        assert!(cost.rechecks <= 10 && cost.looks <= 1_000, "{cost:?}");
    }
    // The first of them gets the first node with 8 free GPUs.
    engine.apply(Event::PodGone(residents[3].clone()));
    let Some(Decision::Bind(binding)) = engine.decide(0) else { panic!("nothing is bound") };
    assert_eq!(binding.pod, flooding(0, |_| {}).uid);
}

#[test]
fn what_a_change_costs_does_not_follow_from_how_many_shapes_select_no_node() {
    let (mut engine, _) = full_cluster();
    let nowhere = |spec: &mut PodSpec| {
        spec.node_selector.insert("nowhere", "1");
        spec.pod = template("small", 0, &[("cpu", "1")]).unwrap().pod;
        // Labels alone make classes.
        spec.labels.insert("nowhere", "1");
    };
    for number in 0..SHAPES {
        let mut pod = flooding(number, nowhere);
        let mut spec = (*pod.spec).clone();
        spec.node_selector.insert("number", number.to_string().as_str());
        pod.spec = Arc::new(spec);
        engine.apply(Event::Pod(pod));
    }
    while engine.decide(0).is_some() {}
    change(&mut engine, 0);
    let cost = change(&mut engine, 1);
    assert!(cost.rechecks <= 10 && cost.looks <= 1_000, "{cost:?}");
}

#[test]
fn what_a_change_costs_does_not_follow_from_shapes_for_which_too_little_can_be_evicted() {
    let (mut engine, _) = full_cluster();
    flood(&mut engine, |spec| spec.priority = 10);
    // Each pod of one GPU could be evicted for the flood, which would not help.
    change(&mut engine, 0);
    let cost = change(&mut engine, 1);
    assert!(cost.rechecks <= 10 && cost.looks <= 1_000, "{cost:?}");
}

/// A small pod that has to be in the zone of a pod with a label of its own.
fn needing(number: usize) -> PodObject {
    let mut spec = template("needing", 0, &[("cpu", "1")]).unwrap();
    spec.namespace = "flood".into();
    let labels = [("needed-by", number.to_string())].into_iter().collect();
    spec.pod_affinity.required.push(PodTerm {
        selector: Some(Selector::of_labels(&labels)),
        namespaces: Vec::new(),
        namespace_selector: None,
        topology_key: ZONE.into(),
    });
    pending(&Arc::new(spec), 1_000_000 + number as u64)
}

fn needed(number: usize) -> PodObject {
    let mut spec = template("needed", 0, &[("cpu", "1")]).unwrap();
    spec.namespace = "flood".into();
    spec.labels.insert("needed-by", number.to_string());
    pending(&Arc::new(spec), 3_000_000 + number as u64)
}

fn bound(engine: &mut Engine) -> Vec<Arc<str>> {
    let decisions = std::iter::from_fn(|| engine.decide(0));
    let bound = decisions.filter_map(|decision| match decision {
        Decision::Bind(binding) => Some(binding.pod),
        _ => None,
    });
    bound.collect()
}

#[test]
fn what_a_change_costs_does_not_follow_from_how_many_shapes_need_pods_that_are_nowhere() {
    let (mut engine, _) = full_cluster();
    (0..SHAPES).for_each(|number| engine.apply(Event::Pod(needing(number))));
    assert_eq!(bound(&mut engine), []);
    change(&mut engine, 0);
    for number in 1..10 {
        let cost = change(&mut engine, number);
        assert!(cost.rechecks <= 10 && cost.looks <= 1_000, "{cost:?}");
    }
    let both = |number: usize| [needed(number).uid, needing(number).uid];
    // It comes, and is followed by the pod that needs it, and by no other.
    let before = engine.effort();
    engine.apply(Event::Pod(needed(7)));
    assert_eq!(bound(&mut engine), both(7));
    assert!(since(&engine, before).rechecks <= 10);
    // What is tried out and undone leaves nothing behind, and forgets nothing.
    engine.apply(Event::Pod(needed(8)));
    let checkpoint = engine.checkpoint();
    assert_eq!(bound(&mut engine), both(8));
    engine.apply(Event::Pod(needed(9)));
    engine.apply(Event::PodGone(needing(10).uid));
    engine.apply(Event::Pod(needing(SHAPES)));
    assert_eq!(bound(&mut engine), both(9));
    engine.rollback(checkpoint);
    assert_eq!(bound(&mut engine), both(8));
    for number in [9, 10] {
        engine.apply(Event::Pod(needed(number)));
        assert_eq!(bound(&mut engine), both(number));
    }
    change(&mut engine, 10);
    let cost = change(&mut engine, 11);
    assert!(cost.rechecks <= 10 && cost.looks <= 1_000, "{cost:?}");
}

#[test]
fn one_step_has_a_bound_where_pods_anywhere_matter_and_nothing_is_forgotten() {
    let (mut engine, residents) = full_cluster();
    let apart = |spec: &mut PodSpec| {
        spec.pod_affinity.anti_required.push(PodTerm {
            selector: Some(Selector::of_labels(&[("app", "none")].into_iter().collect())),
            namespaces: Vec::new(),
            namespace_selector: None,
            topology_key: ZONE.into(),
        });
    };
    flood(&mut engine, apart);
    // Every class has to be asked about a node that becomes free, but not in one step.
    engine.apply(Event::PodGone(residents[5].clone()));
    let mut normal = gpu_template("normal", 0, 1).unwrap();
    normal.namespace = "normal".into();
    let normal = pending(&Arc::new(normal), 4_000_000);
    engine.apply(Event::Pod(normal.clone()));
    let mut served = Vec::new();
    let mut steps = 0;
    loop {
        steps += 1;
        let before = engine.effort();
        let step = engine.step(0);
        let cost = since(&engine, before);
        assert!(cost.looks <= STEP_LOOKS_MAX, "step {steps}: {cost:?}");
        match step {
            Step::Decided(Decision::Bind(binding)) => served.push((steps, binding.pod)),
            Step::Decided(_) | Step::Unfinished => {}
            Step::Settled => break,
        }
    }
    // The oldest of the flood gets the node, and a normal pod does not wait for the rest.
    assert_eq!(served[0].1, flooding(0, apart).uid);
    assert!(served.iter().any(|(step, pod)| *pod == normal.uid && *step < 70), "{served:?}");
    assert!(steps > 5, "{steps}");
    assert_eq!(engine.queued(), (SHAPES - 1, SHAPES - 1));
}

#[test]
fn a_namespace_with_many_shapes_does_not_hold_up_others_of_its_priority() {
    let (mut engine, _) = full_cluster();
    for number in 0..SHAPES {
        engine.apply(Event::Pod(flooding(number, |_| {})));
    }
    let normal = pending(&Arc::new(gpu_template("normal", 0, 1).unwrap()), 5_000_000);
    engine.apply(Event::Pod(normal.clone()));
    let mut decisions = std::iter::from_fn(|| engine.decide(0));
    let turn = decisions.position(|decision| match decision {
        Decision::Bind(binding) => binding.pod == normal.uid,
        _ => false,
    });
    assert_eq!(turn, Some(64));
    // All of the flood have their turn after it.
    assert_eq!(decisions.count(), SHAPES - 64);
    // Not before a higher priority.
    for number in 0..SHAPES {
        engine.apply(Event::PodGone(flooding(number, |_| {}).uid));
        engine.apply(Event::Pod(flooding(SHAPES + number, |spec| spec.priority = 5)));
    }
    let normal = pending(&Arc::new(gpu_template("normal", 0, 1).unwrap()), 5_000_001);
    engine.apply(Event::Pod(normal.clone()));
    let last = std::iter::from_fn(|| engine.decide(0)).last();
    assert!(matches!(last, Some(Decision::Bind(binding)) if binding.pod == normal.uid));
}
