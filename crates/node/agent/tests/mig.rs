//! Dividing GPUs: whatever is wanted and whatever fails, GPUs end as wanted or as they were, and work is
//! not touched.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::BTreeSet;

use berth_agent::mig::{
    Busy, GpuLayout, MigChanges, MigDriver, MigGpu, MigState, Place, Reach, Refusal, Slice, Wish,
    apply, plan, recover,
};
use berth_model::dice::Dice;
use berth_model::mig::{Board, ProfileName};

mod made_gpus;
use made_gpus::{Faults, Made, When, World};

const BOARDS: [&str; 5] = ["a100-40gb", "a100-80gb", "h100-80gb", "h200-141gb", "a30-24gb"];

fn board(id: &str) -> &'static Board {
    Board::by_id(id).unwrap()
}

fn place(text: &str) -> Place {
    Place::parse(text).unwrap()
}

/// An H200 with these slices, some of them with work.
fn h200(slices: &[&str], busy: &[u8]) -> Made {
    let mut gpu = Made::new(0, board("h200-141gb"));
    (gpu.enabled, gpu.pending) = (true, true);
    gpu.slices = slices.iter().map(|text| Slice::whole(place(text))).collect();
    gpu.busy = busy.iter().copied().collect();
    gpu
}

fn busy_of(gpus: &[Made]) -> Busy {
    let mut busy = Busy::default();
    for gpu in gpus {
        for start in &gpu.busy {
            busy.slice(&gpu.uuid, *start, "pod team-a/web");
        }
    }
    busy
}

fn told(world: &World) -> Vec<MigGpu> {
    world.clone().gpus().unwrap()
}

fn planned(gpus: Vec<Made>, wish: &str, reach: Reach) -> Result<MigChanges, Refusal> {
    let busy = busy_of(&gpus);
    plan(&told(&World::new(gpus)), &Wish::parse(wish).unwrap(), &busy, reach)
}

