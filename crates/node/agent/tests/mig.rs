//! Repartitioning: whatever is requested and whatever fails, GPUs end with the requested or the previous layout, and
//! slices in use are not touched.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::BTreeSet;

use berth_agent::mig::{
    GpuLayout, LayoutRequest, MigChanges, MigDriver, MigGpu, MigState, Placement, Reach, Refusal,
    Slice, Workloads, apply, plan, recover,
};
use berth_model::dice::Dice;
use berth_model::mig::{Board, ProfileName};

mod fake_gpus;
use fake_gpus::{FakeGpu, Faults, When, World};

const BOARDS: [&str; 5] = ["a100-40gb", "a100-80gb", "h100-80gb", "h200-141gb", "a30-24gb"];

fn board(id: &str) -> &'static Board {
    Board::by_id(id).unwrap()
}

fn place(text: &str) -> Placement {
    Placement::parse(text).unwrap()
}

/// An H200 with these slices, some of them in use.
fn h200(slices: &[&str], workloads: &[u8]) -> FakeGpu {
    let mut gpu = FakeGpu::new(0, board("h200-141gb"));
    (gpu.enabled, gpu.pending) = (true, true);
    gpu.slices = slices.iter().map(|text| Slice::whole(place(text))).collect();
    gpu.workloads = workloads.iter().copied().collect();
    gpu
}

fn workloads_of(gpus: &[FakeGpu]) -> Workloads {
    let mut workloads = Workloads::default();
    for gpu in gpus {
        for start in &gpu.workloads {
            workloads.slice(&gpu.uuid, *start, "pod team-a/web");
        }
    }
    workloads
}

fn gpus_of(world: &World) -> Vec<MigGpu> {
    world.clone().gpus().unwrap()
}

fn planned(gpus: Vec<FakeGpu>, request: &str, reach: Reach) -> Result<MigChanges, Refusal> {
    let workloads = workloads_of(&gpus);
    plan(&gpus_of(&World::new(gpus)), &LayoutRequest::parse(request).unwrap(), &workloads, reach)
}

