//! How much capacity there should be.
//!
//! Plans the fewest GPUs for services with known rates and latency limits, with a proven lower
//! bound. Pure: no I/O, no clock, no randomness; the same question gets the same answer on every
//! machine.

pub mod serving;
