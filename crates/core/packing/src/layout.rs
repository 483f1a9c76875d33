//! Static MIG layouts, chosen before the work arrives, as a device plugin with the `mixed` strategy
//! publishes them: for GPUs without instances, and for the rest of one that is to have certain
//! instances.
//!
//! Pending work comes first: as much of it as possible, by share of a GPU. The rest is divided for
//! the mix. An instance that is created ahead can be used by its own profile only, so each kind of
//! request has a number of servers of its own and is lost when all are busy. That is Erlang's loss
//! system, and its formula gives the value of one more instance: the offered load is what the GPUs
//! could just hold, divided by the mix, and layouts are chosen so that the most of it is accepted,
//! by share of a GPU. Expensive profiles thus get fewer spare instances than cheap ones, and rare
//! ones more than their proportion.
//!
//! Layouts are chosen GPU by GPU, then each is chosen again, given the others, while that helps.

use std::collections::BTreeMap;

use berth_model::mig::{Board, Layout, LayoutError, Profile};

use crate::slice::{Mix, SliceRequest};

#[cfg(test)]
mod tests;

/// How often every GPU's layout is chosen again at most.
const ROUNDS_MAX: usize = 8;

/// Pending requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    pub want: SliceRequest,
    pub count: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Partition {
    /// One for each GPU, in input order.
    pub layouts: Vec<Layout>,
    /// For each kind of pending request, how many get an instance.
    pub served: Vec<u32>,
    /// Expected refused part of the mix's load, in thousandths, by share of a GPU; 0 if the mix is
    /// empty.
    pub refused_per_mille: u32,
}

