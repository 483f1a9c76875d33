//! Pools of nodes, from a compact description to whole nodes.
//!
//! Owns what a described machine becomes: its NUMA nodes, its GPUs and slices, the labels that feature
//! discovery would write, what the kubelet keeps for itself. Must not know what runs there.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_kubelet::{
    CpuManagerPolicy, CpuOption, CpuOptions, KubeletConfig, MemoryManagerPolicy, ReservedCpus,
    ReservedMemory, TopologyPolicy, TopologyScope,
};
use berth_model::device::PreferredAllocation;
use berth_model::gpu::{Gpu, Health, MigStrategy, Naming};
use berth_model::label::Labels;
use berth_model::machine::{Machine, RegularMachine};
use berth_model::mig::{Board, Layout};
use berth_model::node::Node;
use berth_model::numa::NumaMask;
use berth_model::policy;
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::{MemoryKind, ResourceList, ResourceName};
use berth_model::taint::{Effect, Taint};
use berth_model::workload::{CapacityType, PoolClasses, WorkloadClass};
use berth_sim::experiment::{NodeSetup, PoolSetup, Sharing};

use super::file::{self, Manager, SharingMethod};
use crate::cluster::Prices;

/// What is wrong with a field of a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Wrong {
    /// Under the pool.
    pub field: &'static str,
    /// What is wrong, and what to do.
    pub message: String,
}

fn wrong(field: &'static str, message: impl Into<String>) -> Wrong {
    Wrong { field, message: message.into() }
}

/// The most nodes, and NUMA nodes, CPUs and GPUs of a node, that can be described.
const NODES_MAX: usize = 100_000;
const NUMA_MAX: usize = 16;
const CPUS_MAX: usize = 1_024;
const GPUS_MAX: usize = 64;

/// The pool's nodes, and the pool itself where it can grow.
pub(crate) struct Built {
    pub(crate) nodes: Vec<NodeSetup>,
    pub(crate) growth: Option<PoolSetup>,
    pub(crate) pool: policy::Pool,
}

pub(crate) fn build(pool: &file::Pool) -> Result<Built, Wrong> {
    if pool.name.is_empty() {
        return Err(wrong("name", "is missing; every pool has a name"));
    }
    if pool.count > NODES_MAX {
        return Err(wrong("count", format!("{} is more than {NODES_MAX}", pool.count)));
    }
    let template = template(pool)?;
    let node = |number: usize| {
        let mut setup = template.clone();
        let name = format!("{}-{number}", pool.name);
        setup.node.labels.insert("kubernetes.io/hostname", name.as_str());
        if let Some(zone) = pool.zones.get(number % pool.zones.len().max(1)) {
            setup.node.labels.insert("topology.kubernetes.io/zone", zone.as_str());
        }
        setup.node.name = name.into();
        setup
    };
    let nodes = (0..pool.count).map(node).collect();
    let growth = pool.grow.map(|grow| {
        let mut template = template.clone();
        if let Some(zone) = pool.zones.first() {
            template.node.labels.insert("topology.kubernetes.io/zone", zone.as_str());
        }
        PoolSetup {
            name: pool.name.as_str().into(),
            template,
            growth: grow.max,
            provision_ms: grow.provision.ms(),
            idle_ms: grow.idle.map(super::units::Time::ms),
        }
    });
    let mut of_pool = template.node.clone();
    of_pool.name = pool.name.as_str().into();
    let capacity = pool.capacity.map(|capacity| match capacity {
        file::Capacity::OnDemand => CapacityType::OnDemand,
        file::Capacity::Spot => CapacityType::Spot,
    });
    let policy = policy::Pool {
        name: pool.name.as_str().into(),
        template: of_pool,
        growth: Some(pool.grow.map_or(0, |grow| grow.max)),
        classes: classes(pool)?,
        capacity,
    };
    Ok(Built { nodes, growth, pool: policy })
}

