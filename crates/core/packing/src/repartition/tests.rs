//! Plans worked out by hand, and arbitrary plans against a check that shares no code with the
//! search.

use berth_model::mig::{Board, Instance, Layout};
use proptest::prelude::*;

use super::*;

fn a100() -> &'static Board {
    Board::by_id("a100-80gb").unwrap()
}

fn want(name: &str) -> SliceRequest {
    SliceRequest::profile(a100(), a100().profile(name).unwrap()).unwrap()
}

fn wants(names: &[&str]) -> Vec<SliceRequest> {
    names.iter().map(|name| want(name)).collect()
}

/// A GPU from its layout and the starts in use; those with a minus may move.
fn gpu(layout: &str, held: &[i8]) -> GpuState {
    let layout = Layout::parse(a100(), layout).unwrap();
    let held = held.iter().map(|start| {
        let at = start.unsigned_abs() % 16;
        let i = layout.instances().find(|i| i.start == at).unwrap();
        InstanceInUse { profile: i.profile, start: at, pods: 1, movable: *start < 0 }
    });
    GpuState { layout, held: held.collect() }
}

/// A start that may move, also at 0.
const fn movable(start: i8) -> i8 {
    if start == 0 { -16 } else { -start }
}

fn proposed(gpus: &[GpuState], names: &[&str], touch: Touch) -> RepartitionPlan {
    let plan = propose(gpus, &wants(names), &Mix::new(), touch).unwrap();
    assert_valid(gpus, &wants(names), &plan, touch);
    plan
}

/// Checks a plan against its input, from its own fields alone.
fn assert_valid(
    gpus: &[GpuState],
    requests: &[SliceRequest],
    plan: &RepartitionPlan,
    touch: Touch,
) {
    let mut after: Vec<Layout> = gpus.iter().map(|g| g.layout).collect();
    let mut counted = Disruption::default();
    for step in &plan.steps {
        assert_eq!(step.from, gpus[step.gpu].layout);
        assert_eq!(after[step.gpu], step.from, "one step per GPU");
        let again = step.to.instances().map(|i| (i.profile, i.start));
        assert_eq!(Layout::from_instances(step.from.board(), again).unwrap(), step.to);
        let gone = step.from.instances().filter(|i| !step.to.contains(i.profile, i.start));
        let new = step.to.instances().filter(|i| !step.from.contains(i.profile, i.start));
        counted.instances_destroyed += gone.count() as u32;
        counted.instances_created += new.count() as u32;
        counted.gpus_touched += 1;
        assert!(touch > Touch::IdleGpus || gpus[step.gpu].held.is_empty(), "not asked");
        after[step.gpu] = step.to;
    }
    let mut taken: Vec<(usize, Instance)> = Vec::new();
    for (at, gpu) in gpus.iter().enumerate() {
        let mut stay = false;
        for held in &gpu.held {
            let i = Instance { profile: held.profile, start: held.start };
            let moved = plan.moves.iter().find(|m| m.from_gpu == at && m.from == i);
            if let Some(moved) = moved {
                assert!(touch == Touch::MovablePods && held.movable && moved.pods == held.pods);
                assert_eq!(moved.to.profile, i.profile);
                counted.pods_moved += held.pods;
                taken.push((moved.to_gpu, moved.to));
            } else {
                stay = true;
                taken.push((at, i));
            }
        }
        let touched = plan.steps.iter().any(|s| s.gpu == at);
        counted.gpus_with_work += u32::from(touched && stay);
    }
    for serve in &plan.serves {
        let board = gpus[serve.gpu].layout.board();
        assert_eq!(requests[serve.request].on(board), Some(serve.instance.profile));
        taken.push((serve.gpu, serve.instance));
    }
    for (at, (gpu, instance)) in taken.iter().enumerate() {
        assert!(after[*gpu].contains(instance.profile, instance.start), "{instance} on {gpu}");
        assert!(!taken[..at].contains(&(*gpu, *instance)), "{instance} on {gpu} taken twice");
    }
    let mut all: Vec<usize> = plan.serves.iter().map(|s| s.request).collect();
    all.extend(&plan.unserved);
    all.sort_unstable();
    assert_eq!(all, (0..requests.len()).collect::<Vec<_>>());
    assert_eq!(counted, plan.disruption);
}

#[test]
fn a_request_met_by_an_idle_instance_changes_nothing() {
    let gpus = [gpu("3g.40gb@0 + 3g.40gb@4", &[0]), gpu("7g.80gb@0", &[])];
    let plan = proposed(&gpus, &["3g.40gb"], Touch::IdleGpus);
    assert!(plan.steps.is_empty());
    assert_eq!((plan.serves[0].gpu, plan.serves[0].instance.start), (0, 4));
}

#[test]
fn an_idle_gpu_is_repartitioned_and_a_busy_one_is_not() {
    let gpus = [gpu("3g.40gb@0 + 3g.40gb@4", &[0]), gpu("7g.80gb@0", &[])];
    let plan = proposed(&gpus, &["2g.20gb", "1g.10gb"], Touch::IdleGpus);
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(plan.steps[0].gpu, 1);
    assert_eq!(plan.disruption.instances_destroyed, 1);
    assert!(plan.unserved.is_empty());
}

