//! Placement of the profile `berth`: aligned first, packed so that what is left stays usable.
//!
//! Nodes are ranked per pod shape, and rankings are updated from the log of changes.

pub(crate) mod gpu_values;
pub(crate) mod headroom;
pub(crate) mod locality;
pub(crate) mod precheck;
pub(crate) mod preemption;
pub(crate) mod projection;
pub(crate) mod rank;
pub(crate) mod room;
pub(crate) mod select;
pub(crate) mod victims;
