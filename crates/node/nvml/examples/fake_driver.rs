//! A fake `libnvidia-ml.so.1` with one H200 that supports MIG, so that tests can call the real bindings
//! without a GPU.
//!
//! Follows the driver's documented rules for MIG. The file named by `FAKE_DRIVER_STATE` keeps the GPU's state
//! between processes: a line for its mode and one for each instance. `FAKE_DRIVER_BUSY` lists the numbers of
//! GPU instances in use.

#![allow(non_snake_case, reason = "they are the library's names")]
#![allow(clippy::missing_safety_doc, reason = "they are the library's own")]

use std::ffi::{CStr, c_char, c_uint};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{env, fs, ptr};

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlMemory_v2_t, nvmlPciInfo_t,
};

const OK: c_uint = 0;
const INVALID_ARGUMENT: c_uint = 2;
const NOT_SUPPORTED: c_uint = 3;
const NOT_FOUND: c_uint = 6;
const INSUFFICIENT_SIZE: c_uint = 7;
const IN_USE: c_uint = 19;
const INSUFFICIENT_RESOURCES: c_uint = 23;

const UUID: &str = "GPU-00000000-0000-4000-8000-000000000000";
const MEMORY_MIB: u64 = 143_771;

/// Handles: numbers that are not addresses, each kind in a range of its own.
const GPU: usize = 0x1000;
const GPU_INSTANCE: usize = 0x2000;
const COMPUTE_INSTANCE: usize = 0x4000;
const MIG_DEVICE: usize = 0x8000;
const COMPUTE_PER_GPU_INSTANCE: usize = 16;

struct Kind {
    number: c_uint,
    id: c_uint,
    name: &'static str,
    slices: c_uint,
    units: c_uint,
    starts: &'static [c_uint],
    most: c_uint,
    memory_mib: u64,
    multiprocessors: c_uint,
}

const fn kind(
    (number, id): (c_uint, c_uint),
    name: &'static str,
    (slices, units): (c_uint, c_uint),
    starts: &'static [c_uint],
    most: c_uint,
    (memory_mib, multiprocessors): (u64, c_uint),
) -> Kind {
    Kind { number, id, name, slices, units, starts, most, memory_mib, multiprocessors }
}

const KINDS: [Kind; 7] = [
    kind((0, 19), "1g.18gb", (1, 1), &[0, 1, 2, 3, 4, 5, 6], 7, (16_384, 16)),
    kind((7, 20), "1g.18gb+me", (1, 1), &[0, 1, 2, 3, 4, 5, 6], 1, (16_384, 16)),
    kind((9, 15), "1g.35gb", (1, 2), &[0, 2, 4, 6], 4, (33_280, 26)),
    kind((1, 14), "2g.35gb", (2, 2), &[0, 2, 4], 3, (33_280, 32)),
    kind((2, 9), "3g.71gb", (3, 4), &[0, 4], 2, (71_424, 60)),
    kind((3, 5), "4g.71gb", (4, 4), &[0], 1, (71_424, 64)),
    kind((4, 0), "7g.141gb", (7, 8), &[0], 1, (143_360, 132)),
];

/// Compute instance profiles: number, which is the id too, and slices.
const COMPUTE: [(c_uint, c_uint); 5] = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 7)];

#[derive(Clone)]
struct Compute {
    id: c_uint,
    profile: c_uint,
    start: c_uint,
}

#[derive(Clone)]
struct Instance {
    id: c_uint,
    profile: c_uint,
    start: c_uint,
    compute: Vec<Compute>,
}

#[derive(Default)]
struct State {
    enabled: bool,
    instances: Vec<Instance>,
}

static STATE: Mutex<State> = Mutex::new(State { enabled: false, instances: Vec::new() });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn slices_of(compute_profile: c_uint) -> c_uint {
    COMPUTE.iter().find(|(id, _)| *id == compute_profile).map_or(0, |(_, slices)| *slices)
}

