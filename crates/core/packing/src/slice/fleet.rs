//! The MIG GPUs with their instances, and the choice among them. GPUs in the same state are equal,
//! so a choice takes time by the number of states in use, not of GPUs.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::mig::{Board, Layout, LayoutError, Profile};

use super::grid::{Grid, PARTS_OF_GPU, PLACE, ShapeIndex, ShapeSet, StateIndex, Step};
use super::mix::Mix;
use super::want::SliceRequest;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuIndex(pub u32);

/// Where to create an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    pub gpu: GpuIndex,
    /// The profile that the request wants on this board.
    pub profile: &'static Profile,
    /// The first memory unit.
    pub start: u8,
}

/// A refused change; the fleet is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    #[error("GPU {} is not in the fleet; add it first", gpu.0)]
    NoSuchGpu { gpu: GpuIndex },
    /// The instance cannot be created or destroyed.
    #[error("GPU {}: {error}", gpu.0)]
    Layout { gpu: GpuIndex, error: LayoutError },
    /// All indexes are in use.
    #[error("the fleet is full; divide it into fleets of at most {} GPUs", u32::MAX)]
    Full,
}

/// The GPUs of one board.
#[derive(Clone, Debug)]
struct BoardGpus {
    board: &'static Board,
    /// Index into the fleet's grids.
    grid: usize,
    by_state: BTreeMap<StateIndex, BTreeSet<GpuIndex>>,
    /// By shape: expected places on all GPUs of the board.
    places: Vec<u64>,
}

/// GPUs of several boards, with the instances in use on each.
///
/// Tables of boards are shared by clones, so clone a fleet that [knows](Fleet::know) its boards to
/// ask many questions about few GPUs.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    grids: Vec<Arc<Grid>>,
    boards: Vec<BoardGpus>,
    /// With the index of the group.
    gpus: BTreeMap<GpuIndex, (usize, Layout)>,
    next: u32,
}

/// One kind of request.
struct Demand {
    weight: f64,
    /// By group.
    shapes: Vec<Option<ShapeIndex>>,
    /// The places it has on all boards.
    places: u64,
}

/// Lower is better.
#[derive(PartialEq, PartialOrd)]
struct Cost {
    /// The part of all requests at risk, plus the part of all memory that is stranded.
    at_risk: f64,
    free_units: u8,
}

impl Fleet {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a GPU with its instances in use. Fails if the fleet is full or the board's placements
    /// are unknown.
    pub fn add(&mut self, layout: Layout) -> Result<GpuIndex, FleetError> {
        let gpu = GpuIndex(self.next);
        let group =
            self.group_of(layout.board()).map_err(|error| FleetError::Layout { gpu, error })?;
        self.next = self.next.checked_add(1).ok_or(FleetError::Full)?;
        self.gpus.insert(gpu, (group, layout));
        self.count(gpu, group, &layout, true);
        Ok(gpu)
    }

    /// Makes the tables of a board before its first GPU comes. Fails if the board's placements are
    /// unknown.
    pub fn know(&mut self, board: &'static Board) -> Result<(), LayoutError> {
        self.group_of(board).map(|_| ())
    }

    /// Removes a GPU with its instances. Fails if there is no such GPU.
    pub fn remove(&mut self, gpu: GpuIndex) -> Result<Layout, FleetError> {
        let (group, layout) = self.gpus.remove(&gpu).ok_or(FleetError::NoSuchGpu { gpu })?;
        self.count(gpu, group, &layout, false);
        Ok(layout)
    }

    pub fn layout(&self, gpu: GpuIndex) -> Option<&Layout> {
        self.gpus.get(&gpu).map(|(_, layout)| layout)
    }

    /// Ascending.
    pub fn layouts(&self) -> impl Iterator<Item = (GpuIndex, &Layout)> {
        self.gpus.iter().map(|(gpu, (_, layout))| (*gpu, layout))
    }

    /// Creates an instance, at the place of [`Fleet::choose`] or any legal one.
    pub fn place(&mut self, placement: Placement) -> Result<(), FleetError> {
        let Placement { gpu, profile, start } = placement;
        self.change(gpu, |layout| layout.add(profile, start))
    }

    /// Destroys an instance.
    pub fn release(&mut self, placement: Placement) -> Result<(), FleetError> {
        let Placement { gpu, profile, start } = placement;
        self.change(gpu, |layout| layout.remove(profile, start))
    }

