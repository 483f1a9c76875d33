//! What tests, xtask and the fuzz targets share: replaying recorded verdicts, builders, arbitrary
//! nodes and clusters, and the laws that hold on all of them.
//!
//! Checkers keep separate accounts and share no code with the engine. Never a dependency of a crate
//! that ships. Callers read the files, so that everything here also runs on text in a test.

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
