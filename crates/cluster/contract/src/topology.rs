//! What the kubelet of a node does with pods, as far as the node's topology object tells.
//!
//! Owns the way from a NodeResourceTopology (`topology.node.k8s.io`) to a kubelet that holds nothing
//! yet. Such an object does not say everything; what it leaves out is taken in the pod's favour, so
//! that a pod which is refused here is refused in life. Must not know any pod.

use berth_kubelet::{
    CpuManagerPolicy, CpuOptions, Kubelet, KubeletConfig, MemoryManagerPolicy, ReservedCpus,
    TopologyPolicy, TopologyScope,
};
use berth_model::device::{Device, DevicePool, PreferredAllocation};
use berth_model::idset::{CpuSet, IdSet};
use berth_model::machine::{CoreSpec, Machine, MachineSpec, NumaSpec};
use berth_model::numa::NumaMask;
use berth_model::quantity::Quantity;
use serde_json::Value;

use crate::object::Object;
use crate::pool::KnownKubelet;

/// What an object says of one NUMA node.
#[derive(Debug)]
struct Zone<'a> {
    id: u32,
    resources: Vec<(&'a str, i64)>,
}

impl Zone<'_> {
    fn amount(&self, name: &str) -> Option<i64> {
        self.resources.iter().find(|(one, _)| *one == name).map(|(_, amount)| *amount)
    }
}

/// The name of the node that an object is about, and its kubelet; `None` if it does not describe one.
pub(crate) fn read(object: &Object) -> Option<(&str, KnownKubelet)> {
    if !object.is("topology.node.k8s.io", "NodeResourceTopology") {
        return None;
    }
    let zones = object.json.get("zones")?.as_array()?;
    let zones: Vec<Zone<'_>> = zones.iter().filter_map(zone).collect();
    let (policy, scope) = policies(&object.json)?;
    let machine = Machine::new(machine(&zones)?).ok()?;
    // Every node has a CPU of its own for the system, which is the last of them; see `machine`.
    let reserved: CpuSet = machine.cpus().iter().last().into_iter().collect();
    let cpus_known = zones.iter().any(|zone| zone.amount("cpu").is_some());
    let memory_known = zones.iter().any(|zone| zone.amount("memory").is_some());
    let config = KubeletConfig {
        topology_policy: policy,
        topology_scope: scope,
        max_allowable_numa_nodes: Some(zones.len().max(8)),
        cpu_manager: if cpus_known {
            CpuManagerPolicy::Static {
                options: CpuOptions::default(),
                reserved: ReservedCpus::Explicit(reserved),
            }
        } else {
            CpuManagerPolicy::None
        },
        memory_manager: if memory_known {
            MemoryManagerPolicy::Static { reserved: Vec::new() }
        } else {
            MemoryManagerPolicy::None
        },
        ..KubeletConfig::default()
    };
    let kubelet = Kubelet::new(machine, config, pools(&zones)).ok()?;
    let said = format!("{policy:?} {scope:?} {zones:?}");
    Some((&object.reference.name, KnownKubelet { kubelet, said }))
}

fn zone(json: &Value) -> Option<Zone<'_>> {
    if json.get("type")?.as_str()? != "Node" {
        return None;
    }
    let id = json.get("name")?.as_str()?.strip_prefix("node-")?.parse().ok()?;
    let resources = json.get("resources").and_then(Value::as_array).into_iter().flatten();
    let resources = resources.filter_map(|one| {
        let amount = one.get("allocatable").or_else(|| one.get("capacity"))?;
        let amount = match amount {
            Value::String(text) => Quantity::parse(text).ok()?.value(),
            other => other.as_i64()?,
        };
        Some((one.get("name")?.as_str()?, amount))
    });
    Some(Zone { id, resources: resources.collect() })
}

