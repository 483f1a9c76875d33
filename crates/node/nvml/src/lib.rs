//! NVML's calls for MIG instances that [`nvml_wrapper`] lacks or gets wrong: their possible placements,
//! their actual placement, creating and destroying them.
//!
//! Everything else about GPUs goes through the wrapper. Its `possible_placements` (0.13) allocates room for
//! the answer but never sets the length, so the result is always empty. It has no calls for instances.
//!
//! The only crate that may use `unsafe`. No handle of the library leaves a function: instances are named by
//! number and looked up each time, so using a destroyed one is an error. A missing library or function is an
//! error, too. Tests use a fake library with one H200 (the example `fake_driver`).

mod call;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use call::{Call, GpuInstanceHandle};

/// Instances per profile, and number of profiles: more than any GPU has.
const PROFILE_INSTANCES_MAX: u32 = 64;

/// Position on a GPU, in memory units; in a GPU instance, in compute slices. The driver rounds sizes up: an
/// instance of 3 slices may have the size 4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    pub start: u32,
    pub size: u32,
}

/// A GPU instance: a part of a GPU's memory and engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuInstance {
    /// Numbers are reused after an instance was destroyed.
    pub id: u32,
    pub profile: u32,
    pub placement: Placement,
}

/// A compute instance: a part of a GPU instance's compute slices, and what CUDA sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeInstance {
    /// Number within the GPU instance.
    pub id: u32,
    pub profile: u32,
    pub placement: Placement,
}

/// A compute instance profile that a GPU instance supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeProfile {
    pub id: u32,
    pub slices: u32,
    /// Maximum number of instances with this profile.
    pub instances: u32,
}

/// When a change of the MIG mode takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Active,
    /// After a reset of the GPU.
    ResetNeeded,
    /// Not while a process has the GPU open.
    InUse,
    /// Another status of the driver.
    Other(u32),
}

#[derive(Debug, thiserror::Error)]
pub enum MigError {
    /// A process uses it or holds it open.
    #[error("in use")]
    InUse,
    #[error("permission denied")]
    NoPermission,
    /// No room, or the position is taken.
    #[error("insufficient room")]
    NoRoom,
    #[error("instance not found")]
    NotThere,
    #[error("not supported by the GPU in its current MIG mode")]
    NotSupported,
    #[error("the driver library has no function {0}")]
    NoFunction(&'static str),
    /// More entries than a GPU can have.
    #[error("the driver reported {0} entries, more than a GPU can have")]
    TooMany(u32),
    #[error(transparent)]
    Other(#[from] NvmlError),
}

impl MigError {
    fn of(code: u32) -> Self {
        // Codes that the wrapper does not know by name.
        const INSUFFICIENT_RESOURCES: u32 = 23;
        const INVALID_STATE: u32 = 29;
        match code {
            INSUFFICIENT_RESOURCES => return Self::NoRoom,
            INVALID_STATE => return Self::NotSupported,
            _ => {}
        }
        match NvmlError::from(code) {
            NvmlError::InUse => Self::InUse,
            NvmlError::NoPermission => Self::NoPermission,
            NvmlError::NotFound => Self::NotThere,
            NvmlError::NotSupported => Self::NotSupported,
            other => Self::Other(other),
        }
    }
}

/// Turns MIG on or off.
pub fn set_mig_mode(device: &Device<'_>, enabled: bool) -> Result<Activation, MigError> {
    // The wrapper returns the driver's second answer as its number.
    let status = device.set_mig_mode(enabled).map_err(|error| match error {
        NvmlError::FailedToLoadSymbol(_) => MigError::NoFunction("nvmlDeviceSetMigMode"),
        NvmlError::UnexpectedVariant(code) => MigError::of(code),
        other => MigError::of(other.into()),
    })?;
    if status == 0 {
        return Ok(Activation::Active);
    }
    Ok(match NvmlError::from(status) {
        NvmlError::ResetRequired => Activation::ResetNeeded,
        NvmlError::InUse => Activation::InUse,
        _ => Activation::Other(status),
    })
}

/// The GPU instance of a MIG device (the device that CUDA sees).
///
/// # Errors
/// If the driver refuses, for example because the device is not a MIG device.
pub fn gpu_instance_of(mig_device: &Device<'_>) -> Result<u32, MigError> {
    Call::on(mig_device).gpu_instance_id()
}

/// The compute instance of a MIG device, by its number within the GPU instance.
pub fn compute_instance_of(mig_device: &Device<'_>) -> Result<u32, MigError> {
    Call::on(mig_device).compute_instance_id()
}

/// MIG instances of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Instances<'d, 'nvml> {
    call: Call<'d, 'nvml>,
}

impl<'d, 'nvml> Instances<'d, 'nvml> {
    pub fn of(device: &'d Device<'nvml>) -> Self {
        Self { call: Call::on(device) }
    }

