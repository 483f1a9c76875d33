//! Legality, its errors, and layouts as text.

use super::{board, every_layout, layout, one_of_each_grid, profile, room};
use crate::mig::{Board, Layout, LayoutError, LayoutTextError, Profile, Repartition};

fn refused(board: &'static Board, held: &str, name: &str, start: u8) -> String {
    layout(board, held).check(profile(board, name), start).unwrap_err().to_string()
}

#[test]
fn refusals_name_profile_start_and_reason() {
    let b = board("h100-80gb");
    for (held, name, start, why) in [
        ("empty", "4g.40gb", 4, "4g.40gb cannot start at 4: its legal starts are 0"),
        ("empty", "2g.20gb", 6, "2g.20gb cannot start at 6: its legal starts are 0, 2, 4"),
        (
            "empty",
            "1g.10gb",
            7,
            "1g.10gb cannot start at 7: its legal starts are 0, 1, 2, 3, 4, 5, 6",
        ),
        ("3g.40gb@4", "1g.10gb", 5, "1g.10gb cannot start at 5: it would overlap 3g.40gb@4"),
        (
            "1g.10gb+me@0",
            "1g.10gb+me",
            1,
            "1g.10gb+me cannot start at 1: a GPU holds at most 1 of it",
        ),
    ] {
        assert_eq!(refused(b, held, name, start), why);
    }
    assert_eq!(
        refused(board("a30-24gb"), "2g.12gb+me@0", "1g.6gb+me", 2),
        "1g.6gb+me cannot start at 2: 2g.12gb+me@0 holds media engines it needs"
    );
    assert!(layout(b, "empty").check(profile(b, "1g.10gb"), 255).is_err());
}

#[test]
fn a_profile_of_another_board_is_refused_everywhere() {
    let mut gpu = layout(board("h100-80gb"), "1g.10gb@0");
    let other = profile(board("a100-80gb"), "1g.10gb");
    let foreign = LayoutError::ForeignProfile { profile: other.name(), board: "h100-80gb" };
    assert_eq!(gpu.add(other, 1), Err(foreign));
    assert!(matches!(gpu.remove(other, 0), Err(LayoutError::NotThere { .. })));
    assert_eq!((gpu.remaining(other), gpu.best_start(other)), (0, None));
    assert!(gpu.open_starts(other).is_empty());
    assert!(!gpu.contains(other, 0) && gpu.count(other) == 0 && gpu.with_all(&[other]).is_none());
}

#[test]
fn memory_and_compute_are_counted_apart() {
    let b = board("a100-40gb");
    // Two 3g fill all eight memory units with six of seven compute slices.
    let gpu = layout(b, "3g.20gb@0 + 3g.20gb@4");
    assert_eq!((gpu.occupied(), gpu.compute, gpu.is_full()), (0xff, 6, true));
    // Four slices with double memory take four compute slices.
    let gpu = layout(b, "1g.10gb@0 + 1g.10gb@2 + 1g.10gb@4 + 1g.10gb@6");
    assert_eq!((gpu.occupied(), gpu.compute, gpu.is_full()), (0xff, 4, true));
    // Seven 1g make unit 7 unusable.
    let gpu = layout(b, "1g.5gb@0+1g.5gb@1+1g.5gb@2+1g.5gb@3+1g.5gb@4+1g.5gb@5+1g.5gb@6");
    assert_eq!((gpu.occupied(), gpu.compute, gpu.is_full()), (0x7f, 7, true));
    let gpu = layout(b, "4g.20gb@0 + 3g.20gb@4");
    assert_eq!((gpu.compute, gpu.is_full()), (7, true));
}

#[test]
fn twelve_units_are_packed_by_threes_and_sixes() {
    let b = board("rtx-pro-6000-bw-96gb");
    let gpu = layout(b, "2g.48gb@6 + 1g.24gb@0 + 1g.24gb+gfx@3");
    assert_eq!(gpu.to_string(), "1g.24gb@0 + 1g.24gb+gfx@3 + 2g.48gb@6");
    assert_eq!((gpu.occupied(), gpu.compute, gpu.is_full()), (0xfff, 4, true));
    assert!(refused(b, "empty", "2g.48gb", 3).ends_with("its legal starts are 0, 6"));
}

