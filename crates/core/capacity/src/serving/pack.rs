//! Packing slices onto GPUs.

use berth_model::mig::{Board, Layout, LayoutError, Profile};

/// Slices by profile, as counts in the order of a list of profiles.
pub(super) type Counts = Vec<u32>;

/// The sets of slices that fill a GPU, as counts of these profiles; none is part of another.
pub(super) fn patterns(
    board: &'static Board,
    profiles: &[&'static Profile],
) -> Result<Vec<Counts>, LayoutError> {
    let full = board.full_layouts(|p| profiles.contains(&p))?;
    let counts = |layout: &Layout| -> Counts {
        profiles.iter().map(|p| u32::from(layout.count(p))).collect()
    };
    let mut found: Vec<Counts> = full.iter().map(counts).collect();
    found.sort_unstable();
    found.dedup();
    let within = |one: &Counts, other: &Counts| one.iter().zip(other).all(|(a, b)| a <= b);
    let all = found.clone();
    found.retain(|one| !all.iter().any(|other| other != one && within(one, other)));
    Ok(found)
}

/// Up to this many GPUs, slices are placed so that they strand least; above, on the fullest.
const CAREFUL_GPUS_MAX: usize = 256;

/// Places these slices on as few GPUs as it finds.
pub(super) fn pack(
    board: &'static Board,
    profiles: &[&'static Profile],
    counts: &Counts,
) -> Result<Vec<Layout>, LayoutError> {
    let mut slices: Vec<&'static Profile> = Vec::new();
    for (profile, count) in profiles.iter().zip(counts) {
        slices.extend(std::iter::repeat_n(*profile, *count as usize));
    }
    slices.sort_by_key(|p| std::cmp::Reverse((p.memory_units(), p.compute_slices())));
    let used = slices.iter().map(|p| usize::from(p.compute_slices())).sum::<usize>();
    let least = used.div_ceil(usize::from(board.compute_slices()).max(1));
    let fullest = place(board, &slices, slices.len(), Prefer::Fullest)?;
    let most = fullest.as_ref().map_or(slices.len(), Vec::len);
    for gpus in (least..most).take_while(|gpus| *gpus <= CAREFUL_GPUS_MAX) {
        if let Some(found) = place(board, &slices, gpus, Prefer::LeastStranded)? {
            return Ok(found);
        }
    }
    Ok(fullest.unwrap_or_default())
}

/// Which of the GPUs with room a slice goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prefer {
    Fullest,
    /// The one of which the least becomes unusable for anything; of those the fullest. Two `3g` on
    /// one GPU strand a slice that would be used beside `4g` or smaller ones.
    LeastStranded,
}

/// Places slices, in this order, on at most `gpus_max` GPUs, each at the start that leaves the
/// greatest future; `None` if they do not fit that way.
fn place(
    board: &'static Board,
    slices: &[&'static Profile],
    gpus_max: usize,
    prefer: Prefer,
) -> Result<Option<Vec<Layout>>, LayoutError> {
    let mut gpus: Vec<Layout> = Vec::new();
    for profile in slices {
        // The first GPU that is still empty stands for all of them.
        if gpus.len() < gpus_max && gpus.last().is_none_or(|gpu| !gpu.is_empty()) {
            gpus.push(Layout::empty(board)?);
        }
        let mut best: Option<((u16, u32), usize, Layout)> = None;
        for (at, gpu) in gpus.iter().enumerate() {
            let Some(start) = gpu.best_start(profile) else { continue };
            let then = gpu.with(profile, start)?;
            let stranded = |layout: &Layout| layout.shares().stranded.parts;
            let grown = match prefer {
                Prefer::Fullest => 0,
                Prefer::LeastStranded => stranded(&then).saturating_sub(stranded(gpu)),
            };
            let rank = (grown, gpu.occupied().count_zeros());
            if best.as_ref().is_none_or(|(least, ..)| rank < *least) {
                best = Some((rank, at, then));
            }
        }
        let Some((_, at, then)) = best else { return Ok(None) };
        gpus[at] = then;
    }
    gpus.retain(|gpu| !gpu.is_empty());
    Ok(Some(gpus))
}
