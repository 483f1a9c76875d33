//! When a pending pod starts, as a distribution, and how sure that is.
//!
//! Learns from the engine's events and decisions how long pods live, simulates many futures of the
//! queue, and stretches its bounds by how wrong similar past forecasts were.
//!
//! Futures know requests, parts of GPUs, selectors and taints. They leave out NUMA nodes, affinity
//! between pods, spreading, volumes and evictions, assume that lifetimes are independent, and are
//! cut short when they cost too much. Calibration corrects the average of these errors, not the
//! single case.
//!
//! Pure: time is an argument and chance follows from a seed. Only addition, multiplication and
//! division are used, so the same past gives the same forecast on every machine.

mod arrivals;
mod bins;
mod calibration;
mod cluster;
pub mod forecast;
mod forecaster;
mod future;
mod initial;
pub mod lifetime;
mod room;
pub mod words;

pub use calibration::Reliability;
pub use forecaster::{Effort, Forecaster};
