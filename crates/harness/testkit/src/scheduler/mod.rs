//! Recorded decisions of the real kube-scheduler, and the engine held against them.

mod case;
mod describe;
mod explain;
mod replay;
mod schema;

pub use case::Case;
pub use explain::explain;
pub use replay::{Comparison, Mismatch, compare, decide};

#[cfg(test)]
mod tests;
