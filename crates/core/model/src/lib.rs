//! What exists: quantities as integers, machines with their NUMA nodes and caches, GPUs and their
//! slices, nodes, pods and what they ask for, and what clusters decide about them.
//!
//! This crate owns plain data and the arithmetic that follows from it alone. It must not know what
//! a kubelet or a scheduler does with any of it, and it does no I/O: parsing here means parsing one
//! value from a string, never reading a file.

pub mod affinity;
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
