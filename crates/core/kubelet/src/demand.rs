//! A pod as the kubelet's managers see it: exclusive CPUs, bytes and device counts, per container
//! and in total.
//!
//! Computed once per kind of pod and then used for many nodes. Quantities are taken as the API
//! server stores them: `1.5Gi` is `1536Mi` by the time a kubelet sees it.

use berth_model::pod::{ContainerKind, Pod, PodError, QosClass, peak_over_time};
use berth_model::resource::{MemoryKind, ResourceList, ResourceName};
use smallvec::SmallVec;

use crate::config::KubeletVersion;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDemand {
    version: KubeletVersion,
    containers: Vec<ContainerDemand>,
    total: ContainerDemand,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDemand {
    pub name: String,
    pub kind: ContainerKind,
    /// Exclusive CPUs; 0: it runs in the shared pool.
    pub cpus: usize,
    pub(crate) memory: MemoryDemand,
    pub(crate) devices: SmallVec<[(ResourceName, u64); 2]>,
}

impl ContainerDemand {
    pub fn devices(&self) -> &[(ResourceName, u64)] {
        &self.devices
    }

    /// Pinned memory by kind; empty if memory of its QoS class is not pinned, or its amount cannot
    /// be counted.
    pub fn memory_bytes(&self) -> &[(MemoryKind, u64)] {
        match &self.memory {
            MemoryDemand::Bytes(bytes) => bytes,
            MemoryDemand::Unpinned | MemoryDemand::NotWhole => &[],
        }
    }

    pub fn asks_devices(&self) -> bool {
        self.devices.iter().any(|(_, count)| *count > 0)
    }
}

/// Pinned memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemoryDemand {
    /// Memory of the pod's QoS class is not pinned.
    Unpinned,
    /// A fraction of a byte, or too many bytes: the memory manager fails.
    NotWhole,
    /// Ordered by kind.
    Bytes(SmallVec<[(MemoryKind, u64); 2]>),
}

impl PodDemand {
    /// The demand of `pod`, whose requests have been defaulted, as kubelets of this version see it.
    pub fn new(pod: &Pod, version: KubeletVersion) -> Result<Self, PodError> {
        pod.check_quantities()?;
        let pod_level = version.pod_level_resources();
        // The CPU and memory managers ignore pods with pod-level resources.
        let pinned = pod.qos(pod_level) == QosClass::Guaranteed
            && !(pod_level.counts(true) && pod.has_pod_level_resources());
        let containers: Vec<ContainerDemand> = pod
            .containers
            .iter()
            .map(|container| ContainerDemand {
                name: container.name.clone(),
                kind: container.kind,
                cpus: if pinned { whole_cpus(&container.resources.requests) } else { 0 },
                memory: if pinned {
                    memory_demand(&container.resources.requests)
                } else {
                    MemoryDemand::Unpinned
                },
                devices: device_counts(&container.resources.limits),
            })
            .collect();
        let total = ContainerDemand {
            name: pod.name.clone(),
            kind: ContainerKind::App,
            cpus: peak(&containers, |container| container.cpus as u64) as usize,
            memory: if pinned { total_memory(&containers) } else { MemoryDemand::Unpinned },
            devices: device_counts(&pod.peak_limits()),
        };
        Ok(Self { version, containers, total })
    }

    pub fn version(&self) -> KubeletVersion {
        self.version
    }

    /// In the order in which they are admitted.
    pub fn containers(&self) -> &[ContainerDemand] {
        &self.containers
    }

    /// The peak over time of the pod as a whole.
    pub fn total(&self) -> &ContainerDemand {
        &self.total
    }
}

fn whole_cpus(requests: &ResourceList) -> usize {
    let Some(quantity) = requests.get("cpu") else { return 0 };
    let millis = quantity.milli_value();
    // Amounts whose thousandths do not fit are whole CPUs too.
    let whole = millis % 1000 == 0 || quantity.as_i64().is_some();
    if whole { usize::try_from(quantity.value()).unwrap_or(0) } else { 0 }
}

fn memory_demand(requests: &ResourceList) -> MemoryDemand {
    let mut bytes = SmallVec::new();
    for (name, quantity) in requests {
        // The names were checked with the pod.
        let Ok(Some(kind)) = MemoryKind::of(name) else { continue };
        match quantity.as_stored_i64() {
            Some(amount) => bytes.push((kind, amount.unsigned_abs())),
            None => return MemoryDemand::NotWhole,
        }
    }
    bytes.sort_unstable();
    MemoryDemand::Bytes(bytes)
}

fn device_counts(limits: &ResourceList) -> SmallVec<[(ResourceName, u64); 2]> {
    let extended = limits.iter().filter(|(name, _)| name.is_extended());
    extended.map(|(name, count)| (name.clone(), count.value().unsigned_abs())).collect()
}

fn peak(containers: &[ContainerDemand], amount: impl Fn(&ContainerDemand) -> u64) -> u64 {
    let asked = containers.iter().map(|container| (container.kind, amount(container)));
    peak_over_time(asked, 0, u64::saturating_add)
}

/// Only kinds that some app container requests count for the pod as a whole.
fn total_memory(containers: &[ContainerDemand]) -> MemoryDemand {
    let mut kinds = SmallVec::<[MemoryKind; 4]>::new();
    for container in containers {
        match &container.memory {
            MemoryDemand::NotWhole => return MemoryDemand::NotWhole,
            MemoryDemand::Bytes(bytes) if container.kind == ContainerKind::App => {
                kinds.extend(bytes.iter().map(|(kind, _)| *kind));
            }
            _ => {}
        }
    }
    kinds.sort_unstable();
    kinds.dedup();
    let amount = |container: &ContainerDemand, wanted: MemoryKind| match &container.memory {
        MemoryDemand::Bytes(bytes) => {
            bytes.iter().find(|(kind, _)| *kind == wanted).map_or(0, |(_, bytes)| *bytes)
        }
        _ => 0,
    };
    let totals = kinds.iter().map(|kind| (*kind, peak(containers, |one| amount(one, *kind))));
    MemoryDemand::Bytes(totals.collect())
}
