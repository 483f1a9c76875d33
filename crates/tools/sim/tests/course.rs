//! What happens to pods, nodes and services in virtual time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;

use berth_engine::Profile;
use berth_engine::event::Event;
use berth_kubelet::TopologyPolicy;
use berth_model::policy::Quota;
use berth_model::spec::{GpuNeed, PodSpec};
use berth_sim::experiment::{
    Autoscale, Division, Experiment, Failure, Fault, Goals, Job, KubeletPolicy, Load, PoolSetup,
    Service, Setup, Workload, WorkloadKind,
};
use berth_sim::latency::Speed;
use common::{HOUR_MS, MINUTE_MS, both, gpus, job, jobs, node, outline, run, setup};

const STRICT: TopologyPolicy = TopologyPolicy::SingleNumaNode;

fn steady(per_s: f32) -> Option<Load> {
    Some(Load { step_ms: HOUR_MS, per_s: [per_s].into(), weight: Arc::default() })
}

fn service(name: &str, template: &Arc<PodSpec>, replicas: u32, per_s: f32) -> Workload {
    Workload {
        outline: outline("Deployment", name, "interactive"),
        gpu_memory_bytes: 0,
        busy_milli: 140,
        load_ms: 30_000,
        kind: WorkloadKind::Service(Service {
            template: template.clone(),
            replicas: vec![(0, replicas)],
            autoscale: None,
            load: steady(per_s),
            speed: Speed::default(),
            objective_us: 20_000,
        }),
    }
}

/// Three GPUs of each socket are taken for two hours: two are free, but on different sockets, when a
/// pod of two comes.
fn split() -> Experiment {
    let three = gpus("three", "Job", 3, 0);
    let two = gpus("two", "Job", 2, 0);
    Experiment {
        title: "split".to_owned(),
        duration_ms: 6 * HOUR_MS,
        nodes: vec![node("n0", "a", STRICT, &[])],
        workloads: vec![
            jobs("fillers", (0..2).map(|_| job(0, &three, 2 * HOUR_MS)).collect()),
            jobs("two", vec![job(MINUTE_MS, &two, HOUR_MS)]),
        ],
        setups: both(),
        ..Experiment::default()
    }
}

#[test]
fn a_numa_blind_scheduler_is_turned_down_where_berth_waits() {
    let report = run(&split());
    let [kube, berth] = &report.runs[..] else { panic!("two setups") };
    assert!(kube.summary.rejections > 20, "{:?}", kube.rejections);
    assert_eq!(kube.rejections.keys().collect::<Vec<_>>(), ["TopologyAffinityError"]);
    assert_eq!(berth.summary.rejections, 0);
    for run in &report.runs {
        assert_eq!((run.summary.started, run.summary.waiting), (3, 0), "{}", run.name);
    }
    // Nobody tells a controller that backs off when there is room again.
    let wait_ms = |run: &berth_sim::report::Run| run.classes[0].wait_max_ms;
    assert!(wait_ms(berth) < wait_ms(kube));
    assert!(
        (wait_ms(berth) - (2 * HOUR_MS + 3_000 - MINUTE_MS)).abs() < 1_000,
        "{}",
        wait_ms(berth)
    );
}

#[test]
fn the_same_experiment_gives_the_same_report() {
    let experiment = split();
    let text = |report| serde_json::to_string(&report).unwrap();
    assert_eq!(text(run(&experiment)), text(run(&experiment)));
}

#[test]
fn aligned_replicas_reach_the_floor_and_floating_ones_do_not() {
    let one = gpus("chat", "ReplicaSet", 1, 1_000_000);
    let floating =
        Setup { kubelet: KubeletPolicy::Defaults, ..setup("defaults", Profile::KubeScheduler) };
    let experiment = Experiment {
        duration_ms: 24 * HOUR_MS,
        nodes: vec![node("n0", "a", STRICT, &[]), node("n1", "b", STRICT, &[])],
        workloads: vec![service("chat", &one, 4, 1_000.0)],
        setups: vec![floating, setup("berth", Profile::Berth)],
        ..Experiment::default()
    };
    let report = run(&experiment);
    let [defaults, berth] = &report.runs[..] else { panic!("two setups") };
    assert!((14_000..14_400).contains(&berth.summary.p99_us), "{}", berth.summary.p99_us);
    assert!(defaults.summary.p99_us > 20_000, "{}", defaults.summary.p99_us);
    assert_eq!(berth.summary.breaches, 0);
    assert_eq!(defaults.summary.breaches, 1);
    assert!(berth.summary.aligned > 0.999 && defaults.summary.aligned < 0.001);
    let served = (24 * 3600 * 1000) as f64;
    assert!((berth.summary.requests as f64 / served - 1.0).abs() < 0.01);
}

