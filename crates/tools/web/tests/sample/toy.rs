//! First fit in units of GPUs, as simple as a scheduler can be.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use berth_sim::report::{
    Alignment, ClassReport, GpuPart, Happening, LayoutChange, Report, Run, Series, ServiceReport,
    Stay, Summary, TeamReport, Waiting,
};

use super::{DAY_MS, Dice};

const HOUR_MS: i64 = 3_600_000;

/// How pods are placed.
pub(crate) struct Setup {
    /// Its name.
    pub(crate) name: &'static str,
    /// Whether pods get slices, or whole GPUs whatever they need.
    pub(crate) slices: bool,
    /// How many in a hundred get CPUs beside their GPU.
    pub(crate) aligned_percent: u64,
    /// One of so many pods is rejected once before it starts.
    pub(crate) patience: u64,
}

/// A pod that arrives.
struct Arrival {
    at_ms: i64,
    for_ms: i64,
    workload: usize,
    gpus: usize,
    units: u8,
    cpus: usize,
}

/// Pods in the order in which they arrive.
pub(crate) struct Arrivals(Vec<Arrival>);

impl Arrivals {
    /// About as many as asked for.
    pub(crate) fn draw(report: &Report, pods: usize, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let end = report.duration_ms;
        let mut all: Vec<Arrival> = (0..pods)
            .map(|_| {
                let workload = dice.below(report.workloads.len() as u64) as usize;
                let serving = workload < 5;
                let day = dice.below((end / DAY_MS) as u64) as i64 * DAY_MS;
                // Serving by day, batch by night.
                let hour = if serving { 7 + dice.below(9) } else { (19 + dice.below(9)) % 24 };
                let at_ms = day + hour as i64 * HOUR_MS + dice.below(HOUR_MS as u64) as i64;
                Arrival {
                    at_ms,
                    for_ms: HOUR_MS * (3 + dice.below(14)) as i64,
                    workload,
                    gpus: if workload >= 5 && dice.below(3) == 0 { 2 << dice.below(2) } else { 1 },
                    units: if serving { 1 << dice.below(3) } else { 8 },
                    cpus: 4 << dice.below(2),
                }
            })
            .collect();
        all.sort_by_key(|arrival| arrival.at_ms);
        Self(all)
    }
}

/// What is taken of a node.
struct Books {
    /// A bit per unit of each GPU.
    taken: Vec<u8>,
    cpus_free: Vec<usize>,
}

/// The report of one setup.
pub(crate) fn run(report: &Report, arrivals: &Arrivals, setup: &Setup) -> Run {
    let mut dice = Dice::new(11);
    let mut books: Vec<Books> = report
        .nodes
        .iter()
        .map(|node| Books {
            taken: vec![0; node.gpus.len()],
            cpus_free: node.numa.iter().map(|numa| numa.cpus).collect(),
        })
        .collect();
    let mut run = Run { name: setup.name.into(), ..Run::default() };
    let mut leaving: BinaryHeap<Reverse<(i64, usize)>> = BinaryHeap::new();
    let mut turned_away = 0;
    for (number, arrival) in arrivals.0.iter().enumerate() {
        while let Some(&Reverse((at, stay))) = leaving.peek()
            && at <= arrival.at_ms
        {
            leaving.pop();
            give_back(&mut books, &run.stays[stay]);
        }
        let Some(mut stay) = place(report, &mut books, arrival, setup, &mut dice) else {
            turned_away += 1;
            continue;
        };
        stay.pod = number as u64;
        stay.from_ms = arrival.at_ms;
        stay.to_ms = (arrival.at_ms + arrival.for_ms).min(report.duration_ms);
        divide(&mut run, report, &stay, setup);
        leaving.push(Reverse((stay.to_ms, run.stays.len())));
        run.stays.push(stay);
    }
    run.setup = vec![
        ("scheduler".into(), setup.name.into()),
        ("kubelet".into(), if setup.slices { "single-numa-node" } else { "best-effort" }.into()),
        ("GPUs".into(), if setup.slices { "MIG slices" } else { "whole" }.into()),
        ("Kubernetes".into(), "1.36".into()),
    ];
    figures(report, &mut run, setup, turned_away);
    run
}

