//! State of a kubelet's CPU, memory and device managers, in all versions of their files:
//! - CPUs: by container id (until 1.17), then by pod and container, then also by pod, then as a text in
//!   `data` (1.37).
//! - Memory: by pod and container, then also by pod, then as a text in `data` (1.37).
//! - Devices: a list (until 1.19), then lists by NUMA node. A device of several nodes is in several lists.
//!
//! Pods are identified by UID; the files have no pod names.

use std::collections::BTreeMap;

use berth_model::idset::CpuSet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::checksum::{Checksum, cpu_checksum, data_checksum, device_checksum, memory_checksum};
use crate::list::{as_list, list, shortened};
use crate::root::Notes;

const REWRITE: &str =
    "let the kubelet rewrite it: drain the node, remove the file, restart the kubelet";

/// State of the CPU manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuState {
    /// Of the format, 1 to 4.
    pub version: u8,
    /// Under which the file was written.
    pub policy: String,
    /// The shared pool: CPUs that no container or pod owns.
    #[serde(with = "as_list")]
    pub shared: CpuSet,
    pub containers: Vec<ContainerCpus>,
    pub pods: Vec<PodCpus>,
    pub checksum: Option<Checksum>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerCpus {
    /// UID; `None` in version 1.
    pub pod: Option<String>,
    /// Name; in version 1 its id.
    pub container: String,
    #[serde(with = "as_list")]
    pub cpus: CpuSet,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCpus {
    /// UID.
    pub pod: String,
    #[serde(with = "as_list")]
    pub cpus: CpuSet,
}

/// State of the memory manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryState {
    /// Of the format, 1 to 3.
    pub version: u8,
    pub policy: String,
    pub nodes: Vec<NodeState>,
    pub containers: Vec<ContainerMemory>,
    pub pods: Vec<PodMemory>,
    pub checksum: Option<Checksum>,
}

/// Memory of a NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    pub id: u32,
    /// Number of memory blocks assigned.
    pub assignments: u64,
    /// NUMA nodes that assign memory as a group with it, including itself.
    pub group: Vec<u32>,
    /// By resource: `memory`, `hugepages-1Gi`.
    pub memory: BTreeMap<String, MemoryTable>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryTable {
    pub total_bytes: u64,
    pub system_reserved_bytes: u64,
    pub allocatable_bytes: u64,
    pub reserved_bytes: u64,
    pub free_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerMemory {
    /// UID.
    pub pod: String,
    pub container: String,
    pub blocks: Vec<Block>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMemory {
    /// UID.
    pub pod: String,
    pub blocks: Vec<Block>,
}

/// Memory from a set of NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    pub nodes: Vec<u32>,
    /// Resource: `memory`, `hugepages-1Gi`.
    pub kind: String,
    pub bytes: u64,
}

/// State of the device manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceState {
    /// Of the format, 1 or 2.
    pub version: u8,
    pub entries: Vec<DeviceEntry>,
    /// Ids of all registered devices, by resource.
    pub registered: BTreeMap<String, Vec<String>>,
    pub checksum: Option<Checksum>,
}

/// Devices of one resource that a container has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceEntry {
    /// UID.
    pub pod: String,
    pub container: String,
    pub resource: String,
    pub devices: Vec<HeldDevice>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldDevice {
    pub id: String,
    /// NUMA nodes that the plugin reported for it.
    pub numa: Vec<u32>,
}

/// Finds a field as Go does: regardless of case.
pub(crate) fn case_blind<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    map.get(name).or_else(|| {
        map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    })
}

pub(crate) fn parsed(path: &str, text: &str, notes: &mut Notes) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) => {
            let what = format!("is not valid JSON ({error}), so its content is unknown");
            notes.add(path, what, REWRITE);
            None
        }
    }
}

/// Reads one file and collects its problems for a single diagnosis.
struct Reader {
    odd: Vec<String>,
}

