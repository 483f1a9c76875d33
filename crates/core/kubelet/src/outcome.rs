//! Outcomes of an admission: the allocation, or the rejection with the kubelet's message.

use berth_model::idset::{CpuSet, DeviceSet};
use berth_model::numa::NumaMask;
use berth_model::resource::{MemoryKind, ResourceName};
use smallvec::SmallVec;

use crate::hint::Hint;

/// How much of an outcome the kubelet's code determines. It takes devices from unordered sets, so
/// not always everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Certainty {
    /// Everything, down to device ids.
    #[default]
    Exact,
    /// How many devices come from which NUMA nodes, but not their ids.
    PerNuma,
    /// How many devices, but not where they are attached.
    CountOnly,
}

/// A pod's allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// In the order of the pod.
    pub containers: Vec<ContainerAssignment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerAssignment {
    pub name: String,
    /// The topology manager's merged hint; `None` under policy none.
    pub affinity: Option<Hint>,
    /// Exclusive CPUs; `None` if it runs in the shared pool.
    pub cpus: Option<CpuSet>,
    /// Ordered by kind. Blocks of init containers are net of what later containers reuse.
    pub memory: Vec<MemoryBlock>,
    /// Ordered by resource name.
    pub devices: Vec<DeviceAssignment>,
    /// Whether affinity, CPUs and memory follow from the kubelet's code alone. They do not if the
    /// hint depends on where devices taken at random are attached; this is then one possible
    /// outcome.
    pub certain: bool,
}

/// Memory of one kind on a group of NUMA nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    pub kind: MemoryKind,
    pub numa: NumaMask,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAssignment {
    pub resource: ResourceName,
    /// Position of the pool among the node's pools.
    pub pool: usize,
    /// A possible outcome; the only one if `certainty` is exact.
    pub devices: DeviceSet,
    /// Devices that are allocated in every outcome.
    pub certain: DeviceSet,
    /// Devices from which the rest is drawn.
    pub candidates: DeviceSet,
    /// Certainty of `devices`.
    pub certainty: Certainty,
}

/// Reasons of rejections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The topology policy is not satisfied.
    TopologyAffinityError,
    /// Not whole cores, under full-pcpus-only.
    SmtAlignmentError,
    /// A manager could not allocate.
    UnexpectedAdmissionError,
    /// A defect makes the kubelet crash or loop for ever on this pod in this state. No status shows
    /// this reason.
    KubeletFault,
}

impl Reason {
    /// As in the pod's status, or `KubeletFault`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TopologyAffinityError => "TopologyAffinityError",
            Self::SmtAlignmentError => "SMTAlignmentError",
            Self::UnexpectedAdmissionError => "UnexpectedAdmissionError",
            Self::KubeletFault => "KubeletFault",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: Reason,
    /// The kubelet's message.
    pub message: String,
    /// The container at which it happened; `None` if the pod as a whole was rejected.
    pub container: Option<String>,
    /// Other messages the kubelet may give instead, if it picks the first shortage at random.
    pub other_messages: Vec<String>,
    /// Whether the rejection follows from the kubelet's code alone; see
    /// [`ContainerAssignment::certain`].
    pub certain: bool,
}

/// The answer of [`Kubelet::would_admit`](crate::Kubelet::would_admit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Admit {
        /// Union of the NUMA nodes in the containers' hints; `None` if no hint names any.
        numa: Option<NumaMask>,
        /// Whether every hint is preferred. `false` under policy none.
        preferred: bool,
        /// Whether that follows from the kubelet's code alone; see
        /// [`ContainerAssignment::certain`].
        certain: bool,
    },
    Reject {
        reason: Reason,
        certain: bool,
    },
}

impl Verdict {
    pub fn admits(&self) -> bool {
        matches!(self, Self::Admit { .. })
    }
}

