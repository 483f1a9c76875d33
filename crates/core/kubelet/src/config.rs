//! A kubelet's configuration, as far as admission depends on it: options, which of them exclude
//! each other, and differences between versions.

use std::fmt;
use std::str::FromStr;

use berth_model::idset::CpuSet;
use berth_model::machine::Machine;
use berth_model::pod::PodLevelResources;
use berth_model::resource::MemoryKind;
use thiserror::Error;

/// Limit of NUMA nodes whose subsets are enumerated for one container. A kubelet lists all subsets,
/// so it would not finish an admission beyond this either.
const MAX_SUBSET_NODES: usize = 16;

/// The topology manager's default limit.
const DEFAULT_MAX_ALLOWABLE_NUMA_NODES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum KubeletVersion {
    V1_33,
    V1_34,
    V1_35,
    /// The version that the conformance vectors were recorded from.
    #[default]
    V1_36,
    V1_37,
}

impl KubeletVersion {
    const ALL: [(Self, &'static str); 5] = [
        (Self::V1_33, "1.33"),
        (Self::V1_34, "1.34"),
        (Self::V1_35, "1.35"),
        (Self::V1_36, "1.36"),
        (Self::V1_37, "1.37"),
    ];

    /// Before 1.36, device hints range over all NUMA nodes; since then over those with devices.
    pub(crate) fn device_hints_skip_empty_nodes(self) -> bool {
        self >= Self::V1_36
    }

    /// Before 1.34, a request that leaves half a core never fits into a part of an uncore cache.
    pub(crate) fn takes_odd_parts_of_uncore(self) -> bool {
        self >= Self::V1_34
    }

    /// Since 1.37, distribution over NUMA nodes prefers one socket under align-by-socket, and never
    /// takes more from a node than it has.
    pub(crate) fn distributes_within_sockets(self) -> bool {
        self >= Self::V1_37
    }

    /// Since 1.37, the memory manager ignores containers that request no memory.
    pub(crate) fn skips_containers_without_memory(self) -> bool {
        self >= Self::V1_37
    }

    /// The default treatment of `spec.resources` of pods.
    pub fn pod_level_resources(self) -> PodLevelResources {
        match self {
            Self::V1_33 => PodLevelResources::Ignored,
            Self::V1_34 | Self::V1_35 | Self::V1_36 => PodLevelResources::HonouredIfEmptyToo,
            Self::V1_37 => PodLevelResources::Honoured,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum TopologyPolicy {
    /// No hints are collected.
    #[default]
    None,
    /// Prefers the best alignment, admits any.
    BestEffort,
    /// Requires the narrowest alignment the hardware could provide.
    Restricted,
    /// Requires one NUMA node.
    SingleNumaNode,
}

impl TopologyPolicy {
    const ALL: [(Self, &'static str); 4] = [
        (Self::None, "none"),
        (Self::BestEffort, "best-effort"),
        (Self::Restricted, "restricted"),
        (Self::SingleNumaNode, "single-numa-node"),
    ];

    pub const fn is_strict(self) -> bool {
        matches!(self, Self::Restricted | Self::SingleNumaNode)
    }
}

/// What the topology manager aligns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum TopologyScope {
    /// Each container by itself.
    #[default]
    Container,
    /// All containers of a pod together.
    Pod,
}

impl TopologyScope {
    const ALL: [(Self, &'static str); 2] = [(Self::Container, "container"), (Self::Pod, "pod")];
}

/// `cpuManagerPolicyOptions` of the static policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CpuOption {
    /// Whole physical cores only.
    FullPcpusOnly,
    /// Even distribution over NUMA nodes when one does not suffice.
    DistributeCpusAcrossNuma,
    /// Aligns to sockets instead of NUMA nodes.
    AlignBySocket,
    /// Distribution over physical cores.
    DistributeCpusAcrossCores,
    /// The shared pool excludes the reserved CPUs.
    StrictCpuReservation,
    /// Prefers CPUs that share an uncore cache.
    PreferAlignCpusByUncoreCache,
}

impl CpuOption {
    const ALL: [(Self, &'static str); 6] = [
        (Self::FullPcpusOnly, "full-pcpus-only"),
        (Self::DistributeCpusAcrossNuma, "distribute-cpus-across-numa"),
        (Self::AlignBySocket, "align-by-socket"),
        (Self::DistributeCpusAcrossCores, "distribute-cpus-across-cores"),
        (Self::StrictCpuReservation, "strict-cpu-reservation"),
        (Self::PreferAlignCpusByUncoreCache, "prefer-align-cpus-by-uncorecache"),
    ];

    /// Pairs a kubelet refuses to start with.
    const EXCLUSIVE: [(Self, Self); 4] = [
        (Self::FullPcpusOnly, Self::DistributeCpusAcrossCores),
        (Self::DistributeCpusAcrossNuma, Self::DistributeCpusAcrossCores),
        (Self::PreferAlignCpusByUncoreCache, Self::DistributeCpusAcrossCores),
        (Self::PreferAlignCpusByUncoreCache, Self::DistributeCpusAcrossNuma),
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct CpuOptions(u8);

impl CpuOptions {
    pub fn has(self, option: CpuOption) -> bool {
        self.0 >> option as u8 & 1 == 1
    }

    /// In a fixed order.
    pub fn iter(self) -> impl Iterator<Item = CpuOption> {
        CpuOption::ALL.into_iter().map(|(option, _)| option).filter(move |option| self.has(*option))
    }
}

impl FromIterator<CpuOption> for CpuOptions {
    fn from_iter<I: IntoIterator<Item = CpuOption>>(options: I) -> Self {
        Self(options.into_iter().fold(0, |bits, option| bits | 1 << option as u8))
    }
}

/// CPUs reserved for the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservedCpus {
    Explicit(CpuSet),
    /// This much CPU, rounded up; the kubelet chooses which.
    Millis(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum CpuManagerPolicy {
    /// Every container runs in the shared pool.
    #[default]
    None,
    /// Whole CPUs of Guaranteed pods are exclusive.
    Static { options: CpuOptions, reserved: ReservedCpus },
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum MemoryManagerPolicy {
    /// Memory comes from any NUMA node.
    #[default]
    None,
    /// Memory of Guaranteed pods is pinned to NUMA nodes.
    Static { reserved: Vec<ReservedMemory> },
}

/// System-reserved memory of one kind on one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedMemory {
    /// Node id.
    pub numa: u32,
    pub kind: MemoryKind,
    pub bytes: u64,
}

/// Names are those of the kubelet's configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct KubeletConfig {
    pub version: KubeletVersion,
    /// `topologyManagerPolicy`.
    pub topology_policy: TopologyPolicy,
    /// `topologyManagerScope`.
    pub topology_scope: TopologyScope,
    /// `topologyManagerPolicyOptions[prefer-closest-numa-nodes]`.
    pub prefer_closest_numa_nodes: bool,
    /// `topologyManagerPolicyOptions[max-allowable-numa-nodes]`; `None`: 8.
    pub max_allowable_numa_nodes: Option<usize>,
    /// `cpuManagerPolicy`, `cpuManagerPolicyOptions`, `reservedSystemCPUs`.
    pub cpu_manager: CpuManagerPolicy,
    /// `memoryManagerPolicy`, `reservedMemory`.
    pub memory_manager: MemoryManagerPolicy,
}

/// A configuration or device list with which no kubelet starts.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    pub field: String,
    pub problem: String,
}

impl ConfigError {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}

impl KubeletConfig {
    /// The checks of a kubelet that starts on `machine`.
    pub(crate) fn check(&self, machine: &Machine) -> Result<(), ConfigError> {
        if self.topology_policy != TopologyPolicy::None {
            self.check_topology(machine)?;
        }
        if let CpuManagerPolicy::Static { options, reserved } = &self.cpu_manager {
            self.check_cpu_options(*options, machine)?;
            check_reserved_cpus(reserved, machine)?;
        }
        if matches!(self.memory_manager, MemoryManagerPolicy::Static { .. }) {
            check_subsets("memory_manager.policy", "NUMA nodes", machine.numa().len())?;
        }
        Ok(())
    }

    fn check_topology(&self, machine: &Machine) -> Result<(), ConfigError> {
        let max = self.max_allowable_numa_nodes.unwrap_or(DEFAULT_MAX_ALLOWABLE_NUMA_NODES);
        let field = "topology_manager.options[max-allowable-numa-nodes]";
        if max < DEFAULT_MAX_ALLOWABLE_NUMA_NODES {
            return Err(ConfigError::new(field, format!("{max} is below 8; write 8 or more")));
        }
        let nodes = machine.numa().len();
        if nodes > max {
            let problem = format!(
                "the machine has {nodes} NUMA nodes but {max} are allowed, so the kubelet does not \
                 start; raise the option or use policy none"
            );
            return Err(ConfigError::new(field, problem));
        }
        let single = self.topology_policy == TopologyPolicy::SingleNumaNode;
        if self.prefer_closest_numa_nodes && !single {
            let field = "topology_manager.options[prefer-closest-numa-nodes]";
            if machine.numa().iter().any(|node| node.distances.is_empty()) {
                let problem = "needs the distances of every NUMA node; give numa[].distances";
                return Err(ConfigError::new(field, problem));
            }
            if machine.numa().iter().enumerate().any(|(at, node)| node.id as usize != at) {
                let problem = "the kubelet looks distances up by NUMA node id and crashes where \
                               ids have gaps; switch the option off on this machine";
                return Err(ConfigError::new(field, problem));
            }
        }
        Ok(())
    }

    fn check_cpu_options(&self, options: CpuOptions, machine: &Machine) -> Result<(), ConfigError> {
        let error = |problem: String| Err(ConfigError::new("cpu_manager.options", problem));
        for (one, other) in CpuOption::EXCLUSIVE {
            if options.has(one) && options.has(other) {
                return error(format!("{one} and {other} exclude each other; remove one"));
            }
        }
        if options.has(CpuOption::AlignBySocket) {
            let single = TopologyPolicy::SingleNumaNode;
            if self.topology_policy == single {
                return error(format!("align-by-socket excludes topology policy {single}"));
            }
            if machine.socket_count() > machine.cpu_numa().count() {
                return error("align-by-socket needs at least one NUMA node per socket".to_owned());
            }
        }
        if self.topology_policy != TopologyPolicy::None {
            let nodes = machine.cpu_numa().count();
            check_subsets("cpu_manager.policy", "NUMA nodes with CPUs", nodes)?;
        }
        if options.has(CpuOption::DistributeCpusAcrossNuma) {
            // Where NUMA nodes contain sockets, a node is tried once for every socket it is in.
            let nodes = machine.cpu_numa().count();
            let in_sockets = machine.sockets().iter().map(|socket| socket.numa.count()).sum();
            let tried = if machine.socket_count() >= nodes { nodes } else { in_sockets };
            check_subsets("cpu_manager.options", "NUMA nodes to distribute CPUs across", tried)?;
        }
        Ok(())
    }
}

/// Rejects sets whose subsets the kubelet itself could not enumerate.
pub(crate) fn check_subsets(field: &str, what: &str, count: usize) -> Result<(), ConfigError> {
    if count <= MAX_SUBSET_NODES {
        return Ok(());
    }
    let problem = format!(
        "{count} {what}: the kubelet would go through 2^{count} subsets for every container and not \
         come to an end; at most {MAX_SUBSET_NODES} are supported"
    );
    Err(ConfigError::new(field, problem))
}

fn check_reserved_cpus(reserved: &ReservedCpus, machine: &Machine) -> Result<(), ConfigError> {
    let (field, problem) = match reserved {
        ReservedCpus::Explicit(cpus) if !cpus.is_subset(&machine.cpus()) => (
            "cpu_manager.reserved_cpus",
            format!("CPUs {} do not exist; list CPUs of the machine", *cpus - machine.cpus()),
        ),
        ReservedCpus::Explicit(cpus) if cpus.is_empty() => (
            "cpu_manager.reserved_cpus",
            "is empty; the static policy needs at least one CPU for the system".to_owned(),
        ),
        ReservedCpus::Millis(0) => (
            "cpu_manager.reserved_quantity",
            "is 0; the static policy needs some CPU for the system".to_owned(),
        ),
        ReservedCpus::Millis(millis) if millis.div_ceil(1000) > machine.cpus().len() as u64 => (
            "cpu_manager.reserved_quantity",
            format!("{millis}m is more than the {} CPUs of the machine", machine.cpus().len()),
        ),
        _ => return Ok(()),
    };
    Err(ConfigError::new(field, problem))
}

macro_rules! named {
    ($type:ty, $field:literal) => {
        impl FromStr for $type {
            type Err = ConfigError;

            fn from_str(text: &str) -> Result<Self, ConfigError> {
                let named = Self::ALL.iter().find(|(_, name)| *name == text);
                named.map(|(value, _)| *value).ok_or_else(|| {
                    let names: Vec<&str> = Self::ALL.iter().map(|(_, name)| *name).collect();
                    let problem = format!("{text:?} is unknown; write one of {}", names.join(", "));
                    ConfigError::new($field, problem)
                })
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let named = Self::ALL.iter().find(|(value, _)| value == self);
                f.write_str(named.map_or("", |(_, name)| name))
            }
        }
    };
}

named!(KubeletVersion, "kubelet_version");
named!(TopologyPolicy, "topology_manager.policy");
named!(TopologyScope, "topology_manager.scope");
named!(CpuOption, "cpu_manager.options");
