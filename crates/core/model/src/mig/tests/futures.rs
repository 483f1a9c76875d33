//! Room left by layouts, the best start, and the full layouts of each board.

use std::collections::{BTreeMap, BTreeSet};

use super::{board, every_layout, layout, most, one_of_each_grid, placeable, profile, room};
use crate::mig::{Attribute, Board, Layout, Profile};

fn plain(p: &Profile) -> bool {
    p.attribute() == Attribute::Plain
}

/// Plain, and not the slice with double memory, which drivers have listed only since R525.
fn classic(p: &Profile) -> bool {
    plain(p) && !(p.compute_slices() == 1 && p.memory_units() == Some(2))
}

/// Every combination of shapes that can still be created, as counts from the largest shape down.
type Demands = BTreeSet<Vec<u8>>;

/// The combinations for every occupancy, by exhaustive search; independent of the static tables.
fn demands(board: &'static Board, occupied: u16, memo: &mut BTreeMap<u16, Demands>) -> Demands {
    if let Some(known) = memo.get(&occupied) {
        return known.clone();
    }
    let shapes = board.geometry.unwrap().shapes;
    let mut found = Demands::from([vec![0; shapes.len()]]);
    for (i, shape) in shapes.iter().enumerate() {
        for start in (0..16).filter(|s| shape.starts >> s & 1 == 1) {
            let bits = (((1_u32 << shape.units) - 1) << start) as u16;
            if occupied & bits == 0 {
                for mut demand in demands(board, occupied | bits, memo) {
                    demand[i] += 1;
                    found.insert(demand);
                }
            }
        }
    }
    memo.insert(occupied, found.clone());
    found
}

#[test]
fn an_empty_seven_slice_gpu_puts_each_profile_where_it_costs_least() {
    let b = board("h100-80gb");
    let empty = Layout::empty(b).unwrap();
    for (name, start) in [
        ("1g.10gb", 6),
        ("1g.10gb+me", 6),
        ("1g.20gb", 6),
        ("2g.20gb", 4),
        ("3g.40gb", 4),
        ("4g.40gb", 0),
        ("7g.80gb", 0),
    ] {
        assert_eq!(empty.best_start(profile(b, name)), Some(start), "{name}");
    }
}

#[test]
fn later_slices_fill_what_is_already_broken() {
    let b = board("h100-80gb");
    for (held, name, start) in [
        ("1g.10gb@6", "1g.10gb", Some(4)), // keeps 4g.40gb
        ("1g.10gb@4 + 1g.10gb@6", "1g.10gb", Some(5)),
        ("4g.40gb@0", "1g.10gb", Some(6)), // keeps 2g.20gb at 4
        ("2g.20gb@0", "1g.10gb", Some(2)), // keeps 3g.40gb at 4
        ("2g.20gb@0", "2g.20gb", Some(2)),
        ("1g.10gb@0", "1g.10gb", Some(1)), // keeps 2g.20gb at 2
        ("3g.40gb@4", "3g.40gb", Some(0)),
        ("3g.40gb@0 + 3g.40gb@4", "1g.10gb", None),
    ] {
        assert_eq!(layout(b, held).best_start(profile(b, name)), start, "{name} beside {held}");
    }
    // A 3g at 4 leaves 3g + 2g + 1g + 1g possible; at 0 it does not.
    let rest = ["2g.20gb", "1g.10gb", "1g.10gb"].map(|n| profile(b, n));
    assert!(layout(b, "3g.40gb@4").with_all(&rest).is_some());
    assert!(layout(b, "3g.40gb@0").with_all(&rest).is_none());
}

#[test]
fn the_best_start_is_the_best_by_exhaustive_search() {
    for b in one_of_each_grid() {
        let shapes = b.geometry.unwrap().shapes;
        let starts =
            |i: usize| (0..16).filter(|s| shapes[i].starts >> s & 1 == 1).collect::<Vec<u8>>();
        for gpu in every_layout(b, plain) {
            for p in b.profiles() {
                let score = |start: u8| {
                    let after = gpu.with(p, start).unwrap().occupied();
                    (0..shapes.len())
                        .map(|i| most(shapes[i].units, &starts(i), after))
                        .collect::<Vec<u8>>()
                };
                let open: Vec<u8> = (0..16).filter(|s| gpu.fits(p, *s)).collect();
                assert_eq!(gpu.open_starts(p).iter().collect::<Vec<_>>(), open);
                let best = open.iter().copied().max_by_key(|s| (score(*s), std::cmp::Reverse(*s)));
                assert_eq!(gpu.best_start(p), best, "{p} beside {gpu}");
            }
        }
    }
}

