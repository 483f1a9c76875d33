//! The data model: quantities, machines, GPUs and MIG slices, nodes, pods, policies.
//!
//! Plain data and its own arithmetic. It has no allocation state, no kubelet or scheduler logic,
//! and reads no files.

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
pub mod table;
pub mod taint;
pub mod workload;