fn classes(pool: &file::Pool) -> Result<PoolClasses, Wrong> {
    if pool.classes.is_empty() {
        return Ok(PoolClasses::Any);
    }
    let known = pool.classes.iter().map(|text| {
        WorkloadClass::parse(text).ok_or_else(|| {
            let names = WorkloadClass::ALL.map(WorkloadClass::as_str).join(", ");
            wrong("classes", format!("{text:?} is no class; write one of {names}"))
        })
    });
    let classes = known.collect::<Result<_, _>>()?;
    Ok(if pool.only { PoolClasses::Only(classes) } else { PoolClasses::Preferred(classes) })
}

fn template(pool: &file::Pool) -> Result<NodeSetup, Wrong> {
    let machine = machine(&pool.machine)?;
    let cpus = machine.numa().iter().map(|numa| numa.cpus.len()).sum();
    let kubelet = kubelet(&pool.kubelet, &machine)?;
    let gpus =
        pool.gpus.as_ref().map_or_else(|| Ok(Vec::new()), |gpus| described(gpus, &machine))?;
    let stated = match pool.price_per_hour {
        Some(dollars) if (0.0..1e6).contains(&dollars) => Some((dollars * 1e6).round() as i64),
        Some(dollars) => return Err(wrong("pricePerHour", format!("{dollars} is no price"))),
        None => None,
    };
    let node = Node {
        name: "".into(),
        labels: labels(pool, &gpus),
        taints: pool.taints.iter().map(|text| taint(text)).collect::<Result<_, _>>()?,
        unschedulable: false,
        allocatable: allocatable(&pool.kubelet, &machine, cpus),
        images: Vec::new(),
        models: pool.models.iter().map(|model| model.as_str().into()).collect(),
    };
    let microusd_per_hour = Prices::default().node(&node, &gpus, stated).unwrap_or(0);
    let sharing = pool.gpus.as_ref().and_then(|gpus| gpus.sharing);
    Ok(NodeSetup {
        node,
        machine: Arc::new(machine),
        kubelet,
        gpus,
        naming: Naming { mig: MigStrategy::Mixed, shared_suffix: false },
        preferred: PreferredAllocation::LowestId,
        sharing: match sharing.map(|sharing| sharing.method) {
            Some(SharingMethod::Mps | SharingMethod::Shares) => Sharing::MpsCapped,
            Some(SharingMethod::MpsUncapped) => Sharing::MpsUncapped,
            Some(SharingMethod::TimeSlicing) | None => Sharing::TimeSliced,
        },
        microusd_per_hour,
    })
}

fn machine(described: &file::Machine) -> Result<Machine, Wrong> {
    let file::Machine { sockets, numa_per_socket, cores_per_numa, threads_per_core, .. } =
        *described;
    let numa = sockets.saturating_mul(numa_per_socket);
    if numa == 0 || numa > NUMA_MAX {
        return Err(wrong("machine", format!("has {numa} NUMA nodes; write 1 to {NUMA_MAX}")));
    }
    let cpus = numa.saturating_mul(cores_per_numa).saturating_mul(threads_per_core);
    if cpus == 0 || cpus > CPUS_MAX {
        return Err(wrong("machine", format!("has {cpus} CPUs; write 1 to {CPUS_MAX}")));
    }
    RegularMachine {
        sockets,
        numa_per_socket,
        cores_per_numa,
        threads: threads_per_core,
        memory_bytes: described.memory_per_numa.0,
    }
    .build()
    .map_err(|error| wrong("machine", error.to_string()))
}

