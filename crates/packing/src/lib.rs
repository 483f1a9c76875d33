//! How to fill GPUs so that what is left stays usable.
//!
//! Pure: no I/O, no clock, no randomness; the same question gets the same answer on every machine.

pub mod layout;
pub mod repartition;
pub mod slice;
