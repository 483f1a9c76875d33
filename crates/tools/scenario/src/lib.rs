//! Clusters and workloads as files (dumps, manifests, scenarios, traces), lowered to what the
//! engine and the simulation take.
//!
//! Missing data of a dump is not invented, except where stated. Contradictory objects are rejected in a
//! dump, and omitted and reported in a live cluster. Files are opened by `berth-manifest`
//! only.

pub mod cluster;
pub mod objects;
pub mod scenario;
pub mod traces;
pub mod workloads;

pub use scenario::json_schema;
