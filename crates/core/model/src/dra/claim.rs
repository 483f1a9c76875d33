//! Claims: which devices are asked for, together with which others, and what was given.
//!
//! Owns the data only.

use std::sync::Arc;

use super::{Amounts, Config, DeviceId};
use crate::affinity::NodeTerm;
use crate::taint::Toleration;

/// A request for devices that live as long as it does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: Arc<str>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The UID of its controller: the pod it was made for, from a template or for extended
    /// resources.
    pub controller_uid: Option<Arc<str>>,
    /// Whether a scheduler made it for the extended resources of its controller.
    pub for_extended_resources: bool,
    /// What is asked for.
    pub spec: ClaimSpec,
    /// What was given.
    pub allocation: Option<Allocation>,
    /// The UIDs of those who may use it.
    pub reserved_for: Vec<Arc<str>>,
    /// What drivers say about devices that were given.
    pub device_conditions: Vec<DeviceConditions>,
}

/// What a claim asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimSpec {
    /// All of these.
    pub requests: Vec<Request>,
    /// What must hold for devices together.
    pub constraints: Vec<Constraint>,
    /// What drivers are told about devices given out for this claim.
    pub configs: Vec<ClaimConfig>,
}

/// One request of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name, unique in the claim.
    pub name: Arc<str>,
    /// What is asked for.
    pub wanted: Wanted,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Exactly this.
    Exactly(DeviceAsk),
    /// The first of these that can be had, by name.
    FirstOf(Vec<(Arc<str>, DeviceAsk)>),
    /// Something that is not understood.
    Unknown,
}

/// Devices of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceAsk {
    /// The class they must be of.
    pub class: Arc<str>,
    /// CEL expressions that must all hold, besides those of the class.
    pub selectors: Vec<Arc<str>>,
    /// How many.
    pub count: Count,
    /// Whether devices are only to be looked at, whoever holds them.
    pub admin_access: bool,
    /// Which taints of devices do not matter.
    pub tolerations: Vec<Toleration>,
    /// How much of each device's capacities.
    pub capacity: Amounts,
}

/// How many devices are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Count {
    /// So many.
    Exactly(i64),
    /// All there are for the node, and at least one.
    All,
    /// A mode that is not understood, as written.
    Unknown(Arc<str>),
}

impl Default for Count {
    fn default() -> Self {
        Self::Exactly(1)
    }
}

/// What must hold for the devices of some requests together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// For devices of these requests, `request` or `request/alternative`; empty: of all.
    pub requests: Vec<Arc<str>>,
    /// What.
    pub rule: ConstraintRule,
}

/// What must hold for devices together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConstraintRule {
    /// All have this attribute, with one value.
    Match(Arc<str>),
    /// All have this attribute, each with another value.
    Distinct(Arc<str>),
    /// Something that is not understood.
    Unknown,
}

/// What a driver is told about devices of some requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimConfig {
    /// Of these requests; empty: of all.
    pub requests: Vec<Arc<str>>,
    /// What.
    pub config: Config,
}

/// What a claim was given, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// The devices, in the order of the requests.
    pub devices: Vec<AllocatedDevice>,
    /// What drivers are to be told about them.
    pub configs: Vec<AllocatedConfig>,
    /// The nodes from which all of them can be used; `None`: from all nodes.
    pub nodes: Option<Vec<NodeTerm>>,
    /// When it was given.
    pub allocated_at_ms: Option<i64>,
}

/// One device that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedDevice {
    /// For which request: `request` or `request/alternative`.
    pub request: Arc<str>,
    /// The device.
    pub id: DeviceId,
    /// Whether it is only looked at, and may be held by others.
    pub admin_access: bool,
    /// What holds of the device were given.
    pub share: Share,
    /// Which taints of it do not matter.
    pub tolerations: Vec<Toleration>,
    /// What must have come true before a pod with it may start.
    pub binding_conditions: Vec<Arc<str>>,
    /// What ends the waiting for the conditions.
    pub binding_failure_conditions: Vec<Arc<str>>,
}

/// How much of a device was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// All of it.
    #[default]
    Whole,
    /// A part of one that several claims can share.
    Part {
        /// What tells this part from others; whoever writes the allocation chooses it.
        share_id: Option<Arc<str>>,
        /// How much of its capacities.
        consumed: Amounts,
    },
}

/// What a driver is to be told about devices that were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedConfig {
    /// Who says so.
    pub source: ConfigSource,
    /// About devices of these requests; empty: of all.
    pub requests: Vec<Arc<str>>,
    /// What.
    pub config: Config,
}

/// Who has something to tell drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    /// The device's class.
    Class,
    /// The claim.
    Claim,
}

/// What a driver says about a device that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConditions {
    /// The device.
    pub id: DeviceId,
    /// The conditions that are true.
    pub holding: Vec<Arc<str>>,
}
