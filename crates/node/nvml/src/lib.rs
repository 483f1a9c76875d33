//! NVML's calls for MIG instances that [`nvml_wrapper`] lacks or gets wrong: where instances may be
//! placed, where they are, creating and destroying them.
//!
//! Everything else about GPUs goes through the wrapper. Its `possible_placements` (0.13) reserves
//! room for the answer but never sets the length, so the result is always empty; it has no calls
//! for instances at all.
//!
//! The only crate that may use `unsafe`. No handle of the library leaves a function: instances are
//! named by number and looked up each time, so one that was destroyed meanwhile is an error. A
//! missing library or function is an error, too. Tests use a stand-in library with one H200
//! (`made_driver`, an example).

mod call;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use call::{Call, GpuInstanceHandle};

/// Instances of one profile, and kinds of profiles: more than any GPU has.
const PROFILE_INSTANCES_MAX: u32 = 64;

/// A place on a GPU, in units of memory; inside of a GPU instance, in compute slices (the driver rounds up:
/// an instance of 3 slices may have the size 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// The first unit.
    pub start: u32,
    /// How many.
    pub size: u32,
}

/// A GPU instance: a part of a GPU's memory and engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuInstance {
    /// Its number, which may be that of another instance after it was destroyed.
    pub id: u32,
    /// The id of its profile.
    pub profile: u32,
    /// Where it is.
    pub placement: Placement,
}

/// A compute instance: a part of a GPU instance's compute slices, and what CUDA sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeInstance {
    /// Its number inside of the GPU instance.
    pub id: u32,
    /// The id of its profile.
    pub profile: u32,
    /// Where it is.
    pub placement: Placement,
}

/// A kind of compute instance that a GPU instance can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeProfile {
    /// Its id.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Most instances of this kind.
    pub instances: u32,
}

/// Whether a change of the MIG mode is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// It is.
    Active,
    /// It will be when the GPU was reset.
    ResetNeeded,
    /// Not while somebody has the GPU open.
    InUse,
    /// The driver has another reason, by its number.
    Other(u32),
}

