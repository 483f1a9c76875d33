//! The MIG GPUs with their instances, and the choice among them. GPUs in the same state are equal,
//! so a choice takes time by the number of states in use, not of GPUs.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::mig::{Board, Layout, LayoutError, Profile};

use super::grid::{Grid, PARTS_OF_GPU, PLACE, ShapeIndex, ShapeSet, StateIndex, Step};
use super::mix::Mix;
use super::want::Want;

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
struct Herd {
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
    herds: Vec<Herd>,
    /// With the index of the herd.
    gpus: BTreeMap<GpuIndex, (usize, Layout)>,
    next: u32,
}

/// One kind of request.
struct Demand {
    weight: f64,
    /// By herd.
    shapes: Vec<Option<ShapeIndex>>,
    /// The places it has on all herds.
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
        let herd = self.herd(layout.board()).map_err(|error| FleetError::Layout { gpu, error })?;
        self.next = self.next.checked_add(1).ok_or(FleetError::Full)?;
        self.gpus.insert(gpu, (herd, layout));
        self.count(gpu, herd, &layout, true);
        Ok(gpu)
    }

    /// Makes the tables of a board before its first GPU comes. Fails if the board's placements are
    /// unknown.
    pub fn know(&mut self, board: &'static Board) -> Result<(), LayoutError> {
        self.herd(board).map(|_| ())
    }

    /// Removes a GPU with its instances. Fails if there is no such GPU.
    pub fn remove(&mut self, gpu: GpuIndex) -> Result<Layout, FleetError> {
        let (herd, layout) = self.gpus.remove(&gpu).ok_or(FleetError::NoSuchGpu { gpu })?;
        self.count(gpu, herd, &layout, false);
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
    pub fn choose(&self, want: &Want, mix: &Mix) -> Option<Placement> {
        let demands = self.demands(mix);
        let whole = (PARTS_OF_GPU * self.gpus.len() as u64) as f64;
        let mut best: Option<(Cost, Placement)> = None;
        for (at, herd) in self.herds.iter().enumerate() {
            let (Some(profile), Some(grid)) = (want.on(herd.board), self.grids.get(herd.grid))
            else {
                continue;
            };
            let Some(shape) = grid.shape(profile) else { continue };
            let useful = useful(&demands, at);
            for (state, gpus) in &herd.by_state {
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
            let herd = self.herds.get(*at)?;
            let grid = self.grids.get(herd.grid)?;
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
        let of = |(at, herd): (usize, &Herd)| {
            let Some(grid) = self.grids.get(herd.grid) else { return 0 };
            let useful = useful(&demands, at);
            let states = herd.by_state.iter();
            states.map(|(state, gpus)| grid.stranded(*state, useful) * gpus.len() as u64).sum()
        };
        self.herds.iter().enumerate().map(of).sum()
    }

    /// The herd of a board, created with its first GPU.
    fn herd(&mut self, board: &'static Board) -> Result<usize, LayoutError> {
        if let Some(at) = self.herds.iter().position(|herd| herd.board == board) {
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
        self.herds.push(Herd { board, grid, by_state: BTreeMap::new(), places: vec![0; shapes] });
        Ok(self.herds.len() - 1)
    }

    fn change(
        &mut self,
        gpu: GpuIndex,
        change: impl FnOnce(&mut Layout) -> Result<(), LayoutError>,
    ) -> Result<(), FleetError> {
        let (herd, before) = *self.gpus.get(&gpu).ok_or(FleetError::NoSuchGpu { gpu })?;
        let mut after = before;
        change(&mut after).map_err(|error| FleetError::Layout { gpu, error })?;
        self.count(gpu, herd, &before, false);
        self.gpus.insert(gpu, (herd, after));
        self.count(gpu, herd, &after, true);
        Ok(())
    }

    /// Adds a GPU to its herd's counts, or removes it.
    fn count(&mut self, gpu: GpuIndex, herd: usize, layout: &Layout, enter: bool) {
        let Some(herd) = self.herds.get_mut(herd) else { return };
        let Some(grid) = self.grids.get(herd.grid) else { return };
        let Some(state) = grid.state(layout) else { return };
        let gpus = herd.by_state.entry(state).or_default();
        if enter {
            gpus.insert(gpu);
        } else {
            gpus.remove(&gpu);
            if gpus.is_empty() {
                herd.by_state.remove(&state);
            }
        }
        for (total, one) in herd.places.iter_mut().zip(grid.places_in(state)) {
            *total = if enter { *total + one } else { total.saturating_sub(*one) };
        }
    }

    fn demands(&self, mix: &Mix) -> Vec<Demand> {
        let demand = |weight: u64, of: &dyn Fn(&Herd, &Grid) -> Option<ShapeIndex>| {
            // A board whose last GPU was removed does not count.
            let shape = |herd: &Herd| {
                let grid = self.grids.get(herd.grid).filter(|_| !herd.by_state.is_empty());
                of(herd, grid?)
            };
            let shapes: Vec<_> = self.herds.iter().map(shape).collect();
            let places = |(herd, shape): (&Herd, &Option<ShapeIndex>)| {
                shape.and_then(|s| herd.places.get(s.at())).copied().unwrap_or(0)
            };
            let places = self.herds.iter().zip(&shapes).map(places).sum();
            Demand { weight: weight as f64, shapes, places }
        };
        let kinds = mix.kinds().iter().map(|kind| {
            demand(kind.weight, &|herd, grid| {
                kind.want.on(herd.board).and_then(|profile| grid.shape(profile))
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
        demand: &impl Fn(u64, &dyn Fn(&Herd, &Grid) -> Option<ShapeIndex>) -> Demand,
    ) -> Vec<Demand> {
        let herds = self.herds.iter().filter(|herd| !herd.by_state.is_empty());
        let every = herds.flat_map(|herd| {
            let shapes = self.grids.get(herd.grid).into_iter().flat_map(|grid| grid.shapes());
            shapes.map(move |shape| (herd.board, shape))
        });
        every
            .map(|(board, shape)| demand(1, &|herd, _| (herd.board == board).then_some(shape)))
            .collect()
    }
}

/// The shapes that any demand has on this herd.
fn useful(demands: &[Demand], herd: usize) -> ShapeSet {
    let mut shapes = ShapeSet::default();
    for shape in demands.iter().filter_map(|d| *d.shapes.get(herd)?) {
        shapes.insert(shape);
    }
    shapes
}

/// The cost of a step: see the rule in `slice`. The memory of all GPUs is `whole` parts.
fn cost(
    grid: &Grid,
    herd: usize,
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
        let lost = match demand.shapes.get(herd).copied().flatten() {
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
