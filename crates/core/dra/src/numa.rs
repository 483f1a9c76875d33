//! The NUMA nodes of devices, read from their attributes. Kubernetes itself does not use them.

use std::collections::BTreeSet;

use berth_model::dra::slice::{Attribute, Device, ResourceSlice};

pub type NumaNodes = BTreeSet<u32>;

/// The attribute that Kubernetes reserves for it.
const STANDARD: &str = "resource.kubernetes.io/numaNode";

/// Names in the drivers' own domains.
const OF_DRIVERS: [&str; 2] = ["numaNode", "numa"];

pub(crate) fn of(slice: &ResourceSlice, device: &Device) -> Option<u32> {
    let standard = device.attributes.get(STANDARD);
    let own = OF_DRIVERS.iter().find_map(|name| {
        let qualified = || device.attributes.get(format!("{}/{name}", slice.driver).as_str());
        device.attributes.get(*name).or_else(qualified)
    });
    match standard.or(own)? {
        Attribute::Int(id) => u32::try_from(*id).ok(),
        Attribute::Text(id) => id.parse().ok(),
        Attribute::Bool(_) | Attribute::Version(_) | Attribute::Unsupported => None,
    }
}

/// Whether a device may be used under a restriction to these NUMA nodes. A device without the
/// attribute may.
pub(crate) fn allows(allowed: &NumaNodes, slice: &ResourceSlice, device: &Device) -> bool {
    of(slice, device).is_none_or(|id| allowed.contains(&id))
}
