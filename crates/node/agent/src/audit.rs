//! Whether what running pods really have lies together.
//!
//! Owns the verdict on each pod with a GPU. It is pure: what containers may use, what devices they hold
//! and what the kubelet says comes in, verdicts go out. A pod is accused only of what is so, never of
//! what could be: CPUs that are not its own may be near or far, and that is `Floating`.
//!
//! A GPU is at home on its NUMA node, or, where that node has no CPUs (or no memory), on the nearest that
//! have. Then for each container with a GPU:
//! - aligned: its CPUs are at home of its GPUs, each GPU has some of them, and so for memory;
//! - misaligned: a CPU of its own is at no GPU's home, or a GPU has no CPU at home, or its memory is
//!   elsewhere;
//! - floating: its CPUs are not its own, and only some of them are at home;
//! - unknown: something that decides it is not known.
//!
//! Must not read files, nor know where devices' NUMA nodes come from.

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

/// Memory that is looked at tells nothing below this: libraries are wherever they were read first.
const MEMORY_BYTES_MIN: u64 = 256 << 20;
/// So much of the memory, in percent, may be elsewhere: page cache is nobody's choice.
const REMOTE_PERCENT_MAX: u64 = 25;

/// What the kubelet is set up to do, and what it has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'a> {
    /// Its configuration, if it is known.
    pub configuration: Option<&'a Configuration>,
    /// CPUs that it gave to containers, if that is known.
    pub cpus: Option<&'a CpuState>,
}

/// A pod that runs.
#[derive(Clone, Debug)]
pub struct RunningPod {
    /// Its UID.
    pub uid: String,
    /// Its quality of service.
    pub qos: Qos,
    /// Its containers, the one that holds its namespaces included.
    pub containers: Vec<RunningContainer>,
    /// Devices that it holds.
    pub devices: Vec<Held>,
}

/// A container that runs. Its name is not known: cgroups do not tell it.
#[derive(Clone, Debug, Default)]
pub struct RunningContainer {
    /// Its id.
    pub id: String,
    /// CPUs that it can really use.
    pub cpus: Option<CpuSet>,
    /// NUMA nodes that it can really have memory of.
    pub mems: Option<IdSet>,
    /// Where its memory is, as far as it was looked at.
    pub memory: Vec<NodeMemory>,
    /// Its processes.
    pub pids: Vec<u32>,
}

/// What kind of thing a device is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DeviceKind {
    /// A whole GPU.
    Gpu,
    /// A slice of one.
    Slice,
    /// A share of a GPU or of a slice, which others hold too.
    Share,
    /// A network card, or something else.
    #[default]
    Other,
}

impl DeviceKind {
    /// Whether it is a GPU or some of one.
    pub fn is_gpu(self) -> bool {
        self != Self::Other
    }
}

/// A device that a container holds. The kubelet's checkpoint tells of it, or its API for pods' resources.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Name of the container.
    pub container: String,
    /// Resource, such as `nvidia.com/gpu`.
    pub resource: String,
    /// Id that the plugin gave it.
    pub id: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Its NUMA nodes; none: not known.
    pub numa: Vec<u32>,
    /// Whether its plugin told the kubelet a NUMA node: without, the kubelet aligns nothing with it.
    pub told: bool,
    /// Processes that use it, as the driver tells.
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
        let why = "its CPUs are not its own, and not all of them are near its GPUs".to_owned();
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

/// What is known of a container with a GPU, and the verdict on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerAudit {
    /// Its name.
    pub container: String,
    /// CPUs that it can really use.
    pub cpus: Option<String>,
    /// Whether these are its own; `None` if that cannot be told.
    pub exclusive: Option<bool>,
    /// NUMA nodes of its CPUs.
    pub cpu_numa: Vec<u32>,
    /// NUMA nodes that it may have memory of.
    pub mems: Option<String>,
    /// Where its memory is, as far as it was looked at.
    pub memory: Vec<NodeMemory>,
    /// NUMA nodes of its GPUs.
    pub gpu_numa: Vec<u32>,
    pub finding: Finding,
}

/// A pod with a GPU, and the verdict on it: the worst of its containers'.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodAudit {
    /// UID of the pod.
    pub uid: String,
    /// Its quality of service.
    pub qos: Qos,
    pub finding: Finding,
    /// Its containers with GPUs.
    pub containers: Vec<ContainerAudit>,
    /// What would have it aligned for certain.
    pub advice: Vec<Advice>,
}

/// The verdict on a pod; `None` where it has no GPU.
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
                "which of the pod's containers holds the GPU cannot be told, and they differ".into()
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
        None => Finding::unknown("which CPUs it may use is not known"),
        Some(_) => finding(machine, devices, holder, &cpu_numa),
    };
    ContainerAudit {
        container: name.to_owned(),
        cpus: running.cpus.map(|cpus| cpus.to_string()),
        exclusive: match holder.pinning {
            Pinning::Own => Some(true),
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
        // Whatever it may use, none of it is near.
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
    if !elsewhere.is_empty() && all_known && holder.pinning == Pinning::Own {
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
        return Finding::unknown(format!("the NUMA node of {name} is not known"));
    }
    if !elsewhere.is_empty() {
        return match holder.pinning {
            Pinning::Unknown => Finding::unknown("whether its CPUs are its own is not known"),
            _ => Finding::floating(),
        };
    }
    memory_finding(machine, devices, holder).unwrap_or(Finding::ALIGNED)
}

/// Memory that certainly lies elsewhere.
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
    // Memory on a node without CPUs (high-bandwidth memory, or a GPU's own) was put there on purpose.
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

/// What was found to be far.
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

/// Nodes that have what is wanted: these themselves, or the nearest for each that has not.
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
