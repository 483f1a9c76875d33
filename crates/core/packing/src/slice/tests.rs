//! The rule on cases worked out by hand, the fleet's counts against a recount, and hostile input.

use berth_model::mig::{Board, Layout, Need, Profile};
use proptest::prelude::*;

use super::grid::{Grid, PLACE};
use super::*;

fn board(id: &str) -> &'static Board {
    Board::by_id(id).unwrap()
}

fn profile(board: &'static Board, name: &str) -> &'static Profile {
    board.profile(name).unwrap()
}

fn want(id: &str, name: &str) -> SliceRequest {
    SliceRequest::profile(board(id), profile(board(id), name)).unwrap()
}

/// The plain profiles of an A100 with 80 GB, from the smallest to the largest.
const A100: [&str; 6] = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];

fn even_mix() -> Mix {
    Mix::from_weights(A100.map(|name| (want("a100-80gb", name), 1)))
}

fn fleet(layouts: &[&str]) -> Fleet {
    let mut fleet = Fleet::new();
    for text in layouts {
        fleet.add(Layout::parse(board("a100-80gb"), text).unwrap()).unwrap();
    }
    fleet
}

fn chosen(fleet: &Fleet, name: &str) -> Option<(u32, u8)> {
    let placement = fleet.choose(&want("a100-80gb", name), &even_mix())?;
    Some((placement.gpu.0, placement.start))
}

#[test]
fn places_are_ordered_as_they_are_chosen_and_the_smallest_come_first() {
    let fleet = fleet(&["empty", "4g.40gb@0", "3g.40gb@4"]);
    let board = board("a100-80gb");
    let every = |name: &'static str| {
        let profile = profile(board, name);
        let starts: Vec<u8> = profile.starts().unwrap().iter().collect();
        let gpus = (0..3).map(GpuIndex);
        gpus.flat_map(move |gpu| starts.clone().into_iter().map(move |start| (gpu, start)))
            .map(move |(gpu, start)| Placement { gpu, profile, start })
    };
    for name in A100 {
        let places: Vec<Placement> = every(name).collect();
        let order = fleet.order(&places, &even_mix());
        let first = order.first().map(|at| (places[*at].gpu.0, places[*at].start));
        assert_eq!(first, chosen(&fleet, name), "{name}");
        let legal =
            |place: &Placement| fleet.layout(place.gpu).unwrap().fits(place.profile, place.start);
        assert_eq!(order.len(), places.iter().filter(|place| legal(place)).count(), "{name}");
    }
    let all: Vec<Placement> = A100.into_iter().flat_map(every).collect();
    let first = &all[fleet.order(&all, &even_mix())[0]];
    assert_eq!(first.profile.name().compute, 1, "{first:?}");
    let empty = Fleet::new();
    assert!(empty.order(&all, &even_mix()).is_empty(), "there are no such GPUs");
}

#[test]
fn every_board_with_placements_has_its_grid() {
    for board in Board::all() {
        let states = Grid::new(board).map(|grid| {
            let mut fleet = 0;
            grid.shapes().for_each(|_| fleet += 1);
            assert!(fleet > 0);
            grid.state(&Layout::empty(board).unwrap()).is_some()
        });
        match board.memory_units() {
            None => assert!(states.is_err()),
            Some(_) => assert_eq!(states, Ok(true)),
        }
    }
}

#[test]
fn places_on_an_empty_gpu_are_its_limits_and_on_a_full_one_what_may_leave() {
    let a100 = board("a100-80gb");
    let grid = Grid::new(a100).unwrap();
    let places = |text: &str, name: &str| {
        let state = grid.state(&Layout::parse(a100, text).unwrap()).unwrap();
        grid.places_in(state)[grid.shape(profile(a100, name)).unwrap().at()]
    };
    for profile in a100.profiles().iter().filter(|p| p.max_instances() > 1) {
        let name = profile.name().to_string();
        assert_eq!(places("empty", &name), u64::from(profile.max_instances()) * PLACE, "{name}");
    }
    assert_eq!(places("7g.80gb@0", "7g.80gb"), PLACE / LEAVES_ONE_IN);
    assert_eq!(places("3g.40gb@0 + 3g.40gb@4", "7g.80gb"), PLACE / LEAVES_ONE_IN / LEAVES_ONE_IN);
    assert_eq!(places("4g.40gb@0", "3g.40gb"), PLACE + PLACE / LEAVES_ONE_IN);
}

#[test]
fn the_last_empty_gpu_is_spared() {
    let fleet = fleet(&["empty", "3g.40gb@4 + 2g.20gb@0"]);
    assert_eq!(chosen(&fleet, "2g.20gb"), Some((1, 2)));
    assert_eq!(chosen(&fleet, "1g.10gb"), Some((1, 2)));
    assert_eq!(chosen(&fleet, "3g.40gb"), Some((0, 4)), "only the empty one has room");
}

