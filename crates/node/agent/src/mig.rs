//! Repartitioning of GPUs (MIG).
//!
//! A requested layout ([`request`]) is turned into changes with the least disturbance ([`mod@plan`]), which are
//! applied as a whole or rolled back ([`apply()`], with a [`journal`] that survives a crash). Slices in use
//! ([`workloads`]) are not touched. On a node where NVIDIA's mig-manager runs, it does the work instead
//! ([`manager`]): two programs would undo each other's changes.
//!
//! Does not call the Kubernetes API, and does not decide which slices a node should have.

pub mod apply;
mod driver;
pub mod journal;
pub mod layout;
pub mod manager;
mod nvml;
pub mod plan;
pub mod report;
pub mod request;
pub mod workloads;

pub use apply::{MigState, apply, recover};
pub use driver::{Activation, DriverError, MigDriver, MigGpu, SupportedProfile};
pub use journal::{FileJournal, Journal};
pub use layout::{GpuLayout, Placement, Slice};
pub use nvml::NvmlDriver;
pub use plan::{MigChanges, Reach, Refusal, plan};
pub use report::MigReport;
pub use request::LayoutRequest;
pub use workloads::Workloads;
