//! Shares add up, whatever the layout.

use super::{board, every_layout, layout, one_of_each_grid, profile};
use crate::mig::Layout;

#[test]
fn a_slices_share_is_the_mean_of_its_memory_and_compute() {
    for (id, rows) in [
        (
            "a100-40gb",
            &[
                ("1g.5gb", "15/112"),
                ("1g.5gb+me", "15/112"),
                ("1g.10gb", "22/112"),
                ("2g.10gb", "30/112"),
                ("3g.20gb", "52/112"),
                ("4g.20gb", "60/112"),
                ("7g.40gb", "112/112"),
            ][..],
        ),
        ("a30-24gb", &[("1g.6gb", "8/32"), ("2g.12gb", "16/32"), ("4g.24gb", "32/32")]),
        (
            "rtx-pro-6000-bw-96gb",
            &[("1g.24gb", "24/96"), ("2g.48gb", "48/96"), ("4g.96gb", "96/96")],
        ),
    ] {
        for (name, share) in rows {
            assert_eq!(board(id).share(profile(board(id), name)).unwrap().to_string(), *share);
        }
    }
    let foreign = profile(board("a30-24gb"), "1g.6gb");
    assert_eq!(board("a100-40gb").share(foreign), None);
}

#[test]
fn slices_idle_and_stranded_add_up_to_one_gpu_on_every_layout() {
    for b in one_of_each_grid() {
        for gpu in every_layout(b, |_| true) {
            let shares = gpu.shares();
            let slices: u16 = shares.slices().map(|(_, s)| s.parts).sum();
            assert_eq!(slices + shares.idle.parts + shares.stranded.parts, shares.idle.of, "{gpu}");
            if gpu.is_full() {
                assert_eq!(shares.idle.parts, 0, "{gpu}");
            }
        }
    }
}

#[test]
fn unreachable_units_are_stranded() {
    let b = board("a100-40gb");
    for (held, idle, stranded) in [
        ("empty", 112, 0),
        ("7g.40gb@0", 0, 0),
        ("4g.20gb@0 + 3g.20gb@4", 0, 0),
        ("4g.20gb@0", 52, 0),
        ("3g.20gb@0", 52, 8),
        ("3g.20gb@0 + 3g.20gb@4", 0, 8),
        ("2g.10gb@0 + 2g.10gb@2 + 2g.10gb@4 + 1g.5gb@6", 0, 7),
        ("2g.10gb@0 + 2g.10gb@2 + 2g.10gb@4 + 1g.10gb@6", 0, 0),
        ("1g.5gb@6", 90, 7),
    ] {
        let shares = layout(b, held).shares();
        assert_eq!((shares.idle.parts, shares.stranded.parts), (idle, stranded), "{held}");
    }
}

#[test]
fn idle_is_the_most_that_some_continuation_uses() {
    for b in one_of_each_grid() {
        let all = every_layout(b, |_| true);
        let used = |l: &Layout| l.shares().slices().map(|(_, s)| s.parts).sum::<u16>();
        let full: Vec<(Layout, u16)> =
            all.iter().filter(|l| l.is_full()).map(|l| (*l, used(l))).collect();
        for gpu in all.iter().step_by(7) {
            let holds = |f: &Layout| gpu.instances().all(|i| f.contains(i.profile, i.start));
            let most = full.iter().filter(|(f, _)| holds(f)).map(|(_, u)| *u).max().unwrap();
            assert_eq!(gpu.shares().idle.parts, most - used(gpu), "{gpu}");
        }
    }
}

#[test]
fn charging_the_dominant_share_would_not_add_up() {
    // The range that share.rs states, in thousandths.
    let b = board("a100-40gb");
    let totals: Vec<u32> = b
        .full_layouts(|_| true)
        .unwrap()
        .iter()
        .map(|l| {
            let of = |i: crate::mig::Instance| {
                let memory = u32::from(i.profile.memory_units().unwrap()) * 7;
                memory.max(u32::from(i.profile.compute_slices()) * 8)
            };
            l.instances().map(of).sum::<u32>() * 1000 / 56
        })
        .collect();
    assert_eq!((totals.iter().min(), totals.iter().max()), (Some(&892), Some(&1107)));
}
