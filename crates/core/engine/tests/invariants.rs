//! The laws of decisions, over arbitrary worlds: a checker with books of its own watches every one.
//! `cargo xtask sweep engine` runs more worlds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use berth_engine::Config;
use berth_engine::config::{Profile, UnknownTopology};
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_kubelet::TopologyPolicy;
use berth_model::affinity::PodTerm;
use berth_model::label::Selector;
use berth_model::spec::{Controller, GpuNeed, HostPort, Phase, PodObject, PodSpec, Protocol};
use berth_testkit::cluster::{
    GPU, NodeKind, ZONE, gpu_template, pending, resources, spread, template,
};
use berth_testkit::world::{Size, Watched, breaks_a_law, gives_parts_wrongly, proposes_wrongly};

const HOSTNAME: &str = "kubernetes.io/hostname";

const SIZE: Size = Size { nodes: 12, rounds: 25 };

fn assert_kept(seeds: std::ops::Range<u64>, size: Size, config: Config) {
    let broken = seeds.filter_map(|seed| breaks_a_law(seed, size, config).unwrap());
    let broken: Vec<String> = broken.collect();
    assert!(broken.is_empty(), "{} worlds break a law:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn the_laws_hold_in_arbitrary_worlds() {
    assert_kept(0..150, SIZE, Config::default());
}

#[test]
fn the_laws_hold_in_other_arbitrary_worlds() {
    assert_kept(150..300, SIZE, Config::default());
}

#[test]
fn the_laws_hold_where_unknown_topologies_are_refused() {
    let config = Config { unknown_topology: UnknownTopology::Refuse, ..Config::default() };
    assert_kept(1_000..1_050, SIZE, config);
}

#[test]
fn the_laws_hold_for_the_rules_of_kube_scheduler() {
    assert_kept(2_000..2_060, SIZE, Profile::KubeScheduler.into());
}

#[test]
fn no_share_and_no_claimed_slice_is_given_twice_or_withheld() {
    let give = |seed| gives_parts_wrongly(seed, SIZE, Config::default()).unwrap();
    let corrections: Vec<String> = (0..60).filter_map(give).collect();
    assert!(corrections.is_empty(), "{} worlds:\n{}", corrections.len(), corrections.join("\n"));
}

#[test]
fn repartition_proposals_hold_and_leave_no_trace() {
    let corrections =
        (3_000..3_060).filter_map(|seed| proposes_wrongly(seed, SIZE, Config::default()).unwrap());
    let corrections: Vec<String> = corrections.collect();
    assert!(corrections.is_empty(), "{} worlds:\n{}", corrections.len(), corrections.join("\n"));
}

/// A node with two NUMA nodes of 4 GPUs each and the policy single-numa-node.
fn strict_node(index: usize) -> Vec<Event> {
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::SingleNumaNode);
    kind.nodes(index, 1).unwrap()
}

fn watched(nodes: impl IntoIterator<Item = Event>) -> Watched {
    let mut watched = Watched::new(Config::default());
    nodes.into_iter().for_each(|event| watched.tell(event));
    watched
}

/// A pod that asks for GPUs, created at a time, which also names it.
fn gpu_pod(created_at_ms: u64, priority: i32, gpus: u32) -> PodObject {
    let spec = gpu_template(&format!("app-{created_at_ms}"), priority, gpus).unwrap();
    pending(&Arc::new(spec), created_at_ms)
}