impl Reader {
    fn invalid(&mut self, what: impl Into<String>) {
        if self.odd.len() < 8 {
            self.odd.push(what.into());
        }
    }

    fn text(&mut self, map: &Map<String, Value>, name: &str) -> String {
        match case_blind(map, name) {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            Some(_) => {
                self.invalid(format!("{name} is not a string"));
                String::new()
            }
        }
    }

    fn map<'a>(&mut self, map: &'a Map<String, Value>, name: &str) -> Vec<(&'a String, &'a Value)> {
        match case_blind(map, name) {
            Some(Value::Object(found)) => {
                let mut all: Vec<_> = found.iter().collect();
                all.sort_unstable_by_key(|(key, _)| *key);
                all
            }
            None | Some(Value::Null) => Vec::new(),
            Some(_) => {
                self.invalid(format!("{name} is not a map"));
                Vec::new()
            }
        }
    }

    fn cpus(&mut self, value: &Value, whose: &str) -> CpuSet {
        let found = value.as_str().map(list);
        match found {
            Some(Ok(cpus)) => cpus,
            Some(Err(why)) => {
                self.invalid(format!("CPUs of {:?} are not a list ({why})", shortened(whose)));
                CpuSet::EMPTY
            }
            None => {
                self.invalid(format!("CPUs of {:?} are not a string", shortened(whose)));
                CpuSet::EMPTY
            }
        }
    }

    fn ids(&mut self, value: Option<&Value>, whose: &str) -> Vec<u32> {
        let list = match value {
            None | Some(Value::Null) => return Vec::new(),
            Some(value) => value.as_array(),
        };
        let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let found = list.and_then(|list| list.iter().map(id).collect());
        found.unwrap_or_else(|| {
            self.invalid(format!("NUMA nodes of {:?} are not a list of ids", shortened(whose)));
            Vec::new()
        })
    }

    fn blocks(&mut self, value: Option<&Value>, whose: &str) -> Vec<Block> {
        let list = match value {
            None | Some(Value::Null) => return Vec::new(),
            Some(value) => value.as_array(),
        };
        let Some(list) = list else {
            self.invalid(format!("memory of {:?} is not a list", shortened(whose)));
            return Vec::new();
        };
        let mut blocks = Vec::new();
        for value in list {
            let Some(block) = value.as_object() else {
                self.invalid(format!("a memory block of {:?} is not a map", shortened(whose)));
                continue;
            };
            let nodes = self.ids(case_blind(block, "numaAffinity"), whose);
            let bytes = case_blind(block, "size").and_then(Value::as_u64).unwrap_or(0);
            blocks.push(Block { nodes, kind: self.text(block, "type"), bytes });
        }
        blocks
    }

    fn finish(self, path: &str, checksum: Checksum, notes: &mut Notes) {
        if !self.odd.is_empty() {
            let what = format!("has not the kubelet's format ({})", self.odd.join("; "));
            notes.add(path, what, REWRITE);
        }
        if checksum == Checksum::Wrong {
            let what = "has a wrong checksum: another program changed it, or it is damaged";
            notes.add(path, what, REWRITE);
        }
    }
}

/// The state, its version and its checksum. Newer kubelets wrap the state as text in `data`.
fn unwrapped(
    value: &Value,
    path: &str,
    versions: [u8; 2],
    older: fn(&Map<String, Value>) -> [Option<u32>; 2],
    notes: &mut Notes,
) -> Option<(Map<String, Value>, u8, Checksum)> {
    let Some(outer) = value.as_object() else {
        notes.add(path, "is not a map, so its content is unknown", REWRITE);
        return None;
    };
    let data = case_blind(outer, "data").and_then(Value::as_str);
    if let Some(data) = data {
        let checksum =
            Checksum::of(case_blind(outer, "dataChecksum"), &[Some(data_checksum(data))]);
        let inner = parsed(path, data, notes)?;
        let Value::Object(inner) = inner else {
            notes.add(path, "its data is not a map, so its content is unknown", REWRITE);
            return None;
        };
        return Some((inner, versions[1], checksum));
    }
    let checksum = Checksum::of(case_blind(outer, "checksum"), &older(outer));
    let version =
        if case_blind(outer, "podEntries").is_some() { versions[0] + 1 } else { versions[0] };
    Some((outer.clone(), version, checksum))
}

