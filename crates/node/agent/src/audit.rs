//! The alignment of running pods with their GPUs. Pure: the machine, containers' cpusets, their devices and
//! the kubelet's state come in, findings go out.
//!
//! A GPU is local to its NUMA node or, if that node has no CPUs (or no memory), to the nearest nodes that have.
//! A container with a GPU is:
//! - aligned: its CPUs are local to its GPUs, each GPU has some of them, and its memory is local;
//! - misaligned: one of its exclusive CPUs is not local to any GPU, or a GPU has no local CPU, or its memory is
//!   elsewhere;
//! - floating: its CPUs are not exclusive, and only some are local;
//! - unknown: the data to decide it is missing.

mod advice;
mod holder;

use berth_host::Machine;
use berth_host::cgroup::{NodeMemory, Qos};
use berth_host::kubelet::{Configuration, CpuState};
use berth_model::alignment::Alignment;
use berth_model::idset::{CpuSet, IdSet};
use serde::{Deserialize, Serialize};

pub use advice::Advice;
use holder::{Holder, Pinning, holders};

/// With less memory than this, its location means nothing: libraries are wherever they were read first.
const MEMORY_BYTES_MIN: u64 = 256 << 20;
/// Percentage of memory that may be remote: nobody chooses where page cache is.
const REMOTE_PERCENT_MAX: u64 = 25;

/// The kubelet's configuration and state, as far as known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'a> {
    pub configuration: Option<&'a Configuration>,
    pub cpus: Option<&'a CpuState>,
}

#[derive(Clone, Debug)]
pub struct RunningPod {
    pub uid: String,
    pub qos: Qos,
    /// Including the sandbox.
    pub containers: Vec<RunningContainer>,
    pub devices: Vec<Held>,
}

/// A running container. Its name is unknown: cgroups do not have it.
#[derive(Clone, Debug, Default)]
pub struct RunningContainer {
    pub id: String,
    /// Effective cpuset.
    pub cpus: Option<CpuSet>,
    /// Effective NUMA nodes for memory.
    pub mems: Option<IdSet>,
    /// Location of its memory, as far as it was read.
    pub memory: Vec<NodeMemory>,
    pub pids: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DeviceKind {
    Gpu,
    /// A MIG instance.
    Slice,
    /// A share or replica of a GPU or slice.
    Share,
    /// A NIC or another device.
    #[default]
    Other,
}

impl DeviceKind {
    /// Whether it is a GPU or part of one.
    pub fn is_gpu(self) -> bool {
        self != Self::Other
    }
}

/// A device that a container holds, from the kubelet's checkpoint or podresources.
#[derive(Clone, Debug, Default)]
pub struct Held {
    pub container: String,
    /// Such as `nvidia.com/gpu`.
    pub resource: String,
    /// As set by the device plugin.
    pub id: String,
    pub kind: DeviceKind,
    /// Empty if unknown.
    pub numa: Vec<u32>,
    /// Whether the plugin reported a NUMA node to the kubelet, which does not align the device otherwise.
    pub has_topology: bool,
    /// Processes that use it, according to the driver.
    pub pids: Vec<u32>,
}

/// The alignment of a container or pod with its GPUs, and the evidence for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub alignment: Alignment,
    /// How far apart, in the firmware's measure (10 is local), if misaligned and the firmware says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<u32>,
    /// Why it is not aligned; empty if it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl Finding {
    const ALIGNED: Self =
        Self { alignment: Alignment::Aligned, distance: None, why: String::new() };

    pub(crate) fn floating() -> Self {
        let why =
            "its CPUs are not exclusive, and not all of them are local to its GPUs".to_owned();
        Self { alignment: Alignment::Floating, distance: None, why }
    }

    pub(crate) fn unknown(why: impl Into<String>) -> Self {
        Self { alignment: Alignment::Unknown, distance: None, why: why.into() }
    }

    /// Orders findings: the worst certain one is the greatest.
    fn weight(&self) -> u32 {
        match self.alignment {
            // Of two, the farther.
            Alignment::Misaligned => 1000 + self.distance.unwrap_or(0),
            Alignment::Unknown => 2,
            Alignment::Floating => 1,
            Alignment::Aligned => 0,
        }
    }
}

/// A container with a GPU, and its alignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerAudit {
    pub container: String,
    /// Effective cpuset.
    pub cpus: Option<String>,
    /// Whether the CPUs are exclusive; `None` if unknown.
    pub exclusive: Option<bool>,
    pub cpu_numa: Vec<u32>,
    /// Effective NUMA nodes for memory.
    pub mems: Option<String>,
    /// Location of its memory, as far as it was read.
    pub memory: Vec<NodeMemory>,
    pub gpu_numa: Vec<u32>,
    pub finding: Finding,
}

/// A pod with a GPU, and the worst finding of its containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodAudit {
    pub uid: String,
    pub qos: Qos,
    pub finding: Finding,
    /// Containers with GPUs.
    pub containers: Vec<ContainerAudit>,
    /// Changes that would make it reliably aligned.
    pub advice: Vec<Advice>,
}

