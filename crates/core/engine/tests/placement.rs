//! The behaviour of the profile `berth`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use berth_engine::config::UnknownTopology;
use berth_engine::decision::{CancelledEvictions, Decision};
use berth_engine::event::Event;
use berth_engine::{Config, Engine, Profile};
use berth_kubelet::TopologyPolicy;
use berth_model::alignment::Alignment;
use berth_model::label::Labels;
use berth_model::node::Node;
use berth_model::numa::NumaMask;
use berth_model::policy::{Accelerator, AcceleratorMemory};
use berth_model::resource::ResourceName;
use berth_model::spec::{Controller, GpuNeed, Phase, PodObject, PodSpec};
use berth_testkit::cluster::{GPU, NodeKind, gpu_template, pending, resources, spread, template};

const STRICT: TopologyPolicy = TopologyPolicy::SingleNumaNode;

fn cluster(nodes: usize) -> Engine {
    let mut engine = Engine::new(Profile::Berth);
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", STRICT);
    kind.nodes(0, nodes).unwrap().into_iter().for_each(|event| engine.apply(event));
    engine
}

fn gpus(app: &str, priority: i32, count: u32) -> Arc<PodSpec> {
    Arc::new(gpu_template(app, priority, count).unwrap())
}

/// Applies a pod and says what is decided, as `node`, `evict …` or `wait`.
fn decide(engine: &mut Engine, pod: PodObject, now_ms: i64) -> String {
    engine.apply(Event::Pod(pod));
    tell(engine.decide(now_ms))
}

fn tell(decision: Option<Decision>) -> String {
    match decision {
        None => "nothing".to_owned(),
        Some(Decision::Bind(binding)) => binding.node.to_string(),
        Some(Decision::Preempt(preempting)) => format!("evict {}", preempting.victims.join(" ")),
        Some(Decision::Hold { .. }) => "hold".to_owned(),
        Some(Decision::Wait { .. }) => "wait".to_owned(),
        Some(other) => format!("{other:?}"),
    }
}

fn gone(engine: &mut Engine, number: u64) {
    engine.apply(Event::PodGone(format!("uid-{number:08}").into()));
}

/// A leader that has just begun finds a nomination in the API whose victims are leaving.
#[test]
fn a_node_is_not_kept_for_a_pod_whose_victims_went_in_vain() {
    let mut engine = cluster(1);
    let node: Arc<str> = "h100-000000".into();
    let on_node = |pod: PodObject| PodObject { node: Some(node.clone()), ..pod };
    engine.apply(Event::Pod(on_node(pending(&gpus("stays", 1_000, 7), 0))));
    let victim = on_node(pending(&gpus("victim", 0, 1), 1));
    let phase = Phase::Terminating { by_preemption: true };
    engine.apply(Event::Pod(PodObject { phase, ..victim }));
    let provisioning = pending(&gpus("large", 100, 4), 2);
    let provisioning = PodObject { nominated: Some(node.clone()), ..provisioning };
    assert_eq!(decide(&mut engine, provisioning, 0), "wait");
    assert_eq!(decide(&mut engine, pending(&gpus("small", 0, 1), 3), 0), "wait");
    gone(&mut engine, 1);
    assert_eq!([tell(engine.decide(0)), tell(engine.decide(0))], ["wait", "h100-000000"]);
}

/// A victim that stays is not evicted any more, whichever pod came to wait for its room.
#[test]
fn a_victim_that_stays_is_waited_for_by_no_pod() {
    let mut engine = cluster(1);
    let node: Arc<str> = "h100-000000".into();
    let on_node = |pod: PodObject| PodObject { node: Some(node.clone()), ..pod };
    engine.apply(Event::Pod(on_node(pending(&gpus("stays", 1_000, 4), 0))));
    engine.apply(Event::Pod(on_node(pending(&gpus("victim", 0, 4), 1))));
    let evict = "evict uid-00000001";
    assert_eq!(decide(&mut engine, pending(&gpus("first", 10, 4), 2), 0), evict);
    // It counts on the same victim, and takes the place of the first.
    assert_eq!(decide(&mut engine, pending(&gpus("second", 100, 4), 3), 0), "evict ");
    let spared = engine.cancel_eviction(&"uid-00000001".into());
    assert_eq!(spared.pending, ["uid-00000003".into()]);
    assert_eq!(spared.staying, ["uid-00000001".into()]);
    assert_eq!(engine.cancel_eviction(&"uid-00000001".into()), CancelledEvictions::default());
    gone(&mut engine, 3);
    // Nothing of this is left to keep the node from others.
    assert_eq!(tell(engine.decide(1)), evict);
}

