//! Classes of work: pools, and headroom.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use berth_engine::decision::{Binding, Decision};
use berth_engine::event::Event;
use berth_engine::explain::{Cause, Explanation, PartKind, render};
use berth_engine::headroom::ReservedHeadroom;
use berth_engine::{Engine, Profile};
use berth_kubelet::TopologyPolicy;
use berth_model::alignment::Alignment;
use berth_model::node::Node;
use berth_model::policy::Pool;
use berth_model::spec::{GpuNeed, PodSpec};
use berth_model::workload::{
    CapacityType, ClassRules, ClassSet, Headroom, PoolClasses, WorkloadClass,
};
use berth_testkit::cluster::{NodeKind, gpu_template, pending, resources, template};
use berth_testkit::world::{Checker, Law};

use WorkloadClass::{Batch, Embedding, Experimentation, Interactive};

const PRODUCT: &str = "NVIDIA-H100-80GB-HBM3";

struct Cluster {
    engine: Engine,
    next: u64,
}

impl Cluster {
    /// So many nodes of 8 GPUs on two sockets whose kubelets insist on as few of them as will do.
    fn new(nodes: usize) -> Self {
        Self::of(&NodeKind::whole("h100", PRODUCT, TopologyPolicy::Restricted), nodes)
    }

    fn of(kind: &NodeKind, nodes: usize) -> Self {
        let mut engine = Engine::new(Profile::Berth);
        kind.nodes(0, nodes).unwrap().into_iter().for_each(|event| engine.apply(event));
        Self { engine, next: 0 }
    }

    fn tell(&mut self, event: Event) {
        self.engine.apply(event);
    }

    fn node(&mut self, name: &str, labels: &[(&str, &str)]) {
        self.tell(Event::Node(node(name, labels)));
    }

    fn pool(&mut self, name: &str, classes: PoolClasses, capacity: Option<CapacityType>) {
        let pool = Pool { name: name.into(), classes, capacity, ..Pool::default() };
        self.tell(Event::Pool(pool));
    }

    fn keep(&mut self, name: &str, class: WorkloadClass, count: u32, spec: PodSpec) {
        let template = Arc::new(spec);
        self.tell(Event::Headroom(Headroom { name: name.into(), template, count, class }));
    }

    fn ask(&mut self, spec: PodSpec) -> Arc<str> {
        self.next += 1;
        let pod = pending(&Arc::new(spec), self.next);
        let uid = pod.uid.clone();
        self.tell(Event::Pod(pod));
        uid
    }

    fn settle(&mut self) {
        assert!((0..1_000).any(|_| self.engine.decide(0).is_none()), "decisions end");
    }

    fn place(&mut self, spec: PodSpec) -> Option<String> {
        let uid = self.ask(spec);
        self.settle();
        self.engine.node_of(&uid).map(|node| node.to_string())
    }

    fn place_all(&mut self, spec: &PodSpec) -> usize {
        (0..1_000).take_while(|_| self.place(spec.clone()).is_some()).count()
    }

    fn kept(&self, name: &str) -> ReservedHeadroom {
        let rooms = self.engine.headroom();
        rooms.into_iter().find(|room| room.name.as_ref() == name).unwrap()
    }

    fn explain(&mut self, uid: &str) -> (Vec<Cause>, String) {
        let explanation = self.engine.explain(uid, 0).unwrap();
        let text = render(&explanation);
        let Explanation::Waiting { groups, .. } = explanation else { panic!("{explanation:?}") };
        (groups.into_iter().map(|group| group.cause).collect(), text)
    }
}

fn node(name: &str, labels: &[(&str, &str)]) -> Node {
    let allocatable =
        [("cpu", "64"), ("memory", "512Gi"), ("pods", "110"), ("nvidia.com/gpu", "8")];
    Node {
        name: name.into(),
        labels: labels.iter().copied().collect(),
        allocatable: resources(&allocatable).unwrap(),
        ..Node::default()
    }
}