fn one(gpu: Made, wish: &str) -> String {
    match planned(vec![gpu], wish, Reach::AroundWork) {
        Ok(plan) => plan.gpus[0].to.to_string(),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn what_is_there_stays_where_it_can() {
    let gpu = h200(&["1g.18gb@2", "3g.71gb@4"], &[]);
    assert_eq!(one(gpu.clone(), "3g.71gb, 2x1g.18gb"), "1g.18gb@2 + 1g.18gb@3 + 3g.71gb@4");
    assert_eq!(one(gpu.clone(), "4g.71gb,3g.71gb"), "4g.71gb@0 + 3g.71gb@4");
    assert_eq!(one(gpu.clone(), "3g.71gb@0"), "3g.71gb@0");
    assert_eq!(one(gpu.clone(), "7g.141gb"), "7g.141gb@0");
    assert_eq!(one(gpu.clone(), "off"), "off");
    assert_eq!(one(gpu.clone(), "empty"), "empty");
    assert_eq!(one(gpu.clone(), "all-1g.18gb").matches("1g.18gb").count(), 7);
    let balanced = one(gpu, "all-balanced");
    assert_eq!(balanced, "2g.35gb@0 + 1g.18gb@2 + 1g.18gb@3 + 3g.71gb@4");
}

#[test]
fn a_refusal_says_why() {
    let idle = || h200(&[], &[]);
    let work = || h200(&["1g.18gb@2", "3g.71gb@4"], &[4]);
    for (gpu, wish, part) in [
        (idle(), "8x1g.18gb", "they take 8 compute slices, and it has 7"),
        (idle(), "3g.71gb,3g.71gb,1g.35gb", "they take 10 units of memory, and it has 8"),
        (idle(), "4g.71gb@4", "4g.71gb cannot start at 4"),
        (idle(), "2g.35gb@0,1g.18gb@1", "1g.18gb cannot start at 1"),
        (idle(), "2x1g.18gb+me", "it can have 1 of 1g.18gb+me"),
        (idle(), "1g.10gb", "has no slices 1g.10gb; it has 1g.18gb"),
        (idle(), "3=off", "there is no GPU 3"),
        (work(), "7g.141gb", "3g.71gb@4 is in use by pod team-a/web"),
        (work(), "off", "3g.71gb@4 is in use by pod team-a/web"),
        (work(), "3g.71gb@0", "3g.71gb@4 is in use"),
        (work(), "3g.71gb,2g.35gb@4", "3g.71gb@4 is in use"),
    ] {
        let said = one(gpu, wish);
        assert!(said.contains(part), "{wish}: {said}");
    }
    let refusal = planned(vec![work()], "3g.71gb", Reach::IdleGpus).unwrap_err();
    assert!(matches!(refusal, Refusal::Busy { gpu: 0, .. }), "{refusal}");
    assert_eq!(one(work(), "4g.71gb,3g.71gb"), "4g.71gb@0 + 3g.71gb@4");
    let same = planned(vec![work()], "1g.18gb,3g.71gb", Reach::IdleGpus).unwrap();
    assert!(same.is_nothing(), "what is so already disturbs nobody");
    let mut waits = idle();
    waits.pending = false;
    assert!(one(waits, "off").contains("waits for a reset"));
}

#[test]
fn a_mode_that_needs_a_reset_is_taken_back() {
    let mut gpu = Made::new(0, board("a100-40gb"));
    gpu.resets = true;
    let world = World::new(vec![gpu]);
    let before = world.gpus.borrow().clone();
    let plan =
        plan(&told(&world), &Wish::parse("all-1g.5gb").unwrap(), &Busy::default(), Reach::IdleGpus);
    let state = apply(
        &mut world.clone(),
        &mut world.clone(),
        &plan.unwrap(),
        &Busy::default(),
        &mut |_| {},
    );
    let MigState::RolledBack { reason, .. } = &state else { panic!("{state:?}") };
    assert!(reason.contains("with a reset only"), "{reason}");
    assert_eq!(*world.gpus.borrow(), before, "nothing waits for a reset");
    assert_eq!(*world.kept.borrow(), None);
}

#[test]
fn a_journal_that_cannot_be_read_or_written_changes_nothing() {
    let world = World::new(vec![h200(&["7g.141gb@0"], &[])]);
    let wish = Wish::parse("all-1g.18gb").unwrap();
    let plan = plan(&told(&world), &wish, &Busy::default(), Reach::IdleGpus).unwrap();
    world.begin(Faults { at: BTreeSet::from([1]), ..Faults::default() });
    let state = apply(&mut world.clone(), &mut world.clone(), &plan, &Busy::default(), &mut |_| {});
    assert!(matches!(&state, MigState::RolledBack { reason, .. } if reason.contains("journal")));
    world.begin(Faults { at: BTreeSet::from([0]), ..Faults::default() });
    let state = recover(&mut world.clone(), &mut world.clone(), &Busy::default()).unwrap();
    assert!(matches!(&state, MigState::Failed { reason, .. } if reason.contains("cannot be read")));
    assert_eq!(world.layouts()[0].to_string(), "7g.141gb@0");
}

/// A machine, what is wanted of it, and what may not be touched.
struct Case {
    gpus: Vec<Made>,
    wish: String,
    reach: Reach,
}

struct Roll {
    dice: Dice,
    number: u64,
}

impl Roll {
    fn below(&mut self, bound: usize) -> usize {
        self.number += 1;
        self.dice.below(self.number, bound)
    }
}

/// Slices put one after the other wherever the driver accepts them.
fn divided(mut gpu: Made, slices: usize, roll: &mut Roll) -> Made {
    (gpu.enabled, gpu.pending) = (true, true);
    for _ in 0..slices {
        let all = gpu.board.profiles();
        let profile = &all[roll.below(all.len())];
        let starts: Vec<u8> = profile.starts().unwrap().iter().collect();
        let place = Place { profile: profile.name(), start: starts[roll.below(starts.len())] };
        if gpu.accepts(place).is_ok() {
            gpu.slices.push(Slice::whole(place));
        }
    }
    gpu
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut roll = Roll { dice: Dice::new(seed), number: 0 };
        let board = board(BOARDS[roll.below(BOARDS.len())]);
        let mut gpus = Vec::new();
        let mut wish = Vec::new();
        for number in 0..1 + roll.below(3) {
            let slices = roll.below(9);
            let mut gpu = Made::new(number, board);
            if roll.below(4) > 0 {
                gpu = divided(gpu, slices, &mut roll);
            }
            for slice in &mut gpu.slices {
                match roll.below(8) {
                    0 => slice.compute.clear(),
                    1 if slice.place.profile.compute == 3 => slice.compute = vec![1, 2],
                    2 | 3 => drop(gpu.busy.insert(slice.place.start)),
                    _ => {}
                }
            }
            let wanted = match roll.below(8) {
                0 => "off".to_owned(),
                1 => "empty".to_owned(),
                // Something that cannot be had, more often than not.
                2 => {
                    let all = board.profiles();
                    let some = (0..1 + roll.below(4)).map(|_| all[roll.below(all.len())].name());
                    some.map(|name| name.to_string()).collect::<Vec<_>>().join(",")
                }
                _ => {
                    // What another machine has, or much of what is there, some of it at its place.
                    let count = roll.below(9);
                    let base = Made { slices: gpu.slices.clone(), ..Made::new(number, board) };
                    let base = if roll.below(2) == 0 { base } else { Made::new(number, board) };
                    let mut other = divided(base, count, &mut roll);
                    if roll.below(2) == 0 && !other.slices.is_empty() {
                        let gone = roll.below(other.slices.len());
                        other.slices.remove(gone);
                    }
                    let text = |slice: &Slice| match roll.below(3) {
                        0 => slice.place.to_string(),
                        _ => slice.place.profile.to_string(),
                    };
                    let all: Vec<String> = other.slices.iter().map(text).collect();
                    if all.is_empty() { "empty".to_owned() } else { all.join(",") }
                }
            };
            wish.push(format!("{number}={wanted}"));
            gpus.push(gpu);
        }
        let reach = if roll.below(3) == 0 { Reach::IdleGpus } else { Reach::AroundWork };
        Self { gpus, wish: wish.join(";"), reach }
    }
}

/// All that the driver would accept with these profiles, by trying everything.
fn every_way(gpu: &Made, wanted: &[(ProfileName, Option<u8>)], found: &mut Vec<Vec<Place>>) {
    let Some(((profile, start), rest)) = wanted.split_first() else {
        found.push(gpu.slices.iter().map(|one| one.place).collect());
        return;
    };
    let known = gpu.board.profiles().iter().find(|one| one.name() == *profile).unwrap();
    for at in known.starts().unwrap().iter().filter(|at| start.is_none_or(|start| start == *at)) {
        let place = Place { profile: *profile, start: at };
        if gpu.accepts(place).is_ok() {
            let mut next = gpu.clone();
            next.slices.push(Slice { place, compute: Vec::new() });
            every_way(&next, rest, found);
        }
    }
}

/// Of all ways to have what is wanted without touching work, how many slices the best one keeps.
fn most_kept(gpu: &Made, wanted: &str) -> Option<usize> {
    if wanted == "off" {
        return gpu.busy.is_empty().then_some(0);
    }
    let wanted: Vec<(ProfileName, Option<u8>)> = wanted
        .split(',')
        .filter(|one| *one != "empty")
        .map(|one| match Place::parse(one) {
            Some(place) => (place.profile, Some(place.start)),
            None => (one.parse().unwrap(), None),
        })
        .collect();
    let mut empty = Made::new(0, gpu.board);
    (empty.enabled, empty.pending) = (true, true);
    let mut ways = Vec::new();
    every_way(&empty, &wanted, &mut ways);
    let kept = |way: Vec<Place>| {
        let stays = |one: &&Slice| way.contains(&one.place);
        let at_work = |one: &&Slice| gpu.busy.contains(&one.place.start);
        if gpu.slices.iter().filter(at_work).any(|one| !stays(&one)) {
            return None;
        }
        let usable = |one: &&Slice| one.is_whole() || one.compute.is_empty() || at_work(one);
        Some(gpu.slices.iter().filter(stays).filter(usable).count())
    };
    ways.into_iter().filter_map(kept).max()
}

#[test]
fn a_plan_is_found_where_there_is_one_and_keeps_the_most() {
    let (mut made, mut refused) = (0, 0);
    for seed in 0..3_000 {
        let case = Case::new(seed);
        let gpu = &case.gpus[0];
        let wanted = case.wish.split(';').next().unwrap().split_once('=').unwrap().1;
        let found = planned(vec![gpu.clone()], &format!("0={wanted}"), Reach::AroundWork);
        let best = most_kept(gpu, wanted);
        match found {
            Ok(plan) => {
                let kept = plan.gpus[0].kept().count();
                assert_eq!(Some(kept), best, "seed {seed}: {wanted} of {gpu:?}");
                made += 1;
            }
            Err(refusal) => {
                assert_eq!(best, None, "seed {seed}: {wanted} of {gpu:?}: {refusal}");
                refused += 1;
            }
        }
    }
    assert!(made > 1_000 && refused > 200, "{made} {refused}");
}

/// What must hold after all, whatever happened.
struct Law<'a> {
    former: &'a [GpuLayout],
    wanted: &'a [GpuLayout],
    work: Vec<(String, Slice)>,
    seed: u64,
}