#[test]
fn nothing_is_stranded_if_avoidable() {
    // A 1g at 6 would make unit 7 unusable; 4 and 5 lose nothing.
    let fleet = fleet(&["4g.40gb@0"]);
    let (_, start) = chosen(&fleet, "1g.10gb").unwrap();
    assert_ne!(start, 6);
    assert_eq!(chosen(&fleet, "1g.20gb"), Some((0, 6)), "the pair that only this profile can use");
}

#[test]
fn unrequested_profiles_are_not_spared() {
    // Without whole-GPU and 4g work in the mix, 3g may as well take the first half.
    let halves = Mix::from_weights([(want("a100-80gb", "3g.40gb"), 1)]);
    let fleet = fleet(&["empty"]);
    let placement = fleet.choose(&want("a100-80gb", "3g.40gb"), &halves).unwrap();
    assert_eq!(placement.start, 0, "the lowest of equals");
    assert_eq!(chosen(&fleet, "3g.40gb"), Some((0, 4)), "but 4g needs that place");
}

#[test]
fn ties_go_to_the_fullest_gpu_then_the_first() {
    let whole = Mix::from_weights([(want("a100-80gb", "1g.10gb"), 1)]);
    let fleet = fleet(&["1g.10gb@0", "1g.10gb@0 + 1g.10gb@1", "1g.10gb@0 + 1g.10gb@1"]);
    let placement = fleet.choose(&want("a100-80gb", "1g.10gb"), &whole).unwrap();
    assert_eq!((placement.gpu.0, placement.start), (1, 2));
}

#[test]
fn a_resource_that_several_boards_offer_goes_where_it_costs_least() {
    let (a100, h100) = (board("a100-80gb"), board("h100-80gb"));
    let mut fleet = Fleet::new();
    fleet.add(Layout::empty(a100).unwrap()).unwrap();
    fleet.add(Layout::parse(h100, "4g.40gb@0").unwrap()).unwrap();
    let resource = |name: &str| SliceRequest::resource(&format!("nvidia.com/mig-{name}")).unwrap();
    let mix = Mix::from_weights(A100.map(|name| (resource(name), 1)));
    let placement = fleet.choose(&resource("3g.40gb"), &mix).unwrap();
    assert_eq!((placement.gpu.0, placement.start), (1, 4));
    assert_eq!(placement.profile, profile(h100, "3g.40gb"));
}

#[test]
fn a_need_finds_a_slice_on_boards_of_all_grids() {
    let need = Need { memory_bytes: 16 << 30, ..Need::default() };
    let boards = ["a30-24gb", "a100-80gb", "h200-141gb", "rtx-pro-6000-bw-96gb"].map(board);
    let want = SliceRequest::need(&need, boards).unwrap();
    assert_eq!(want.options().len(), 4);
    let mix = Mix::from_weights([(want.clone(), 1)]);
    let mut fleet = Fleet::new();
    boards.iter().for_each(|b| assert!(fleet.add(Layout::empty(b).unwrap()).is_ok()));
    let mut placed = 0;
    while let Some(placement) = fleet.choose(&want, &mix) {
        fleet.place(placement).unwrap();
        placed += 1;
    }
    // One 4g of the A30, four 1g.20gb (or three 2g), seven 1g.18gb or fewer, four quarters.
    assert!((15..=16).contains(&placed), "{placed}");
}

#[test]
fn media_engines_are_heeded_although_no_state_knows_them() {
    let mut fleet = fleet(&["1g.10gb+me@0", "empty"]);
    let want = want("a100-80gb", "1g.10gb+me");
    let placement = fleet.choose(&want, &even_mix()).unwrap();
    assert_eq!(placement.gpu, GpuIndex(1));
    fleet.place(placement).unwrap();
    assert_eq!(fleet.choose(&want, &even_mix()), None);
}

#[test]
fn a_mix_forgets_old_arrivals() {
    let (old, new) = (want("a100-80gb", "7g.80gb"), want("a100-80gb", "1g.10gb"));
    let mut mix = Mix::new();
    (0..3_000).for_each(|_| mix.arrived(&old));
    let weight = |mix: &Mix, want: &SliceRequest| {
        mix.kinds().iter().find(|k| k.want == *want).map_or(0, |k| k.weight)
    };
    (0..3_000).for_each(|_| mix.arrived(&new));
    assert!(weight(&mix, &new) > 5 * weight(&mix, &old));
    (0..40_000).for_each(|_| mix.arrived(&new));
    assert_eq!(weight(&mix, &old), 0);
}

