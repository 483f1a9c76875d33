//! Explanations: their texts, and that every remedy works when it is applied.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::config::UnknownTopology;
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::explain::{
    Cause, Explanation, FreeDevices, Group, HeldDevices, Holding, Lack, Miss, Others, Part,
    PartKind, PartUse, PodName, Preference, Relaxation, Remedy, Shortage, Why, render,
};
use berth_engine::{Config, Engine, Profile};
use berth_kubelet::TopologyPolicy;
use berth_model::affinity::{NodeTerm, PodTerm};
use berth_model::alignment::Alignment;
use berth_model::label::{Operator, Requirement, Selector};
use berth_model::node::Node;
use berth_model::policy::{DisruptionBudget, Pool};
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceName;
use berth_model::spec::{
    GpuGrant, GpuNeed, HostPort, Phase, PodObject, PodSpec, PreemptionPolicy, Protocol, Volume,
};
use berth_model::taint::{Effect, Taint};
use berth_model::workload::WorkloadClass;
use berth_testkit::cluster::{
    Dice, GPU, NodeKind, ZONE, gpu_template, pending, resources, spread, template,
};

const STRICT: TopologyPolicy = TopologyPolicy::SingleNumaNode;
const H100: &str = "NVIDIA-H100-80GB-HBM3";

fn h100() -> NodeKind {
    NodeKind::whole("h100", H100, STRICT)
}

/// A cluster whose remedies can be applied.
#[derive(Clone)]
struct World {
    engine: Engine,
    kind: NodeKind,
    nodes: BTreeMap<Arc<str>, Node>,
    pods: BTreeMap<Arc<str>, PodObject>,
    pools: BTreeMap<Arc<str>, Pool>,
    next: u64,
    now_ms: i64,
}

impl World {
    fn new(config: impl Into<Config>, kind: NodeKind, nodes: usize) -> Self {
        let mut world = Self {
            engine: Engine::new(config),
            kind,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            pools: BTreeMap::new(),
            next: 0,
            now_ms: 0,
        };
        for index in 0..nodes {
            let node = world.kind.node(index).unwrap();
            world.node(node);
        }
        world
    }

    fn strict(nodes: usize) -> Self {
        Self::new(Profile::Berth, h100(), nodes)
    }

    fn node(&mut self, node: Node) {
        let (name, topology) = (node.name.clone(), Some(self.kind.topology().unwrap()));
        self.bare_node(node);
        self.engine.apply(Event::Topology { node: name, topology });
    }

    fn bare_node(&mut self, node: Node) {
        self.nodes.insert(node.name.clone(), node.clone());
        self.engine.apply(Event::Node(node));
    }

    fn change_node(&mut self, index: usize, change: impl FnOnce(&mut Node)) {
        let name = self.kind.node(index).unwrap().name;
        let mut node = self.nodes[&name].clone();
        change(&mut node);
        self.bare_node(node);
    }

    fn apply(&mut self, pod: PodObject) -> Arc<str> {
        self.pods.insert(pod.name.clone(), pod.clone());
        self.engine.apply(Event::Pod(pod.clone()));
        pod.name
    }

    fn run(&mut self, spec: PodSpec, node: usize) -> Arc<str> {
        self.next += 1;
        let mut pod = pending(&Arc::new(spec), self.next);
        pod.node = Some(self.kind.node(node).unwrap().name);
        pod.started_at_ms = Some(self.next as i64);
        self.apply(pod)
    }

    fn ask(&mut self, spec: PodSpec) -> Arc<str> {
        self.next += 1;
        let pod = pending(&Arc::new(spec), self.next);
        self.apply(pod)
    }

    fn gone(&mut self, pod: &str) {
        let pod = self.pods.remove(pod).unwrap();
        self.engine.apply(Event::PodGone(pod.uid));
    }

    fn pool(&mut self, name: &str, template: Node) {
        let pool = Pool { name: name.into(), template, ..Pool::default() };
        self.pools.insert(pool.name.clone(), pool.clone());
        self.engine.apply(Event::Pool(pool));
    }

    fn explain(&mut self, pod: &str) -> Explanation {
        let uid = self.pods[pod].uid.clone();
        self.engine.explain(&uid, self.now_ms).unwrap()
    }

    /// What is said of a pod that is asked for; everything it claims is carried out.
    fn tell(&mut self, spec: PodSpec) -> String {
        let pod = self.ask(spec);
        let explanation = self.explain(&pod);
        assert_eq!(self.explain(&pod), explanation, "asking changes nothing");
        self.check(&pod, &explanation);
        render(&explanation)
    }

    /// Checks what is said of a pod that waits by deciding.
    fn check(&self, pod: &str, explanation: &Explanation) {
        let text = render(explanation);
        assert!(text.chars().count() < 1000, "{text}");
        let Explanation::Waiting { nodes, fitting, groups, remedies, .. } = explanation else {
            return;
        };
        assert_eq!(*nodes, self.nodes.len());
        let counted: usize = groups.iter().map(|group| group.nodes).sum();
        assert_eq!(fitting + counted, *nodes, "every node is told of once: {text}");
        // What is kept for others is free once they are gone, as they are where nobody else waits.
        if self.pods.values().all(|pod| pod.nominated.is_none()) {
            let placed = self.clone().place(pod);
            assert_eq!(placed.is_some(), *fitting > 0, "{text}");
        }
        for remedy in remedies {
            let mut world = self.clone();
            world.carry_out(pod, remedy);
            let node: Arc<str> = match remedy {
                Remedy::Evict { node, .. }
                | Remedy::Relax { node, .. }
                | Remedy::Uncordon { node }
                | Remedy::Repartition { node, .. }
                | Remedy::Loosen { node } => node.clone(),
                Remedy::Grow { .. } => "grown".into(),
            };
            world.cordon_all_but(&node);
            assert_eq!(world.place(pod), Some(node), "{remedy:?} does not help: {text}");
        }
    }

