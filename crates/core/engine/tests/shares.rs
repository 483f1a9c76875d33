//! GPUs that are split into shares on demand.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use berth_engine::decision::{Binding, Decision};
use berth_engine::event::Event;
use berth_engine::{Engine, Profile};
use berth_kubelet::TopologyPolicy;
use berth_model::alignment::Alignment;
use berth_model::node::Node;
use berth_model::spec::{GpuNeed, PodSpec};
use berth_testkit::cluster::{NodeKind, gpu_template, pending, resources, template};

const GIB: u64 = 1 << 30;

/// A node with GPUs of 80 GiB that are split on demand.
fn divided(name: &str, gpus: u32) -> Node {
    let gpus = gpus.to_string();
    let allocatable =
        [("cpu", "64"), ("memory", "512Gi"), ("pods", "110"), ("nvidia.com/gpu", &gpus)];
    let mut node = Node {
        name: name.into(),
        allocatable: resources(&allocatable).unwrap(),
        ..Node::default()
    };
    node.labels.insert("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3");
    node.labels.insert("nvidia.com/gpu.memory", "81920");
    node.labels.insert("berth.dev/gpu-division", "shares");
    node
}

fn part(memory_gib: u64, compute_milli: u16) -> Arc<PodSpec> {
    let mut spec = template("part", 0, &[("cpu", "1"), ("memory", "1Gi")]).unwrap();
    spec.gpu = Some(GpuNeed { memory_bytes: memory_gib * GIB, compute_milli });
    Arc::new(spec)
}

fn whole(gpus: u32) -> Arc<PodSpec> {
    let limits = [("cpu", "1"), ("memory", "1Gi"), ("nvidia.com/gpu", &gpus.to_string())];
    Arc::new(template("whole", 0, &limits).unwrap())
}

fn bind(engine: &mut Engine, spec: &Arc<PodSpec>, number: u64) -> Option<Binding> {
    engine.apply(Event::Pod(pending(spec, number)));
    match engine.decide(0) {
        Some(Decision::Bind(binding)) => Some(binding),
        _ => None,
    }
}

/// The node and GPU number of a share.
fn place(engine: &mut Engine, spec: &Arc<PodSpec>, number: u64) -> Option<(String, u16)> {
    let binding = bind(engine, spec, number)?;
    Some((binding.node.to_string(), binding.gpu_grant?.gpu?))
}

fn engine(nodes: &[Node]) -> Engine {
    let mut engine = Engine::new(Profile::Berth);
    nodes.iter().for_each(|node| engine.apply(Event::Node(node.clone())));
    engine
}

#[test]
fn shares_fill_one_gpu_before_the_next_is_split() {
    let mut engine = engine(&[divided("one", 2), divided("two", 2)]);
    let (node, gpu) = place(&mut engine, &part(0, 600), 1).unwrap();
    assert_eq!(place(&mut engine, &part(0, 300), 2), Some((node.clone(), gpu)));
    assert_eq!(place(&mut engine, &part(0, 100), 3), Some((node.clone(), gpu)));
    let other = place(&mut engine, &part(0, 100), 4).unwrap();
    assert_ne!(other, (node, gpu), "it is full");
}

#[test]
fn neither_memory_nor_compute_is_shared_twice() {
    let mut engine = engine(&[divided("one", 1)]);
    // No compute is asked for, so it gets as much of it as of the memory.
    assert!(place(&mut engine, &part(40, 0), 1).is_some());
    assert!(place(&mut engine, &part(1, 501), 2).is_none(), "half of the compute is given");
    assert!(place(&mut engine, &part(41, 100), 3).is_none(), "half of the memory is given");
    assert!(place(&mut engine, &part(40, 500), 4).is_some());
    assert!(place(&mut engine, &part(1, 0), 5).is_none());
}

#[test]
fn a_divided_gpu_is_whole_again_when_its_last_share_is_given_back() {
    let mut engine = engine(&[divided("one", 2)]);
    assert!(place(&mut engine, &part(0, 200), 1).is_some());
    assert!(place(&mut engine, &part(0, 200), 2).is_some());
    assert!(bind(&mut engine, &whole(2), 3).is_none(), "one of two is divided");
    engine.apply(Event::PodGone("uid-00000001".into()));
    assert!(engine.decide(1).is_none());
    engine.apply(Event::PodGone("uid-00000002".into()));
    let Some(Decision::Bind(binding)) = engine.decide(1) else { panic!("not bound") };
    assert_eq!(binding.pod.as_ref(), "uid-00000003");
    assert!(place(&mut engine, &part(0, 10), 4).is_none(), "both are given whole");
}

