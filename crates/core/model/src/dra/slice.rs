//! Resource slices, as drivers publish them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Amounts;
use crate::affinity::NodeTerm;
use crate::quantity::Quantity;
use crate::taint::Taint;

/// A part of a pool of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceSlice {
    /// Devices are tried in the order of their slices' names.
    pub name: Arc<str>,
    pub driver: Arc<str>,
    pub pool: SlicePool,
    pub scope: NodeScope,
    /// In the order in which they are tried.
    pub devices: Vec<Device>,
    /// Counters that the devices of the pool consume together.
    pub shared_counters: Vec<CounterSet>,
}

/// The pool of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePool {
    /// Unique for the driver.
    pub name: Arc<str>,
    /// Slices of older generations are ignored.
    pub generation: i64,
    /// How many slices this generation has once all are published.
    pub slice_count: i64,
}

/// The nodes from which devices can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodeScope {
    Node(Arc<str>),
    /// Those that one of these matches.
    Nodes(Vec<NodeTerm>),
    AllNodes,
    /// Each device of the slice states it.
    PerDevice,
    /// Nothing stated, or nothing that Berth knows.
    #[default]
    Nowhere,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Unique in its pool.
    pub name: Arc<str>,
    /// A name without a domain belongs to the driver's domain.
    pub attributes: BTreeMap<Arc<str>, Attribute>,
    pub capacity: BTreeMap<Arc<str>, Capacity>,
    /// What it consumes of the pool's counters while it is allocated.
    pub consumes: Vec<CounterSet>,
    /// Used if its slice says [`NodeScope::PerDevice`].
    pub scope: NodeScope,
    /// Without those that have no effect on scheduling.
    pub taints: Vec<Taint>,
    /// Whether several claims can each have a part of it.
    pub shareable: bool,
    /// Whether a pod with the device must run on the node it was allocated on.
    pub binds_to_node: bool,
    /// Conditions that must be true before a pod with the device may start.
    pub binding_conditions: Vec<Arc<str>>,
    /// Conditions that end the wait for the binding conditions.
    pub binding_failure_conditions: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    Int(i64),
    Bool(bool),
    Text(Arc<str>),
    /// A semantic version, as written.
    Version(Arc<str>),
    /// A list, or no value. kube-scheduler 1.36 cannot evaluate selectors for such a device.
    Unsupported,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub value: Quantity,
    pub policy: Option<RequestPolicy>,
}

/// How requests for a part of a capacity are rounded and validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestPolicy {
    /// Consumed by requests that name no amount; `None`: all of the capacity.
    pub default: Option<Quantity>,
    pub valid: ValidRequests,
}

/// Valid amounts. A request is rounded up to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ValidRequests {
    #[default]
    Any,
    /// Ascending.
    Values(Vec<Quantity>),
    Range {
        min: Quantity,
        max: Option<Quantity>,
        /// Only multiples of this above `min`.
        step: Option<Quantity>,
    },
}

/// Named counters: available in a pool, or consumed by a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSet {
    /// Unique in the pool.
    pub name: Arc<str>,
    pub counters: Amounts,
}
