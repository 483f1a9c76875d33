//! Pods: what decides where they may go, and their state. Requests of containers are in
//! [`pod`](crate::pod).

use std::sync::Arc;

use crate::affinity::{NodeAffinity, PodAffinity, SpreadConstraint};
use crate::dra::pod::PodClaim;
use crate::gang::GangMembership;
use crate::label::Labels;
use crate::pod::Pod;
use crate::resource::ResourceName;
use crate::storage::InTreeDisk;
use crate::taint::Toleration;
use crate::workload::WorkloadClass;

/// What decides where a pod may go. Replicas of one template have equal specs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodSpec {
    pub namespace: Arc<str>,
    pub labels: Labels,
    /// Its containers and requests, defaulted. For a bound pod that has been resized, what counts:
    /// the largest of desired, allocated and in use. The name is left empty, so that replicas are
    /// equal.
    pub pod: Pod,
    /// `spec.nodeName` of a pod that is to be evaluated on that node only.
    pub node_name: Option<Arc<str>>,
    pub node_selector: Labels,
    pub node_affinity: NodeAffinity,
    pub tolerations: Vec<Toleration>,
    pub pod_affinity: PodAffinity,
    pub spread: Vec<SpreadConstraint>,
    /// Of app containers and sidecars.
    pub host_ports: Vec<HostPort>,
    /// As written: those of its containers, init containers first, then those of its image volumes.
    pub images: Vec<Arc<str>>,
    /// Volumes that can tie it to nodes; others are left out.
    pub volumes: Vec<Volume>,
    pub priority: i32,
    pub priority_class: Option<Arc<str>>,
    /// `activeDeadlineSeconds`.
    pub deadline_ms: Option<i64>,
    /// Whether it may preempt others.
    pub preemption: PreemptionPolicy,
    /// `schedulingGates`, by name.
    pub gates: Vec<Arc<str>>,
    pub controller: Option<Controller>,
    /// Must not be moved to another node while it runs.
    pub stays: bool,
    /// A requested part of a GPU, in whatever form a node provides it.
    pub gpu: Option<GpuNeed>,
    /// `None`: it follows from the priority class and priority.
    pub class: Option<WorkloadClass>,
    /// The model it loads, by the name that nodes list.
    pub model: Option<Arc<str>>,
    pub gang: Option<GangMembership>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// As written; `None`: all addresses (`0.0.0.0` or none written).
    pub ip: Option<Arc<str>>,
    pub protocol: Protocol,
    pub port: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl HostPort {
    /// Whether one node cannot provide both.
    pub fn conflicts(&self, other: &Self) -> bool {
        self.protocol == other.protocol
            && self.port == other.port
            && (self.ip.is_none() || other.ip.is_none() || self.ip == other.ip)
    }
}

/// A volume that can tie a pod to nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Volume {
    /// In the pod's namespace. Generic ephemeral volumes are claims too.
    Claim {
        name: Arc<str>,
        /// The claim is created for this pod (generic ephemeral volume), and must be owned by it.
        ephemeral: bool,
    },
    /// A disk in the pod's own spec.
    Disk(Disk),
}

/// A disk in a pod's own spec, of the kinds that cannot always be shared or that count against a
/// node's attach limit. Inline CSI volumes do neither.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Disk {
    /// A GCE persistent disk: shared only if all pods only read.
    Gce { name: Arc<str>, read_only: bool },
    /// An AWS EBS volume: never shared.
    Ebs { id: Arc<str> },
    /// An iSCSI target: shared only if all pods only read.
    Iscsi { iqn: Arc<str>, read_only: bool },
    /// A Ceph RBD image: shared only if all pods only read.
    Rbd { monitors: Vec<Arc<str>>, pool: Arc<str>, image: Arc<str>, read_only: bool },
    /// An Azure disk, an OpenStack Cinder volume or a Portworx volume: shared freely, but counted.
    Counted(InTreeDisk),
}

/// Whether a pod may preempt others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PreemptionPolicy {
    #[default]
    LowerPriority,
    Never,
}

/// The owner that is marked as controller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Controller {
    /// Such as `ReplicaSet`.
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// A requested part of a GPU (`berth.dev/gpu-memory`, `berth.dev/gpu-compute`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuNeed {
    /// 0: any amount.
    pub memory_bytes: u64,
    /// In thousandths of the GPU it is placed on; 0: any share.
    pub compute_milli: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodObject {
    pub uid: Arc<str>,
    pub name: Arc<str>,
    pub spec: Arc<PodSpec>,
    pub created_at_ms: i64,
    /// When its kubelet first saw it.
    pub started_at_ms: Option<i64>,
    pub node: Option<Arc<str>>,
    /// `status.nominatedNodeName`.
    pub nominated: Option<Arc<str>>,
    pub phase: Phase,
    pub deletion: Option<Deletion>,
    /// What was allocated for its requested part of a GPU.
    pub gpu_grant: Option<GpuGrant>,
    /// In the order in which they are allocated.
    pub claims: Arc<[PodClaim]>,
}

/// A graceful deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deletion {
    /// The API's `deletionTimestamp` is later by the grace period.
    pub requested_at_ms: i64,
    pub grace_ms: i64,
}

impl Deletion {
    /// When the pod no longer counts against quotas even if it still exists: one more grace period
    /// after its containers should have stopped.
    pub fn uncounted_at_ms(self) -> i64 {
        self.requested_at_ms.saturating_add(self.grace_ms.saturating_mul(2))
    }
}

/// What was allocated for a requested part of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuGrant {
    pub resource: ResourceName,
    /// The number of the shared GPU, on nodes with shares; `None`: one unit of the resource. If the
    /// node's devices are known this is the position in the plugin's list; otherwise it only
    /// identifies shares of one GPU.
    pub gpu: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Pending or running.
    #[default]
    Alive,
    Terminating {
        /// Evicted by a scheduler (`DisruptionTarget`, `PreemptionByScheduler`).
        by_preemption: bool,
    },
    /// Succeeded or failed: it uses no resources.
    Finished,
}