fn kubelet(described: &file::Kubelet, machine: &Machine) -> Result<KubeletConfig, Wrong> {
    let topology_policy: TopologyPolicy =
        described.topology_policy.parse().map_err(|error: berth_kubelet::ConfigError| {
            wrong("kubelet.topologyPolicy", error.problem)
        })?;
    let topology_scope: TopologyScope =
        described.topology_scope.parse().map_err(|error: berth_kubelet::ConfigError| {
            wrong("kubelet.topologyScope", error.problem)
        })?;
    let options: CpuOptions = described
        .cpu_options
        .iter()
        .map(|option| {
            option
                .parse::<CpuOption>()
                .map_err(|error| wrong("kubelet.cpuOptions", error.to_string()))
        })
        .collect::<Result<_, _>>()?;
    let cpu_manager = match described.cpu_manager {
        Manager::None => CpuManagerPolicy::None,
        Manager::Static => CpuManagerPolicy::Static {
            options,
            reserved: ReservedCpus::Millis(described.reserved_cpus.max(1) as u64 * 1000),
        },
    };
    let first = machine.numa().first().map_or(0, |numa| numa.id);
    let memory_manager = match described.memory_manager {
        Manager::None => MemoryManagerPolicy::None,
        Manager::Static => MemoryManagerPolicy::Static {
            reserved: vec![ReservedMemory {
                numa: first,
                kind: MemoryKind::Ordinary,
                bytes: described.reserved_memory.0,
            }],
        },
    };
    Ok(KubeletConfig {
        topology_policy,
        topology_scope,
        cpu_manager,
        memory_manager,
        ..KubeletConfig::default()
    })
}

fn allocatable(kubelet: &file::Kubelet, machine: &Machine, cpus: usize) -> ResourceList {
    let memory: u64 = machine.numa().iter().map(|numa| numa.memory_bytes).sum();
    let memory = memory.saturating_sub(kubelet.reserved_memory.0);
    let cpus = cpus.saturating_sub(kubelet.reserved_cpus);
    [
        (ResourceName::cpu(), Quantity::from_units(cpus as i64, Format::DecimalSi)),
        (ResourceName::memory(), Quantity::from_units(memory as i64, Format::BinarySi)),
        (ResourceName::new("pods"), Quantity::from_units(110, Format::DecimalSi)),
        (ResourceName::new("ephemeral-storage"), Quantity::from_units(2 << 40, Format::BinarySi)),
    ]
    .into_iter()
    .collect()
}

fn described(gpus: &file::Gpus, machine: &Machine) -> Result<Vec<Gpu>, Wrong> {
    if gpus.count > GPUS_MAX {
        return Err(wrong("gpus.count", format!("{} is more than {GPUS_MAX}", gpus.count)));
    }
    if gpus.product.is_empty() {
        return Err(wrong("gpus.product", "is missing; write it as nvidia.com/gpu.product has it"));
    }
    let board = Board::by_product(&gpus.product, None);
    let memory_bytes = match (gpus.memory, &board) {
        (Some(bytes), _) => bytes.0,
        (None, Ok(board)) => u64::from(board.gb()) << 30,
        (None, Err(error)) => {
            return Err(wrong("gpus.memory", format!("is missing, and {error}; write it")));
        }
    };
    if gpus.mig.len() > gpus.count {
        let message = format!("has {} layouts for {} GPUs", gpus.mig.len(), gpus.count);
        return Err(wrong("gpus.mig", message));
    }
    let numa = machine.numa().len();
    (0..gpus.count)
        .map(|at| {
            let mig = match gpus.mig.get(at).map(String::as_str) {
                None | Some("whole") => None,
                Some(text) => {
                    let board =
                        board.as_ref().map_err(|error| wrong("gpus.mig", error.to_string()))?;
                    Some(layout(board, text)?)
                }
            };
            let near = gpus.numa.get(at).copied().unwrap_or(at * numa / gpus.count.max(1));
            if near >= numa {
                let message = format!("{near} is no NUMA node of the machine, which has {numa}");
                return Err(wrong("gpus.numa", message));
            }
            Ok(Gpu {
                id: format!("gpu-{at:02}"),
                product: gpus.product.clone(),
                memory_bytes,
                numa: NumaMask::single(near),
                health: Health::Healthy,
                mig,
                replicas: gpus.sharing.and_then(|sharing| sharing.replicas),
            })
        })
        .collect()
}

