//! What clusters decide about pods in general: namespaces, priorities, budgets, quotas, which pods
//! belong together, and what devices are worth.
//!
//! Owns the data only.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::label::{Labels, Operator, Selector};
use crate::node::Node;
use crate::resource::{ResourceList, ResourceName};
use crate::spec::PreemptionPolicy;
use crate::workload::{CapacityType, PoolClasses};

/// A Namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: Labels,
}

/// A PriorityClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityClass {
    /// Its name.
    pub name: Arc<str>,
    /// The priority of its pods.
    pub value: i32,
    /// Whether they may have others evicted.
    pub preemption: PreemptionPolicy,
    /// Whether it is the class of pods that name none.
    pub is_default: bool,
}

/// A PodDisruptionBudget, with what is left of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DisruptionBudget {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Which pods it protects; `None` or one that asks for nothing: none.
    pub selector: Option<Selector>,
    /// How many more may be disrupted.
    pub disruptions_allowed: i32,
    /// Pods, by name, whose disruption has been counted already.
    pub disrupted_pods: BTreeSet<Arc<str>>,
}

/// A ResourceQuota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What the namespace may use at most, by quota resource (`requests.nvidia.com/gpu`, `pods`).
    pub hard: ResourceList,
    /// Which of the namespace's pods it counts: those that all of these mean.
    pub scopes: Vec<QuotaScope>,
}

/// A condition on the pods that a quota counts (`scopes`, `scopeSelector`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaScope {
    /// Pods with a deadline (`activeDeadlineSeconds`), or those without.
    Deadline(bool),
    /// Pods of the QoS class BestEffort, or of another.
    BestEffort(bool),
    /// Pods by the name of their priority class; those that name none have no value.
    PriorityClass(Operator),
    /// Pods with an affinity term that looks at other namespaces.
    CrossNamespaceAffinity,
    /// A scope of other objects: no pod is meant.
    NoPod,
}

/// What a controller or a service says about which pods belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// `Service`, `ReplicaSet`, `ReplicationController` or `StatefulSet`.
    pub kind: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Which pods; `None` matches none.
    pub selector: Option<Selector>,
}

/// Nodes that are alike and can be had more of. A node says by a label to which pool it belongs
/// ([`POOL_LABELS`](crate::workload::POOL_LABELS)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: Arc<str>,
    /// What a new node of it looks like, empty.
    pub template: Node,
    /// How many more nodes it may get; `None`: no limit is known.
    pub growth: Option<u32>,
    /// Which classes of work it is for.
    pub classes: PoolClasses,
    /// On which terms its nodes are had; `None`: as their labels say.
    pub capacity: Option<CapacityType>,
}

/// What one unit of a device resource is, for vendors whose nodes do not say it as NVIDIA's do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// The extended resource, such as `amd.com/gpu`.
    pub resource: ResourceName,
    /// The memory that one of it comes with.
    pub memory: AcceleratorMemory,
    /// Its part of the whole device's compute, in thousandths.
    pub compute_milli: u16,
}

/// How much memory a unit of a device resource comes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcceleratorMemory {
    /// So much on every node.
    Bytes(u64),
    /// What a label of the node says, as a quantity (`192G`), or as a number of units of so many
    /// bytes.
    Label {
        /// The label's key, such as `amd.com/gpu.vram`.
        key: Arc<str>,
        /// What one stands for.
        unit_bytes: u64,
    },
}
