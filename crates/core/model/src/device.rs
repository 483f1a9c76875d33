//! Devices as a device plugin lists them to the kubelet.

use crate::idset::DeviceSet;
use crate::numa::NumaMask;
use crate::resource::ResourceName;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Unique in its pool.
    pub id: String,
    /// Empty if the plugin reports no topology for the device.
    pub numa: NumaMask,
    /// The plugin names NUMA nodes that the machine does not have. With `numa` empty, the device
    /// has a topology but is near no NUMA node.
    pub misplaced: bool,
    pub healthy: bool,
}

/// What a plugin answers to `GetPreferredAllocation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PreferredAllocation {
    /// The plugin does not implement the call: the kubelet takes any device.
    #[default]
    NotImplemented,
    /// Ids are compared as strings.
    LowestId,
    HighestId,
    /// A rule that is not modelled: NVIDIA's plugin goes by the links between GPUs.
    Unpredictable,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePool {
    pub resource: ResourceName,
    pub preferred: PreferredAllocation,
    /// A [`DeviceSet`] holds positions in this list.
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