/// A layout: with starts as it is printed, or how many of which profiles.
pub(crate) fn layout(board: &'static Board, text: &str) -> Result<Layout, Wrong> {
    let problem = |message: String| wrong("gpus.mig", message);
    if text.contains('@') {
        return Layout::parse(board, text).map_err(|error| problem(error.to_string()));
    }
    let mut wanted = Vec::new();
    for item in text.split(" + ").flat_map(|item| item.split(',')) {
        let item = item.trim();
        let counted =
            item.split_once('x').and_then(|(count, name)| Some((count.parse().ok()?, name)));
        let (count, name): (usize, &str) = counted.unwrap_or((1, item));
        let profile = board.profile(name).map_err(|error| problem(error.to_string()))?;
        if count > usize::from(board.max_instances()) {
            return Err(problem(format!("{item:?} is more than a GPU can be divided into")));
        }
        wanted.extend(std::iter::repeat_n(profile, count));
    }
    let empty = Layout::empty(board).map_err(|error| problem(error.to_string()))?;
    let fits = empty.with_all(&wanted);
    fits.ok_or_else(|| problem(format!("{text:?} does not fit on one {}", board.product())))
}

/// What feature discovery would write, and what the pool says.
fn labels(pool: &file::Pool, gpus: &[Gpu]) -> Labels {
    let mut labels: Labels = pool
        .labels
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .chain([("berth.dev/pool", pool.name.as_str())])
        .collect();
    if let Some(capacity) = pool.capacity {
        let capacity = match capacity {
            file::Capacity::OnDemand => "on-demand",
            file::Capacity::Spot => "spot",
        };
        labels.insert("karpenter.sh/capacity-type", capacity);
    }
    let Some(gpu) = gpus.first() else { return labels };
    labels.insert("nvidia.com/gpu.present", "true");
    labels.insert("nvidia.com/gpu.count", gpus.len().to_string());
    labels.insert("nvidia.com/gpu.memory", (gpu.memory_bytes >> 20).to_string());
    let sharing = pool.gpus.as_ref().and_then(|gpus| gpus.sharing);
    let product = match gpu.replicas {
        Some(replicas) => {
            let strategy = match sharing.map(|sharing| sharing.method) {
                Some(SharingMethod::TimeSlicing) | None => "time-slicing",
                Some(_) => "mps",
            };
            labels.insert("nvidia.com/gpu.replicas", replicas.to_string());
            labels.insert("nvidia.com/gpu.sharing-strategy", strategy);
            format!("{}-SHARED", gpu.product)
        }
        None => gpu.product.clone(),
    };
    labels.insert("nvidia.com/gpu.product", product);
    if sharing.is_some_and(|sharing| sharing.method == SharingMethod::Shares) {
        labels.insert("berth.dev/gpu-division", "shares");
    }
    let slices = gpus.iter().filter_map(|gpu| gpu.mig.as_ref()).flat_map(Layout::instances);
    let mut counts: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    for slice in slices {
        let resource = slice.profile.name().resource().to_string();
        counts.entry(resource).or_insert((0, slice.profile.memory_mib())).0 += 1;
    }
    if !counts.is_empty() {
        labels.insert("nvidia.com/mig.strategy", "mixed");
    }
    for (resource, (count, memory_mib)) in counts {
        labels.insert(format!("{resource}.count"), count.to_string());
        labels.insert(format!("{resource}.memory"), memory_mib.to_string());
    }
    labels
}

/// `key=value:Effect`, or `key:Effect`.
fn taint(text: &str) -> Result<Taint, Wrong> {
    let problem = || wrong("taints", format!("{text:?} is no taint; write key=value:NoSchedule"));
    let (mark, effect) = text.rsplit_once(':').ok_or_else(problem)?;
    let (key, value) = mark.split_once('=').unwrap_or((mark, ""));
    let effect = match effect {
        "NoSchedule" => Effect::NoSchedule,
        "PreferNoSchedule" => Effect::PreferNoSchedule,
        "NoExecute" => Effect::NoExecute,
        _ => return Err(problem()),
    };
    if key.is_empty() {
        return Err(problem());
    }
    Ok(Taint { key: key.into(), value: value.into(), effect })
}