#[test]
fn replicas_that_prefer_hosts_of_their_own_get_them_however_many_they_are() {
    let mut engine = cluster(150);
    let own = gpu_template("own", 0, 1).unwrap();
    let own = Arc::new(spread(own, "kubernetes.io/hostname", 1, false));
    let mut nodes: Vec<String> =
        (0..150).map(|number| decide(&mut engine, pending(&own, number), 0)).collect();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), 150);
}

#[test]
fn pods_are_packed_so_that_sockets_stay_whole() {
    let mut engine = cluster(2);
    let (one, four) = (gpus("one", 0, 1), gpus("four", 0, 4));
    for number in 0..4 {
        decide(&mut engine, pending(&one, number), 0);
    }
    // Four pods of one GPU fill one socket, so three of four GPUs fit beside them.
    for number in 4..7 {
        assert!(decide(&mut engine, pending(&four, number), 0).starts_with("h100-"));
    }
    assert_eq!(decide(&mut engine, pending(&one, 7), 0), "wait");
}

#[test]
fn a_pod_the_kubelet_would_reject_waits() {
    let mut engine = cluster(1);
    // Three on each socket: two are free, but one on each.
    for number in 0..2 {
        decide(&mut engine, pending(&gpus("three", 0, 3), number), 0);
    }
    assert_eq!(decide(&mut engine, pending(&gpus("two", 0, 2), 2), 0), "wait");
    assert_eq!(decide(&mut engine, pending(&gpus("one", 0, 1), 3), 0), "h100-000000");
}

#[test]
fn a_need_gets_the_smallest_sufficient_part_on_any_board() {
    let whole = "nvidia.com/gpu";
    let boards = [
        ("a100", "NVIDIA-A100-SXM4-80GB", vec![("nvidia.com/mig-2g.20gb", 2), (whole, 1)]),
        ("h100", "NVIDIA-H100-80GB-HBM3", vec![("nvidia.com/mig-1g.10gb", 4), (whole, 1)]),
        ("h200", "NVIDIA-H200", vec![("nvidia.com/mig-1g.18gb", 2), (whole, 1)]),
    ];
    let mut spec = template("small", 0, &[("cpu", "2"), ("memory", "8Gi")]).unwrap();
    spec.gpu = Some(GpuNeed { memory_bytes: 16_000_000_000, compute_milli: 100 });
    let spec = Arc::new(spec);
    for (pool, product, devices) in boards {
        let mut engine = Engine::new(Profile::Berth);
        let smallest = devices[0];
        let kind = NodeKind { pool, product, policy: STRICT, devices };
        kind.nodes(0, 1).unwrap().into_iter().for_each(|event| engine.apply(event));
        engine.apply(Event::Pod(pending(&spec, 1)));
        let Some(Decision::Bind(binding)) = engine.decide(0) else { panic!("{pool}: not bound") };
        let grant = binding.gpu_grant.unwrap().resource.to_string();
        // A slice of 10 GB is too small, so on that node the need is met by a whole GPU.
        let expected = if pool == "h100" { whole } else { smallest.0 };
        assert_eq!(grant, expected, "{pool}");
        assert_eq!(binding.alignment, Alignment::Aligned);
    }
}

#[test]
fn a_need_gets_another_vendors_device_described_by_an_accelerator() {
    let mut engine = Engine::new(Profile::Berth);
    let allocatable = resources(&[("cpu", "64"), ("memory", "256Gi"), ("pods", "110")]).unwrap();
    let mut node = Node { name: "mi300x".into(), allocatable, ..Node::default() };
    node.allocatable.extend(resources(&[("amd.com/gpu", "8")]).unwrap());
    engine.apply(Event::Node(node));
    let mut spec = template("small", 0, &[("cpu", "2"), ("memory", "8Gi")]).unwrap();
    spec.gpu = Some(GpuNeed { memory_bytes: 16_000_000_000, compute_milli: 0 });
    assert_eq!(decide(&mut engine, pending(&Arc::new(spec), 1), 0), "wait");
    let resource = ResourceName::new("amd.com/gpu");
    let memory = AcceleratorMemory::Bytes(192_000_000_000);
    engine.apply(Event::Accelerator(Accelerator { resource, memory, compute_milli: 1000 }));
    let Some(Decision::Bind(binding)) = engine.decide(1) else { panic!("not bound") };
    assert_eq!(binding.gpu_grant.unwrap().resource.as_str(), "amd.com/gpu");
}

