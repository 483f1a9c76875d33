//! Devices that are asked for by what they are: Dynamic Resource Allocation (`resource.k8s.io/v1`).
//!
//! Owns the data of slices, classes and claims, and of what a pod needs. Must not know how devices
//! are chosen, nor what selectors mean: their expressions are kept as text.

pub mod claim;
pub mod pod;
pub mod slice;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::resource::ResourceName;

/// How many devices one claim can be given.
pub const RESULTS_MAX: usize = 32;

/// How many alternatives a request can list.
pub const ALTERNATIVES_MAX: usize = 8;

/// What precedes a class's name in the extended resource that every class is known by.
pub const CLASS_RESOURCE_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Quantities by name.
pub type Amounts = BTreeMap<Arc<str>, crate::quantity::Quantity>;

/// A device, wherever it is named.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    /// The driver that offers it.
    pub driver: Arc<str>,
    /// The pool it belongs to, unique for the driver.
    pub pool: Arc<str>,
    /// Its name, unique in the pool.
    pub device: Arc<str>,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

/// What a driver is to be told about devices that are given out. Opaque to everyone else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which driver.
    pub driver: Arc<str>,
    /// What, as JSON text.
    pub parameters: Arc<str>,
}

/// A kind of device that claims ask for by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceClass {
    /// Its name.
    pub name: Arc<str>,
    /// When it was created.
    pub created_at_ms: i64,
    /// CEL expressions that must all hold for a device.
    pub selectors: Vec<Arc<str>>,
    /// The extended resource that it serves, besides the one made from its name.
    pub extended_resource: Option<ResourceName>,
    /// What drivers are told when a device is given out for this class.
    pub configs: Vec<Config>,
}

impl DeviceClass {
    /// The extended resource that it serves without saying so.
    pub fn implicit_resource(&self) -> ResourceName {
        ResourceName::new(format!("{CLASS_RESOURCE_PREFIX}{}", self.name))
    }
}
