//! Cluster-wide policy objects: namespaces, priorities, disruption budgets, quotas, groupings,
//! pools, accelerators.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::label::{Labels, Operator, Selector};
use crate::node::Node;
use crate::resource::{ResourceList, ResourceName};
use crate::spec::PreemptionPolicy;
use crate::workload::{CapacityType, PoolClasses};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    pub name: Arc<str>,
    pub labels: Labels,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityClass {
    pub name: Arc<str>,
    pub value: i32,
    /// Whether its pods may preempt others.
    pub preemption: PreemptionPolicy,
    /// Whether it is the class of pods that name none.
    pub is_default: bool,
}

/// A PodDisruptionBudget with its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DisruptionBudget {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// The protected pods; `None` or an empty selector: none.
    pub selector: Option<Selector>,
    /// How many more pods may be disrupted.
    pub disruptions_allowed: i32,
    /// Names of pods whose disruption has been counted.
    pub disrupted_pods: BTreeSet<Arc<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// By quota resource (`requests.nvidia.com/gpu`, `pods`).
    pub hard: ResourceList,
    /// It counts the pods that match all of these.
    pub scopes: Vec<QuotaScope>,
}

/// `scopes` and `scopeSelector`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaScope {
    /// Pods with (or without) `activeDeadlineSeconds`.
    Deadline(bool),
    /// Pods of the QoS class BestEffort (or of another).
    BestEffort(bool),
    /// By the name of the priority class; pods that name none have no value.
    PriorityClass(Operator),
    /// Pods with an affinity term that refers to other namespaces.
    CrossNamespaceAffinity,
    /// A scope for other objects: matches no pod.
    NoPod,
}

/// Pods that belong together because one controller or service selects them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// `Service`, `ReplicaSet`, `ReplicationController` or `StatefulSet`.
    pub kind: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// `None` matches none.
    pub selector: Option<Selector>,
}

/// Nodes that are alike, of which there can be more. A node names its pool by a label
/// ([`POOL_LABELS`](crate::workload::POOL_LABELS)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    pub name: Arc<str>,
    /// A new, empty node.
    pub template: Node,
    /// How many nodes it may grow by; `None`: no known limit.
    pub growth: Option<u32>,
    pub classes: PoolClasses,
    /// `None`: as its nodes' labels say.
    pub capacity: Option<CapacityType>,
}

/// What one unit of a device resource is, for vendors whose nodes do not say it as NVIDIA's do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// Such as `amd.com/gpu`.
    pub resource: ResourceName,
    pub memory: AcceleratorMemory,
    /// Its part of the whole device's compute, in thousandths.
    pub compute_milli: u16,
}

/// Memory per unit of a device resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceleratorMemory {
    Bytes(u64),
    /// In a node label: a quantity (`192G`), or a number of units of `unit_bytes`.
    Label {
        /// Such as `amd.com/gpu.vram`.
        key: Arc<str>,
        unit_bytes: u64,
    },
}