    fn carry_out(&mut self, pod: &str, remedy: &Remedy) {
        match remedy {
            Remedy::Evict { victims, leaving, .. } => {
                victims.iter().chain(leaving).for_each(|victim| self.gone(&victim.name));
            }
            Remedy::Grow { pool, alignment } => {
                let mut node = self.pools[pool].template.clone();
                node.name = "grown".into();
                node.labels.insert("kubernetes.io/hostname", "grown");
                match alignment {
                    Alignment::Unknown => self.bare_node(node),
                    _ => self.node(node),
                }
            }
            Remedy::Relax { change, .. } => {
                let mut pod = self.pods[pod].clone();
                pod.spec = Arc::new(change.applied_to(&pod.spec).unwrap());
                self.apply(pod);
            }
            Remedy::Uncordon { node } => {
                let mut node = self.nodes[node].clone();
                node.unschedulable = false;
                self.bare_node(node);
            }
            Remedy::Repartition { .. } => unreachable!("no world here has MIG slices"),
            Remedy::Loosen { node } => {
                let kind = NodeKind { policy: TopologyPolicy::BestEffort, ..self.kind.clone() };
                let topology = Some(kind.topology().unwrap());
                self.engine.apply(Event::Topology { node: node.clone(), topology });
            }
        }
    }

    fn cordon_all_but(&mut self, name: &str) {
        let others: Vec<Node> =
            self.nodes.values().filter(|node| node.name.as_ref() != name).cloned().collect();
        others.into_iter().for_each(|node| self.bare_node(Node { unschedulable: true, ..node }));
    }

    /// Where the pod goes if nobody else looks for a place.
    fn place(&mut self, pod: &str) -> Option<Arc<str>> {
        let waits = |other: &&PodObject| other.node.is_none() && other.name.as_ref() != pod;
        let others: Vec<Arc<str>> =
            self.pods.values().filter(waits).map(|pod| pod.name.clone()).collect();
        others.iter().for_each(|other| self.gone(other));
        // Applied again, because this is about what fits, not about which pods are woken.
        let anew = PodObject { nominated: None, ..self.pods[pod].clone() };
        self.gone(pod);
        self.apply(anew);
        let uid = self.pods[pod].uid.clone();
        for _ in 0..100 {
            match self.engine.decide(self.now_ms)? {
                Decision::Bind(binding) if binding.pod == uid => return Some(binding.node),
                Decision::Preempt(preempting) if preempting.pod == uid => return None,
                _ => {}
            }
        }
        None
    }
}

fn gpus(count: u32) -> PodSpec {
    gpu_template("llm", 0, count).unwrap()
}

fn cpus(count: u32) -> PodSpec {
    template("cpu", 0, &[("cpu", &count.to_string()), ("memory", "1Gi")]).unwrap()
}

fn taint(key: &str, value: &str) -> Taint {
    Taint { key: key.into(), value: value.into(), effect: Effect::NoSchedule }
}

fn pods_near(key: &str, app: &str) -> PodTerm {
    let labels = [("app", app)].into_iter().collect();
    PodTerm {
        selector: Some(Selector::of_labels(&labels)),
        namespaces: Vec::new(),
        namespace_selector: None,
        topology_key: key.into(),
    }
}

/// Nodes with three GPUs taken on each socket.
fn split(nodes: usize) -> World {
    let mut world = World::strict(nodes);
    for node in 0..nodes {
        world.run(gpus(3), node);
        world.run(gpus(3), node);
    }
    world
}

#[test]
fn explains_a_mixed_cluster_in_a_handful_of_groups() {
    let mut world = World::strict(48);
    for node in 0..48 {
        let pods = if node < 14 { 4 } else { 3 };
        let names: Vec<_> = (0..pods).map(|_| world.run(gpus(2), node)).collect();
        if node < 14 {
            // One pod of two GPUs is left on each socket.
            world.gone(&names[0]);
            world.gone(&names[2]);
        }
        if node >= 44 {
            world.change_node(node, |node| node.taints.push(taint("dedicated", "batch")));
        }
    }
    let template = world.kind.node(99).unwrap();
    world.pool("h100", template);
    assert_eq!(
        world.tell(gpus(4)),
        "0 of 48 nodes fit. 30 nodes: nvidia.com/gpu: 4 requested, at most 2 free. 14 nodes: 4 GPUs \
         free but split 2+2 over sockets. 4 nodes: untolerated taint dedicated=batch. Nearest: \
         h100-000000 lacks 2 GPUs on socket 0; h100-000001 lacks 2 GPUs on socket 0; h100-000002 \
         lacks 2 GPUs on socket 0. Would fit: if serving/pod-00000146 (priority 0) left \
         h100-000043; with one more node of pool h100; on h100-000000 with 2 GPUs instead of 4; \
         on h100-000000 if its kubelet did not require alignment."
    );
}