fn assert_lawful(watched: &Watched) {
    let violations: Vec<String> = watched.violations().iter().map(ToString::to_string).collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// A node with pods that were bound in another order than they were created: 3 and 1 GPUs on one
/// NUMA node, 2 and 1 on the other. Were they taken in the order of creation, one NUMA node would
/// have all but the first of them.
fn node_with_pods() -> (Watched, PodObject) {
    pods_on(strict_node(0))
}

fn pods_on(node: Vec<Event>) -> (Watched, PodObject) {
    let mut watched = watched(node);
    let pods = [(3, 40, 3), (4, 30, 1), (2, 20, 2), (1, 10, 1)];
    let pods = pods.map(|(created_at_ms, priority, gpus)| gpu_pod(created_at_ms, priority, gpus));
    pods.iter().for_each(|pod| watched.tell(Event::Pod(pod.clone())));
    assert_eq!(watched.settle(0).len(), 4);
    let [mut first, ..] = pods;
    first.node = Some("h100-000000".into());
    (watched, first)
}

/// The pod of 3 GPUs goes, and one of 4 comes: no NUMA node has as many.
fn assert_still_knows_the_kubelet(mut watched: Watched) {
    watched.tell(Event::PodGone(gpu_pod(3, 0, 3).uid));
    watched.tell(Event::Pod(gpu_pod(9, 0, 4)));
    watched.settle(1);
    assert_lawful(&watched);
}

#[test]
fn the_mirror_is_trusted_after_its_topology_arrives_again() {
    let node = strict_node(0);
    let (mut watched, _) = pods_on(node.clone());
    node.into_iter().for_each(|event| watched.tell(event));
    assert_still_knows_the_kubelet(watched);
}

#[test]
fn the_mirror_is_trusted_after_a_pod_is_relabelled() {
    let (mut watched, mut pod) = node_with_pods();
    let mut spec = (*pod.spec).clone();
    spec.labels.insert("tier", "front");
    pod.spec = Arc::new(spec);
    watched.tell(Event::Pod(pod));
    assert_still_knows_the_kubelet(watched);
}

#[test]
fn the_mirror_is_trusted_after_a_foreign_binding() {
    let (mut watched, pod) = node_with_pods();
    let spec = Arc::new(template("agent", 0, &[]).unwrap());
    let agent = PodObject { node: pod.node, started_at_ms: Some(5), ..pending(&spec, 5) };
    watched.tell(Event::Pod(agent));
    assert_still_knows_the_kubelet(watched);
}

#[test]
fn the_mirror_is_trusted_after_a_foreign_pod_was_rejected() {
    let (mut watched, pod) = node_with_pods();
    let mut rejected = PodObject { node: pod.node, started_at_ms: Some(5), ..gpu_pod(5, 0, 4) };
    watched.tell(Event::Pod(rejected.clone()));
    rejected.phase = Phase::Finished;
    watched.tell(Event::Pod(rejected));
    assert_still_knows_the_kubelet(watched);
}

#[test]
fn the_mirror_forgets_a_pod_whose_binding_failed() {
    let mut watched = watched(strict_node(0));
    let failing = gpu_pod(1, 0, 3);
    for pod in [failing.clone(), gpu_pod(2, 0, 2), gpu_pod(3, 0, 1), gpu_pod(4, 0, 2)] {
        watched.tell(Event::Pod(pod));
    }
    assert_eq!(watched.settle(0).len(), 4);
    // Without the first, the second and the third share a NUMA node, and the fourth is on the
    // other.
    watched.undo(&failing.uid);
    watched.settle(1);
    assert_lawful(&watched);
}

#[test]
fn a_failed_binding_is_not_a_departure() {
    let mut watched = watched(strict_node(0));
    let gone = gpu_pod(1, 0, 4);
    watched.tell(Event::Pod(gone.clone()));
    watched.tell(Event::Pod(gpu_pod(2, 0, 2)));
    watched.settle(0);
    watched.tell(Event::Pod(PodObject { node: Some("h100-000000".into()), ..gone.clone() }));
    watched.tell(Event::PodGone(gone.uid));
    // It may take the place of the one before in a table.
    let failing = pending(&Arc::new(template("agent", 0, &[]).unwrap()), 3);
    watched.tell(Event::Pod(failing.clone()));
    watched.settle(1);
    watched.undo(&failing.uid);
    watched.tell(Event::Pod(gpu_pod(4, 0, 4)));
    watched.settle(2);
    assert_lawful(&watched);
}

#[test]
fn a_failure_reported_after_confirmation_changes_nothing() {
    let mut watched = watched(strict_node(0));
    let mut pod = gpu_pod(1, 0, 1);
    watched.tell(Event::Pod(pod.clone()));
    watched.settle(0);
    let mut spec = (*pod.spec).clone();
    spec.labels.insert("seen-by", "webhook");
    (pod.spec, pod.node) = (Arc::new(spec), Some("h100-000000".into()));
    watched.tell(Event::Pod(pod.clone()));
    watched.undo(&pod.uid);
    assert_eq!(watched.settle(1), []);
    assert_lawful(&watched);
}

fn victims(decision: &Decision) -> &[Arc<str>] {
    match decision {
        Decision::Preempt(preempting) => &preempting.victims,
        _ => &[],
    }
}

#[test]
fn a_pod_is_evicted_for_its_host_port() {
    let mut watched = watched(strict_node(0));
    let with_port = |app: &str, priority: i32| {
        let mut spec = template(app, priority, &[("cpu", "1"), ("memory", "1Gi")]).unwrap();
        spec.host_ports.push(HostPort { ip: None, protocol: Protocol::Tcp, port: 8000 });
        Arc::new(spec)
    };
    let holder = pending(&with_port("old", 0), 1);
    watched.tell(Event::Pod(holder.clone()));
    watched.settle(0);
    watched.tell(Event::Pod(pending(&with_port("new", 10), 2)));
    let decisions = watched.settle(1);
    assert_eq!(decisions.iter().flat_map(victims).collect::<Vec<_>>(), [&holder.uid]);
    assert_lawful(&watched);
}

#[test]
fn evictions_that_failed_are_decided_again() {
    let mut watched = watched(strict_node(0));
    let holder = gpu_pod(1, 0, 4);
    watched.tell(Event::Pod(holder.clone()));
    watched.tell(Event::Pod(gpu_pod(2, 10, 4)));
    watched.settle(0);
    let preemptor = gpu_pod(3, 10, 4);
    watched.tell(Event::Pod(preemptor.clone()));
    let first = watched.settle(1);
    assert_eq!(first.iter().flat_map(victims).collect::<Vec<_>>(), [&holder.uid]);
    watched.undo(&preemptor.uid);
    let again = watched.settle(2);
    assert_eq!(again.iter().flat_map(victims).collect::<Vec<_>>(), [&holder.uid], "{again:?}");
}

#[test]
fn a_pod_that_waits_for_evictions_comes_first_where_room_appears() {
    let mut watched = watched([strict_node(0), strict_node(1)].concat());
    let running = [(1, 0, 0), (2, 0, 0), (3, 20, 1), (4, 20, 1)];
    for (created_at_ms, priority, index) in running {
        let node = Some(format!("h100-{index:06}").into());
        watched.tell(Event::Pod(PodObject { node, ..gpu_pod(created_at_ms, priority, 4) }));
    }
    let important = gpu_pod(5, 10, 4);
    watched.tell(Event::Pod(important.clone()));
    watched.tell(Event::Pod(gpu_pod(6, 0, 4)));
    watched.settle(1);
    // Its victim on the first node takes its time; meanwhile there is room on the second.
    watched.tell(Event::PodGone(gpu_pod(3, 20, 4).uid));
    let decisions = watched.settle(2);
    assert!(
        matches!(&decisions[..], [Decision::Bind(binding), ..] if binding.pod == important.uid),
        "{decisions:?}"
    );
    assert_lawful(&watched);
}

#[test]
fn what_a_deleted_pod_had_evicted_is_left_to_the_next() {
    let mut watched = watched(strict_node(0));
    watched.tell(Event::Pod(gpu_pod(1, 0, 4)));
    watched.tell(Event::Pod(gpu_pod(2, 0, 4)));
    watched.settle(0);
    let deleted = gpu_pod(3, 10, 4);
    watched.tell(Event::Pod(deleted.clone()));
    watched.settle(1);
    let nominated = Some("h100-000000".into());
    let phase = Phase::Terminating { by_preemption: false };
    watched.tell(Event::Pod(PodObject { nominated, phase, ..deleted }));
    watched.tell(Event::Pod(gpu_pod(4, 10, 4)));
    let decisions = watched.settle(2);
    assert_eq!(waits_for(&decisions), [("uid-00000004".into(), "h100-000000".into())]);
    assert_eq!(decisions.iter().flat_map(victims).count(), 0, "{decisions:?}");
    assert_lawful(&watched);
}

#[test]
fn equals_have_pods_evicted_on_one_node_side_by_side() {
    let mut watched = watched(strict_node(0));
    (1..=8).for_each(|pod| watched.tell(Event::Pod(gpu_pod(pod, 0, 1))));
    watched.settle(0);
    watched.tell(Event::Pod(gpu_pod(11, 10, 4)));
    watched.tell(Event::Pod(gpu_pod(12, 10, 4)));
    let decisions = watched.settle(1);
    let on = |pod: &str| (pod.into(), "h100-000000".into());
    assert_eq!(waits_for(&decisions), [on("uid-00000011"), on("uid-00000012")]);
    let mut evicted: Vec<Arc<str>> = decisions.iter().flat_map(victims).cloned().collect();
    evicted.sort();
    evicted.dedup();
    assert_eq!(evicted.len(), 8, "each has victims of its own: {decisions:?}");
    evicted.into_iter().for_each(|uid| watched.tell(Event::PodGone(uid)));
    let decisions = watched.settle(2);
    assert!(decisions.iter().all(|one| matches!(one, Decision::Bind(_))), "{decisions:?}");
    assert_eq!(decisions.len(), 2);
    assert_lawful(&watched);
}

/// The pods that have others evicted, each with the node it waits for.
fn waits_for(decisions: &[Decision]) -> Vec<(Arc<str>, Arc<str>)> {
    let preempting = |decision: &Decision| match decision {
        Decision::Preempt(one) => Some((one.pod.clone(), one.node.clone())),
        _ => None,
    };
    decisions.iter().filter_map(preempting).collect()
}

#[test]
fn pods_are_rechecked_when_a_cooldown_ends() {
    let mut watched = watched(strict_node(0));
    let batch = |created_at_ms: u64| {
        let mut spec = gpu_template("batch", 0, 4).unwrap();
        spec.controller = Some(Controller { kind: "Job".into(), name: "batch".into() });
        pending(&Arc::new(spec), created_at_ms)
    };
    watched.tell(Event::Pod(gpu_pod(1, 20, 4)));
    watched.tell(Event::Pod(batch(2)));
    watched.settle(10);
    watched.tell(Event::Pod(gpu_pod(11, 10, 4)));
    watched.settle(20);
    watched.tell(Event::PodGone(batch(2).uid));
    watched.settle(30);
    watched.tell(Event::PodGone(gpu_pod(11, 10, 4).uid));
    watched.tell(Event::Pod(batch(40)));
    watched.settle(40);
    // It prefers to be spread, which has nothing to do with who may be evicted.
    let patient = spread(gpu_template("patient", 10, 4).unwrap(), ZONE, 1, false);
    watched.tell(Event::Pod(pending(&Arc::new(patient), 50)));
    let meanwhile = watched.settle(50);
    assert_eq!(meanwhile.iter().flat_map(victims).count(), 0, "{meanwhile:?}");
    let then = watched.settle(20 + Config::default().eviction_cooldown_ms);
    assert_eq!(then.iter().flat_map(victims).collect::<Vec<_>>(), [&batch(40).uid], "{then:?}");
    assert_lawful(&watched);
}

/// A pod near which no pod of another workload may be.
fn refuses(mut spec: PodSpec, app: &str, key: &str) -> PodSpec {
    spec.pod_affinity.anti_required.push(PodTerm {
        selector: Some(Selector::of_labels(&[("app", app)].into_iter().collect())),
        namespaces: Vec::new(),
        namespace_selector: None,
        topology_key: key.into(),
    });
    spec
}

#[test]
fn nominated_room_is_kept_from_pods_excluded_by_anti_affinity() {
    let mut watched = watched(strict_node(0));
    watched.tell(Event::Pod(gpu_pod(1, 0, 4)));
    watched.tell(Event::Pod(gpu_pod(2, 0, 4)));
    watched.settle(0);
    let refusing = refuses(gpu_template("refusing", 10, 2).unwrap(), "app-0", HOSTNAME);
    let refusing = pending(&Arc::new(refusing), 3);
    watched.tell(Event::Pod(refusing.clone()));
    let decisions = watched.settle(1);
    watched.tell(Event::PodGone(victims(&decisions[0])[0].clone()));
    // It is older, and there is room for both.
    watched.tell(Event::Pod(gpu_pod(0, 10, 1)));
    watched.settle(2);
    assert_lawful(&watched);
}

#[test]
fn a_pod_excluded_by_anti_affinity_is_placed_after_the_other_leaves() {
    // Two nodes of one zone.
    let mut watched = watched([strict_node(0), strict_node(3)].concat());
    let refusing = template("refusing", 0, &[("cpu", "1"), ("memory", "1Gi")]).unwrap();
    let refusing = refuses(refusing, "app-2", ZONE);
    let node = Some("h100-000000".into());
    let refusing = PodObject { node, ..pending(&Arc::new(refusing), 1) };
    watched.tell(Event::Pod(refusing.clone()));
    watched.tell(Event::Pod(gpu_pod(2, 0, 1)));
    watched.settle(0);
    watched.tell(Event::NodeGone("h100-000000".into()));
    watched.tell(Event::PodGone(refusing.uid));
    watched.settle(1);
    assert_lawful(&watched);
}

#[test]
fn room_for_a_part_of_a_gpu_is_kept_where_the_topology_is_unknown() {
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::None);
    let mut node = kind.node(0).unwrap();
    node.labels.insert("nvidia.com/gpu.memory", "81559");
    node.allocatable.extend(resources(&[(GPU, "1")]).unwrap());
    let mut watched = watched([Event::Node(node)]);
    let holder = gpu_pod(1, 0, 1);
    watched.tell(Event::Pod(holder.clone()));
    watched.settle(0);
    let need = |created_at_ms: u64| {
        let mut spec = template("small", 10, &[("cpu", "1"), ("memory", "1Gi")]).unwrap();
        spec.gpu = Some(GpuNeed { memory_bytes: 8 << 30, compute_milli: 0 });
        pending(&Arc::new(spec), created_at_ms)
    };
    watched.tell(Event::Pod(need(2)));
    watched.settle(1);
    watched.tell(Event::PodGone(holder.uid));
    watched.tell(Event::Pod(gpu_pod(0, 10, 1)));
    let decisions = watched.settle(2);
    assert!(
        matches!(&decisions[..], [.., Decision::Bind(binding)] if binding.pod == need(2).uid),
        "{decisions:?}"
    );
    assert_lawful(&watched);
}
