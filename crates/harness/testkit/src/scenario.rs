//! Arbitrary nodes and sequences of pods, made from bytes.
//!
//! Property tests feed random bytes, fuzzers bytes they evolve. Odd machines and options are meant
//! to come up: gaps in ids, memory-only nodes, uneven cores, devices on several NUMA nodes.

use std::collections::BTreeMap;

use arbitrary::{Result, Unstructured};
use berth_kubelet::{
    CpuManagerPolicy, CpuOption, CpuOptions, Kubelet, KubeletConfig, KubeletVersion,
    MemoryManagerPolicy, ReservedCpus, ReservedMemory, TopologyPolicy, TopologyScope,
};
use berth_model::device::{Device, DevicePool, PreferredAllocation};
use berth_model::idset::CpuSet;
use berth_model::machine::{CoreSpec, Machine, MachineSpec, NumaSpec};
use berth_model::pod::{Container, ContainerKind, Pod, Resources};
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::{MemoryKind, ResourceList, ResourceName};

const MIB: u64 = 1 << 20;
const HUGEPAGE: MemoryKind = MemoryKind::Hugepages { page_bytes: 2 * MIB };
const RESOURCES: [&str; 3] = ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "rdma/hca"];

/// A node and what happens on it.
#[derive(Debug)]
pub struct Scenario {
    /// The node, empty.
    pub kubelet: Kubelet,
    /// Whether every socket has as many CPUs as the others, and every core as many threads. On
    /// other machines the kubelet hands CPUs out twice.
    pub even: bool,
    /// What happens.
    pub steps: Vec<Step>,
}

/// One step.
#[derive(Debug)]
pub enum Step {
    /// A pod arrives.
    Admit(Pod),
    /// The n-th of the pods on the node goes, counted round.
    Remove(usize),
}

/// Makes a scenario; `None` if the bytes describe a node no kubelet would run on.
pub fn scenario(bytes: &mut Unstructured<'_>) -> Result<Option<Scenario>> {
    let (spec, even) = machine(bytes)?;
    let hugepages = spec.numa.iter().all(|node| !node.hugepages.is_empty());
    let Ok(machine) = Machine::new(spec) else { return Ok(None) };
    let config = config(bytes, &machine)?;
    let pools = RESOURCES
        .iter()
        .map(|resource| pool(bytes, resource, &machine))
        .collect::<Result<Vec<_>>>()?;
    let Ok(kubelet) = Kubelet::new(machine, config, pools) else { return Ok(None) };
    let mut steps = Vec::new();
    for index in 0..bytes.int_in_range(1..=12)? {
        steps.push(if bytes.ratio(1, 4)? {
            Step::Remove(bytes.int_in_range(0..=9)?)
        } else {
            Step::Admit(pod(bytes, index, kubelet.machine(), hugepages)?)
        });
    }
    Ok(Some(Scenario { kubelet, even, steps }))
}

fn machine(bytes: &mut Unstructured<'_>) -> Result<(MachineSpec, bool)> {
    let sockets = bytes.int_in_range(1..=4usize)?;
    let numa_per_socket =
        if sockets > 2 { bytes.int_in_range(0..=2)? } else { bytes.int_in_range(0..=4)? };
    let threads = bytes.int_in_range(1..=4usize)?;
    let cores_per_numa = bytes.int_in_range(1..=8usize)?;
    let cores_per_uncore = bytes.int_in_range(0..=4usize)?;
    let uneven = bytes.ratio(1, 5)?;
    let spanning = bytes.ratio(1, 8)?;
    let gaps = bytes.ratio(1, 6)?;
    let adjacent = bytes.arbitrary::<bool>()?;
    let hugepages = bytes.ratio(1, 3)?;
    // No NUMA node per socket: all sockets share one.
    let cpu_nodes = (sockets * numa_per_socket).max(1);
    let memory_only = if bytes.ratio(1, 5)? { bytes.int_in_range(1..=2)? } else { 0 };
    let mut spec = MachineSpec { sockets: Some(sockets), ..MachineSpec::default() };
    let id = |position: usize| if gaps { position * 2 + 1 } else { position } as u32;
    let nodes = cpu_nodes + memory_only;
    for position in 0..nodes {
        let pages = if hugepages { Some(bytes.int_in_range(0..=512u64)?) } else { None };
        spec.numa.push(NumaSpec {
            id: id(position),
            memory_bytes: (2 + bytes.int_in_range(0..=8u64)?) << 30,
            hugepages: pages.map(|pages| (2 * MIB, pages)).into_iter().collect(),
            distances: (0..nodes)
                .map(|to| if to == position { Ok(10) } else { bytes.int_in_range(11..=40) })
                .collect::<Result<_>>()?,
        });
    }
    let groups = cpu_nodes.max(sockets);
    let total = groups * cores_per_numa;
    for group in 0..groups {
        for index in 0..cores_per_numa {
            let core = group * cores_per_numa + index;
            let short = uneven && bytes.ratio(1, 4)?;
            let online = if short { threads.div_ceil(2) } else { threads };
            let cpu =
                |thread| if adjacent { core * threads + thread } else { thread * total + core };
            // Now and then a core sits on the next socket: NUMA nodes that span sockets.
            let astray = spanning && bytes.ratio(1, 3)?;
            let socket = group * sockets / groups + usize::from(astray);
            spec.cores.push(CoreSpec {
                numa: id(group * cpu_nodes / groups),
                socket: socket.min(sockets - 1) as u32,
                uncore: core.checked_div(cores_per_uncore).map(|cache| cache as u32),
                threads: (0..online).map(cpu).collect(),
            });
        }
    }
    Ok((spec, !uneven && !spanning))
}

