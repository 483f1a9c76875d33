//! Who may have how much, and who is next in the queue.
//!
//! ResourceQuotas as Kubernetes counts them, and teams: what they are guaranteed, what they borrow
//! and from whom. Whole GPUs, slices and shares are one dimension, in exact parts of a GPU. A pod
//! beyond either is held.
//!
//! Pure: no I/O, no clock, no randomness. Knows pods by what they request, and no node.

pub mod quota;
pub mod share;
