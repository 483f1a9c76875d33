//! Pools of a scenario: from a compact description to complete nodes, with the labels that GPU feature
//! discovery would write and what the kubelet reserves.

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
use berth_sim::experiment::{Isolation, NodeSetup, PoolSetup};

use super::file::{self, Manager, SharingMethod};
use crate::cluster::Prices;

/// An invalid field of a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct PoolError {
    /// Relative to the pool.
    pub field: &'static str,
    /// The problem and its remedy.
    pub message: String,
}

fn invalid(field: &'static str, message: impl Into<String>) -> PoolError {
    PoolError { field, message: message.into() }
}

const NODES_MAX: usize = 100_000;
const NUMA_MAX: usize = 16;
const CPUS_MAX: usize = 1_024;
const GPUS_MAX: usize = 64;

pub(crate) struct BuiltPool {
    pub(crate) nodes: Vec<NodeSetup>,
    /// `None` if the pool cannot grow.
    pub(crate) growth: Option<PoolSetup>,
    pub(crate) pool: policy::Pool,
}

/// Builds the nodes of a pool. `policies` are the Pool objects; the one with the pool's name says for
/// which classes of work it is.
pub(crate) fn build(
    pool: &file::NodePool,
    policies: &[policy::Pool],
) -> Result<BuiltPool, PoolError> {
    if pool.name.is_empty() {
        return Err(invalid("name", "is required"));
    }
    if pool.count > NODES_MAX {
        return Err(invalid("count", format!("must be at most {NODES_MAX} (got {})", pool.count)));
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
    let policy = policies.iter().find(|policy| *policy.name == *pool.name);
    let mut node = template.node.clone();
    node.name = pool.name.as_str().into();
    let policy = policy::Pool {
        name: pool.name.as_str().into(),
        template: node,
        growth: Some(pool.grow.map_or(0, |grow| grow.max)),
        classes: policy.map(|policy| policy.classes).unwrap_or_default(),
        capacity: policy.and_then(|policy| policy.capacity),
    };
    Ok(BuiltPool { nodes, growth, pool: policy })
}

fn template(pool: &file::NodePool) -> Result<NodeSetup, PoolError> {
    let machine = machine(&pool.machine)?;
    let cpus = machine.numa().iter().map(|numa| numa.cpus.len()).sum();
    let kubelet = kubelet(&pool.kubelet, &machine)?;
    let gpus =
        pool.gpus.as_ref().map_or_else(|| Ok(Vec::new()), |described| gpus(described, &machine))?;
    let stated = match pool.price_per_hour {
        Some(dollars) if (0.0..1e6).contains(&dollars) => Some((dollars * 1e6).round() as i64),
        Some(dollars) => {
            return Err(invalid(
                "pricePerHour",
                format!("invalid price {dollars}; write dollars per hour from 0 to 999999"),
            ));
        }
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
            Some(SharingMethod::Mps | SharingMethod::Shares) => Isolation::MpsCapped,
            Some(SharingMethod::MpsUncapped) => Isolation::MpsUncapped,
            Some(SharingMethod::TimeSlicing) | None => Isolation::TimeSliced,
        },
        microusd_per_hour,
    })
}

fn machine(described: &file::Machine) -> Result<Machine, PoolError> {
    let file::Machine { sockets, numa_per_socket, cores_per_numa, threads_per_core, .. } =
        *described;
    let numa = sockets.saturating_mul(numa_per_socket);
    if numa == 0 || numa > NUMA_MAX {
        return Err(invalid(
            "machine",
            format!("must have 1 to {NUMA_MAX} NUMA nodes (got {numa})"),
        ));
    }
    let cpus = numa.saturating_mul(cores_per_numa).saturating_mul(threads_per_core);
    if cpus == 0 || cpus > CPUS_MAX {
        return Err(invalid("machine", format!("must have 1 to {CPUS_MAX} CPUs (got {cpus})")));
    }
    RegularMachine {
        sockets,
        numa_per_socket,
        cores_per_numa,
        threads: threads_per_core,
        memory_bytes: described.memory_per_numa.0,
    }
    .build()
    .map_err(|error| invalid("machine", error.to_string()))
}

