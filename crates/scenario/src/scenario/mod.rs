//! Scenarios.

mod assemble;
mod file;
mod pools;
mod units;

pub use file::{API_VERSION, KIND};
