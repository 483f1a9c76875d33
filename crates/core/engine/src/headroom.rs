//! The status of headroom.

use std::sync::Arc;

use berth_model::workload::WorkloadClass;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedHeadroom {
    pub name: Arc<str>,
    pub class: WorkloadClass,
    /// The nodes where it is reserved, sorted; repeated for each piece on a node.
    pub nodes: Vec<Arc<str>>,
    /// Missing pieces for which there is no room.
    pub lacking: usize,
}
