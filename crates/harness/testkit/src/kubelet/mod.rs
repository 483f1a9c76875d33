//! Recorded verdicts of the real kubelet, and the model held against them.

mod case;
mod explain;
mod replay;
mod schema;

pub use case::{Case, Operation};
pub use explain::explain;
pub use replay::{Mismatch, replay};
