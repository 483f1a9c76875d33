//! How much there should be.
//!
//! Pure: no I/O, no clock, no randomness; the same question gets the same answer on every machine.

pub mod serving;