/// `None` for a pod without a GPU.
pub fn audit(machine: &Machine, rules: Rules<'_>, pod: &RunningPod) -> Option<PodAudit> {
    let mut names: Vec<&str> = pod
        .devices
        .iter()
        .filter(|held| held.kind.is_gpu())
        .map(|held| held.container.as_str())
        .collect();
    names.sort_unstable();
    names.dedup();
    let containers: Vec<ContainerAudit> =
        names.iter().map(|name| container(machine, rules, pod, name)).collect();
    let worst = containers.iter().map(|one| &one.finding).max_by_key(|one| one.weight())?;
    let finding = worst.clone();
    let advice = match finding.alignment {
        Alignment::Aligned if containers.iter().all(|one| one.exclusive == Some(true)) => {
            Vec::new()
        }
        _ => advice::advice(machine, rules, pod, &containers),
    };
    Some(PodAudit { uid: pod.uid.clone(), qos: pod.qos, finding, containers, advice })
}

fn container(machine: &Machine, rules: Rules<'_>, pod: &RunningPod, name: &str) -> ContainerAudit {
    let devices: Vec<&Held> = pod.devices.iter().filter(|held| held.container == name).collect();
    let found = holders(machine, rules, pod, name, &devices);
    let mut audits: Vec<ContainerAudit> =
        found.holders.iter().map(|holder| one(machine, name, &devices, holder)).collect();
    audits.dedup_by(|one, other| one.finding.alignment == other.finding.alignment);
    match (audits.pop(), audits.is_empty(), found.why) {
        (Some(only), true, None) => only,
        (last, _, why) => {
            let why = why.unwrap_or_else(|| {
                "which of the pod's containers holds the GPU is unknown, and their alignment differs".into()
            });
            let gpu_numa = homes_of(&devices).0;
            let finding = Finding::unknown(why);
            match last {
                Some(last) => ContainerAudit { finding, cpus: None, exclusive: None, ..last },
                None => ContainerAudit {
                    container: name.to_owned(),
                    cpus: None,
                    exclusive: None,
                    cpu_numa: Vec::new(),
                    mems: None,
                    memory: Vec::new(),
                    gpu_numa,
                    finding,
                },
            }
        }
    }
}

