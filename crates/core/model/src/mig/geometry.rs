//! Placement grids: the shapes of a board's instances, and what each occupancy leaves room for.
//!
//! The memory grid is a bitmask (bit `i` is memory unit `i`), with two tables over all occupancies
//! computed at compile time. All variants of `1g` on a board are one shape.

use std::fmt;

/// Limit of shapes per grid: one byte of a [`Future`] each.
pub(super) const MAX_SHAPES: usize = 8;

/// Limit of memory units per grid: one bit of an occupancy mask each.
pub(super) const MAX_UNITS: u8 = 16;

/// The footprint shared by all variants of a profile.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) compute: u8,
    pub(super) units: u8,
    /// Bit `i` set: an instance may start at memory unit `i`.
    pub(super) starts: u16,
}

impl Shape {
    const fn new(compute: u8, units: u8, starts: u16) -> Self {
        Self { compute, units, starts }
    }

    /// The units an instance at `start` covers; `start` must be legal.
    pub(super) const fn bits(&self, start: u8) -> u16 {
        bits(self.units, start)
    }

    /// Starts at which all units are free.
    pub(super) const fn open(&self, occupied: u16) -> u16 {
        let mut blocked = occupied;
        let mut i = 1;
        while i < self.units {
            blocked |= occupied >> i;
            i += 1;
        }
        self.starts & !blocked
    }

    /// The share of a GPU, in parts of [`Geometry::whole`]: see `share.rs`.
    pub(super) const fn weight(&self, units: u8, compute: u8) -> u16 {
        self.units as u16 * compute as u16 + self.compute as u16 * units as u16
    }
}

const fn bits(units: u8, start: u8) -> u16 {
    (((1_u32 << units) - 1) << start) as u16
}

#[derive(Debug)]
pub(super) struct Geometry {
    pub(super) units: u8,
    pub(super) compute: u8,
    /// Largest first: by memory units, then by compute slices.
    pub(super) shapes: &'static [Shape],
    /// By occupancy: for each shape alone, how many more instances could be created.
    future: &'static [u64],
    /// By occupancy: the largest weight that further instances could add.
    reach: &'static [u16],
}

impl Geometry {
    /// Parts per GPU.
    pub(super) const fn whole(&self) -> u16 {
        2 * self.units as u16 * self.compute as u16
    }

    pub(super) fn future(&self, occupied: u16) -> Future {
        Future(self.future.get(usize::from(occupied)).copied().unwrap_or(0))
    }

    pub(super) fn reach(&self, occupied: u16) -> u16 {
        self.reach.get(usize::from(occupied)).copied().unwrap_or(0)
    }
}

/// For every shape of the board, from the largest to the smallest, how many instances could be
/// created if nothing else were.
///
/// Ordered lexicographically, so a future is greater when it keeps more of the largest shape in
/// which the two differ. Only futures of boards with the same grid can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Future(u64);

impl Future {
    /// How many instances of the `shape`-th largest shape could be created, alone.
    pub(super) const fn count(self, shape: u8) -> u8 {
        if shape as usize >= MAX_SHAPES {
            return 0;
        }
        (self.0 >> lane(shape as usize)) as u8
    }
}

const fn lane(shape: usize) -> u32 {
    (8 * (MAX_SHAPES - 1 - shape)) as u32
}

/// A set of starts; printed as `0, 2, 4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Starts(u16);

impl Starts {
    pub(super) const fn new(mask: u16) -> Self {
        Self(mask)
    }

    pub const NONE: Self = Self(0);

    pub const fn contains(self, start: u8) -> bool {
        start < MAX_UNITS && self.0 >> start & 1 == 1
    }

    pub const fn len(self) -> u8 {
        self.0.count_ones() as u8
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Ascending.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let start = left.trailing_zeros() as u8;
            left &= left - 1;
            Some(start)
        })
    }
}

impl fmt::Display for Starts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (i, start) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{start}")?;
        }
        Ok(())
    }
}

