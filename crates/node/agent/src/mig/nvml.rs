//! Repartitioning through NVML. Ids of instances are looked up each time, because NVML reuses them.

use std::ffi::OsStr;

use berth_host::Diagnosis;
use berth_nvml::{Activation, GpuInstance, Instances, MigError, Placement as NvmlPlacement};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::driver::{DriverError, MigDriver, MigGpu, SupportedProfile};
use super::layout::{Placement, Slice};
use crate::gpus::Profile;
use crate::gpus::nvml::{LIBRARY, board, mig_profiles, opened};

/// This machine's driver.
#[derive(Debug)]
pub struct NvmlDriver {
    nvml: Nvml,
}

impl NvmlDriver {
    pub fn open() -> Result<Self, Diagnosis> {
        Self::of_library(OsStr::new(LIBRARY))
    }

    /// Uses another library.
    pub fn of_library(library: &OsStr) -> Result<Self, Diagnosis> {
        let nvml =
            opened(library).map_err(|error| error.diagnosis("GPUs cannot be repartitioned"))?;
        Ok(Self { nvml })
    }

    fn device(&self, gpu: &str) -> Result<MigDevice<'_>, DriverError> {
        Ok(MigDevice::new(self.nvml.device_by_uuid(gpu)?)?)
    }
}

/// A GPU and the profiles that it supports.
struct MigDevice<'nvml> {
    device: Device<'nvml>,
    product: String,
    memory_bytes: u64,
    profiles: Vec<Profile>,
}

impl<'nvml> MigDevice<'nvml> {
    fn new(device: Device<'nvml>) -> Result<Self, NvmlError> {
        let product = device.name()?;
        let memory_bytes = device.memory_info()?.total;
        let profiles = mig_profiles(&device, &product, memory_bytes);
        Ok(Self { device, product, memory_bytes, profiles })
    }

    fn instances(&self) -> Instances<'_, 'nvml> {
        Instances::of(&self.device)
    }

    fn profile(&self, place: Placement) -> Result<&Profile, DriverError> {
        let name = place.profile.to_string();
        self.profiles.iter().find(|one| one.name == name).ok_or(DriverError::NotSupported)
    }

    fn at(&self, place: Placement) -> Result<GpuInstance, DriverError> {
        let all = self.instances().gpu_instances(self.profile(place)?.id)?;
        let own = all.into_iter().find(|one| one.placement.start == u32::from(place.start));
        own.ok_or(DriverError::NotThere)
    }

    /// Sorted by placement. A slice with an unknown profile is an error, since it would be overlooked otherwise.
    fn slices(&self) -> Result<Vec<Slice>, DriverError> {
        let mut slices = Vec::new();
        for profile in &self.profiles {
            for instance in self.instances().gpu_instances(profile.id)? {
                let unknown =
                    || DriverError::Other(format!("unknown MIG profile {}", profile.name));
                let name = profile.name.parse().map_err(|_| unknown())?;
                let start = instance.placement.start.try_into().map_err(|_| unknown())?;
                let mut compute: Vec<u8> = Vec::new();
                let kinds = self.instances().compute_profiles(instance.id)?;
                for one in self.instances().compute_instances(instance.id)? {
                    // Not by the size of the placement: an H200 reports 4 for an instance with 3 slices.
                    let kind = kinds.iter().find(|kind| kind.id == one.profile);
                    let slices = kind.ok_or_else(unknown)?.slices;
                    compute.push(slices.try_into().map_err(|_| unknown())?);
                }
                compute.sort_unstable();
                slices.push(Slice { place: Placement { start, profile: name }, compute });
            }
        }
        slices.sort();
        Ok(slices)
    }

    fn state(&self, index: u32) -> Result<MigGpu, DriverError> {
        let mode = match self.device.mig_mode() {
            Ok(mode) => Some(mode),
            Err(NvmlError::NotSupported) => None,
            Err(error) => return Err(error.into()),
        };
        let enabled = mode.as_ref().map(|mode| mode.current != 0);
        let slices = if enabled == Some(true) { self.slices()? } else { Vec::new() };
        let profiles = self.profiles.iter().filter_map(|one| {
            let starts = one.starts.iter().filter_map(|start| u8::try_from(*start).ok());
            Some(SupportedProfile { profile: one.name.parse().ok()?, starts: starts.collect() })
        });
        let pci = self.device.pci_info().ok();
        Ok(MigGpu {
            index,
            uuid: self.device.uuid()?,
            product: self.product.clone(),
            pci_id: pci.map(|pci| format!("0x{:08X}", pci.pci_device_id)),
            board: board(&self.product, self.memory_bytes),
            enabled,
            pending: mode.is_some_and(|mode| mode.pending != 0),
            profiles: profiles.collect(),
            slices,
        })
    }
}

impl MigDriver for NvmlDriver {
    fn gpus(&mut self) -> Result<Vec<MigGpu>, DriverError> {
        let count = self.nvml.device_count()?;
        let gpus =
            (0..count).map(|index| MigDevice::new(self.nvml.device_by_index(index)?)?.state(index));
        gpus.collect()
    }

    fn set_mode(&mut self, gpu: &str, enabled: bool) -> Result<Activation, DriverError> {
        Ok(berth_nvml::set_mig_mode(&self.nvml.device_by_uuid(gpu)?, enabled)?)
    }

    fn create(&mut self, gpu: &str, place: Placement) -> Result<(), DriverError> {
        let gpu = self.device(gpu)?;
        let profile = gpu.profile(place)?;
        let placement = NvmlPlacement { start: place.start.into(), size: profile.units };
        gpu.instances().create_gpu_instance(profile.id, placement)?;
        Ok(())
    }

    fn add_compute(&mut self, gpu: &str, place: Placement, slices: u8) -> Result<(), DriverError> {
        let gpu = self.device(gpu)?;
        let parent = gpu.at(place)?.id;
        let kinds = gpu.instances().compute_profiles(parent)?;
        let kind = kinds.into_iter().find(|kind| kind.slices == u32::from(slices));
        let kind = kind.ok_or(DriverError::NotSupported)?;
        gpu.instances().create_compute_instance(parent, kind.id)?;
        Ok(())
    }

    fn remove_compute(&mut self, gpu: &str, place: Placement) -> Result<(), DriverError> {
        let gpu = self.device(gpu)?;
        let parent = gpu.at(place)?.id;
        let last = gpu.instances().compute_instances(parent)?.pop();
        let last = last.ok_or(DriverError::NotThere)?;
        Ok(gpu.instances().destroy_compute_instance(parent, last.id)?)
    }

    fn destroy(&mut self, gpu: &str, place: Placement) -> Result<(), DriverError> {
        let gpu = self.device(gpu)?;
        Ok(gpu.instances().destroy_gpu_instance(gpu.at(place)?.id)?)
    }
}

impl From<MigError> for DriverError {
    fn from(error: MigError) -> Self {
        match error {
            MigError::InUse => Self::InUse,
            MigError::NoPermission => Self::NoPermission,
            MigError::NoRoom => Self::NoRoom,
            MigError::NotThere => Self::NotThere,
            MigError::NotSupported => Self::NotSupported,
            MigError::Other(error) => error.into(),
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<NvmlError> for DriverError {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::InUse => Self::InUse,
            NvmlError::NoPermission => Self::NoPermission,
            NvmlError::NotFound => Self::NotThere,
            NvmlError::NotSupported => Self::NotSupported,
            NvmlError::ResetRequired => Self::ResetNeeded,
            other => Self::Other(other.to_string()),
        }
    }
}
