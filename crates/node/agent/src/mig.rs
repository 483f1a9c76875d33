//! Dividing GPUs: from the slices that are there to those that are wanted.
//!
//! Owned here: what is wanted ([`wish`]), how to get there with the least disturbance ([`mod@plan`]), doing it
//! as a whole or not at all ([`apply()`], with a [`journal`] that outlives a crash), what may not be
//! touched ([`busy`]), and the other way, by NVIDIA's mig-manager ([`manager`]). GPUs are asked and changed
//! through [`MigDriver`]; NVML is one.
//!
//! Which way is used: where mig-manager runs on a node, its label, since two who divide the same GPUs
//! would undo each other's work; elsewhere NVML.
//!
//! Must not know Kubernetes' API: labels and annotations are texts here. Must not decide which slices a
//! node should have.

pub mod apply;
pub mod busy;
mod driver;
pub mod journal;
pub mod layout;
pub mod manager;
mod nvml;
pub mod plan;
pub mod report;
pub mod wish;

pub use apply::{MigState, apply, recover};
pub use busy::Busy;
pub use driver::{Activation, DriverError, MigDriver, MigGpu, Offer};
pub use journal::{FileJournal, Journal};
pub use layout::{GpuLayout, Place, Slice};
pub use nvml::NvmlDriver;
pub use plan::{MigChanges, Reach, Refusal, plan};
pub use report::MigReport;
pub use wish::Wish;
