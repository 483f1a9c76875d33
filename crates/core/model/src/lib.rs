//! What exists: quantities as integers, machines with their NUMA nodes and caches, GPUs and their
//! slices, nodes, pods and their requests, and cluster-wide policies.
//!
//! Plain data and the arithmetic that follows from it alone. What a kubelet or a scheduler does
//! with it is in other crates, and who holds what is nowhere here: the model is what exists, not
//! what happens. Parsing means one value from a string, never a file.

pub mod affinity;
pub mod alignment;
pub mod device;
pub mod dice;
pub mod dra;
pub mod gang;
pub mod gpu;
pub mod idset;
pub mod label;
pub mod machine;
pub mod mig;
pub mod node;
pub mod numa;
pub mod pod;
pub mod policy;
pub mod quantity;
pub mod resize;
pub mod resource;
pub mod spec;
pub mod storage;
pub mod taint;
pub mod workload;