/// For every occupancy: how many instances of each shape alone fit into its free units.
///
/// An instance that uses the lowest free unit either starts there or does not exist. Occupancies
/// with that unit taken are larger numbers, so the table is filled downwards.
const fn future_table<const N: usize>(shapes: &[Shape]) -> [u64; N] {
    let mut table = [0_u64; N];
    let mut mask = N - 1;
    while mask > 0 {
        mask -= 1;
        let unit = mask.trailing_ones() as u8;
        let mut packed = 0;
        let mut s = 0;
        while s < shapes.len() {
            let mut best = table[mask | 1 << unit] >> lane(s) & 0xff;
            if shapes[s].starts >> unit & 1 == 1 && mask & shapes[s].bits(unit) as usize == 0 {
                let with = 1 + (table[mask | shapes[s].bits(unit) as usize] >> lane(s) & 0xff);
                best = if with > best { with } else { best };
            }
            packed |= best << lane(s);
            s += 1;
        }
        table[mask] = packed;
    }
    table
}

/// For every occupancy: the largest total weight of instances that fit into its free units.
const fn reach_table<const N: usize>(compute: u8, shapes: &[Shape]) -> [u16; N] {
    let units = N.trailing_zeros() as u8;
    let mut table = [0_u16; N];
    let mut mask = N - 1;
    while mask > 0 {
        mask -= 1;
        let unit = mask.trailing_ones() as u8;
        let mut best = table[mask | 1 << unit];
        let mut s = 0;
        while s < shapes.len() {
            if shapes[s].starts >> unit & 1 == 1 && mask & shapes[s].bits(unit) as usize == 0 {
                let rest = table[mask | shapes[s].bits(unit) as usize];
                let with = shapes[s].weight(units, compute) + rest;
                best = if with > best { with } else { best };
            }
            s += 1;
        }
        table[mask] = best;
    }
    table
}

/// A30: `4g {0}:4`, `2g {0,2}:2`, `1g {0-3}:1`.
const SHAPES_4: &[Shape] =
    &[Shape::new(4, 4, 0b0001), Shape::new(2, 2, 0b0101), Shape::new(1, 1, 0b1111)];

/// Seven compute slices over eight memory units: `7g {0}:8`, `4g {0}:4`, `3g {0,4}:4`,
/// `2g {0,2,4}:2`, `1g` with double memory `{0,2,4,6}:2`, `1g {0-6}:1`.
const SHAPES_8: &[Shape] = &[
    Shape::new(7, 8, 0b0000_0001),
    Shape::new(4, 4, 0b0000_0001),
    Shape::new(3, 4, 0b0001_0001),
    Shape::new(2, 2, 0b0001_0101),
    Shape::new(1, 2, 0b0101_0101),
    Shape::new(1, 1, 0b0111_1111),
];

/// RTX PRO 6000: `4g {0}:12`, `2g {0,6}:6`, `1g {0,3,6,9}:3`.
const SHAPES_12: &[Shape] = &[
    Shape::new(4, 12, 0b0000_0000_0001),
    Shape::new(2, 6, 0b0000_0100_0001),
    Shape::new(1, 3, 0b0010_0100_1001),
];

static FUTURE_4: [u64; 1 << 4] = future_table(SHAPES_4);
static FUTURE_8: [u64; 1 << 8] = future_table(SHAPES_8);
static FUTURE_12: [u64; 1 << 12] = future_table(SHAPES_12);
static REACH_4: [u16; 1 << 4] = reach_table(4, SHAPES_4);
static REACH_8: [u16; 1 << 8] = reach_table(7, SHAPES_8);
static REACH_12: [u16; 1 << 12] = reach_table(4, SHAPES_12);

/// Four units, four compute slices.
pub(super) static GRID_4: Geometry =
    Geometry { units: 4, compute: 4, shapes: SHAPES_4, future: &FUTURE_4, reach: &REACH_4 };

/// Eight units, seven compute slices.
pub(super) static GRID_8: Geometry =
    Geometry { units: 8, compute: 7, shapes: SHAPES_8, future: &FUTURE_8, reach: &REACH_8 };

/// Twelve units, four compute slices.
pub(super) static GRID_12: Geometry =
    Geometry { units: 12, compute: 4, shapes: SHAPES_12, future: &FUTURE_12, reach: &REACH_12 };
