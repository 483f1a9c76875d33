//! Finds the container that holds a device.
//!
//! The kubelet's files have container names, cgroups have container ids, and nothing on the node maps one to the
//! other. So this compares the CPUs that the kubelet assigned to a name with containers' cpusets, and the
//! processes that use the device with containers' processes. The sandbox has the widest cpuset.

use berth_host::Machine;
use berth_model::idset::CpuSet;

use super::{Held, Rules, RunningContainer, RunningPod};

/// Whether a container's CPUs are exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pinning {
    Exclusive,
    Shared,
    Unknown,
}

/// A container that may hold the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder<'a> {
    pub(super) container: &'a RunningContainer,
    pub(super) pinning: Pinning,
}

/// The candidates, or why none can be named.
#[derive(Debug, Default)]
pub(super) struct Holders<'a> {
    pub(super) holders: Vec<Holder<'a>>,
    pub(super) why: Option<String>,
}

pub(super) fn holders<'a>(
    machine: &Machine,
    rules: Rules<'_>,
    pod: &'a RunningPod,
    name: &str,
    devices: &[&Held],
) -> Holders<'a> {
    let unknown = |why: String| Holders { holders: Vec::new(), why: Some(why) };
    if pod.containers.is_empty() {
        return unknown("its containers have no cgroups".to_owned());
    }
    let assigned = AssignedCpus::of(rules, &pod.uid);
    if let Some(cpus) = assigned.to(name) {
        let same = pod.containers.iter().filter(|one| one.cpus == Some(cpus));
        let holders: Vec<_> =
            same.map(|container| Holder { container, pinning: Pinning::Exclusive }).collect();
        if holders.is_empty() {
            let why = format!(
                "the kubelet assigned CPUs {cpus} to container {name}, but no container of the pod has this \
                 cpuset"
            );
            return unknown(why);
        }
        return Holders { holders, why: None };
    }
    // Containers with CPUs assigned to other names are not candidates.
    let left = pod.containers.iter().filter(|one| {
        !one.cpus.is_some_and(|cpus| assigned.containers.iter().any(|(_, own)| *own == cpus))
    });
    let mut left: Vec<&RunningContainer> = left.collect();
    let uses = |one: &&&RunningContainer| {
        devices.iter().any(|held| held.pids.iter().any(|pid| one.pids.contains(pid)))
    };
    let users: Vec<&RunningContainer> = left.iter().filter(uses).copied().collect();
    if users.is_empty() {
        let all = left.clone();
        left.retain(|one| !all.iter().any(|other| is_wider(one, other)));
    } else {
        left = users;
    }
    if left.is_empty() {
        return unknown(format!("no container of the pod matches {name}"));
    }
    let pinning = |one: &RunningContainer| pinning(machine, rules, &assigned, one);
    let holders = left.iter().map(|one| Holder { container: one, pinning: pinning(one) });
    Holders { holders: holders.collect(), why: None }
}

/// The sandbox is not confined to the shared CPU pool.
fn is_wider(one: &RunningContainer, other: &RunningContainer) -> bool {
    match (one.cpus, other.cpus) {
        (Some(one), Some(other)) => one != other && other.is_subset(&one),
        _ => false,
    }
}

fn pinning(
    machine: &Machine,
    rules: Rules<'_>,
    assigned: &AssignedCpus,
    container: &RunningContainer,
) -> Pinning {
    let Some(cpus) = container.cpus else { return Pinning::Unknown };
    let by_id = assigned.by_id.iter().any(|(id, own)| *id == container.id && *own == cpus);
    if by_id || assigned.pod.is_some_and(|own| cpus.is_subset(&own)) {
        return Pinning::Exclusive;
    }
    if rules.cpus.is_some() || cpus == machine.cpus {
        return Pinning::Shared;
    }
    match rules.configuration {
        Some(configuration) if !configuration.pins_cpus() => Pinning::Shared,
        _ => Pinning::Unknown,
    }
}

/// CPUs that the kubelet assigned to a pod.
#[derive(Default)]
struct AssignedCpus {
    /// By container name.
    containers: Vec<(String, CpuSet)>,
    /// By container id, of all pods, as in version 1 of the file.
    by_id: Vec<(String, CpuSet)>,
    pod: Option<CpuSet>,
}

impl AssignedCpus {
    fn of(rules: Rules<'_>, uid: &str) -> Self {
        let Some(state) = rules.cpus else { return Self::default() };
        let of = |pod: Option<&str>| {
            let own = state.containers.iter().filter(|one| one.pod.as_deref() == pod);
            own.map(|one| (one.container.clone(), one.cpus)).collect()
        };
        Self {
            containers: of(Some(uid)),
            by_id: of(None),
            pod: state.pods.iter().find(|one| one.pod == uid).map(|one| one.cpus),
        }
    }

    fn to(&self, name: &str) -> Option<CpuSet> {
        self.containers.iter().find(|(known, _)| known == name).map(|(_, cpus)| *cpus)
    }
}
