//! What would have a pod aligned for certain.
//!
//! Owns the kubelet's conditions for giving CPUs, memory and devices of one NUMA node, in the words of
//! its configuration and of pods' manifests. Must not know how a verdict came about.

use berth_host::Machine;
use berth_host::cgroup::Qos;
use berth_host::kubelet::Configuration;
use serde::{Deserialize, Serialize};

use super::{ContainerAudit, Held, Rules, RunningPod};

/// Something to change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    /// Where: the kubelet, the pod, the device plugin.
    pub of: String,
    /// What it should be.
    pub set: String,
    /// Why.
    pub why: String,
}

fn to(of: &str, set: &str, why: &str) -> Advice {
    Advice { of: of.to_owned(), set: set.to_owned(), why: why.to_owned() }
}

pub(super) fn advice(
    machine: &Machine,
    rules: Rules<'_>,
    pod: &RunningPod,
    containers: &[ContainerAudit],
) -> Vec<Advice> {
    let mut all = Vec::new();
    if machine.numa.len() < 2 {
        return all;
    }
    if let Some(configuration) = rules.configuration {
        kubelet(configuration, &mut all);
    }
    let floats = containers.iter().any(|one| one.exclusive == Some(false));
    if pod.qos != Qos::Guaranteed {
        let why = "only Guaranteed pods are given CPUs and memory of their own";
        all.push(to(
            "pod",
            "requests equal to limits, for CPU and memory, in every container",
            why,
        ));
    }
    if floats {
        let why = "containers with a fraction of a CPU share the CPUs that are nobody's own";
        let is_all =
            pod.qos == Qos::Guaranteed && rules.configuration.is_some_and(Configuration::pins_cpus);
        if pod.qos != Qos::Guaranteed || is_all {
            all.push(to("pod", "a whole number of CPUs in the containers with GPUs", why));
        }
    }
    let untold: Vec<&Held> =
        pod.devices.iter().filter(|held| held.kind.is_gpu() && !held.told).collect();
    if let Some(first) = untold.first() {
        let set = format!("TopologyInfo for {}", first.resource);
        let why = "a device whose plugin tells no NUMA node is aligned with nothing";
        all.push(to("device plugin", &set, why));
    }
    if all.is_empty() {
        let why = "the kubelet places a pod once, when it starts, by what was free then";
        all.push(to("pod", "a new start, or another node", why));
    }
    all
}

fn kubelet(configuration: &Configuration, all: &mut Vec<Advice>) {
    match configuration.topology_manager_policy.as_str() {
        "single-numa-node" | "restricted" => {}
        _ => {
            let why = "other policies admit pods whose CPUs, memory and GPUs do not lie together";
            let set = "topologyManagerPolicy: restricted (or single-numa-node)";
            all.push(to("kubelet", set, why));
        }
    }
    if !configuration.pins_cpus() {
        let why = "without it no pod has CPUs of its own; drain the node and remove \
                   cpu_manager_state when changing it";
        all.push(to("kubelet", "cpuManagerPolicy: static, with reservedSystemCPUs", why));
    }
    if !configuration.pins_memory() {
        let why = "without it memory may come from any NUMA node; drain the node and remove \
                   memory_manager_state when changing it";
        all.push(to("kubelet", "memoryManagerPolicy: Static, with reservedMemory", why));
    }
}
