//! How to fill GPUs so that what is left stays usable.
//!
//! Owned here, for whole GPUs and shares of them: the mix of work that arrives ([`mix`]), what is free
//! on a node ([`node`]) and in which kinds of machine it comes ([`fleet`]), and the rule that says
//! what a placement would cost ([`score`]). For MIG slices: where they go ([`mod@slice`]), which layouts
//! to make ([`layout`]) and to change ([`repartition`]). Deliberately absent: who is placed, on which
//! nodes a pod may run for other reasons, NUMA nodes and the queue. Whoever asks has filtered already
//! and takes the least cost.
//!
//! Pure: no I/O, no clock, no randomness; the same question gets the same answer on every machine.

pub mod fleet;
pub mod layout;
pub mod mix;
pub mod node;
mod remnant;
pub mod repartition;
pub mod request;
pub mod score;
pub mod slice;
mod supply;
