//! Measures the kubelet model: how long one question and one admission take.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use berth_kubelet::{
    CpuManagerPolicy, CpuOption, CpuOptions, Kubelet, KubeletConfig, MemoryManagerPolicy,
    PodDemand, ReservedCpus, ReservedMemory, TopologyPolicy, TopologyScope,
};
use berth_model::idset::CpuSet;
use berth_model::resource::MemoryKind;
use berth_testkit::node::{RegularMachine, pod, spread_devices};

const SAMPLES: usize = 20_000;
const WARM_UP: usize = 2_000;

/// What `would_admit` is to stay under: NUMA nodes, nanoseconds of the median.
const AIMS: [(usize, u64); 2] = [(2, 1_000), (8, 20_000)];

/// A pod, and what is on the node when it is asked about.
struct Question {
    name: &'static str,
    policy: TopologyPolicy,
    option: CpuOption,
    limits: [(&'static str, &'static str); 4],
    filled: bool,
}

const GPU: &str = "nvidia.com/gpu";
const NIC: &str = "rdma/hca";

const QUESTIONS: [Question; 9] = [
    Question {
        name: "1 GPU, aligned",
        option: CpuOption::FullPcpusOnly,
        policy: TopologyPolicy::SingleNumaNode,
        limits: [("cpu", "4"), ("memory", "16Gi"), (GPU, "1"), (NIC, "1")],
        filled: false,
    },
    Question {
        name: "1 GPU, node half full",
        option: CpuOption::FullPcpusOnly,
        policy: TopologyPolicy::Restricted,
        limits: [("cpu", "4"), ("memory", "16Gi"), (GPU, "1"), (NIC, "1")],
        filled: true,
    },
    Question {
        name: "all GPUs, spanning",
        option: CpuOption::FullPcpusOnly,
        policy: TopologyPolicy::Restricted,
        limits: [("cpu", "120"), ("memory", "500Gi"), (GPU, "8"), (NIC, "8")],
        filled: false,
    },
    Question {
        name: "6 GPUs, rejected",
        option: CpuOption::FullPcpusOnly,
        policy: TopologyPolicy::SingleNumaNode,
        limits: [("cpu", "8"), ("memory", "32Gi"), (GPU, "6"), (NIC, "1")],
        filled: true,
    },
    Question {
        name: "best effort, aligned",
        option: CpuOption::FullPcpusOnly,
        policy: TopologyPolicy::BestEffort,
        limits: [("cpu", "4"), ("memory", "16Gi"), (GPU, "1"), (NIC, "1")],
        filled: false,
    },
    Question {
        name: "best effort, misaligned",
        option: CpuOption::FullPcpusOnly,
        policy: TopologyPolicy::BestEffort,
        limits: [("cpu", "20"), ("memory", "64Gi"), (GPU, "3"), (NIC, "3")],
        filled: true,
    },
    Question {
        name: "distributed, one node",
        option: CpuOption::DistributeCpusAcrossNuma,
        policy: TopologyPolicy::Restricted,
        limits: [("cpu", "4"), ("memory", "16Gi"), (GPU, "1"), (NIC, "1")],
        filled: false,
    },
    Question {
        name: "distributed, all nodes",
        option: CpuOption::DistributeCpusAcrossNuma,
        policy: TopologyPolicy::Restricted,
        limits: [("cpu", "120"), ("memory", "500Gi"), (GPU, "8"), (NIC, "8")],
        filled: false,
    },
    Question {
        name: "distributed, odd number",
        option: CpuOption::DistributeCpusAcrossNuma,
        policy: TopologyPolicy::None,
        limits: [("cpu", "69"), ("memory", "16Gi"), (GPU, "1"), (NIC, "1")],
        filled: false,
    },
];

