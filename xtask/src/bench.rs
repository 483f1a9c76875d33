//! Measures speed on release builds.

pub(crate) mod agent;
pub(crate) mod engine;
pub(crate) mod eta;
pub(crate) mod instructions;
pub(crate) mod kubelet;
pub(crate) mod live;
pub(crate) mod manifest;
pub(crate) mod mig;
pub(crate) mod packing;
pub(crate) mod shares;
pub(crate) mod sim;
pub(crate) mod stranding;
pub(crate) mod webhook;