    /// Where to create an instance for `want`; `None` if it fits nowhere. An empty mix stands for
    /// all profiles alike.
    pub fn choose(&self, want: &SliceRequest, mix: &Mix) -> Option<Placement> {
        let demands = self.demands(mix);
        let whole = (PARTS_OF_GPU * self.gpus.len() as u64) as f64;
        let mut best: Option<(Cost, Placement)> = None;
        for (at, group) in self.boards.iter().enumerate() {
            let (Some(profile), Some(grid)) = (want.on(group.board), self.grids.get(group.grid))
            else {
                continue;
            };
            let Some(shape) = grid.shape(profile) else { continue };
            let useful = useful(&demands, at);
            for (state, gpus) in &group.by_state {
                for step in grid.steps_with(*state, shape) {
                    let cost = cost(grid, at, *state, step, useful, &demands, whole);
                    if best.as_ref().is_some_and(|(least, _)| cost > *least) {
                        continue;
                    }
                    // Media engines are not part of the state: the first GPU that has them.
                    let fits = |gpu: &&GpuIndex| {
                        self.layout(**gpu).is_some_and(|l| l.fits(profile, step.start))
                    };
                    let Some(gpu) = gpus.iter().find(fits) else { continue };
                    let placement = Placement { gpu: *gpu, profile, start: step.start };
                    let later = |(least, there): &(Cost, Placement)| {
                        cost == *least && (there.gpu, there.start) <= (*gpu, step.start)
                    };
                    if !best.as_ref().is_some_and(later) {
                        best = Some((cost, placement));
                    }
                }
            }
        }
        best.map(|(_, placement)| placement)
    }

    /// The order in which to try these places, by the same rule, whatever their profiles: positions
    /// in the list, without places where no instance can be created.
    pub fn order(&self, places: &[Placement], mix: &Mix) -> Vec<usize> {
        let demands = self.demands(mix);
        let whole = (PARTS_OF_GPU * self.gpus.len() as u64) as f64;
        let cost_at = |place: &Placement| {
            let (at, layout) = self.gpus.get(&place.gpu)?;
            let group = self.boards.get(*at)?;
            let grid = self.grids.get(group.grid)?;
            let (state, shape) = (grid.state(layout)?, grid.shape(place.profile)?);
            let mut steps = grid.steps_with(state, shape);
            let step = steps.find(|step| step.start == place.start)?;
            let legal = layout.fits(place.profile, place.start);
            legal.then(|| cost(grid, *at, state, step, useful(&demands, *at), &demands, whole))
        };
        let mut found: Vec<(Cost, &Placement, usize)> = places
            .iter()
            .enumerate()
            .filter_map(|(at, place)| Some((cost_at(place)?, place, at)))
            .collect();
        found.sort_by(|(one, here, _), (other, there, _)| {
            let by_cost = one.partial_cmp(other).unwrap_or(Ordering::Equal);
            by_cost.then((here.gpu, here.start).cmp(&(there.gpu, there.start)))
        });
        found.into_iter().map(|(.., at)| at).collect()
    }

    /// Free memory that no request of the mix can use, over all GPUs, in parts of a GPU.
    pub fn stranded(&self, mix: &Mix) -> u64 {
        let demands = self.demands(mix);
        let of = |(at, group): (usize, &BoardGpus)| {
            let Some(grid) = self.grids.get(group.grid) else { return 0 };
            let useful = useful(&demands, at);
            let states = group.by_state.iter();
            states.map(|(state, gpus)| grid.stranded(*state, useful) * gpus.len() as u64).sum()
        };
        self.boards.iter().enumerate().map(of).sum()
    }

    /// The group of a board, created with its first GPU.
    fn group_of(&mut self, board: &'static Board) -> Result<usize, LayoutError> {
        if let Some(at) = self.boards.iter().position(|group| group.board == board) {
            return Ok(at);
        }
        let grid = match self.grids.iter().position(|grid| grid.is_of(board)) {
            Some(at) => at,
            None => {
                self.grids.push(Arc::new(Grid::new(board)?));
                self.grids.len() - 1
            }
        };
        let shapes = self.grids.get(grid).map_or(0, |grid| grid.shapes().count());
        self.boards.push(BoardGpus {
            board,
            grid,
            by_state: BTreeMap::new(),
            places: vec![0; shapes],
        });
        Ok(self.boards.len() - 1)
    }