#[test]
fn small_models_on_slices_leave_gpus_to_others() {
    let mut small = PodSpec::clone(&gpus("small", "ReplicaSet", 1, 1_000_000));
    small.pod = berth_testkit::node::pod("", &[("cpu", "4"), ("memory", "16Gi")]).unwrap();
    small.gpu = Some(GpuNeed { memory_bytes: 9 << 30, compute_milli: 0 });
    let small = Arc::new(small);
    let seven = "1g.10gb@0+1g.10gb@1+1g.10gb@2+1g.10gb@3+1g.10gb@4+1g.10gb@5+1g.10gb@6";
    let batch = gpus("batch", "Job", 1, 0);
    let experiment = Experiment {
        duration_ms: 12 * HOUR_MS,
        nodes: vec![node("n0", "a", STRICT, &[seven])],
        workloads: vec![
            service("small", &small, 7, 700.0),
            jobs("batch", (0..20).map(|_| job(0, &batch, 2 * HOUR_MS)).collect()),
        ],
        setups: vec![
            Setup { division: Division::Whole, ..setup("whole", Profile::KubeScheduler) },
            setup("berth", Profile::Berth),
        ],
        ..Experiment::default()
    };
    let report = run(&experiment);
    let [whole, berth] = &report.runs[..] else { panic!("two setups") };
    assert!(
        berth.summary.utilised > 1.5 * whole.summary.utilised,
        "{} {}",
        berth.summary.utilised,
        whole.summary.utilised
    );
    assert!(berth.summary.batch_gpu_hours > 37.0, "{}", berth.summary.batch_gpu_hours);
    assert_eq!(berth.layouts[0].slices.len(), 7);
}

#[test]
fn a_lost_node_is_noticed_and_its_replicas_come_back_elsewhere() {
    let one = gpus("chat", "ReplicaSet", 1, 0);
    let experiment = Experiment {
        duration_ms: 3 * HOUR_MS,
        nodes: vec![node("n0", "a", STRICT, &[]), node("n1", "b", STRICT, &[])],
        workloads: vec![service("chat", &one, 2, 100.0)],
        failures: vec![Failure {
            at_ms: HOUR_MS,
            for_ms: Some(HOUR_MS),
            fault: Fault::ZoneLoss("a".into()),
        }],
        setups: vec![setup("berth", Profile::Berth)],
        ..Experiment::default()
    };
    let report = run(&experiment);
    let run = &report.runs[0];
    let kinds: Vec<&str> = run.happenings.iter().map(|one| one.kind.as_str()).collect();
    assert!(kinds.contains(&"failure") && kinds.contains(&"recovery"));
    // Two replicas at first; those that were on n0 are made anew after 350 s.
    let lost = run.stays.iter().filter(|stay| stay.to_ms == HOUR_MS + 350_000).count();
    assert!(lost > 0);
    assert_eq!(run.stays.len(), 2 + lost);
    assert_eq!(run.summary.waiting, 0);
}

#[test]
fn a_model_that_does_not_fit_its_gpu_never_serves() {
    let one = gpus("large", "ReplicaSet", 1, 0);
    let mut large = service("large", &one, 1, 10.0);
    large.gpu_memory_bytes = 100 << 30;
    let experiment = Experiment {
        duration_ms: HOUR_MS,
        nodes: vec![node("n0", "a", STRICT, &[])],
        workloads: vec![large],
        setups: vec![setup("berth", Profile::Berth)],
        ..Experiment::default()
    };
    let summary = &run(&experiment).runs[0].summary;
    assert!(summary.out_of_memory > 5, "{}", summary.out_of_memory);
    assert_eq!(summary.requests, 0);
    // All that came after the ten minutes that a service has to get ready.
    assert_eq!(summary.requests_lost, 30_000);
}