#[test]
fn a_start_that_keeps_everything_any_other_keeps_is_chosen() {
    for b in one_of_each_grid() {
        let mut memo = BTreeMap::new();
        let mut decided = 0;
        let mut seen = BTreeSet::new();
        for gpu in every_layout(b, plain).into_iter().filter(|g| seen.insert(g.occupied())) {
            for p in b.profiles().iter().filter(|p| plain(p)) {
                let Some(best) = gpu.best_start(p) else { continue };
                let mut after = |s: u8| demands(b, gpu.with(p, s).unwrap().occupied(), &mut memo);
                let chosen = after(best);
                let others: Vec<Demands> = gpu.open_starts(p).iter().map(&mut after).collect();
                if others.iter().any(|d| others.iter().all(|o| d.is_superset(o))) {
                    decided += 1;
                    assert!(others.iter().all(|o| chosen.is_superset(o)), "{p} beside {gpu}");
                }
            }
        }
        assert!(decided > 0);
    }
    // The figures future.rs quotes for the first 1g of an empty GPU.
    let b = board("a100-40gb");
    let mut memo = BTreeMap::new();
    assert_eq!(demands(b, 1 << 4, &mut memo).len(), 45);
    assert_eq!(demands(b, 1 << 6, &mut memo).len(), 40);
}

#[test]
fn limits_on_media_engines_never_close_a_whole_shape() {
    for b in one_of_each_grid() {
        for gpu in every_layout(b, |_| true) {
            for shape in 0..b.geometry.unwrap().shapes.len() as u8 {
                let variants = b.profiles().iter().filter(|p| p.shape == shape);
                let most = variants.map(|p| gpu.remaining(p)).max().unwrap();
                assert_eq!(most, gpu.future().count(shape), "{gpu}");
            }
            assert_eq!(gpu.is_full(), room(gpu).all(|(_, count)| count == 0), "{gpu}");
        }
    }
}

#[test]
fn an_empty_gpu_has_room_for_each_profiles_limit() {
    for b in placeable() {
        let empty = Layout::empty(b).unwrap();
        for (profile, count) in room(empty) {
            assert_eq!(count, profile.max_instances(), "{} {profile}", b.id());
            assert_eq!(Some(empty.open_starts(profile)), profile.starts());
        }
    }
}

#[test]
fn room_counts_what_is_left_beside_a_layout() {
    let b = board("a100-40gb");
    let left = |held: &str| -> Vec<u8> { room(layout(b, held)).map(|(_, count)| count).collect() };
    // 1g, 1g+me, 1g.10gb, 2g, 3g, 4g, 7g.
    assert_eq!(left("empty"), [7, 1, 4, 3, 2, 1, 1]);
    assert_eq!(left("3g.20gb@0"), [3, 1, 2, 1, 1, 0, 0]);
    assert_eq!(left("3g.20gb@4"), [4, 1, 2, 2, 1, 1, 0]);
    assert_eq!(left("1g.5gb@1"), [6, 1, 3, 2, 1, 0, 0]);
    assert_eq!(left("1g.5gb+me@6"), [6, 0, 3, 3, 1, 1, 0]);
    assert_eq!(left("1g.10gb@6 + 4g.20gb@0"), [2, 1, 1, 1, 0, 0, 0]);
}

/// The full layouts as compute slices from left to right, as NVIDIA's table writes them.
fn rows(board: &'static Board, allow: fn(&Profile) -> bool) -> BTreeSet<String> {
    let slices = |l: &Layout| {
        l.instances().map(|i| i.profile.compute_slices().to_string()).collect::<Vec<_>>().join(" ")
    };
    board.full_layouts(allow).unwrap().iter().map(slices).collect()
}