impl Instance {
    fn kind(&self) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.id == self.profile)
    }

    fn covers(&self, unit: c_uint) -> bool {
        let units = self.kind().map_or(0, |kind| kind.units);
        (self.start..self.start + units).contains(&unit)
    }

    fn is_busy(&self) -> bool {
        let busy = env::var("FAKE_DRIVER_BUSY").unwrap_or_default();
        busy.split(',').any(|id| id.trim() == self.id.to_string())
    }
}

impl State {
    fn read() -> Self {
        let text =
            env::var("FAKE_DRIVER_STATE").ok().and_then(|path| fs::read_to_string(path).ok());
        let mut state = Self::default();
        for line in text.unwrap_or_default().lines() {
            let mut numbers = line.split(' ').filter_map(|one| one.parse().ok());
            let mut next = || numbers.next().unwrap_or(0);
            if line.starts_with("mig") {
                state.enabled = next() == 1;
                continue;
            }
            let (id, profile, start, count) = (next(), next(), next(), next());
            let compute = (0..count)
                .map(|_| Compute { id: next(), profile: next(), start: next() })
                .collect();
            state.instances.push(Instance { id, profile, start, compute });
        }
        state
    }

    fn keep(&self) {
        let Ok(path) = env::var("FAKE_DRIVER_STATE") else { return };
        let mut text = format!("mig {}\n", u8::from(self.enabled));
        for one in &self.instances {
            text += &format!("{} {} {} {}", one.id, one.profile, one.start, one.compute.len());
            for compute in &one.compute {
                text += &format!(" {} {} {}", compute.id, compute.profile, compute.start);
            }
            text.push('\n');
        }
        // A test that cannot write its state sees that nothing changed.
        let _ = fs::write(path, text);
    }

    fn at(&mut self, handle: nvmlGpuInstance_t) -> Option<&mut Instance> {
        let id = c_uint::try_from(handle.addr().checked_sub(GPU_INSTANCE)?).ok()?;
        self.instances.iter_mut().find(|one| one.id == id)
    }

    fn mig_devices(&self) -> Vec<(Instance, Compute)> {
        let all = self.instances.iter();
        all.flat_map(|one| one.compute.iter().map(|compute| (one.clone(), compute.clone())))
            .collect()
    }

    fn mig_device(&self, handle: nvmlDevice_t) -> Option<(Instance, Compute)> {
        let index = handle.addr().checked_sub(MIG_DEVICE)?;
        self.mig_devices().into_iter().nth(index)
    }
}

fn is_gpu(device: nvmlDevice_t) -> bool {
    device.addr() == GPU
}

fn handle<T>(number: usize) -> *mut T {
    ptr::without_provenance_mut(number)
}

/// Writes where the caller has room for one.
unsafe fn put<T>(to: *mut T, value: T) -> c_uint {
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: as the library's own functions, these trust their caller to point at room for one.
    unsafe { to.write(value) };
    OK
}

/// Writes text and its end where the caller has so much room.
unsafe fn put_text(to: *mut c_char, room: c_uint, text: &str) -> c_uint {
    if to.is_null() || room as usize <= text.len() {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: the caller has room for `room` bytes, which is more than the text has.
    unsafe { ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len()) };
    // SAFETY: there is room for one more.
    let end = unsafe { to.add(text.len()) };
    // SAFETY: as the text itself.
    unsafe { put(end, 0) }
}

