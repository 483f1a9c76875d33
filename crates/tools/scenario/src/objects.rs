//! From a described node back to its Node and NodeResourceTopology objects, for clusters that exist only
//! in memory. Reading the objects gives the same node again.

use std::collections::BTreeMap;

use berth_api::topology::{Attribute, Cost, NodeResourceTopology, Zone, ZoneResource};
use berth_kubelet::{CpuManagerPolicy, KubeletConfig, MemoryManagerPolicy, ReservedCpus};
use berth_model::machine::Machine;
use berth_model::resource::{MemoryKind, ResourceName};
use berth_model::taint::Effect;
use k8s_openapi::Resource;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cluster::ClusterNode;

/// The Node, and its NodeResourceTopology if the topology is known.
pub fn node_objects(known: &ClusterNode) -> (core::Node, Option<NodeResourceTopology>) {
    let devices = devices_by_numa(known);
    let machine = known.inside.machine.as_ref();
    let exported =
        machine.map(|(machine, kubelet)| exported(&known.node.name, machine, kubelet, &devices));
    (node(known, &devices), exported)
}

/// Number of devices by NUMA node (`None`: attached to none) and resource.
type Devices = BTreeMap<Option<usize>, BTreeMap<ResourceName, usize>>;

fn devices_by_numa(known: &ClusterNode) -> Devices {
    let mut devices = Devices::new();
    for pool in known.inside.devices().unwrap_or_default() {
        for device in &pool.devices {
            let numa = device.numa.iter().next();
            *devices.entry(numa).or_default().entry(pool.resource.clone()).or_default() += 1;
        }
    }
    devices
}

fn amount(value: impl ToString) -> Text {
    Text(value.to_string())
}

fn node(known: &ClusterNode, devices: &Devices) -> core::Node {
    let name = known.node.name.to_string();
    let mut allocatable: BTreeMap<String, Text> = known
        .node
        .allocatable
        .iter()
        .map(|(name, value)| (name.to_string(), amount(value)))
        .collect();
    let mut counts: BTreeMap<&ResourceName, usize> = BTreeMap::new();
    for (resource, count) in devices.values().flatten() {
        *counts.entry(resource).or_default() += count;
    }
    for (resource, count) in counts {
        allocatable.insert(resource.to_string(), amount(count));
    }
    let mut capacity = allocatable.clone();
    let mut info = core::NodeSystemInfo {
        operating_system: "linux".to_owned(),
        architecture: "amd64".to_owned(),
        ..core::NodeSystemInfo::default()
    };
    if let Some((machine, kubelet)) = &known.inside.machine {
        let cpus: usize = machine.numa().iter().map(|numa| numa.cpus.len()).sum();
        let memory: u64 = machine.numa().iter().map(|numa| numa.memory_bytes).sum();
        capacity.insert("cpu".to_owned(), amount(cpus));
        capacity.insert("memory".to_owned(), amount(memory));
        info.kubelet_version = format!("v{}.0", kubelet.version);
    }
    let labels = known.node.labels.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    let taints = known.node.taints.iter().map(|taint| core::Taint {
        key: taint.key.to_string(),
        value: Some(taint.value.to_string()).filter(|value| !value.is_empty()),
        effect: match taint.effect {
            Effect::NoSchedule => "NoSchedule",
            Effect::PreferNoSchedule => "PreferNoSchedule",
            Effect::NoExecute => "NoExecute",
        }
        .to_owned(),
        ..core::Taint::default()
    });
    core::Node {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(labels.collect()),
            ..ObjectMeta::default()
        },
        spec: Some(core::NodeSpec { taints: Some(taints.collect()), ..core::NodeSpec::default() }),
        status: Some(core::NodeStatus {
            capacity: Some(capacity),
            allocatable: Some(allocatable),
            node_info: Some(info),
            ..core::NodeStatus::default()
        }),
    }
}

fn exported(
    name: &str,
    machine: &Machine,
    kubelet: &KubeletConfig,
    devices: &Devices,
) -> NodeResourceTopology {
    let zones = machine.numa().iter().enumerate().map(|(position, numa)| {
        let reserved_memory = reserved_bytes(kubelet, numa.id);
        let mut resources = vec![
            resource("cpu", numa.cpus.len(), numa.cpus.len()),
            resource(
                "memory",
                numa.memory_bytes,
                numa.memory_bytes.saturating_sub(reserved_memory),
            ),
        ];
        let here = devices.get(&Some(position)).into_iter().flatten();
        resources.extend(here.map(|(name, count)| resource(name.as_str(), *count, *count)));
        let costs = machine.numa().iter().zip(&numa.distances).map(|(other, distance)| Cost {
            name: zone_name(other.id),
            value: i64::from(*distance),
        });
        Zone {
            name: zone_name(numa.id),
            zone_type: "Node".to_owned(),
            parent: None,
            costs: costs.collect(),
            attributes: Vec::new(),
            resources,
        }
    });
    NodeResourceTopology {
        api_version: <NodeResourceTopology as Resource>::API_VERSION.to_owned(),
        kind: <NodeResourceTopology as Resource>::KIND.to_owned(),
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        attributes: attributes(kubelet),
        zones: zones.collect(),
        ..NodeResourceTopology::default()
    }
}

fn zone_name(id: u32) -> String {
    format!("node-{id}")
}

fn resource(name: &str, capacity: impl ToString, allocatable: impl ToString) -> ZoneResource {
    let allocatable = amount(allocatable);
    ZoneResource {
        name: name.to_owned(),
        capacity: amount(capacity),
        available: allocatable.clone(),
        allocatable,
    }
}

fn reserved_bytes(kubelet: &KubeletConfig, numa: u32) -> u64 {
    let MemoryManagerPolicy::Static { reserved } = &kubelet.memory_manager else { return 0 };
    let here = reserved.iter().filter(|one| one.numa == numa && one.kind == MemoryKind::Ordinary);
    here.map(|one| one.bytes).sum()
}

/// The kubelet's configuration under the names of its file.
fn attributes(kubelet: &KubeletConfig) -> Vec<Attribute> {
    let mut attributes = vec![
        ("topologyManagerPolicy", kubelet.topology_policy.to_string()),
        ("topologyManagerScope", kubelet.topology_scope.to_string()),
    ];
    match &kubelet.cpu_manager {
        CpuManagerPolicy::None => attributes.push(("cpuManagerPolicy", "none".to_owned())),
        CpuManagerPolicy::Static { options, reserved } => {
            attributes.push(("cpuManagerPolicy", "static".to_owned()));
            let names: Vec<String> = options.iter().map(|option| option.to_string()).collect();
            if !names.is_empty() {
                attributes.push(("cpuManagerPolicyOptions", names.join(",")));
            }
            if let ReservedCpus::Explicit(cpus) = reserved {
                attributes.push(("reservedSystemCPUs", cpus.to_string()));
            }
        }
    }
    let memory = match &kubelet.memory_manager {
        MemoryManagerPolicy::None => "None",
        MemoryManagerPolicy::Static { .. } => "Static",
    };
    attributes.push(("memoryManagerPolicy", memory.to_owned()));
    attributes.into_iter().map(|(name, value)| Attribute { name: name.to_owned(), value }).collect()
}
