//! Virtual time: the engine against virtual kubelets, controllers, load and failures.

pub mod assumptions;
pub mod experiment;
pub mod latency;
pub mod report;