fn pod(class: WorkloadClass, gpus: u32) -> PodSpec {
    PodSpec { class: Some(class), ..gpu_template(class.as_str(), 0, gpus).unwrap() }
}

fn small(class: WorkloadClass) -> PodSpec {
    let spec = template("small", 0, &[("cpu", "1"), ("memory", "1Gi")]).unwrap();
    PodSpec { class: Some(class), ..spec }
}

fn set(classes: &[WorkloadClass]) -> ClassSet {
    classes.iter().copied().collect()
}

#[test]
fn serving_goes_to_on_demand_nodes_and_batch_to_spot() {
    let mut cluster = Cluster::of(&NodeKind::whole("none", PRODUCT, TopologyPolicy::None), 0);
    cluster.node("steady", &[("berth.dev/pool", "steady")]);
    cluster.node("cheap", &[("karpenter.sh/nodepool", "cheap")]);
    cluster.pool("steady", PoolClasses::Any, Some(CapacityType::OnDemand));
    cluster.pool("cheap", PoolClasses::Any, Some(CapacityType::Spot));
    for _ in 0..2 {
        assert_eq!(cluster.place(pod(Interactive, 1)).as_deref(), Some("steady"));
        assert_eq!(cluster.place(pod(Embedding, 1)).as_deref(), Some("steady"));
        assert_eq!(cluster.place(pod(Batch, 1)).as_deref(), Some("cheap"));
        assert_eq!(cluster.place(pod(Experimentation, 1)).as_deref(), Some("cheap"));
    }
    // A preference, not a wall.
    assert_eq!(cluster.place(pod(Batch, 4)).as_deref(), Some("cheap"));
    assert_eq!(cluster.place(pod(Batch, 4)).as_deref(), Some("steady"));
}

#[test]
fn node_labels_give_the_capacity_type_if_the_pool_does_not() {
    let mut cluster = Cluster::of(&NodeKind::whole("none", PRODUCT, TopologyPolicy::None), 0);
    cluster.node("a", &[("cloud.google.com/gke-spot", "true"), ("berth.dev/pool", "mixed")]);
    cluster.node("b", &[("berth.dev/pool", "mixed")]);
    cluster.node("c", &[("berth.dev/pool", "serving")]);
    let serving = set(&[Interactive, Embedding]);
    cluster.pool("serving", PoolClasses::Preferred(serving), Some(CapacityType::OnDemand));
    assert_eq!(cluster.place(pod(Batch, 1)).as_deref(), Some("a"));
    assert_eq!(cluster.place(pod(Interactive, 1)).as_deref(), Some("c"));
}

#[test]
fn a_pool_with_only_rejects_other_classes_and_is_named() {
    let mut cluster = Cluster::of(&NodeKind::whole("none", PRODUCT, TopologyPolicy::None), 0);
    cluster.node("a", &[("berth.dev/pool", "serving")]);
    let only = PoolClasses::Only(set(&[Interactive, Embedding]));
    cluster.pool("serving", only, None);
    let waiting = cluster.ask(pod(Batch, 1));
    cluster.settle();
    assert_eq!(cluster.engine.node_of(&waiting), None);
    let (causes, text) = cluster.explain(&waiting);
    let classes = set(&[Interactive, Embedding]);
    assert_eq!(causes, [Cause::OtherClasses { pool: "serving".into(), classes, class: Batch }]);
    assert!(text.contains("pool serving is only for interactive and embedding"), "{text}");
    assert_eq!(cluster.place(pod(Embedding, 1)).as_deref(), Some("a"));
    // When the pool opens, pending pods are rechecked.
    cluster.pool("serving", PoolClasses::Any, None);
    cluster.settle();
    assert_eq!(cluster.engine.node_of(&waiting).map(AsRef::as_ref), Some("a"));
}

