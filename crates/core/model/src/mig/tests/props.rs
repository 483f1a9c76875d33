//! Properties of any sequence of creations and destructions.

use proptest::prelude::*;

use super::placeable;
use crate::mig::{Board, Layout, Profile, Repartition};

/// Destroys an instance or tries to create one, by number.
type Step = (bool, usize, u8);

fn boards() -> impl Strategy<Value = &'static Board> {
    prop::sample::select(placeable().collect::<Vec<_>>())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((prop::bool::weighted(0.25), any::<usize>(), 0_u8..16), 0..24)
}

/// Does the legal steps.
fn walk(board: &'static Board, steps: &[Step]) -> Layout {
    let mut gpu = Layout::empty(board).unwrap();
    for (destroy, which, start) in steps {
        if *destroy {
            let nth = gpu.instances().nth(which % gpu.len().max(1));
            if let Some(i) = nth {
                gpu.remove(i.profile, i.start).unwrap();
            }
        } else {
            let _ = gpu.add(pick(board, *which), *start);
        }
    }
    gpu
}

fn pick(board: &'static Board, which: usize) -> &'static Profile {
    &board.profiles()[which % board.profiles().len()]
}

fn bits(profile: &Profile, start: u8) -> u16 {
    (((1_u32 << profile.memory_units().unwrap()) - 1) << start) as u16
}

/// The most instances of one profile that can be created, by exhaustive search.
fn most(gpu: Layout, profile: &'static Profile) -> u8 {
    let next = (0..16).filter_map(|start| gpu.with(profile, start).ok());
    next.map(|g| 1 + most(g, profile)).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn instances_lie_apart_in_order_and_within_every_limit(b in boards(), steps in steps()) {
        let gpu = walk(b, &steps);
        let mut taken = 0_u16;
        let mut last = None;
        for i in gpu.instances() {
            prop_assert!(i.profile.starts().unwrap().contains(i.start));
            prop_assert_eq!(taken & bits(i.profile, i.start), 0);
            taken |= bits(i.profile, i.start);
            prop_assert!(last < Some(i.start));
            last = Some(i.start);
            prop_assert!(gpu.count(i.profile) <= i.profile.max_instances());
        }
        prop_assert_eq!(taken, gpu.occupied());
        prop_assert_eq!(taken >> b.memory_units().unwrap(), 0);
        let compute: u8 = gpu.instances().map(|i| i.profile.compute_slices()).sum();
        prop_assert_eq!(compute, gpu.compute);
        prop_assert!(compute <= b.compute_slices());
        prop_assert!(gpu.len() <= usize::from(b.max_instances()));
    }

    #[test]
    fn removing_undoes_adding(b in boards(), steps in steps(), which: usize, start in 0_u8..16) {
        let before = walk(b, &steps);
        let p = pick(b, which);
        if let Ok(mut gpu) = before.with(p, start) {
            prop_assert!(gpu.contains(p, start) && !before.contains(p, start));
            gpu.remove(p, start).unwrap();
            prop_assert_eq!(gpu, before);
            prop_assert_eq!(gpu.occupied(), before.occupied());
            prop_assert_eq!(gpu.compute, before.compute);
        }
    }

    #[test]
    fn the_order_of_creation_does_not_matter(b in boards(), steps in steps()) {
        let gpu = walk(b, &steps);
        let mut instances: Vec<_> = gpu.instances().map(|i| (i.profile, i.start)).collect();
        instances.reverse();
        prop_assert_eq!(Layout::from_instances(b, instances), Ok(gpu));
    }

    #[test]
    fn remaining_counts_match_exhaustive_search(b in boards(), steps in steps(), which: usize) {
        let gpu = walk(b, &steps);
        let p = pick(b, which);
        prop_assert_eq!(gpu.remaining(p), most(gpu, p));
        for start in 0..16 {
            prop_assert_eq!(gpu.open_starts(p).contains(start), gpu.fits(p, start));
        }
    }

    #[test]
    fn no_start_is_better_than_the_best(b in boards(), steps in steps(), which: usize) {
        let gpu = walk(b, &steps);
        let p = pick(b, which);
        match gpu.best_start(p) {
            None => prop_assert_eq!(most(gpu, p), 0),
            Some(best) => {
                // From what remains of each size, its best variant, largest first.
                let score = |start: u8| {
                    let after = gpu.with(p, start).unwrap();
                    let mut left: Vec<_> =
                        b.profiles().iter().map(|q| (q.shape, most(after, q))).collect();
                    left.sort_by_key(|(shape, count)| (*shape, std::cmp::Reverse(*count)));
                    left.dedup_by_key(|(shape, _)| *shape);
                    left.into_iter().map(|(_, count)| count).collect::<Vec<_>>()
                };
                for other in gpu.open_starts(p).iter() {
                    prop_assert!(score(best) >= score(other), "{best}, not {other} in {gpu}");
                }
            }
        }
    }

    #[test]
    fn shares_add_up_to_one(b in boards(), steps in steps()) {
        let shares = walk(b, &steps).shares();
        let slices: u16 = shares.slices().map(|(_, s)| s.parts).sum();
        prop_assert_eq!(slices + shares.idle.parts + shares.stranded.parts, shares.idle.of);
    }

    #[test]
    fn layouts_read_back_as_printed(b in boards(), steps in steps()) {
        let gpu = walk(b, &steps);
        prop_assert_eq!(Layout::parse(b, &gpu.to_string()), Ok(gpu));
    }

    #[test]
    fn a_repartition_leads_from_one_to_the_other(b in boards(), from in steps(), to in steps()) {
        let (from, to) = (walk(b, &from), walk(b, &to));
        let change = Repartition::between(&from, &to).unwrap();
        let mut gpu = from;
        for i in change.destroyed() {
            gpu.remove(i.profile, i.start).unwrap();
        }
        prop_assert!(change.kept().eq(gpu.instances()));
        for i in change.created() {
            gpu.add(i.profile, i.start).unwrap();
        }
        prop_assert_eq!(gpu, to);
        prop_assert_eq!(change.is_nothing(), from == to);
    }

    #[test]
    fn no_text_makes_a_lookup_panic(text in "\\PC{0,40}", memory: Option<u64>) {
        let _ = Board::by_product(&text, memory);
        for b in Board::all() {
            let _ = b.profile(&text);
            let _ = b.profile_by_resource(&text);
            let _ = Layout::parse(b, &text);
        }
    }
}
