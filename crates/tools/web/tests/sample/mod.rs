//! Reports that look like those of real experiments, for tests and for looking at the page.
//!
//! Owns a toy: first fit on GPUs in units, with no kubelet and no engine. Its figures mean nothing;
//! their shape and number are what matters.

mod toy;

use std::collections::BTreeMap;

use berth_sim::report::{
    Assumption, Fewest, Goals, GpuOutline, Happening, LayoutChange, NodeOutline, NumaOutline,
    Report, Run, ServiceReport, Stay, Waiting, WorkloadOutline,
};

use toy::{Arrivals, Setup};

/// A day.
pub(crate) const DAY_MS: i64 = 24 * 3_600_000;

/// Numbers that look random, the same every time (xorshift).
pub(crate) struct Dice(u64);

impl Dice {
    /// Begins at a seed other than 0.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }

    /// From 0 to 1.
    pub(crate) fn part(&mut self) -> f64 {
        self.below(1 << 20) as f64 / f64::from(1 << 20)
    }
}

/// Six nodes of eight GPUs for 90 days under two setups.
pub(crate) fn small() -> Report {
    let nodes: Vec<NodeOutline> = (0..6)
        .map(|i| {
            let (pool, product, gib) = match i {
                0..3 => ("a100", "NVIDIA-A100-SXM4-80GB", 80),
                _ => ("h100", "NVIDIA-H100-80GB-HBM3", 80),
            };
            node(format!("gpu-{pool}-{i}"), pool, ["zone-a", "zone-b"][i % 2], product, gib, 8)
        })
        .collect();
    let mut report = Report {
        version: 1,
        title: "48 GPUs for serving and batch, 90 days".into(),
        description:
            "A mixed cluster of A100 and H100 nodes serves six models by day and trains by \
                      night. The same arrivals are placed by the default stack, and by Berth with \
                      slices and alignment."
                .into(),
        seed: 18_446_744_073_709_551_557,
        duration_ms: 90 * DAY_MS,
        assumptions: assumptions(),
        workloads: workloads(),
        nodes,
        ..Report::default()
    };
    let arrivals = Arrivals::draw(&report, 6_000, 7);
    let whole = Setup { name: "kube-scheduler", slices: false, aligned_percent: 55, patience: 40 };
    let berth = Setup { name: "berth", slices: true, aligned_percent: 100, patience: 3 };
    report.runs = [whole, berth].iter().map(|setup| toy::run(&report, &arrivals, setup)).collect();
    report.goals = Some(Goals {
        against: 0,
        p99_reduction: Some(0.4),
        utilisation_gain: Some(0.22),
        breaches: Some(0),
        fewest_nodes: true,
    });
    for (run, gpus) in report.runs.iter_mut().zip([48, 32]) {
        run.fewest = Some(Fewest { gpus: Some(gpus), ..Fewest::default() });
    }
    report
}

/// As large as Alibaba's openb cluster, with some 100,000 stays under two setups.
pub(crate) fn big() -> Report {
    let mut dice = Dice::new(3);
    let nodes = (0..1_213)
        .map(|i| {
            let (pool, product, gpus) = match dice.below(10) {
                0..=3 => ("t4", "Tesla-T4", 2),
                4..=6 => ("g2", "NVIDIA-A10", 8),
                7..=8 => ("v100", "Tesla-V100-SXM2-32GB", 8),
                _ => ("cpu", "", 0),
            };
            let gpus = if pool == "t4" && dice.below(3) == 0 { 4 } else { gpus };
            node(format!("openb-node-{i:04}"), pool, "", product, 32, gpus)
        })
        .collect();
    let mut report = Report {
        title: "1,213 nodes".into(),
        description: "Many nodes, many pods.".into(),
        seed: 3,
        duration_ms: 14 * DAY_MS,
        assumptions: assumptions(),
        workloads: workloads(),
        nodes,
        ..small_frame()
    };
    let arrivals = Arrivals::draw(&report, 100_000, 9);
    let kube = Setup { name: "kube-scheduler", slices: false, aligned_percent: 70, patience: 9 };
    let berth = Setup { name: "berth", slices: false, aligned_percent: 100, patience: 1 };
    report.runs = [kube, berth].iter().map(|setup| toy::run(&report, &arrivals, setup)).collect();
    report
}

fn small_frame() -> Report {
    Report { version: 1, ..Report::default() }
}

