//! What runs on a GPU node: what is really there, and whether each pod is really aligned.
//!
//! Owns what NVML says of GPUs, the audit of running pods, the report that puts both together with what the
//! machine's files say, what is published of it, how GPUs are divided, shared and handed out, and the loops that do so
//! when something changed. All but the loops (`run`, `handing`, `dividing`, `mps`) is synchronous and knows no API.
//! Whatever a driver says or refuses, nothing panics: it becomes a diagnosis beside the rest.
//!
//! Must not know how the scheduler plans.

pub mod audit;
pub mod dividing;
pub mod gpus;
pub mod handing;
pub mod mig;
pub mod mps;
pub mod offers;
pub mod publish;
pub mod record;
pub mod report;
pub mod run;
pub mod table;

pub use gpus::{GpuReading, GpuSource};
pub use report::{NodeReport, Reading};
