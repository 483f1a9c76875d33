//! What to change so that a pod is reliably aligned: the kubelet's conditions for taking CPUs, memory and devices
//! from one NUMA node.

use berth_host::Machine;
use berth_host::cgroup::Qos;
use berth_host::kubelet::Configuration;
use serde::{Deserialize, Serialize};

use super::{ContainerAudit, Held, Rules, RunningPod};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    /// What to change: the kubelet, the pod, the device plugin.
    pub of: String,
    /// The setting to make.
    pub set: String,
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
        let why = "only Guaranteed pods get exclusive CPUs and memory";
        all.push(to(
            "pod",
            "requests equal to limits, for CPU and memory, in every container",
            why,
        ));
    }
    if floats {
        let why = "containers with a fractional CPU request run in the shared CPU pool";
        let is_all =
            pod.qos == Qos::Guaranteed && rules.configuration.is_some_and(Configuration::pins_cpus);
        if pod.qos != Qos::Guaranteed || is_all {
            all.push(to("pod", "a whole number of CPUs in the containers with GPUs", why));
        }
    }
    let without_topology: Vec<&Held> =
        pod.devices.iter().filter(|held| held.kind.is_gpu() && !held.has_topology).collect();
    if let Some(first) = without_topology.first() {
        let set = format!("TopologyInfo for {}", first.resource);
        let why = "the kubelet aligns nothing with a device whose plugin reports no NUMA node";
        all.push(to("device plugin", &set, why));
    }
    if all.is_empty() {
        let why = "the kubelet places a pod only once, at its start, by what is free then";
        all.push(to("pod", "restart it, or move it to another node", why));
    }
    all
}

fn kubelet(configuration: &Configuration, all: &mut Vec<Advice>) {
    match configuration.topology_manager_policy.as_str() {
        "single-numa-node" | "restricted" => {}
        _ => {
            let why =
                "other policies admit pods whose CPUs, memory and GPUs are on different NUMA nodes";
            let set = "topologyManagerPolicy: restricted (or single-numa-node)";
            all.push(to("kubelet", set, why));
        }
    }
    if !configuration.pins_cpus() {
        let why = "without it no pod gets exclusive CPUs; to change it, drain the node and remove \
                   cpu_manager_state";
        all.push(to("kubelet", "cpuManagerPolicy: static, with reservedSystemCPUs", why));
    }
    if !configuration.pins_memory() {
        let why = "without it memory may come from any NUMA node; to change it, drain the node and remove \
                   memory_manager_state";
        all.push(to("kubelet", "memoryManagerPolicy: Static, with reservedMemory", why));
    }
}
