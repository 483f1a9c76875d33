//! Checksums of kubelets' state files.
//!
//! A kubelet computes them over its Go types, printed field by field by spew (`%#v`, keys sorted), with
//! 32-bit FNV-1a. Tests compare with checksums that the kubelet's own code computed.

use std::fmt::Write as _;

use base64::Engine as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Checksum {
    Right,
    /// The file was changed by another program or is damaged; the kubelet refuses it.
    Wrong,
    /// As in files of very old kubelets.
    Absent,
    /// The file has parts whose checksum cannot be computed here.
    NotVerified,
}

impl Checksum {
    /// Compares a checksum with the valid ones; an unknown one is `None`.
    pub(super) fn of(written: Option<&Value>, right: &[Option<u32>]) -> Self {
        match written {
            None | Some(Value::Null) => Self::Absent,
            Some(value) if value.as_u64() == Some(0) => Self::Absent,
            _ if right.iter().all(Option::is_none) => Self::NotVerified,
            Some(value) => {
                let written = value.as_u64();
                let same = right.iter().flatten().any(|right| written == Some(u64::from(*right)));
                if same { Self::Right } else { Self::Wrong }
            }
        }
    }
}

/// 32-bit FNV-1a.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The checksum of a payload that is stored as text.
pub(crate) fn data_checksum(data: &str) -> u32 {
    hash(&format!("(string){data}"))
}

/// Valid checksums of a CPU manager's state, without and with a member that is omitted when empty. `None`:
/// there are entries for whole pods, whose Go types are private.
pub(crate) fn cpu_checksum(state: &Map<String, Value>) -> [Option<u32>; 2] {
    let found = || {
        let get = |name| super::case_blind(state, name);
        let (kind, entries) = match get("entries") {
            None => ("map[string]map[string]string", "map[]".to_owned()),
            Some(Value::Null) => ("map[string]map[string]string", "<nil>".to_owned()),
            Some(Value::Object(map)) if map.values().any(Value::is_string) => {
                ("map[string]string", map_of(map, text)?)
            }
            Some(Value::Object(map)) => {
                let inner = |value: &Value| map_of(value.as_object()?, text);
                ("map[string]map[string]string", map_of(map, inner)?)
            }
            Some(_) => return None,
        };
        let policy = text(get("policyName")?)?;
        let default = text(get("defaultCpuSet")?)?;
        let whole = |pods: &str| {
            hash(&format!(
                "(*state.CPUManagerCheckpoint){{PolicyName:(string){policy} \
                 DefaultCPUSet:(string){default} Entries:({kind}){entries} {pods}\
                 Checksum:(checksum.Checksum)0}}"
            ))
        };
        Some((whole(""), whole("PodEntries:(state.PodCPUAssignments)map[] ")))
    };
    if has_pod_entries(state) {
        return [None, None];
    }
    found().map_or([None, None], |(plain, with_pods)| [Some(plain), Some(with_pods)])
}

fn has_pod_entries(state: &Map<String, Value>) -> bool {
    let pods = super::case_blind(state, "podEntries").and_then(Value::as_object);
    pods.is_some_and(|pods| !pods.is_empty())
}

/// As [`cpu_checksum`], of a memory manager's state.
pub(crate) fn memory_checksum(state: &Map<String, Value>) -> [Option<u32>; 2] {
    let found = || {
        let get = |name| super::case_blind(state, name);
        let policy = text(get("policyName")?)?;
        let nodes = match get("machineState") {
            None => "map[]".to_owned(),
            Some(Value::Null) => "<nil>".to_owned(),
            Some(value) => numbered_map(value.as_object()?, node)?,
        };
        let entries = match get("entries") {
            None => "map[]".to_owned(),
            Some(Value::Null) => "<nil>".to_owned(),
            Some(value) => {
                let blocks = |value: &Value| list_of(value, block);
                map_of(value.as_object()?, |pod| map_of(pod.as_object()?, blocks))?
            }
        };
        let whole = |pods: &str| {
            hash(&format!(
                "(*state.MemoryManagerCheckpoint){{PolicyName:(string){policy} \
                 MachineState:(state.NUMANodeMap){nodes} \
                 Entries:(state.ContainerMemoryAssignments){entries} {pods}\
                 Checksum:(checksum.Checksum)0}}"
            ))
        };
        Some((whole(""), whole("PodEntries:(state.PodMemoryAssignments)map[] ")))
    };
    if has_pod_entries(state) {
        return [None, None];
    }
    found().map_or([None, None], |(plain, with_pods)| [Some(plain), Some(with_pods)])
}

fn node(value: &Value) -> Option<String> {
    let node = value.as_object()?;
    let get = |name| super::case_blind(node, name);
    let count = get("numberOfAssignments").map_or(Some(0), Value::as_i64)?;
    let memory = match get("memoryMap") {
        None | Some(Value::Null) => "<nil>".to_owned(),
        Some(value) => map_of(value.as_object()?, table)?,
    };
    let cells = integers(get("cells"))?;
    Some(format!(
        "<*>{{NumberOfAssignments:(int){count} \
         MemoryMap:(map[v1.ResourceName]*state.MemoryTable){memory} Cells:([]int){cells}}}"
    ))
}

