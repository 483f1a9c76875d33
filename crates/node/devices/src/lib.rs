//! Handing GPUs out through the kubelet: whole ones, MIG instances, MPS shares and time-sliced replicas.
//!
//! Owns what GPUs are offered as ([`config`], [`offer`]), the books of who holds what ([`ledger`]), the plugins
//! that the kubelet asks ([`plugin`]), the MPS daemons behind shares ([`mps`]), the specifications that runtimes read ([`cdi`]), and the client of
//! podresources. GPUs come in as plain data; [`serve()`] does it all until it is told to stop.
//!
//! Must not know drivers (NVML), Kubernetes' API, nor how the scheduler chooses.

pub mod answer;
pub mod cdi;
pub mod config;
pub mod decision;
pub mod device;
pub mod file;
pub mod ledger;
pub mod mps;
pub mod offer;
pub mod plugin;
pub mod podresources;
mod prefer;
pub mod proto;
mod serve;
pub mod socket;
pub mod witness;

pub use answer::Answers;
pub use config::DeviceConfig;
pub use decision::Decision;
pub use device::{
    Device, Gpu, GpuIndex, Inventory, InventoryError, Kind, Share, Sharing, ThreadCap,
};
pub use ledger::{Evidence, Ledger, Refusal};
pub use plugin::{PluginConfig, Plugins};
pub use podresources::PodResourcesClient;
pub use serve::{Stock, serve};
pub use witness::{CgroupWitness, NoWitness, Witness};
