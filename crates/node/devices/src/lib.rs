//! The device plugin: serves whole GPUs, MIG instances, MPS shares and time-sliced replicas to the kubelet.
//!
//! An answer to the kubelet is recorded before it is sent and stays held until the kubelet's checkpoint shows
//! whose it is. A kubelet copies its checkpoint under a lock and writes it afterwards, so of two concurrent
//! writes the older can stay, and after the next restart it forgets a running pod. Hence no device list is
//! sent before the checkpoint shows the answer, and what the checkpoint never showed stays held while a pod
//! runs that may have it.
//!
//! Does not know drivers (NVML), the Kubernetes API, or how the scheduler chooses.

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
pub mod response;
pub mod running_pods;
mod serve;
pub mod socket;

pub use config::DeviceConfig;
pub use decision::Decision;
pub use device::{
    Device, GpuIndex, Inventory, InventoryError, Kind, OfferedGpu, Share, SharingMode, ThreadCap,
};
pub use ledger::{Evidence, Ledger, Refusal};
pub use plugin::{PluginConfig, Plugins};
pub use podresources::PodResourcesClient;
pub use response::ResponseConfig;
pub use running_pods::{CgroupPods, RunningPods, UnknownPods};
pub use serve::{Supply, serve};