#[test]
fn evictions_free_one_socket_with_the_fewest_victims() {
    let mut engine = cluster(1);
    for number in 0..4 {
        decide(&mut engine, pending(&gpus("one", 0, 1), number), 0);
    }
    decide(&mut engine, pending(&gpus("four", 0, 4), 4), 0);
    let urgent = gpus("urgent", 100, 4);
    assert_eq!(decide(&mut engine, pending(&urgent, 9), 0), "evict uid-00000004");
    gone(&mut engine, 4);
    assert_eq!(tell(engine.decide(1)), "h100-000000");
}

#[test]
fn no_eviction_is_superfluous() {
    let mut engine = cluster(1);
    // Each socket has a pod that stays; evicting the others frees two on each, never four.
    for number in 0..2 {
        decide(&mut engine, pending(&gpus("stays", 100, 2), number), 0);
        decide(&mut engine, pending(&gpus("goes", 0, 2), 2 + number), 0);
    }
    assert_eq!(decide(&mut engine, pending(&gpus("urgent", 100, 4), 9), 0), "wait");
    assert_eq!(decide(&mut engine, pending(&gpus("smaller", 100, 2), 10), 0).len(), 18);
}

#[test]
fn room_freed_by_evictions_is_kept_for_the_preemptor() {
    let mut engine = cluster(1);
    decide(&mut engine, pending(&gpus("four", 0, 4), 0), 0);
    decide(&mut engine, pending(&gpus("other", 50, 4), 1), 0);
    let urgent = gpus("urgent", 100, 4);
    assert_eq!(decide(&mut engine, pending(&urgent, 9), 0), "evict uid-00000000");
    assert_eq!(decide(&mut engine, pending(&gpus("sneak", 40, 1), 10), 0), "wait");
    gone(&mut engine, 0);
    assert_eq!(tell(engine.decide(1)), "h100-000000");
    assert_eq!(tell(engine.decide(1)), "nothing");
}

#[test]
fn a_pod_bound_by_someone_else_onto_reserved_room_makes_the_preemptor_look_again() {
    let mut engine = cluster(2);
    for number in 0..4 {
        decide(&mut engine, pending(&gpus("four", 0, 4), number), 0);
    }
    let urgent = gpus("urgent", 100, 4);
    let evicted = decide(&mut engine, pending(&urgent, 9), 0);
    let victim: u64 = evicted.strip_prefix("evict uid-").unwrap().parse().unwrap();
    let node = node_of(&engine, victim);
    gone(&mut engine, victim);
    let mut thief = pending(&gpus("thief", 200, 4), 10);
    thief.node = Some(node.as_str().into());
    engine.apply(Event::Pod(thief));
    let again = tell(engine.decide(1));
    assert!(again.starts_with("evict"), "{again}");
}

#[test]
fn replacements_of_evicted_pods_have_a_cooldown() {
    let config = Config { eviction_cooldown_ms: 1_000, ..Config::default() };
    let mut engine = Engine::new(config);
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", STRICT);
    kind.nodes(0, 1).unwrap().into_iter().for_each(|event| engine.apply(event));
    let mut batch = gpu_template("batch", 0, 4).unwrap();
    batch.controller = Some(Controller { kind: "Job".into(), name: "train".into() });
    let batch = Arc::new(batch);
    let urgent = gpus("urgent", 100, 4);
    decide(&mut engine, pending(&batch, 0), 0);
    decide(&mut engine, pending(&gpus("other", 100, 4), 1), 0);
    assert_eq!(decide(&mut engine, pending(&urgent, 2), 10), "evict uid-00000000");
    gone(&mut engine, 0);
    assert_eq!(tell(engine.decide(10)), "h100-000000");
    // The urgent pod ends, the batch pod comes back, and another urgent pod arrives.
    gone(&mut engine, 2);
    assert_eq!(decide(&mut engine, pending(&batch, 20), 20), "h100-000000");
    assert_eq!(decide(&mut engine, pending(&urgent, 21), 21), "wait");
    assert_eq!(tell(engine.decide(1_009)), "nothing");
    assert_eq!(tell(engine.decide(1_010)), "evict uid-00000020");
}

