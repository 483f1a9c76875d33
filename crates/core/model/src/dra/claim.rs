//! Resource claims and their allocations.

use std::sync::Arc;

use super::{Amounts, Config, DeviceId};
use crate::affinity::NodeTerm;
use crate::taint::Toleration;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
    pub deleting: bool,
    /// The pod that the claim was created for, from a template or for extended resources.
    pub controller_uid: Option<Arc<str>>,
    /// Whether a scheduler created it for the extended resources of its controller.
    pub for_extended_resources: bool,
    pub spec: ClaimSpec,
    pub allocation: Option<Allocation>,
    /// UIDs of the pods that may use it.
    pub reserved_for: Vec<Arc<str>>,
    /// Conditions that drivers report for allocated devices.
    pub device_conditions: Vec<DeviceConditions>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimSpec {
    pub requests: Vec<Request>,
    pub constraints: Vec<Constraint>,
    pub configs: Vec<ClaimConfig>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Unique in the claim.
    pub name: Arc<str>,
    pub kind: RequestKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Exactly(DeviceRequest),
    /// The first alternative that can be allocated, with the alternatives' names.
    FirstOf(Vec<(Arc<str>, DeviceRequest)>),
    /// A form that Berth does not know.
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceRequest {
    pub class: Arc<str>,
    /// CEL expressions that must all hold, besides those of the class.
    pub selectors: Vec<Arc<str>>,
    pub count: Count,
    /// Access for monitoring: the device may be allocated to other claims as well.
    pub admin_access: bool,
    pub tolerations: Vec<Toleration>,
    /// Required amounts of each device's capacities.
    pub capacity: Amounts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Count {
    Exactly(i64),
    /// All devices for the node, and at least one.
    All,
    /// An unknown mode, as written.
    Unknown(Arc<str>),
}

impl Default for Count {
    fn default() -> Self {
        Self::Exactly(1)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// `request` or `request/alternative`; empty: all requests.
    pub requests: Vec<Arc<str>>,
    pub rule: ConstraintRule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConstraintRule {
    /// All devices have the same value of this attribute.
    Match(Arc<str>),
    /// All devices have this attribute, each with a different value.
    Distinct(Arc<str>),
    /// A form that Berth does not know.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimConfig {
    /// Empty: all requests.
    pub requests: Vec<Arc<str>>,
    pub config: Config,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// In the order of the requests.
    pub devices: Vec<AllocatedDevice>,
    pub configs: Vec<AllocatedConfig>,
    /// The nodes from which all devices can be used; `None`: all nodes.
    pub nodes: Option<Vec<NodeTerm>>,
    pub allocated_at_ms: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedDevice {
    /// `request` or `request/alternative`.
    pub request: Arc<str>,
    pub id: DeviceId,
    pub admin_access: bool,
    pub share: Share,
    pub tolerations: Vec<Toleration>,
    /// Conditions that must be true before a pod with the device may start.
    pub binding_conditions: Vec<Arc<str>>,
    /// Conditions that end the wait for the binding conditions.
    pub binding_failure_conditions: Vec<Arc<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Share {
    #[default]
    Whole,
    /// A part of a device that several claims can share.
    Part {
        /// Tells this part from others; chosen by whoever writes the allocation.
        share_id: Option<Arc<str>>,
        /// Consumed capacities.
        consumed: Amounts,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedConfig {
    pub source: ConfigSource,
    /// Empty: all requests.
    pub requests: Vec<Arc<str>>,
    pub config: Config,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    Class,
    Claim,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConditions {
    pub id: DeviceId,
    /// The conditions whose status is true.
    pub true_conditions: Vec<Arc<str>>,
}
