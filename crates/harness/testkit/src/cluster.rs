//! Builders for clusters of GPU nodes and the pods of a serving mix, for tests and benches.

use std::sync::Arc;

use berth_engine::event::Event;
use berth_kubelet::NodeTopology;
use berth_kubelet::{
    CpuManagerPolicy, CpuOptions, KubeletConfig, MemoryManagerPolicy, ReservedCpus, ReservedMemory,
    TopologyPolicy,
};
use berth_model::affinity::{NodeInclusionPolicy, SpreadConstraint, WhenUnsatisfiable};
use berth_model::device::PreferredAllocation;
use berth_model::gpu::{Gpu, GpuInventory, Health, MigStrategy, Naming};
use berth_model::idset::CpuSet;
use berth_model::label::{Labels, Selector};
use berth_model::mig::{Board, Layout};
use berth_model::node::Node;
use berth_model::numa::NumaMask;
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::{MemoryKind, ResourceList, ResourceName};
use berth_model::spec::{Phase, PodObject, PodSpec};

use crate::node::{RegularMachine, pod, spread_devices};

/// Whole GPUs.
pub const GPU: &str = "nvidia.com/gpu";

/// Label of the zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// Why a cluster could not be built: a builder was asked for something impossible.
pub type BuildError = Box<dyn std::error::Error + Send + Sync>;

/// A kind of node: two sockets, 64 cores, 2 TiB, and devices.
#[derive(Clone, Debug)]
pub struct NodeKind {
    /// Its pool.
    pub pool: &'static str,
    /// The GPUs' product, as feature discovery labels it.
    pub product: &'static str,
    /// The kubelet's topology policy.
    pub policy: TopologyPolicy,
    /// Devices by resource, spread evenly over both sockets.
    pub devices: Vec<(&'static str, usize)>,
}

impl NodeKind {
    /// Eight whole GPUs.
    pub fn whole(pool: &'static str, product: &'static str, policy: TopologyPolicy) -> Self {
        Self { pool, product, policy, devices: vec![(GPU, 8)] }
    }

    /// What such a node looks like inside. To be shared by all nodes of the kind.
    pub fn topology(&self) -> Result<Arc<NodeTopology>, BuildError> {
        let machine = RegularMachine {
            sockets: 2,
            numa_per_socket: 1,
            cores_per_numa: 32,
            threads: 2,
            memory_bytes: 1 << 40,
        }
        .build()?;
        let config = KubeletConfig {
            topology_policy: self.policy,
            cpu_manager: CpuManagerPolicy::Static {
                options: CpuOptions::default(),
                reserved: ReservedCpus::Explicit(CpuSet::from_iter([0, 64])),
            },
            memory_manager: MemoryManagerPolicy::Static {
                reserved: vec![ReservedMemory {
                    numa: 0,
                    kind: MemoryKind::Ordinary,
                    bytes: 1 << 30,
                }],
            },
            ..KubeletConfig::default()
        };
        let devices = self.devices.iter();
        let devices = devices.map(|(name, count)| spread_devices(name, *count, &machine)).collect();
        Ok(Arc::new(NodeTopology::new(machine, config, devices)?))
    }

    /// The node of this number, in one of three zones.
    pub fn node(&self, index: usize) -> Result<Node, BuildError> {
        let name = format!("{}-{index:06}", self.pool);
        let labels: Labels = [
            ("kubernetes.io/hostname", name.clone()),
            (ZONE, format!("zone-{}", index % 3)),
            ("pool", self.pool.to_owned()),
            ("nvidia.com/gpu.product", self.product.to_owned()),
        ]
        .into_iter()
        .collect();
        let mut allocatable = resources(&[("cpu", "126"), ("memory", "2047Gi"), ("pods", "110")])?;
        for (name, count) in &self.devices {
            allocatable.insert(ResourceName::new(*name), Quantity::parse(&count.to_string())?);
        }
        Ok(Node { name: name.into(), labels, allocatable, ..Node::default() })
    }

    /// The events that make `count` nodes, numbered from `first`.
    pub fn nodes(&self, first: usize, count: usize) -> Result<Vec<Event>, BuildError> {
        let topology = self.topology()?;
        let mut events = Vec::new();
        for index in first..first + count {
            let node = self.node(index)?;
            let (name, topology) = (node.name.clone(), Some(topology.clone()));
            events.push(Event::Node(node));
            events.push(Event::Topology { node: name, topology });
        }
        Ok(events)
    }
}

/// A node of two sockets whose GPUs have MIG on, offered slice by slice.
#[derive(Clone, Debug)]
pub struct SlicedNode {
    /// Its name.
    pub name: &'static str,
    /// The GPUs' product, as feature discovery labels it.
    pub product: &'static str,
    /// The slices of each GPU, such as `3g.40gb@0 + 3g.40gb@4`; empty for none.
    pub slices: Vec<&'static str>,
    /// Which slices the plugin would rather hand out.
    pub preferred: PreferredAllocation,
}

impl SlicedNode {
    /// GPUs of 80 GB with these slices, of which the lowest ids are handed out first.
    pub fn a100(name: &'static str, slices: &[&'static str]) -> Self {
        Self {
            name,
            product: "NVIDIA-A100-SXM4-80GB",
            slices: slices.to_vec(),
            preferred: PreferredAllocation::LowestId,
        }
    }