#[test]
fn a_class_follows_from_the_priority_by_rules_that_can_be_set() {
    let mut cluster = Cluster::of(&NodeKind::whole("none", PRODUCT, TopologyPolicy::None), 0);
    cluster.node("a", &[("berth.dev/pool", "serving")]);
    cluster.pool("serving", PoolClasses::Only(set(&[Interactive])), None);
    let spec = gpu_template("unlabelled", 500, 1).unwrap();
    let waiting = cluster.ask(spec);
    cluster.settle();
    assert_eq!(cluster.engine.node_of(&waiting), None, "priority 500 is batch by default");
    let rules = ClassRules { interactive_priority_min: 500, ..ClassRules::default() };
    cluster.tell(Event::Classes(rules));
    cluster.settle();
    assert!(cluster.engine.node_of(&waiting).is_some());
}

#[test]
fn batch_goes_to_spot_nodes_and_serving_does_not_without_pools() {
    let mut cluster = Cluster::of(&NodeKind::whole("none", PRODUCT, TopologyPolicy::None), 0);
    let terms = |name: &str| if name < "d" { "on-demand" } else { "spot" };
    for name in ["a", "b", "c", "d", "e", "f"] {
        cluster.node(name, &[("karpenter.sh/capacity-type", terms(name))]);
    }
    for _ in 0..8 {
        let node = cluster.place(pod(Batch, 1)).unwrap();
        assert_eq!(terms(&node), "spot");
        let node = cluster.place(pod(Interactive, 1)).unwrap();
        assert_eq!(terms(&node), "on-demand");
    }
    // The last spot node is gone: batch goes where there is room.
    for name in ["d", "e", "f"] {
        cluster.tell(Event::NodeGone(name.into()));
    }
    assert!(cluster.place(pod(Batch, 1)).is_some());
}

#[test]
fn nodes_that_hold_the_model_are_preferred() {
    let mut cluster = Cluster::of(&NodeKind::whole("none", PRODUCT, TopologyPolicy::None), 0);
    for name in ["a", "b", "c", "d", "e"] {
        cluster.node(name, &[]);
    }
    let holder = Node { models: ["org/llm".into()].into(), ..node("d", &[]) };
    cluster.tell(Event::Node(holder));
    let model = |name: &str| PodSpec { model: Some(name.into()), ..pod(Interactive, 1) };
    assert_eq!(cluster.place(model("org/llm")).as_deref(), Some("d"));
    assert_eq!(cluster.place(model("org/llm")).as_deref(), Some("d"));
    let free: Vec<u32> = (0..6).filter(|_| cluster.place(model("org/llm")).is_some()).collect();
    assert_eq!(free.len(), 6);
    assert_ne!(cluster.place(model("org/llm")).as_deref(), Some("d"), "it is full");
}

#[test]
fn headroom_keeps_a_whole_socket_usable() {
    let mut cluster = Cluster::new(2);
    cluster.keep("warm", Interactive, 2, pod(Interactive, 4));
    // Of 16 GPUs 8 stay free, four on one socket twice.
    assert_eq!(cluster.place_all(&pod(Batch, 1)), 8);
    assert_eq!(cluster.kept("warm").nodes.len(), 2);
    for _ in 0..2 {
        let uid = cluster.ask(pod(Interactive, 4));
        let decision = cluster.engine.decide(0);
        let Some(Decision::Bind(binding)) = decision else { panic!("{decision:?}") };
        assert_eq!(binding.pod, uid);
        assert_eq!(binding.alignment, Alignment::Aligned);
    }
    cluster.settle();
    assert_eq!(cluster.kept("warm").lacking, 2);
}

