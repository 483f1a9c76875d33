//! Where on its node a pod would be.
//!
//! Owns the reading of what a kubelet hands out: NUMA nodes, CPUs, GPUs and slices, and how certain
//! that is. Must not know how nodes are chosen.

use berth_engine::Engine;
use berth_engine::decision::Binding;
use berth_kubelet::{Admission, Kubelet};
use berth_model::alignment::Alignment;
use berth_model::device::DevicePool;
use berth_model::gpu::part_of;
use berth_model::idset::{CpuSet, DeviceSet};
use berth_model::numa::NumaMask;
use berth_model::spec::GpuGrant;
use berth_scenario::cluster::ClusterNode;

use crate::report::{DeviceName, Given, GpuShare, Placed};

/// Fills in where on its node a pod is that has just been bound.
pub(crate) fn inside(engine: &Engine, node: &ClusterNode, binding: &Binding, placed: &mut Placed) {
    placed.alignment = binding.alignment;
    placed.numa = binding.numa.map_or_else(Vec::new, |numa| ids(node, numa));
    placed.share = binding.gpu_grant.as_ref().and_then(share_of);
    let claims = binding.devices.iter().flat_map(|placement| &placement.allocations);
    placed.claimed = claims
        .flat_map(|(_, allocation)| &allocation.devices)
        .map(|device| device.id.to_string())
        .collect();
    held(engine, node, &binding.pod, placed);
}

/// The share of a GPU that a grant is.
pub(crate) fn share_of(grant: &GpuGrant) -> Option<GpuShare> {
    Some(GpuShare { resource: grant.resource.to_string(), gpu: grant.gpu? })
}

/// Fills in what its kubelet gave to a pod, as far as that can be worked out.
pub(crate) fn held(engine: &Engine, node: &ClusterNode, uid: &str, placed: &mut Placed) {
    let Some((kubelet, _)) = engine.kubelet(&node.node.name) else { return };
    let Some(held) = kubelet.assignment(uid) else { return };
    let cpus = held.containers.iter().filter_map(|one| one.cpus);
    placed.cpus = cpus.fold(CpuSet::EMPTY, |all, one| all | one).len();
    if placed.alignment == Alignment::Unknown {
        // Whoever chose the node did not ask; the kubelet aligns all the same, or does not.
        (placed.alignment, placed.numa) = alignment(&held, node);
    }
    placed.devices = devices(kubelet, &held, node);
}

pub(crate) fn ids(node: &ClusterNode, numa: NumaMask) -> Vec<u32> {
    node.inside.machine.as_ref().map_or_else(Vec::new, |(machine, _)| machine.numa_ids(numa))
}

fn alignment(held: &Admission, node: &ClusterNode) -> (Alignment, Vec<u32>) {
    let hints: Vec<_> = held.containers.iter().filter_map(|one| one.affinity).collect();
    let numa = hints.iter().filter_map(|hint| hint.numa).reduce(|one, other| one | other);
    let Some(numa) = numa else { return (Alignment::Floating, Vec::new()) };
    let aligned = hints.iter().all(|hint| hint.preferred);
    (if aligned { Alignment::Aligned } else { Alignment::Misaligned }, ids(node, numa))
}

fn devices(kubelet: &Kubelet, held: &Admission, node: &ClusterNode) -> Vec<Given> {
    let mut all: Vec<Given> = Vec::new();
    for given in held.containers.iter().flat_map(|one| &one.devices) {
        let Some(pool) = kubelet.pools().nth(given.pool) else { continue };
        let named = |set: DeviceSet| names(pool, set, node);
        let rest = given.devices.len() > given.certain.len();
        all.push(Given {
            resource: given.resource.to_string(),
            count: given.devices.len(),
            certain: named(given.certain),
            one_of: if rest { named(given.candidates - given.certain) } else { Vec::new() },
        });
    }
    all
}

pub(crate) fn names(pool: &DevicePool, set: DeviceSet, node: &ClusterNode) -> Vec<DeviceName> {
    let found = set.iter().filter_map(|at| pool.devices.get(at));
    let mut names: Vec<DeviceName> = found
        .map(|device| {
            let part = part_of(&node.inside.gpus, &device.id);
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
