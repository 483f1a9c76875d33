//! What tests, `xtask` and the fuzz targets share: recorded verdicts and how to replay them, builders,
//! arbitrary nodes, and the laws that hold on all of them.
//!
//! Never a dependency of a product crate. Reading files is left to the callers, so that everything
//! here can also run on text that a test spells out.

pub mod claims;
pub mod cluster;
pub mod contest;
#[cfg(feature = "device-manager")]
pub mod device_manager;
pub mod dra;
pub mod invariants;
pub mod kubelet;
pub mod month;
pub mod node;
pub mod scenario;
pub mod scheduler;
mod vector;
pub mod world;

pub use vector::CaseError;
