//! What the rule prefers, case by case.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use berth_packing::fleet::{Capacity, Fleet, KindIx};
use berth_packing::mix::Mix;
use berth_packing::node::FreeNode;
use berth_packing::request::{GpuRequest, Models, Part, Request};
use berth_packing::score::Rule;

const GIB: u64 = 1 << 30;

/// Eight GPUs with 12 cores each.
const TIGHT: Capacity = Capacity { cpu_milli: 96_000, memory_bytes: 384 * GIB, gpus: 8, model: 0 };

/// Two GPUs with 52 cores each.
const ROOMY: Capacity = Capacity { cpu_milli: 104_000, memory_bytes: 512 * GIB, gpus: 2, model: 1 };

fn share(milli: u16) -> Request {
    let gpus = GpuRequest::Share(Part::even(milli));
    Request { cpu_milli: 4_000, memory_bytes: 15 * GIB, gpus, models: Models::ANY }
}

fn whole(count: u16) -> Request {
    let each = u64::from(count);
    let gpus = GpuRequest::Whole(count);
    Request { cpu_milli: 11_000 * each, memory_bytes: 40 * GIB * each, gpus, models: Models::ANY }
}

fn cpu_only(cpu_milli: u64) -> Request {
    Request { cpu_milli, memory_bytes: 8 * GIB, ..Request::default() }
}

/// Ten of each kind of machine, and pods with frequencies.
struct Setting {
    fleet: Fleet,
    tight: KindIx,
    roomy: KindIx,
    rule: Rule,
}

impl Setting {
    fn new(pods: &[(Request, usize)]) -> Self {
        let (mut fleet, mut mix) = (Fleet::default(), Mix::default());
        let (mut tight, mut roomy) = (KindIx(0), KindIx(0));
        for _ in 0..10 {
            tight = fleet.join(TIGHT);
            roomy = fleet.join(ROOMY);
        }
        for (request, count) in pods {
            (0..*count).for_each(|_| {
                mix.observe(request);
            });
        }
        let rule = Rule::new(&mix, &fleet);
        Self { fleet, tight, roomy, rule }
    }

    fn tight(&self) -> FreeNode {
        FreeNode::empty(&TIGHT, self.tight)
    }

    fn roomy(&self) -> FreeNode {
        FreeNode::empty(&ROOMY, self.roomy)
    }

    /// A node whose first GPUs have this much free.
    fn with_rests(&self, rests: &[u16]) -> FreeNode {
        let mut node = self.tight();
        node.gpus.iter_mut().zip(rests).for_each(|(free, rest)| *free = Part::even(*rest));
        node
    }

    fn cost(&self, node: &FreeNode, request: &Request) -> i64 {
        self.rule.judge(node, request).unwrap().cost_micro
    }
}

fn serving_mix() -> Setting {
    Setting::new(&[
        (share(160), 7),
        (share(320), 33),
        (share(470), 75),
        (share(650), 25),
        (share(810), 105),
        (whole(1), 400),
    ])
}

#[test]
fn a_small_share_fills_the_rest_that_only_small_shares_fit() {
    let setting = serving_mix();
    let node = setting.with_rests(&[530, 190, 350]);
    assert_eq!(setting.rule.judge(&node, &share(160)).unwrap().gpu, Some(1));
}

#[test]
fn shares_meet_their_complement() {
    let setting = serving_mix();
    let node = setting.with_rests(&[190, 530, 350, 680]);
    assert_eq!(setting.rule.judge(&node, &share(470)).unwrap().gpu, Some(1));
    assert_eq!(setting.rule.judge(&node, &share(320)).unwrap().gpu, Some(2));
    assert_eq!(setting.rule.judge(&node, &share(650)).unwrap().gpu, Some(3));
}

#[test]
fn a_share_without_a_fitting_rest_opens_a_new_gpu() {
    let setting = serving_mix();
    let node = setting.with_rests(&[190, 530]);
    assert_eq!(setting.rule.judge(&node, &share(810)).unwrap().gpu, Some(2));
}

#[test]
fn before_anything_is_known_shares_go_where_shares_are() {
    let setting = Setting::new(&[]);
    let node = setting.with_rests(&[1_000, 400]);
    assert_eq!(setting.rule.judge(&node, &share(300)).unwrap().gpu, Some(1));
}

#[test]
fn the_scarcer_of_compute_and_memory_counts() {
    let setting = serving_mix();
    let mut node = setting.tight();
    node.gpus[0] = Part { compute_milli: 900, memory_milli: 100 };
    node.gpus[1] = Part { compute_milli: 530, memory_milli: 530 };
    let by_memory = GpuRequest::Share(Part { compute_milli: 0, memory_milli: 470 });
    let request = Request { gpus: by_memory, ..share(470) };
    assert_eq!(setting.rule.judge(&node, &request).unwrap().gpu, Some(1));
}

