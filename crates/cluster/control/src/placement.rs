//! The annotation `berth.dev/placement` of a binding.

use berth_api::placement::{Grant, PlacedDevices, Placement};
use berth_engine::Engine;
use berth_engine::decision::Binding;
use berth_kubelet::Kubelet;
use berth_model::alignment::Alignment;

/// Describes a binding that the engine has just decided.
pub fn describe(engine: &Engine, binding: &Binding) -> Placement {
    let kubelet = engine.kubelet(&binding.node).map(|(kubelet, _)| kubelet);
    let numa_nodes = binding
        .numa
        .zip(kubelet)
        .map_or_else(Vec::new, |(numa, kubelet)| kubelet.machine().numa_ids(numa));
    let grant = binding
        .gpu_grant
        .as_ref()
        .map(|grant| Grant { resource: grant.resource.to_string(), gpu: grant.gpu });
    let why = match binding.alignment {
        Alignment::Aligned => {
            "CPUs, memory and devices are on the same NUMA nodes; the node strands the least capacity"
        }
        Alignment::Misaligned => "no node can take the pod aligned; this one misaligns it least",
        Alignment::Floating => "nothing is pinned; the node strands the least capacity",
        Alignment::Unknown => "no node of known topology can take the pod",
    };
    Placement {
        alignment: binding.alignment,
        numa_nodes,
        devices: kubelet.map_or_else(Vec::new, |kubelet| devices(kubelet, &binding.pod)),
        grant,
        why: why.to_owned(),
    }
}

/// The devices that the kubelet is going to assign to a pod.
pub(crate) fn devices(kubelet: &Kubelet, uid: &str) -> Vec<PlacedDevices> {
    let given = kubelet.assignment(uid);
    let given = given.iter().flat_map(|given| &given.containers).flat_map(|one| &one.devices);
    given
        .map(|given| {
            let listed = kubelet.pools().nth(given.pool).map_or(&[][..], |pool| &pool.devices);
            let named = given.certain.iter().filter_map(|at| Some(listed.get(at)?.id.clone()));
            PlacedDevices {
                resource: given.resource.to_string(),
                count: given.devices.len(),
                ids: named.collect(),
            }
        })
        .collect()
}
