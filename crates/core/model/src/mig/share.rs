//! Cost shares: which part of a GPU each slice is.
//!
//! The share of a slice is the mean of its share of the memory grid and its share of the compute
//! slices: (m/M + c/C) / 2. It is an integer number of parts of 2·M·C, so nothing is rounded: 112
//! parts on a board with 8 memory units and 7 compute slices.
//!
//! - It adds up: memory units and compute slices are both used at most once, so the slices of any
//!   layout add up to at most 1, and the rest is stated rather than spread.
//! - It does not depend on neighbours. Charging max(m/M, c/C) adds up to between 0.89 and 1.11 over
//!   the full layouts of such a board and has to be scaled per GPU, so a slice's price would depend
//!   on its neighbours.
//! - It is fair between profiles: the whole GPU is 1; a slice with double memory costs more than
//!   the plain one and less than two; 4g costs more than 3g with the same memory.
//!
//! What is not in a slice is idle as far as further instances could use it, by the best of all
//! continuations, and stranded otherwise: seven `1g` leave one memory unit that no instance can
//! use, which is 7 parts in 112.

use std::fmt;

use super::board::{Board, Profile};
use super::layout::{Instance, Layout};

/// A part of one GPU; printed as `15/112`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share {
    pub parts: u16,
    /// Parts per GPU; the same for all shares of a board.
    pub of: u16,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.parts, self.of)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Shares {
    layout: Layout,
    /// In no slice, but usable by further instances.
    pub idle: Share,
    /// In no slice, and usable by no further instance.
    pub stranded: Share,
}

impl Board {
    /// `None` for a profile of another board, and if placements are unknown.
    pub fn share(&self, profile: &Profile) -> Option<Share> {
        let (geometry, shape) = self.shape(profile)?;
        let parts = shape.weight(geometry.units, geometry.compute);
        Some(Share { parts, of: geometry.whole() })
    }
}

impl Layout {
    pub fn shares(&self) -> Shares {
        let of = self.geometry().whole();
        let used: u16 = self.instances().map(|i| self.part(i)).sum();
        let idle = self.geometry().reach(self.occupied());
        let stranded = of.saturating_sub(used).saturating_sub(idle);
        Shares {
            layout: *self,
            idle: Share { parts: idle, of },
            stranded: Share { parts: stranded, of },
        }
    }

    fn part(&self, instance: Instance) -> u16 {
        self.board().share(instance.profile).map_or(0, |s| s.parts)
    }
}

impl Shares {
    /// Ascending by start. With `idle` and `stranded` they add up to exactly 1.
    pub fn slices(&self) -> impl Iterator<Item = (Instance, Share)> + use<> {
        let layout = self.layout;
        let of = layout.geometry().whole();
        layout.instances().map(move |i| (i, Share { parts: layout.part(i), of }))
    }
}
