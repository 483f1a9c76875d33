//! The smallest slice that is enough.
//!
//! Owns the choice of a profile for a stated need. It must not know layouts: whether the profile
//! can be created on some GPU is asked of a [`Layout`](super::Layout).

use super::board::{Board, Profile};
use super::name::Attribute;

/// What a slice must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Compute, in thousandths of the GPU's compute slices, rounded either way: 143 is one of seven.
    pub compute_per_mille: u16,
    /// The suffix the profile must have; without one, any will do.
    pub attribute: Option<Attribute>,
}

impl Board {
    /// The smallest profile that meets the need: the one with the fewest memory units, then the
    /// fewest compute slices, then the first in the order of [`Attribute`], where plain is first.
    ///
    /// Where the board's placements are unknown, memory stands in for memory units. A profile is
    /// counted on for what it certainly has: its memory as a driver gave it, else that of a profile
    /// with as many memory units, else five sixths of what its name says. A caller that knows a
    /// node's labels uses [`Board::smallest_by`].
    #[must_use]
    pub fn smallest(&self, need: &Need) -> Option<&'static Profile> {
        self.smallest_by(need, |profile| {
            let alike = self.profiles().iter().filter(|other| {
                profile.memory_is_nominal()
                    && !other.memory_is_nominal()
                    && other.memory_units() == profile.memory_units()
            });
            let seen = alike.map(Profile::memory_bytes).min();
            seen.unwrap_or(profile.certain_memory_bytes())
        })
    }

    /// [`Board::smallest`] with the memory of each profile, in bytes, as the caller knows it.
    #[must_use]
    pub fn smallest_by(
        &self,
        need: &Need,
        memory: impl Fn(&Profile) -> u64,
    ) -> Option<&'static Profile> {
        let slices = u32::from(self.compute_slices());
        let per_mille = |p: &Profile| (u32::from(p.compute_slices()) * 1000).div_ceil(slices);
        self.profiles()
            .iter()
            .filter(|p| per_mille(p) >= u32::from(need.compute_per_mille))
            .filter(|p| need.attribute.is_none_or(|a| p.attribute() == a))
            .filter(|p| memory(p) >= need.memory_bytes)
            .min_by_key(|p| {
                let size = p.memory_units().map_or(p.memory_mib(), u32::from);
                (size, p.compute_slices(), p.attribute())
            })
    }
}
