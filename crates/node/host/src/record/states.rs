//! Kubelets' state files in recordings: UIDs, names and ids replaced, answers of plugins removed.
//!
//! A valid checksum is recomputed; an invalid one stays invalid.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::names::Names;
use super::{CPU_STATE, DEVICE_STATE, MEMORY_STATE, STATE_BYTES_MAX, parsed};
use crate::kubelet::{
    KubeletPaths, case_blind, cpu_checksum, data_checksum, device_checksum, memory_checksum,
};
use crate::root::{Fault, Notes, Root};

/// The existing state files, by name.
pub(super) fn read(
    root: &Root,
    paths: &KubeletPaths,
    notes: &mut Notes,
) -> BTreeMap<&'static str, Value> {
    let mut states = BTreeMap::new();
    for name in [CPU_STATE, MEMORY_STATE, DEVICE_STATE] {
        let path = paths.state(name);
        match root.text(&path, STATE_BYTES_MAX) {
            Ok(text) => states.extend(parsed(&path, &text, notes).map(|value| (name, value))),
            Err(Fault::Missing) => {}
            Err(fault) => notes.fault(&path, &fault, "it is not in the recording"),
        }
    }
    states
}

/// Names to replace.
#[derive(Debug, Default)]
pub(super) struct PrivateNames {
    pub(super) pods: BTreeSet<String>,
    pub(super) containers: BTreeSet<String>,
    pub(super) container_names: BTreeSet<String>,
    pub(super) devices: BTreeSet<String>,
}

impl PrivateNames {
    pub(super) fn collect(&mut self, state: &Value) {
        let Some(outer) = state.as_object() else { return };
        let inner = case_blind(outer, "data").and_then(Value::as_str);
        if let Some(inner) = inner.and_then(|text| serde_json::from_str(text).ok()) {
            self.collect(&inner);
        }
        for (key, value) in entries(outer, "entries") {
            match value {
                Value::Object(inner) => {
                    self.pods.insert(key.clone());
                    self.container_names.extend(inner.keys().cloned());
                }
                _ => {
                    self.containers.insert(key.clone());
                }
            }
        }
        self.pods.extend(entries(outer, "podEntries").map(|(key, _)| key.clone()));
        let data = case_blind(outer, "Data").and_then(Value::as_object);
        let list =
            data.and_then(|data| case_blind(data, "PodDeviceEntries")).and_then(Value::as_array);
        for entry in list.into_iter().flatten().filter_map(Value::as_object) {
            let text = |name| case_blind(entry, name).and_then(Value::as_str).map(str::to_owned);
            self.pods.extend(text("PodUID"));
            self.container_names.extend(text("ContainerName"));
            self.devices(case_blind(entry, "DeviceIDs"));
        }
        for (_, ids) in data.into_iter().flat_map(|data| entries(data, "RegisteredDevices")) {
            self.devices(Some(ids));
        }
    }

    fn devices(&mut self, value: Option<&Value>) {
        match value {
            Some(Value::Array(ids)) => {
                let ids = ids.iter().filter_map(Value::as_str);
                let bases =
                    ids.map(|id| id.split_once("::").map_or(id, |(base, _)| base).to_owned());
                self.devices.extend(bases);
            }
            Some(Value::Object(nodes)) => nodes.values().for_each(|ids| self.devices(Some(ids))),
            _ => {}
        }
    }
}

fn entries<'a>(
    map: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    case_blind(map, name).and_then(Value::as_object).into_iter().flatten()
}

/// A state file's content for the recording.
pub(super) fn scrubbed(name: &str, state: Value, names: &mut Names) -> Value {
    let Value::Object(state) = state else { return Value::Null };
    if name == DEVICE_STATE {
        return devices(&state, names);
    }
    let sum = if name == CPU_STATE { cpu_checksum } else { memory_checksum };
    let mut kept = books(&state, names);
    if let Some(written) = case_blind(&state, "checksum") {
        // Two variants are valid; recompute the one that matched.
        let before = sum(&state);
        let which = before.iter().position(|right| right.map(u64::from) == written.as_u64());
        let right = which.and_then(|which| sum(&kept).get(which).copied().flatten());
        kept.insert("checksum".to_owned(), again(written, which.is_some(), right));
    }
    if let Some(data) = case_blind(&state, "data").and_then(Value::as_str) {
        let inner: Option<Value> = serde_json::from_str(data).ok();
        let inner = inner.as_ref().and_then(Value::as_object).map(|inner| books(inner, names));
        let text = inner.map_or_else(|| "?".to_owned(), |inner| Value::Object(inner).to_string());
        if let Some(written) = case_blind(&state, "dataChecksum") {
            let was_right = written.as_u64() == Some(u64::from(data_checksum(data)));
            let sum = again(written, was_right, Some(data_checksum(&text)));
            kept.insert("dataChecksum".to_owned(), sum);
        }
        kept.insert("data".to_owned(), json!(text));
    }
    Value::Object(kept)
}