#[test]
fn a_stream_of_ever_new_kinds_is_bounded() {
    let mut mix = Mix::new();
    for one in Board::all() {
        for other in Board::all() {
            for p in one.profiles() {
                for q in other.profiles() {
                    if let Ok(want) = SliceRequest::any([(one, p), (other, q)]) {
                        mix.arrived(&want);
                    }
                }
            }
        }
    }
    assert!(mix.kinds().len() <= 64);
}

#[test]
fn invalid_requests_are_rejected_by_name() {
    let (a100, a30) = (board("a100-80gb"), board("a30-24gb"));
    let foreign = SliceRequest::profile(a30, profile(a100, "7g.80gb")).unwrap_err();
    assert!(foreign.to_string().contains("7g.80gb cannot be placed on board a30-24gb"));
    let unknown = board("rtx-pro-5000-bw-48gb");
    assert!(SliceRequest::profile(unknown, &unknown.profiles()[0]).is_err());
    assert!(SliceRequest::any([]).is_err());
    let twice = [(a30, profile(a30, "1g.6gb")), (a30, profile(a30, "2g.12gb"))];
    assert!(matches!(SliceRequest::any(twice), Err(SliceRequestError::BoardTwice { .. })));
    for text in ["", "nvidia.com/gpu", "nvidia.com/mig-9g.999gb", "\u{0}", "mig-1g.10gb"] {
        assert!(SliceRequest::resource(text).is_err(), "{text:?}");
    }
    let mut fleet = Fleet::new();
    let gpu = GpuIndex(7);
    let placement = Placement { gpu, profile: profile(a100, "7g.80gb"), start: 200 };
    assert_eq!(fleet.place(placement), Err(FleetError::NoSuchGpu { gpu }));
    assert_eq!(fleet.remove(gpu), Err(FleetError::NoSuchGpu { gpu }));
    let there = fleet.add(Layout::empty(a100).unwrap()).unwrap();
    let placement = Placement { gpu: there, ..placement };
    assert!(fleet.place(placement).unwrap_err().to_string().starts_with("GPU 0: 7g.80gb cannot"));
    assert_eq!(fleet.choose(&want("a30-24gb", "1g.6gb"), &even_mix()), None);
}

/// A sequence of changes to a fleet, from bytes.
fn fleet_after(bytes: &[u8]) -> (Fleet, Mix) {
    let boards: Vec<&'static Board> =
        Board::all().iter().filter(|b| Layout::empty(b).is_ok()).collect();
    let mut fleet = Fleet::new();
    let mut mix = Mix::new();
    for (at, pair) in bytes.chunks_exact(2).enumerate() {
        let (what, which) = (pair[0], usize::from(pair[1]));
        let board = boards[which % boards.len()];
        match what % 8 {
            0 => drop(fleet.add(Layout::empty(board).unwrap())),
            1 => drop(fleet.remove(GpuIndex(which as u32 % 16))),
            2 => {
                let gpu = GpuIndex(which as u32 % 16);
                let first = fleet.layout(gpu).and_then(|l| l.instances().next());
                if let Some(i) = first {
                    fleet.release(Placement { gpu, profile: i.profile, start: i.start }).unwrap();
                }
            }
            _ => {
                let profile = &board.profiles()[at % board.profiles().len()];
                let want = SliceRequest::profile(board, profile).unwrap();
                mix.arrived(&want);
                if let Some(placement) = fleet.choose(&want, &mix) {
                    fleet.place(placement).unwrap();
                } else {
                    // A refused request fits nowhere.
                    for (_, layout) in fleet.layouts() {
                        assert!(layout.open_starts(profile).is_empty());
                    }
                }
            }
        }
    }
    (fleet, mix)
}

proptest! {
    #[test]
    fn choices_are_legal_and_complete(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        fleet_after(&bytes);
    }

    #[test]
    fn a_choice_depends_on_the_gpus_not_on_their_history(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (fleet, mix) = fleet_after(&bytes);
        let mut again = Fleet::new();
        let mut numbers = Vec::new();
        for (gpu, layout) in fleet.layouts() {
            again.add(*layout).unwrap();
            numbers.push(gpu);
        }
        prop_assert_eq!(fleet.stranded(&mix), again.stranded(&mix));
        for board in Board::all().iter().filter(|b| Layout::empty(b).is_ok()) {
            for profile in board.profiles() {
                let want = SliceRequest::profile(board, profile).unwrap();
                let second = again.choose(&want, &mix).map(|placement| {
                    Placement { gpu: numbers[placement.gpu.0 as usize], ..placement }
                });
                prop_assert_eq!(fleet.choose(&want, &mix), second);
            }
        }
    }
}