type Story = (World, PodSpec, &'static str);

fn tell_all(stories: Vec<Story>) {
    for (mut world, spec, expected) in stories {
        assert_eq!(world.tell(spec), expected);
    }
}

#[test]
fn explains_rejections_by_node_objects() {
    let mut tainted = World::strict(2);
    for node in 0..2 {
        tainted.change_node(node, |node| node.taints.push(taint("dedicated", "batch")));
    }
    tainted.change_node(1, |node| node.taints.push(taint("broken", "")));

    let mut selective = gpus(1);
    selective.node_selector = [("pool", "b200"), ("zone", "moon")].into_iter().collect();
    let mut one_label = gpus(1);
    one_label.node_selector.insert("pool", "b200");

    let among = |values: &[&str]| {
        let values = values.iter().map(|value| Arc::from(*value)).collect();
        let requirement = Requirement { key: "pool".into(), operator: Operator::In(values) };
        NodeTerm { labels: vec![requirement], name: Vec::new() }
    };
    let mut affine = gpus(1);
    affine.node_affinity.required = Some(vec![among(&["a", "b", "c", "d", "e"])]);
    let mut alternatives = gpus(1);
    alternatives.node_affinity.required = Some(vec![among(&["a"]), among(&["b"])]);
    let mut named = gpus(1);
    named.node_name = Some("elsewhere".into());

    let mut cordoned = World::strict(2);
    cordoned.change_node(0, |node| node.unschedulable = true);
    cordoned.run(gpus(8), 1);

    tell_all(vec![
        (
            tainted,
            gpus(1),
            "0 of 2 nodes fit. 2 nodes: untolerated taint dedicated=batch. Would fit: on \
             h100-000000 if it tolerated taint dedicated=batch.",
        ),
        (
            World::strict(3),
            selective,
            "0 of 3 nodes fit. 3 nodes: node selector requires pool=b200.",
        ),
        (
            World::strict(3),
            one_label,
            "0 of 3 nodes fit. 3 nodes: node selector requires pool=b200. Would fit: on \
             h100-000000 without pool=b200 in its node selector.",
        ),
        (
            World::strict(3),
            affine,
            "0 of 3 nodes fit. 3 nodes: node affinity requires pool in (a, b, c and 2 more). \
             Would fit: on h100-000000 without its required node affinity.",
        ),
        (
            World::strict(3),
            alternatives,
            "0 of 3 nodes fit. 3 nodes: no term of the node affinity matches. Would fit: on \
             h100-000000 without its required node affinity.",
        ),
        (
            World::strict(3),
            named,
            "0 of 3 nodes fit. 3 nodes: not the requested node elsewhere. Would fit: on h100-000000 \
             without a node name.",
        ),
        (
            cordoned,
            gpus(1),
            "0 of 2 nodes fit. Node h100-000000: cordoned. Node h100-000001: nvidia.com/gpu: 1 \
             requested, none free. Nearest: h100-000001 lacks 1 GPU and 2 CPUs. Would fit: if \
             serving/pod-00000001 (priority 0) left h100-000001; on h100-000000 if it were \
             uncordoned.",
        ),
        (World::strict(0), gpus(1), "There are no nodes."),
    ]);
}

#[test]
fn explains_insufficient_resources() {
    let full = |limits: &[(&str, &str)]| {
        let mut world = World::strict(1);
        world.run(template("filler", 5, limits).unwrap(), 0);
        world
    };
    let mut packed = World::strict(1);
    packed.change_node(0, |node| {
        node.allocatable.insert("pods".into(), Quantity::parse("1").unwrap());
    });
    packed.run(cpus(1), 0);

    tell_all(vec![
        (
            full(&[("cpu", "100"), ("memory", "1Gi")]),
            cpus(30),
            "0 of 1 nodes fit. Node h100-000000: cpu: 30 requested, at most 26 free. Nearest: \
             h100-000000 lacks 4 CPUs. Would fit: on h100-000000 with 26 CPUs instead of 30.",
        ),
        (
            full(&[("cpu", "1"), ("memory", "2000Gi")]),
            gpus(1),
            "0 of 1 nodes fit. Node h100-000000: memory: 64Gi requested, at most 47Gi free. Nearest: \
             h100-000000 lacks 17Gi memory. Would fit: on h100-000000 with 47Gi memory instead of \
             64Gi.",
        ),
        (
            packed,
            cpus(1),
            "0 of 1 nodes fit. Node h100-000000: too many pods. Would fit: if \
             serving/pod-00000001 (priority 0) left h100-000000.",
        ),
        (
            World::strict(2),
            template("b", 0, &[("amd.com/gpu", "1")]).unwrap(),
            "0 of 2 nodes fit. 2 nodes: amd.com/gpu: 1 requested, no capacity.",
        ),
        (
            World::strict(2),
            gpus(5),
            "0 of 2 nodes fit. 2 nodes: 8 GPUs free but split 4+4 over sockets, 5 requested. Would \
             fit: on h100-000000 with 4 GPUs instead of 5; on h100-000000 if its kubelet did not \
             require alignment.",
        ),
    ]);
}

#[test]
fn explains_resources_split_over_numa_nodes() {
    // Socket 0 has no CPUs left, socket 1 no GPUs.
    let mut apart = World::strict(1);
    apart.run(template("a", 5, &[("cpu", "60"), ("memory", "1Gi")]).unwrap(), 0);
    let other = template("b", 5, &[("cpu", "4"), ("memory", "1Gi"), (GPU, "4")]).unwrap();
    apart.run(other, 0);

    let mut crowded = World::strict(1);
    let twenty = template("c", 5, &[("cpu", "20"), ("memory", "1Gi")]).unwrap();
    (0..4).for_each(|_| drop(crowded.run(twenty.clone(), 0)));

    // Three GPUs are free on each socket, and each container is aligned by itself.
    let mut by_container = World::strict(1);
    let four = by_container.run(gpus(4), 0);
    by_container.run(gpus(1), 0);
    by_container.gone(&four);
    by_container.run(gpus(1), 0);
    let mut three = gpus(2);
    for name in ["second", "third"] {
        let mut container = three.pod.containers[0].clone();
        container.name = name.to_owned();
        three.pod.containers.push(container);
    }

    tell_all(vec![
        (
            split(3),
            gpus(2),
            "0 of 3 nodes fit. 3 nodes: 2 GPUs free but split 1+1 over sockets. Nearest: \
             h100-000000 lacks 1 GPU on socket 0; h100-000001 lacks 1 GPU on socket 0; h100-000002 \
             lacks 1 GPU on socket 0. Would fit: if serving/pod-00000006 (priority 0) left \
             h100-000002; on h100-000000 with 1 GPU instead of 2; on h100-000000 if its kubelet \
             did not require alignment.",
        ),
        (
            apart,
            gpus(1),
            "0 of 1 nodes fit. Node h100-000000: 1 GPU, 8 CPUs and 64Gi memory free, but not on \
             the same socket. Nearest: h100-000000 lacks 6 CPUs on socket 0. Would fit: on \
             h100-000000 if its kubelet did not require alignment.",
        ),
        (
            crowded,
            cpus(45),
            "0 of 1 nodes fit. Node h100-000000: 45 CPUs requested on one socket, at most 44 free. \
             Nearest: h100-000000 lacks 1 CPU on socket 1. Would fit: on h100-000000 with 44 CPUs \
             instead of 45; on h100-000000 if its kubelet did not require alignment.",
        ),
        (
            by_container,
            three,
            "0 of 1 nodes fit. Node h100-000000: the kubelet would reject it: Resources cannot \
             be allocated with Topology locality. Would fit: if serving/pod-00000003 (priority 0) \
             left h100-000000; on h100-000000 if its kubelet did not require alignment.",
        ),
    ]);
}

#[test]
fn explains_spreading() {
    let spread_out = {
        let mut world = World::strict(3);
        // Zone 0 has none, but its node is full.
        let spec = spread(gpus(1), ZONE, 1, true);
        world.run(spec.clone(), 1);
        world.run(spec, 2);
        world.run(gpu_template("big", 5, 8).unwrap(), 0);
        world
    };
    let mut no_zone = World::strict(1);
    no_zone.change_node(0, |node| {
        let kept = node.labels.iter().filter(|(key, _)| key.as_ref() != ZONE);
        node.labels = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
    });

    tell_all(vec![
        (
            spread_out,
            spread(gpus(1), ZONE, 1, true),
            "0 of 3 nodes fit. Node h100-000000: nvidia.com/gpu: 1 requested, none free. Node \
             h100-000001: topology spread by topology.kubernetes.io/zone: zone-1 would exceed the \
             minimum by 2, 1 allowed. Node h100-000002: topology spread by \
             topology.kubernetes.io/zone: zone-2 would exceed the minimum by 2, 1 allowed. \
             Nearest: h100-000000 lacks 1 GPU and 2 CPUs. Would fit: if serving/pod-00000002 \
             (priority 0) left h100-000002; on h100-000001 with ScheduleAnyway for its spread by \
             topology.kubernetes.io/zone.",
        ),
        (
            no_zone,
            spread(gpus(1), ZONE, 1, true),
            "0 of 1 nodes fit. Node h100-000000: no label topology.kubernetes.io/zone for topology \
             spread. Would fit: on h100-000000 with ScheduleAnyway for its spread by \
             topology.kubernetes.io/zone.",
        ),
    ]);
}

#[test]
fn explains_neighbours_ports_and_volumes() {
    let mut hermit = gpus(1);
    hermit.pod_affinity.anti_required = vec![pods_near(ZONE, "llm")];
    let mut crowd = World::strict(4);
    (0..3).for_each(|node| drop(crowd.run(hermit.clone(), node)));
    let mut friend = gpus(1);
    friend.pod_affinity.required = vec![pods_near(ZONE, "database")];

    let mut listening = gpus(1);
    let port = HostPort { ip: None, protocol: Protocol::Tcp, port: 8080 };
    listening.host_ports = vec![port];
    let mut taken = World::strict(2);
    (0..2).for_each(|node| drop(taken.run(listening.clone(), node)));

    let mut claiming = gpus(1);
    claiming.volumes = vec![Volume::Claim { name: "weights".into(), ephemeral: false }];

    tell_all(vec![
        (
            crowd.clone(),
            hermit,
            "0 of 4 nodes fit. 2 nodes: a pod with app=llm in the same topology.kubernetes.io/zone \
             (zone-0), excluded by pod anti-affinity. Node h100-000001: a pod with app=llm in the \
             same topology.kubernetes.io/zone (zone-1), excluded by pod anti-affinity. Node \
             h100-000002: a pod with app=llm in the same topology.kubernetes.io/zone (zone-2), \
             excluded by pod anti-affinity. Would fit: if serving/pod-00000003 (priority 0) left \
             h100-000002.",
        ),
        (
            crowd.clone(),
            gpus(1),
            "0 of 4 nodes fit. 2 nodes: serving/pod-00000001 in the same \
             topology.kubernetes.io/zone (zone-0) excludes it by anti-affinity. Node h100-000001: \
             serving/pod-00000002 in the same topology.kubernetes.io/zone (zone-1) excludes it by \
             anti-affinity. Node h100-000002: serving/pod-00000003 in the same \
             topology.kubernetes.io/zone (zone-2) excludes it by anti-affinity. Would fit: if \
             serving/pod-00000003 (priority 0) left h100-000002.",
        ),
        (
            crowd,
            friend,
            "0 of 4 nodes fit. 4 nodes: no pod with app=database in the same \
             topology.kubernetes.io/zone, required by pod affinity.",
        ),
        (
            taken,
            listening,
            "0 of 2 nodes fit. 2 nodes: host port 8080/TCP in use. Would fit: if \
             serving/pod-00000002 (priority 0) left h100-000001; on h100-000000 without host port \
             8080/TCP.",
        ),
        (
            World::strict(2),
            claiming,
            "0 of 2 nodes fit. 2 nodes: persistentvolumeclaim \"weights\" not found.",
        ),
    ]);
}

#[test]
fn explains_parts_of_gpus() {
    let kind = NodeKind { devices: vec![("nvidia.com/mig-1g.10gb", 2)], ..h100() };
    let need = |gib: u64| {
        let mut spec = cpus(1);
        spec.gpu = Some(GpuNeed { memory_bytes: gib << 30, compute_milli: 0 });
        spec
    };
    let slices = World::new(Profile::Berth, kind, 2);
    let mut taken = slices.clone();
    (0..4).for_each(|pod| drop(taken.run(need(5), pod / 2)));
    let no_gpus = World::new(Profile::Berth, NodeKind { devices: Vec::new(), ..h100() }, 2);
    tell_all(vec![
        (
            slices,
            need(40),
            "0 of 2 nodes fit. 2 nodes: 40Gi of a GPU requested, but the largest device is \
             nvidia.com/mig-1g.10gb with 8533Mi and 14.2%. Would fit: on h100-000000 with 8533Mi \
             of a GPU instead of 40Gi.",
        ),
        (
            taken,
            need(5),
            "0 of 2 nodes fit. 2 nodes: 5Gi of a GPU requested, but all devices large enough are allocated. \
             Would fit: if serving/pod-00000004 (priority 0) left h100-000001.",
        ),
        (
            no_gpus,
            need(5),
            "0 of 2 nodes fit. 2 nodes: 5Gi of a GPU requested, but the GPUs' memory is unknown.",
        ),
    ]);
}

#[test]
fn explains_unknown_topologies_and_other_profiles() {
    let refuse =
        Config { unknown_topology: UnknownTopology::Refuse, ..Config::from(Profile::Berth) };
    let mut unknown = World::new(refuse, h100(), 0);
    (0..2).for_each(|index| unknown.bare_node(h100().node(index).unwrap()));
    // A pod of eight GPUs contradicts the topology.
    let mut doubted = World::new(refuse, h100(), 1);
    doubted.run(gpus(5), 0);

    let mut growing = World::new(Profile::Berth, h100(), 0);
    growing.pool("h100", h100().node(0).unwrap());
    let mut full = h100().node(1).unwrap();
    full.allocatable = resources(&[("cpu", "1"), ("memory", "1Gi"), ("pods", "110")]).unwrap();
    growing.pool("small", full);

    // kube-scheduler does not know that two GPUs are not on one socket.
    let mut blind = World::new(Profile::KubeScheduler, h100(), 2);
    for node in 0..2 {
        blind.run(gpus(3), node);
        blind.run(gpus(3), node);
    }
    let mut never = gpu_template("llm", 9, 3).unwrap();
    never.preemption = PreemptionPolicy::Never;

    tell_all(vec![
        (unknown, gpus(1), "0 of 2 nodes fit. 2 nodes: topology unknown."),
        (
            doubted,
            gpus(1),
            "0 of 1 nodes fit. Node h100-000000: topology unknown: the published topology \
             contradicts running pods. Would fit: if serving/pod-00000001 (priority 0) left \
             h100-000000.",
        ),
        (
            growing,
            gpus(1),
            "There are no nodes. Would fit: with one more node of pool h100, whose topology is \
             unknown.",
        ),
        (blind.clone(), gpus(2), "2 of 2 nodes fit; it waits for its turn."),
        (
            blind.clone(),
            gpus(3),
            "0 of 2 nodes fit. 2 nodes: nvidia.com/gpu: 3 requested, at most 2 free. Nearest: \
             h100-000000 lacks 1 GPU; h100-000001 lacks 1 GPU. Would fit: if serving/pod-00000004 \
             (priority 0) left h100-000001; on h100-000000 with 2 GPUs instead of 3.",
        ),
        (
            blind.clone(),
            gpu_template("llm", 9, 3).unwrap(),
            "0 of 2 nodes fit. 2 nodes: nvidia.com/gpu: 3 requested, at most 2 free. Nearest: \
             h100-000000 lacks 1 GPU; h100-000001 lacks 1 GPU. Would fit: once preemption evicts \
             serving/pod-00000004 (priority 0) from h100-000001; on h100-000000 with 2 GPUs \
             instead of 3.",
        ),
        (
            blind,
            never,
            "0 of 2 nodes fit. 2 nodes: nvidia.com/gpu: 3 requested, at most 2 free. Nearest: \
             h100-000000 lacks 1 GPU; h100-000001 lacks 1 GPU. Would fit: if serving/pod-00000004 \
             (priority 0) left h100-000001; on h100-000000 with 2 GPUs instead of 3.",
        ),
    ]);
}

#[test]
fn explains_which_pods_to_evict() {
    let mut low = World::strict(1);
    low.run(gpu_template("batch", -5, 4).unwrap(), 0);
    low.run(gpu_template("batch", -5, 4).unwrap(), 0);
    let mut budget = low.clone();
    budget.engine.apply(Event::Budget(DisruptionBudget {
        namespace: "serving".into(),
        name: "batch".into(),
        selector: Some(Selector::of_labels(&[("app", "batch")].into_iter().collect())),
        ..DisruptionBudget::default()
    }));
    let mut never = gpus(4);
    never.preemption = PreemptionPolicy::Never;
    let mut many = World::strict(1);
    (0..8).for_each(|_| drop(many.run(gpu_template("batch", -5, 1).unwrap(), 0)));
    tell_all(vec![
        (
            low.clone(),
            gpus(4),
            "0 of 1 nodes fit. Node h100-000000: nvidia.com/gpu: 4 requested, none free. Nearest: \
             h100-000000 lacks 4 GPUs on socket 1. Would fit: once preemption evicts \
             serving/pod-00000002 (priority -5) from h100-000000.",
        ),
        (
            low.clone(),
            never,
            "0 of 1 nodes fit. Node h100-000000: nvidia.com/gpu: 4 requested, none free. Nearest: \
             h100-000000 lacks 4 GPUs on socket 1. Would fit: if serving/pod-00000002 (priority \
             -5) left h100-000000.",
        ),
        (
            low.clone(),
            gpu_template("llm", -5, 4).unwrap(),
            "0 of 1 nodes fit. Node h100-000000: nvidia.com/gpu: 4 requested, none free. Nearest: \
             h100-000000 lacks 4 GPUs on socket 1. Would fit: if serving/pod-00000002 (priority \
             -5) left h100-000000.",
        ),
        (
            low,
            gpu_template("llm", -6, 4).unwrap(),
            "0 of 1 nodes fit. Node h100-000000: nvidia.com/gpu: 4 requested, none free. Nearest: \
             h100-000000 lacks 4 GPUs on socket 1.",
        ),
        (
            budget,
            gpus(4),
            "0 of 1 nodes fit. Node h100-000000: nvidia.com/gpu: 4 requested, none free. Nearest: \
             h100-000000 lacks 4 GPUs on socket 1. Would fit: once preemption evicts \
             serving/pod-00000002 (priority -5) from h100-000000, 1 eviction violating disruption \
             budgets.",
        ),
        (
            many,
            gpus(4),
            "0 of 1 nodes fit. Node h100-000000: nvidia.com/gpu: 4 requested, none free. Nearest: \
             h100-000000 lacks 4 GPUs on socket 1. Would fit: once preemption evicts \
             serving/pod-00000008 (priority -5), serving/pod-00000007 (priority -5), \
             serving/pod-00000006 (priority -5) and 1 more from h100-000000.",
        ),
    ]);
}

#[test]
fn explains_gated_nominated_and_deleted_pods() {
    let mut gated = gpus(1);
    gated.gates = vec!["quota.example.com/approval".into()];
    tell_all(vec![
        (
            World::strict(1),
            gated,
            "Not scheduled yet: waiting for schedulingGates quota.example.com/approval.",
        ),
        (World::strict(3), gpus(1), "3 of 3 nodes fit; it waits for its turn."),
    ]);

    let mut world = World::strict(1);
    (0..4).for_each(|_| drop(world.run(gpu_template("batch", -5, 2).unwrap(), 0)));
    let pod = world.ask(gpus(4));
    assert!(matches!(world.engine.decide(0), Some(Decision::Preempt(_))));
    assert_eq!(
        render(&world.explain(&pod)),
        "Nominated to h100-000000; waiting for serving/pod-00000003 (priority -5) and \
         serving/pod-00000004 (priority -5) to terminate."
    );
    // What is left is kept for it, also against pods that would fit beside those who leave.
    world.gone("pod-00000003");
    let other = world.ask(gpus(1));
    let text = render(&world.explain(&other));
    let kept = "Node h100-000000: reserved for nominated pods such as serving/pod-00000005.";
    assert!(text.starts_with(&format!("0 of 1 nodes fit. {kept}")), "{text}");

    let mut leaving = pending(&Arc::new(gpus(1)), 99);
    leaving.phase = Phase::Terminating { by_preemption: false };
    let pod = world.apply(leaving);
    assert_eq!(render(&world.explain(&pod)), "It is being deleted.");
    assert_eq!(world.engine.explain("nobody", 0), None);
}

#[test]
fn explains_why_a_pod_is_where_it_is() {
    let mut world = World::strict(3);
    world.run(gpus(2), 0);
    let spec = spread(gpus(2), ZONE, 1, false);
    let pod = world.ask(spec);
    assert!(world.engine.decide(0).is_some());
    let explanation = world.explain(&pod);
    let Explanation::Placed { node, alignment, .. } = &explanation else { panic!() };
    assert_eq!(*alignment, Alignment::Aligned);
    assert_eq!(node.as_ref(), "h100-000001");
    assert_eq!(
        render(&explanation),
        "Placed on h100-000001. It holds 2 GPUs (gpu-0 and gpu-1) and 16 CPUs on socket 0. It is \
         aligned. Free GPUs on the node now: 2 of 4 on socket 0 and 4 of 4 on socket 1; socket 1 \
         unused. 2 of 2 other nodes would take one more such pod now, 2 of them aligned; they \
         have 6 to 8 GPUs free, its own node 6. Spread by topology.kubernetes.io/zone: 1 in \
         zone-1, at least 0 on those."
    );

    let packed = world.run(gpus(2), 0);
    assert_eq!(
        render(&world.explain(&packed)),
        "Placed on h100-000000. It holds 2 GPUs (gpu-2 and gpu-3) and 16 CPUs on socket 0. It is \
         aligned. Free GPUs on the node now: 0 of 4 on socket 0 and 4 of 4 on socket 1; socket 1 \
         unused. 2 of 2 other nodes would take one more such pod now, 2 of them aligned; they \
         have 6 to 8 GPUs free, its own node 4."
    );
    let mut elsewhere = pending(&Arc::new(gpus(1)), 99);
    elsewhere.node = Some("unheard-of".into());
    let elsewhere = world.apply(elsewhere);
    let text = "Placed on unheard-of. Its alignment is unknown.";
    assert_eq!(render(&world.explain(&elsewhere)), text);
    let mut blind = World::new(Profile::KubeScheduler, h100(), 2);
    let pod = blind.ask(cpus(1));
    assert!(blind.engine.decide(0).is_some());
    assert_eq!(
        render(&blind.explain(&pod)),
        "Placed on h100-000000. It holds 1 CPU on socket 0. It is aligned. 1 of 1 other \
         node would take one more such pod now."
    );
}

fn long(number: usize) -> Arc<str> {
    format!("{number:0>253}").into()
}

fn long_pod(number: usize) -> PodName {
    PodName { namespace: long(number), name: long(number), priority: i32::MIN }
}

fn long_resource(number: usize) -> ResourceName {
    ResourceName::new(format!("{}/{}", long(number), long(number)))
}

fn long_causes(number: usize) -> Vec<Cause> {
    let requirement = |values| Requirement {
        key: long(number),
        operator: Operator::In((0..=values).map(long).collect()),
    };
    let shortage = |resource| Shortage {
        resource: long_resource(resource),
        wanted: Quantity::MAX,
        most: Quantity::MAX,
        ever: true,
    };
    vec![
        Cause::Taint(Taint { key: long(1), value: long(2), effect: Effect::NoExecute }),
        Cause::NodeAffinity { requirement: Some(requirement(1000)) },
        Cause::Unwelcome {
            key: long(number),
            domain: Some(long(number)),
            selector: Some(Selector((0..9).map(requirement).collect())),
        },
        Cause::Short((0..20).map(shortage).collect()),
        Cause::Split {
            resource: GPU.into(),
            wanted: u64::MAX,
            free: vec![u64::MAX; 64],
            most: u64::MAX,
            parts: PartKind::NumaNode,
        },
        Cause::Kubelet {
            reason: berth_kubelet::Reason::UnexpectedAdmissionError,
            words: "…".repeat(5000),
        },
        Cause::Reserved { by: long_pod(number) },
        Cause::OtherClasses {
            pool: long(number),
            classes: WorkloadClass::ALL.into_iter().collect(),
            class: WorkloadClass::Batch,
        },
        Cause::Headroom {
            headroom: long(number),
            class: WorkloadClass::Experimentation,
            room: (0..20).map(|one| (long_resource(one), Quantity::MAX)).collect(),
            need: Some(GpuNeed { memory_bytes: u64::MAX, compute_milli: u16::MAX }),
            on_one: Some(PartKind::NumaNode),
        },
    ]
}

fn long_remedies(number: usize) -> Vec<Remedy> {
    let taint = Taint { key: long(number), value: long(1), effect: Effect::NoSchedule };
    vec![
        Remedy::Evict {
            node: long(number),
            victims: (0..200).map(long_pod).collect(),
            leaving: (0..200).map(long_pod).collect(),
            budget_violations: 200,
            by_preemption: false,
        },
        Remedy::Relax { change: Relaxation::Tolerate(taint), node: long(number) },
    ]
}

fn long_miss(number: usize) -> Miss {
    let on = Some(Part { kind: PartKind::NumaNode, ids: (0..64).collect() });
    let lack = Lack { resource: long_resource(1), amount: Quantity::MAX, on };
    Miss { node: long(number), lacks: vec![lack; 100] }
}

fn long_why() -> Why {
    let part = Some(Part { kind: PartKind::NumaNode, ids: (0..64).collect() });
    let resource = long_resource(1);
    let ids = (0..100).map(|id| long(id).to_string()).collect();
    let devices = vec![HeldDevices { resource: resource.clone(), count: 100, ids }; 100];
    let usage = PartUse { part: part.clone(), resource: resource.clone(), free: 9, all: 9 };
    let free = FreeDevices { resource, here: i64::MIN, elsewhere: (i64::MIN, i64::MAX) };
    let spread =
        Preference::Spread { key: long(1), domain: long(2), here: i64::MIN, elsewhere: i64::MAX };
    Why {
        holds: Some(Holding { on: part, cpus: usize::MAX, devices }),
        parts: vec![usage; 100],
        others: Some(Others { nodes: 9, open: 9, aligned: Some(9), free: Some(free) }),
        preferences: vec![spread; 100],
    }
}

#[test]
fn explains_anything_in_under_a_thousand_characters() {
    let groups: Vec<Group> = (0..43)
        .flat_map(long_causes)
        .map(|cause| Group { cause, nodes: 1, examples: vec![long(7); 3] })
        .collect();
    let nearest: Vec<Miss> = (0..100).map(long_miss).collect();
    let remedies: Vec<Remedy> = (0..150).flat_map(long_remedies).collect();
    assert!(groups.len() > 300);
    for (groups, nearest, remedies) in [
        (groups.as_slice(), nearest.as_slice(), remedies.as_slice()),
        (&groups, &[], &[]),
        (&groups[..1], &nearest, &[]),
        (&[], &nearest, &remedies),
        (&groups[5..6], &nearest[..1], &remedies[..1]),
    ] {
        let text = render(&Explanation::Waiting {
            pod: long_pod(0),
            nodes: 300,
            fitting: 0,
            groups: groups.to_vec(),
            nearest: nearest.to_vec(),
            remedies: remedies.to_vec(),
            overdue: Vec::new(),
        });
        assert!(text.len() < 1000, "{} bytes: {text}", text.len());
        assert!(text.starts_with("0 of 300 nodes fit. ") && text.ends_with('.'), "{text}");
        assert_eq!(text.contains("Nearest: "), !nearest.is_empty(), "{text}");
        assert_eq!(text.contains("Would fit: "), !remedies.is_empty(), "{text}");
        assert_eq!(text.contains("more reasons on "), groups.len() > 1, "{text}");
    }
    let (pod, node) = (long_pod(0), long(1));
    for explanation in [
        Explanation::Gated { pod: pod.clone(), gates: (0..500).map(long).collect() },
        Explanation::AwaitsRoom {
            pod: pod.clone(),
            node: node.clone(),
            leaving: (0..500).map(long_pod).collect(),
            overdue: (0..500).map(long_pod).collect(),
        },
        Explanation::Waiting {
            pod: pod.clone(),
            nodes: 1,
            fitting: 0,
            groups: Vec::new(),
            nearest: (0..9).map(long_miss).collect(),
            remedies: long_remedies(0),
            overdue: (0..500).map(long_pod).collect(),
        },
        Explanation::Placed {
            pod,
            node,
            alignment: Alignment::Unknown,
            grant: Some(GpuGrant { resource: long_resource(1), gpu: Some(u16::MAX) }),
            why: Box::new(long_why()),
        },
    ] {
        let text = render(&explanation);
        assert!(text.len() < 1000 && text.ends_with('.'), "{text}");
    }
}

#[test]
fn explains_many_hosts_in_few_groups() {
    // Every host is a domain of its own, and has one more pod than allowed.
    let mut world = World::strict(40);
    let spec = spread(gpus(1), "kubernetes.io/hostname", 1, true);
    (0..39).for_each(|node| drop(world.run(spec.clone(), node)));
    world.run(gpu_template("big", 5, 4).unwrap(), 39);
    world.run(gpu_template("big", 5, 4).unwrap(), 39);
    assert_eq!(
        world.tell(spec),
        "0 of 40 nodes fit. 39 nodes: topology spread by kubernetes.io/hostname: it would exceed \
         the minimum by 2, 1 allowed. Node h100-000039: nvidia.com/gpu: 1 requested, none free. \
         Nearest: h100-000039 lacks 1 GPU on socket 0. Would fit: if serving/pod-00000039 \
         (priority 0) left h100-000038; on h100-000000 with ScheduleAnyway for its spread by \
         kubernetes.io/hostname."
    );
}

/// Random pods and nodes with all kinds of constraints.
struct Chaos {
    dice: Dice,
    number: u64,
}

impl Chaos {
    fn one_in(&mut self, chance: usize) -> bool {
        self.dice.below(chance) == 0
    }

    fn spec(&mut self) -> PodSpec {
        let app = ["llm", "batch", "web"][self.dice.below(3)];
        let priority = self.dice.below(3) as i32;
        let gpus = [0, 1, 1, 2, 2, 3, 4, 8][self.dice.below(8)];
        let mut spec = match gpus {
            0 => template(app, priority, &[("cpu", "20"), ("memory", "9Gi")]).unwrap(),
            gpus => gpu_template(app, priority, gpus).unwrap(),
        };
        if self.one_in(4) {
            let key = [ZONE, "kubernetes.io/hostname"][self.dice.below(2)];
            let hard = self.one_in(2);
            spec = spread(spec, key, 1, hard);
        }
        if self.one_in(6) {
            spec.node_selector.insert(ZONE, format!("zone-{}", self.dice.below(4)));
        }
        if self.one_in(8) {
            let values = vec![format!("h100-{:06}", self.dice.below(5)).into()];
            let requirement = Requirement {
                key: "kubernetes.io/hostname".into(),
                operator: Operator::NotIn(values),
            };
            let term = NodeTerm { labels: vec![requirement], name: Vec::new() };
            spec.node_affinity.required = Some(vec![term]);
        }
        let key = [ZONE, "kubernetes.io/hostname"][self.dice.below(2)];
        if self.one_in(8) {
            spec.pod_affinity.anti_required = vec![pods_near(key, app)];
        } else if self.one_in(10) {
            spec.pod_affinity.required = vec![pods_near(key, "web")];
        }
        if self.one_in(8) {
            spec.host_ports = vec![HostPort { ip: None, protocol: Protocol::Tcp, port: 80 }];
        }
        if self.one_in(5) {
            spec.preemption = PreemptionPolicy::Never;
        }
        spec
    }

    fn node(&mut self) -> Node {
        let mut node = h100().node(self.dice.below(6)).unwrap();
        if self.one_in(4) {
            node.taints.push(taint("dedicated", "batch"));
        }
        node.unschedulable = self.one_in(6);
        node
    }

    fn happen(&mut self, world: &World) -> Vec<Event> {
        let bound: Vec<&PodObject> = world.pods.values().collect();
        match self.dice.below(10) {
            0 => vec![Event::Node(self.node())],
            1 if self.one_in(3) => vec![Event::NodeGone(self.node().name)],
            1..=3 if !bound.is_empty() => {
                vec![Event::PodGone(bound[self.dice.below(bound.len())].uid.clone())]
            }
            _ => {
                self.number += 1;
                vec![Event::Pod(pending(&Arc::new(self.spec()), self.number))]
            }
        }
    }
}

impl World {
    fn follow(&mut self, event: &Event) {
        match event {
            Event::Node(node) => drop(self.nodes.insert(node.name.clone(), node.clone())),
            Event::NodeGone(name) => drop(self.nodes.remove(name)),
            Event::Pod(pod) => drop(self.pods.insert(pod.name.clone(), pod.clone())),
            Event::PodGone(uid) => self.pods.retain(|_, pod| pod.uid != *uid),
            _ => {}
        }
        self.engine.apply(event.clone());
    }

    fn decided(&mut self) -> Option<Decision> {
        let decision = self.engine.decide(self.now_ms);
        let mut pods = self.pods.values_mut();
        match &decision {
            Some(Decision::Bind(binding)) => {
                let pod = pods.find(|pod| pod.uid == binding.pod).unwrap();
                pod.node = Some(binding.node.clone());
                pod.nominated = None;
            }
            Some(Decision::Preempt(preempting)) => {
                let pod = pods.find(|pod| pod.uid == preempting.pod).unwrap();
                pod.nominated = Some(preempting.node.clone());
            }
            _ => {}
        }
        decision
    }
}

/// A cluster with random events. One engine explains, the other does not.
fn chaos(seed: u64, profile: Profile) {
    let mut chaos = Chaos { dice: Dice::new(seed), number: 0 };
    let mut asked = World::new(profile, h100(), 3);
    asked.pool("h100", h100().node(7).unwrap());
    let mut other = h100().node(8).unwrap();
    other.taints.push(taint("dedicated", "batch"));
    asked.pool("tainted", other);
    // Topologies are known of nodes that come later, too.
    for index in 0..6 {
        let (node, topology) = (h100().node(index).unwrap().name, h100().topology().unwrap());
        asked.engine.apply(Event::Topology { node, topology: Some(topology) });
    }
    let mut silent = asked.clone();
    for step in 0..60 {
        (asked.now_ms, silent.now_ms) = (step * 20_000, step * 20_000);
        for event in chaos.happen(&asked) {
            asked.follow(&event);
            silent.follow(&event);
        }
        let names: Vec<Arc<str>> = asked.pods.keys().cloned().collect();
        for name in &names {
            if chaos.one_in(6) {
                let explanation = asked.explain(name);
                asked.check(name, &explanation);
            }
        }
        for _ in 0..chaos.dice.below(4) {
            assert_eq!(asked.decided(), silent.decided(), "seed {seed}, step {step}");
        }
        assert_eq!(asked.engine.queued(), silent.engine.queued(), "seed {seed}, step {step}");
    }
}

#[test]
fn explanations_are_correct_and_leave_no_trace() {
    (0..60).for_each(|seed| chaos(seed, Profile::Berth));
    (60..80).for_each(|seed| chaos(seed, Profile::KubeScheduler));
}