fn place(
    report: &Report,
    books: &mut [Books],
    arrival: &Arrival,
    setup: &Setup,
    dice: &mut Dice,
) -> Option<Stay> {
    let nodes = books.len();
    let start = if setup.slices { 0 } else { dice.below(nodes as u64) as usize };
    for n in (0..nodes).map(|i| (start + i) % nodes) {
        let outline = &report.nodes[n];
        let book = &mut books[n];
        let mut parts = Vec::new();
        for (g, gpu) in outline.gpus.iter().enumerate() {
            let units = if setup.slices { arrival.units.min(gpu.units) } else { gpu.units };
            if parts.len() == arrival.gpus {
                break;
            }
            let mask = ((1_u16 << units) - 1) as u8;
            let first = (0..gpu.units).step_by(usize::from(units));
            if let Some(first) =
                first.into_iter().find(|first| book.taken[g] & (mask << first) == 0)
            {
                let milli = 1_000 * u16::from(units) / u16::from(gpu.units);
                parts.push(GpuPart { gpu: g, first, units, milli });
            }
        }
        if parts.len() < arrival.gpus {
            continue;
        }
        let near = outline.gpus[parts[0].gpu].numa[0];
        let aligned = dice.below(100) < setup.aligned_percent;
        let floating = !aligned && dice.below(3) == 0;
        let numa = if aligned { near } else { 1 - near };
        if book.cpus_free[numa] < arrival.cpus {
            continue;
        }
        let mut cpus = vec![0; outline.numa.len()];
        cpus[numa] = arrival.cpus;
        book.cpus_free[numa] -= if floating { 0 } else { arrival.cpus };
        for part in &parts {
            book.taken[part.gpu] |= (((1_u16 << part.units) - 1) as u8) << part.first;
        }
        let alignment = match (aligned, floating) {
            (true, _) => Alignment::Aligned,
            (false, true) => Alignment::Floating,
            (false, false) => Alignment::Misaligned,
        };
        let cpus = if floating { Vec::new() } else { cpus };
        return Some(Stay {
            workload: arrival.workload,
            node: n,
            gpus: parts,
            cpus,
            alignment: Some(alignment),
            ..Stay::default()
        });
    }
    None
}

fn give_back(books: &mut [Books], stay: &Stay) {
    let book = &mut books[stay.node];
    for part in &stay.gpus {
        book.taken[part.gpu] &= !((((1_u16 << part.units) - 1) as u8) << part.first);
    }
    for (free, cpus) in book.cpus_free.iter_mut().zip(&stay.cpus) {
        *free += cpus;
    }
}

/// A GPU of which a slice is taken is divided into such slices from then on.
fn divide(run: &mut Run, report: &Report, stay: &Stay, setup: &Setup) {
    if !setup.slices {
        return;
    }
    for part in &stay.gpus {
        let gpu = &report.nodes[stay.node].gpus[part.gpu];
        let profile = match part.units {
            1 => "1g.10gb",
            2 => "2g.20gb",
            4 => "3g.40gb",
            _ => "",
        };
        let slices: Vec<(String, u8, u8)> = match profile {
            "" => Vec::new(),
            _ => (0..gpu.units)
                .step_by(usize::from(part.units))
                .map(|first| (profile.into(), first, part.units))
                .collect(),
        };
        let change = LayoutChange { at_ms: stay.from_ms, node: stay.node, gpu: part.gpu, slices };
        let busy = run.stays.iter().rev().take(400).any(|other| {
            other.node == stay.node
                && other.to_ms > stay.from_ms
                && other.gpus.iter().any(|p| p.gpu == part.gpu)
        });
        if !busy {
            run.layouts.push(change);
        }
    }
}