/// The policy and its scope: in attributes since v1alpha2, before that as one word.
fn policies(json: &Value) -> Option<(TopologyPolicy, TopologyScope)> {
    let attributes = json.get("attributes").and_then(Value::as_array).into_iter().flatten();
    let (mut policy, mut scope) = (None, None);
    for attribute in attributes {
        let text = |key: &str| attribute.get(key).and_then(Value::as_str);
        match text("name") {
            Some("topologyManagerPolicy") => policy = text("value")?.parse().ok(),
            Some("topologyManagerScope") => scope = text("value")?.parse().ok(),
            _ => {}
        }
    }
    if let Some(policy) = policy {
        return Some((policy, scope.unwrap_or_default()));
    }
    Some(match json.get("topologyPolicies")?.get(0)?.as_str()? {
        "SingleNUMANodePodLevel" => (TopologyPolicy::SingleNumaNode, TopologyScope::Pod),
        "SingleNUMANodeContainerLevel" | "SingleNUMANode" => {
            (TopologyPolicy::SingleNumaNode, TopologyScope::Container)
        }
        "RestrictedPodLevel" => (TopologyPolicy::Restricted, TopologyScope::Pod),
        "RestrictedContainerLevel" | "Restricted" => {
            (TopologyPolicy::Restricted, TopologyScope::Container)
        }
        _ => return None,
    })
}

/// A machine with as many CPUs as pods may have, and one more for the system, without which no
/// kubelet pins anything. Every CPU is a core of its own: which of them are siblings is not said.
fn machine(zones: &[Zone<'_>]) -> Option<MachineSpec> {
    let mut cores = Vec::new();
    let core =
        |id: u32, cpu: usize| CoreSpec { numa: id, socket: id, uncore: None, threads: vec![cpu] };
    for zone in zones {
        let cpus = usize::try_from(zone.amount("cpu").unwrap_or(1)).ok()?;
        if cores.len() + cpus >= IdSet::CAPACITY {
            return None;
        }
        for _ in 0..cpus {
            cores.push(core(zone.id, cores.len()));
        }
    }
    cores.push(core(zones.last()?.id, cores.len()));
    let numa = zones.iter().map(|zone| {
        let memory_bytes = u64::try_from(zone.amount("memory").unwrap_or(0)).ok()?;
        Some(NumaSpec { id: zone.id, memory_bytes, ..NumaSpec::default() })
    });
    Some(MachineSpec { sockets: None, numa: numa.collect::<Option<_>>()?, cores })
}

fn pools(zones: &[Zone<'_>]) -> Vec<DevicePool> {
    let mut pools: Vec<DevicePool> = Vec::new();
    for (position, zone) in zones.iter().enumerate() {
        let devices = zone.resources.iter().filter(|(name, _)| name.contains('/'));
        for (name, amount) in devices {
            let count = usize::try_from(*amount).unwrap_or(0).min(IdSet::CAPACITY);
            let known = pools.iter().position(|pool| pool.resource.as_str() == *name);
            let at = known.unwrap_or_else(|| {
                pools.push(DevicePool {
                    resource: (*name).into(),
                    preferred: PreferredAllocation::Unpredictable,
                    devices: Vec::new(),
                });
                pools.len() - 1
            });
            let list = &mut pools[at].devices;
            list.extend((0..count).map(|index| Device {
                id: format!("{}-{index}", zone.id),
                numa: NumaMask::single(position),
                misplaced: false,
                healthy: true,
            }));
        }
    }
    pools
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn zone(id: u32, cpus: &str) -> Value {
        json!({ "name": format!("node-{id}"), "type": "Node", "resources": [
            { "name": "cpu", "capacity": "48", "allocatable": cpus, "available": cpus },
            { "name": "nvidia.com/gpu", "capacity": "4", "allocatable": "4", "available": "4" },
        ] })
    }

    fn object(cpus: &str) -> Object {
        Object::new(json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": { "name": "n1" },
            "attributes": [{ "name": "topologyManagerPolicy", "value": "single-numa-node" }],
            "zones": [zone(0, cpus), zone(1, cpus)],
        }))
        .unwrap()
    }

    #[test]
    fn a_topology_becomes_a_kubelet_with_all_that_pods_may_have() {
        let object = object("46");
        let (name, KnownKubelet { kubelet, .. }) = read(&object).unwrap();
        assert_eq!(name, "n1");
        assert_eq!(kubelet.machine().numa().len(), 2);
        assert_eq!(kubelet.free_cpus_by_numa().unwrap(), [46, 46]);
        let gpus = kubelet.pool_of("nvidia.com/gpu").unwrap();
        assert_eq!(kubelet.free_devices(gpus).len(), 8);
    }

    #[test]
    fn a_topology_that_describes_no_machine_is_left_aside() {
        assert!(read(&object("-3")).is_none());
        assert!(read(&object("1000000")).is_none());
    }
}
