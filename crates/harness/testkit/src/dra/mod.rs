//! Recorded allocations of the real kube-scheduler, and `berth-dra` held against them.

mod case;
mod cel;
mod explain;
mod replay;
mod schema;

pub use case::Case;
pub use cel::{Selection, SelectionResult};
pub use explain::explain;
pub use replay::{AllocatedDevices, Comparison, Decision, Mismatch, Verdict, compare, decide};
