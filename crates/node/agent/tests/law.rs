//! Audits of random pods match the truth: no misaligned pod is missed, no aligned one is reported.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;

use berth_agent::audit::Finding;
use berth_host::synthetic::{self, CgroupVersion, Driver, Layout, Runtime, SyntheticMachine};
use berth_model::alignment::Alignment;
use berth_model::idset::CpuSet;

mod support;
use support::{Node, Pod, divide, gpu_uuid, slice_uuid, uid};

type Device = (&'static str, &'static str, String, Option<u32>);

/// Deterministic pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % sides
    }
}

fn some_cpus(machine: &SyntheticMachine, nodes: &[u32], dice: &mut Dice) -> CpuSet {
    let mut set = CpuSet::EMPTY;
    for node in nodes {
        let position = machine.numa_ids.iter().position(|id| id == node).unwrap();
        let all: Vec<usize> =
            machine.cpus_of_node(position).iter().filter(|cpu| *cpu > 0).collect();
        for _ in 0..=dice.roll(6) {
            set.insert(all[dice.roll(all.len())]);
        }
    }
    set
}

fn text(nodes: &[u32]) -> String {
    nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Devices with their NUMA nodes.
fn devices(node: &Node, number: usize, dice: &mut Dice) -> (Vec<Device>, Vec<u32>) {
    let gpus = node.machine.devices.iter().filter(|one| one.ids.0 == 0x10de);
    let gpus: Vec<u32> = gpus.map(|one| one.numa as u32).collect();
    let mut devices = Vec::new();
    let mut home: Vec<u32> = Vec::new();
    for _ in 0..=dice.roll(3) {
        let gpu = dice.roll(gpus.len());
        let told = (dice.roll(2) == 0).then_some(gpus[gpu]);
        let (resource, id) = match (node.gpus.gpus[gpu].instances.is_empty(), dice.roll(3)) {
            (true, 0) => ("nvidia.com/gpu", format!("{}::{number}", gpu_uuid(gpu))),
            (true, _) => ("nvidia.com/gpu", gpu_uuid(gpu)),
            (false, 0) => {
                ("nvidia.com/mig-1g.10gb", format!("{}::3", slice_uuid(gpu, dice.roll(7))))
            }
            (false, _) => ("nvidia.com/mig-1g.10gb", slice_uuid(gpu, dice.roll(7))),
        };
        devices.push(("server", resource, id, told));
        home.push(gpus[gpu]);
    }
    home.sort_unstable();
    home.dedup();
    (devices, home)
}

/// A pod, and its true alignment by construction.
fn pod(node: &Node, number: usize, dice: &mut Dice) -> (Pod, &'static str) {
    let machine = &node.machine;
    let (devices, home) = devices(node, number, dice);
    let away: Vec<u32> =
        machine.numa_ids.iter().copied().filter(|node| !home.contains(node)).collect();
    let with_memory = |nodes: &[u32]| -> Vec<u32> {
        nodes.iter().copied().filter(|node| !machine.without_memory.contains(node)).collect()
    };
    let near = some_cpus(machine, &home, dice).to_string();
    let far = |dice: &mut Dice| away[dice.roll(away.len())];
    let at_home = with_memory(&home);
    let all_at_home = at_home.len() == home.len();
    let gib = |gib: u64| gib << 18;
    let kind = if away.is_empty() { dice.roll(2) } else { dice.roll(7) };
    let (cpus, mems, pages, truth) = match kind {
        0 => (near, String::new(), vec![], "aligned"),
        1 if all_at_home => (near, text(&at_home), vec![(home[0], gib(1))], "aligned"),
        1 => (near, String::new(), vec![], "aligned"),
        2 => (String::new(), String::new(), vec![], "floating"),
        // All CPUs elsewhere, or some.
        3 => (
            some_cpus(machine, &[far(dice)], dice).to_string(),
            String::new(),
            vec![],
            "misaligned",
        ),
        4 => {
            let mut nodes = home.clone();
            nodes.push(far(dice));
            (some_cpus(machine, &nodes, dice).to_string(), String::new(), vec![], "misaligned")
        }
        // One of several GPUs has no local CPU.
        5 if home.len() > 1 => {
            (some_cpus(machine, &home[1..], dice).to_string(), String::new(), vec![], "misaligned")
        }
        _ => {
            let there = with_memory(&away);
            if there.is_empty() || !all_at_home {
                (near, String::new(), vec![], "aligned")
            } else if dice.roll(2) == 0 {
                (near, text(&there), vec![], "misaligned")
            } else {
                // Mostly elsewhere is misaligned, a little of it is page cache.
                let much = dice.roll(2) == 0;
                let pages = vec![(home[0], gib(8)), (there[0], gib(if much { 8 } else { 1 }))];
                (near, String::new(), pages, if much { "misaligned" } else { "aligned" })
            }
        }
    };
    let mut containers = vec![("server", cpus, mems, pages)];
    // Containers without a GPU do not matter.
    if !away.is_empty() && dice.roll(2) == 0 {
        let cpus = some_cpus(machine, &[far(dice)], dice).to_string();
        if cpus != containers[0].1 {
            containers.insert(dice.roll(2), ("sidecar", cpus, text(&with_memory(&away)), vec![]));
        }
    }
    let qos = if truth == "floating" { "burstable" } else { "" };
    (Pod { uid: uid(number), qos, containers, devices, stale: false }, truth)
}

fn check(
    machine: SyntheticMachine,
    layout: Layout,
    seed: u64,
    pods: usize,
) -> BTreeMap<&'static str, usize> {
    let mut dice = Dice(seed);
    let mut node = Node::new(machine);
    node.layout = layout;
    for gpu in &mut node.gpus.gpus {
        if dice.roll(2) == 0 {
            divide(gpu, 7);
        }
    }
    let mut truths = Vec::new();
    for number in 0..pods {
        let (pod, truth) = pod(&node, number, &mut dice);
        truths.push((pod.uid.clone(), truth));
        node.pods.push(pod);
    }
    let report = node.report();
    let found: Vec<(String, &Finding)> =
        report.audits().map(|audit| (audit.uid.clone(), &audit.finding)).collect();
    assert_eq!(found.len(), pods, "every pod with a GPU is judged");
    let mut counts = BTreeMap::new();
    for ((known, truth), (uid, finding)) in truths.iter().zip(&found) {
        let audit = report.audits().find(|audit| audit.uid == *uid).unwrap();
        assert_eq!((known, *truth), (uid, finding.alignment.as_str()), "{audit:#?}");
        if finding.alignment == Alignment::Misaligned {
            assert!(finding.distance.is_some_and(|distance| distance > 10), "{finding:?}");
            assert!(!audit.advice.is_empty());
        }
        *counts.entry(*truth).or_insert(0) += 1;
    }
    counts
}

#[test]
fn audits_match_the_truth_on_all_machines_and_layouts() {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let machines = [
        synthetic::epyc_9654(1),
        synthetic::epyc_9654(2),
        synthetic::epyc_9654(4),
        synthetic::epyc_7763(4),
        synthetic::xeon_8480_snc2(),
        synthetic::with_holes(),
    ];
    let layouts = [
        (CgroupVersion::V2, Driver::Systemd, Runtime::Containerd),
        (CgroupVersion::V2, Driver::Systemd, Runtime::Crio),
        (CgroupVersion::V1, Driver::Cgroupfs, Runtime::Containerd),
    ];
    for (seed, machine) in (1u64..).zip(machines) {
        let (version, driver, runtime) = layouts[seed as usize % layouts.len()];
        let layout = Layout { version, driver, runtime };
        for (truth, count) in check(machine, layout, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 150)
        {
            *counts.entry(truth).or_default() += count;
        }
    }
    assert_eq!(counts.len(), 3, "all verdicts came up: {counts:?}");
    assert!(counts["misaligned"] > 200, "{counts:?}");
}
