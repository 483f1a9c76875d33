//! Safe wrappers of single NVML functions.
//!
//! Handles are created by the library only, kept in types that other modules cannot construct, and live no
//! longer than the borrowed device, which keeps the library loaded.

use std::ptr;

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t,
};

use crate::{
    ComputeInstance, ComputeProfile, GpuInstance, MigError, PROFILE_INSTANCES_MAX, Placement,
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'d, 'nvml> {
    device: &'d Device<'nvml>,
}

/// Only the library creates these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuInstanceHandle(nvmlGpuInstance_t);

/// Only the library creates these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComputeInstanceHandle(nvmlComputeInstance_t);

/// Gets a function of the library, which older versions may lack.
macro_rules! function {
    ($call:expr, $name:ident) => {
        match &$call.library().$name {
            Ok(function) => *function,
            Err(_) => return Err(MigError::NoFunction(stringify!($name))),
        }
    };
}

const NOWHERE: nvmlGpuInstancePlacement_t = nvmlGpuInstancePlacement_t { start: 0, size: 0 };

fn check(code: u32) -> Result<(), MigError> {
    if code == 0 { Ok(()) } else { Err(MigError::of(code)) }
}

/// Truncates a list to the `count` entries that the library wrote.
fn truncated<T>(mut list: Vec<T>, count: u32) -> Result<Vec<T>, MigError> {
    let length = usize::try_from(count).unwrap_or(usize::MAX);
    if length > list.len() {
        return Err(MigError::TooMany(count));
    }
    list.truncate(length);
    Ok(list)
}

impl<'d, 'nvml> Call<'d, 'nvml> {
    pub(crate) fn on(device: &'d Device<'nvml>) -> Self {
        Self { device }
    }

    fn library(&self) -> &'nvml NvmlLib {
        self.device.nvml().lib()
    }

    fn handle(&self) -> nvmlDevice_t {
        // SAFETY: the handle is passed to the library that made it only, and only while the device is
        // borrowed, which keeps the library loaded.
        unsafe { self.device.handle() }
    }

    pub(crate) fn gpu_instance_id(&self) -> Result<u32, MigError> {
        let function = function!(self, nvmlDeviceGetGpuInstanceId);
        let mut id = 0;
        // SAFETY: the device is the library's own, and `id` has room for one number.
        check(unsafe { function(self.handle(), &mut id) })?;
        Ok(id)
    }

    pub(crate) fn compute_instance_id(&self) -> Result<u32, MigError> {
        let function = function!(self, nvmlDeviceGetComputeInstanceId);
        let mut id = 0;
        // SAFETY: the device is the library's own, and `id` has room for one number.
        check(unsafe { function(self.handle(), &mut id) })?;
        Ok(id)
    }

    /// Asks for the number of placements, then for all of them.
    pub(crate) fn placements(&self, profile: u32) -> Result<Vec<Placement>, MigError> {
        let function = function!(self, nvmlDeviceGetGpuInstancePossiblePlacements_v2);
        let mut count = 0;
        // SAFETY: the device is the library's own; for a null list the library writes only the count, for
        // which `count` has room.
        check(unsafe { function(self.handle(), profile, ptr::null_mut(), &mut count) })?;
        if count > PROFILE_INSTANCES_MAX {
            return Err(MigError::TooMany(count));
        }
        // They follow from the profile alone, so their number cannot grow; there is room anyway.
        let mut list = vec![NOWHERE; PROFILE_INSTANCES_MAX as usize];
        // SAFETY: the list is initialised and has room for at least as many as the library just
        // reported, and `count` has room for the number written.
        check(unsafe { function(self.handle(), profile, list.as_mut_ptr(), &mut count) })?;
        let list = truncated(list, count)?;
        Ok(list.into_iter().map(Placement::from).collect())
    }

    /// The library has no query for their number and expects room for as many as the profile allows.
    pub(crate) fn gpu_instances(&self, profile: u32) -> Result<Vec<GpuInstanceHandle>, MigError> {
        let function = function!(self, nvmlDeviceGetGpuInstances);
        let mut list: Vec<nvmlGpuInstance_t> =
            vec![ptr::null_mut(); PROFILE_INSTANCES_MAX as usize];
        let mut count = PROFILE_INSTANCES_MAX;
        // SAFETY: the device is the library's own, and the list is initialised and has room for more
        // instances than any profile allows; `count` has room for the number written.
        check(unsafe { function(self.handle(), profile, list.as_mut_ptr(), &mut count) })?;
        let list = truncated(list, count)?;
        Ok(list.into_iter().map(GpuInstanceHandle).collect())
    }

    pub(crate) fn gpu_instance_by_id(&self, id: u32) -> Result<GpuInstanceHandle, MigError> {
        let function = function!(self, nvmlDeviceGetGpuInstanceById);
        let mut handle: nvmlGpuInstance_t = ptr::null_mut();
        // SAFETY: the device is the library's own, and `handle` has room for one handle.
        check(unsafe { function(self.handle(), id, &mut handle) })?;
        Ok(GpuInstanceHandle(handle))
    }

    pub(crate) fn gpu_instance(&self, of: GpuInstanceHandle) -> Result<GpuInstance, MigError> {
        let function = function!(self, nvmlGpuInstanceGetInfo);
        let device = ptr::null_mut();
        let mut info = nvmlGpuInstanceInfo_t { device, id: 0, profileId: 0, placement: NOWHERE };
        // SAFETY: the handle was made by this library, which keeps it valid while it is loaded,
        // and `info` has room for the answer.
        check(unsafe { function(of.0, &mut info) })?;
        let placement = info.placement.into();
        Ok(GpuInstance { id: info.id, profile: info.profileId, placement })
    }

    pub(crate) fn create_gpu_instance(
        &self,
        profile: u32,
        placement: Placement,
    ) -> Result<GpuInstanceHandle, MigError> {
        let function = function!(self, nvmlDeviceCreateGpuInstanceWithPlacement);
        let place = nvmlGpuInstancePlacement_t { start: placement.start, size: placement.size };
        let mut handle: nvmlGpuInstance_t = ptr::null_mut();
        // SAFETY: the device is the library's own, `place` can be read, and `handle` has room for
        // one handle.
        check(unsafe { function(self.handle(), profile, &place, &mut handle) })?;
        Ok(GpuInstanceHandle(handle))
    }

    pub(crate) fn destroy_gpu_instance(&self, one: GpuInstanceHandle) -> Result<(), MigError> {
        let function = function!(self, nvmlGpuInstanceDestroy);
        // SAFETY: the library just gave this handle, and it is not used again.
        check(unsafe { function(one.0) })
    }

    pub(crate) fn compute_profile(
        &self,
        parent: GpuInstanceHandle,
        kind: u32,
    ) -> Result<ComputeProfile, MigError> {
        let function = function!(self, nvmlGpuInstanceGetComputeInstanceProfileInfo);
        let engines = nvml_wrapper_sys::bindings::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED;
        let mut info = nvmlComputeInstanceProfileInfo_t {
            id: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            sharedCopyEngineCount: 0,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
        };
        // SAFETY: the library gave this handle, and `info` has room for the answer.
        check(unsafe { function(parent.0, kind, engines, &mut info) })?;
        Ok(ComputeProfile { id: info.id, slices: info.sliceCount, instances: info.instanceCount })
    }

    /// As for GPU instances, the library expects room for as many as the profile allows.
    pub(crate) fn compute_instances(
        &self,
        parent: GpuInstanceHandle,
        profile: u32,
    ) -> Result<Vec<ComputeInstanceHandle>, MigError> {
        let function = function!(self, nvmlGpuInstanceGetComputeInstances);
        let mut list: Vec<nvmlComputeInstance_t> =
            vec![ptr::null_mut(); PROFILE_INSTANCES_MAX as usize];
        let mut count = PROFILE_INSTANCES_MAX;
        // SAFETY: the library gave this handle, and the list is initialised and has room for more
        // instances than any profile allows; `count` has room for the number written.
        check(unsafe { function(parent.0, profile, list.as_mut_ptr(), &mut count) })?;
        let list = truncated(list, count)?;
        Ok(list.into_iter().map(ComputeInstanceHandle).collect())
    }

    pub(crate) fn compute_instance_by_id(
        &self,
        parent: GpuInstanceHandle,
        id: u32,
    ) -> Result<ComputeInstanceHandle, MigError> {
        let function = function!(self, nvmlGpuInstanceGetComputeInstanceById);
        let mut handle: nvmlComputeInstance_t = ptr::null_mut();
        // SAFETY: the library gave this handle, and `handle` has room for one.
        check(unsafe { function(parent.0, id, &mut handle) })?;
        Ok(ComputeInstanceHandle(handle))
    }

    pub(crate) fn compute_instance(
        &self,
        of: ComputeInstanceHandle,
    ) -> Result<ComputeInstance, MigError> {
        let function = function!(self, nvmlComputeInstanceGetInfo_v2);
        let mut info = nvmlComputeInstanceInfo_t {
            device: ptr::null_mut(),
            gpuInstance: ptr::null_mut(),
            id: 0,
            profileId: 0,
            placement: nvmlComputeInstancePlacement_t { start: 0, size: 0 },
        };
        // SAFETY: the library gave this handle, and `info` has room for the answer.
        check(unsafe { function(of.0, &mut info) })?;
        let placement = Placement { start: info.placement.start, size: info.placement.size };
        Ok(ComputeInstance { id: info.id, profile: info.profileId, placement })
    }

    pub(crate) fn create_compute_instance(
        &self,
        parent: GpuInstanceHandle,
        profile: u32,
    ) -> Result<ComputeInstanceHandle, MigError> {
        let function = function!(self, nvmlGpuInstanceCreateComputeInstance);
        let mut handle: nvmlComputeInstance_t = ptr::null_mut();
        // SAFETY: the library gave this handle, and `handle` has room for one.
        check(unsafe { function(parent.0, profile, &mut handle) })?;
        Ok(ComputeInstanceHandle(handle))
    }

    pub(crate) fn destroy_compute_instance(
        &self,
        one: ComputeInstanceHandle,
    ) -> Result<(), MigError> {
        let function = function!(self, nvmlComputeInstanceDestroy);
        // SAFETY: the library just gave this handle, and it is not used again.
        check(unsafe { function(one.0) })
    }
}

impl From<nvmlGpuInstancePlacement_t> for Placement {
    fn from(one: nvmlGpuInstancePlacement_t) -> Self {
        Self { start: one.start, size: one.size }
    }
}
