//! Sources of the devices that pods hold and the kubelet can allocate: the kubelet's checkpoint, or podresources,
//! which corrects it.

use berth_host::Diagnosis;
use futures::future::BoxFuture;

use crate::publish::{Offered, Resident, offered};
use crate::report::Reading;

#[derive(Clone, Debug, Default)]
pub struct DeviceListing {
    /// Devices that the kubelet can allocate.
    pub offered: Vec<Offered>,
    pub diagnoses: Vec<Diagnosis>,
}

pub trait DeviceSource: Send {
    /// Corrects the holders of devices in `reading`, which are those of the kubelet's checkpoint, and lists all
    /// devices. Residents map UIDs to the names that some sources use.
    fn update<'a>(
        &'a mut self,
        reading: &'a mut Reading,
        residents: &'a [Resident],
    ) -> BoxFuture<'a, DeviceListing>;
}

/// The kubelet's checkpoint without corrections.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checkpoint;

impl DeviceSource for Checkpoint {
    fn update<'a>(
        &'a mut self,
        reading: &'a mut Reading,
        _residents: &'a [Resident],
    ) -> BoxFuture<'a, DeviceListing> {
        let listing = DeviceListing { offered: offered(reading), diagnoses: Vec::new() };
        Box::pin(std::future::ready(listing))
    }
}