#[test]
fn without_idle_gpus_there_is_no_plan_in_the_narrow_scope() {
    let gpus = [gpu("3g.40gb@0 + 3g.40gb@4", &[0])];
    assert_eq!(proposed(&gpus, &["2g.20gb"], Touch::IdleGpus).unserved, [0]);
    let around = proposed(&gpus, &["2g.20gb"], Touch::AroundWork);
    assert_eq!(around.disruption.gpus_with_work, 1);
    assert!(around.steps[0].to.contains(a100().profile("3g.40gb").unwrap(), 0), "the work stays");
}

#[test]
fn the_fewest_gpus_are_touched_and_the_fewest_instances_destroyed() {
    let gpus = [
        gpu("1g.10gb@0 + 1g.10gb@1 + 2g.20gb@2 + 3g.40gb@4", &[]),
        gpu("3g.40gb@4", &[]),
        gpu("2g.20gb@0 + 2g.20gb@2 + 3g.40gb@4", &[]),
    ];
    let plan = proposed(&gpus, &["4g.40gb"], Touch::IdleGpus);
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(plan.steps[0].gpu, 1, "where nothing is in the way");
    assert_eq!(plan.disruption.instances_destroyed, 0);
    let plan = proposed(&gpus, &["2g.20gb", "2g.20gb", "4g.40gb", "1g.20gb"], Touch::IdleGpus);
    assert_eq!(plan.disruption.gpus_touched, 1, "both 2g are there, and one GPU holds the others");
    assert_eq!(plan.disruption.instances_destroyed, 1);
    assert!(plan.unserved.is_empty());
}

#[test]
fn the_rest_of_a_touched_gpu_is_divided_for_the_mix() {
    let gpus = [gpu("7g.80gb@0", &[])];
    let mix = Mix::from_weights([(want("1g.10gb"), 1)]);
    let plan = propose(&gpus, &wants(&["4g.40gb"]), &mix, Touch::IdleGpus).unwrap();
    assert_valid(&gpus, &wants(&["4g.40gb"]), &plan, Touch::IdleGpus);
    assert_eq!(plan.steps[0].to.to_string(), "4g.40gb@0 + 1g.10gb@4 + 1g.10gb@5 + 1g.10gb@6");
}

#[test]
fn movable_pods_make_room_when_asked_and_only_as_many_as_needed() {
    let gpus = [
        gpu("1g.10gb@0 + 1g.10gb@1 + 1g.10gb@2", &[movable(0), movable(1), movable(2)]),
        gpu("1g.10gb@4 + 3g.40gb@0", &[movable(4), 0]),
        gpu("1g.10gb@0 + 1g.10gb@1 + 1g.10gb@2 + 1g.10gb@3 + 3g.40gb@4", &[0, 4]),
    ];
    assert_eq!(proposed(&gpus, &["7g.80gb"], Touch::AroundWork).unserved, [0]);
    let plan = proposed(&gpus, &["7g.80gb"], Touch::MovablePods);
    assert!(plan.unserved.is_empty());
    assert_eq!(plan.disruption.pods_moved, 3);
    let plan = proposed(&gpus, &["3g.40gb", "3g.40gb"], Touch::MovablePods);
    assert!(plan.unserved.is_empty());
    assert_eq!(plan.disruption.pods_moved, 1, "{plan:?}");
}

#[test]
fn pods_that_may_not_move_stay() {
    let gpus = [gpu("1g.10gb@6", &[6])];
    assert_eq!(proposed(&gpus, &["7g.80gb"], Touch::MovablePods).unserved, [0]);
    let gpus = [gpu("1g.10gb@6", &[movable(6)])];
    assert_eq!(proposed(&gpus, &["7g.80gb"], Touch::MovablePods).unserved, [0], "to nowhere");
}

#[test]
fn the_first_requests_matter_most_when_not_all_fit() {
    let gpus = [gpu("empty", &[])];
    let plan = proposed(&gpus, &["1g.10gb", "7g.80gb"], Touch::IdleGpus);
    assert_eq!(plan.unserved, [1]);
}

#[test]
fn inconsistent_gpu_states_are_rejected() {
    let mut wrong = gpu("1g.10gb@6", &[6]);
    wrong.held.push(wrong.held[0]);
    let error = propose(&[wrong], &[], &Mix::new(), Touch::IdleGpus).unwrap_err();
    assert_eq!(error.to_string(), "GPU 0: 1g.10gb@6 is held twice; add up its pods in one entry");
    let mut wrong = gpu("1g.10gb@6", &[6]);
    wrong.held[0].start = 3;
    let error = propose(&[wrong], &[], &Mix::new(), Touch::IdleGpus).unwrap_err();
    assert!(error.to_string().contains("work holds 1g.10gb@3, which its layout lacks"));
}