fn figures(report: &Report, run: &mut Run, setup: &Setup, turned_away: u64) {
    let gpus: usize = report.nodes.iter().map(|node| node.gpus.len()).sum();
    let steps = (report.duration_ms / HOUR_MS) as usize;
    let mut allocated = vec![0.0_f64; steps];
    let mut misaligned = vec![0_u32; steps];
    for stay in &run.stays {
        let size: f64 = stay.gpus.iter().map(|part| f64::from(part.milli) / 1_000.0).sum();
        for step in stay.from_ms / HOUR_MS..(stay.to_ms / HOUR_MS).min(steps as i64) {
            allocated[step as usize] += size;
            misaligned[step as usize] += u32::from(stay.alignment == Some(Alignment::Misaligned));
        }
    }
    let mut dice = Dice::new(5);
    let busy = if setup.slices { 0.88 } else { 0.52 };
    let wave = |step: usize| 1.0 + 0.08 * f64::from((step % 24) as u32 % 12) / 12.0;
    let series = Series {
        step_ms: HOUR_MS,
        gpus: (0..steps)
            .map(|s| (gpus - if s / 24 == 40 { 8.min(gpus) } else { 0 }) as f32)
            .collect(),
        allocated: allocated.iter().map(|v| *v as f32).collect(),
        utilised: allocated.iter().map(|v| (v * (busy + 0.06 * dice.part())) as f32).collect(),
        fragmented: allocated.iter().map(|v| (v * (1.0 - busy) * 0.3) as f32).collect(),
        waiting: (0..steps).map(|_| dice.below(setup.patience) as f32).collect(),
        rejections: (0..steps).map(|_| u32::from(dice.below(40) < setup.patience / 4)).collect(),
        preemptions: (0..steps).map(|_| u32::from(dice.below(30) == 0)).collect(),
        p99_us: (0..steps)
            .map(|s| {
                let late = 9_700.0 * f64::from(misaligned[s].min(12)) / 12.0;
                ((14_100.0 + late) * wave(s) + 300.0 * dice.part()) as u32
            })
            .collect(),
    };
    run.summary = summary(run, &series, gpus, turned_away);
    run.services = services(&series, setup);
    run.classes = classes(setup);
    run.teams = teams(report, run);
    run.series = series;
    run.happenings = happenings(setup);
    if !setup.slices {
        run.rejections = BTreeMap::from([
            ("TopologyAffinityError".into(), 212),
            ("UnexpectedAdmissionError".into(), 17),
        ]);
        run.waiting = vec![Waiting {
            workload: 5,
            pods: turned_away,
            why: "No node has 4 GPUs on one socket: 3 nodes have 5 free, split 3 + 2. Moving eval-suite-412 would help.".into(),
        }];
    }
}

fn mean(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len().max(1) as f64
}

fn summary(run: &Run, series: &Series, gpus: usize, turned_away: u64) -> Summary {
    let all = gpus.max(1) as f64;
    let aligned =
        run.stays.iter().filter(|stay| stay.alignment == Some(Alignment::Aligned)).count();
    let mut p99 = series.p99_us.clone();
    p99.sort_unstable();
    Summary {
        gpus: gpus as f64,
        allocated: mean(&series.allocated) / all,
        utilised: mean(&series.utilised) / all,
        fragmented: mean(&series.fragmented) / all,
        requests: 812_345_678,
        requests_lost: turned_away * 31,
        p50_us: (p99[p99.len() / 2] / 2 + 1_100).into(),
        p99_us: p99[p99.len() * 9 / 10].into(),
        breaches: if p99[p99.len() * 9 / 10] > 20_000 { 12 } else { 0 },
        above_ms: if p99[p99.len() * 9 / 10] > 20_000 { 7_200_000 } else { 0 },
        aligned: aligned as f64 / run.stays.len().max(1) as f64,
        pods: run.stays.len() as u64 + turned_away,
        started: run.stays.len() as u64,
        waiting: turned_away,
        rejections: series.rejections.iter().map(|n| u64::from(*n)).sum(),
        preemptions: series.preemptions.iter().map(|n| u64::from(*n)).sum(),
        lost: 4,
        moves: 2,
        out_of_memory: 0,
        batch_gpu_hours: mean(&series.utilised) * 1_234.0,
        wasted_gpu_hours: 12.5,
        jobs: 480,
        cost_microusd: 311_040_000_000,
        idle_microusd: (311_040_000_000.0 * (1.0 - mean(&series.allocated) / all)) as i64,
        microusd_per_million_requests: (143_000_000.0 * mean(&series.allocated) / all) as i64,
        microusd_per_busy_gpu_hour: (6_480_000.0 / mean(&series.utilised).max(1.0)) as i64,
        decisions: 40_000,
    }
}