fn table(value: &Value) -> Option<String> {
    let table = value.as_object()?;
    let number = |name| super::case_blind(table, name).map_or(Some(0), Value::as_u64);
    Some(format!(
        "<*>{{TotalMemSize:(uint64){} SystemReserved:(uint64){} Allocatable:(uint64){} \
         Reserved:(uint64){} Free:(uint64){}}}",
        number("total")?,
        number("systemReserved")?,
        number("allocatable")?,
        number("reserved")?,
        number("free")?,
    ))
}

fn block(value: &Value) -> Option<String> {
    let block = value.as_object()?;
    let get = |name| super::case_blind(block, name);
    let nodes = integers(get("numaAffinity"))?;
    let kind = get("type").map_or(Some(String::new()), text)?;
    let size = get("size").map_or(Some(0), Value::as_u64)?;
    Some(format!(
        "{{NUMAAffinity:([]int){nodes} Type:(v1.ResourceName){kind} Size:(uint64){size}}}"
    ))
}

fn integers(value: Option<&Value>) -> Option<String> {
    let number = |value: &Value| value.as_i64().map(|number| number.to_string());
    value.map_or_else(|| Some("<nil>".to_owned()), |value| list_of(value, number))
}

/// The checksum of the member `Data` of a device manager's state.
pub(crate) fn device_checksum(data: &Map<String, Value>) -> Option<u32> {
    let get = |name| super::case_blind(data, name);
    let absent = || Some("<nil>".to_owned());
    let entries = get("PodDeviceEntries").map_or_else(absent, |value| list_of(value, entry))?;
    let registered = match get("RegisteredDevices") {
        None | Some(Value::Null) => "<nil>".to_owned(),
        Some(value) => map_of(value.as_object()?, |ids| list_of(ids, text))?,
    };
    Some(hash(&format!(
        "(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} \
         RegisteredDevices:(map[string][]string){registered}}}"
    )))
}

fn entry(value: &Value) -> Option<String> {
    let entry = value.as_object()?;
    let get = |name| super::case_blind(entry, name);
    let named = |name| get(name).map_or(Some(String::new()), text);
    let (kind, ids) = match get("DeviceIDs") {
        Some(value @ Value::Array(_)) => ("[]string", list_of(value, text)?),
        Some(Value::Object(map)) => {
            ("checkpoint.DevicesPerNUMA", numbered_map(map, |ids| list_of(ids, text))?)
        }
        None | Some(Value::Null) => ("checkpoint.DevicesPerNUMA", "<nil>".to_owned()),
        Some(_) => return None,
    };
    let answer = match get("AllocResp") {
        None | Some(Value::Null) => "<nil>".to_owned(),
        Some(value) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str()?).ok()?;
            let mut written = String::from("[");
            for (at, byte) in bytes.iter().enumerate() {
                let _ = write!(written, "{}{byte}", if at == 0 { "" } else { " " });
            }
            written + "]"
        }
    };
    Some(format!(
        "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} DeviceIDs:({kind}){ids} \
         AllocResp:([]uint8){answer}}}",
        named("PodUID")?,
        named("ContainerName")?,
        named("ResourceName")?,
    ))
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn list_of(value: &Value, one: impl Fn(&Value) -> Option<String>) -> Option<String> {
    if value.is_null() {
        return Some("<nil>".to_owned());
    }
    let all: Vec<String> = value.as_array()?.iter().map(one).collect::<Option<_>>()?;
    Some(format!("[{}]", all.join(" ")))
}

/// A map with sorted keys.
fn map_of(map: &Map<String, Value>, one: impl Fn(&Value) -> Option<String>) -> Option<String> {
    let mut keys: Vec<(&String, &Value)> = map.iter().collect();
    keys.sort_unstable_by_key(|(key, _)| *key);
    let all = keys.into_iter().map(|(key, value)| Some(format!("{key}:{}", one(value)?)));
    Some(format!("map[{}]", all.collect::<Option<Vec<_>>>()?.join(" ")))
}

/// A map with numeric keys in numeric order.
fn numbered_map(
    map: &Map<String, Value>,
    one: impl Fn(&Value) -> Option<String>,
) -> Option<String> {
    let keys = map.iter().map(|(key, value)| Some((key.parse::<i64>().ok()?, value)));
    let mut keys: Vec<(i64, &Value)> = keys.collect::<Option<_>>()?;
    keys.sort_unstable_by_key(|(key, _)| *key);
    let all = keys.into_iter().map(|(key, value)| Some(format!("{key}:{}", one(value)?)));
    Some(format!("map[{}]", all.collect::<Option<Vec<_>>>()?.join(" ")))
}
