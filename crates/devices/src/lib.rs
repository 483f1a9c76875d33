//! Handing GPUs out through the kubelet: whole ones, MIG instances, MPS shares and time-sliced replicas.
//!
//! Owns the books of who holds what ([`ledger`]), the plugins that the kubelet asks ([`plugin`]), the
//! specifications that runtimes read ([`cdi`]), and the client of podresources. Devices come in as plain
//! data ([`Inventory`]).
//!
//! Must not know drivers (NVML), Kubernetes' API, nor how the scheduler chooses.

pub mod decision;
pub mod device;
pub mod ledger;
mod prefer;
pub mod proto;

pub use decision::Decision;
pub use device::{Device, Gpu, GpuIndex, Inventory, InventoryError, Kind, Sharing, ThreadCap};
pub use ledger::{Evidence, Ledger, Refusal};