/// A manager's failure to allocate, formatted only on demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Topology,
    /// The requested CPUs do not fill whole cores.
    SmtMultiple {
        requested: usize,
        threads: usize,
    },
    SmtShortage {
        available: usize,
        requested: usize,
        threads: usize,
    },
    CpuShortage {
        requested: usize,
        available: usize,
    },
    /// The CPU manager stopped short without a reason.
    CpuIncomplete,
    /// CPUs missing after distribution over NUMA nodes; negative: too many.
    CpuAccounting {
        missing: i64,
    },
    /// No group of NUMA nodes has the memory.
    MemoryNoDefault,
    /// The only groups that have the memory are not preferred, but the hint was.
    MemoryDefaultNotPreferred,
    /// No group that contains the hint has the memory.
    MemoryNoExtension,
    /// The only such groups are not preferred, but the hint was.
    MemoryExtensionNotPreferred,
    /// The group overlaps with another.
    MemoryGroupConflict,
    /// Memory of a fraction of a byte.
    MemoryNotWhole,
    /// The kubelet stops at one of these, whichever it reaches first.
    Devices {
        first: DeviceShortage,
        others: SmallVec<[DeviceShortage; 1]>,
    },
    /// The kubelet crashes or hangs.
    Fault(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceShortage {
    pub(crate) resource: ResourceName,
    pub(crate) kind: ShortageKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShortageKind {
    NoneHealthy,
    Unavailable { requested: u64, available: usize },
}

impl Failure {
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Topology => Reason::TopologyAffinityError,
            Self::SmtMultiple { .. } | Self::SmtShortage { .. } => Reason::SmtAlignmentError,
            Self::Fault(_) => Reason::KubeletFault,
            _ => Reason::UnexpectedAdmissionError,
        }
    }

    pub(crate) fn rejection(&self, container: Option<String>, certain: bool) -> Rejection {
        let other_messages = match self {
            Self::Devices { others, .. } => others.iter().map(DeviceShortage::message).collect(),
            _ => Vec::new(),
        };
        let (reason, message) = (self.reason(), self.message());
        Rejection { reason, message, container, other_messages, certain }
    }

    fn message(&self) -> String {
        let memory = |what: &str| unexpected(&format!("[memorymanager] {what}"));
        match self {
            Self::Topology => "Resources cannot be allocated with Topology locality".to_owned(),
            Self::SmtMultiple { requested, threads } => format!(
                "SMT Alignment Error: requested {requested} cpus not multiple cpus per core = \
                 {threads}"
            ),
            Self::SmtShortage { available, requested, threads } => format!(
                "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = \
                 {available}, requested CPUs = {requested}, CPUs per core = {threads}"
            ),
            Self::CpuShortage { requested, available } => unexpected(&format!(
                "not enough cpus available to satisfy request: requested={requested}, \
                 available={available}"
            )),
            Self::CpuIncomplete => unexpected("failed to allocate cpus"),
            Self::CpuAccounting { missing } => unexpected(&format!(
                "accounting error, {} CPUs allocated, remaining: {missing}",
                if *missing > 0 { "not enough" } else { "too many" }
            )),
            Self::MemoryNoDefault => memory(
                "failed to get the default NUMA affinity, no NUMA nodes with enough memory is \
                 available",
            ),
            Self::MemoryDefaultNotPreferred => memory("failed to find the default preferred hint"),
            Self::MemoryNoExtension => {
                memory("failed to find NUMA nodes to extend the current topology hint")
            }
            Self::MemoryExtensionNotPreferred => {
                memory("failed to find the extended preferred hint")
            }
            Self::MemoryGroupConflict => memory("preferred hint violates NUMA node allocation"),
            Self::MemoryNotWhole => memory("failed to represent quantity as int64"),
            Self::Devices { first, .. } => first.message(),
            Self::Fault(what) => (*what).to_owned(),
        }
    }
}

impl DeviceShortage {
    fn message(&self) -> String {
        let resource = &self.resource;
        unexpected(&match self.kind {
            ShortageKind::NoneHealthy => {
                format!("no healthy devices present; cannot allocate unhealthy devices {resource}")
            }
            ShortageKind::Unavailable { requested, available } => format!(
                "requested number of devices unavailable for {resource}. Requested: {requested}, \
                 Available: {available}"
            ),
        })
    }
}

/// The kubelet's wording of an unexpected manager error.
fn unexpected(cause: &str) -> String {
    format!("Allocate failed due to {cause}, which is unexpected")
}