impl Law<'_> {
    fn holds(&self, world: &World, state: &MigState, what: &str) {
        let now = world.layouts();
        let seed = self.seed;
        for (uuid, slice) in &self.work {
            let gpu = now.iter().find(|gpu| gpu.gpu == *uuid).unwrap();
            assert!(gpu.slices.contains(slice), "seed {seed}, {what}: work on {slice} was touched");
        }
        let kept = world.kept.borrow().is_some();
        let as_former = now.iter().all(|gpu| self.former.contains(gpu));
        let as_wanted = now.iter().all(|gpu| self.wanted.contains(gpu) || !self.is_planned(gpu));
        match state {
            MigState::Applied { .. } => assert!(as_wanted && !kept, "seed {seed}, {what}: {now:?}"),
            MigState::RolledBack { .. } => {
                assert!(as_former && !kept, "seed {seed}, {what}: {now:?}")
            }
            MigState::Failed { present, .. } => {
                assert!(kept, "seed {seed}, {what}: nothing would go on");
                if let Some(present) = present {
                    assert!(present.iter().all(|gpu| now.contains(gpu)), "seed {seed}, {what}");
                }
            }
            other => panic!("seed {seed}, {what}: {other:?}"),
        }
    }

    fn is_planned(&self, gpu: &GpuLayout) -> bool {
        self.wanted.iter().any(|one| one.gpu == gpu.gpu)
    }
}

