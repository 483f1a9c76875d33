//! Packing slices onto GPUs, whoever they are for.
//!
//! Owns which slices lie together. It must not know services.

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

/// Lays these slices on GPUs, the largest first, each on the fullest GPU that takes it, at the start
/// that leaves the most possible.
pub(super) fn pack(
    board: &'static Board,
    profiles: &[&'static Profile],
    counts: &Counts,
) -> Result<Vec<Layout>, LayoutError> {
    let mut order: Vec<usize> = (0..profiles.len()).collect();
    let size = |at: &usize| {
        let profile = profiles[*at];
        std::cmp::Reverse((profile.memory_units(), profile.compute_slices(), *at))
    };
    order.sort_by_key(size);
    let mut gpus: Vec<Layout> = Vec::new();
    for at in order {
        for _ in 0..counts.get(at).copied().unwrap_or(0) {
            let fullest = gpus
                .iter()
                .enumerate()
                .filter(|(_, gpu)| !gpu.open_starts(profiles[at]).is_empty())
                .max_by_key(|(at, gpu)| (gpu.occupied().count_ones(), std::cmp::Reverse(*at)))
                .map(|(at, _)| at);
            let gpu = match fullest {
                Some(gpu) => gpu,
                None => {
                    gpus.push(Layout::empty(board)?);
                    gpus.len() - 1
                }
            };
            if let Some(start) = gpus[gpu].best_start(profiles[at]) {
                gpus[gpu].add(profiles[at], start)?;
            }
        }
    }
    Ok(gpus)
}
