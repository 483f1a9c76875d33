//! The JSON form of a case, field by field as the vectors document it.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct CaseJson {
    pub(super) id: String,
    #[serde(default)]
    pub(super) stratum: String,
    #[serde(default)]
    pub(super) kubelet_version: Option<String>,
    pub(super) machine: MachineJson,
    pub(super) kubelet: KubeletJson,
    #[serde(default)]
    pub(super) devices: BTreeMap<String, PoolJson>,
    pub(super) initial: StateJson,
    pub(super) ops: Vec<OpJson>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct MachineJson {
    #[serde(default)]
    pub(super) shape: String,
    pub(super) sockets: usize,
    pub(super) numa: Vec<NumaJson>,
    pub(super) core_groups: Vec<CoreGroupJson>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct NumaJson {
    pub(super) id: u32,
    pub(super) cpus: String,
    pub(super) memory_bytes: u64,
    #[serde(default)]
    pub(super) hugepages: BTreeMap<String, u64>,
    #[serde(default)]
    pub(super) distances: Vec<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct CoreGroupJson {
    pub(super) numa: u32,
    pub(super) socket: u32,
    pub(super) uncore: Option<u32>,
    pub(super) threads: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct KubeletJson {
    pub(super) topology_manager: TopologyJson,
    pub(super) cpu_manager: CpuJson,
    pub(super) memory_manager: MemoryJson,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct TopologyJson {
    pub(super) policy: String,
    #[serde(default)]
    pub(super) scope: Option<String>,
    #[serde(default)]
    pub(super) options: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct CpuJson {
    pub(super) policy: String,
    #[serde(default)]
    pub(super) options: Vec<String>,
    #[serde(default)]
    pub(super) reserved_from: Option<String>,
    #[serde(default)]
    pub(super) reserved_cpus: Option<String>,
    #[serde(default)]
    pub(super) reserved_quantity: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct MemoryJson {
    pub(super) policy: String,
    #[serde(default)]
    pub(super) reserved: BTreeMap<String, BTreeMap<String, u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct PoolJson {
    #[serde(default)]
    pub(super) preferred_allocation: Option<String>,
    pub(super) devices: Vec<DeviceJson>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct DeviceJson {
    pub(super) id: String,
    #[serde(default)]
    pub(super) numa: Vec<u32>,
    #[serde(default)]
    pub(super) unhealthy: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct StateJson {
    #[serde(default)]
    pub(super) shared_cpus: Option<String>,
    #[serde(default)]
    pub(super) free_memory: BTreeMap<String, Vec<u64>>,
    #[serde(default)]
    pub(super) free_devices: BTreeMap<String, BTreeMap<String, usize>>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct OpJson {
    pub(super) admit: Option<PodJson>,
    pub(super) remove: Option<String>,
    pub(super) outcome: Option<OutcomeJson>,
    pub(super) after: Option<StateJson>,
    #[serde(default)]
    pub(super) unstable: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct PodJson {
    pub(super) name: String,
    #[serde(default)]
    pub(super) qos: Option<String>,
    #[serde(default)]
    pub(super) init_containers: Vec<ContainerJson>,
    #[serde(default)]
    pub(super) containers: Vec<ContainerJson>,
    pub(super) resources: Option<ResourcesJson>,
    #[serde(default)]
    pub(super) overhead: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct ContainerJson {
    pub(super) name: String,
    pub(super) restart_policy: Option<String>,
    #[serde(flatten)]
    pub(super) resources: ResourcesJson,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct ResourcesJson {
    #[serde(default)]
    pub(super) limits: BTreeMap<String, String>,
    pub(super) requests: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct OutcomeJson {
    pub(super) admitted: bool,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    #[serde(default)]
    pub(super) containers: BTreeMap<String, AllocationJson>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct AllocationJson {
    pub(super) affinity: Option<AffinityJson>,
    pub(super) cpus: Option<String>,
    #[serde(default)]
    pub(super) memory: Vec<BlockJson>,
    #[serde(default)]
    pub(super) devices: BTreeMap<String, DevicesJson>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct AffinityJson {
    pub(super) numa: Option<Vec<u32>>,
    pub(super) preferred: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct BlockJson {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) numa: Vec<u32>,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct DevicesJson {
    pub(super) ids: Option<Vec<String>>,
    pub(super) count: Option<usize>,
    pub(super) by_numa: Option<BTreeMap<String, usize>>,
}
