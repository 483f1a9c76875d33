//! GPUs that NVML divides.
//!
//! Owns the way from places to NVML's numbers, which are asked for anew each time: those of a slice that is
//! gone are given to others. Must not decide what to do.

use std::ffi::OsStr;

use berth_host::Diagnosis;
use berth_nvml::{Activation, GpuInstance, Instances, MigError, Placement};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::driver::{DriverError, MigDriver, MigGpu, Offer};
use super::layout::{Place, Slice};
use crate::gpus::nvml::{LIBRARY, board, kinds_of_slices, opened};
use crate::gpus::{Profile, note};

/// The driver of this machine.
#[derive(Debug)]
pub struct NvmlDriver {
    nvml: Nvml,
}

impl NvmlDriver {
    /// Opens it.
    ///
    /// # Errors
    /// When there is none; the text says what to do.
    pub fn open() -> Result<Self, Diagnosis> {
        Self::of_library(OsStr::new(LIBRARY))
    }

    /// Opens a library of another name.
    ///
    /// # Errors
    /// When it is not there, or has no driver to ask.
    pub fn of_library(library: &OsStr) -> Result<Self, Diagnosis> {
        let nvml = opened(library).map_err(|(why, remedy)| {
            note("nvml", format!("cannot be asked ({why}), so GPUs cannot be divided"), remedy)
        })?;
        Ok(Self { nvml })
    }

    fn device(&self, gpu: &str) -> Result<Divisible<'_>, DriverError> {
        Ok(Divisible::new(self.nvml.device_by_uuid(gpu)?)?)
    }
}

/// A GPU and what it can be divided into.
struct Divisible<'nvml> {
    device: Device<'nvml>,
    product: String,
    memory_bytes: u64,
    kinds: Vec<Profile>,
}

impl<'nvml> Divisible<'nvml> {
    fn new(device: Device<'nvml>) -> Result<Self, NvmlError> {
        let product = device.name()?;
        let memory_bytes = device.memory_info()?.total;
        let kinds = kinds_of_slices(&device, &product, memory_bytes);
        Ok(Self { device, product, memory_bytes, kinds })
    }

    fn instances(&self) -> Instances<'_, 'nvml> {
        Instances::of(&self.device)
    }

    fn kind(&self, place: Place) -> Result<&Profile, DriverError> {
        let name = place.profile.to_string();
        self.kinds.iter().find(|kind| kind.name == name).ok_or(DriverError::NotSupported)
    }

    fn at(&self, place: Place) -> Result<GpuInstance, DriverError> {
        let all = self.instances().gpu_instances(self.kind(place)?.id)?;
        let own = all.into_iter().find(|one| one.placement.start == u32::from(place.start));
        own.ok_or(DriverError::NotThere)
    }

    /// Slices ascending by place. What has a name that is none would be lost from sight, so it is an
    /// error.
    fn slices(&self) -> Result<Vec<Slice>, DriverError> {
        let mut slices = Vec::new();
        for kind in &self.kinds {
            for instance in self.instances().gpu_instances(kind.id)? {
                let odd = || DriverError::Other(format!("{} is no slice that is known", kind.name));
                let profile = kind.name.parse().map_err(|_| odd())?;
                let start = instance.placement.start.try_into().map_err(|_| odd())?;
                let mut compute: Vec<u8> = Vec::new();
                let divisions = self.instances().compute_profiles(instance.id)?;
                for one in self.instances().compute_instances(instance.id)? {
                    // Not by the size of its place: a real H200 says 4 of one with 3 slices.
                    let division = divisions.iter().find(|division| division.id == one.profile);
                    let slices = division.ok_or_else(odd)?.slices;
                    compute.push(slices.try_into().map_err(|_| odd())?);
                }
                compute.sort_unstable();
                slices.push(Slice { place: Place { start, profile }, compute });
            }
        }
        slices.sort();
        Ok(slices)
    }

    fn told(&self, index: u32) -> Result<MigGpu, DriverError> {
        let mode = match self.device.mig_mode() {
            Ok(mode) => Some(mode),
            Err(NvmlError::NotSupported) => None,
            Err(error) => return Err(error.into()),
        };
        let enabled = mode.as_ref().map(|mode| mode.current != 0);
        let slices = if enabled == Some(true) { self.slices()? } else { Vec::new() };
        let offers = self.kinds.iter().filter_map(|kind| {
            let starts = kind.starts.iter().filter_map(|start| u8::try_from(*start).ok());
            Some(Offer { profile: kind.name.parse().ok()?, starts: starts.collect() })
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
            offers: offers.collect(),
            slices,
        })
    }
}

impl MigDriver for NvmlDriver {
    fn gpus(&mut self) -> Result<Vec<MigGpu>, DriverError> {
        let count = self.nvml.device_count()?;
        let told =
            (0..count).map(|index| Divisible::new(self.nvml.device_by_index(index)?)?.told(index));
        told.collect()
    }

    fn set_mode(&mut self, gpu: &str, enabled: bool) -> Result<Activation, DriverError> {
        Ok(berth_nvml::set_mig_mode(&self.nvml.device_by_uuid(gpu)?, enabled)?)
    }

    fn create(&mut self, gpu: &str, place: Place) -> Result<(), DriverError> {
        let gpu = self.device(gpu)?;
        let kind = gpu.kind(place)?;
        let placement = Placement { start: place.start.into(), size: kind.units };
        gpu.instances().create_gpu_instance(kind.id, placement)?;
        Ok(())
    }

    fn add_compute(&mut self, gpu: &str, place: Place, slices: u8) -> Result<(), DriverError> {
        let gpu = self.device(gpu)?;
        let parent = gpu.at(place)?.id;
        let kinds = gpu.instances().compute_profiles(parent)?;
        let kind = kinds.into_iter().find(|kind| kind.slices == u32::from(slices));
        let kind = kind.ok_or(DriverError::NotSupported)?;
        gpu.instances().create_compute_instance(parent, kind.id)?;
        Ok(())
    }

    fn remove_compute(&mut self, gpu: &str, place: Place) -> Result<(), DriverError> {
        let gpu = self.device(gpu)?;
        let parent = gpu.at(place)?.id;
        let last = gpu.instances().compute_instances(parent)?.pop();
        let last = last.ok_or(DriverError::NotThere)?;
        Ok(gpu.instances().destroy_compute_instance(parent, last.id)?)
    }

    fn destroy(&mut self, gpu: &str, place: Place) -> Result<(), DriverError> {
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
