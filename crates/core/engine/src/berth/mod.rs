//! The profile `berth`: aligned first, packed so that what is left stays usable, and fast.
//!
//! Owns rankings of nodes by shape of pod, kept up to date by what changed; the choice among them;
//! and preemption that frees the right thing. Must not know the queue.

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
