//! What a kubelet's managers have given to whom, in all versions of their files.
//!
//! Owns the formats:
//! - CPUs: by container id (until 1.17), then by pod and container, then also by pod, then as a text in
//!   `data` (1.37).
//! - Memory: by pod and container, then also by pod, then as a text in `data` (1.37).
//! - Devices: a list (until 1.19), then lists by NUMA node. A device of several is in several lists.
//!
//! Must not know what pods are called: there are only UIDs in these files.

use std::collections::BTreeMap;

use berth_model::idset::CpuSet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::checksum::{Checksum, cpu_checksum, data_checksum, device_checksum, memory_checksum};
use crate::list::{as_list, list, shortened};
use crate::root::Notes;

const NOT_ITS_OWN: &str = "let the kubelet write it anew: drain the node, remove the file, restart the \
                           kubelet";

/// The CPU manager's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuState {
    /// Version of the format.
    pub version: u8,
    /// The policy that it was written under.
    pub policy: String,
    /// CPUs that are nobody's own.
    #[serde(with = "as_list")]
    pub shared: CpuSet,
    /// CPUs that are containers' own.
    pub containers: Vec<ContainerCpus>,
    /// CPUs that are pods' own.
    pub pods: Vec<PodCpus>,
    /// Whether the file is as the kubelet wrote it.
    pub checksum: Option<Checksum>,
}

/// CPUs of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerCpus {
    /// UID of the pod; `None` in the first version.
    pub pod: Option<String>,
    /// Name of the container; its id in the first version.
    pub container: String,
    /// Its CPUs.
    #[serde(with = "as_list")]
    pub cpus: CpuSet,
}

/// CPUs of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCpus {
    /// UID of the pod.
    pub pod: String,
    /// Its CPUs.
    #[serde(with = "as_list")]
    pub cpus: CpuSet,
}

/// The memory manager's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryState {
    /// Version of the format.
    pub version: u8,
    /// The policy that it was written under.
    pub policy: String,
    /// NUMA nodes.
    pub nodes: Vec<NodeState>,
    /// Memory of containers.
    pub containers: Vec<ContainerMemory>,
    /// Memory of pods.
    pub pods: Vec<PodMemory>,
    /// Whether the file is as the kubelet wrote it.
    pub checksum: Option<Checksum>,
}

/// A NUMA node's books.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    /// Id of the node.
    pub id: u32,
    /// How many pieces of memory are given away.
    pub assignments: u64,
    /// NUMA nodes that give memory together with it, itself included.
    pub group: Vec<u32>,
    /// Amounts by kind: `memory`, `hugepages-1Gi`.
    pub memory: BTreeMap<String, MemoryTable>,
}

/// Amounts of a kind of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryTable {
    /// All there is.
    pub total_bytes: u64,
    /// Kept for the system.
    pub system_reserved_bytes: u64,
    /// What can be given away.
    pub allocatable_bytes: u64,
    /// What is given away.
    pub reserved_bytes: u64,
    /// What is not.
    pub free_bytes: u64,
}

/// Memory of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerMemory {
    /// UID of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
    /// Its memory.
    pub blocks: Vec<Block>,
}

/// Memory of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMemory {
    /// UID of the pod.
    pub pod: String,
    /// Its memory.
    pub blocks: Vec<Block>,
}

/// An amount of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    /// NUMA nodes it may come from.
    pub nodes: Vec<u32>,
    /// Kind: `memory`, `hugepages-1Gi`.
    pub kind: String,
    /// How much.
    pub bytes: u64,
}

/// The device manager's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceState {
    /// Version of the format.
    pub version: u8,
    /// Devices given away.
    pub entries: Vec<DeviceEntry>,
    /// Ids of all devices, by resource.
    pub registered: BTreeMap<String, Vec<String>>,
    /// Whether the file is as the kubelet wrote it.
    pub checksum: Option<Checksum>,
}

/// Devices of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceEntry {
    /// UID of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
    /// Resource.
    pub resource: String,
    /// Devices, by id.
    pub devices: Vec<HeldDevice>,
}

/// A device that is given away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldDevice {
    /// Its id.
    pub id: String,
    /// NUMA nodes that the plugin said it is at.
    pub numa: Vec<u32>,
}

/// Go finds fields whatever their case.
pub(crate) fn case_blind<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    map.get(name).or_else(|| {
        map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    })
}

/// A state file as a tree.
pub(crate) fn parsed(path: &str, text: &str, notes: &mut Notes) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) => {
            let what = format!("is no JSON ({error}), so what it holds is unknown");
            notes.add(path, what, NOT_ITS_OWN);
            None
        }
    }
}

