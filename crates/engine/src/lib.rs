//! Where pods go, and why not.
//!
//! The pure decision core: events in, decisions out. No I/O, no clock, no randomness of its own.

pub mod event;
pub mod verdict;
