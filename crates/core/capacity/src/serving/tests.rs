//! Plans against an independent check, against exhaustive search where possible, and hostile input.

use berth_model::mig::{Board, Layout, Profile};
use proptest::prelude::*;

use super::*;

fn a100() -> &'static Board {
    Board::by_id("a100-80gb").unwrap()
}

fn profile(name: &str) -> &'static Profile {
    a100().profile(name).unwrap()
}

fn point(name: &str, throughput: u64, latency_us: u64) -> Point {
    Point {
        profile: profile(name),
        batch: 8,
        processes: 2,
        throughput_milli: 1_000 * throughput,
        latency_us,
    }
}

fn service(name: &str, rate: u64, points: &[Point]) -> Service {
    let points = points.to_vec();
    Service { name: name.to_owned(), rate_milli: 1_000 * rate, latency_us_max: 100, points }
}

/// Checks a deployment from its own fields: legal layouts, measured points within the limit, all
/// rates met.
fn assert_valid(board: &'static Board, services: &[Service], deployment: &Deployment) {
    let mut reached = vec![0; services.len()];
    for gpu in &deployment.gpus {
        assert!(!gpu.is_empty());
        let instances = gpu.iter().map(|s| (s.instance.profile, s.instance.start));
        Layout::from_instances(board, instances).unwrap();
        for segment in gpu {
            let service = &services[segment.service];
            assert!(service.points.contains(&segment.point));
            assert_eq!(segment.point.profile, segment.instance.profile);
            assert!(segment.point.latency_us <= service.latency_us_max);
            reached[segment.service] += segment.point.throughput_milli;
        }
    }
    for (service, reached) in services.iter().zip(reached) {
        assert!(reached >= service.rate_milli, "{}: {reached}", service.name);
    }
    assert!(deployment.gpus_min <= deployment.gpus.len());
}

fn planned(services: &[Service]) -> Deployment {
    let deployment = plan(a100(), services, 500).unwrap();
    assert_valid(a100(), services, &deployment);
    deployment
}

/// The fewest GPUs by exhaustive search: each service's minimal ways to reach its rate, and for
/// each sum of slices, whether a number of GPUs holds it.
fn fewest_by_trial(board: &'static Board, services: &[Service]) -> usize {
    let profiles: Vec<&'static Profile> = board.profiles().iter().collect();
    let best = |s: &Service, p: &Profile| {
        let fits = |x: &&Point| x.profile == p && x.latency_us <= s.latency_us_max;
        s.points.iter().filter(fits).map(|x| x.throughput_milli).max().unwrap_or(0)
    };
    let mut sums: std::collections::BTreeSet<Vec<u8>> = [vec![0; profiles.len()]].into();
    for service in services {
        let mut ways = Vec::new();
        let speeds: Vec<u64> = profiles.iter().map(|p| best(service, p)).collect();
        collect(&speeds, 0, service.rate_milli, &mut vec![0; profiles.len()], &mut ways);
        let add = |sum: &Vec<u8>, way: &Vec<u8>| -> Vec<u8> {
            sum.iter().zip(way).map(|(a, b)| a + b).collect()
        };
        sums = sums.iter().flat_map(|sum| ways.iter().map(move |way| add(sum, way))).collect();
    }
    let gpus = |counts: &Vec<u8>| {
        let mut wanted: Vec<&'static Profile> = Vec::new();
        for (at, n) in counts.iter().enumerate() {
            wanted.extend(std::iter::repeat_n(profiles[at], usize::from(*n)));
        }
        wanted.sort_by_key(|p| std::cmp::Reverse((p.memory_units(), p.compute_slices())));
        let slices: usize = wanted.iter().map(|p| usize::from(p.compute_slices())).sum();
        let least = slices.div_ceil(usize::from(board.compute_slices()));
        (least..).find(|gpus| placed(&wanted, &mut vec![Vec::new(); *gpus], board)).unwrap()
    };
    // A service that needs more of everything needs no fewer GPUs.
    let within = |one: &Vec<u8>, other: &Vec<u8>| one.iter().zip(other).all(|(a, b)| a <= b);
    let least = sums.iter().filter(|sum| !sums.iter().any(|o| o != *sum && within(o, sum)));
    least.map(gpus).min().unwrap()
}

