//! The table against facts typed in by hand, and its consistency.

use std::collections::HashSet;

use super::{board, placeable, profile};
use crate::mig::layout::MAX_INSTANCES;
use crate::mig::{Attribute, Board, Layout, LayoutError, MemorySource, Need, Profile};

/// One row of `nvidia-smi mig -lgip` with its line of `-lgipp`: name, id, instances, hundredths of
/// a GiB, starts, size.
type Row = (&'static str, u8, u8, u32, &'static [u8], u8);

fn assert_listing(board: &'static Board, rows: &[Row]) {
    assert_eq!(board.profiles().len(), rows.len());
    for (name, id, instances, gib, starts, size) in rows {
        let p = profile(board, name);
        assert_eq!(p.name().to_string(), *name);
        assert_eq!(p.driver_id(), Some(*id), "{name}");
        assert_eq!(p.max_instances(), *instances, "{name}");
        assert_eq!(p.memory_mib(), (gib * 1024 + 50) / 100, "{name}");
        assert_eq!(p.memory_source(), MemorySource::Driver, "{name}");
        assert_eq!(p.starts().unwrap().iter().collect::<Vec<_>>(), *starts, "{name}");
        assert_eq!(p.memory_units(), Some(*size), "{name}");
    }
}

#[test]
fn the_h200_matches_a_real_card() {
    // nvidia-smi mig -lgip and -lgipp, NVIDIA H200, driver 580.159.04.
    let board = board("h200-141gb");
    assert_listing(
        board,
        &[
            ("1g.18gb", 19, 7, 1600, &[0, 1, 2, 3, 4, 5, 6], 1),
            ("1g.18gb+me", 20, 1, 1600, &[0, 1, 2, 3, 4, 5, 6], 1),
            ("1g.35gb", 15, 4, 3250, &[0, 2, 4, 6], 2),
            ("2g.35gb", 14, 3, 3250, &[0, 2, 4], 2),
            ("3g.71gb", 9, 2, 6975, &[0, 4], 4),
            ("4g.71gb", 5, 1, 6975, &[0], 4),
            ("7g.141gb", 0, 1, 14000, &[0], 8),
        ],
    );
}

#[test]
fn the_rtx_pro_6000_matches_a_public_listing() {
    assert_listing(
        board("rtx-pro-6000-bw-96gb"),
        &[
            ("1g.24gb", 14, 4, 2362, &[0, 3, 6, 9], 3),
            ("1g.24gb+me", 21, 1, 2362, &[0, 3, 6, 9], 3),
            ("1g.24gb+gfx", 47, 4, 2362, &[0, 3, 6, 9], 3),
            ("1g.24gb+me.all", 65, 1, 2362, &[0, 3, 6, 9], 3),
            ("1g.24gb-me", 67, 4, 2362, &[0, 3, 6, 9], 3),
            ("2g.48gb", 5, 2, 4738, &[0, 6], 6),
            ("2g.48gb+gfx", 35, 2, 4738, &[0, 6], 6),
            ("2g.48gb+me.all", 64, 1, 4738, &[0, 6], 6),
            ("2g.48gb-me", 66, 2, 4738, &[0, 6], 6),
            ("4g.96gb", 0, 1, 9512, &[0], 12),
            ("4g.96gb+gfx", 32, 1, 9512, &[0], 12),
        ],
    );
}

#[test]
fn the_a30_and_a100_have_the_guides_counts_and_sizes() {
    // Guide: number of instances, and the fraction of memory as units of the grid.
    let rows = |board: &'static Board, rows: &[(&str, u8, u8)]| {
        for (name, instances, units) in rows {
            assert_eq!(profile(board, name).max_instances(), *instances, "{name}");
            assert_eq!(profile(board, name).memory_units(), Some(*units), "{name}");
        }
        assert_eq!(board.profiles().len(), rows.len());
    };
    rows(
        board("a30-24gb"),
        &[
            ("1g.6gb", 4, 1),
            ("1g.6gb+me", 1, 1),
            ("2g.12gb", 2, 2),
            ("2g.12gb+me", 1, 2),
            ("4g.24gb", 1, 4),
        ],
    );
    rows(
        board("a100-40gb"),
        &[
            ("1g.5gb", 7, 1),
            ("1g.5gb+me", 1, 1),
            ("1g.10gb", 4, 2),
            ("2g.10gb", 3, 2),
            ("3g.20gb", 2, 4),
            ("4g.20gb", 1, 4),
            ("7g.40gb", 1, 8),
        ],
    );
}