/// Writes a list where the caller has room for it, and how long it is.
unsafe fn put_list<T>(to: *mut T, count: *mut c_uint, list: &[T]) -> c_uint {
    if !to.is_null() {
        // SAFETY: the caller has room for as many as the profile allows.
        unsafe { ptr::copy_nonoverlapping(list.as_ptr(), to, list.len()) };
    }
    // SAFETY: as for the list.
    unsafe { put(count, list.len() as c_uint) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_uint {
    *state() = State::read();
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_uint {
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, room: c_uint) -> c_uint {
    // SAFETY: the caller gives its room.
    unsafe { put_text(to, room, "580.159.04") }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(to: *mut c_char, room: c_uint) -> c_uint {
    // SAFETY: the caller gives its room.
    unsafe { put_text(to, room, "13.580.159.04") }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(to: *mut c_uint) -> c_uint {
    // SAFETY: the caller has room for a number.
    unsafe { put(to, 1) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    to: *mut nvmlDevice_t,
) -> c_uint {
    if index != 0 {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller has room for a handle.
    unsafe { put(to, handle(GPU)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    to: *mut nvmlDevice_t,
) -> c_uint {
    // SAFETY: the caller gives text with an end.
    let is_known = unsafe { CStr::from_ptr(uuid) }.to_bytes() == UUID.as_bytes();
    if !is_known {
        return NOT_FOUND;
    }
    // SAFETY: the caller has room for a handle.
    unsafe { put(to, handle(GPU)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    to: *mut c_char,
    room: c_uint,
) -> c_uint {
    let slice = state().mig_device(device).and_then(|(one, _)| one.kind());
    let name = match slice {
        Some(kind) => format!("NVIDIA H200 MIG {}", kind.name),
        None => "NVIDIA H200".to_owned(),
    };
    // SAFETY: the caller gives its room.
    unsafe { put_text(to, room, &name) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    to: *mut c_char,
    room: c_uint,
) -> c_uint {
    let uuid = match state().mig_device(device) {
        Some((one, compute)) => {
            format!("MIG-00000000-0000-4000-8000-{:04}{:08}", one.id, compute.id)
        }
        None => UUID.to_owned(),
    };
    // SAFETY: the caller gives its room.
    unsafe { put_text(to, room, &uuid) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(
    _device: nvmlDevice_t,
    to: *mut nvmlPciInfo_t,
) -> c_uint {
    let mut info = nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain: 0,
        bus: 1,
        device: 0,
        pciDeviceId: 0x2335_10de,
        pciSubSystemId: 0,
        busId: [0; 32],
    };
    for (byte, to) in b"00000000:01:00.0".iter().zip(&mut info.busId) {
        *to = *byte as c_char;
    }
    // SAFETY: the caller has room for one.
    unsafe { put(to, info) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    _device: nvmlDevice_t,
    to: *mut nvmlMemory_v2_t,
) -> c_uint {
    let total = MEMORY_MIB << 20;
    let info = nvmlMemory_v2_t { version: 0, total, reserved: 0, free: total, used: 0 };
    // SAFETY: the caller has room for one.
    unsafe { put(to, info) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetAttributes_v2(
    device: nvmlDevice_t,
    to: *mut nvmlDeviceAttributes_t,
) -> c_uint {
    let Some((one, compute)) = state().mig_device(device) else { return NOT_SUPPORTED };
    let Some(kind) = one.kind() else { return NOT_FOUND };
    let attributes = nvmlDeviceAttributes_t {
        multiprocessorCount: kind.multiprocessors,
        sharedCopyEngineCount: 1,
        sharedDecoderCount: 1,
        sharedEncoderCount: 0,
        sharedJpegCount: 1,
        sharedOfaCount: 0,
        gpuInstanceSliceCount: kind.slices,
        computeInstanceSliceCount: slices_of(compute.profile),
        memorySizeMB: kind.memory_mib,
    };
    // SAFETY: the caller has room for one.
    unsafe { put(to, attributes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> c_uint {
    if !is_gpu(device) {
        return NOT_SUPPORTED;
    }
    let mode = c_uint::from(state().enabled);
    // SAFETY: the caller has room for a number.
    let told = unsafe { put(current, mode) };
    // SAFETY: and for another.
    told.max(unsafe { put(pending, mode) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceSetMigMode(
    device: nvmlDevice_t,
    mode: c_uint,
    status: *mut c_uint,
) -> c_uint {
    if !is_gpu(device) || mode > 1 {
        return INVALID_ARGUMENT;
    }
    let mut state = state();
    if mode == 0 && !state.instances.is_empty() {
        return IN_USE;
    }
    state.enabled = mode == 1;
    state.keep();
    // SAFETY: the caller has room for a number.
    unsafe { put(status, OK) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: nvmlDevice_t,
    number: c_uint,
    to: *mut nvmlGpuInstanceProfileInfo_t,
) -> c_uint {
    if !is_gpu(device) {
        return INVALID_ARGUMENT;
    }
    let Some(kind) = KINDS.iter().find(|kind| kind.number == number) else { return NOT_SUPPORTED };
    let info = nvmlGpuInstanceProfileInfo_t {
        id: kind.id,
        isP2pSupported: 0,
        sliceCount: kind.slices,
        instanceCount: kind.most,
        multiprocessorCount: kind.multiprocessors,
        copyEngineCount: 1,
        decoderCount: 1,
        encoderCount: 0,
        jpegCount: 1,
        ofaCount: 0,
        memorySizeMB: kind.memory_mib,
    };
    // SAFETY: the caller has room for one.
    unsafe { put(to, info) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    device: nvmlDevice_t,
    profile: c_uint,
    to: *mut nvmlGpuInstancePlacement_t,
    count: *mut c_uint,
) -> c_uint {
    let kind = KINDS.iter().find(|kind| kind.id == profile);
    let Some(kind) = kind.filter(|_| is_gpu(device)) else { return INVALID_ARGUMENT };
    let place = |start: &c_uint| nvmlGpuInstancePlacement_t { start: *start, size: kind.units };
    // The real one does not promise an order.
    let list: Vec<_> = kind.starts.iter().rev().map(place).collect();
    // SAFETY: the caller has room for as many as it was told, or gives no list.
    unsafe { put_list(to, count, &list) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceCreateGpuInstanceWithPlacement(
    device: nvmlDevice_t,
    profile: c_uint,
    placement: *const nvmlGpuInstancePlacement_t,
    to: *mut nvmlGpuInstance_t,
) -> c_uint {
    let kind = KINDS.iter().find(|kind| kind.id == profile);
    let Some(kind) = kind.filter(|_| is_gpu(device)) else { return INVALID_ARGUMENT };
    // SAFETY: the caller points at a placement.
    let place = unsafe { *placement };
    if place.size != kind.units || !kind.starts.contains(&place.start) {
        return INVALID_ARGUMENT;
    }
    let mut state = state();
    if !state.enabled {
        return NOT_SUPPORTED;
    }
    let units = place.start..place.start + place.size;
    let slices = |all: &[Instance]| all.iter().filter_map(Instance::kind).map(|k| k.slices).sum();
    let used: c_uint = slices(&state.instances);
    let alike = state.instances.iter().filter(|one| one.profile == profile).count();
    let taken = state.instances.iter().any(|one| units.clone().any(|unit| one.covers(unit)));
    if taken || used + kind.slices > 7 || alike >= kind.most as usize {
        return INSUFFICIENT_RESOURCES;
    }
    // The smallest unused number from 1 on.
    let free = (1..).find(|id| state.instances.iter().all(|one| one.id != *id));
    let Some(id) = free else { return INSUFFICIENT_RESOURCES };
    state.instances.push(Instance { id, profile, start: place.start, compute: Vec::new() });
    state.keep();
    // SAFETY: the caller has room for a handle.
    unsafe { put(to, handle(GPU_INSTANCE + id as usize)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceDestroy(one: nvmlGpuInstance_t) -> c_uint {
    let mut state = state();
    let Some(found) = state.at(one) else { return INVALID_ARGUMENT };
    if !found.compute.is_empty() || found.is_busy() {
        return IN_USE;
    }
    let id = found.id;
    state.instances.retain(|one| one.id != id);
    state.keep();
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstances(
    device: nvmlDevice_t,
    profile: c_uint,
    to: *mut nvmlGpuInstance_t,
    count: *mut c_uint,
) -> c_uint {
    let state = state();
    if !is_gpu(device) || !state.enabled {
        return NOT_SUPPORTED;
    }
    let found = state.instances.iter().filter(|one| one.profile == profile);
    let list: Vec<nvmlGpuInstance_t> =
        found.map(|one| handle(GPU_INSTANCE + one.id as usize)).collect();
    // SAFETY: the caller has room for as many as the profile allows.
    unsafe { put_list(to, count, &list) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceById(
    _device: nvmlDevice_t,
    id: c_uint,
    to: *mut nvmlGpuInstance_t,
) -> c_uint {
    if state().instances.iter().all(|one| one.id != id) {
        return NOT_FOUND;
    }
    // SAFETY: the caller has room for a handle.
    unsafe { put(to, handle(GPU_INSTANCE + id as usize)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetInfo(
    one: nvmlGpuInstance_t,
    to: *mut nvmlGpuInstanceInfo_t,
) -> c_uint {
    let mut state = state();
    let Some(found) = state.at(one) else { return INVALID_ARGUMENT };
    let size = found.kind().map_or(0, |kind| kind.units);
    let info = nvmlGpuInstanceInfo_t {
        device: handle(GPU),
        id: found.id,
        profileId: found.profile,
        placement: nvmlGpuInstancePlacement_t { start: found.start, size },
    };
    // SAFETY: the caller has room for one.
    unsafe { put(to, info) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    one: nvmlGpuInstance_t,
    number: c_uint,
    _engines: c_uint,
    to: *mut nvmlComputeInstanceProfileInfo_t,
) -> c_uint {
    let mut state = state();
    let Some(kind) = state.at(one).and_then(|one| one.kind()) else { return INVALID_ARGUMENT };
    let found = COMPUTE.iter().find(|(id, slices)| *id == number && *slices <= kind.slices);
    let Some((id, slices)) = found else { return NOT_SUPPORTED };
    let info = nvmlComputeInstanceProfileInfo_t {
        id: *id,
        sliceCount: *slices,
        instanceCount: kind.slices / slices,
        multiprocessorCount: kind.multiprocessors / kind.slices * slices,
        sharedCopyEngineCount: 1,
        sharedDecoderCount: 1,
        sharedEncoderCount: 0,
        sharedJpegCount: 1,
        sharedOfaCount: 0,
    };
    // SAFETY: the caller has room for one.
    unsafe { put(to, info) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceCreateComputeInstance(
    one: nvmlGpuInstance_t,
    profile: c_uint,
    to: *mut nvmlComputeInstance_t,
) -> c_uint {
    let mut state = state();
    let Some(found) = state.at(one) else { return INVALID_ARGUMENT };
    let slices = slices_of(profile);
    let used: c_uint = found.compute.iter().map(|one| slices_of(one.profile)).sum();
    if slices == 0 || used + slices > found.kind().map_or(0, |kind| kind.slices) {
        return INSUFFICIENT_RESOURCES;
    }
    let free = (0..).find(|id| found.compute.iter().all(|one| one.id != *id));
    let Some(id) = free else { return INSUFFICIENT_RESOURCES };
    found.compute.push(Compute { id, profile, start: used });
    let number = COMPUTE_INSTANCE + found.id as usize * COMPUTE_PER_GPU_INSTANCE + id as usize;
    state.keep();
    // SAFETY: the caller has room for a handle.
    unsafe { put(to, handle(number)) }
}

/// The instance that a handle means, and the number of the compute instance in it.
fn compute_at(state: &mut State, one: nvmlComputeInstance_t) -> Option<(&mut Instance, c_uint)> {
    let number = one.addr().checked_sub(COMPUTE_INSTANCE)?;
    let id = c_uint::try_from(number % COMPUTE_PER_GPU_INSTANCE).ok()?;
    let parent = number / COMPUTE_PER_GPU_INSTANCE;
    let parent = state.instances.iter_mut().find(|one| one.id as usize == parent)?;
    parent.compute.iter().any(|one| one.id == id).then_some((parent, id))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlComputeInstanceDestroy(one: nvmlComputeInstance_t) -> c_uint {
    let mut state = state();
    let Some((parent, id)) = compute_at(&mut state, one) else { return INVALID_ARGUMENT };
    if parent.is_busy() {
        return IN_USE;
    }
    parent.compute.retain(|one| one.id != id);
    state.keep();
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetComputeInstances(
    one: nvmlGpuInstance_t,
    profile: c_uint,
    to: *mut nvmlComputeInstance_t,
    count: *mut c_uint,
) -> c_uint {
    let mut state = state();
    let Some(parent) = state.at(one) else { return INVALID_ARGUMENT };
    let first = COMPUTE_INSTANCE + parent.id as usize * COMPUTE_PER_GPU_INSTANCE;
    let found = parent.compute.iter().filter(|one| one.profile == profile);
    let list: Vec<nvmlComputeInstance_t> =
        found.map(|one| handle(first + one.id as usize)).collect();
    // SAFETY: the caller has room for as many as the profile allows.
    unsafe { put_list(to, count, &list) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceById(
    one: nvmlGpuInstance_t,
    id: c_uint,
    to: *mut nvmlComputeInstance_t,
) -> c_uint {
    let mut state = state();
    let Some(parent) = state.at(one) else { return INVALID_ARGUMENT };
    if parent.compute.iter().all(|one| one.id != id) {
        return NOT_FOUND;
    }
    let number = COMPUTE_INSTANCE + parent.id as usize * COMPUTE_PER_GPU_INSTANCE + id as usize;
    // SAFETY: the caller has room for a handle.
    unsafe { put(to, handle(number)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlComputeInstanceGetInfo_v2(
    one: nvmlComputeInstance_t,
    to: *mut nvmlComputeInstanceInfo_t,
) -> c_uint {
    let mut state = state();
    let Some((parent, id)) = compute_at(&mut state, one) else { return INVALID_ARGUMENT };
    let Some(compute) = parent.compute.iter().find(|one| one.id == id) else { return NOT_FOUND };
    // As an H200 with driver 580.159.04: an instance with 3 slices has the size 4.
    let size = match slices_of(compute.profile) {
        3 => 4,
        slices => slices,
    };
    let info = nvmlComputeInstanceInfo_t {
        device: handle(GPU),
        gpuInstance: handle(GPU_INSTANCE + parent.id as usize),
        id,
        profileId: compute.profile,
        placement: nvmlComputeInstancePlacement_t { start: compute.start, size },
    };
    // SAFETY: the caller has room for one.
    unsafe { put(to, info) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(
    device: nvmlDevice_t,
    to: *mut c_uint,
) -> c_uint {
    // SAFETY: the caller has room for a number.
    unsafe { put(to, if is_gpu(device) { 7 } else { 0 }) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    _device: nvmlDevice_t,
    index: c_uint,
    to: *mut nvmlDevice_t,
) -> c_uint {
    if state().mig_devices().len() <= index as usize {
        return NOT_FOUND;
    }
    // SAFETY: the caller has room for a handle.
    unsafe { put(to, handle(MIG_DEVICE + index as usize)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceId(
    device: nvmlDevice_t,
    to: *mut c_uint,
) -> c_uint {
    let Some((one, _)) = state().mig_device(device) else { return NOT_SUPPORTED };
    // SAFETY: the caller has room for a number.
    unsafe { put(to, one.id) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeInstanceId(
    device: nvmlDevice_t,
    to: *mut c_uint,
) -> c_uint {
    let Some((_, compute)) = state().mig_device(device) else { return NOT_SUPPORTED };
    // SAFETY: the caller has room for a number.
    unsafe { put(to, compute.id) }
}
