//! Grids: every state a GPU can be in, and what each leaves possible.
//!
//! A state is which memory units are covered and where instances begin, so that it is known what
//! becomes free when one leaves. There are 417 states of eight units and 26 of four or twelve.

use std::collections::BTreeMap;

use berth_model::mig::{Board, Instance, Layout, LayoutError, Profile, Starts};

/// One of this many instances is expected to leave before the rest of its GPU is needed. The
/// results hardly change between 1 in 50 and 1 in 10; expecting none to leave is worse.
pub const LEAVES_ONE_IN: u64 = 20;

/// The unit of stranded memory, in parts of a GPU: a memory unit is 6 of them on a GPU with four
/// units, 3 with eight, and 2 with twelve.
pub const PARTS_OF_GPU: u64 = 24;

/// No layout has more instances.
const INSTANCES_MAX: u32 = 8;

/// The weight of one place for an instance, so that expected numbers of places are exact integers.
pub(super) const PLACE: u64 = LEAVES_ONE_IN.pow(INSTANCES_MAX);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StateIndex(u16);

/// A footprint that profiles share, as a number on its grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShapeIndex(u8);

impl ShapeIndex {
    pub(super) fn at(self) -> usize {
        usize::from(self.0)
    }
}

/// Bit `i` is shape `i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ShapeSet(u8);

impl ShapeSet {
    pub(super) fn insert(&mut self, shape: ShapeIndex) {
        self.0 |= 1 << shape.0;
    }
}

/// The creation of an instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) shape: ShapeIndex,
    pub(super) start: u8,
    pub(super) next: StateIndex,
}

#[derive(Debug)]
struct Row {
    free_units: u8,
    steps: Vec<Step>,
    /// By shape: expected places, in parts of [`PLACE`].
    places: Vec<u64>,
}

/// Memory units covered, and units at which instances begin.
type Key = (u16, u16);

/// A grid with all its states; boards with the same grid share it.
#[derive(Debug)]
pub(super) struct Grid {
    units: u8,
    compute: u8,
    /// One profile of each shape, the first in the board's table.
    shapes: Vec<&'static Profile>,
    rows: Vec<Row>,
    by_key: BTreeMap<Key, StateIndex>,
    /// By set of shapes, then state: the most free units that instances of those shapes cover.
    reach: Vec<Vec<u8>>,
}

fn same_shape(one: &Profile, other: &Profile) -> bool {
    one.memory_units() == other.memory_units()
        && one.starts() == other.starts()
        && one.compute_slices() == other.compute_slices()
}