#[test]
fn a_parked_pod_is_rechecked_only_when_its_blocker_goes() {
    let mut engine = cluster(2);
    let four = gpus("four", 0, 4);
    for number in 0..4 {
        decide(&mut engine, pending(&four, number), 0);
    }
    let mut picky = gpu_template("picky", 0, 1).unwrap();
    picky.node_selector =
        [("kubernetes.io/hostname", "h100-000001")].into_iter().collect::<Labels>();
    assert_eq!(decide(&mut engine, pending(&Arc::new(picky), 9), 0), "wait");
    assert_eq!(tell(engine.decide(0)), "nothing");
    let on_first: Vec<u64> =
        (0..4).filter(|number| node_of(&engine, *number) == "h100-000000").collect();
    gone(&mut engine, on_first[0]);
    assert_eq!(tell(engine.decide(0)), "nothing");
    let on_second: Vec<u64> =
        (0..4).filter(|number| node_of(&engine, *number) == "h100-000001").collect();
    gone(&mut engine, on_second[0]);
    assert_eq!(tell(engine.decide(0)), "h100-000001");
}

fn node_of(engine: &Engine, number: u64) -> String {
    let node = engine.node_of(&format!("uid-{number:08}"));
    node.map_or(String::new(), |node| node.to_string())
}

#[test]
fn nodes_of_unknown_topology_come_last_or_not_at_all() {
    let allocatable =
        resources(&[("cpu", "126"), ("memory", "2047Gi"), ("pods", "110"), (GPU, "8")]).unwrap();
    let unknown = Node { name: "unknown".into(), allocatable, ..Node::default() };
    let one = gpus("one", 0, 8);
    let mut restricted = NodeKind::whole("h200", "NVIDIA-H200", TopologyPolicy::Restricted);
    restricted.pool = "known";
    for (rule, then) in [(UnknownTopology::Last, "unknown"), (UnknownTopology::Refuse, "wait")] {
        let mut engine = Engine::new(Config { unknown_topology: rule, ..Config::default() });
        engine.apply(Event::Node(unknown.clone()));
        restricted.nodes(0, 1).unwrap().into_iter().for_each(|event| engine.apply(event));
        engine.apply(Event::Pod(pending(&one, 0)));
        let Some(Decision::Bind(first)) = engine.decide(0) else { panic!("not bound") };
        assert_eq!(first.node.as_ref(), "known-000000");
        assert_eq!((first.alignment, first.numa), (Alignment::Aligned, Some(NumaMask::first(2))));
        assert_eq!(decide(&mut engine, pending(&one, 1), 0), then);
    }
}

#[test]
fn gated_and_leaving_pods_are_not_decided_about() {
    let mut engine = cluster(1);
    let mut gated = gpu_template("gated", 0, 1).unwrap();
    gated.gates = vec!["example.com/later".into()];
    let mut open = gated.clone();
    open.gates.clear();
    assert_eq!(decide(&mut engine, pending(&Arc::new(gated), 0), 0), "nothing");
    let mut leaving = pending(&Arc::new(open.clone()), 1);
    leaving.phase = Phase::Terminating { by_preemption: false };
    assert_eq!(decide(&mut engine, leaving, 0), "nothing");
    assert_eq!(decide(&mut engine, pending(&Arc::new(open), 0), 0), "h100-000000");
}

#[test]
fn a_failed_decision_is_undone_and_made_again() {
    let mut engine = cluster(1);
    let eight = gpus("four", 0, 4);
    decide(&mut engine, pending(&eight, 0), 0);
    // An older event does not undo the decision.
    engine.apply(Event::Pod(pending(&eight, 0)));
    assert_eq!(tell(engine.decide(0)), "nothing");
    engine.undo(&"uid-00000000".into());
    assert_eq!(tell(engine.decide(0)), "h100-000000");
}
