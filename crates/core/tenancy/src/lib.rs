//! Quotas and team shares: who may have how much, and who is next in the queue.
//!
//! ResourceQuotas are counted as in Kubernetes. Teams have guarantees and borrow from each other;
//! whole GPUs, slices and shares are one dimension, in exact parts of a GPU. A pod beyond a quota
//! or share is held.
//!
//! Pure: no I/O, no clock, no randomness. Knows pods by their requests, and no nodes.

pub mod quota;
pub mod share;
