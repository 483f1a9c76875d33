//! What drivers publish: slices of pools, with devices, their properties and what they share.
//!
//! Owns the data only. Which slices make up a whole pool, and who holds what, is for others to say.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Amounts;
use crate::affinity::NodeTerm;
use crate::quantity::Quantity;
use crate::taint::Taint;

/// A part of a pool of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceSlice {
    /// Its name. Devices are tried in the order of their slices' names.
    pub name: Arc<str>,
    /// The driver that offers the devices.
    pub driver: Arc<str>,
    /// The pool it is a part of.
    pub pool: PoolPart,
    /// From where its devices can be used.
    pub reach: Reach,
    /// The devices, in the order in which they are tried.
    pub devices: Vec<Device>,
    /// What the devices of the pool use up together.
    pub shared_counters: Vec<CounterSet>,
}

/// Which pool a slice is a part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPart {
    /// The pool's name, unique for the driver.
    pub name: Arc<str>,
    /// Slices of an older generation no longer count.
    pub generation: i64,
    /// How many slices of this generation there are once the driver has published all.
    pub slice_count: i64,
}

/// From which nodes devices can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// From this one.
    Node(Arc<str>),
    /// From those that one of these matches.
    Nodes(Vec<NodeTerm>),
    /// From every node.
    AllNodes,
    /// Each device of the slice says so itself.
    PerDevice,
    /// Nothing is said that is understood.
    #[default]
    Nowhere,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name, unique in its pool.
    pub name: Arc<str>,
    /// What it is like, by name. A name without a domain belongs to the driver's.
    pub attributes: BTreeMap<Arc<str>, Attribute>,
    /// How much of what it has.
    pub capacity: BTreeMap<Arc<str>, Capacity>,
    /// What it uses up of the pool's counters while it is given out.
    pub consumes: Vec<CounterSet>,
    /// From where it can be used, if its slice leaves that to the devices.
    pub reach: Reach,
    /// What keeps claims away. Those without an effect on scheduling are left out.
    pub taints: Vec<Taint>,
    /// Whether several claims can have a part of it each.
    pub shareable: bool,
    /// Whether whoever is given it is tied to the node it was given on.
    pub binds_to_node: bool,
    /// What must have come true before a pod with it may start.
    pub binding_conditions: Vec<Arc<str>>,
    /// What ends the waiting for the conditions.
    pub binding_failure_conditions: Vec<Arc<str>>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// A number.
    Int(i64),
    /// Yes or no.
    Bool(bool),
    /// A text.
    Text(Arc<str>),
    /// A semantic version, as written.
    Version(Arc<str>),
    /// A list, or nothing. kube-scheduler 1.36 cannot evaluate selectors for such a device.
    Unsupported,
}

/// How much a device has of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// All of it.
    pub value: Quantity,
    /// How requests for a part are read.
    pub policy: Option<RequestPolicy>,
}

/// How requests for a part of a capacity are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestPolicy {
    /// What is taken by those who do not say; all of it if this does not say either.
    pub default: Option<Quantity>,
    /// What can be asked for.
    pub valid: ValidRequests,
}

/// What amounts can be asked for. A request is rounded up to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ValidRequests {
    /// Any.
    #[default]
    Any,
    /// One of these, ascending.
    Values(Vec<Quantity>),
    /// One between the bounds.
    Range {
        /// The least.
        min: Quantity,
        /// The most.
        max: Option<Quantity>,
        /// Only multiples of this above the least.
        step: Option<Quantity>,
    },
}

/// Counters by name, all belonging together: what there is, or what a device uses up of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSet {
    /// The set's name, unique in the pool.
    pub name: Arc<str>,
    /// The counters.
    pub counters: Amounts,
}
