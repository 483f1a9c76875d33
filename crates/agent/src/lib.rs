//! What runs on a GPU node: what is really there, and whether each pod is really aligned.
//!
//! Owns what NVML says of GPUs, the audit of running pods, and the report that puts both together with
//! what the machine's files say. All of it is synchronous: whoever publishes it, and when, is elsewhere.
//! Whatever a driver says or refuses, nothing panics: it becomes a diagnosis beside the rest.
//!
//! Must not know Kubernetes' API, nor how the scheduler plans.

pub mod audit;
pub mod gpus;
pub mod offers;
pub mod record;
pub mod report;
pub mod table;

pub use gpus::{GpuReading, GpuSource};
pub use report::{NodeReport, Reading};