    /// What it looks like inside.
    pub fn topology(&self) -> Result<Arc<NodeTopology>, BuildError> {
        let board = Board::by_product(self.product, None)?;
        let mut gpus = Vec::new();
        for (at, slices) in self.slices.iter().enumerate() {
            let mig = match *slices {
                "" => Layout::empty(board)?,
                text => Layout::parse(board, text)?,
            };
            gpus.push(Gpu {
                id: format!("GPU-{at}"),
                product: self.product.to_owned(),
                memory_bytes: 80 << 30,
                numa: NumaMask::single(at * 2 / self.slices.len()),
                health: Health::Healthy,
                mig: Some(mig),
                replicas: None,
            });
        }
        let naming = Naming { mig: MigStrategy::Mixed, shared_suffix: false };
        let gpus = GpuInventory { gpus, naming, preferred: self.preferred };
        let machine = RegularMachine {
            sockets: 2,
            numa_per_socket: 1,
            cores_per_numa: 32,
            threads: 2,
            memory_bytes: 1 << 40,
        };
        let config = KubeletConfig::default();
        Ok(Arc::new(NodeTopology::with_gpus(machine.build()?, config, gpus, Vec::new())?))
    }

    /// The events that make it.
    pub fn events(&self) -> Result<[Event; 2], BuildError> {
        Ok(sliced_node(self.name, self.product, self.topology()?))
    }
}

/// The events that make a node with such an inside, which offers the devices that it has.
pub fn sliced_node(name: &str, product: &str, topology: Arc<NodeTopology>) -> [Event; 2] {
    let labels =
        [("kubernetes.io/hostname", name), ("nvidia.com/gpu.product", product)].into_iter();
    let units = |count: i64| Quantity::from_units(count, Format::DecimalSi);
    let plain = [("cpu", 126), ("memory", 2 << 40), ("pods", 110)];
    let mut allocatable: ResourceList =
        plain.into_iter().map(|(name, count)| (ResourceName::new(name), units(count))).collect();
    for pool in topology.empty_kubelet().pools() {
        let healthy = pool.devices.iter().filter(|device| device.healthy).count();
        allocatable.insert(pool.resource.clone(), units(healthy as i64));
    }
    let node = Node { name: name.into(), labels: labels.collect(), allocatable, ..Node::default() };
    [Event::Node(node), Event::Topology { node: name.into(), topology: Some(topology) }]
}

/// Quantities by resource.
pub fn resources(pairs: &[(&str, &str)]) -> Result<ResourceList, BuildError> {
    let mut list = ResourceList::new();
    for (name, text) in pairs {
        list.insert(ResourceName::new(*name), Quantity::parse(text)?);
    }
    Ok(list)
}

/// The template of a workload: one container with these limits.
pub fn template(app: &str, priority: i32, limits: &[(&str, &str)]) -> Result<PodSpec, BuildError> {
    let mut pod = pod("", limits)?;
    pod.name.clear();
    Ok(PodSpec {
        namespace: "serving".into(),
        labels: [("app", app)].into_iter().collect(),
        pod,
        priority,
        ..PodSpec::default()
    })
}

/// The template of a workload that asks for GPUs, with 8 CPUs and 64 GiB for each; all eight come with
/// most of the node, or else CPUs and memory would fit on one socket and the GPUs would not.
pub fn gpu_template(app: &str, priority: i32, gpus: u32) -> Result<PodSpec, BuildError> {
    let (cpu, memory) = if gpus < 8 { (gpus * 8, gpus * 64) } else { (120, 1_800) };
    let (cpu, memory) = (cpu.to_string(), format!("{memory}Gi"));
    let gpus = gpus.to_string();
    template(app, priority, &[("cpu", &cpu), ("memory", &memory), (GPU, &gpus)])
}

/// Spreads the pods of a template over the values of a key.
pub fn spread(mut spec: PodSpec, key: &str, max_skew: i32, hard: bool) -> PodSpec {
    let selector = Some(Selector::of_labels(&spec.labels));
    spec.spread.push(SpreadConstraint {
        max_skew,
        topology_key: key.into(),
        unsatisfiable: if hard {
            WhenUnsatisfiable::DoNotSchedule
        } else {
            WhenUnsatisfiable::ScheduleAnyway
        },
        selector,
        min_domains: 1,
        node_affinity: NodeInclusionPolicy::Honor,
        node_taints: NodeInclusionPolicy::Ignore,
        match_label_keys: Vec::new(),
    });
    spec
}

/// A pod of a template that looks for its place.
pub fn pending(spec: &Arc<PodSpec>, number: u64) -> PodObject {
    PodObject {
        uid: format!("uid-{number:08}").into(),
        name: format!("pod-{number:08}").into(),
        spec: spec.clone(),
        created_at_ms: number as i64,
        started_at_ms: None,
        node: None,
        nominated: None,
        phase: Phase::Alive,
        deletion: None,
        gpu_grant: None,
        claims: Arc::default(),
    }
}

/// Numbers that look random and are the same in every run.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, by SplitMix64.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.roll() % bound as u64) as usize }
    }

    /// Puts a list into another order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at + 1));
        }
    }
}