    fn change(
        &mut self,
        gpu: GpuIndex,
        change: impl FnOnce(&mut Layout) -> Result<(), LayoutError>,
    ) -> Result<(), FleetError> {
        let (group, before) = *self.gpus.get(&gpu).ok_or(FleetError::NoSuchGpu { gpu })?;
        let mut after = before;
        change(&mut after).map_err(|error| FleetError::Layout { gpu, error })?;
        self.count(gpu, group, &before, false);
        self.gpus.insert(gpu, (group, after));
        self.count(gpu, group, &after, true);
        Ok(())
    }

    /// Adds a GPU to its group's counts, or removes it.
    fn count(&mut self, gpu: GpuIndex, group: usize, layout: &Layout, enter: bool) {
        let Some(group) = self.boards.get_mut(group) else { return };
        let Some(grid) = self.grids.get(group.grid) else { return };
        let Some(state) = grid.state(layout) else { return };
        let gpus = group.by_state.entry(state).or_default();
        if enter {
            gpus.insert(gpu);
        } else {
            gpus.remove(&gpu);
            if gpus.is_empty() {
                group.by_state.remove(&state);
            }
        }
        for (total, one) in group.places.iter_mut().zip(grid.places_in(state)) {
            *total = if enter { *total + one } else { total.saturating_sub(*one) };
        }
    }

    fn demands(&self, mix: &Mix) -> Vec<Demand> {
        let demand = |weight: u64, of: &dyn Fn(&BoardGpus, &Grid) -> Option<ShapeIndex>| {
            // A board whose last GPU was removed does not count.
            let shape = |group: &BoardGpus| {
                let grid = self.grids.get(group.grid).filter(|_| !group.by_state.is_empty());
                of(group, grid?)
            };
            let shapes: Vec<_> = self.boards.iter().map(shape).collect();
            let places = |(group, shape): (&BoardGpus, &Option<ShapeIndex>)| {
                shape.and_then(|s| group.places.get(s.at())).copied().unwrap_or(0)
            };
            let places = self.boards.iter().zip(&shapes).map(places).sum();
            Demand { weight: weight as f64, shapes, places }
        };
        let kinds = mix.kinds().iter().map(|kind| {
            demand(kind.weight, &|group, grid| {
                kind.want.on(group.board).and_then(|profile| grid.shape(profile))
            })
        });
        let mut known: Vec<Demand> =
            kinds.filter(|d| d.shapes.iter().any(Option::is_some)).collect();
        if known.is_empty() {
            known = self.every_shape(&demand);
        }
        let total: f64 = known.iter().map(|demand| demand.weight).sum();
        known.iter_mut().for_each(|demand| demand.weight /= total);
        known
    }

    /// All shapes of all boards alike: the demand without a mix.
    fn every_shape(
        &self,
        demand: &impl Fn(u64, &dyn Fn(&BoardGpus, &Grid) -> Option<ShapeIndex>) -> Demand,
    ) -> Vec<Demand> {
        let boards = self.boards.iter().filter(|group| !group.by_state.is_empty());
        let every = boards.flat_map(|group| {
            let shapes = self.grids.get(group.grid).into_iter().flat_map(|grid| grid.shapes());
            shapes.map(move |shape| (group.board, shape))
        });
        every
            .map(|(board, shape)| demand(1, &|group, _| (group.board == board).then_some(shape)))
            .collect()
    }
}

/// The shapes that any demand has in this group.
fn useful(demands: &[Demand], group: usize) -> ShapeSet {
    let mut shapes = ShapeSet::default();
    for shape in demands.iter().filter_map(|d| *d.shapes.get(group)?) {
        shapes.insert(shape);
    }
    shapes
}

/// The cost of a step: see the rule in `slice`. The memory of all GPUs is `whole` parts.
fn cost(
    grid: &Grid,
    group: usize,
    state: StateIndex,
    step: Step,
    useful: ShapeSet,
    demands: &[Demand],
    whole: f64,
) -> Cost {
    let stranded = |state| grid.stranded(state, useful) as f64;
    let (before, after) = (grid.places_in(state), grid.places_in(step.next));
    let mut at_risk = (stranded(step.next) - stranded(state)) / whole;
    for demand in demands {
        let lost = match demand.shapes.get(group).copied().flatten() {
            Some(shape) => match (before.get(shape.at()), after.get(shape.at())) {
                (Some(before), Some(after)) => before.saturating_sub(*after),
                _ => 0,
            },
            None => 0,
        };
        let places = demand.places.saturating_sub(lost).saturating_add(PLACE);
        at_risk += demand.weight * PLACE as f64 / places as f64;
    }
    Cost { at_risk, free_units: grid.free_units(state) }
}
