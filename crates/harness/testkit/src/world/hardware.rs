//! Nodes of arbitrary worlds: small machines of every kind that matters.
//!
//! Owns what nodes look like, outside and inside. Must not know what happens to them.

use std::sync::Arc;

use berth_kubelet::NodeTopology;
use berth_kubelet::{
    CpuManagerPolicy, CpuOption, CpuOptions, KubeletConfig, MemoryManagerPolicy, ReservedCpus,
    ReservedMemory, TopologyPolicy, TopologyScope,
};
use berth_model::device::PreferredAllocation;
use berth_model::gpu::{Gpu, GpuInventory, Health, MigStrategy, Naming};
use berth_model::idset::CpuSet;
use berth_model::label::Labels;
use berth_model::mig::{Board, Layout};
use berth_model::node::Node;
use berth_model::numa::NumaMask;
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::MemoryKind;
use berth_model::taint::{Effect, Taint};

use crate::cluster::{BuildError, Dice, GPU, ZONE, resources};
use crate::node::{RegularMachine, spread_devices};

/// Label of the rack, a second coarse key.
pub(super) const RACK: &str = "rack";

/// Label that tells nodes apart.
pub(super) const HOSTNAME: &str = "kubernetes.io/hostname";

const H100: &str = "NVIDIA-H100-80GB-HBM3";

/// The resources of MIG nodes.
pub(super) const SLICES: [&str; 2] = ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"];

/// A node and what it is like inside, which need not be told.
#[derive(Clone, Debug)]
pub(super) struct Hardware {
    pub(super) node: Node,
    pub(super) topology: Option<Arc<NodeTopology>>,
}

/// An arbitrary node of this number.
pub(super) fn arbitrary(dice: &mut Dice, number: usize) -> Result<Hardware, BuildError> {
    let (sockets, numa_per_socket) = [(2, 1), (2, 1), (1, 1), (2, 2)][dice.below(4)];
    let nodes = sockets * numa_per_socket;
    let machine = RegularMachine {
        sockets,
        numa_per_socket,
        cores_per_numa: 4,
        threads: 2,
        memory_bytes: 16 << 30,
    }
    .build()?;
    let kind = dice.below(8);
    let devices: Vec<(&str, usize)> = match kind {
        0..=2 => vec![(GPU, 2 * nodes)],
        3 => vec![(GPU, 4 * nodes)],
        4 => vec![(SLICES[0], 2 * nodes), (SLICES[1], nodes)],
        _ => Vec::new(),
    };
    let config = config(dice, nodes);
    let mut pools: Vec<_> =
        devices.iter().map(|(name, count)| spread_devices(name, *count, &machine)).collect();
    let preferred = match dice.below(8) {
        0 => PreferredAllocation::Unpredictable,
        _ => PreferredAllocation::LowestId,
    };
    pools.iter_mut().for_each(|pool| pool.preferred = preferred);
    let topology = match kind {
        5 => NodeTopology::with_gpus(machine, config, sliced(dice, nodes, preferred)?, pools)?,
        _ => NodeTopology::new(machine, config, pools)?,
    };
    let cpu = (8 * nodes - 2).to_string();
    let memory = format!("{}Gi", 16 * nodes - 1);
    let most = ["110", "110", "6"][dice.below(3)];
    let mut allocatable = resources(&[("cpu", &cpu), ("memory", &memory), ("pods", most)])?;
    for pool in topology.empty_kubelet().pools() {
        let count = Quantity::from_units(pool.devices.len() as i64, Format::DecimalSi);
        allocatable.insert(pool.resource.clone(), count);
    }
    let name: Arc<str> = format!("node-{number:02}").into();
    let labels = labels(dice, &name, kind);
    let taints = taints(dice);
    let unschedulable = dice.below(20) == 0;
    let node = Node { name, labels, taints, unschedulable, allocatable, ..Node::default() };
    Ok(Hardware { node, topology: (dice.below(6) > 0).then(|| Arc::new(topology)) })
}