fn config(bytes: &mut Unstructured<'_>, machine: &Machine) -> Result<KubeletConfig> {
    use KubeletVersion::{V1_33, V1_34, V1_35, V1_36, V1_37};
    use TopologyPolicy::{BestEffort, None, Restricted, SingleNumaNode};
    let mut config = KubeletConfig {
        version: *bytes.choose(&[V1_36, V1_33, V1_34, V1_35, V1_37])?,
        topology_policy: *bytes.choose(&[BestEffort, None, Restricted, SingleNumaNode])?,
        topology_scope: *bytes.choose(&[TopologyScope::Container, TopologyScope::Pod])?,
        prefer_closest_numa_nodes: bytes.ratio(1, 4)?,
        max_allowable_numa_nodes: Some(12),
        ..KubeletConfig::default()
    };
    if bytes.ratio(4, 5)? {
        let options: CpuOptions = [
            CpuOption::FullPcpusOnly,
            CpuOption::DistributeCpusAcrossNuma,
            CpuOption::AlignBySocket,
            CpuOption::DistributeCpusAcrossCores,
            CpuOption::StrictCpuReservation,
            CpuOption::PreferAlignCpusByUncoreCache,
        ]
        .into_iter()
        .filter(|_| bytes.ratio(1, 4).unwrap_or(false))
        .collect();
        let reserved = if bytes.arbitrary()? {
            ReservedCpus::Millis(bytes.int_in_range(1..=3000)?)
        } else {
            let first: Vec<usize> = machine.cpus().iter().take(4).collect();
            ReservedCpus::Explicit(CpuSet::from_iter([*bytes.choose(&first)?]))
        };
        config.cpu_manager = CpuManagerPolicy::Static { options, reserved };
    }
    if bytes.ratio(2, 3)? {
        let node = &machine.numa()[bytes.choose_index(machine.numa().len())?];
        let (numa, kind) = (node.id, MemoryKind::Ordinary);
        let reserved = vec![ReservedMemory { numa, kind, bytes: 256 * MIB }];
        config.memory_manager = MemoryManagerPolicy::Static { reserved };
    }
    Ok(config)
}

fn pool(bytes: &mut Unstructured<'_>, resource: &str, machine: &Machine) -> Result<DevicePool> {
    use PreferredAllocation::{HighestId, LowestId, NotImplemented, Unpredictable};
    let preferred = *bytes.choose(&[LowestId, NotImplemented, HighestId, Unpredictable])?;
    let nodes = machine.numa().len();
    let devices = (0..bytes.int_in_range(0..=8)?)
        .map(|index| {
            let attached = bytes.int_in_range(0..=9)?;
            let count = match attached {
                0 => 0,
                1 => 2,
                _ => 1,
            };
            Ok(Device {
                id: format!("dev-{index}"),
                numa: (0..count).map(|_| bytes.choose_index(nodes)).collect::<Result<_>>()?,
                misplaced: bytes.ratio(1, 20)?,
                healthy: !bytes.ratio(1, 10)?,
            })
        })
        .collect::<Result<_>>()?;
    Ok(DevicePool { resource: resource.into(), preferred, devices })
}

fn pod(
    bytes: &mut Unstructured<'_>,
    index: usize,
    machine: &Machine,
    hugepages: bool,
) -> Result<Pod> {
    let mut containers = Vec::new();
    for at in 0..bytes.int_in_range(0..=2)? {
        let kind = *bytes.choose(&[ContainerKind::Init, ContainerKind::Sidecar])?;
        containers.push(container(bytes, format!("i{at}"), kind, machine, hugepages)?);
    }
    for at in 0..bytes.int_in_range(1..=2)? {
        let kind = ContainerKind::App;
        containers.push(container(bytes, format!("c{at}"), kind, machine, hugepages)?);
    }
    let pod_level = ResourceList::from([
        (ResourceName::cpu(), Quantity::from_units(4, Format::DecimalSi)),
        (ResourceName::memory(), Quantity::from_bytes(1 << 30)),
    ]);
    let resources =
        bytes.ratio(1, 16)?.then(|| Resources { requests: pod_level.clone(), limits: pod_level });
    Ok(Pod { name: format!("pod-{index}"), containers, resources, overhead: BTreeMap::new() })
}

fn container(
    bytes: &mut Unstructured<'_>,
    name: String,
    kind: ContainerKind,
    machine: &Machine,
    hugepages: bool,
) -> Result<Container> {
    let mut limits = ResourceList::new();
    let most = machine.cpus().len() as i64;
    let cpus = if bytes.ratio(1, 8)? {
        Quantity::from_milli(bytes.int_in_range(1..=4000)?)
    } else {
        Quantity::from_units(bytes.int_in_range(1..=(most / 4).max(1))?, Format::DecimalSi)
    };
    limits.insert(ResourceName::cpu(), cpus);
    let memory = bytes.int_in_range(1..=6000)? * MIB as i64;
    limits.insert(ResourceName::memory(), Quantity::from_bytes(memory));
    if hugepages && bytes.ratio(1, 3)? {
        let pages = bytes.int_in_range(0..=300)?;
        limits.insert(HUGEPAGE.resource_name(), Quantity::from_bytes(pages * 2 * MIB as i64));
    }
    for resource in RESOURCES {
        if bytes.ratio(1, 3)? {
            let count = bytes.int_in_range(0..=4)?;
            limits.insert(resource.into(), Quantity::from_units(count, Format::DecimalSi));
        }
    }
    let mut requests = limits.clone();
    if bytes.ratio(1, 10)? {
        requests.insert(ResourceName::cpu(), Quantity::from_milli(1));
    }
    Ok(Container { name, kind, resources: Resources { requests, limits } })
}
