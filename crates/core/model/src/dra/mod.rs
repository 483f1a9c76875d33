//! Dynamic Resource Allocation (`resource.k8s.io/v1`): slices, classes, claims. CEL selectors are
//! kept as text.

pub mod claim;
pub mod pod;
pub mod slice;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::resource::ResourceName;

/// Limit of devices per claim.
pub const RESULTS_MAX: usize = 32;

/// Limit of alternatives per request.
pub const ALTERNATIVES_MAX: usize = 8;

/// Every class serves the extended resource with this prefix and its name.
pub const CLASS_RESOURCE_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

pub type Amounts = BTreeMap<Arc<str>, crate::quantity::Quantity>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    pub driver: Arc<str>,
    /// Unique for the driver.
    pub pool: Arc<str>,
    /// Unique in the pool.
    pub device: Arc<str>,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

/// Driver configuration, opaque to everyone else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub driver: Arc<str>,
    /// JSON.
    pub parameters: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceClass {
    pub name: Arc<str>,
    pub created_at_ms: i64,
    /// CEL expressions that must all hold for a device.
    pub selectors: Vec<Arc<str>>,
    /// The extended resource it serves besides the implicit one.
    pub extended_resource: Option<ResourceName>,
    pub configs: Vec<Config>,
}

impl DeviceClass {
    /// The extended resource made from the class's name.
    pub fn implicit_resource(&self) -> ResourceName {
        ResourceName::new(format!("{CLASS_RESOURCE_PREFIX}{}", self.name))
    }
}