/// NUMA nodes of GPUs, and whether all are known.
fn homes_of(devices: &[&Held]) -> (Vec<u32>, bool) {
    let gpus = devices.iter().filter(|held| held.kind.is_gpu());
    let mut nodes: Vec<u32> = gpus.clone().flat_map(|held| held.numa.iter().copied()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    (nodes, gpus.clone().all(|held| !held.numa.is_empty()))
}

fn one(machine: &Machine, name: &str, devices: &[&Held], holder: &Holder<'_>) -> ContainerAudit {
    let running = holder.container;
    let cpus = running.cpus.unwrap_or(CpuSet::EMPTY);
    let cpu_numa = machine.numa_of(&cpus);
    let finding = match running.cpus {
        None => Finding::unknown("its CPUs are unknown"),
        Some(_) => finding(machine, devices, holder, &cpu_numa),
    };
    ContainerAudit {
        container: name.to_owned(),
        cpus: running.cpus.map(|cpus| cpus.to_string()),
        exclusive: match holder.pinning {
            Pinning::Exclusive => Some(true),
            Pinning::Shared => Some(false),
            Pinning::Unknown => None,
        },
        cpu_numa,
        mems: running.mems.map(|mems| mems.to_string()),
        memory: running.memory.clone(),
        gpu_numa: homes_of(devices).0,
        finding,
    }
}

fn finding(machine: &Machine, devices: &[&Held], holder: &Holder<'_>, cpu_numa: &[u32]) -> Finding {
    let populated = machine.numa.iter().filter(|node| !node.cpus.is_empty()).count();
    if populated < 2 {
        return memory_finding(machine, devices, holder).unwrap_or(Finding::ALIGNED);
    }
    let mut far = Far::default();
    let mut all_home: Vec<u32> = Vec::new();
    for held in devices {
        let home = home(machine, &held.numa, |node| !machine_cpus(machine, node).is_empty());
        if held.kind.is_gpu() {
            all_home.extend(&home);
        }
        // None of its CPUs is local to the device.
        if !home.is_empty() && !home.iter().any(|node| cpu_numa.contains(node)) {
            let what = format!(
                "{} is on NUMA node {}, its CPUs on {}",
                named(held),
                list(&held.numa),
                list(cpu_numa)
            );
            far.add(machine, &held.numa, cpu_numa, what);
        }
    }
    let elsewhere: Vec<u32> =
        cpu_numa.iter().copied().filter(|node| !all_home.contains(node)).collect();
    let (gpu_numa, all_known) = homes_of(devices);
    if !elsewhere.is_empty() && all_known && holder.pinning == Pinning::Exclusive {
        let cpus = holder.container.cpus.unwrap_or(CpuSet::EMPTY);
        let there =
            elsewhere.iter().fold(CpuSet::EMPTY, |all, node| all | machine_cpus(machine, *node));
        let what = format!(
            "its CPUs {} are on NUMA node {}, its GPUs on {}",
            cpus & there,
            list(&elsewhere),
            list(&gpu_numa)
        );
        far.add(machine, &gpu_numa, &elsewhere, what);
    }
    if let Some(finding) = far.finding() {
        return finding;
    }
    if !all_known {
        let unknown = devices.iter().find(|held| held.kind.is_gpu() && held.numa.is_empty());
        let name = unknown.map_or_else(String::new, |held| named(held));
        return Finding::unknown(format!("the NUMA node of {name} is unknown"));
    }
    if !elsewhere.is_empty() {
        return match holder.pinning {
            Pinning::Unknown => Finding::unknown("whether its CPUs are exclusive is unknown"),
            _ => Finding::floating(),
        };
    }
    memory_finding(machine, devices, holder).unwrap_or(Finding::ALIGNED)
}

/// A finding from memory alone, if it is certainly remote.
fn memory_finding(machine: &Machine, devices: &[&Held], holder: &Holder<'_>) -> Option<Finding> {
    let has_memory = |node: u32| machine.node(node).is_some_and(|node| node.memory_bytes > 0);
    let (gpu_numa, all_known) = homes_of(devices);
    if !all_known || machine.numa.iter().filter(|node| node.memory_bytes > 0).count() < 2 {
        return None;
    }
    let home = home(machine, &gpu_numa, has_memory);
    let mut far = Far::default();
    let away = |node: u32| !home.contains(&node);
    if let Some(mems) = holder.container.mems {
        let mems: Vec<u32> = mems.iter().filter_map(|id| u32::try_from(id).ok()).collect();
        if !mems.is_empty() && mems.iter().all(|node| away(*node)) {
            let what = format!(
                "its memory may only come from NUMA node {}, its GPUs are on {}",
                list(&mems),
                list(&gpu_numa)
            );
            far.add(machine, &gpu_numa, &mems, what);
        }
    }
    let memory = &holder.container.memory;
    let sum = |wanted: &dyn Fn(u32) -> bool| {
        let chosen = memory.iter().filter(|one| wanted(one.node));
        chosen.fold(0u64, |sum, one| sum.saturating_add(one.bytes))
    };
    // Memory on a node without CPUs (HBM, or a GPU's own) was placed there on purpose.
    let on_cpus = |node: u32| !machine_cpus(machine, node).is_empty();
    let all = sum(&|_| true);
    let remote = sum(&|node| away(node) && on_cpus(node));
    if all >= MEMORY_BYTES_MIN && remote > all / 100 * REMOTE_PERCENT_MAX {
        let nodes: Vec<u32> = memory
            .iter()
            .map(|one| one.node)
            .filter(|node| away(*node) && on_cpus(*node))
            .collect();
        let percent = u128::from(remote) * 100 / u128::from(all.max(1));
        let what = format!(
            "{percent} % of its memory is on NUMA node {}, its GPUs are on {}",
            list(&nodes),
            list(&gpu_numa)
        );
        far.add(machine, &gpu_numa, &nodes, what);
    }
    far.finding()
}

/// Devices, CPUs and memory that are not local, with the largest distance.
#[derive(Default)]
struct Far {
    distance: Option<u32>,
    why: Vec<String>,
}

impl Far {
    fn add(&mut self, machine: &Machine, from: &[u32], to: &[u32], why: String) {
        let pairs = from.iter().flat_map(|one| to.iter().map(move |other| (*one, *other)));
        let farthest = pairs.filter_map(|(one, other)| machine.distance(one, other)).max();
        self.distance = self.distance.max(farthest);
        self.why.push(why);
    }

    fn finding(self) -> Option<Finding> {
        let Self { distance, why } = self;
        let why = why.join("; ");
        (!why.is_empty()).then_some(Finding { alignment: Alignment::Misaligned, distance, why })
    }
}

fn machine_cpus(machine: &Machine, node: u32) -> CpuSet {
    machine.node(node).map_or(CpuSet::EMPTY, |node| node.cpus)
}

/// The nodes that have what is wanted, or the nearest that have.
fn home(machine: &Machine, nodes: &[u32], has: impl Fn(u32) -> bool) -> Vec<u32> {
    let mut found = Vec::new();
    for node in nodes {
        if has(*node) {
            found.push(*node);
            continue;
        }
        let others = machine.numa.iter().map(|other| other.id).filter(|other| has(*other));
        let distances: Vec<(u32, u32)> =
            others.filter_map(|other| Some((machine.distance(*node, other)?, other))).collect();
        let nearest = distances.iter().map(|(distance, _)| *distance).min();
        found.extend(
            distances.iter().filter(|(far, _)| Some(*far) == nearest).map(|(_, other)| *other),
        );
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn named(held: &Held) -> String {
    format!("{} {}", held.resource, held.id)
}

fn list(nodes: &[u32]) -> String {
    nodes.iter().map(|node| *node as usize).collect::<IdSet>().to_string()
}
