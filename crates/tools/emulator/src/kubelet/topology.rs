//! The NodeResourceTopology of a virtual node: zones with capacity and free resources, kubelet configuration, and
//! the fingerprint of its pods.

use berth_kubelet::{CpuManagerPolicy, Kubelet, MemoryManagerPolicy, TopologyPolicy};
use berth_model::idset::CpuSet;
use berth_model::numa::NumaMask;
use berth_model::resource::MemoryKind;
use berth_topology::fingerprint;
use serde_json::{Value, json};

use crate::key::Key;

fn resource(name: &str, capacity: u64, allocatable: u64, available: u64) -> Value {
    json!({
        "name": name,
        "capacity": capacity.to_string(),
        "allocatable": allocatable.to_string(),
        "available": available.min(allocatable).to_string(),
    })
}

/// Zones and attributes of a node with this kubelet.
pub(super) fn content<'a>(kubelet: &Kubelet, pods: impl Iterator<Item = &'a Key>) -> Value {
    let zones = kubelet.machine().numa().iter().enumerate();
    let zones: Vec<Value> = zones.map(|(at, _)| zone(kubelet, at)).collect();
    json!({
        "topologyPolicies": [deprecated_policy(kubelet)],
        "attributes": attributes(kubelet, pods),
        "zones": zones,
    })
}

fn zone(kubelet: &Kubelet, at: usize) -> Value {
    let machine = kubelet.machine();
    let Some(numa) = machine.numa().get(at) else { return Value::Null };
    let mut resources = Vec::new();
    let reserved = kubelet.reserved_cpus().unwrap_or(CpuSet::EMPTY);
    let cpus = numa.cpus.len();
    if cpus > 0 {
        let allocatable = cpus - (numa.cpus & reserved).len();
        let free = kubelet.free_cpus_by_numa().and_then(|free| free.get(at).copied());
        let available = free.map_or(allocatable as u64, u64::from);
        resources.push(resource("cpu", cpus as u64, allocatable as u64, available));
    }
    resources.extend(memory(kubelet, at));
    for (pool, listed) in kubelet.pools().enumerate() {
        let here = NumaMask::single(at);
        let healthy = listed.devices.iter().filter(|device| device.healthy);
        let count = healthy.filter(|device| !(device.numa & here).is_empty()).count() as u64;
        if count > 0 {
            let free = kubelet.free_by_numa(pool).filter(|(mask, _)| !(*mask & here).is_empty());
            let free: usize = free.map(|(_, count)| count).sum();
            resources.push(resource(listed.resource.as_str(), count, count, free as u64));
        }
    }
    let costs: Vec<Value> = machine
        .numa()
        .iter()
        .zip(&numa.distances)
        .map(|(other, distance)| json!({ "name": zone_name(other.id), "value": distance }))
        .collect();
    json!({
        "name": zone_name(numa.id), "type": "Node", "costs": costs, "resources": resources,
    })
}

fn memory(kubelet: &Kubelet, at: usize) -> Vec<Value> {
    let Some(numa) = kubelet.machine().numa().get(at) else { return Vec::new() };
    let reserved = |kind: MemoryKind| match &kubelet.config().memory_manager {
        MemoryManagerPolicy::Static { reserved } => {
            let own = reserved.iter().filter(|one| one.numa == numa.id && one.kind == kind);
            own.map(|one| one.bytes).fold(0, u64::saturating_add)
        }
        MemoryManagerPolicy::None => 0,
    };
    let free = kubelet.free_memory();
    let free = |kind: MemoryKind| {
        let listed = free.iter().find(|free| free.kind == kind)?;
        listed.bytes.get(at).copied().flatten()
    };
    let mut resources = Vec::new();
    let mut add = |kind: MemoryKind, capacity: u64| {
        let allocatable = capacity.saturating_sub(reserved(kind));
        let available = free(kind).unwrap_or(allocatable);
        let name = kind.resource_name();
        resources.push(resource(name.as_str(), capacity, allocatable, available));
    };
    add(MemoryKind::Ordinary, numa.memory_bytes);
    for (page_bytes, pages) in &numa.hugepages {
        let kind = MemoryKind::Hugepages { page_bytes: *page_bytes };
        add(kind, page_bytes.saturating_mul(*pages));
    }
    resources
}

fn zone_name(id: u32) -> String {
    format!("node-{id}")
}

fn attributes<'a>(kubelet: &Kubelet, pods: impl Iterator<Item = &'a Key>) -> Vec<Value> {
    let config = kubelet.config();
    let mut list = vec![
        ("topologyManagerPolicy", config.topology_policy.to_string()),
        ("topologyManagerScope", config.topology_scope.to_string()),
    ];
    let mut options = Vec::new();
    if config.prefer_closest_numa_nodes {
        options.push("prefer-closest-numa-nodes=true".to_owned());
    }
    options.extend(
        config.max_allowable_numa_nodes.map(|count| format!("max-allowable-numa-nodes={count}")),
    );
    if !options.is_empty() {
        list.push(("topologyManagerPolicyOptions", options.join(",")));
    }
    match &config.cpu_manager {
        CpuManagerPolicy::None => list.push(("cpuManagerPolicy", "none".to_owned())),
        CpuManagerPolicy::Static { options, .. } => {
            list.push(("cpuManagerPolicy", "static".to_owned()));
            let options: Vec<String> =
                options.iter().map(|option| format!("{option}=true")).collect();
            if !options.is_empty() {
                list.push(("cpuManagerPolicyOptions", options.join(",")));
            }
            let reserved = kubelet.reserved_cpus().unwrap_or(CpuSet::EMPTY);
            list.push(("reservedSystemCPUs", reserved.to_string()));
        }
    }
    let memory = match &config.memory_manager {
        MemoryManagerPolicy::None => "None",
        MemoryManagerPolicy::Static { .. } => "Static",
    };
    list.push(("memoryManagerPolicy", memory.to_owned()));
    let pods = pods.map(|key| (key.namespace.as_str(), key.name.as_str()));
    list.push((fingerprint::ATTRIBUTE, fingerprint::of(pods)));
    list.push((fingerprint::METHOD_ATTRIBUTE, fingerprint::METHOD_ALL.to_owned()));
    list.into_iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
}

/// `topologyPolicies`, which exporters wrote before attributes existed.
fn deprecated_policy(kubelet: &Kubelet) -> String {
    let config = kubelet.config();
    let policy = match config.topology_policy {
        TopologyPolicy::SingleNumaNode => "SingleNUMANode",
        TopologyPolicy::Restricted => "Restricted",
        TopologyPolicy::BestEffort => "BestEffort",
        TopologyPolicy::None => return "None".to_owned(),
    };
    let scope = match config.topology_scope {
        berth_kubelet::TopologyScope::Pod => "PodLevel",
        berth_kubelet::TopologyScope::Container => "ContainerLevel",
    };
    format!("{policy}{scope}")
}
