//! Handing GPUs out through the kubelet: whole ones, MIG instances, MPS shares and time-sliced replicas.
//!
//! Owns the books of who holds what ([`ledger`]), the plugins that the kubelet asks ([`plugin`]), the
//! specifications that runtimes read ([`cdi`]), and the client of podresources. Devices come in as plain
//! data ([`Inventory`]).
//!
//! Must not know drivers (NVML), Kubernetes' API, nor how the scheduler chooses.

pub mod answer;
pub mod cdi;
pub mod decision;
pub mod device;
#[cfg(feature = "fake")]
#[doc(hidden)]
pub mod fake;
mod file;
pub mod ledger;
pub mod plugin;
pub mod podresources;
mod prefer;
pub mod proto;
mod socket;

pub use answer::Answers;
pub use decision::Decision;
pub use device::{Device, Gpu, GpuIndex, Inventory, InventoryError, Kind, Sharing, ThreadCap};
pub use ledger::{Evidence, Ledger, Refusal};
pub use plugin::{PluginConfig, Plugins, Witness};
pub use podresources::PodResourcesClient;