#[test]
fn driver_ids_are_unique_on_a_board() {
    for board in Board::all() {
        let mut ids: Vec<u8> = board.profiles().iter().filter_map(Profile::driver_id).collect();
        let listed = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), listed, "{board:?}");
    }
}

#[test]
fn boards_are_consistent() {
    let mut ids = HashSet::new();
    for b in Board::all() {
        assert!(ids.insert(b.id()), "{}", b.id());
        assert!(usize::from(b.max_instances()) <= MAX_INSTANCES);
        let known = b.memory_units().is_some();
        let mut names = HashSet::new();
        for (i, p) in b.profiles().iter().enumerate() {
            assert!(names.insert(p.name()), "{p}");
            assert!(b.owns(p) && usize::from(p.index) == i, "{p}");
            assert!(p.max_instances() > 0 && p.memory_mib() > 0, "{p}");
            assert_eq!(p.memory_units().is_some(), known, "{p}");
            assert_eq!(p.starts().is_some(), known, "{p}");
        }
        let whole = b.profiles().iter().find(|p| p.compute_slices() == b.compute_slices());
        assert_eq!(whole.map(|p| p.name().gb), Some(b.gb()), "{}", b.id());
    }
}

#[test]
fn grids_are_consistent() {
    for b in placeable() {
        let g = b.geometry.unwrap();
        assert_eq!(g.compute, b.compute_slices(), "{}", b.id());
        assert!(g.shapes.is_sorted_by_key(|s| std::cmp::Reverse((s.units, s.compute))));
        for s in g.shapes {
            for start in (0..16).filter(|i| s.starts >> i & 1 == 1) {
                assert!(start + s.units <= g.units);
            }
        }
        for p in b.profiles() {
            let (_, shape) = b.shape(p).unwrap();
            assert_eq!(shape.compute, p.compute_slices(), "{p}");
            assert_eq!(Some(shape.units), p.memory_units(), "{p}");
            let starts: Vec<u8> = p.starts().unwrap().iter().collect();
            let alone = most(shape.units, &starts);
            match p.attribute() {
                Attribute::Media | Attribute::MediaAll => assert_eq!(p.max_instances(), 1, "{p}"),
                _ => assert_eq!(p.max_instances(), alone, "{} {p}", b.id()),
            }
        }
    }
    fn most(units: u8, starts: &[u8]) -> u8 {
        super::most(units, starts, 0)
    }
}

#[test]
fn memory_that_no_driver_printed_is_the_names_and_says_so() {
    for p in Board::all().iter().flat_map(Board::profiles) {
        let nominal = u32::from(p.name().gb) * 1024;
        if p.memory_is_nominal() {
            assert_eq!(p.memory_mib(), nominal, "{p}");
        } else {
            // What a driver reports is near the name's number and never more than 2 % above it.
            assert!(p.memory_mib() * 100 <= nominal * 102, "{p}");
            assert!(p.memory_mib() * 100 >= nominal * 85, "{p}");
        }
        assert_eq!(p.memory_bytes(), u64::from(p.memory_mib()) * 1024 * 1024);
    }
    assert!(board("h100-80gb").profiles().iter().all(|p| p.memory_is_nominal()));
    assert!(profile(board("h100-94gb"), "1g.24gb").memory_is_nominal());
    assert!(!profile(board("h100-94gb"), "2g.24gb").memory_is_nominal());
}

#[test]
fn unknown_placements_are_errors() {
    let b = board("rtx-pro-5000-bw-48gb");
    let unknown = LayoutError::PlacementsUnknown { board: b.id() };
    assert_eq!(Layout::empty(b).unwrap_err(), unknown);
    assert_eq!(b.full_layouts(|_| true).unwrap_err(), unknown);
    assert_eq!(unknown.to_string(), "MIG placements of board rtx-pro-5000-bw-48gb are unknown");
    let p = profile(b, "1g.12gb-me");
    assert_eq!((p.starts(), p.memory_units(), b.share(p)), (None, None, None));
    assert_eq!(b.profile_by_resource("nvidia.com/mig-1g.12gb-me").unwrap(), p);
    let need = Need { memory_bytes: 20 << 30, ..Need::default() };
    assert_eq!(b.smallest(&need).unwrap().to_string(), "2g.24gb-me");
}
