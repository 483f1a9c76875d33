//! Devices as a device plugin lists them to the kubelet.
//!
//! Owns the inventory: ids, where each device is attached, whether it is healthy. Must not know who
//! holds which device.

use crate::idset::DeviceSet;
use crate::numa::NumaMask;
use crate::resource::ResourceName;

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Id, unique in its pool.
    pub id: String,
    /// NUMA nodes it is attached to; empty if the plugin reports no topology for it.
    pub numa: NumaMask,
    /// The plugin names NUMA nodes that the machine does not have. With `numa` empty, the device
    /// has a topology all the same, but is near to nothing.
    pub misplaced: bool,
    /// Whether the plugin reports it as usable.
    pub healthy: bool,
}

/// What a plugin answers when asked which devices it would rather hand out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PreferredAllocation {
    /// The plugin does not implement the call: the kubelet takes any.
    #[default]
    NotImplemented,
    /// The lowest ids, compared as strings.
    LowestId,
    /// The highest ids, compared as strings.
    HighestId,
    /// Some of those offered, by a rule that is not modelled. NVIDIA's plugin goes by the links
    /// between GPUs.
    Unpredictable,
}

/// All devices of one resource on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePool {
    /// The resource they are requested as.
    pub resource: ResourceName,
    /// Which ones the plugin would rather hand out.
    pub preferred: PreferredAllocation,
    /// The devices; a [`DeviceSet`] holds positions in this list.
    pub devices: Vec<Device>,
}

impl DevicePool {
    /// Ids of the devices in `set`, in string order.
    pub fn ids(&self, set: DeviceSet) -> Vec<&str> {
        let mut ids: Vec<&str> =
            set.iter().filter_map(|index| self.devices.get(index)).map(|d| d.id.as_str()).collect();
        ids.sort_unstable();
        ids
    }
}