#[test]
fn the_a100_has_nineteen_full_layouts_as_nvidias_table_does() {
    // NVIDIA's MIG User Guide shows nineteen configurations of the A100 (and H100) as rows of
    // compute slices; this is a public transcription of that figure. It predates 1g.10gb.
    let published: BTreeSet<String> = [
        "7",
        "4 3",
        "4 2 1",
        "4 1 1 1",
        "3 3",
        "3 2 1",
        "3 1 1 1",
        "2 2 3",
        "2 1 1 3",
        "1 1 2 3",
        "1 1 1 1 3",
        "2 2 2 1",
        "2 1 1 2 1",
        "1 1 2 2 1",
        "2 1 1 1 1 1",
        "1 1 2 1 1 1",
        "1 1 1 1 2 1",
        "1 1 1 1 1 2",
        "1 1 1 1 1 1 1",
    ]
    .map(String::from)
    .into();
    let ours = rows(board("a100-40gb"), classic);
    assert_eq!((published.len(), ours.len()), (19, 19));
    // They agree but for one row. The transcription has 1 1 1 1 1 2, which needs a 2g at 5, where
    // `nvidia-smi mig -lgipp` ({0,2,4}:2) has none; and it lacks 2 2 1 1 1, which -lgipp allows.
    let only =
        |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>();
    assert_eq!(only(&published, &ours), ["1 1 1 1 1 2"]);
    assert_eq!(only(&ours, &published), ["2 2 1 1 1"]);
    // As sets of profiles, wherever they are placed, there are fourteen.
    let multisets: BTreeSet<String> = ours
        .iter()
        .map(|row| {
            let mut slices: Vec<&str> = row.split(' ').collect();
            slices.sort_unstable();
            slices.join(" ")
        })
        .collect();
    assert_eq!(multisets.len(), 14);
}

#[test]
fn every_board_has_the_full_layouts_of_its_grid() {
    // Without the double-memory slice, with it, and with all suffixes. By hand, for eight units:
    // two adjacent units hold 2g, 1g 1g or (W) 1g with double memory. Units 0-3 hold 4g, 3g or two
    // such pairs; 4-7 hold 3g or a pair and then 1g or W. That is 6 * 3 + 1 = 19 without W and
    // 11 * 7 + 1 = 78 with it; each 1g of those may be the one with +me, which adds 161.
    for b in placeable() {
        let expected = match b.memory_units() {
            Some(4) => [5, 5, 17],
            Some(8) => [19, 78, 239],
            Some(12) => [5, 5, 302],
            _ => [0; 3],
        };
        let all: fn(&Profile) -> bool = |_| true;
        let counts = [classic, plain, all].map(|allow| b.full_layouts(allow).unwrap().len());
        assert_eq!(counts, expected, "{}", b.id());
    }
}

#[test]
fn full_layouts_are_exactly_the_legal_ones_that_admit_no_more() {
    for b in one_of_each_grid() {
        let full = b.full_layouts(|_| true).unwrap();
        let mut searched: Vec<Layout> =
            every_layout(b, |_| true).into_iter().filter(Layout::is_full).collect();
        searched.sort_unstable();
        assert_eq!(full, searched);
    }
}

#[test]
fn a_set_of_profiles_is_placed_when_any_placement_exists() {
    let b = board("a100-40gb");
    let wanted = |names: &[&str]| names.iter().map(|n| profile(b, n)).collect::<Vec<_>>();
    let empty = Layout::empty(b).unwrap();
    // mig-parted's "all-balanced".
    let balanced = wanted(&["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]);
    let gpu = empty.with_all(&balanced).unwrap();
    assert_eq!((gpu.len(), gpu.compute, gpu.is_full()), (4, 7, true));
    assert_eq!(
        empty.with_all(&wanted(&["2g.10gb", "1g.5gb"])).unwrap().to_string(),
        "2g.10gb@4 + 1g.5gb@6"
    );
    assert_eq!(empty.with_all(&wanted(&["1g.5gb"; 7])).unwrap().len(), 7);
    assert!(empty.with_all(&wanted(&["1g.5gb"; 8])).is_none());
    assert!(empty.with_all(&wanted(&["1g.5gb"; 9])).is_none());
    assert!(empty.with_all(&wanted(&["4g.20gb", "3g.20gb", "1g.5gb"])).is_none());
    assert_eq!(empty.with_all(&[]), Some(empty));
}