    /// Possible placements of GPU instances with a profile, regardless of existing instances.
    pub fn placements(&self, profile: u32) -> Result<Vec<Placement>, MigError> {
        let mut found = self.call.placements(profile)?;
        found.sort_unstable();
        Ok(found)
    }

    /// GPU instances with a profile.
    ///
    /// # Errors
    /// If the driver refuses, for example because MIG is off.
    pub fn gpu_instances(&self, profile: u32) -> Result<Vec<GpuInstance>, MigError> {
        let handles = self.call.gpu_instances(profile)?;
        handles.into_iter().map(|handle| self.call.gpu_instance(handle)).collect()
    }

    /// Creates a GPU instance. It is usable once it has a compute instance.
    pub fn create_gpu_instance(
        &self,
        profile: u32,
        placement: Placement,
    ) -> Result<GpuInstance, MigError> {
        let handle = self.call.create_gpu_instance(profile, placement)?;
        self.call.gpu_instance(handle)
    }

    /// Destroys a GPU instance without compute instances.
    pub fn destroy_gpu_instance(&self, id: u32) -> Result<(), MigError> {
        let handle = self.found(id)?;
        self.call.destroy_gpu_instance(handle)
    }

    /// Compute instance profiles that a GPU instance supports.
    pub fn compute_profiles(&self, gpu_instance: u32) -> Result<Vec<ComputeProfile>, MigError> {
        let handle = self.found(gpu_instance)?;
        let mut found = Vec::new();
        for kind in 0..nvml_wrapper_sys::bindings::NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
            match self.call.compute_profile(handle, kind) {
                Ok(profile) => found.push(profile),
                // Not every profile is supported; older drivers reject the newest ones as an argument.
                Err(MigError::NotSupported | MigError::Other(NvmlError::InvalidArg)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Compute instances of a GPU instance.
    pub fn compute_instances(&self, gpu_instance: u32) -> Result<Vec<ComputeInstance>, MigError> {
        let parent = self.found(gpu_instance)?;
        let mut found = Vec::new();
        for profile in self.compute_profiles(gpu_instance)? {
            for handle in self.call.compute_instances(parent, profile.id)? {
                found.push(self.call.compute_instance(handle)?);
            }
        }
        // Two profiles may share an id.
        found.sort_unstable_by_key(|one| one.id);
        found.dedup_by_key(|one| one.id);
        Ok(found)
    }

    /// Creates a compute instance; the driver chooses its position.
    pub fn create_compute_instance(
        &self,
        gpu_instance: u32,
        profile: u32,
    ) -> Result<ComputeInstance, MigError> {
        let parent = self.found(gpu_instance)?;
        let handle = self.call.create_compute_instance(parent, profile)?;
        self.call.compute_instance(handle)
    }

    /// Destroys a compute instance that no process uses.
    pub fn destroy_compute_instance(&self, gpu_instance: u32, id: u32) -> Result<(), MigError> {
        let parent = self.found(gpu_instance)?;
        let handle = self.call.compute_instance_by_id(parent, id)?;
        self.call.destroy_compute_instance(handle)
    }

    fn found(&self, id: u32) -> Result<GpuInstanceHandle, MigError> {
        self.call.gpu_instance_by_id(id)
    }
}
