//! The smallest slice that meets a need.

use super::board::{Board, Profile};
use super::name::Attribute;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    pub memory_bytes: u64,
    /// In thousandths of the GPU's compute slices, rounded either way: 143 is one of seven.
    pub compute_per_mille: u16,
    /// `None`: any suffix.
    pub attribute: Option<Attribute>,
}

impl Board {
    /// The profile with the fewest memory units, then the fewest compute slices, then the first in
    /// the order of [`Attribute`].
    ///
    /// If the board's placements are unknown, memory replaces memory units. A profile counts with
    /// the memory it certainly has: as a driver gave it, else that of a profile with as many memory
    /// units, else five sixths of what its name says. A caller that knows a node's labels uses
    /// [`Board::smallest_by`].
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