#[test]
fn cpu_is_taken_where_gpus_do_not_need_it() {
    let setting = serving_mix();
    let (tight, roomy) = (setting.tight(), setting.roomy());
    assert!(setting.cost(&tight, &cpu_only(32_000)) > setting.cost(&roomy, &cpu_only(32_000)));
    let mut used = setting.tight();
    used.gpus.iter_mut().for_each(|free| *free = Part::even(0));
    assert!(setting.cost(&tight, &cpu_only(32_000)) > setting.cost(&used, &cpu_only(32_000)));
}

#[test]
fn memory_counts_like_cpu() {
    let setting = serving_mix();
    let hungry = Request { memory_bytes: 200 * GIB, ..cpu_only(1_000) };
    assert!(setting.cost(&setting.tight(), &hungry) > setting.cost(&setting.roomy(), &hungry));
}

#[test]
fn among_nodes_without_difference_those_without_gpus_come_first() {
    let setting = serving_mix();
    let mut bare = setting.roomy();
    bare.gpus.clear();
    assert!(
        setting.cost(&bare, &cpu_only(1_000)) < setting.cost(&setting.roomy(), &cpu_only(1_000))
    );
}

#[test]
fn room_for_many_gpus_is_not_broken_where_other_room_will_do() {
    let setting = Setting::new(&[(whole(1), 50), (whole(8), 10)]);
    let (empty, mut begun) = (setting.tight(), setting.tight());
    begun.take(&whole(1), &[0]);
    assert!(setting.cost(&empty, &whole(1)) > setting.cost(&begun, &whole(1)));
    // CPU that a pod of eight GPUs needs is part of its room.
    assert!(setting.cost(&empty, &cpu_only(9_000)) > setting.cost(&begun, &cpu_only(9_000)));
}

#[test]
fn flexible_pods_leave_machines_that_others_need() {
    let bound = Request { models: Models(1 << ROOMY.model), ..whole(1) };
    let setting = Setting::new(&[(whole(1), 50), (bound, 30)]);
    assert!(setting.cost(&setting.tight(), &whole(1)) < setting.cost(&setting.roomy(), &whole(1)));
    assert!(setting.rule.judge(&setting.tight(), &bound).is_none());
    // Also when size, not the model, binds them: only one kind can hold eight.
    let setting = Setting::new(&[(share(500), 50), (whole(8), 30)]);
    assert!(
        setting.cost(&setting.roomy(), &share(500)) < setting.cost(&setting.tight(), &share(500))
    );
}

#[test]
fn every_fitting_pod_has_a_cost() {
    let setting = serving_mix();
    let mut state = 7_u64;
    let mut roll = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..5_000 {
        let mut node = if roll(2) == 0 { setting.tight() } else { setting.roomy() };
        node.cpu_milli = roll(node.cpu_milli + 1);
        node.memory_bytes = roll(node.memory_bytes + 1);
        for free in &mut node.gpus {
            let part = |roll: u64| u16::try_from(roll.min(1_000)).unwrap();
            *free = Part { compute_milli: part(roll(1_500)), memory_milli: part(roll(1_500)) };
        }
        let gpus = match roll(3) {
            0 => GpuRequest::None,
            1 => GpuRequest::Whole(u16::try_from(1 + roll(4)).unwrap()),
            _ => GpuRequest::Share(Part::even(u16::try_from(1 + roll(999)).unwrap())),
        };
        let request = Request {
            cpu_milli: roll(40_000),
            memory_bytes: roll(100 * GIB),
            gpus,
            models: Models(1 + roll(3)),
        };
        let choice = setting.rule.judge(&node, &request);
        assert_eq!(choice.is_some(), node.can_take(&request), "{node:?} {request:?}");
        if let (Some(at), GpuRequest::Share(part)) = (choice.and_then(|choice| choice.gpu), gpus) {
            assert!(node.gpus[usize::from(at)].holds(part));
        }
    }
}

#[test]
fn absurd_amounts_do_not_overflow() {
    let absurd = Request {
        cpu_milli: u64::MAX,
        memory_bytes: u64::MAX,
        gpus: GpuRequest::Whole(u16::MAX),
        models: Models(0),
    };
    let empty_share = Request { gpus: GpuRequest::Share(Part::default()), ..Request::default() };
    let nothing = Request { gpus: GpuRequest::Whole(0), ..Request::default() };
    let setting =
        Setting::new(&[(absurd, 3), (empty_share, 3), (nothing, 3), (whole(2), 1), (share(1), 2)]);
    for request in [absurd, empty_share, nothing, whole(1), share(1), share(1_000)] {
        let choice = setting.rule.judge(&setting.tight(), &request);
        assert_eq!(choice.is_some(), setting.tight().can_take(&request), "{request:?}");
    }
    let mut fleet = setting.fleet.clone();
    fleet.leave(KindIx(77));
    (0..20).for_each(|_| fleet.leave(setting.tight));
    let rule = Rule::new(&Mix::default(), &fleet);
    assert!(rule.judge(&setting.tight(), &whole(8)).is_some());
}