/// All counts that reach the rate and would not without their last segment.
fn collect(speeds: &[u64], at: usize, left: u64, way: &mut Vec<u8>, ways: &mut Vec<Vec<u8>>) {
    if left == 0 {
        ways.push(way.clone());
        return;
    }
    for next in (at..speeds.len()).filter(|next| speeds[*next] > 0) {
        way[next] += 1;
        collect(speeds, next, left.saturating_sub(speeds[next]), way, ways);
        way[next] -= 1;
    }
}

/// Whether these slices can be placed on these GPUs in any way.
fn placed(
    rest: &[&'static Profile],
    gpus: &mut Vec<Vec<&'static Profile>>,
    board: &'static Board,
) -> bool {
    let Some((first, rest)) = rest.split_first() else { return true };
    for at in 0..gpus.len() {
        // GPUs with the same instances are equal.
        if gpus[..at].contains(&gpus[at]) {
            continue;
        }
        gpus[at].push(first);
        let fits = Layout::empty(board).unwrap().with_all(&gpus[at]).is_some();
        if fits && placed(rest, gpus, board) {
            return true;
        }
        gpus[at].pop();
    }
    false
}

#[test]
fn a_service_gets_the_slices_that_reach_its_rate() {
    let points = [point("1g.10gb", 100, 50), point("3g.40gb", 350, 50)];
    let deployment = planned(&[service("one", 340, &points)]);
    assert_eq!(deployment.gpus.len(), 1);
    let slices: Vec<_> = deployment.gpus[0].iter().map(|s| s.instance.to_string()).collect();
    assert_eq!(slices, ["3g.40gb@4"], "three slices instead of four");
}

#[test]
fn a_point_that_is_too_slow_is_not_used() {
    let points =
        [point("1g.10gb", 100, 50), point("1g.10gb", 900, 101), point("7g.80gb", 800, 100)];
    let deployment = planned(&[service("one", 700, &points)]);
    assert_eq!(deployment.gpus.len(), 1);
    assert!(deployment.gpus[0].iter().all(|s| s.point.latency_us <= 100));
}

#[test]
fn services_share_gpus_where_that_saves_one() {
    let points = [point("1g.10gb", 100, 50), point("2g.20gb", 200, 50), point("3g.40gb", 310, 50)];
    let services: Vec<Service> = [("a", 310), ("b", 310), ("c", 200), ("d", 200)]
        .map(|(n, r)| service(n, r, &points))
        .into();
    let deployment = planned(&services);
    // 3g + 2g + 2g and 3g, where one after the other would be as many.
    assert_eq!((deployment.gpus.len(), deployment.gpus_min), (2, 2));
}

#[test]
fn no_load_needs_no_gpu() {
    let idle = service("idle", 0, &[point("7g.80gb", 1, 1)]);
    assert!(planned(&[idle]).gpus.is_empty());
    assert!(planned(&[]).gpus.is_empty());
}

#[test]
fn more_nodes_never_give_a_worse_plan_and_none_give_one_too() {
    let points = [
        point("1g.10gb", 100, 50),
        point("2g.20gb", 215, 50),
        point("3g.40gb", 350, 50),
        point("4g.40gb", 410, 50),
        point("7g.80gb", 700, 50),
    ];
    let services: Vec<Service> =
        (0..6_u64).map(|n| service(&n.to_string(), 130 + 171 * n, &points)).collect();
    let with = |nodes| plan(a100(), &services, nodes).unwrap();
    let (none, some) = (with(0), with(300));
    assert_valid(a100(), &services, &none);
    assert_valid(a100(), &services, &some);
    assert!(some.gpus.len() <= none.gpus.len());
    assert_eq!(some.gpus.len(), some.gpus_min, "proven");
    assert_eq!(some, with(300), "the same again");
}

#[test]
fn impossible_services_are_rejected_by_name() {
    let slow = service("slow", 1, &[point("1g.10gb", 100, 101)]);
    let error = plan(a100(), &[slow], 10).unwrap_err();
    assert!(error.to_string().starts_with("service \"slow\": no point takes at most 100 us"));
    let none = service("none", 1, &[]);
    assert!(matches!(plan(a100(), &[none], 10), Err(ServingError::TooSlow { .. })));
    let mut much = service("much", 0, &[point("1g.10gb", 1, 1)]);
    much.rate_milli = u64::MAX;
    assert!(matches!(plan(a100(), &[much], 10), Err(ServingError::TooMuch { .. })));
    let foreign = Board::by_id("a30-24gb").unwrap();
    let one = service("one", 1, &[point("1g.10gb", 1, 1)]);
    assert!(matches!(plan(foreign, &[one], 10), Err(ServingError::ForeignProfile { .. })));
    let unknown = Board::by_id("rtx-pro-5000-bw-48gb").unwrap();
    assert!(matches!(plan(unknown, &[], 10), Err(ServingError::Board(_))));
    let many: Vec<Service> =
        (0..40).map(|n| service(&n.to_string(), 7_000, &[point("1g.10gb", 10, 1)])).collect();
    assert_eq!(plan(a100(), &many, 10), Err(ServingError::TooMuchTogether));
}

#[test]
fn many_services_get_a_plan_without_the_program() {
    let points = [point("1g.10gb", 100, 50), point("3g.40gb", 310, 50)];
    let services: Vec<Service> =
        (0..200_u64).map(|n| service(&n.to_string(), 50 + 3 * n, &points)).collect();
    let deployment = planned(&services);
    assert!(deployment.gpus.len() <= deployment.gpus_min + deployment.gpus_min / 10);
}

/// ParvaGPU's fifth and sixth scenario (SC'24; measurements and rates of MunQ-Lee/ParvaGPU_SC24, MIT): for
/// each model the requests per second wanted, and per 1,000 seconds the best throughput within 0.45 of
/// the latency objective on 1, 2, 3, 4 and 7 slices of an A100.
type Measured = [(&'static str, u64, [u64; 5]); 11];

const FIFTH: Measured = [
    ("bert", 843, [154_972, 299_400, 447_265, 589_716, 764_485]),
    ("densenet121", 2_228, [296_478, 618_562, 1_115_186, 1_258_418, 2_206_389]),
    ("densenet169", 3_507, [233_853, 489_194, 857_002, 1_005_484, 1_733_798]),
    ("densenet201", 1_513, [161_385, 342_224, 635_516, 730_932, 1_195_174]),
    ("inceptionv3", 3_815, [575_154, 1_244_900, 1_861_659, 2_259_096, 3_815_200]),
    ("mobilenetv2", 5_009, [771_152, 1_572_694, 2_702_637, 3_105_209, 5_000_600]),
    ("resnet101", 1_874, [232_625, 484_845, 827_181, 1_002_610, 1_771_896]),
    ("resnet152", 1_340, [143_465, 326_579, 596_426, 738_508, 1_246_814]),
    ("resnet50", 2_796, [358_277, 738_306, 1_359_900, 1_498_581, 2_687_805]),
    ("vgg16", 1_773, [239_471, 500_589, 819_931, 996_267, 1_773_640]),
    ("vgg19", 1_531, [204_227, 430_966, 703_280, 866_111, 1_531_484]),
];

const SIXTH: Measured = [
    ("bert", 1_264, [183_576, 351_792, 545_010, 626_400, 843_755]),
    ("densenet121", 3_342, [322_621, 668_916, 1_138_521, 1_286_061, 2_206_389]),
    ("densenet169", 5_260, [256_488, 526_272, 1_460_726, 1_619_344, 3_507_528]),
    ("densenet201", 2_269, [186_284, 423_876, 699_393, 822_318, 1_407_440]),
    ("inceptionv3", 5_722, [583_922, 1_244_900, 2_001_875, 2_282_242, 3_815_200]),
    ("mobilenetv2", 7_513, [771_152, 1_572_694, 2_702_637, 3_618_704, 5_000_600]),
    ("resnet101", 2_811, [253_003, 516_100, 902_432, 1_059_640, 1_851_052]),
    ("resnet152", 2_010, [183_615, 381_758, 678_014, 768_104, 1_298_946]),
    ("resnet50", 4_196, [412_097, 819_840, 1_422_534, 1_620_240, 2_764_932]),
    ("vgg16", 2_659, [261_971, 532_784, 846_456, 1_026_992, 1_773_640]),
    ("vgg19", 2_296, [224_591, 448_906, 754_874, 916_322, 1_531_484]),
];

fn scenario(measured: &Measured) -> Vec<Service> {
    let names = ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];
    let one = |(name, rate, speeds): &(&str, u64, [u64; 5])| {
        let points = names.iter().zip(speeds).filter(|(_, speed)| **speed > 0);
        let points = points
            .map(|(profile, speed)| Point { throughput_milli: *speed, ..point(profile, 0, 1) });
        Service { points: points.collect(), ..service(name, *rate, &[]) }
    };
    measured.iter().map(one).collect()
}

#[test]
fn parvagpu_s_largest_scenarios_fit_one_gpu_less_than_its_authors_use() {
    for (measured, gpus) in [(&FIFTH, 12), (&SIXTH, 15)] {
        let services = scenario(measured);
        let deployment = plan(a100(), &services, 20).unwrap();
        assert_valid(a100(), &services, &deployment);
        assert_eq!((deployment.gpus.len(), deployment.gpus_min), (gpus, gpus));
    }
}

fn arbitrary_service(board: &'static Board) -> impl Strategy<Value = Service> {
    let speeds = proptest::collection::vec(0_u64..400, board.profiles().len());
    (1_u64..900, speeds, 0_u64..3).prop_map(|(rate, speeds, slow)| {
        let points =
            board.profiles().iter().zip(speeds).enumerate().map(|(at, (profile, speed))| {
                let throughput_milli = speed * u64::from(profile.compute_slices());
                let latency_us = if at as u64 % 4 < slow { 90 } else { 110 };
                Point { profile, batch: 1, processes: 1, throughput_milli, latency_us }
            });
        let points = points.collect();
        Service { name: "any".to_owned(), rate_milli: rate, latency_us_max: 100, points }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_plan_is_valid(
        services in proptest::collection::vec(arbitrary_service(a100()), 0..7),
        nodes in 0_usize..20,
    ) {
        match plan(a100(), &services, nodes) {
            Ok(deployment) => assert_valid(a100(), &services, &deployment),
            Err(ServingError::TooSlow { .. } | ServingError::TooMuchTogether) => {}
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn small_plans_are_as_good_as_trying_everything(
        rates in proptest::collection::vec(1_u64..300, 1..4),
        speeds in proptest::collection::vec(60_u64..130, 3),
        which in 0_usize..2,
    ) {
        let (id, names) = [
            ("a100-80gb", ["1g.10gb", "2g.20gb", "3g.40gb"]),
            ("a30-24gb", ["1g.6gb", "2g.12gb", "4g.24gb"]),
        ][which];
        let board = Board::by_id(id).unwrap();
        let points: Vec<Point> = names.iter().zip(&speeds).map(|(name, speed)| {
            let profile = board.profile(name).unwrap();
            let throughput_milli = 1_000 * speed * u64::from(profile.compute_slices());
            Point { profile, batch: 1, processes: 1, throughput_milli, latency_us: 1 }
        }).collect();
        let services: Vec<Service> =
            rates.iter().map(|rate| service("any", *rate, &points)).collect();
        let deployment = plan(board, &services, 500).unwrap();
        assert_valid(board, &services, &deployment);
        let fewest = fewest_by_trial(board, &services);
        prop_assert_eq!(deployment.gpus.len(), fewest);
        prop_assert!(deployment.gpus_min <= fewest);
    }
}