/// Number of instances by board and profile.
type Counts = BTreeMap<(&'static str, u8), u32>;

fn spot(board: &Board, profile: &Profile) -> Option<(&'static str, u8)> {
    let at = board.profiles().iter().position(|p| p == profile)?;
    Some((board.id(), u8::try_from(at).ok()?))
}

fn count(counts: &mut Counts, layout: &Layout, add: bool) {
    for spot in layout.instances().filter_map(|i| spot(layout.board(), i.profile)) {
        let there = counts.entry(spot).or_default();
        *there = if add { *there + 1 } else { there.saturating_sub(1) };
    }
}

/// The best layouts for GPUs of these boards without instances, beside idle instances that exist
/// already. A GPU that nothing wants stays empty. Fails if the placements of a board are unknown.
pub fn partition(
    boards: &[&'static Board],
    idle: &[Layout],
    pending: &[Pending],
    mix: &Mix,
) -> Result<Partition, LayoutError> {
    let worth = Valuation::new(boards, idle, pending, mix);
    let mut candidates: BTreeMap<&'static str, Vec<Layout>> = BTreeMap::new();
    for board in boards {
        if !candidates.contains_key(board.id()) {
            let found = worth.extensions(Layout::empty(board)?);
            candidates.insert(board.id(), found);
        }
    }
    let mut counts = Counts::new();
    idle.iter().for_each(|layout| count(&mut counts, layout, true));
    let mut layouts: Vec<Layout> = Vec::with_capacity(boards.len());
    for board in boards {
        let found = candidates.get(board.id()).map_or(&[][..], Vec::as_slice);
        let best = worth.best(found, &mut counts).unwrap_or(Layout::empty(board)?);
        count(&mut counts, &best, true);
        layouts.push(best);
    }
    for _ in 0..ROUNDS_MAX {
        let mut better = false;
        for layout in &mut layouts {
            let found = candidates.get(layout.board().id()).map_or(&[][..], Vec::as_slice);
            let before = worth.of(&counts);
            count(&mut counts, layout, false);
            let best = worth.best(found, &mut counts).unwrap_or(*layout);
            count(&mut counts, &best, true);
            if worth.of(&counts) > before {
                *layout = best;
                better = true;
            } else {
                count(&mut counts, &best, false);
                count(&mut counts, layout, true);
            }
        }
        if !better {
            break;
        }
    }
    let (served, supply) = worth.served(&counts);
    Ok(Partition { layouts, served, refused_per_mille: worth.refused_per_mille(&supply) })
}

/// The best full layout that has these instances, beside idle instances that exist elsewhere.
/// Without a mix nothing is added.
pub fn complete(base: &Layout, idle: &[Layout], mix: &Mix) -> Layout {
    let worth = Valuation::new(&[base.board()], idle, &[], mix);
    let mut counts = Counts::new();
    idle.iter().for_each(|layout| count(&mut counts, layout, true));
    worth.best(&worth.extensions(*base), &mut counts).unwrap_or(*base)
}

/// One kind of request of the mix.
struct Stream {
    want: SliceRequest,
    /// Mean share of a GPU.
    size: f64,
    /// Mean number wanted at once.
    offered: f64,
    /// By number of instances: the mean share of GPUs that accepted requests take.
    accepted: Vec<f64>,
}

/// Values numbers of instances.
struct Valuation<'a> {
    pending: &'a [Pending],
    /// Pending kinds with the fewest boards first, so that others do not take their instances.
    order: Vec<usize>,
    streams: Vec<Stream>,
}

/// Pending work served, in millionths of a GPU; then the accepted part of the mix.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
struct Value {
    served_micro: u64,
    accepted: f64,
}

/// The share of a GPU that a request takes on this board.
fn share(board: &Board, profile: &Profile) -> f64 {
    board.share(profile).map_or(0.0, |s| f64::from(s.parts) / f64::from(s.of))
}

impl<'a> Valuation<'a> {
    fn new(boards: &[&'static Board], idle: &[Layout], pending: &'a [Pending], mix: &Mix) -> Self {
        let present = |board: &Board| {
            boards.contains(&board) || idle.iter().any(|layout| layout.board() == board)
        };
        let mean_size = |want: &SliceRequest| {
            let options = want.options().iter().filter(|(board, _)| present(board));
            let sizes: Vec<f64> = options.map(|(board, profile)| share(board, profile)).collect();
            (!sizes.is_empty()).then(|| sizes.iter().sum::<f64>() / sizes.len() as f64)
        };
        let kinds: Vec<(SliceRequest, f64, f64)> = mix
            .kinds()
            .iter()
            .filter_map(|k| Some((k.want.clone(), k.weight as f64, mean_size(&k.want)?)))
            .collect();
        let spare: f64 = idle
            .iter()
            .flat_map(|layout| layout.instances().map(|i| share(layout.board(), i.profile)))
            .sum();
        let capacity = boards.len() as f64 + spare;
        let total: f64 = kinds.iter().map(|(_, weight, size)| weight * size).sum();
        let most = 8 * (boards.len() + idle.len());
        let stream = |(want, weight, size): (SliceRequest, f64, f64)| {
            let offered = weight / total * capacity;
            Stream { want, size, offered, accepted: accepted(offered, size, most) }
        };
        let streams = kinds.into_iter().map(stream).collect();
        let mut order: Vec<usize> = (0..pending.len()).collect();
        order.sort_by_key(|at| pending[*at].want.options().len());
        Self { pending, order, streams }
    }

    /// All full layouts of wanted profiles that have these instances; of those with the same
    /// profiles, the first.
    fn extensions(&self, base: Layout) -> Vec<Layout> {
        let board = base.board();
        let pending = self.pending.iter().filter(|p| p.count > 0).map(|p| &p.want);
        let wants = pending.chain(self.streams.iter().map(|s| &s.want));
        let mut admitted: Vec<&'static Profile> = Vec::new();
        for profile in wants.filter_map(|want| want.on(board)) {
            if !admitted.contains(&profile) {
                admitted.push(profile);
            }
        }
        let mut found: BTreeMap<Vec<(&'static str, u8)>, Layout> = BTreeMap::new();
        base.each_full(&admitted, &mut |layout| {
            let spots = layout.instances().filter_map(|i| spot(board, i.profile));
            let mut profiles: Vec<_> = spots.collect();
            profiles.sort_unstable();
            let first = found.entry(profiles).or_insert(layout);
            *first = layout.min(*first);
        });
        found.into_values().collect()
    }

    /// The candidate with the highest value beside the others; of equals the first.
    fn best(&self, candidates: &[Layout], counts: &mut Counts) -> Option<Layout> {
        let mut best: Option<(Value, Layout)> = None;
        for candidate in candidates {
            count(counts, candidate, true);
            let value = self.of(counts);
            count(counts, candidate, false);
            if best.as_ref().is_none_or(|(most, _)| value > *most) {
                best = Some((value, *candidate));
            }
        }
        best.map(|(_, layout)| layout)
    }

    fn of(&self, counts: &Counts) -> Value {
        let (served, supply) = self.served(counts);
        let size = |want: &SliceRequest| {
            let parts = want.options().iter().filter_map(|(board, profile)| board.share(profile));
            parts.map(|s| 1_000_000 * u64::from(s.parts) / u64::from(s.of.max(1))).max()
        };
        let micro = |(p, served): (&Pending, &u32)| size(&p.want).unwrap_or(0) * u64::from(*served);
        let accepted = self.streams.iter().map(|stream| stream.accepted_with(&supply)).sum();
        Value { served_micro: self.pending.iter().zip(&served).map(micro).sum(), accepted }
    }

    /// How much pending work gets an instance, and which instances are left.
    fn served(&self, counts: &Counts) -> (Vec<u32>, Counts) {
        let mut left = counts.clone();
        let mut served = vec![0; self.pending.len()];
        for at in &self.order {
            let Pending { want, count } = &self.pending[*at];
            let spots = want.options().iter().filter_map(|(board, profile)| spot(board, profile));
            for spot in spots {
                let Some(there) = left.get_mut(&spot) else { continue };
                let taken = (*there).min(count - served[*at]);
                *there -= taken;
                served[*at] += taken;
            }
        }
        (served, left)
    }

    fn refused_per_mille(&self, supply: &Counts) -> u32 {
        let offered: f64 = self.streams.iter().map(|s| s.offered * s.size).sum();
        let accepted: f64 = self.streams.iter().map(|s| s.accepted_with(supply)).sum();
        if offered > 0.0 { (1_000.0 * (1.0 - accepted / offered)).round() as u32 } else { 0 }
    }
}

impl Stream {
    fn accepted_with(&self, supply: &Counts) -> f64 {
        let spots = self.want.options().iter().filter_map(|(board, p)| spot(board, p));
        let servers: u32 = spots.filter_map(|spot| supply.get(&spot)).sum();
        let at = (servers as usize).min(self.accepted.len().saturating_sub(1));
        self.accepted.get(at).copied().unwrap_or(0.0)
    }
}

/// The accepted load by number of servers up to `most`, by Erlang's recursion for the probability
/// that all are busy.
fn accepted(offered: f64, size: f64, most: usize) -> Vec<f64> {
    let mut busy = 1.0;
    let mut table = vec![0.0];
    for servers in 1..=most {
        busy = offered * busy / (servers as f64 + offered * busy);
        table.push(offered * (1.0 - busy) * size);
    }
    table
}