#[test]
fn beside_all_media_engines_only_slices_without_any_are_possible() {
    let b = board("rtx-pro-6000-bw-96gb");
    let gpu = layout(b, "1g.24gb+me.all@0");
    let open: Vec<String> =
        room(gpu).filter(|(_, n)| *n > 0).map(|(p, n)| format!("{p} x{n}")).collect();
    assert_eq!(open, ["1g.24gb-me x3", "2g.48gb-me x1"]);
    assert_eq!(layout(b, "1g.24gb-me@0").remaining(profile(b, "2g.48gb+me.all")), 1);
    assert_eq!(layout(b, "1g.24gb@0").remaining(profile(b, "2g.48gb+me.all")), 0);
    assert_eq!(layout(b, "1g.24gb+gfx@0").remaining(profile(b, "1g.24gb+me")), 1);
    assert_eq!(layout(b, "1g.24gb+me@0").remaining(profile(b, "2g.48gb")), 1);
}

/// DEC, ENC, JPEG and OFA of each profile as `nvidia-smi mig -lgip` (H200, RTX PRO 6000) and the
/// guide (A30, A100) give them; the last row is the whole GPU.
type Engines = (&'static str, [u8; 4]);

const H200: &[Engines] = &[
    ("1g.18gb", [1, 0, 1, 0]),
    ("1g.18gb+me", [1, 0, 1, 1]),
    ("1g.35gb", [1, 0, 1, 0]),
    ("2g.35gb", [2, 0, 2, 0]),
    ("3g.71gb", [3, 0, 3, 0]),
    ("4g.71gb", [4, 0, 4, 0]),
    ("7g.141gb", [7, 0, 7, 1]),
];

const RTX_PRO_6000: &[Engines] = &[
    ("1g.24gb", [1, 1, 1, 0]),
    ("1g.24gb+me", [1, 1, 1, 1]),
    ("1g.24gb+gfx", [1, 1, 1, 0]),
    ("1g.24gb+me.all", [4, 4, 4, 1]),
    ("1g.24gb-me", [0, 0, 0, 0]),
    ("2g.48gb", [2, 2, 2, 0]),
    ("2g.48gb+gfx", [2, 2, 2, 0]),
    ("2g.48gb+me.all", [4, 4, 4, 1]),
    ("2g.48gb-me", [0, 0, 0, 0]),
    ("4g.96gb+gfx", [4, 4, 4, 1]),
    ("4g.96gb", [4, 4, 4, 1]),
];

const A30: &[Engines] = &[
    ("1g.6gb", [0, 0, 0, 0]),
    ("1g.6gb+me", [1, 0, 1, 1]),
    ("2g.12gb", [2, 0, 0, 0]),
    ("2g.12gb+me", [2, 0, 1, 1]),
    ("4g.24gb", [4, 0, 1, 1]),
];

const A100: &[Engines] = &[
    ("1g.5gb", [0, 0, 0, 0]),
    ("1g.5gb+me", [1, 0, 1, 1]),
    ("1g.10gb", [1, 0, 0, 0]),
    ("2g.10gb", [1, 0, 0, 0]),
    ("3g.20gb", [2, 0, 0, 0]),
    ("4g.20gb", [2, 0, 0, 0]),
    ("7g.40gb", [5, 0, 1, 1]),
];

#[test]
fn the_media_rule_is_what_adding_up_the_engines_gives() {
    for (id, table) in [
        ("h200-141gb", H200),
        ("rtx-pro-6000-bw-96gb", RTX_PRO_6000),
        ("a30-24gb", A30),
        ("a100-40gb", A100),
    ] {
        let b = board(id);
        let total = table[table.len() - 1].1;
        let engines: Vec<[u8; 4]> = b
            .profiles()
            .iter()
            .map(|p| table.iter().find(|(name, _)| *name == p.to_string()).unwrap().1)
            .collect();
        for gpu in every_layout(b, |_| true) {
            let of = |p: &Profile, e: usize| engines[usize::from(p.index)][e];
            for p in b.profiles() {
                let held = |e: usize| gpu.instances().map(|i| of(i.profile, e)).sum::<u8>();
                let enough = (0..4).all(|e| held(e) + of(p, e) <= total[e]);
                for start in p.starts().unwrap().iter() {
                    match gpu.check(p, start) {
                        Ok(()) => assert!(enough, "{gpu} with {p}@{start}"),
                        Err(LayoutError::MediaTaken { .. }) => assert!(!enough, "{gpu} with {p}"),
                        Err(_) => {}
                    }
                }
            }
        }
    }
}

#[test]
fn on_every_grid_the_memory_units_run_out_no_later_than_slices_and_instances() {
    // Legality tests all of them; that only the units decide makes occupancy a complete state.
    for b in one_of_each_grid() {
        for gpu in every_layout(b, |_| true) {
            assert!(gpu.compute <= b.compute_slices());
            for p in b.profiles() {
                for start in p.starts().unwrap().iter() {
                    let refusal = gpu.check(p, start).err();
                    assert!(!matches!(
                        refusal,
                        Some(
                            LayoutError::ComputeExhausted { .. }
                                | LayoutError::InstanceLimit { .. }
                        )
                    ));
                }
            }
        }
    }
}

#[test]
fn removing_undoes_adding_and_removing_nothing_is_an_error() {
    let b = board("h200-141gb");
    let before = layout(b, "3g.71gb@4 + 1g.18gb@0");
    let mut gpu = before;
    gpu.add(profile(b, "2g.35gb"), 2).unwrap();
    gpu.remove(profile(b, "2g.35gb"), 2).unwrap();
    assert_eq!(gpu, before);
    let error = gpu.remove(profile(b, "1g.18gb"), 4).unwrap_err();
    assert_eq!(error.to_string(), "no 1g.18gb at 4");
    assert_eq!(gpu, before);
}

#[test]
fn layouts_print_in_order_and_read_back() {
    let b = board("h100-80gb");
    let gpu = layout(b, "1g.10gb+me@6+2g.20gb@4 +3g.40gb@0");
    assert_eq!(gpu.to_string(), "3g.40gb@0 + 2g.20gb@4 + 1g.10gb+me@6");
    assert_eq!(layout(b, &gpu.to_string()), gpu);
    for text in ["", "  ", "empty"] {
        assert_eq!(layout(b, text), Layout::empty(b).unwrap());
    }
    assert_eq!(layout(b, "").to_string(), "empty");
}

#[test]
fn invalid_layout_texts_are_errors() {
    let b = board("h100-80gb");
    let read = |text: &str| Layout::parse(b, text).unwrap_err();
    for text in [
        "3g.40gb",
        "3g.40gb@",
        "3g.40gb@x",
        "3g.40gb@0 +",
        "3g.40gb@0 1g.10gb@4",
        "3g.40gb@999",
        "@",
        "+",
    ] {
        assert!(matches!(read(text), LayoutTextError::Malformed { .. }), "{text}");
    }
    for text in ["@0", "9g.10gb@0", "+3g.40gb@0", "é@0"] {
        assert!(matches!(read(text), LayoutTextError::Profile(_)), "{text}");
    }
    assert!(matches!(read("3g.40gb@0 + 2g.20gb@2"), LayoutTextError::Layout(_)));
    assert!(Layout::parse(board("rtx-pro-5000-bw-48gb"), "").is_err());
}

#[test]
fn a_repartition_keeps_what_stays_in_place() {
    let b = board("h100-80gb");
    let change = |from: &str, to: &str| {
        let r = Repartition::between(&layout(b, from), &layout(b, to)).unwrap();
        let text = |i: crate::mig::Instance| i.to_string();
        let lists: [Vec<String>; 3] = [
            r.kept().map(text).collect(),
            r.destroyed().map(text).collect(),
            r.created().map(text).collect(),
        ];
        (lists.map(|l| l.join(" ")), r.is_nothing())
    };
    let (lists, nothing) = change("3g.40gb@0 + 3g.40gb@4", "2g.20gb@0 + 1g.10gb@2 + 3g.40gb@4");
    assert_eq!(lists, ["3g.40gb@4", "3g.40gb@0", "2g.20gb@0 1g.10gb@2"]);
    assert!(!nothing);
    // The same profile elsewhere, or a variant in the same place, is a new instance.
    assert_eq!(change("1g.10gb@0", "1g.10gb@1").0, ["", "1g.10gb@0", "1g.10gb@1"]);
    assert_eq!(change("1g.10gb@0", "1g.10gb+me@0").0, ["", "1g.10gb@0", "1g.10gb+me@0"]);
    assert!(change("7g.80gb@0", "7g.80gb@0").1);
    let other = Layout::empty(board("h200-141gb")).unwrap();
    let error = Repartition::between(&other, &layout(b, "")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a layout of board h200-141gb cannot become one of board h100-80gb"
    );
}
