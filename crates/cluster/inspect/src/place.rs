//! Where on its node a pod is: NUMA nodes, CPUs, GPUs and slices, and how certain that is.

use berth_engine::Engine;
use berth_engine::decision::Binding;
use berth_kubelet::{Admission, Kubelet};
use berth_model::alignment::Alignment;
use berth_model::device::DevicePool;
use berth_model::gpu::part_of;
use berth_model::idset::{CpuSet, DeviceSet};
use berth_model::numa::NumaMask;
use berth_model::spec::{GpuGrant, PodObject};
use berth_topology::Inside;
use serde::Serialize;

use crate::PodRef;
use crate::holdings::Holdings;
use crate::record::Evidence;

/// A pod and its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Placed {
    pub pod: PodRef,
    pub node: String,
    /// Empty if the node is in no pool.
    pub pool: String,
    pub alignment: Alignment,
    /// Where the rest is known from.
    pub evidence: Evidence,
    /// Ids of the NUMA nodes that the kubelet chooses; empty if it does not choose.
    pub numa: Vec<u32>,
    /// Exclusive CPUs.
    pub cpus: usize,
    pub devices: Vec<AllocatedDevices>,
    /// A part of a GPU that is divided on demand.
    pub share: Option<GpuShare>,
    /// Devices of its claims, as `DRIVER/POOL/NAME`.
    pub claimed: Vec<String>,
    /// GPUs in all, in thousandths.
    pub gpu_milli: u64,
    /// What its part of the node costs; `None` if the node's price is unknown.
    pub microusd_per_month: Option<i64>,
}

/// Devices of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AllocatedDevices {
    pub resource: String,
    pub count: usize,
    pub certain: Vec<DeviceName>,
    /// The devices from which the kubelet and the plugin pick the rest.
    pub one_of: Vec<DeviceName>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DeviceName {
    /// The number of its GPU on the node; `None` if it is no known GPU.
    pub gpu: Option<usize>,
    /// The slice, as `3g.40gb@4`.
    pub slice: Option<String>,
    /// The node's objects do not list ids, so this is a made-up one.
    pub id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuShare {
    /// The resource of which the GPU is one.
    pub resource: String,
    /// The number of the GPU.
    pub gpu: u16,
}

impl Placed {
    pub fn new(pod: &PodObject, node: &str, pool: &str) -> Self {
        Self { pod: pod.into(), node: node.to_owned(), pool: pool.to_owned(), ..Self::default() }
    }

    /// Fills in what the engine decided for a pod that it has just bound.
    #[must_use]
    pub fn bound(mut self, engine: &Engine, inside: &Inside, binding: &Binding) -> Self {
        self.alignment = binding.alignment;
        self.numa = binding.numa.map_or_else(Vec::new, |numa| numa_ids(inside, numa));
        self.share = binding.gpu_grant.as_ref().and_then(share_of);
        let claims = binding.devices.iter().flat_map(|placement| &placement.allocations);
        self.claimed = claims
            .flat_map(|(_, allocation)| &allocation.devices)
            .map(|device| device.id.to_string())
            .collect();
        if let Some((kubelet, _)) = engine.kubelet(&binding.node) {
            self.hold(kubelet, inside, &binding.pod);
        }
        self
    }

    /// Fills in what a pod holds that runs there.
    #[must_use]
    pub(crate) fn held(
        mut self,
        holdings: Option<&Holdings<'_>>,
        inside: &Inside,
        pod: &PodObject,
    ) -> Self {
        self.share = pod.gpu_grant.as_ref().and_then(share_of);
        if let Some(holdings) = holdings {
            self.evidence = holdings.evidence(&pod.uid);
            self.hold(&holdings.kubelet, inside, &pod.uid);
        }
        self
    }

    fn hold(&mut self, kubelet: &Kubelet, inside: &Inside, uid: &str) {
        let Some(held) = kubelet.assignment(uid) else { return };
        let cpus = held.containers.iter().filter_map(|one| one.cpus);
        self.cpus = cpus.fold(CpuSet::EMPTY, |all, one| all | one).len();
        if self.alignment == Alignment::Unknown {
            // A scheduler that does not look at NUMA nodes chose the node; the kubelet aligns the pod if it can.
            (self.alignment, self.numa) = alignment(&held, inside);
        }
        self.devices = devices(kubelet, &held, inside);
    }
}

pub(crate) fn share_of(grant: &GpuGrant) -> Option<GpuShare> {
    Some(GpuShare { resource: grant.resource.to_string(), gpu: grant.gpu? })
}

pub(crate) fn numa_ids(inside: &Inside, numa: NumaMask) -> Vec<u32> {
    inside.machine.as_ref().map_or_else(Vec::new, |(machine, _)| machine.numa_ids(numa))
}

fn alignment(held: &Admission, inside: &Inside) -> (Alignment, Vec<u32>) {
    let hints: Vec<_> = held.containers.iter().filter_map(|one| one.affinity).collect();
    let numa = hints.iter().filter_map(|hint| hint.numa).reduce(|one, other| one | other);
    let Some(numa) = numa else { return (Alignment::Floating, Vec::new()) };
    let aligned = hints.iter().all(|hint| hint.preferred);
    let alignment = if aligned { Alignment::Aligned } else { Alignment::Misaligned };
    (alignment, numa_ids(inside, numa))
}

fn devices(kubelet: &Kubelet, held: &Admission, inside: &Inside) -> Vec<AllocatedDevices> {
    let mut all: Vec<AllocatedDevices> = Vec::new();
    for own in held.containers.iter().flat_map(|one| &one.devices) {
        let Some(pool) = kubelet.pools().nth(own.pool) else { continue };
        let named = |set: DeviceSet| device_names(pool, set, inside);
        let is_drawn = own.devices.len() > own.certain.len();
        all.push(AllocatedDevices {
            resource: own.resource.to_string(),
            count: own.devices.len(),
            certain: named(own.certain),
            one_of: if is_drawn { named(own.candidates - own.certain) } else { Vec::new() },
        });
    }
    all
}

fn device_names(pool: &DevicePool, set: DeviceSet, inside: &Inside) -> Vec<DeviceName> {
    let found = set.iter().filter_map(|at| pool.devices.get(at));
    let mut names: Vec<DeviceName> = found
        .map(|device| {
            let part = part_of(&inside.gpus, &device.id);
            DeviceName {
                gpu: part.map(|part| part.gpu),
                slice: part.and_then(|part| part.slice).map(|slice| slice.to_string()),
                id: device.id.clone(),
            }
        })
        .collect();
    names.sort();
    names
}
