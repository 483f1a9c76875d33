//! Clusters and work as people write them down: dumps, manifests, scenarios, traces.
//!
//! Owns the way from these to what the engine and the simulation take. Must not know what becomes of
//! it.

pub mod cluster;
pub mod objects;
pub mod scenario;
pub mod traces;
pub mod workloads;