/// Lets a division run with faults, then brings the machine up and lets it recover until it is done.
fn ends_well(
    case: &Case,
    plan: &MigChanges,
    law: &Law<'_>,
    faults: &Faults,
    again: &Faults,
) -> MigState {
    let world = World::new(case.gpus.clone());
    let busy = busy_of(&case.gpus);
    world.begin(faults.clone());
    let mut state = apply(&mut world.clone(), &mut world.clone(), plan, &busy, &mut |_| {});
    let what = format!("{faults:?} then {again:?}");
    if !world.is_down() {
        if world.kept.borrow().is_none() && matches!(state, MigState::Failed { .. }) {
            // Nothing was begun.
            assert_eq!(world.layouts(), law.former, "seed {}: {what}", law.seed);
            return state;
        }
        law.holds(&world, &state, &what);
    }
    world.begin(again.clone());
    let mut rounds = 0;
    while world.is_down() || world.kept.borrow().is_some() {
        if rounds > 0 {
            world.begin(Faults::default());
        }
        if let Some(next) = recover(&mut world.clone(), &mut world.clone(), &busy) {
            state = next;
            if !world.is_down() {
                law.holds(&world, &state, &what);
            }
        }
        rounds += 1;
        assert!(rounds < 4, "seed {}: {what}: it never ends", law.seed);
    }
    let now = world.layouts();
    let former = now.iter().all(|gpu| law.former.contains(gpu));
    let wanted = now.iter().all(|gpu| law.wanted.contains(gpu) || !law.is_planned(gpu));
    assert!(former || wanted, "seed {}: {what}: in between: {now:?}", law.seed);
    for (uuid, slice) in &law.work {
        let gpu = now.iter().find(|gpu| gpu.gpu == *uuid).unwrap();
        assert!(gpu.slices.contains(slice), "seed {}, {what}: work on {slice}", law.seed);
    }
    state
}