/// The checksum after replacement.
fn again(written: &Value, was_right: bool, right: Option<u32>) -> Value {
    match right {
        Some(right) if was_right => json!(right),
        _ if written.is_number() => written.clone(),
        _ => json!(1),
    }
}

/// State of the CPU or memory manager, reduced to the members that are read.
fn books(state: &Map<String, Value>, names: &mut Names) -> Map<String, Value> {
    let mut kept = Map::new();
    for name in ["policyName", "defaultCpuSet", "machineState"] {
        if let Some(value) = case_blind(state, name) {
            kept.insert(name.to_owned(), value.clone());
        }
    }
    if let Some(value) = case_blind(state, "entries") {
        let inner = |value: &Value, names: &mut Names| match value.as_object() {
            Some(inner) => {
                let pairs =
                    inner.iter().map(|(key, value)| (names.container_name(key), value.clone()));
                Value::Object(pairs.collect())
            }
            None => value.clone(),
        };
        let pairs = value.as_object().into_iter().flatten();
        let pairs = pairs.map(|(key, value)| {
            let key = if value.is_object() { names.pod(key) } else { names.container(key) };
            (key, inner(value, names))
        });
        let pairs: Map<String, Value> = pairs.collect();
        let entries = if value.is_null() { Value::Null } else { Value::Object(pairs) };
        kept.insert("entries".to_owned(), entries);
    }
    if let Some(pods) = case_blind(state, "podEntries").and_then(Value::as_object) {
        let pairs = pods.iter().map(|(key, value)| (names.pod(key), value.clone()));
        kept.insert("podEntries".to_owned(), Value::Object(pairs.collect()));
    }
    kept
}

fn devices(state: &Map<String, Value>, names: &mut Names) -> Value {
    let Some(data) = case_blind(state, "Data").and_then(Value::as_object) else { return json!({}) };
    let mut kept = Map::new();
    if let Some(list) = case_blind(data, "PodDeviceEntries") {
        let list = list.as_array().map(|list| {
            let maps = list.iter().filter_map(Value::as_object);
            Value::Array(maps.map(|entry| device_entry(entry, names)).collect())
        });
        kept.insert("PodDeviceEntries".to_owned(), list.unwrap_or(Value::Null));
    }
    if let Some(registered) = case_blind(data, "RegisteredDevices") {
        let pairs = registered.as_object().map(|map| {
            let pairs = map.iter().map(|(key, ids)| (key.clone(), device_ids(ids, names)));
            Value::Object(pairs.collect())
        });
        kept.insert("RegisteredDevices".to_owned(), pairs.unwrap_or(Value::Null));
    }
    let mut whole = Map::new();
    if let Some(written) = case_blind(state, "Checksum") {
        let was_right = device_checksum(data).map(u64::from) == written.as_u64();
        whole.insert("Checksum".to_owned(), again(written, was_right, device_checksum(&kept)));
    }
    whole.insert("Data".to_owned(), Value::Object(kept));
    Value::Object(whole)
}

fn device_entry(entry: &Map<String, Value>, names: &mut Names) -> Value {
    let text = |name| case_blind(entry, name).and_then(Value::as_str).unwrap_or("");
    json!({
        "PodUID": names.pod(text("PodUID")),
        "ContainerName": names.container_name(text("ContainerName")),
        "ResourceName": text("ResourceName"),
        "DeviceIDs": device_ids(case_blind(entry, "DeviceIDs").unwrap_or(&Value::Null), names),
        // The plugin's answer has environment variables and mounts.
        "AllocResp": Value::Null,
    })
}

fn device_ids(value: &Value, names: &mut Names) -> Value {
    match value {
        Value::Array(ids) => {
            let ids = ids.iter().filter_map(Value::as_str);
            Value::Array(ids.map(|id| Value::String(names.device(id))).collect())
        }
        Value::Object(nodes) => {
            let pairs = nodes.iter().map(|(node, ids)| (node.clone(), device_ids(ids, names)));
            Value::Object(pairs.collect())
        }
        _ => Value::Null,
    }
}
