//! The rest of a cluster in one process: controllers and virtual kubelets.

mod clock;
pub mod controllers;
mod key;
mod mirror;
mod queue;
mod views;

pub use clock::Clock;
