//! What a pod was given, as an annotation on it.
//!
//! Owns the text of `berth.dev/virtual-devices`: who reads it sees which CPUs, memory and devices the
//! kubelet chose, and the kubelet itself finds its books again in it after a restart, as a real one
//! does in its checkpoints. Must not know how any of it is chosen.

use std::collections::BTreeMap;

use berth_kubelet::{
    Admission, Certainty, ContainerAssignment, DeviceAssignment, Hint, Kubelet, MemoryBlock,
};
use berth_model::idset::{CpuSet, DeviceSet};
use berth_model::numa::NumaMask;
use berth_model::resource::{MemoryKind, ResourceName};
use serde::{Deserialize, Serialize};

/// The annotation.
pub const VIRTUAL_DEVICES: &str = "berth.dev/virtual-devices";

/// What a pod was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Per container, in the order of the pod.
    pub containers: Vec<Given>,
}

/// What one container was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Given {
    /// The container.
    pub name: String,
    /// Ids of the NUMA nodes its hint names; none: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa: Vec<u32>,
    /// Whether the hint was a preferred one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preferred: bool,
    /// Its own CPUs, such as `0-3,64-67`; `None`: it shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Memory that is pinned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<Pinned>,
    /// Ids of devices by resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, Vec<String>>,
}

/// Memory of one kind on a group of NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// Such as `memory` or `hugepages-2Mi`.
    pub kind: String,
    /// Ids of the NUMA nodes.
    pub numa: Vec<u32>,
    /// How much.
    pub bytes: u64,
}

impl Assignment {
    /// What a kubelet gave.
    pub(super) fn of(admission: &Admission, kubelet: &Kubelet) -> Self {
        let machine = kubelet.machine();
        let pools: Vec<_> = kubelet.pools().collect();
        let given = |one: &ContainerAssignment| Given {
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
                .map(|block| Pinned {
                    kind: block.kind.to_string(),
                    numa: machine.numa_ids(block.numa),
                    bytes: block.bytes,
                })
                .collect(),
            devices: one
                .devices
                .iter()
                .filter_map(|given| {
                    let ids = pools.get(given.pool)?.ids(given.devices);
                    let ids = ids.into_iter().map(str::to_owned).collect();
                    Some((given.resource.to_string(), ids))
                })
                .collect(),
        };
        Self { containers: admission.containers.iter().map(given).collect() }
    }

    /// The same as a kubelet's books have it; `None` if this node cannot have given that.
    pub(super) fn admission(&self, kubelet: &Kubelet) -> Option<Admission> {
        let containers = self.containers.iter().map(|given| given.container(kubelet));
        Some(Admission { containers: containers.collect::<Option<_>>()? })
    }
}

impl Given {
    fn container(&self, kubelet: &Kubelet) -> Option<ContainerAssignment> {
        let machine = kubelet.machine();
        let mask = |ids: &[u32]| -> Option<NumaMask> {
            ids.iter().map(|id| machine.numa_position(*id)).collect()
        };
        let block = |pinned: &Pinned| {
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