/// Why the driver did not do something.
#[derive(Debug, thiserror::Error)]
pub enum MigError {
    /// Something runs on it, or holds it open.
    #[error("it is in use")]
    InUse,
    /// Not for this user.
    #[error("this user may not do it")]
    NoPermission,
    /// There is no room for it, or the place is taken.
    #[error("there is no room for it")]
    NoRoom,
    /// There is no such instance.
    #[error("there is no such instance")]
    NotThere,
    /// The GPU or its present mode does not have it.
    #[error("the GPU does not have it in its present mode")]
    NotSupported,
    /// The driver's library lacks the function.
    #[error("the driver's library has no {0}")]
    NoFunction(&'static str),
    /// More came back than there can be.
    #[error("the driver told of {0} of them, which cannot be")]
    TooMany(u32),
    /// Something else.
    #[error(transparent)]
    Other(#[from] NvmlError),
}

impl MigError {
    fn of(code: u32) -> Self {
        // Two that the wrapper does not know by name.
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

/// Turns MIG on or off for a GPU.
///
/// # Errors
/// When the driver does not do it.
pub fn set_mig_mode(device: &Device<'_>, enabled: bool) -> Result<Activation, MigError> {
    // The wrapper gives the driver's second answer as its number.
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

/// The GPU instance that a MIG device (what CUDA sees) lies in.
///
/// # Errors
/// When the driver does not tell, as for a device that is no MIG device.
pub fn gpu_instance_of(mig_device: &Device<'_>) -> Result<u32, MigError> {
    Call::on(mig_device).gpu_instance_id()
}

/// Which compute instance of that GPU instance it is.
///
/// # Errors
/// As [`gpu_instance_of`].
pub fn compute_instance_of(mig_device: &Device<'_>) -> Result<u32, MigError> {
    Call::on(mig_device).compute_instance_id()
}

/// The instances of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Instances<'d, 'nvml> {
    call: Call<'d, 'nvml>,
}

impl<'d, 'nvml> Instances<'d, 'nvml> {
    /// Of this GPU.
    pub fn of(device: &'d Device<'nvml>) -> Self {
        Self { call: Call::on(device) }
    }

    /// Where GPU instances of a profile may lie, whatever is there already.
    ///
    /// # Errors
    /// When the driver does not tell.
    pub fn placements(&self, profile: u32) -> Result<Vec<Placement>, MigError> {
        let mut found = self.call.placements(profile)?;
        found.sort_unstable();
        Ok(found)
    }

    /// The GPU instances of a profile.
    ///
    /// # Errors
    /// When the driver does not tell; without MIG mode it does not.
    pub fn gpu_instances(&self, profile: u32) -> Result<Vec<GpuInstance>, MigError> {
        let handles = self.call.gpu_instances(profile)?;
        handles.into_iter().map(|handle| self.call.gpu_instance(handle)).collect()
    }

    /// Creates a GPU instance at a place. Nothing can run on it before it has a compute instance.
    ///
    /// # Errors
    /// When the driver does not do it.
    pub fn create_gpu_instance(
        &self,
        profile: u32,
        placement: Placement,
    ) -> Result<GpuInstance, MigError> {
        let handle = self.call.create_gpu_instance(profile, placement)?;
        self.call.gpu_instance(handle)
    }

    /// Destroys a GPU instance, which must have no compute instance.
    ///
    /// # Errors
    /// When the driver does not do it.
    pub fn destroy_gpu_instance(&self, id: u32) -> Result<(), MigError> {
        let handle = self.found(id)?;
        self.call.destroy_gpu_instance(handle)
    }

    /// Kinds of compute instances that a GPU instance can have.
    ///
    /// # Errors
    /// When the driver does not tell.
    pub fn compute_profiles(&self, gpu_instance: u32) -> Result<Vec<ComputeProfile>, MigError> {
        let handle = self.found(gpu_instance)?;
        let mut found = Vec::new();
        for kind in 0..nvml_wrapper_sys::bindings::NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
            match self.call.compute_profile(handle, kind) {
                Ok(profile) => found.push(profile),
                // It has some of these kinds; an older driver takes the newest for a wrong argument.
                Err(MigError::NotSupported | MigError::Other(NvmlError::InvalidArg)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// The compute instances of a GPU instance.
    ///
    /// # Errors
    /// When the driver does not tell.
    pub fn compute_instances(&self, gpu_instance: u32) -> Result<Vec<ComputeInstance>, MigError> {
        let parent = self.found(gpu_instance)?;
        let mut found = Vec::new();
        for profile in self.compute_profiles(gpu_instance)? {
            for handle in self.call.compute_instances(parent, profile.id)? {
                found.push(self.call.compute_instance(handle)?);
            }
        }
        // Two kinds may share an id.
        found.sort_unstable_by_key(|one| one.id);
        found.dedup_by_key(|one| one.id);
        Ok(found)
    }

    /// Creates a compute instance in a GPU instance, where the driver sees fit.
    ///
    /// # Errors
    /// When the driver does not do it.
    pub fn create_compute_instance(
        &self,
        gpu_instance: u32,
        profile: u32,
    ) -> Result<ComputeInstance, MigError> {
        let parent = self.found(gpu_instance)?;
        let handle = self.call.create_compute_instance(parent, profile)?;
        self.call.compute_instance(handle)
    }

    /// Destroys a compute instance, on which nothing may run.
    ///
    /// # Errors
    /// When the driver does not do it.
    pub fn destroy_compute_instance(&self, gpu_instance: u32, id: u32) -> Result<(), MigError> {
        let parent = self.found(gpu_instance)?;
        let handle = self.call.compute_instance_by_id(parent, id)?;
        self.call.destroy_compute_instance(handle)
    }

    fn found(&self, id: u32) -> Result<GpuInstanceHandle, MigError> {
        self.call.gpu_instance_by_id(id)
    }
}
