//! A case told in text: the machine drawn, each operation, what was recorded and what the model did.

use std::fmt::Write;

use berth_kubelet::{
    CpuManagerPolicy, Kubelet, KubeletConfig, MemoryManagerPolicy, TopologyPolicy,
};
use berth_model::machine::Machine;
use berth_model::pod::{ContainerKind, Pod};
use berth_model::resource::ResourceList;

use super::case::{Case, Operation};
use super::replay::replay;
use super::schema::{AffinityJson, AllocationJson, DevicesJson};

/// Tells the whole case.
pub fn explain(case: &Case) -> String {
    let mut steps = Vec::new();
    let mismatches = replay(case, |_, kubelet, text| steps.push((text.to_owned(), state(kubelet))));
    let mut out = String::new();
    let _ = writeln!(out, "case {}  ({})", case.id, case.stratum);
    let _ = writeln!(out, "{}", configuration(case.kubelet.config()));
    out += &drawing(case.kubelet.machine(), &case.shape);
    out += &devices(&case.kubelet);
    if let Some(reserved) = case.kubelet.reserved_cpus() {
        let _ = writeln!(out, "reserved CPUs {reserved}");
    }
    let _ = write!(out, "at first: {}", state(&case.kubelet));
    let of_operation = |index: Option<usize>| {
        let mine = mismatches.iter().filter(move |mismatch| mismatch.operation == index);
        mine.map(|m| format!("  MISMATCH {}: recorded {}, got {}\n", m.what, m.expected, m.got))
    };
    out.extend(of_operation(None));
    for (index, (operation, (did, after))) in case.operations.iter().zip(&steps).enumerate() {
        let _ = writeln!(out, "\n[{index}] {}", asked(operation));
        let _ = writeln!(out, "  recorded: {}", recorded(operation));
        let _ = writeln!(out, "  got: {}", did.replace('\n', "\n  "));
        let _ = write!(out, "  then: {after}");
        out.extend(of_operation(Some(index)));
    }
    out
}

fn configuration(config: &KubeletConfig) -> String {
    let mut text =
        format!("kubelet {}, topology manager {}", config.version, config.topology_policy);
    if config.topology_policy != TopologyPolicy::None {
        let _ = write!(text, " by {}", config.topology_scope);
    }
    if config.prefer_closest_numa_nodes {
        text += " + prefer-closest-numa-nodes";
    }
    match &config.cpu_manager {
        CpuManagerPolicy::None => text += ", CPU manager none",
        CpuManagerPolicy::Static { options, .. } => {
            text += ", CPU manager static";
            options.iter().for_each(|option| {
                let _ = write!(text, " + {option}");
            });
        }
    }
    match &config.memory_manager {
        MemoryManagerPolicy::None => text += ", memory manager None",
        MemoryManagerPolicy::Static { reserved } => {
            text += ", memory manager Static, reserved";
            reserved.iter().for_each(|amount| {
                let _ = write!(text, " {}:{}={}", amount.numa, amount.kind, amount.bytes);
            });
        }
    }
    text
}

/// One line per NUMA node and cache: cores with their threads.
fn drawing(machine: &Machine, shape: &str) -> String {
    let mut out = format!(
        "machine {shape}: {} sockets, {} NUMA nodes, {} cores, {} CPUs\n",
        machine.socket_count(),
        machine.numa().len(),
        machine.cores().len(),
        machine.cpus().len()
    );
    for (position, node) in machine.numa().iter().enumerate() {
        let gib = node.memory_bytes as f64 / f64::from(1 << 30);
        let _ = write!(out, "  numa {:<2} {gib:.1} GiB", node.id);
        for (size, pages) in &node.hugepages {
            let _ = write!(out, ", {pages} hugepages of {} MiB", size >> 20);
        }
        let _ = writeln!(out, ", distances {:?}", node.distances);
        for (socket_at, socket) in machine.sockets().iter().enumerate() {
            for (uncore_at, uncore) in machine.uncores().iter().enumerate() {
                let cores: Vec<String> = machine
                    .cores()
                    .iter()
                    .filter(|core| {
                        usize::from(core.numa) == position
                            && usize::from(core.socket) == socket_at
                            && usize::from(core.uncore) == uncore_at
                    })
                    .map(|core| {
                        let threads: Vec<String> =
                            core.threads().map(|cpu| cpu.to_string()).collect();
                        format!("[{}]", threads.join(" "))
                    })
                    .collect();
                if !cores.is_empty() {
                    let cores = cores.join("");
                    let _ = writeln!(out, "    socket {} cache {}: {cores}", socket.id, uncore.id);
                }
            }
        }
    }
    out
}