/// A reader of one file, which complains once about all that is odd in it.
struct Reader {
    odd: Vec<String>,
}

impl Reader {
    fn strange(&mut self, what: impl Into<String>) {
        if self.odd.len() < 8 {
            self.odd.push(what.into());
        }
    }

    fn text(&mut self, map: &Map<String, Value>, name: &str) -> String {
        match case_blind(map, name) {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Null) => String::new(),
            Some(_) => {
                self.strange(format!("{name} is no text"));
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
                self.strange(format!("{name} is no map"));
                Vec::new()
            }
        }
    }

    fn cpus(&mut self, value: &Value, whose: &str) -> CpuSet {
        let found = value.as_str().map(list);
        match found {
            Some(Ok(cpus)) => cpus,
            Some(Err(why)) => {
                self.strange(format!("CPUs of {:?} are no list ({why})", shortened(whose)));
                CpuSet::EMPTY
            }
            None => {
                self.strange(format!("CPUs of {:?} are no text", shortened(whose)));
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
            self.strange(format!("NUMA nodes of {:?} are no list of ids", shortened(whose)));
            Vec::new()
        })
    }

    fn blocks(&mut self, value: Option<&Value>, whose: &str) -> Vec<Block> {
        let list = match value {
            None | Some(Value::Null) => return Vec::new(),
            Some(value) => value.as_array(),
        };
        let Some(list) = list else {
            self.strange(format!("memory of {:?} is no list", shortened(whose)));
            return Vec::new();
        };
        let mut blocks = Vec::new();
        for value in list {
            let Some(block) = value.as_object() else {
                self.strange(format!("memory of {:?} is no block", shortened(whose)));
                continue;
            };
            let nodes = self.ids(case_blind(block, "numaAffinity"), whose);
            let bytes = case_blind(block, "size").and_then(Value::as_u64).unwrap_or(0);
            blocks.push(Block { nodes, kind: self.text(block, "type"), bytes });
        }
        blocks
    }

    /// Complains about the file as a whole.
    fn finish(self, path: &str, checksum: Checksum, notes: &mut Notes) {
        if !self.odd.is_empty() {
            let what = format!("is not as kubelets write it ({})", self.odd.join("; "));
            notes.add(path, what, NOT_ITS_OWN);
        }
        if checksum == Checksum::Wrong {
            let what = "has a wrong checksum: somebody else changed it, or it is damaged";
            notes.add(path, what, NOT_ITS_OWN);
        }
    }
}

/// The state, its version, and its checksum; newer kubelets keep a text with the real one inside.
fn unwrapped(
    value: &Value,
    path: &str,
    versions: [u8; 2],
    older: fn(&Map<String, Value>) -> [Option<u32>; 2],
    notes: &mut Notes,
) -> Option<(Map<String, Value>, u8, Checksum)> {
    let Some(outer) = value.as_object() else {
        notes.add(path, "is no map, so what it holds is unknown", NOT_ITS_OWN);
        return None;
    };
    let data = case_blind(outer, "data").and_then(Value::as_str);
    if let Some(data) = data {
        let checksum =
            Checksum::of(case_blind(outer, "dataChecksum"), &[Some(data_checksum(data))]);
        let inner = parsed(path, data, notes)?;
        let Value::Object(inner) = inner else {
            notes.add(path, "has data that is no map, so what it holds is unknown", NOT_ITS_OWN);
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
                _ => reader.strange(format!("the entry {:?} is no map", shortened(key))),
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
                reader.strange(format!("the NUMA node {:?} is none", shortened(key)));
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
                reader.strange(format!("the entry {:?} is no map", shortened(pod)));
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
            notes.add(path, "has no Data, so what it holds is unknown", NOT_ITS_OWN);
            return None;
        };
        let checksum = Checksum::of(case_blind(outer, "Checksum"), &[device_checksum(data)]);
        let mut reader = Reader { odd: Vec::new() };
        let mut version = 2;
        let mut entries = Vec::new();
        let list = case_blind(data, "PodDeviceEntries").and_then(Value::as_array);
        for value in list.into_iter().flatten() {
            let Some(entry) = value.as_object() else {
                reader.strange("an entry is no map");
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
    /// Devices by id, and whether they were a mere list. The node −1 is none.
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
                    // A list that is empty can be null.
                    let ids = if ids.is_null() { Some(Vec::new()) } else { texts(ids) };
                    let (Some(node), Some(ids)) = (node, ids) else {
                        self.strange("devices are no lists by NUMA node");
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
                    None => self.strange("devices are no list"),
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