fn one(gpu: FakeGpu, request: &str) -> String {
    match planned(vec![gpu], request, Reach::AroundWork) {
        Ok(plan) => plan.gpus[0].to.to_string(),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn existing_slices_stay_if_possible() {
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
fn refusals_name_the_reason() {
    let idle = || h200(&[], &[]);
    let work = || h200(&["1g.18gb@2", "3g.71gb@4"], &[4]);
    for (gpu, request, part) in [
        (idle(), "8x1g.18gb", "needs 8 compute slices of 7"),
        (idle(), "3g.71gb,3g.71gb,1g.35gb", "needs 10 memory units of 8"),
        (idle(), "4g.71gb@4", "4g.71gb cannot start at 4"),
        (idle(), "2g.35gb@0,1g.18gb@1", "1g.18gb cannot start at 1"),
        (idle(), "2x1g.18gb+me", "the maximum of 1g.18gb+me is 1"),
        (idle(), "1g.10gb", "does not support profile 1g.10gb; it supports 1g.18gb"),
        (idle(), "3=off", "no such GPU: 3"),
        (work(), "7g.141gb", "3g.71gb@4 is in use by pod team-a/web"),
        (work(), "off", "3g.71gb@4 is in use by pod team-a/web"),
        (work(), "3g.71gb@0", "3g.71gb@4 is in use"),
        (work(), "3g.71gb,2g.35gb@4", "3g.71gb@4 is in use"),
    ] {
        let text = one(gpu, request);
        assert!(text.contains(part), "{request}: {text}");
    }
    let refusal = planned(vec![work()], "3g.71gb", Reach::IdleGpus).unwrap_err();
    assert!(matches!(refusal, Refusal::Busy { gpu: 0, .. }), "{refusal}");
    assert_eq!(one(work(), "4g.71gb,3g.71gb"), "4g.71gb@0 + 3g.71gb@4");
    let same = planned(vec![work()], "1g.18gb,3g.71gb", Reach::IdleGpus).unwrap();
    assert!(same.is_nothing(), "an unchanged layout disturbs nobody");
    let mut waits = idle();
    waits.pending = false;
    assert!(one(waits, "off").contains("needs a reset"));
}

#[test]
fn a_mode_change_that_needs_a_reset_is_reverted() {
    let mut gpu = FakeGpu::new(0, board("a100-40gb"));
    gpu.resets = true;
    let world = World::new(vec![gpu]);
    let before = world.gpus.borrow().clone();
    let plan = plan(
        &gpus_of(&world),
        &LayoutRequest::parse("all-1g.5gb").unwrap(),
        &Workloads::default(),
        Reach::IdleGpus,
    );
    let state = apply(
        &mut world.clone(),
        &mut world.clone(),
        &plan.unwrap(),
        &Workloads::default(),
        &mut |_| {},
    );
    let MigState::RolledBack { reason, .. } = &state else { panic!("{state:?}") };
    assert!(reason.contains("only with a reset"), "{reason}");
    assert_eq!(*world.gpus.borrow(), before, "nothing needs a reset");
    assert_eq!(*world.kept.borrow(), None);
}

#[test]
fn a_journal_that_cannot_be_read_or_written_changes_nothing() {
    let world = World::new(vec![h200(&["7g.141gb@0"], &[])]);
    let request = LayoutRequest::parse("all-1g.18gb").unwrap();
    let plan = plan(&gpus_of(&world), &request, &Workloads::default(), Reach::IdleGpus).unwrap();
    world.begin(Faults { at: BTreeSet::from([1]), ..Faults::default() });
    let state =
        apply(&mut world.clone(), &mut world.clone(), &plan, &Workloads::default(), &mut |_| {});
    assert!(matches!(&state, MigState::RolledBack { reason, .. } if reason.contains("journal")));
    world.begin(Faults { at: BTreeSet::from([0]), ..Faults::default() });
    let state = recover(&mut world.clone(), &mut world.clone(), &Workloads::default()).unwrap();
    assert!(
        matches!(&state, MigState::Failed { reason, .. } if reason.contains("cannot read the journal"))
    );
    assert_eq!(world.layouts()[0].to_string(), "7g.141gb@0");
}

/// A machine, a request, and slices in use.
struct Case {
    gpus: Vec<FakeGpu>,
    request: String,
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

/// Slices at the first positions that the driver accepts.
fn repartitioned(mut gpu: FakeGpu, slices: usize, roll: &mut Roll) -> FakeGpu {
    (gpu.enabled, gpu.pending) = (true, true);
    for _ in 0..slices {
        let all = gpu.board.profiles();
        let profile = &all[roll.below(all.len())];
        let starts: Vec<u8> = profile.starts().unwrap().iter().collect();
        let place = Placement { profile: profile.name(), start: starts[roll.below(starts.len())] };
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
        let mut request = Vec::new();
        for number in 0..1 + roll.below(3) {
            let slices = roll.below(9);
            let mut gpu = FakeGpu::new(number, board);
            if roll.below(4) > 0 {
                gpu = repartitioned(gpu, slices, &mut roll);
            }
            for slice in &mut gpu.slices {
                match roll.below(8) {
                    0 => slice.compute.clear(),
                    1 if slice.place.profile.compute == 3 => slice.compute = vec![1, 2],
                    2 | 3 => drop(gpu.workloads.insert(slice.place.start)),
                    _ => {}
                }
            }
            let wanted = match roll.below(8) {
                0 => "off".to_owned(),
                1 => "empty".to_owned(),
                // Usually impossible.
                2 => {
                    let all = board.profiles();
                    let some = (0..1 + roll.below(4)).map(|_| all[roll.below(all.len())].name());
                    some.map(|name| name.to_string()).collect::<Vec<_>>().join(",")
                }
                _ => {
                    // Layout of another machine, or most of the existing slices, some with their position.
                    let count = roll.below(9);
                    let base =
                        FakeGpu { slices: gpu.slices.clone(), ..FakeGpu::new(number, board) };
                    let base = if roll.below(2) == 0 { base } else { FakeGpu::new(number, board) };
                    let mut other = repartitioned(base, count, &mut roll);
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
            request.push(format!("{number}={wanted}"));
            gpus.push(gpu);
        }
        let reach = if roll.below(3) == 0 { Reach::IdleGpus } else { Reach::AroundWork };
        Self { gpus, request: request.join(";"), reach }
    }
}

/// All combinations with these profiles that the driver would accept.
fn all_layouts(
    gpu: &FakeGpu,
    wanted: &[(ProfileName, Option<u8>)],
    found: &mut Vec<Vec<Placement>>,
) {
    let Some(((profile, start), rest)) = wanted.split_first() else {
        found.push(gpu.slices.iter().map(|one| one.place).collect());
        return;
    };
    let known = gpu.board.profiles().iter().find(|one| one.name() == *profile).unwrap();
    for at in known.starts().unwrap().iter().filter(|at| start.is_none_or(|start| start == *at)) {
        let place = Placement { profile: *profile, start: at };
        if gpu.accepts(place).is_ok() {
            let mut next = gpu.clone();
            next.slices.push(Slice { place, compute: Vec::new() });
            all_layouts(&next, rest, found);
        }
    }
}

/// The maximum number of slices that can be kept without touching slices in use.
fn most_kept(gpu: &FakeGpu, wanted: &str) -> Option<usize> {
    if wanted == "off" {
        return gpu.workloads.is_empty().then_some(0);
    }
    let wanted: Vec<(ProfileName, Option<u8>)> = wanted
        .split(',')
        .filter(|one| *one != "empty")
        .map(|one| match Placement::parse(one) {
            Some(place) => (place.profile, Some(place.start)),
            None => (one.parse().unwrap(), None),
        })
        .collect();
    let mut empty = FakeGpu::new(0, gpu.board);
    (empty.enabled, empty.pending) = (true, true);
    let mut ways = Vec::new();
    all_layouts(&empty, &wanted, &mut ways);
    let kept = |way: Vec<Placement>| {
        let stays = |one: &&Slice| way.contains(&one.place);
        let at_work = |one: &&Slice| gpu.workloads.contains(&one.place.start);
        if gpu.slices.iter().filter(at_work).any(|one| !stays(&one)) {
            return None;
        }
        let usable = |one: &&Slice| one.is_whole() || one.compute.is_empty() || at_work(one);
        Some(gpu.slices.iter().filter(stays).filter(usable).count())
    };
    ways.into_iter().filter_map(kept).max()
}

#[test]
fn a_possible_plan_is_found_and_keeps_the_most_slices() {
    let (mut made, mut refused) = (0, 0);
    for seed in 0..3_000 {
        let case = Case::new(seed);
        let gpu = &case.gpus[0];
        let wanted = case.request.split(';').next().unwrap().split_once('=').unwrap().1;
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

/// Invariants after a repartition.
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
                assert!(kept, "seed {seed}, {what}: nothing would continue");
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

/// Repartitions with faults, then restarts the machine and recovers until it is done.
fn check_outcome(
    case: &Case,
    plan: &MigChanges,
    law: &Law<'_>,
    faults: &Faults,
    again: &Faults,
) -> MigState {
    let world = World::new(case.gpus.clone());
    let workloads = workloads_of(&case.gpus);
    world.begin(faults.clone());
    let mut state = apply(&mut world.clone(), &mut world.clone(), plan, &workloads, &mut |_| {});
    let what = format!("{faults:?} then {again:?}");
    if !world.is_down() {
        if world.kept.borrow().is_none() && matches!(state, MigState::Failed { .. }) {
            // Nothing was started.
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
        if let Some(next) = recover(&mut world.clone(), &mut world.clone(), &workloads) {
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
    assert!(former || wanted, "seed {}: {what}: neither layout: {now:?}", law.seed);
    for (uuid, slice) in &law.work {
        let gpu = now.iter().find(|gpu| gpu.gpu == *uuid).unwrap();
        assert!(gpu.slices.contains(slice), "seed {}, {what}: work on {slice}", law.seed);
    }
    state
}

#[test]
fn whatever_fails_gpus_have_the_requested_or_previous_layout() {
    let (mut runs, mut plans) = (0, 0);
    let mut ends: std::collections::BTreeMap<&str, u32> = std::collections::BTreeMap::new();
    for seed in 0..1_500 {
        let case = Case::new(seed);
        let Ok(plan) = planned(case.gpus.clone(), &case.request, case.reach) else { continue };
        if plan.is_nothing() {
            continue;
        }
        plans += 1;
        let former: Vec<GpuLayout> = case.gpus.iter().map(FakeGpu::layout).collect();
        let wanted: Vec<GpuLayout> = plan.gpus.iter().map(|gpu| gpu.to.clone()).collect();
        let work = former.iter().zip(&case.gpus).flat_map(|(layout, gpu)| {
            let at_work =
                layout.slices.iter().filter(|one| gpu.workloads.contains(&one.place.start));
            at_work.map(|one| (gpu.uuid.clone(), one.clone()))
        });
        let law = Law { former: &former, wanted: &wanted, work: work.collect(), seed };
        // Without faults it succeeds; counts the calls.
        let world = World::new(case.gpus.clone());
        let workloads = workloads_of(&case.gpus);
        let state = apply(&mut world.clone(), &mut world.clone(), &plan, &workloads, &mut |_| {});
        assert!(matches!(state, MigState::Applied { .. }), "seed {seed}: {state:?}");
        law.holds(&world, &state, "no faults");
        let calls = world.calls();
        let mut run = |faults: Faults, again: Faults| {
            let state = check_outcome(&case, &plan, &law, &faults, &again);
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
fn work_unknown_to_the_planner_is_not_touched() {
    for seed in 0..1_500 {
        let case = Case::new(seed);
        // Only the driver knows of the work.
        let world = World::new(case.gpus.clone());
        let request = LayoutRequest::parse(&case.request).unwrap();
        let Ok(plan) = plan(&gpus_of(&world), &request, &Workloads::default(), Reach::IdleGpus)
        else {
            continue;
        };
        let former = world.layouts();
        let state = apply(
            &mut world.clone(),
            &mut world.clone(),
            &plan,
            &Workloads::default(),
            &mut |_| {},
        );
        let now = world.layouts();
        for (gpu, (before, after)) in case.gpus.iter().zip(former.iter().zip(&now)) {
            for slice in before.slices.iter().filter(|one| gpu.workloads.contains(&one.place.start))
            {
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
