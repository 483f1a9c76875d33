//! Capacity planning: the fewest GPUs for services with known rates and latency limits, with a
//! proven lower bound.

pub mod serving;