#[test]
fn an_explanation_names_headroom_and_its_class() {
    let mut cluster = Cluster::new(1);
    cluster.keep("warm", Interactive, 2, pod(Interactive, 4));
    let waiting = cluster.ask(pod(Batch, 1));
    cluster.settle();
    let (causes, text) = cluster.explain(&waiting);
    let Cause::Headroom { headroom, class, on_one, .. } = &causes[0] else { panic!("{causes:?}") };
    assert_eq!((headroom.as_ref(), *class), ("warm", Interactive));
    assert_eq!(*on_one, Some(PartKind::Socket));
    assert!(text.contains("headroom for interactive: 4 GPUs on one socket"), "{text}");
    // What is not in the way is not refused.
    assert!(cluster.place(small(Batch)).is_some());
}

#[test]
fn entitled_pods_use_headroom_and_it_moves() {
    let mut cluster = Cluster::new(3);
    cluster.keep("warm", Embedding, 2, pod(Embedding, 4));
    cluster.settle();
    let before = cluster.kept("warm").nodes;
    assert_eq!(before.len(), 2);
    for class in [Interactive, Embedding] {
        assert!(cluster.place(pod(class, 8)).is_some());
    }
    let after = cluster.kept("warm");
    assert_eq!((after.nodes.len(), after.lacking), (2, 0));
    assert!(cluster.place(pod(Interactive, 8)).is_some(), "stronger claims may take all");
    assert_eq!(cluster.kept("warm").lacking, 2);
}

#[test]
fn the_weakest_claim_is_released_first() {
    let mut cluster = Cluster::new(1);
    cluster.keep("weak", Batch, 2, pod(Batch, 4));
    cluster.settle();
    assert_eq!(cluster.kept("weak").nodes.len(), 2);
    cluster.keep("strong", Interactive, 1, pod(Interactive, 4));
    cluster.settle();
    assert_eq!((cluster.kept("strong").lacking, cluster.kept("weak").lacking), (0, 1));
    assert!(cluster.place(pod(Interactive, 4)).is_some());
    assert_eq!((cluster.kept("strong").lacking, cluster.kept("weak").lacking), (0, 2));
    // Experimentation gets nothing that either wants.
    assert_eq!(cluster.place(pod(Experimentation, 1)), None);
}

#[test]
fn pending_pods_are_rechecked_when_headroom_is_released() {
    let mut cluster = Cluster::new(1);
    cluster.keep("warm", Interactive, 2, pod(Interactive, 4));
    let waiting = cluster.ask(pod(Batch, 2));
    cluster.settle();
    assert_eq!(cluster.engine.node_of(&waiting), None);
    cluster.keep("warm", Interactive, 1, pod(Interactive, 4));
    cluster.settle();
    assert!(cluster.engine.node_of(&waiting).is_some());
    let other = cluster.ask(pod(Batch, 4));
    cluster.settle();
    assert_eq!(cluster.engine.node_of(&other), None);
    cluster.tell(Event::HeadroomGone("warm".into()));
    cluster.settle();
    assert!(cluster.engine.node_of(&other).is_some());
    assert_eq!(cluster.engine.headroom(), []);
}

#[test]
fn headroom_comes_back_when_a_pod_leaves() {
    let mut cluster = Cluster::new(1);
    cluster.keep("warm", Interactive, 1, pod(Interactive, 4));
    let first = cluster.ask(pod(Interactive, 8));
    cluster.settle();
    assert_eq!(cluster.kept("warm").lacking, 1);
    cluster.tell(Event::PodGone(first));
    let batch = PodSpec { priority: 10, ..pod(Batch, 8) };
    assert_eq!(cluster.place(batch), None, "it was kept before anybody else could have it");
    assert_eq!(cluster.kept("warm").lacking, 0);
}

