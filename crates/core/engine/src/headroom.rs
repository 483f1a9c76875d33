//! What is said of room that is kept warm.
//!
//! Owns the vocabulary only.

use std::sync::Arc;

use berth_model::workload::WorkloadClass;

/// A headroom as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmRoom {
    /// Its name.
    pub name: Arc<str>,
    /// For which class it is kept.
    pub class: WorkloadClass,
    /// The nodes on which it is kept, by name; a node is named as often as it has room for one.
    pub nodes: Vec<Arc<str>>,
    /// How many more there should be, for which there is no room.
    pub lacking: usize,
}
