//! How to fill GPUs so that what is left stays usable.
//!
//! For whole GPUs and shares: the mix of arriving work ([`mix`]), free resources of a node
//! ([`node`]), the kinds of machine ([`fleet`]) and the cost of a placement ([`score`]). For MIG
//! slices: where to create one ([`mod@slice`]), which layouts to start with ([`layout`]) and which
//! to change ([`repartition`]).
//!
//! The caller filters nodes and takes the lowest cost. NUMA nodes, the queue and execution are not
//! here.

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