#[test]
fn no_pod_is_evicted_to_use_headroom() {
    let mut cluster = Cluster::new(1);
    cluster.keep("warm", Interactive, 1, pod(Interactive, 4));
    for _ in 0..4 {
        assert!(cluster.place(pod(Batch, 1)).is_some());
    }
    // Without the reservation it would fit at once; with it, four have to go.
    let uid = cluster.ask(PodSpec { priority: 10, ..pod(Batch, 4) });
    let decision = cluster.engine.decide(0);
    let Some(Decision::Preempt(preempting)) = decision else { panic!("{decision:?}") };
    assert_eq!((preempting.pod, preempting.victims.len()), (uid.clone(), 4));
    for victim in preempting.victims {
        cluster.tell(Event::PodGone(victim));
    }
    cluster.settle();
    assert!(cluster.engine.node_of(&uid).is_some());
    assert_eq!(cluster.kept("warm").lacking, 0);
    let uid = cluster.ask(PodSpec { priority: 20, ..pod(Batch, 8) });
    let decision = cluster.engine.decide(0);
    assert_eq!(decision, Some(Decision::Wait { pod: uid }));
}

#[test]
fn headroom_does_not_take_room_freed_by_evictions() {
    let mut cluster = Cluster::new(1);
    assert!(cluster.place(pod(Batch, 8)).is_some());
    cluster.keep("warm", Interactive, 2, pod(Interactive, 4));
    cluster.settle();
    assert_eq!(cluster.kept("warm").lacking, 2);
    let uid = cluster.ask(PodSpec { priority: 10, ..pod(Batch, 8) });
    let decision = cluster.engine.decide(0);
    let Some(Decision::Preempt(preempting)) = decision else { panic!("{decision:?}") };
    for victim in preempting.victims {
        cluster.tell(Event::PodGone(victim));
    }
    cluster.settle();
    assert!(cluster.engine.node_of(&uid).is_some());
    assert_eq!(cluster.kept("warm").lacking, 2);
}

#[test]
fn headroom_reserves_slices_and_parts_of_gpus() {
    const SLICE: &str = "nvidia.com/mig-1g.10gb";
    let devices = vec![(SLICE, 14)];
    let policy = TopologyPolicy::SingleNumaNode;
    let mut cluster = Cluster::of(&NodeKind { pool: "mig", product: PRODUCT, policy, devices }, 1);
    let slice = |class| {
        let limits = [("cpu", "1"), ("memory", "1Gi"), (SLICE, "1")];
        PodSpec { class: Some(class), ..template("slice", 0, &limits).unwrap() }
    };
    cluster.keep("slices", Interactive, 3, slice(Interactive));
    let need = Some(GpuNeed { memory_bytes: 8 << 30, compute_milli: 0 });
    cluster.keep("parts", Embedding, 2, PodSpec { gpu: need, ..small(Embedding) });
    assert_eq!(cluster.place_all(&slice(Batch)), 9);
    assert_eq!((cluster.kept("slices").nodes.len(), cluster.kept("parts").nodes.len()), (3, 2));
    assert_eq!(cluster.place_all(&slice(Embedding)), 2);
    assert_eq!(cluster.place_all(&slice(Interactive)), 3);
}

#[test]
fn a_cordoned_node_has_no_headroom() {
    let mut cluster = Cluster::new(2);
    cluster.keep("warm", Interactive, 1, pod(Interactive, 4));
    cluster.settle();
    let kept = cluster.kept("warm").nodes[0].clone();
    let kind = NodeKind::whole("h100", PRODUCT, TopologyPolicy::Restricted);
    let index = usize::from(kept.ends_with('1'));
    let cordoned = Node { unschedulable: true, ..kind.node(index).unwrap() };
    cluster.tell(Event::Node(cordoned));
    cluster.settle();
    assert_eq!(cluster.kept("warm").nodes.len(), 1);
    assert_ne!(cluster.kept("warm").nodes[0], kept);
}

