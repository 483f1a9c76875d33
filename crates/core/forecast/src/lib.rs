//! When a waiting pod will start, and how sure that is.
//!
//! Pure: what happens comes in as the engine's events and decisions, time as an argument, chance from a
//! seed. The same past gives the same forecast on every machine; numbers are added, multiplied and
//! divided, nothing else.

mod arrivals;
mod bins;
mod calibration;
pub mod forecast;
mod forecaster;
mod future;
pub mod lifetime;
mod room;
mod scene;
mod stage;
mod table;
pub mod words;

pub use calibration::Reliability;
pub use forecaster::{Effort, Forecaster};