#[test]
fn a_grant_keeps_its_gpu_number() {
    let mut told = engine(&[divided("one", 4)]);
    let mut object = pending(&part(0, 500), 1);
    object.node = Some("one".into());
    let mut first = engine(&[divided("one", 4)]);
    object.gpu_grant = bind(&mut first, &part(0, 500), 1).unwrap().gpu_grant;
    object.gpu_grant.as_mut().unwrap().gpu = Some(2);
    told.apply(Event::Pod(object));
    assert_eq!(place(&mut told, &part(0, 500), 2), Some(("one".into(), 2)));
    assert!(bind(&mut told, &whole(3), 3).is_some());
}

#[test]
fn a_node_that_stops_dividing_its_gpus_gives_no_more_shares() {
    let mut engine = engine(&[divided("one", 2)]);
    assert!(place(&mut engine, &part(0, 200), 1).is_some());
    let mut node = divided("one", 2);
    node.labels.insert("berth.dev/gpu-division", "none");
    engine.apply(Event::Node(node.clone()));
    let binding = bind(&mut engine, &part(0, 200), 2).unwrap();
    assert_eq!(binding.gpu_grant.unwrap().gpu, None, "it gets a whole one");
    engine.apply(Event::Node(divided("one", 2)));
    assert_eq!(place(&mut engine, &part(0, 800), 3), Some(("one".into(), 0)));
}

#[test]
fn important_pods_have_the_fewest_shares_evicted() {
    let mut engine = engine(&[divided("one", 2)]);
    for (number, milli) in [(1, 600), (2, 400), (3, 700), (4, 300)] {
        assert!(place(&mut engine, &part(0, milli), number).is_some());
    }
    let mut important = (*part(0, 650)).clone();
    important.priority = 10;
    engine.apply(Event::Pod(pending(&Arc::new(important), 5)));
    let Some(Decision::Preempt(preempting)) = engine.decide(0) else { panic!("nobody evicted") };
    assert_eq!(preempting.victims, ["uid-00000003".into()]);
    let mut important = (*whole(1)).clone();
    important.priority = 20;
    engine.apply(Event::Pod(pending(&Arc::new(important), 6)));
    let Some(Decision::Preempt(preempting)) = engine.decide(0) else { panic!("nobody evicted") };
    assert!(preempting.victims.len() <= 2, "{preempting:?}");
}

#[test]
fn shares_are_near_the_cpus_and_kubelets_do_not_give_divided_gpus_away_whole() {
    let mut engine = Engine::new(Profile::Berth);
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::SingleNumaNode);
    for event in kind.nodes(0, 1).unwrap() {
        engine.apply(match event {
            Event::Node(mut node) => {
                node.labels.insert("berth.dev/gpu-division", "shares");
                node.labels.insert("nvidia.com/gpu.memory", "81920");
                Event::Node(node)
            }
            other => other,
        });
    }
    let mut on_sockets = Vec::new();
    for number in 0..2 {
        let binding = bind(&mut engine, &part(0, 900), number).unwrap();
        assert_eq!(binding.alignment, Alignment::Aligned, "{binding:?}");
        on_sockets.push(binding.gpu_grant.unwrap().gpu.unwrap() / 4);
    }
    // Both are on one socket, so four GPUs together are left on the other.
    assert_eq!(on_sockets[0], on_sockets[1]);
    let four = Arc::new(gpu_template("four", 0, 4).unwrap());
    let binding = bind(&mut engine, &four, 10).unwrap();
    assert_eq!(binding.alignment, Alignment::Aligned, "{binding:?}");
    let two = Arc::new(gpu_template("two", 0, 2).unwrap());
    assert!(bind(&mut engine, &two, 11).is_some());
    assert!(bind(&mut engine, &two, 12).is_none(), "two of the last four are divided");
}

#[test]
fn a_share_that_could_not_be_bound_is_given_back() {
    let mut engine = engine(&[divided("one", 1)]);
    let binding = bind(&mut engine, &part(0, 600), 1).unwrap();
    let checkpoint = engine.checkpoint();
    engine.undo(&binding.pod);
    engine.apply(Event::PodGone(binding.pod.clone()));
    assert!(bind(&mut engine, &whole(1), 2).is_some());
    engine.rollback(checkpoint);
    assert!(place(&mut engine, &part(0, 400), 3).is_some());
    assert!(place(&mut engine, &part(0, 1), 4).is_none());
}