impl CpuState {
    pub(super) fn of(value: &Value, path: &str, notes: &mut Notes) -> Option<Self> {
        let (map, mut version, checksum) = unwrapped(value, path, [2, 4], cpu_checksum, notes)?;
        let mut reader = Reader { odd: Vec::new() };
        let mut containers = Vec::new();
        for (key, value) in reader.map(&map, "entries") {
            match value {
                Value::String(_) => {
                    version = 1;
                    let cpus = reader.cpus(value, key);
                    containers.push(ContainerCpus { pod: None, container: key.clone(), cpus });
                }
                Value::Object(inner) => {
                    let mut inner: Vec<_> = inner.iter().collect();
                    inner.sort_unstable_by_key(|(name, _)| *name);
                    for (name, value) in inner {
                        let cpus = reader.cpus(value, name);
                        let pod = Some(key.clone());
                        containers.push(ContainerCpus { pod, container: name.clone(), cpus });
                    }
                }
                _ => reader.invalid(format!("the entry {:?} is not a map", shortened(key))),
            }
        }
        let mut pods = Vec::new();
        for (pod, value) in reader.map(&map, "podEntries") {
            let cpus = value.as_object().and_then(|entry| case_blind(entry, "cpuSet"));
            let cpus = cpus.map_or(CpuSet::EMPTY, |cpus| reader.cpus(cpus, pod));
            pods.push(PodCpus { pod: pod.clone(), cpus });
        }
        let shared = case_blind(&map, "defaultCpuSet").unwrap_or(&Value::Null);
        let shared = reader.cpus(shared, "the shared pool");
        let policy = reader.text(&map, "policyName");
        reader.finish(path, checksum, notes);
        Some(Self { version, policy, shared, containers, pods, checksum: Some(checksum) })
    }
}

impl MemoryState {
    pub(super) fn of(value: &Value, path: &str, notes: &mut Notes) -> Option<Self> {
        let (map, version, checksum) = unwrapped(value, path, [1, 3], memory_checksum, notes)?;
        let mut reader = Reader { odd: Vec::new() };
        let mut nodes = Vec::new();
        for (key, value) in reader.map(&map, "machineState") {
            let (Ok(id), Some(node)) = (key.parse(), value.as_object()) else {
                reader.invalid(format!("{:?} is not a NUMA node", shortened(key)));
                continue;
            };
            let tables = reader.map(node, "memoryMap");
            let tables = tables.into_iter().map(|(kind, table)| (kind.clone(), amounts(table)));
            nodes.push(NodeState {
                id,
                assignments: case_blind(node, "numberOfAssignments")
                    .and_then(Value::as_u64)
                    .unwrap_or(0),
                group: reader.ids(case_blind(node, "cells"), key),
                memory: tables.collect(),
            });
        }
        nodes.sort_unstable_by_key(|node| node.id);
        let mut containers = Vec::new();
        for (pod, value) in reader.map(&map, "entries") {
            let Some(inner) = value.as_object() else {
                reader.invalid(format!("the entry {:?} is not a map", shortened(pod)));
                continue;
            };
            let mut inner: Vec<_> = inner.iter().collect();
            inner.sort_unstable_by_key(|(name, _)| *name);
            for (name, value) in inner {
                let blocks = reader.blocks(Some(value), name);
                containers.push(ContainerMemory {
                    pod: pod.clone(),
                    container: name.clone(),
                    blocks,
                });
            }
        }
        let mut pods = Vec::new();
        for (pod, value) in reader.map(&map, "podEntries") {
            let blocks = value.as_object().and_then(|entry| case_blind(entry, "memoryBlocks"));
            pods.push(PodMemory { pod: pod.clone(), blocks: reader.blocks(blocks, pod) });
        }
        let policy = reader.text(&map, "policyName");
        reader.finish(path, checksum, notes);
        Some(Self { version, policy, nodes, containers, pods, checksum: Some(checksum) })
    }
}

