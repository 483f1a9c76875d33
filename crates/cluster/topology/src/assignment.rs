//! What a kubelet gave a pod, as a record on the pod: the annotation `berth.dev/virtual-devices`.
//!
//! Virtual kubelets write it, and restore their state from it after a restart, as a real kubelet does
//! from its checkpoints. Reports read it.

use std::collections::BTreeMap;

use berth_kubelet::{
    Admission, Certainty, ContainerAssignment, DeviceAssignment, Hint, Kubelet, MemoryBlock,
};
use berth_model::idset::{CpuSet, DeviceSet};
use berth_model::numa::NumaMask;
use berth_model::resource::{MemoryKind, ResourceName};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// In the order of the pod.
    pub containers: Vec<ContainerHoldings>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerHoldings {
    pub name: String,
    /// Ids of the NUMA nodes in the topology manager's hint; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa: Vec<u32>,
    /// Whether the hint was a preferred one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preferred: bool,
    /// Exclusive CPUs, such as `0-3,64-67`; `None`: it runs in the shared pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<PinnedMemory>,
    /// Ids of devices by resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, Vec<String>>,
}

/// Memory of one kind on a group of NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedMemory {
    /// Such as `memory` or `hugepages-2Mi`.
    pub kind: String,
    /// Ids of the NUMA nodes.
    pub numa: Vec<u32>,
    pub bytes: u64,
}

impl Assignment {
    pub fn of(admission: &Admission, kubelet: &Kubelet) -> Self {
        let machine = kubelet.machine();
        let pools: Vec<_> = kubelet.pools().collect();
        let holdings = |one: &ContainerAssignment| ContainerHoldings {
            name: one.name.clone(),
            numa: one
                .affinity
                .and_then(|hint| hint.numa)
                .map_or_else(Vec::new, |numa| machine.numa_ids(numa)),
            preferred: one.affinity.is_some_and(|hint| hint.preferred),
            cpus: one.cpus.map(|cpus| cpus.to_string()),
            memory: one
                .memory
                .iter()
                .map(|block| PinnedMemory {
                    kind: block.kind.to_string(),
                    numa: machine.numa_ids(block.numa),
                    bytes: block.bytes,
                })
                .collect(),
            devices: one
                .devices
                .iter()
                .filter_map(|devices| {
                    let ids = pools.get(devices.pool)?.ids(devices.devices);
                    let ids = ids.into_iter().map(str::to_owned).collect();
                    Some((devices.resource.to_string(), ids))
                })
                .collect(),
        };
        Self { containers: admission.containers.iter().map(holdings).collect() }
    }

    /// `None` if the annotation's text is not one.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The annotation's text.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The same in terms of this node; `None` if the node does not have what it names.
    pub fn admission(&self, kubelet: &Kubelet) -> Option<Admission> {
        let containers = self.containers.iter().map(|one| one.assignment(kubelet));
        Some(Admission { containers: containers.collect::<Option<_>>()? })
    }
}

impl ContainerHoldings {
    fn assignment(&self, kubelet: &Kubelet) -> Option<ContainerAssignment> {
        let machine = kubelet.machine();
        let mask = |ids: &[u32]| -> Option<NumaMask> {
            ids.iter().map(|id| machine.numa_position(*id)).collect()
        };
        let block = |pinned: &PinnedMemory| {
            let kind = MemoryKind::of(&ResourceName::new(pinned.kind.as_str())).ok()??;
            Some(MemoryBlock { kind, numa: mask(&pinned.numa)?, bytes: pinned.bytes })
        };
        let devices = |(resource, ids): (&String, &Vec<String>)| {
            let pool = kubelet.pool_of(resource)?;
            let listed = &kubelet.pools().nth(pool)?.devices;
            let position = |id: &String| listed.iter().position(|device| device.id == *id);
            let devices: DeviceSet = ids.iter().map(position).collect::<Option<_>>()?;
            Some(DeviceAssignment {
                resource: ResourceName::new(resource.as_str()),
                pool,
                devices,
                certain: devices,
                candidates: DeviceSet::EMPTY,
                certainty: Certainty::Exact,
            })
        };
        let numa = if self.numa.is_empty() { None } else { Some(mask(&self.numa)?) };
        let cpus = self.cpus.as_ref().map(|text| text.parse::<CpuSet>());
        Some(ContainerAssignment {
            name: self.name.clone(),
            affinity: Some(Hint { numa, preferred: self.preferred }),
            cpus: cpus.transpose().ok()?,
            memory: self.memory.iter().map(block).collect::<Option<_>>()?,
            devices: self.devices.iter().map(devices).collect::<Option<_>>()?,
            certain: true,
        })
    }
}
