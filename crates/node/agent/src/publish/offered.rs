//! Devices that the kubelet can allocate, with the NUMA nodes that it knows for them.
//!
//! The checkpoint lists all ids, but NUMA nodes only of held devices. For others, the plugin is assumed to report
//! the kernel's `numa_node`; a device whose `numa_node` is unset is aligned with nothing, wherever it is. If no held
//! device of a resource has a NUMA node, its plugin reports none.

use berth_host::pci::DeviceNuma;

use crate::report::{Reading, device_behind};

/// A device that the kubelet can allocate.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offered {
    /// Such as `nvidia.com/gpu`.
    pub resource: String,
    /// As set by the device plugin.
    pub id: String,
    /// As reported by the plugin. Empty: the kubelet aligns nothing with it.
    pub numa: Vec<u32>,
}

/// The devices in the kubelet's checkpoint.
pub fn offered(reading: &Reading) -> Vec<Offered> {
    let Some(state) = &reading.kubelet.devices else { return Vec::new() };
    let mut all = Vec::new();
    for (resource, ids) in &state.registered {
        let entries = state.entries.iter().filter(|entry| entry.resource == *resource);
        let held = || entries.clone().flat_map(|entry| &entry.devices);
        let has_topology = held().next().is_none() || held().any(|device| !device.numa.is_empty());
        for id in ids {
            let reported = held().find(|device| device.id == *id).map(|device| device.numa.clone());
            let numa = match reported {
                Some(numa) => numa,
                None if has_topology => by_kernel(reading, id),
                None => Vec::new(),
            };
            all.push(Offered { resource: resource.clone(), id: id.clone(), numa });
        }
    }
    all.sort_unstable();
    all
}

fn by_kernel(reading: &Reading, id: &str) -> Vec<u32> {
    match device_behind(reading, id).map(|device| &device.numa) {
        Some(DeviceNuma::Reported { node }) => vec![*node],
        _ => Vec::new(),
    }
}