fn amounts(value: &Value) -> MemoryTable {
    let number = |name: &str| {
        let found = value.as_object().and_then(|table| case_blind(table, name));
        found.and_then(Value::as_u64).unwrap_or(0)
    };
    MemoryTable {
        total_bytes: number("total"),
        system_reserved_bytes: number("systemReserved"),
        allocatable_bytes: number("allocatable"),
        reserved_bytes: number("reserved"),
        free_bytes: number("free"),
    }
}

impl DeviceState {
    pub(super) fn of(value: &Value, path: &str, notes: &mut Notes) -> Option<Self> {
        let outer = value.as_object();
        let data = outer.and_then(|outer| case_blind(outer, "Data")).and_then(Value::as_object);
        let (Some(outer), Some(data)) = (outer, data) else {
            notes.add(path, "has no Data, so its content is unknown", REWRITE);
            return None;
        };
        let checksum = Checksum::of(case_blind(outer, "Checksum"), &[device_checksum(data)]);
        let mut reader = Reader { odd: Vec::new() };
        let mut version = 2;
        let mut entries = Vec::new();
        let list = case_blind(data, "PodDeviceEntries").and_then(Value::as_array);
        for value in list.into_iter().flatten() {
            let Some(entry) = value.as_object() else {
                reader.invalid("an entry is not a map");
                continue;
            };
            let (devices, listed) = reader.devices(case_blind(entry, "DeviceIDs"));
            if listed {
                version = 1;
            }
            entries.push(DeviceEntry {
                pod: reader.text(entry, "PodUID"),
                container: reader.text(entry, "ContainerName"),
                resource: reader.text(entry, "ResourceName"),
                devices,
            });
        }
        let mut registered = BTreeMap::new();
        for (resource, ids) in reader.map(data, "RegisteredDevices") {
            let ids = ids.as_array().map(Vec::as_slice).unwrap_or_default().iter();
            let ids: Vec<String> = ids.filter_map(Value::as_str).map(str::to_owned).collect();
            registered.insert(resource.clone(), ids);
        }
        reader.finish(path, checksum, notes);
        Some(Self { version, entries, registered, checksum: Some(checksum) })
    }
}

impl Reader {
    /// Devices by id, and whether they were a plain list. NUMA node −1 means unknown.
    fn devices(&mut self, value: Option<&Value>) -> (Vec<HeldDevice>, bool) {
        let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let texts = |value: &Value| -> Option<Vec<String>> {
            let texts = value.as_array()?.iter();
            texts.map(|one| one.as_str().map(str::to_owned)).collect()
        };
        let mut listed = false;
        match value {
            None | Some(Value::Null) => {}
            Some(Value::Object(nodes)) => {
                for (node, ids) in nodes {
                    let node: Option<i64> = node.parse().ok();
                    // An empty list may be null.
                    let ids = if ids.is_null() { Some(Vec::new()) } else { texts(ids) };
                    let (Some(node), Some(ids)) = (node, ids) else {
                        self.invalid("devices are not lists by NUMA node");
                        continue;
                    };
                    for id in ids {
                        found.entry(id).or_default().extend(u32::try_from(node).ok());
                    }
                }
            }
            Some(list) => {
                listed = true;
                match texts(list) {
                    Some(ids) => found.extend(ids.into_iter().map(|id| (id, Vec::new()))),
                    None => self.invalid("devices are not a list"),
                }
            }
        }
        let held = found.into_iter().map(|(id, mut numa)| {
            numa.sort_unstable();
            HeldDevice { id, numa }
        });
        (held.collect(), listed)
    }
}
