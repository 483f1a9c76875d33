//! Builders for experiments.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::Profile;
use berth_kubelet::{
    CpuManagerPolicy, CpuOptions, KubeletConfig, MemoryManagerPolicy, ReservedCpus, ReservedMemory,
    TopologyPolicy,
};
use berth_model::device::PreferredAllocation;
use berth_model::gpu::{Gpu, Health, MigStrategy, Naming};
use berth_model::idset::CpuSet;
use berth_model::machine::RegularMachine;
use berth_model::mig::{Board, Layout};
use berth_model::node::Node;
use berth_model::numa::NumaMask;
use berth_model::resource::MemoryKind;
use berth_model::spec::{Controller, PodSpec};
use berth_sim::experiment::{
    Division, Experiment, Isolation, Job, KubeletPolicy, NodeSetup, Setup, Workload, WorkloadKind,
};
use berth_sim::report::{Report, WorkloadOutline};
use berth_testkit::cluster::{gpu_template, resources};

pub(crate) const MINUTE_MS: i64 = 60_000;
pub(crate) const HOUR_MS: i64 = 60 * MINUTE_MS;

/// Two sockets with 32 cores and four A100s each; `layout` divides the first GPUs.
pub(crate) fn node(name: &str, zone: &str, policy: TopologyPolicy, layouts: &[&str]) -> NodeSetup {
    let machine = RegularMachine {
        sockets: 2,
        numa_per_socket: 1,
        cores_per_numa: 32,
        threads: 2,
        memory_bytes: 1 << 40,
    };
    let board = Board::by_id("a100-80gb").unwrap();
    let gpus = (0..8)
        .map(|at| Gpu {
            id: format!("gpu-{at}"),
            product: "NVIDIA-A100-SXM4-80GB".to_owned(),
            memory_bytes: 80 << 30,
            numa: NumaMask::single(at / 4),
            health: Health::Healthy,
            mig: layouts.get(at).map(|text| Layout::parse(board, text).unwrap()),
            replicas: None,
        })
        .collect();
    let labels = [
        ("kubernetes.io/hostname", name),
        ("topology.kubernetes.io/zone", zone),
        ("berth.dev/pool", "a100"),
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB"),
        ("nvidia.com/gpu.memory", "81920"),
    ];
    NodeSetup {
        node: Node {
            name: name.into(),
            labels: labels.into_iter().collect(),
            allocatable: resources(&[("cpu", "126"), ("memory", "2047Gi"), ("pods", "110")])
                .unwrap(),
            ..Node::default()
        },
        machine: Arc::new(machine.build().unwrap()),
        kubelet: KubeletConfig {
            topology_policy: policy,
            cpu_manager: CpuManagerPolicy::Static {
                options: CpuOptions::default(),
                reserved: ReservedCpus::Explicit(CpuSet::from_iter([0, 64])),
            },
            memory_manager: MemoryManagerPolicy::Static {
                reserved: vec![ReservedMemory {
                    numa: 0,
                    kind: MemoryKind::Ordinary,
                    bytes: 1 << 30,
                }],
            },
            ..KubeletConfig::default()
        },
        gpus,
        naming: Naming { mig: MigStrategy::Mixed, shared_suffix: false },
        preferred: PreferredAllocation::LowestId,
        sharing: Isolation::TimeSliced,
        microusd_per_hour: 27_000_000,
    }
}

pub(crate) fn setup(name: &str, profile: Profile) -> Setup {
    let (kubelet, division) = (KubeletPolicy::AsDescribed, Division::AsDescribed);
    Setup { name: name.to_owned(), profile, kubelet, division, consolidation: None }
}

/// The two schedulers on the nodes as they are.
pub(crate) fn both() -> Vec<Setup> {
    vec![setup("kube-scheduler", Profile::KubeScheduler), setup("berth", Profile::Berth)]
}

pub(crate) fn outline(kind: &str, name: &str, class: &str) -> WorkloadOutline {
    WorkloadOutline {
        kind: kind.to_owned(),
        namespace: "serving".to_owned(),
        name: name.to_owned(),
        team: name.to_owned(),
        class: class.to_owned(),
    }
}

/// A template with so many GPUs.
pub(crate) fn gpus(name: &str, kind: &str, count: u32, priority: i32) -> Arc<PodSpec> {
    let mut spec = gpu_template(name, priority, count).unwrap();
    spec.controller = Some(Controller { kind: kind.into(), name: name.into() });
    Arc::new(spec)
}

pub(crate) fn job(at_ms: i64, template: &Arc<PodSpec>, duration_ms: i64) -> Job {
    Job {
        at_ms,
        template: template.clone(),
        completions: 1,
        parallelism: 1,
        duration_ms: Some(duration_ms),
        retries: 1_000,
        deadline_ms: None,
        checkpoint_ms: 0,
    }
}

pub(crate) fn jobs(name: &str, jobs: Vec<Job>) -> Workload {
    Workload {
        outline: outline("Job", name, "batch"),
        gpu_memory_bytes: 0,
        busy_milli: 950,
        load_ms: 0,
        kind: WorkloadKind::Jobs(jobs),
    }
}

pub(crate) fn run(experiment: &Experiment) -> Report {
    let report = berth_sim::run(experiment, &mut |_, _| {}).unwrap();
    check(&report);
    report
}

/// From when to when, the first unit, how many, and thousandths of the GPU.
type Holding = (i64, i64, u8, u8, i64);

/// What must be true of every report: nobody has what somebody else has, and sums are sums.
pub(crate) fn check(report: &Report) {
    for run in &report.runs {
        let mut by_gpu: BTreeMap<(usize, usize), Vec<Holding>> = BTreeMap::new();
        for stay in &run.stays {
            assert!(stay.from_ms <= stay.to_ms && stay.to_ms <= report.duration_ms);
            for part in &stay.gpus {
                by_gpu.entry((stay.node, part.gpu)).or_default().push((
                    stay.from_ms,
                    stay.to_ms,
                    part.first,
                    part.units,
                    i64::from(part.milli),
                ));
            }
        }
        for ((node, gpu), mut stays) in by_gpu {
            stays.sort_unstable();
            for (at, one) in stays.iter().enumerate() {
                let together = stays[..at].iter().filter(|other| other.1 > one.0);
                let milli: i64 = together.clone().map(|other| other.4).sum();
                assert!(milli + one.4 <= 1000, "GPU {gpu} of node {node} is given away twice");
                for other in together {
                    let apart = one.2 >= other.2 + other.3 || other.2 >= one.2 + one.3;
                    assert!(
                        apart || one.3 == 0 || other.3 == 0,
                        "slices overlap: {one:?} {other:?}"
                    );
                }
            }
        }
        let held: f64 = run
            .stays
            .iter()
            .map(|stay| {
                let milli: f64 = stay.gpus.iter().map(|part| f64::from(part.milli)).sum();
                milli / 1000.0 * (stay.to_ms - stay.from_ms) as f64
            })
            .sum();
        let summary = &run.summary;
        let said = summary.allocated * summary.gpus * report.duration_ms as f64;
        if run.stays_left_out == 0 {
            assert!((held - said).abs() <= 1.0 + held * 1e-6, "{held} held, {said} said");
        }
        assert!(summary.utilised <= summary.allocated + 1e-9, "busier than handed out");
    }
}