#[test]
fn replicas_follow_the_load_and_nodes_follow_the_replicas() {
    let four = gpus("chat", "ReplicaSet", 4, 0);
    let mut chat = service("chat", &four, 1, 0.0);
    let WorkloadKind::Service(inner) = &mut chat.kind else { panic!("a service") };
    inner.autoscale = Some(Autoscale { min: 1, max: 8, target_milli: 600 });
    inner.load = Some(Load {
        step_ms: HOUR_MS,
        per_s: [100.0, 3_500.0, 100.0, 100.0].into(),
        weight: Arc::default(),
    });
    let pool = |growth| PoolSetup {
        name: "a100".into(),
        template: node("a100", "a", STRICT, &[]),
        growth,
        provision_ms: 10 * MINUTE_MS,
        idle_ms: Some(10 * MINUTE_MS),
    };
    let mut experiment = Experiment {
        duration_ms: 4 * HOUR_MS,
        nodes: vec![node("n0", "a", STRICT, &[])],
        pools: vec![pool(4)],
        workloads: vec![chat],
        setups: vec![setup("berth", Profile::Berth)],
        ..Experiment::default()
    };
    let report = run(&experiment);
    let run_ = &report.runs[0];
    // 3,500 a second at 60 % of 1,220 each need five replicas of four GPUs: two nodes beside the one.
    assert_eq!(run_.happenings.iter().filter(|one| one.kind == "provision").count(), 2);
    assert_eq!(run_.summary.waiting, 0);
    let last = *run_.series.gpus.last().unwrap();
    assert!((last - 8.0).abs() < 0.1, "nodes are given back: {last}");
    // One node for four hours, two for somewhat more than one, at $27 an hour.
    let dollars = run_.summary.cost_microusd / 1_000_000;
    assert!((150..190).contains(&dollars), "{dollars}");
    experiment.pools = vec![pool(0)];
    let without = run(&experiment);
    assert!(without.runs[0].summary.requests_lost > run_.summary.requests_lost);
}

#[test]
fn important_work_takes_the_place_of_batch_which_goes_on_later() {
    let batch = gpus("batch", "Job", 8, 0);
    let serving = gpus("chat", "ReplicaSet", 4, 1_000_000);
    let mut chat = service("chat", &serving, 0, 10.0);
    let WorkloadKind::Service(inner) = &mut chat.kind else { panic!("a service") };
    inner.replicas = vec![(0, 0), (HOUR_MS, 1), (2 * HOUR_MS, 0)];
    let mut train = job(0, &batch, 3 * HOUR_MS);
    train.checkpoint_ms = 10 * MINUTE_MS;
    let experiment = Experiment {
        duration_ms: 12 * HOUR_MS,
        // No NUMA node has eight GPUs.
        nodes: vec![node("n0", "a", TopologyPolicy::BestEffort, &[])],
        workloads: vec![jobs("batch", vec![train]), chat],
        setups: both(),
        ..Experiment::default()
    };
    for run in run(&experiment).runs {
        assert_eq!(run.summary.preemptions, 1, "{}", run.name);
        assert_eq!(run.summary.waiting, 0);
        // 950 of 1,000 of eight GPUs for three hours, and at most ten minutes done twice.
        let hours = run.summary.batch_gpu_hours;
        assert!((22.8..24.2).contains(&hours), "{hours}");
    }
}

#[test]
fn failures_that_overlap_end_one_by_one() {
    let one = gpus("chat", "ReplicaSet", 1, 0);
    let failure = |at_ms, for_ms, fault| Failure { at_ms, for_ms, fault };
    let experiment = Experiment {
        duration_ms: 6 * HOUR_MS,
        nodes: vec![node("n0", "a", STRICT, &[])],
        workloads: vec![service("chat", &one, 1, 100.0)],
        failures: vec![
            failure(HOUR_MS, Some(4 * HOUR_MS), Fault::NodeLoss("n0".into())),
            failure(2 * HOUR_MS, Some(HOUR_MS), Fault::ZoneLoss("a".into())),
        ],
        setups: vec![setup("berth", Profile::Berth)],
        ..Experiment::default()
    };
    let report = run(&experiment);
    let back: Vec<i64> = report.runs[0].stays.iter().map(|stay| stay.from_ms).collect();
    assert_eq!(back, [0, 5 * HOUR_MS]);
    // From the first loss to the end of both, and the start of the replica.
    let lost = report.runs[0].summary.requests_lost;
    assert!((1_430_000..1_460_000).contains(&lost), "{lost}");
}

#[test]
fn jobs_do_what_they_are_asked_and_no_more() {
    let mut experiment = split();
    let two = gpus("two", "Job", 2, 0);
    let several = Job { completions: 4, parallelism: 2, ..job(MINUTE_MS, &two, HOUR_MS) };
    experiment.workloads[1] = jobs("several", vec![several.clone()]);
    for run in run(&experiment).runs {
        let stays = run.stays.iter().filter(|stay| stay.workload == 1).count();
        assert_eq!((stays, run.summary.jobs), (4, 3), "{}", run.name);
    }
    let late = Job { deadline_ms: Some(HOUR_MS), ..several };
    experiment.workloads[1] = jobs("late", vec![late]);
    for run in run(&experiment).runs {
        assert_eq!((run.summary.jobs, run.summary.waiting), (2, 0), "{}", run.name);
    }
}

