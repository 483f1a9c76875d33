//! Who may have how much, and whose turn it is.
//!
//! Quotas as Kubernetes counts them, and the shares of teams: what they are guaranteed, what they
//! borrow and from whom. Pure: no I/O, no clock, no randomness. Knows pods by what they ask for, and
//! no node.

pub mod quota;
pub mod share;