/// Prints median and 99th percentile of `would_admit` and `admit` for each machine and question.
pub(crate) fn run() -> Result<()> {
    println!(
        "{:<6} {:<26} {:>8} {:>16} {:>16}",
        "nodes", "question", "verdict", "would_admit ns", "admit ns"
    );
    println!("{:<42} {:>7} {:>8} {:>7} {:>8}", "", "median", "p99", "median", "p99");
    let mut worst: Vec<(usize, u64, u64)> = Vec::new();
    for (nodes, sockets) in [(1, 1), (2, 2), (4, 2), (8, 2)] {
        for question in &QUESTIONS {
            let (mut kubelet, demand) = scene(nodes, sockets, question)?;
            let verdict = kubelet.would_admit(&demand);
            let asked = sample(|| {
                black_box(kubelet.would_admit(black_box(&demand)));
            });
            let mut admitted = Vec::with_capacity(SAMPLES);
            for round in 0..WARM_UP + SAMPLES {
                let start = Instant::now();
                let _ = black_box(kubelet.admit("pod", black_box(&demand)));
                if round >= WARM_UP {
                    admitted.push(start.elapsed().as_nanos() as u64);
                }
                kubelet.remove("pod");
            }
            let (ask_median, ask_p99) = percentiles(asked);
            let (admit_median, admit_p99) = percentiles(admitted);
            let answer = if verdict.admits() { "admit" } else { "reject" };
            println!(
                "{nodes:<6} {:<26} {answer:>8} {ask_median:>7} {ask_p99:>8} {admit_median:>7} {admit_p99:>8}",
                question.name
            );
            worst.push((nodes, ask_median, ask_p99));
        }
    }
    for (nodes, limit_ns) in AIMS {
        let of_nodes = worst.iter().filter(|(of, _, _)| *of == nodes);
        let (median, p99) = of_nodes.fold((0, 0), |w, (_, m, p)| (w.0.max(*m), w.1.max(*p)));
        let met = if median < limit_ns { "met" } else { "missed" };
        println!(
            "would_admit on {nodes} NUMA nodes: worst median {median} ns, worst p99 {p99} ns; \
             aim under {limit_ns} ns: {met}"
        );
    }
    Ok(())
}

fn scene(nodes: usize, sockets: usize, question: &Question) -> Result<(Kubelet, PodDemand)> {
    let machine = RegularMachine {
        sockets,
        numa_per_socket: nodes / sockets,
        cores_per_numa: 64 / nodes,
        threads: 2,
        memory_bytes: (512 << 30) / nodes as u64,
    }
    .build()?;
    let config = KubeletConfig {
        topology_policy: question.policy,
        topology_scope: TopologyScope::Container,
        cpu_manager: CpuManagerPolicy::Static {
            options: CpuOptions::from_iter([question.option]),
            reserved: ReservedCpus::Explicit(CpuSet::from_iter([0, 64])),
        },
        memory_manager: MemoryManagerPolicy::Static {
            reserved: vec![ReservedMemory { numa: 0, kind: MemoryKind::Ordinary, bytes: 1 << 30 }],
        },
        ..KubeletConfig::default()
    };
    let version = config.version;
    let pools = vec![spread_devices(GPU, 8, &machine), spread_devices(NIC, 8, &machine)];
    let mut kubelet = Kubelet::new(machine, config, pools)?;
    if question.filled {
        // One GPU of every NUMA node, with a share of its CPUs and memory.
        for index in 0..nodes {
            let cpus = (32 / nodes * 2).max(2).to_string();
            let limits = [("cpu", cpus.as_str()), ("memory", "8Gi"), (GPU, "1"), (NIC, "1")];
            let filler = PodDemand::new(&pod("filler", &limits)?, version)?;
            let _ = kubelet.admit(&format!("filler-{index}"), &filler);
        }
    }
    let demand = PodDemand::new(&pod("asked", &question.limits)?, version)?;
    Ok((kubelet, demand))
}

/// Nanoseconds of each call. The clock's own cost, some 20 ns, is part of them.
fn sample(mut call: impl FnMut()) -> Vec<u64> {
    (0..WARM_UP).for_each(|_| call());
    (0..SAMPLES)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_nanos() as u64
        })
        .collect()
}

fn percentiles(mut samples: Vec<u64>) -> (u64, u64) {
    samples.sort_unstable();
    let at =
        |share: f64| samples.get((samples.len() as f64 * share) as usize).copied().unwrap_or(0);
    (at(0.5), at(0.99))
}