#[test]
fn whatever_fails_gpus_end_as_wanted_or_as_they_were() {
    let (mut runs, mut plans) = (0, 0);
    let mut ends: std::collections::BTreeMap<&str, u32> = std::collections::BTreeMap::new();
    for seed in 0..1_500 {
        let case = Case::new(seed);
        let Ok(plan) = planned(case.gpus.clone(), &case.wish, case.reach) else { continue };
        if plan.is_nothing() {
            continue;
        }
        plans += 1;
        let former: Vec<GpuLayout> = case.gpus.iter().map(Made::layout).collect();
        let wanted: Vec<GpuLayout> = plan.gpus.iter().map(|gpu| gpu.to.clone()).collect();
        let work = former.iter().zip(&case.gpus).flat_map(|(layout, gpu)| {
            let at_work = layout.slices.iter().filter(|one| gpu.busy.contains(&one.place.start));
            at_work.map(|one| (gpu.uuid.clone(), one.clone()))
        });
        let law = Law { former: &former, wanted: &wanted, work: work.collect(), seed };
        // Without faults it is done, and says how many calls that takes.
        let world = World::new(case.gpus.clone());
        let busy = busy_of(&case.gpus);
        let state = apply(&mut world.clone(), &mut world.clone(), &plan, &busy, &mut |_| {});
        assert!(matches!(state, MigState::Applied { .. }), "seed {seed}: {state:?}");
        law.holds(&world, &state, "no faults");
        let calls = world.calls();
        let mut run = |faults: Faults, again: Faults| {
            let state = ends_well(&case, &plan, &law, &faults, &again);
            *ends.entry(state.word()).or_default() += 1;
            runs += 1;
        };
        let roll = Dice::new(seed).of(7);
        let crash = |at, when| Faults { crash: Some((at, when)), ..Faults::default() };
        for at in 0..calls {
            let second = at + 1 + roll.below(at as u64, 8);
            run(Faults { at: BTreeSet::from([at]), ..Faults::default() }, Faults::default());
            run(
                Faults { at: BTreeSet::from([at, second]), ..Faults::default() },
                Faults::default(),
            );
            run(Faults { from: Some(at), ..Faults::default() }, Faults::default());
            run(crash(at, When::Before), Faults::default());
            run(crash(at, When::After), crash(roll.below(at as u64 + 100, calls), When::After));
            let back = Faults { at: BTreeSet::from([at]), ..crash(second, When::After) };
            run(back, crash(roll.below(at as u64 + 200, calls), When::Before));
        }
    }
    assert!(plans > 400 && runs > 20_000, "{plans} plans, {runs} runs");
    assert!(ends["success"] > 1_000 && ends["rolled-back"] > 1_000, "{ends:?}");
}

#[test]
fn work_that_nobody_told_of_is_not_touched_either() {
    for seed in 0..1_500 {
        let case = Case::new(seed);
        // The planner does not know of the work; the driver does.
        let world = World::new(case.gpus.clone());
        let wish = Wish::parse(&case.wish).unwrap();
        let Ok(plan) = plan(&told(&world), &wish, &Busy::default(), Reach::IdleGpus) else {
            continue;
        };
        let former = world.layouts();
        let state =
            apply(&mut world.clone(), &mut world.clone(), &plan, &Busy::default(), &mut |_| {});
        let now = world.layouts();
        for (gpu, (before, after)) in case.gpus.iter().zip(former.iter().zip(&now)) {
            for slice in before.slices.iter().filter(|one| gpu.busy.contains(&one.place.start)) {
                assert!(after.slices.contains(slice), "seed {seed}: {slice} of {}", gpu.uuid);
            }
        }
        match state {
            MigState::Applied { present } => {
                assert!(present.iter().all(|gpu| now.contains(gpu)), "seed {seed}");
            }
            MigState::RolledBack { reason, .. } => {
                assert_eq!(now, former, "seed {seed}");
                assert!(reason.contains("in use"), "seed {seed}: {reason}");
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
}