fn devices(kubelet: &Kubelet) -> String {
    let mut out = String::new();
    for pool in kubelet.pools() {
        let _ = write!(out, "  {} ({:?}):", pool.resource, pool.preferred);
        for device in &pool.devices {
            let health = if device.healthy { "" } else { " unhealthy" };
            let numa = kubelet.machine().numa_ids(device.numa);
            let _ = write!(out, " {}@{numa:?}{health}", device.id);
        }
        out.push('\n');
    }
    out
}

fn asked(operation: &Operation) -> String {
    let Some((pod, _)) = &operation.admit else { return format!("remove {}", operation.pod) };
    let mut text = format!("admit {}", pod.name);
    let list = |list: &ResourceList| {
        let pairs: Vec<String> =
            list.iter().map(|(name, value)| format!("{name}={value}")).collect();
        pairs.join(" ")
    };
    for container in &pod.containers {
        let kind = match container.kind {
            ContainerKind::Init => "init ",
            ContainerKind::Sidecar => "sidecar ",
            ContainerKind::App => "",
        };
        let limits = list(&container.resources.limits);
        let _ = write!(text, "; {kind}{}: limits {limits}", container.name);
        if container.resources.requests != container.resources.limits {
            let _ = write!(text, " requests {}", list(&container.resources.requests));
        }
    }
    text += &pod_level(pod, list);
    text
}

fn pod_level(pod: &Pod, list: impl Fn(&ResourceList) -> String) -> String {
    let mut text = String::new();
    if let Some(resources) = &pod.resources {
        let (requests, limits) = (list(&resources.requests), list(&resources.limits));
        let _ = write!(text, "; pod-level requests {requests} limits {limits}");
    }
    if !pod.overhead.is_empty() {
        let _ = write!(text, "; overhead {}", list(&pod.overhead));
    }
    text
}

fn recorded(operation: &Operation) -> String {
    match &operation.outcome {
        None => "removed".to_owned(),
        Some(outcome) if outcome.admitted => {
            let mut text = format!("{} admitted", operation.pod);
            for (name, given) in &outcome.containers {
                let _ = write!(text, "\n    {name}:{}", recorded_container(given));
            }
            text
        }
        Some(outcome) => format!(
            "{} rejected: {}: {}",
            operation.pod,
            outcome.reason.as_deref().unwrap_or("?"),
            outcome.message.as_deref().unwrap_or("(message not asserted)")
        ),
    }
}

fn recorded_container(given: &AllocationJson) -> String {
    let mut text = String::new();
    if let Some(AffinityJson { numa, preferred }) = &given.affinity {
        let numa = numa.as_ref().map_or("any".to_owned(), |ids| format!("{ids:?}"));
        let preferred = if *preferred { "preferred" } else { "not preferred" };
        let _ = write!(text, " numa {numa} {preferred}");
    }
    if let Some(cpus) = &given.cpus {
        let _ = write!(text, ", cpus {cpus}");
    }
    for block in &given.memory {
        let _ = write!(text, ", {} {} on {:?}", block.kind, block.bytes, block.numa);
    }
    for (resource, DevicesJson { ids, count, by_numa }) in &given.devices {
        match (ids, by_numa) {
            (Some(ids), _) => write!(text, ", {resource} {ids:?}"),
            (None, Some(by_numa)) => write!(text, ", {resource} by NUMA node {by_numa:?}"),
            (None, None) => write!(text, ", {resource} {}", count.unwrap_or(0)),
        }
        .unwrap_or_default();
    }
    text
}

fn state(kubelet: &Kubelet) -> String {
    let mut text = String::new();
    if let Some(shared) = kubelet.shared_cpus() {
        let _ = write!(text, "shared CPUs {shared}; ");
    }
    for free in kubelet.free_memory() {
        let bytes: Vec<String> = free
            .bytes
            .iter()
            .map(|bytes| bytes.map_or("-".to_owned(), |bytes| bytes.to_string()))
            .collect();
        let _ = write!(text, "free {} {}; ", free.kind, bytes.join(" "));
    }
    for (at, pool) in kubelet.pools().enumerate() {
        let _ = write!(text, "free {} {:?}; ", pool.resource, pool.ids(kubelet.free_devices(at)));
    }
    text.push('\n');
    text
}