/// GPUs and requests from bytes: any board, any layout, any part of it in use.
fn world(bytes: &[u8]) -> (Vec<GpuState>, Vec<SliceRequest>) {
    let boards: Vec<&'static Board> =
        ["a100-80gb", "h100-80gb", "a30-24gb"].map(|id| Board::by_id(id).unwrap()).into();
    let mut gpus: Vec<GpuState> = Vec::new();
    let mut requests = Vec::new();
    for chunk in bytes.chunks_exact(3) {
        let [what, which, how] = [chunk[0], chunk[1], chunk[2]].map(usize::from);
        let board = boards[which % boards.len()];
        let profile = &board.profiles()[how % board.profiles().len()];
        match what % 4 {
            0 => gpus.push(GpuState { layout: Layout::empty(board).unwrap(), held: Vec::new() }),
            1 => requests.push(SliceRequest::profile(board, profile).unwrap()),
            _ => {
                let Some(gpu) = gpus.iter_mut().rev().nth(which % 2) else { continue };
                let profiles = gpu.layout.board().profiles();
                let profile = &profiles[how % profiles.len()];
                let starts = gpu.layout.open_starts(profile);
                let Some(start) = starts.iter().nth(what / 4 % 3) else { continue };
                gpu.layout.add(profile, start).unwrap();
                if how >= 128 {
                    let (pods, movable) = (1 + which as u32 % 3, what >= 128);
                    gpu.held.push(InstanceInUse { profile, start, pods, movable });
                }
            }
        }
    }
    (gpus, requests)
}

proptest! {
    #[test]
    fn a_plan_is_consistent_and_within_its_scope(
        bytes in proptest::collection::vec(any::<u8>(), 0..120),
        touch in prop_oneof![Just(Touch::IdleGpus), Just(Touch::AroundWork), Just(Touch::MovablePods)],
    ) {
        let (gpus, requests) = world(&bytes);
        let mix = Mix::from_weights(requests.iter().cloned().map(|want| (want, 1)));
        let plan = propose(&gpus, &requests, &mix, touch).unwrap();
        assert_valid(&gpus, &requests, &plan, touch);
    }

    #[test]
    fn a_wider_scope_serves_no_less(
        bytes in proptest::collection::vec(any::<u8>(), 0..90),
    ) {
        let (gpus, requests) = world(&bytes);
        let served = |touch| propose(&gpus, &requests[..requests.len().min(1)], &Mix::new(), touch)
            .unwrap().serves.len();
        prop_assert!(served(Touch::AroundWork) >= served(Touch::IdleGpus));
        prop_assert!(served(Touch::MovablePods) >= served(Touch::AroundWork));
    }

    #[test]
    fn one_request_is_served_whenever_some_gpu_could(
        bytes in proptest::collection::vec(any::<u8>(), 0..90),
    ) {
        let (gpus, requests) = world(&bytes);
        let Some(request) = requests.first() else { return Ok(()) };
        let plan = propose(&gpus, std::slice::from_ref(request), &Mix::new(), Touch::AroundWork).unwrap();
        let could = gpus.iter().any(|gpu| {
            let board = gpu.layout.board();
            let held = gpu.held.iter().map(|h| (h.profile, h.start));
            let work = Layout::from_instances(board, held).unwrap();
            request.on(board).is_some_and(|profile| !work.open_starts(profile).is_empty())
        });
        prop_assert_eq!(plan.unserved.is_empty(), could);
        prop_assert!(plan.disruption.gpus_touched <= 1);
    }

    #[test]
    fn no_gpu_of_a_plan_could_be_left_out(
        bytes in proptest::collection::vec(any::<u8>(), 0..90),
    ) {
        let (gpus, requests) = world(&bytes);
        let plan = propose(&gpus, &requests, &Mix::new(), Touch::IdleGpus).unwrap();
        for left_out in &plan.steps {
            // A GPU that is marked busy cannot be touched.
            let mut fewer = gpus.clone();
            for at in (0..gpus.len()).filter(|at| {
                *at == left_out.gpu || !plan.steps.iter().any(|s| s.gpu == *at)
            }) {
                fewer[at].held = fewer[at].layout.instances()
                    .map(|i| InstanceInUse { profile: i.profile, start: i.start, pods: 1, movable: false })
                    .collect();
                if fewer[at].layout.is_empty() {
                    let board = fewer[at].layout.board();
                    let all = board.profiles().iter()
                        .max_by_key(|p| p.compute_slices()).unwrap();
                    fewer[at].layout.add(all, 0).unwrap();
                    fewer[at].held.push(InstanceInUse { profile: all, start: 0, pods: 1, movable: false });
                }
            }
            let without = propose(&fewer, &requests, &Mix::new(), Touch::IdleGpus).unwrap();
            let missing = |s: &ServedRequest| !without.serves.iter().any(|w| w.request == s.request);
            prop_assert!(plan.serves.iter().any(missing), "{:?}", left_out.gpu);
        }
    }
}
