//! Virtual time: the engine against virtual kubelets, controllers, load and failures.

pub mod report;