/// A GPU on each NUMA node, divided in one way or another, or not at all yet.
fn sliced(
    dice: &mut Dice,
    nodes: usize,
    preferred: PreferredAllocation,
) -> Result<GpuInventory, BuildError> {
    let board = Board::by_product(H100, None)?;
    let mut gpus = Vec::new();
    for at in 0..nodes {
        let text = match dice.below(8) {
            0..=3 => "1g.10gb@0 + 1g.10gb@1 + 3g.40gb@4",
            4 => "3g.40gb@0 + 3g.40gb@4",
            5 => "1g.10gb@0 + 1g.10gb@1 + 1g.10gb@2 + 1g.10gb@3 + 1g.10gb@4",
            6 => "7g.80gb@0",
            _ => "",
        };
        gpus.push(Gpu {
            id: format!("GPU-{at}"),
            product: H100.to_owned(),
            memory_bytes: 80 << 30,
            numa: NumaMask::single(at),
            health: Health::Healthy,
            mig: Some(Layout::parse(board, text)?),
            replicas: None,
        });
    }
    let naming = Naming { mig: MigStrategy::Mixed, shared_suffix: false };
    Ok(GpuInventory { gpus, naming, preferred })
}

fn config(dice: &mut Dice, nodes: usize) -> KubeletConfig {
    let policies = [
        TopologyPolicy::SingleNumaNode,
        TopologyPolicy::SingleNumaNode,
        TopologyPolicy::Restricted,
        TopologyPolicy::BestEffort,
        TopologyPolicy::None,
    ];
    let scopes = [TopologyScope::Container, TopologyScope::Pod];
    let options: CpuOptions =
        (dice.below(5) == 0).then_some(CpuOption::FullPcpusOnly).into_iter().collect();
    // One core of the first NUMA node, both threads.
    let reserved = ReservedCpus::Explicit(CpuSet::from_iter([0, 4 * nodes]));
    KubeletConfig {
        topology_policy: policies[dice.below(policies.len())],
        topology_scope: scopes[dice.below(2)],
        cpu_manager: CpuManagerPolicy::Static { options, reserved },
        memory_manager: if dice.below(3) == 0 {
            MemoryManagerPolicy::None
        } else {
            let (numa, kind, bytes) = (0, MemoryKind::Ordinary, 1 << 30);
            MemoryManagerPolicy::Static { reserved: vec![ReservedMemory { numa, kind, bytes }] }
        },
        ..KubeletConfig::default()
    }
}

/// Labels as GPU feature discovery and people write them.
fn labels(dice: &mut Dice, name: &Arc<str>, kind: usize) -> Labels {
    let mut labels = Labels::default();
    labels.insert(HOSTNAME, name.clone());
    if dice.below(10) > 0 {
        labels.insert(ZONE, format!("zone-{}", dice.below(3)));
    }
    if dice.below(3) > 0 {
        labels.insert(RACK, format!("rack-{}", dice.below(4)));
    }
    labels.insert("pool", ["red", "blue"][dice.below(2)]);
    if dice.below(2) == 0 {
        labels.insert("disk", "ssd");
    }
    match kind {
        3 => {
            labels.insert("nvidia.com/gpu.product", format!("{H100}-SHARED"));
            labels.insert("nvidia.com/gpu.memory", "81559");
            labels.insert("nvidia.com/gpu.replicas", "4");
            labels
                .insert("nvidia.com/gpu.sharing-strategy", ["mps", "time-slicing"][dice.below(2)]);
        }
        0..=5 => {
            labels.insert("nvidia.com/gpu.product", H100);
            labels.insert("nvidia.com/gpu.memory", "81559");
        }
        _ => {}
    }
    labels
}

pub(super) fn taints(dice: &mut Dice) -> Vec<Taint> {
    let taint = |effect| Taint { key: "dedicated".into(), value: "batch".into(), effect };
    match dice.below(8) {
        0 => vec![taint(Effect::NoSchedule)],
        1 => vec![taint(Effect::PreferNoSchedule)],
        _ => Vec::new(),
    }
}