/// Nothing at all, then bit by bit more: no runs, an empty run, a run on nodes without GPUs with
/// series of one step, and workloads that nobody knows.
pub(crate) fn sparse() -> Vec<(&'static str, Report)> {
    let empty_run = Run { name: "alone".into(), ..Run::default() };
    let mut bare = node("cpu-0".into(), "", "", "", 0, 0);
    bare.numa.clear();
    let cpu_only = node("cpu-1".into(), "cpu", "", "", 0, 0);
    let mut one_step = empty_run.clone();
    one_step.series.step_ms = 3_600_000;
    one_step.series.gpus = vec![0.0];
    one_step.series.allocated = vec![0.0];
    one_step.series.p99_us = vec![0];
    one_step.services = vec![ServiceReport { workload: 99, ..ServiceReport::default() }];
    one_step.stays = vec![
        Stay { workload: 7, node: 1, to_ms: DAY_MS, cpus: vec![4], ..Stay::default() },
        Stay { workload: 7, node: 55, to_ms: DAY_MS, ..Stay::default() },
    ];
    one_step.waiting = vec![Waiting { workload: 7, pods: 1, why: String::new() }];
    vec![
        ("nothing", Report::default()),
        ("no-runs", Report { duration_ms: DAY_MS, assumptions: assumptions(), ..small_frame() }),
        (
            "empty-run",
            Report { duration_ms: DAY_MS, runs: vec![empty_run.clone()], ..small_frame() },
        ),
        (
            "no-time",
            Report { nodes: vec![cpu_only.clone()], runs: vec![empty_run], ..small_frame() },
        ),
        (
            "no-gpus",
            Report {
                duration_ms: DAY_MS,
                nodes: vec![bare, cpu_only],
                runs: vec![one_step],
                ..small_frame()
            },
        ),
    ]
}

/// Names that would be markup or script if anybody took them for it.
pub(crate) fn hostile() -> Report {
    const NAME: &str = "<img src=x onerror=\"document.title='owned'\">";
    const END: &str = "</script><script>document.title='owned'</script><!--<script>";
    let mut report = small();
    report.title = format!("{NAME} & {END}");
    report.description = format!("{END} {{{{script}}}} \u{2028} {NAME} {}", "long".repeat(200));
    for node in &mut report.nodes {
        node.name = format!("{END}{}", node.name);
        node.pool = NAME.into();
    }
    for workload in &mut report.workloads {
        workload.name = format!("{NAME}{}", workload.name);
        workload.team = END.into();
        workload.class = format!("{}{NAME}", workload.class);
    }
    report.assumptions =
        vec![Assumption { name: NAME.into(), value: END.into(), source: "</style>".into() }];
    for run in &mut report.runs {
        run.name = NAME.into();
        run.setup = vec![(END.into(), NAME.into())];
        run.rejections = BTreeMap::from([(END.into(), 3)]);
        run.waiting = vec![Waiting { workload: 0, pods: 2, why: END.into() }];
        run.happenings.push(Happening { at_ms: DAY_MS, kind: NAME.into(), text: END.into() });
        run.layouts.push(LayoutChange {
            at_ms: 0,
            node: 0,
            gpu: 0,
            slices: vec![(NAME.into(), 0, 8)],
        });
    }
    report
}

fn node(name: String, pool: &str, zone: &str, product: &str, gib: u64, gpus: usize) -> NodeOutline {
    let numa = |socket| NumaOutline { socket, cpus: 48, memory_bytes: 512 << 30 };
    NodeOutline {
        name,
        pool: pool.into(),
        zone: zone.into(),
        numa: vec![numa(0), numa(1)],
        gpus: (0..gpus)
            .map(|g| GpuOutline {
                product: product.into(),
                numa: vec![2 * g / gpus],
                memory_bytes: gib << 30,
                units: if gib == 80 { 8 } else { 1 },
            })
            .collect(),
        microusd_per_hour: 3_000_000 * gpus as i64 + 1_000_000,
    }
}

fn workloads() -> Vec<WorkloadOutline> {
    let make = |kind: &str, namespace: &str, name: &str, team: &str, class: &str| WorkloadOutline {
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
        team: team.into(),
        class: class.into(),
    };
    vec![
        make("Deployment", "serving", "llm-chat", "assistant", "interactive"),
        make("Deployment", "serving", "bert-ranker", "search", "interactive"),
        make("Deployment", "serving", "speech-to-text", "voice", "interactive"),
        make("Deployment", "serving", "embed-docs", "search", "embedding"),
        make("Deployment", "serving", "embed-images", "photos", "embedding"),
        make("Job", "training", "nightly-finetune", "research", "batch"),
        make("Job", "training", "rank-distill", "search", "batch"),
        make("Job", "training", "eval-suite", "research", "batch"),
        make("arrivals", "lab", "notebook", "research", "experimentation"),
    ]
}

fn assumptions() -> Vec<Assumption> {
    let make = |name: &str, value: &str, source: &str| Assumption {
        name: name.into(),
        value: value.into(),
        source: source.into(),
    };
    vec![
        make(
            "Service time, aligned",
            "8.2 ms mean, 14.1 ms p99",
            "measured by the seed's authors, BERT-large on A100",
        ),
        make("Service time, misaligned", "10.7 ms mean, 23.8 ms p99", "the same"),
        make(
            "Price of a GPU hour",
            "$3.00 for A100, $5.00 for H100",
            "list prices of three clouds, November 2026",
        ),
    ]
}
