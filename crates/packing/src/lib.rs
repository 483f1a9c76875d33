//! How to fill GPUs so that what is left stays usable.
//!
//! Owned here: the mix of work that arrives ([`mix`]), what is free on a node ([`node`]) and in which
//! kinds of machine it comes ([`fleet`]), and the rule that says what a placement would cost
//! ([`score`]). Deliberately absent: who is placed, on which nodes a pod may run for other reasons,
//! NUMA nodes and the queue. Whoever asks has filtered already and takes the least cost.

pub mod fleet;
pub mod mix;
pub mod node;
mod remnant;
pub mod request;
pub mod score;
mod supply;