fn services(series: &Series, setup: &Setup) -> Vec<ServiceReport> {
    (0..5)
        .map(|workload| {
            let factor = 10 + 7 * workload as u32;
            let p99_us_series: Vec<u32> =
                series.p99_us.iter().map(|p99| p99 * factor / 10).collect();
            let worst = u64::from(p99_us_series.iter().copied().max().unwrap_or(0));
            let objective_us = if workload == 4 { 0 } else { 2_000 * u64::from(factor) };
            ServiceReport {
                workload,
                requests: 90_000_000 / (workload as u64 + 1),
                requests_lost: if setup.slices { 0 } else { 41 * workload as u64 },
                p50_us: worst / 3,
                p99_us: worst * 9 / 10,
                objective_us,
                breaches: if setup.slices { 0 } else { 3 },
                above_ms: if setup.slices { 0 } else { 1_800_000 },
                replicas: 5.5,
                aligned: setup.aligned_percent as f64 / 100.0,
                p99_us_series,
            }
        })
        .collect()
}

fn classes(setup: &Setup) -> Vec<ClassReport> {
    ["interactive", "embedding", "batch", "experimentation"]
        .iter()
        .enumerate()
        .map(|(i, class)| {
            let unit = setup.patience as i64 * 2_000 * (1 << (3 * i));
            ClassReport {
                class: (*class).into(),
                pods: 700,
                started: 690,
                wait_p50_ms: unit / 10,
                wait_p90_ms: unit,
                wait_p99_ms: unit * 3,
                wait_max_ms: unit * 7,
                preempted: 10 * i as u64,
            }
        })
        .collect()
}

fn teams(report: &Report, run: &Run) -> Vec<TeamReport> {
    let mut by_team: BTreeMap<&str, f64> = BTreeMap::new();
    for stay in &run.stays {
        let hours = (stay.to_ms - stay.from_ms) as f64 / HOUR_MS as f64;
        let size: f64 = stay.gpus.iter().map(|part| f64::from(part.milli) / 1_000.0).sum();
        *by_team.entry(&report.workloads[stay.workload].team).or_default() += hours * size;
    }
    by_team
        .into_iter()
        .map(|(team, gpu_hours)| TeamReport {
            team: team.into(),
            gpu_hours,
            busy_gpu_hours: gpu_hours * 0.7,
            cost_microusd: (gpu_hours * 3_000_000.0) as i64,
        })
        .collect()
}

fn happenings(setup: &Setup) -> Vec<Happening> {
    let make = |day: i64, kind: &str, text: &str| Happening {
        at_ms: day * DAY_MS + 5 * HOUR_MS,
        kind: kind.into(),
        text: text.into(),
    };
    let mut all = vec![
        make(40, "failure", "gpu-h100-4 is lost with 8 GPUs; 9 pods end"),
        make(41, "recovery", "gpu-h100-4 is back"),
    ];
    if !setup.slices {
        all.extend([3, 11, 12, 13, 29, 52, 63, 64, 80].map(|day| {
            make(day, "breach", "serving/llm-chat: p99 23.4 ms, objective 20 ms, for 42 min")
        }));
        all.push(make(20, "out-of-memory", "training/eval-suite-214 needs 34 GiB, has 20 GiB"));
        for i in 0..150 {
            all.push(make(
                i / 2,
                "rejection",
                "nightly-finetune-17 on gpu-a100-1: TopologyAffinityError",
            ));
        }
    }
    all.push(make(70, "preemption", "eval-suite-1802 makes room for llm-chat-1811 on gpu-a100-0"));
    all.sort_by_key(|happening| happening.at_ms);
    all
}
