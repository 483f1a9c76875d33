//! MIG slices: on which GPU and at which start to create an instance.
//!
//! This is the online choice for GPUs whose instances are created when a request comes: requests
//! ([`SliceRequest`]), the mix of arrivals ([`Mix`]) and the GPUs ([`Fleet`]).
//!
//! The rule: take the GPU and start after which the least is at risk, the fullest GPU of equals,
//! then the first, then the lowest start. At risk are
//! - *requests that will find no place*: for each kind of request, count its places, that is, how
//!   many instances could be created, each GPU by itself, after every instance there has left with
//!   a probability of one in [`LEAVES_ONE_IN`]; the risk is 1/(places + 1), weighted by the mix. So
//!   an empty GPU is broken up while there are many and hardly ever the last one, and a GPU that is
//!   nearly empty is worth more than one that is nearly full, although neither can hold a whole
//!   GPU's work now;
//! - *stranded memory*: the share of all GPUs' memory that no profile of the mix can use. A `1g` at
//!   6 makes unit 7 unusable; at 5 it does not. Both are shares of what is wanted, so they add up:
//!   a unit is given up if the last place for something large would be lost otherwise.
//!
//! Fragmentation as others define it counts, per GPU, the units that some profile cannot use; it
//! does not see that the last place for a profile matters more than the hundredth, nor that
//! instances leave. `cargo xtask bench mig` compares.

mod fleet;
mod grid;
mod mix;
mod want;

#[cfg(test)]
mod tests;

pub use fleet::{Fleet, FleetError, GpuIndex, Placement};
pub use grid::{LEAVES_ONE_IN, PARTS_OF_GPU};
pub use mix::{Kind, Mix};
pub use want::{SliceRequest, SliceRequestError};
