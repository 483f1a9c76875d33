//! Devices that the kubelet can give, and where it believes them to be.
//!
//! Owns what follows from the kubelet's checkpoint, which lists ids and tells NUMA nodes only of devices that
//! somebody holds. A plugin tells the kubelet what the kernel tells: a device whose `numa_node` says nothing
//! is aligned with nothing, wherever it really is, so no zone may list it. Where a plugin has told no NUMA
//! node for any device that is held, it tells none. Must not judge where devices really are: the report does.

use berth_host::pci::DeviceNuma;

use crate::report::{Reading, device_behind};

/// A device that the kubelet can give.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offered {
    /// Its resource, such as `nvidia.com/gpu`.
    pub resource: String,
    /// The id that its plugin gave it.
    pub id: String,
    /// NUMA nodes that its plugin told; none: the kubelet aligns nothing with it.
    pub numa: Vec<u32>,
}

/// Devices, as the kubelet's checkpoint tells of them.
pub fn offered(reading: &Reading) -> Vec<Offered> {
    let Some(state) = &reading.kubelet.devices else { return Vec::new() };
    let mut all = Vec::new();
    for (resource, ids) in &state.registered {
        let entries = state.entries.iter().filter(|entry| entry.resource == *resource);
        let held = || entries.clone().flat_map(|entry| &entry.devices);
        let tells = held().next().is_none() || held().any(|device| !device.numa.is_empty());
        for id in ids {
            let told = held().find(|device| device.id == *id).map(|device| device.numa.clone());
            let numa = match told {
                Some(told) => told,
                None if tells => by_kernel(reading, id),
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
