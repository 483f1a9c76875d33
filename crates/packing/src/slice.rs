//! Slices: on which GPU and at which start to create an instance.
//!
//! Owns the online choice for GPUs whose instances are created when a request comes: what is asked
//! for ([`Want`]), the mix of what arrives ([`Mix`]), the GPUs ([`Fleet`]) and the rule. It must not
//! know pods, nodes or time.
//!
//! The rule, in this order:
//! 1. **Strand nothing.** Of all GPUs and starts, those after which the fewest memory units are out
//!    of reach of every profile of the mix. A `1g` at 6 leaves unit 7 to nobody; at 0 it does not.
//! 2. **Spare what is scarce.** For each kind of request, count the places it has: how many instances
//!    could be created, each GPU by itself, after every instance there has left with a chance of one
//!    in [`LEAVES_ONE_IN`]. Take the place after which the mean over the mix of 1/(places + 1) is
//!    least. So an empty GPU is broken up as soon as there are many and hardly ever the last one, and
//!    a GPU that is nearly empty is worth more than one that is nearly full, although neither can
//!    hold a whole GPU's work now.
//! 3. The fullest GPU, then the first, then the lowest start.
//!
//! Fragmentation as others define it counts, per GPU, the units that some profile cannot use; it does
//! not see that the last place for a profile matters more than the hundredth, nor that instances
//! leave. `cargo xtask bench mig` compares.

mod fleet;
mod grid;
mod mix;
mod want;

#[cfg(test)]
mod tests;

pub use fleet::{Fleet, FleetError, GpuIndex, Placement};
pub use grid::{LEAVES_ONE_IN, PARTS_OF_GPU};
pub use mix::{Kind, Mix};
pub use want::{Want, WantError};
