//! Pods as the cluster describes them: what decides where they may go, and how they are doing.
//!
//! Owns the data only. What containers ask for is in [`pod`](crate::pod).

use std::sync::Arc;

use crate::affinity::{NodeAffinity, PodAffinity, SpreadConstraint};
use crate::dra::pod::PodClaim;
use crate::gang::Membership;
use crate::label::Labels;
use crate::pod::Pod;
use crate::resource::ResourceName;
use crate::storage::InTreeDisk;
use crate::taint::Toleration;
use crate::workload::WorkloadClass;

/// What decides where a pod may go. Replicas of one template have equal ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodSpec {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its labels.
    pub labels: Labels,
    /// Its containers and what they ask for, defaulted. For a bound pod that has been resized this
    /// is what counts: the largest of desired, allocated and in use. The pod's name is left empty
    /// here, so that replicas are equal.
    pub pod: Pod,
    /// The only node it may go to (`spec.nodeName` of a pod that is still asked about).
    pub node_name: Option<Arc<str>>,
    /// Labels its node must have.
    pub node_selector: Labels,
    /// Nodes it needs and prefers.
    pub node_affinity: NodeAffinity,
    /// Taints it tolerates.
    pub tolerations: Vec<Toleration>,
    /// Pods it needs, prefers, refuses and avoids.
    pub pod_affinity: PodAffinity,
    /// How it is to be spread with its like.
    pub spread: Vec<SpreadConstraint>,
    /// Ports of the node it needs for itself, of app containers and sidecars.
    pub host_ports: Vec<HostPort>,
    /// Images as written: those of its containers, init containers first, then those of its image
    /// volumes.
    pub images: Vec<Arc<str>>,
    /// Volumes that can tie it to nodes; others are left out.
    pub volumes: Vec<Volume>,
    /// Its priority.
    pub priority: i32,
    /// The priority class it names, if any.
    pub priority_class: Option<Arc<str>>,
    /// After how long it is ended (`activeDeadlineSeconds`).
    pub deadline_ms: Option<i64>,
    /// Whether it may have others evicted.
    pub preemption: PreemptionPolicy,
    /// Why it is not to be scheduled yet (`schedulingGates`, by name).
    pub gates: Vec<Arc<str>>,
    /// What controls it.
    pub controller: Option<Controller>,
    /// It is not to be moved to another node while it runs.
    pub stays: bool,
    /// A part of a GPU it needs, in whatever form a node offers it.
    pub gpu: Option<GpuNeed>,
    /// What kind of work it says it does; `None`: that follows from its priority.
    pub class: Option<WorkloadClass>,
    /// The model it loads, by whatever name nodes know that they hold it.
    pub model: Option<Arc<str>>,
    /// The gang it belongs to.
    pub gang: Option<Membership>,
}

/// A port of the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// The address as written; `None`: all of them (`0.0.0.0` or none written).
    pub ip: Option<Arc<str>>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: i32,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl HostPort {
    /// Whether both cannot be had on one node.
    pub fn conflicts(&self, other: &Self) -> bool {
        self.protocol == other.protocol
            && self.port == other.port
            && (self.ip.is_none() || other.ip.is_none() || self.ip == other.ip)
    }
}

/// A volume that can tie a pod to nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Volume {
    /// A claim by name in the pod's namespace. Generic ephemeral volumes are claims too.
    Claim {
        /// Its name.
        name: Arc<str>,
        /// Whether the volume is generic ephemeral: the claim is made for this pod, and must be
        /// owned by it.
        ephemeral: bool,
    },
    /// A disk named in the pod's own spec.
    Disk(Disk),
}

/// A disk named in a pod's own spec, of the kinds that cannot always be shared or that count against
/// what a node can attach. Inline CSI volumes do neither.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Disk {
    /// A GCE persistent disk: shared only if everyone reads.
    Gce {
        /// Its name.
        name: Arc<str>,
        /// Whether it is mounted read-only.
        read_only: bool,
    },
    /// An AWS EBS volume: never shared.
    Ebs {
        /// Its id.
        id: Arc<str>,
    },
    /// An iSCSI target: shared only if everyone reads.
    Iscsi {
        /// Its qualified name.
        iqn: Arc<str>,
        /// Whether it is mounted read-only.
        read_only: bool,
    },
    /// A Ceph RBD image: shared only if everyone reads.
    Rbd {
        /// The monitors.
        monitors: Vec<Arc<str>>,
        /// The pool.
        pool: Arc<str>,
        /// The image.
        image: Arc<str>,
        /// Whether it is mounted read-only.
        read_only: bool,
    },
    /// An Azure disk, an OpenStack Cinder volume or a Portworx volume: shared freely, but counted.
    Counted(InTreeDisk),
}

/// Whether a pod may have others evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PreemptionPolicy {
    /// Those of lower priority.
    #[default]
    LowerPriority,
    /// None.
    Never,
}

/// What controls a pod: the owner that is marked as its controller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Controller {
    /// Its kind, such as `ReplicaSet`.
    pub kind: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// A part of a GPU (`berth.dev/gpu-memory`, `berth.dev/gpu-compute`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuNeed {
    /// Memory; 0: any amount.
    pub memory_bytes: u64,
    /// Compute, in thousandths of whichever GPU it lands on; 0: any share.
    pub compute_milli: u16,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodObject {
    /// Its UID.
    pub uid: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What decides where it may go.
    pub spec: Arc<PodSpec>,
    /// When it was created.
    pub created_at_ms: i64,
    /// When its kubelet first saw it; `None` before that.
    pub started_at_ms: Option<i64>,
    /// The node it is bound to.
    pub node: Option<Arc<str>>,
    /// The node it waits for (`status.nominatedNodeName`).
    pub nominated: Option<Arc<str>>,
    /// Where it is in its life.
    pub phase: Phase,
    /// Its deletion, if that was requested.
    pub deletion: Option<Deletion>,
    /// What it has been given for the part of a GPU it needs.
    pub gpu_grant: Option<GpuGrant>,
    /// The claims of devices it refers to, in the order in which they are given them.
    pub claims: Arc<[PodClaim]>,
}

/// The graceful deletion of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deletion {
    /// When it was requested. The API's `deletionTimestamp` is later by the grace period.
    pub requested_at_ms: i64,
    /// The grace period.
    pub grace_ms: i64,
}

impl Deletion {
    /// When the pod no longer counts against quotas even if it still exists: one more grace period after
    /// its containers should have stopped.
    pub fn uncounted_at_ms(self) -> i64 {
        self.requested_at_ms.saturating_add(self.grace_ms.saturating_mul(2))
    }
}

/// What a pod has been given for the part of a GPU it needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuGrant {
    /// A device resource.
    pub resource: ResourceName,
    /// The number of the GPU of which it is a share, on nodes whose GPUs are divided on demand;
    /// `None`: it is one of the resource. Where the node's devices are known this is the place in the
    /// plugin's list; elsewhere it only says which shares go together.
    pub gpu: Option<u16>,
}

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Waiting or running.
    #[default]
    Alive,
    /// Being deleted.
    Terminating {
        /// Because a scheduler made room (`DisruptionTarget`, `PreemptionByScheduler`).
        by_preemption: bool,
    },
    /// Succeeded or failed: it holds nothing any more.
    Finished,
}
