//! Which of a pod's containers holds a device.
//!
//! The kubelet writes containers' names, cgroups have their ids, and nothing on the node's disks joins
//! them. Owns what joins them all the same: CPUs that the kubelet gave to a name and that a container has,
//! processes that use a device, and that the container which holds the pod's namespaces has the widest
//! set. Must not judge.

use berth_host::Machine;
use berth_model::idset::CpuSet;

use super::{Held, Rules, RunningContainer, RunningPod};

/// Whether a container's CPUs are its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pinning {
    Own,
    Shared,
    Unknown,
}

/// A container that may be the one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder<'a> {
    pub(super) container: &'a RunningContainer,
    pub(super) pinning: Pinning,
}

/// Those that may be the one, and what forbids to believe so.
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
        return unknown("none of its containers is to be seen in cgroups".to_owned());
    }
    let given = Given::of(rules, &pod.uid);
    if let Some(cpus) = given.to(name) {
        let same = pod.containers.iter().filter(|one| one.cpus == Some(cpus));
        let holders: Vec<_> =
            same.map(|container| Holder { container, pinning: Pinning::Own }).collect();
        if holders.is_empty() {
            let why = format!(
                "the kubelet gave container {name} the CPUs {cpus}, and none of the pod's containers \
                 has just these"
            );
            return unknown(why);
        }
        return Holders { holders, why: None };
    }
    // CPUs of others of the pod are theirs.
    let left = pod.containers.iter().filter(|one| {
        !one.cpus.is_some_and(|cpus| given.containers.iter().any(|(_, own)| *own == cpus))
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
        return unknown(format!("no container of the pod can be the one called {name}"));
    }
    let pinning = |one: &RunningContainer| pinning(machine, rules, &given, one);
    let holders = left.iter().map(|one| Holder { container: one, pinning: pinning(one) });
    Holders { holders: holders.collect(), why: None }
}

/// The container that holds the namespaces is not confined to the CPUs that are nobody's own.
fn is_wider(one: &RunningContainer, other: &RunningContainer) -> bool {
    match (one.cpus, other.cpus) {
        (Some(one), Some(other)) => one != other && other.is_subset(&one),
        _ => false,
    }
}

fn pinning(
    machine: &Machine,
    rules: Rules<'_>,
    given: &Given,
    container: &RunningContainer,
) -> Pinning {
    let Some(cpus) = container.cpus else { return Pinning::Unknown };
    let by_id = given.by_id.iter().any(|(id, own)| *id == container.id && *own == cpus);
    if by_id || given.pod.is_some_and(|own| cpus.is_subset(&own)) {
        return Pinning::Own;
    }
    if rules.cpus.is_some() || cpus == machine.cpus {
        return Pinning::Shared;
    }
    match rules.configuration {
        Some(configuration) if !configuration.pins_cpus() => Pinning::Shared,
        _ => Pinning::Unknown,
    }
}

/// CPUs that the kubelet gave to a pod.
#[derive(Default)]
struct Given {
    /// By name.
    containers: Vec<(String, CpuSet)>,
    /// By id, as the first version of the file has it, of all pods.
    by_id: Vec<(String, CpuSet)>,
    pod: Option<CpuSet>,
}

impl Given {
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
