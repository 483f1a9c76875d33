//! Zones of the NodeResourceTopology: NUMA nodes with their distances, capacity and available resources.

use std::collections::BTreeMap;

use berth_api::topology::{Cost, Zone, ZoneResource};
use berth_host::kubelet::{DeviceEntry, MemoryTable};
use berth_host::machine::NumaNode;
use berth_model::idset::CpuSet;
use berth_model::machine::Machine as ModelMachine;
use berth_model::resource::MemoryKind;
use berth_topology::detail;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::Subject;
use super::facts::Facts;

pub(super) fn zones(
    subject: Subject<'_>,
    planned: Option<&ModelMachine>,
    facts: &Facts,
) -> Vec<Zone> {
    let zone = |node: &NumaNode| {
        let position = planned.and_then(|machine| Some((machine, machine.numa_position(node.id)?)));
        let mut resources = Vec::new();
        if facts.pins_cpus && !node.cpus.is_empty() {
            resources.push(cpus(subject, node, facts.reserved_cpus));
        }
        if facts.pins_memory {
            resources.extend(memory(subject, node, facts));
        }
        resources.extend(devices(subject, node.id));
        Zone {
            name: name(node.id),
            zone_type: "Node".to_owned(),
            parent: None,
            costs: costs(node),
            attributes: position
                .map_or_else(Vec::new, |(machine, at)| detail::attributes(machine, at)),
            resources,
        }
    };
    subject.reading.machine.numa.iter().map(zone).collect()
}

fn name(id: u32) -> String {
    format!("node-{id}")
}

fn costs(node: &NumaNode) -> Vec<Cost> {
    let cost = |to: u32, distance: u32| Cost { name: name(to), value: i64::from(distance) };
    node.distances.iter().map(|one| cost(one.to, one.distance)).collect()
}

fn amounts(name: &str, capacity: u64, allocatable: u64, available: u64) -> ZoneResource {
    ZoneResource {
        name: name.to_owned(),
        capacity: Quantity(capacity.to_string()),
        allocatable: Quantity(allocatable.to_string()),
        available: Quantity(available.min(allocatable).to_string()),
    }
}

fn cpus(subject: Subject<'_>, node: &NumaNode, reserved: CpuSet) -> ZoneResource {
    let allocatable = node.cpus - reserved;
    let held = subject.reading.kubelet.cpus.as_ref().map_or(CpuSet::EMPTY, |state| {
        let is_there = |pod: &str| subject.is_there(pod);
        let containers = state.containers.iter();
        // Version 1 of the file has no pods.
        let containers =
            containers.filter(|one| one.pod.as_deref().is_none_or(is_there)).map(|one| one.cpus);
        let pods = state.pods.iter().filter(|one| is_there(&one.pod)).map(|one| one.cpus);
        containers.chain(pods).fold(CpuSet::EMPTY, |all, cpus| all | cpus)
    });
    let available = (allocatable - held).len() as u64;
    amounts("cpu", node.cpus.len() as u64, allocatable.len() as u64, available)
}

/// Memory and hugepages, from the kubelet's state or, without one, from its configuration.
fn memory(subject: Subject<'_>, node: &NumaNode, facts: &Facts) -> Vec<ZoneResource> {
    let state = subject.reading.kubelet.memory.as_ref();
    let books = state.and_then(|state| state.nodes.iter().find(|one| one.id == node.id));
    let pages = |one: &berth_host::machine::Hugepages| one.page_bytes.saturating_mul(one.pages);
    let in_hugepages = node.hugepages.iter().map(pages).fold(0, u64::saturating_add);
    let mut kinds = vec![(MemoryKind::Ordinary, node.memory_bytes, in_hugepages)];
    kinds.extend(
        node.hugepages
            .iter()
            .map(|one| (MemoryKind::Hugepages { page_bytes: one.page_bytes }, pages(one), 0)),
    );
    let resource = |(kind, capacity, elsewhere): (MemoryKind, u64, u64)| {
        let name = kind.resource_name();
        if let Some(table) = books.and_then(|books| books.memory.get(name.as_str())) {
            let MemoryTable { total_bytes, allocatable_bytes, free_bytes, .. } = *table;
            return amounts(name.as_str(), total_bytes, allocatable_bytes, free_bytes);
        }
        let own = facts.reserved_memory.iter();
        let own = own.filter(|one| one.numa == node.id && one.kind == kind);
        let reserved = own.map(|one| one.bytes).fold(elsewhere, u64::saturating_add);
        let allocatable = capacity.saturating_sub(reserved);
        amounts(name.as_str(), capacity, allocatable, allocatable)
    };
    kinds.into_iter().map(resource).collect()
}

fn devices(subject: Subject<'_>, node: u32) -> Vec<ZoneResource> {
    let entries = subject.reading.kubelet.devices.iter().flat_map(|state| &state.entries);
    let held: Vec<&DeviceEntry> = entries.filter(|entry| subject.is_there(&entry.pod)).collect();
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for device in subject.offered.iter().filter(|device| device.numa.contains(&node)) {
        let is_held = held.iter().any(|entry| {
            entry.resource == device.resource && entry.devices.iter().any(|one| one.id == device.id)
        });
        let (all, free) = counts.entry(&device.resource).or_default();
        *all += 1;
        *free += u64::from(!is_held);
    }
    counts.iter().map(|(resource, (all, free))| amounts(resource, *all, *all, *free)).collect()
}