fn kubelet(described: &file::Kubelet, machine: &Machine) -> Result<KubeletConfig, PoolError> {
    let topology_policy: TopologyPolicy =
        described.topology_policy.parse().map_err(|error: berth_kubelet::ConfigError| {
            invalid("kubelet.topologyPolicy", error.problem)
        })?;
    let topology_scope: TopologyScope =
        described.topology_scope.parse().map_err(|error: berth_kubelet::ConfigError| {
            invalid("kubelet.topologyScope", error.problem)
        })?;
    let options: CpuOptions = described
        .cpu_options
        .iter()
        .map(|option| {
            option
                .parse::<CpuOption>()
                .map_err(|error| invalid("kubelet.cpuOptions", error.to_string()))
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

fn gpus(described: &file::Gpus, machine: &Machine) -> Result<Vec<Gpu>, PoolError> {
    if described.count > GPUS_MAX {
        return Err(invalid(
            "gpus.count",
            format!("must be at most {GPUS_MAX} (got {})", described.count),
        ));
    }
    if described.product.is_empty() {
        return Err(invalid(
            "gpus.product",
            "is required; write the value of the label nvidia.com/gpu.product",
        ));
    }
    let board = Board::by_product(&described.product, None);
    let memory_bytes = match (described.memory, &board) {
        (Some(bytes), _) => bytes.0,
        (None, Ok(board)) => u64::from(board.gb()) << 30,
        (None, Err(error)) => {
            return Err(invalid("gpus.memory", format!("is required: {error}")));
        }
    };
    if described.mig.len() > described.count {
        let message = format!("lists {} layouts for {} GPUs", described.mig.len(), described.count);
        return Err(invalid("gpus.mig", message));
    }
    let numa = machine.numa().len();
    (0..described.count)
        .map(|at| {
            let mig = match described.mig.get(at).map(String::as_str) {
                None | Some("whole") => None,
                Some(text) => {
                    let board =
                        board.as_ref().map_err(|error| invalid("gpus.mig", error.to_string()))?;
                    Some(layout(board, text)?)
                }
            };
            let near =
                described.numa.get(at).copied().unwrap_or(at * numa / described.count.max(1));
            if near >= numa {
                let message = format!("unknown NUMA node {near}; the machine has {numa}");
                return Err(invalid("gpus.numa", message));
            }
            Ok(Gpu {
                id: format!("gpu-{at:02}"),
                product: described.product.clone(),
                memory_bytes,
                numa: NumaMask::single(near),
                health: Health::Healthy,
                mig,
                replicas: described.sharing.and_then(|sharing| sharing.replicas),
            })
        })
        .collect()
}

/// A MIG layout: placements (`4g.40gb@0`), or profiles with their counts (`7x1g.10gb`).
pub(crate) fn layout(board: &'static Board, text: &str) -> Result<Layout, PoolError> {
    let problem = |message: String| invalid("gpus.mig", message);
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
            return Err(problem(format!("{item:?} exceeds what one GPU can be divided into")));
        }
        wanted.extend(std::iter::repeat_n(profile, count));
    }
    let empty = Layout::empty(board).map_err(|error| problem(error.to_string()))?;
    let fits = empty.with_all(&wanted);
    fits.ok_or_else(|| problem(format!("{text:?} does not fit on one {}", board.product())))
}

/// The pool's labels, and those of GPU feature discovery.
fn labels(pool: &file::NodePool, gpus: &[Gpu]) -> Labels {
    let mut labels: Labels = pool
        .labels
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .chain([("berth.dev/pool", pool.name.as_str())])
        .collect();
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

/// Parses `key=value:Effect` or `key:Effect`.
fn taint(text: &str) -> Result<Taint, PoolError> {
    let problem =
        || invalid("taints", format!("invalid taint {text:?}; write key=value:NoSchedule"));
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