#[test]
fn rollback_restores_headroom() {
    let mut cluster = Cluster::new(3);
    cluster.keep("warm", Interactive, 2, pod(Interactive, 4));
    cluster.keep("weak", Batch, 1, pod(Batch, 4));
    cluster.settle();
    let before = cluster.engine.headroom();
    let checkpoint = cluster.engine.checkpoint();
    assert!(cluster.place(pod(Interactive, 8)).is_some());
    assert!(cluster.place(pod(Interactive, 8)).is_some());
    cluster.keep("warm", Interactive, 1, pod(Interactive, 2));
    cluster.tell(Event::HeadroomGone("weak".into()));
    cluster.tell(Event::NodeGone("h100-000001".into()));
    cluster.settle();
    assert_ne!(cluster.engine.headroom(), before);
    cluster.engine.rollback(checkpoint);
    assert_eq!(cluster.engine.headroom(), before);
    cluster.settle();
    assert_eq!(cluster.engine.headroom(), before);
}

#[test]
fn excessive_headroom_is_reserved_as_far_as_there_is_room() {
    let mut cluster = Cluster::new(2);
    let nothing = PodSpec { class: Some(Interactive), ..PodSpec::default() };
    cluster.keep("nothing", Interactive, u32::MAX, nothing);
    cluster.keep("too large", Interactive, u32::MAX, template("x", 0, &[("cpu", "1M")]).unwrap());
    cluster.settle();
    let kept = cluster.kept("nothing");
    assert_eq!((kept.nodes.len(), kept.lacking), (128, u32::MAX as usize - 128));
    assert_eq!(cluster.kept("too large").nodes, []);
    assert!(cluster.place(pod(Interactive, 8)).is_some());
}

#[test]
fn kube_schedulers_profile_ignores_classes() {
    let mut engine = Engine::new(Profile::KubeScheduler);
    let mut labelled = node("a", &[("berth.dev/pool", "serving")]);
    labelled.labels.insert("kubernetes.io/hostname", "a");
    engine.apply(Event::Node(labelled));
    let only = PoolClasses::Only(set(&[Interactive]));
    let pool = Pool { name: "serving".into(), classes: only, ..Pool::default() };
    engine.apply(Event::Pool(pool));
    let template = Arc::new(pod(Interactive, 4));
    let headroom = Headroom { name: "warm".into(), template, count: 1, class: Interactive };
    engine.apply(Event::Headroom(headroom));
    engine.apply(Event::Pod(pending(&Arc::new(pod(Batch, 7)), 1)));
    assert!(matches!(engine.decide(0), Some(Decision::Bind(_))));
}

/// What the checker says about one pod of four GPUs that is bound while so many are kept.
fn violations(kept: usize, class: WorkloadClass) -> Vec<Law> {
    let kind = NodeKind::whole("h100", PRODUCT, TopologyPolicy::Restricted);
    let mut checker = Checker::new(Profile::Berth.into());
    kind.nodes(0, 1).unwrap().iter().for_each(|event| checker.apply(event));
    let template = Arc::new(pod(Interactive, 4));
    let headroom = Headroom { name: "warm".into(), template, count: 2, class: Interactive };
    checker.apply(&Event::Headroom(headroom));
    let incoming = pending(&Arc::new(pod(class, 4)), 1);
    checker.apply(&Event::Pod(incoming.clone()));
    let node: Arc<str> = "h100-000000".into();
    let nodes = vec![node.clone(); kept];
    checker.kept(vec![ReservedHeadroom {
        name: "warm".into(),
        class: Interactive,
        nodes,
        lacking: 0,
    }]);
    let (gpu_grant, alignment) = (None, Alignment::Floating);
    let binding =
        Binding { pod: incoming.uid, node, gpu_grant, devices: None, alignment, numa: None };
    checker.decided(Some(&Decision::Bind(binding)), 0);
    checker.violations().iter().map(|violation| violation.law).collect()
}

#[test]
fn the_checker_detects_a_pod_that_breaks_headroom() {
    assert_eq!(violations(1, Batch), []);
    assert_eq!(violations(2, Batch), [Law::BoundWhereItFits]);
    assert_eq!(violations(2, Interactive), []);
    assert_eq!(violations(3, Interactive), [Law::HeadroomIsUsable]);
}
