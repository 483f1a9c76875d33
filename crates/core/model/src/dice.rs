//! Reproducible random numbers, computed from a seed and a key.
//!
//! There is no state: a draw can be repeated, and an additional draw changes no other.

/// Draws for one purpose.
#[derive(Clone, Copy, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Independent draws for a part of the purpose.
    #[must_use]
    pub fn of(self, part: u64) -> Self {
        Self(mix(self.0 ^ part.wrapping_mul(0xD6E8_FEB8_6659_FD93)))
    }

    /// A uniform 32-bit number for this key.
    pub fn roll(self, thing: u64) -> u32 {
        (mix(self.0.wrapping_add(thing.wrapping_mul(0x9E37_79B9_7F4A_7C15))) >> 32) as u32
    }

    /// A uniform number in `0.0..1.0` for this key.
    pub fn share(self, thing: u64) -> f64 {
        f64::from(self.roll(thing)) / 4_294_967_296.0
    }

    /// A number below `bound` for this key; 0 if `bound` is 0.
    pub fn below(self, thing: u64, bound: usize) -> usize {
        ((u64::from(self.roll(thing)) * bound as u64) >> 32) as usize
    }
}

/// The finalizer of SplitMix64.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}
