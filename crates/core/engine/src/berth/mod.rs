//! Placement of the profile `berth`: aligned first, packed so that what is left stays usable.
//!
//! Nodes are ranked per pod shape, and rankings are updated from the log of changes.

pub(crate) mod economy;
pub(crate) mod foresee;
pub(crate) mod headroom;
pub(crate) mod locality;
pub(crate) mod plan;
pub(crate) mod preempt;
pub(crate) mod prospect;
pub(crate) mod rank;
pub(crate) mod room;
pub(crate) mod select;
