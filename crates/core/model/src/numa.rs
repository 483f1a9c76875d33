//! Sets of NUMA nodes of one machine.
//!
//! A [`NumaMask`] holds *positions* in [`Machine::numa`], which is in ascending order of node id.
//! Ids may have gaps; positions do not, and comparing masks by value gives the same answer for
//! both. [`Machine::numa_ids`] converts them for output.
//!
//! [`Machine::numa`]: crate::machine::Machine::numa
//! [`Machine::numa_ids`]: crate::machine::Machine::numa_ids

use std::fmt;
use std::ops::{BitAnd, BitOr};

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumaMask(u64);

impl NumaMask {
    pub const EMPTY: Self = Self(0);

    /// Limit of NUMA nodes per machine.
    pub const CAPACITY: usize = 64;

    /// Positions from [`Self::CAPACITY`] on give the empty mask.
    pub const fn single(position: usize) -> Self {
        if position < Self::CAPACITY { Self(1 << position) } else { Self::EMPTY }
    }

    pub const fn first(n: usize) -> Self {
        if n >= Self::CAPACITY { Self(u64::MAX) } else { Self((1 << n) - 1) }
    }

    pub const fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub const fn contains(self, position: usize) -> bool {
        position < Self::CAPACITY && self.0 >> position & 1 == 1
    }

    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub const fn is_subset(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            (rest != 0).then(|| {
                let position = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                position
            })
        })
    }

    /// The subsets with `size` nodes, in ascending order of value.
    pub fn subsets(self, size: usize) -> impl Iterator<Item = NumaMask> {
        let width = self.count();
        // Gosper's hack walks the `size`-bit numbers of `width` bits in ascending order; spreading
        // their bits over the nodes of the mask keeps that order.
        let limit: u128 = 1 << width;
        let mut pattern: u128 = if size == 0 || size > width { limit } else { (1 << size) - 1 };
        std::iter::from_fn(move || {
            (pattern < limit).then(|| {
                let subset = self.spread(pattern as u64);
                let low = pattern & pattern.wrapping_neg();
                let ripple = pattern + low;
                pattern = (((ripple ^ pattern) >> 2) / low) | ripple;
                subset
            })
        })
    }

    /// Bit `k` of the result is set if the `k`-th node of this mask is in `other`: the inverse of
    /// [`Self::spread`].
    pub fn gather(self, other: Self) -> u64 {
        if self.0 & self.0.wrapping_add(1) == 0 {
            return self.0 & other.0;
        }
        let positions = self.iter().enumerate();
        positions.fold(0, |bits, (at, node)| bits | u64::from(other.contains(node)) << at)
    }

    /// Puts bit `k` of `pattern` on the `k`-th node of the mask.
    pub fn spread(self, mut pattern: u64) -> Self {
        if self.0 & self.0.wrapping_add(1) == 0 {
            return Self(pattern & self.0); // the mask is 0, 1, … without gaps
        }
        let mut spread = 0;
        let mut rest = self.0;
        while pattern != 0 {
            let lowest = rest & rest.wrapping_neg();
            spread |= lowest * (pattern & 1);
            rest &= !lowest;
            pattern >>= 1;
        }
        Self(spread)
    }
}

impl BitAnd for NumaMask {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for NumaMask {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<usize> for NumaMask {
    fn from_iter<I: IntoIterator<Item = usize>>(positions: I) -> Self {
        positions.into_iter().fold(Self::EMPTY, |mask, position| mask | Self::single(position))
    }
}

impl fmt::Debug for NumaMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_come_in_ascending_order_and_completely() {
        for mask in [0b1011_0110u64, 0b1111, 0b1, 0] {
            let mask = NumaMask(mask);
            for size in 0..=mask.count() + 1 {
                let got: Vec<u64> = mask.subsets(size).map(|subset| subset.0).collect();
                let want: Vec<u64> = (1..=mask.0)
                    .filter(|m| m & !mask.0 == 0 && m.count_ones() as usize == size)
                    .collect();
                assert_eq!(got, want, "{mask:?} {size}");
                for (index, subset) in got.iter().enumerate() {
                    let bits = mask.gather(NumaMask(*subset));
                    assert_eq!(mask.spread(bits).0, *subset, "{mask:?} {index}");
                }
            }
        }
        assert_eq!(NumaMask(u64::MAX).subsets(64).count(), 1);
        assert_eq!(NumaMask(u64::MAX).subsets(1).count(), 64);
    }
}