#[test]
fn work_that_is_lost_is_not_work_done() {
    let batch = gpus("batch", "Job", 4, 0);
    let experiment = Experiment {
        duration_ms: 12 * HOUR_MS,
        nodes: vec![node("n0", "a", STRICT, &[])],
        workloads: vec![jobs("batch", vec![job(0, &batch, 3 * HOUR_MS)])],
        failures: vec![Failure {
            at_ms: 2 * HOUR_MS,
            for_ms: Some(HOUR_MS),
            fault: Fault::NodeLoss("n0".into()),
        }],
        setups: vec![setup("berth", Profile::Berth)],
        ..Experiment::default()
    };
    let summary = &run(&experiment).runs[0].summary;
    assert!((summary.batch_gpu_hours - 11.4).abs() < 0.1, "{}", summary.batch_gpu_hours);
    assert!((summary.wasted_gpu_hours - 7.6).abs() < 0.1, "{}", summary.wasted_gpu_hours);
}

/// Jobs of one GPU that keep three nodes busy, one third of the time.
fn oversized() -> Experiment {
    let one = gpus("batch", "Job", 1, 0);
    let nodes = ["n0", "n1", "n2"].map(|name| node(name, "a", STRICT, &[]));
    let jobs_at = |at_ms| (0..8).map(move |_| (at_ms, 2 * HOUR_MS));
    let arrivals = (0..4).flat_map(|hour| jobs_at(2 * hour * HOUR_MS));
    Experiment {
        duration_ms: 10 * HOUR_MS,
        nodes: nodes.to_vec(),
        workloads: vec![jobs(
            "batch",
            arrivals.map(|(at, run_ms)| job(at, &one, run_ms)).collect(),
        )],
        goals: Some(Goals {
            against: 0,
            p99_reduction: None,
            utilisation_gain: None,
            breaches: None,
            fewest_nodes: true,
        }),
        setups: both(),
        ..Experiment::default()
    }
}

#[test]
fn nodes_are_removed_as_long_as_the_work_is_done() {
    let mut experiment = oversized();
    let gpus = |experiment: &Experiment| -> Vec<Option<usize>> {
        let report = run(experiment);
        report.runs.iter().map(|run| run.fewest.as_ref().unwrap().gpus).collect()
    };
    assert_eq!(gpus(&experiment), [Some(24), Some(8)], "eight jobs at a time");
    // What a failure names stays.
    for name in ["n0", "n1"] {
        experiment.failures.push(Failure {
            at_ms: 9 * HOUR_MS,
            for_ms: None,
            fault: Fault::KubeletRestart(name.into()),
        });
    }
    assert_eq!(gpus(&experiment), [Some(24), Some(16)]);
}

#[test]
fn a_cluster_that_breaks_objectives_is_not_sufficient() {
    let mut experiment = oversized();
    let template = gpus("server", "ReplicaSet", 1, 0);
    // One replica serves about 1,200 requests per second.
    experiment.workloads.push(service("server", &template, 1, 1_300.0));
    for run in run(&experiment).runs.iter().skip(1) {
        assert!(run.summary.breaches > 0, "{}", run.name);
        assert_eq!(run.fewest.as_ref().unwrap().gpus, None, "{}", run.name);
    }
}

#[test]
fn a_quota_holds_whoever_schedules() {
    let one = gpus("batch", "Job", 1, 0);
    let hard = berth_testkit::cluster::resources(&[("requests.nvidia.com/gpu", "2")]).unwrap();
    let quota = Quota { namespace: "serving".into(), name: "q".into(), hard, scopes: Vec::new() };
    let experiment = Experiment {
        duration_ms: 5 * HOUR_MS,
        nodes: vec![node("n0", "a", STRICT, &[])],
        objects: vec![Event::Quota(quota)],
        workloads: vec![jobs("batch", (0..6).map(|_| job(0, &one, HOUR_MS)).collect())],
        setups: both(),
        ..Experiment::default()
    };
    for run in run(&experiment).runs {
        let at_once = run.stays.iter().filter(|stay| stay.from_ms == 0).count();
        assert_eq!((at_once, run.summary.jobs), (2, 6), "{}", run.name);
    }
}