fn shapes_of(board: &'static Board) -> Vec<&'static Profile> {
    let mut shapes: Vec<&'static Profile> = Vec::new();
    for profile in board.profiles() {
        // A set of shapes is a byte; no grid has more than six.
        if shapes.len() < 8 && !shapes.iter().any(|shape| same_shape(shape, profile)) {
            shapes.push(profile);
        }
    }
    shapes
}

fn key(layout: &Layout) -> Key {
    let starts = layout.instances().fold(0, |mask, i| mask | bit(i.start));
    (layout.occupied(), starts)
}

fn bit(start: u8) -> u16 {
    1_u16.checked_shl(u32::from(start)).unwrap_or(0)
}

fn bits(instance: Instance) -> u16 {
    let units = instance.profile.memory_units().unwrap_or(0);
    (0..units).fold(0, |mask, unit| mask | bit(instance.start.saturating_add(unit)))
}

impl Grid {
    /// Fails if the board's placements are unknown.
    pub(super) fn new(board: &'static Board) -> Result<Self, LayoutError> {
        let shapes = shapes_of(board);
        let layouts = states(Layout::empty(board)?, &shapes);
        let by_key: BTreeMap<Key, StateIndex> =
            layouts.iter().enumerate().map(|(at, l)| (key(l), StateIndex(at as u16))).collect();
        let units = board.memory_units().unwrap_or(0);
        let mut grid = Self {
            units,
            compute: board.compute_slices(),
            rows: Vec::with_capacity(layouts.len()),
            by_key,
            reach: Vec::new(),
            shapes,
        };
        for layout in &layouts {
            let free_units = units.saturating_sub(layout.occupied().count_ones() as u8);
            let row = Row {
                free_units,
                steps: grid.steps(layout),
                places: grid.places(layout, &layouts),
            };
            grid.rows.push(row);
        }
        let sets = 1_usize << grid.shapes.len();
        grid.reach = (0..sets).map(|set| grid.reach_of(ShapeSet(set as u8))).collect();
        Ok(grid)
    }

    /// Whether the board has this grid.
    pub(super) fn is_of(&self, board: &'static Board) -> bool {
        let shapes = shapes_of(board);
        board.memory_units() == Some(self.units)
            && board.compute_slices() == self.compute
            && shapes.len() == self.shapes.len()
            && shapes.iter().zip(&self.shapes).all(|(one, other)| same_shape(one, other))
    }

    pub(super) fn shapes(&self) -> impl Iterator<Item = ShapeIndex> + use<> {
        (0..self.shapes.len() as u8).map(ShapeIndex)
    }

    pub(super) fn shape(&self, profile: &Profile) -> Option<ShapeIndex> {
        let at = self.shapes.iter().position(|shape| same_shape(shape, profile))?;
        Some(ShapeIndex(at as u8))
    }

    pub(super) fn state(&self, layout: &Layout) -> Option<StateIndex> {
        self.by_key.get(&key(layout)).copied()
    }

    pub(super) fn free_units(&self, state: StateIndex) -> u8 {
        self.row(state).map_or(0, |row| row.free_units)
    }

    /// The steps that create an instance of this shape.
    pub(super) fn steps_with(
        &self,
        state: StateIndex,
        shape: ShapeIndex,
    ) -> impl Iterator<Item = Step> {
        let steps = self.row(state).map_or(&[][..], |row| &row.steps);
        steps.iter().filter(move |step| step.shape == shape).copied()
    }

    /// By shape: the expected places.
    pub(super) fn places_in(&self, state: StateIndex) -> &[u64] {
        self.row(state).map_or(&[], |row| &row.places)
    }

    /// Free memory that no instance of these shapes can use, in parts of a GPU.
    pub(super) fn stranded(&self, state: StateIndex, shapes: ShapeSet) -> u64 {
        let reach = self.reach.get(usize::from(shapes.0)).and_then(|r| r.get(usize::from(state.0)));
        let units = self.free_units(state).saturating_sub(reach.copied().unwrap_or(0));
        u64::from(units) * PARTS_OF_GPU.checked_div(u64::from(self.units)).unwrap_or(0)
    }

    fn row(&self, state: StateIndex) -> Option<&Row> {
        self.rows.get(usize::from(state.0))
    }

    fn steps(&self, layout: &Layout) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, profile) in self.shapes.iter().enumerate() {
            for start in layout.open_starts(profile).iter() {
                let next = layout.with(profile, start).ok().and_then(|l| self.state(&l));
                if let Some(next) = next {
                    steps.push(Step { shape: ShapeIndex(at as u8), start, next });
                }
            }
        }
        steps
    }

    /// By shape, the mean number of places over all ways in which instances may have left.
    fn places(&self, layout: &Layout, layouts: &[Layout]) -> Vec<u64> {
        let instances: Vec<Instance> = layout.instances().collect();
        let mut places = vec![0_u64; self.shapes.len()];
        for left in 0_u32..1 << instances.len() {
            let (mut occupied, mut starts) = key(layout);
            for (_, i) in instances.iter().enumerate().filter(|(at, _)| left >> at & 1 == 1) {
                occupied &= !bits(*i);
                starts &= !bit(i.start);
            }
            let stay = instances.len() as u32 - left.count_ones();
            let spare = INSTANCES_MAX.saturating_sub(instances.len() as u32);
            let chance = (LEAVES_ONE_IN - 1).pow(stay) * LEAVES_ONE_IN.pow(spare);
            let state = self.by_key.get(&(occupied, starts));
            let Some(then) = state.and_then(|s| layouts.get(usize::from(s.0))) else { continue };
            for (count, profile) in places.iter_mut().zip(&self.shapes) {
                *count += chance * u64::from(then.remaining(profile));
            }
        }
        places
    }

    /// For each state, the most units that instances of these shapes could cover. A step covers
    /// more units, so the table is filled from full to empty.
    fn reach_of(&self, shapes: ShapeSet) -> Vec<u8> {
        let mut reach = vec![0_u8; self.rows.len()];
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by_key(|at| self.rows[*at].free_units);
        for at in order {
            for step in &self.rows[at].steps {
                if shapes.0 >> step.shape.0 & 1 == 1 {
                    let covered = self.rows[at]
                        .free_units
                        .saturating_sub(self.free_units(step.next))
                        .saturating_add(reach[usize::from(step.next.0)]);
                    reach[at] = reach[at].max(covered);
                }
            }
        }
        reach
    }
}

/// Every state that can be reached from an empty GPU, one layout for each.
fn states(empty: Layout, shapes: &[&'static Profile]) -> Vec<Layout> {
    let mut seen = BTreeMap::from([(key(&empty), ())]);
    let mut found = vec![empty];
    let mut at = 0;
    while let Some(layout) = found.get(at).copied() {
        at += 1;
        for profile in shapes {
            let starts: Starts = layout.open_starts(profile);
            for next in starts.iter().filter_map(|start| layout.with(profile, start).ok()) {
                if seen.insert(key(&next), ()).is_none() {
                    found.push(next);
                }
            }
        }
    }
    found
}
