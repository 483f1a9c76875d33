//! Asking NVML what GPUs there are.
//!
//! Owns which questions are asked and what an answer means. A question that a GPU does not know (most
//! know some only) leaves its answer out in silence; one that is refused or fails leaves a diagnosis.
//! Must not change anything on a GPU.
//!
//! The kind of device behind an NVLink is always unknown to the wrapper (0.13), whatever NVML says; PCI
//! tells it. Where slices may lie, and do, is asked past the wrapper; where the driver does not tell, the
//! table of boards does.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;

use berth_host::Diagnosis;
use berth_host::pci::Distance;
use berth_model::mig::Board;
use berth_nvml::{Instances, MigError, compute_instance_of, gpu_instance_of};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, RetirementCause, TemperatureSensor, TopologyLevel,
};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::struct_wrappers::device::PciInfo;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

use super::profile::{PlacementSource, Profile, name_of_slice};
use super::{
    DriverGpu, GpuMemory, GpuProcess, GpuReading, Health, Instance, Level, LinkPeer, MigMode, note,
};

/// The name that is in every container which is given a driver; the one without a number is not.
pub(crate) const LIBRARY: &str = "libnvidia-ml.so.1";

/// GPUs of a machine, MIG devices of a GPU, links of a GPU: more are not asked for.
const GPUS_MAX: u32 = 64;
const INSTANCES_MAX: u32 = 64;
const LINKS_MAX: u32 = 36;

/// Kinds of slices by NVML's number, and what their names end in.
const KINDS: [&str; 17] = [
    "", "", "", "", "", "", "", "+me", "+me", "", "+gfx", "+gfx", "+gfx", "-me", "-me", "+me.all",
    "+me.all",
];

/// Fields: rows replaced after corrected errors, after others, waiting for a reset, impossible.
const REMAPPED: [u32; 4] = [142, 143, 144, 145];

pub(crate) fn opened(library: &OsStr) -> Result<Nvml, (String, &'static str)> {
    Nvml::builder().lib_path(library).init().map_err(|error| {
        let remedy = match &error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
                "install NVIDIA's driver, or give the container the driver's libraries, if there are \
                 GPUs to be told of"
            }
            NvmlError::DriverNotLoaded => "load NVIDIA's kernel modules: modprobe nvidia",
            NvmlError::LibRmVersionMismatch => {
                "the driver was updated and its kernel modules were not: reload them, or reboot"
            }
            NvmlError::NoPermission | NvmlError::OperatingSystem => {
                "give the container the devices /dev/nvidiactl and /dev/nvidia0 and so on"
            }
            _ => "run nvidia-smi, and look at the kernel's log",
        };
        let why = match &error {
            NvmlError::LibloadingError(_) => format!("{} is not there", library.display()),
            other => other.to_string(),
        };
        (why, remedy)
    })
}

/// Reads all GPUs of this machine.
pub(super) fn read() -> GpuReading {
    let nvml = match opened(OsStr::new(LIBRARY)) {
        Ok(nvml) => nvml,
        Err((why, remedy)) => {
            let what = format!("cannot be asked ({why}), so GPUs are known from PCI only");
            return GpuReading::nothing(what, remedy);
        }
    };
    let mut asked = Asked { at: "nvml".to_owned(), notes: Vec::new() };
    let mut reading = GpuReading {
        driver: asked.needed("the driver's version", nvml.sys_driver_version()),
        nvml: asked.needed("its own version", nvml.sys_nvml_version()),
        cuda: asked
            .known("CUDA's version", nvml.sys_cuda_driver_version())
            .map(|version| format!("{}.{}", version / 1000, version % 1000 / 10)),
        ..GpuReading::default()
    };
    let count = asked.needed("how many GPUs there are", nvml.device_count()).unwrap_or(0);
    if count == 0 {
        asked.notes.push(note("nvml", "tells of no GPU", "look at PCI and at the kernel's log"));
    }
    let mut devices = Vec::new();
    for index in 0..count.min(GPUS_MAX) {
        asked.at = format!("nvml/{index}");
        if let Some(device) = asked.needed("this GPU", nvml.device_by_index(index)) {
            let gpu = gpu(&device, index, &mut asked);
            devices.push((gpu, device));
        }
    }
    reading.levels = levels(&devices, &mut asked);
    reading.gpus = devices.into_iter().map(|(gpu, _)| gpu).collect();
    reading.gpus.sort_by(|one, other| one.address.cmp(&other.address));
    reading.diagnoses = asked.notes;
    reading
}

/// Answers, and what to say of those that did not come.
struct Asked {
    at: String,
    notes: Vec<Diagnosis>,
}

impl Asked {
    fn needed<T>(&mut self, what: &str, answer: Result<T, NvmlError>) -> Option<T> {
        answer.map_err(|error| self.refused(what, &error)).ok()
    }

    /// Not every GPU knows it, nor every version of the driver.
    fn known<T>(&mut self, what: &str, answer: Result<T, NvmlError>) -> Option<T> {
        match answer {
            Ok(found) => Some(found),
            Err(
                NvmlError::NotSupported
                | NvmlError::FunctionNotFound
                | NvmlError::FailedToLoadSymbol(_)
                | NvmlError::NotFound
                | NvmlError::NoData,
            ) => None,
            Err(error) => {
                self.refused(what, &error);
                None
            }
        }
    }

    /// The same for what is asked past the wrapper.
    fn placed<T>(&mut self, what: &str, answer: Result<T, MigError>) -> Option<T> {
        match answer {
            Err(MigError::Other(error)) => self.known(what, Err(error)),
            Err(MigError::NotSupported | MigError::NotThere | MigError::NoFunction(_)) => None,
            Err(error) => {
                self.refused(what, &error);
                None
            }
            Ok(found) => Some(found),
        }
    }

    fn refused(&mut self, what: &str, error: &dyn Display) {
        let text = error.to_string();
        let remedy = if text.contains("permission") {
            "run with the right to ask for it"
        } else if text.contains("off the bus") {
            "drain the node and reset the GPU, or replace it"
        } else if text.contains("reset") {
            "reset the GPU when nothing runs on it"
        } else {
            "run nvidia-smi -q, and look at the kernel's log"
        };
        self.notes.push(note(&self.at, format!("does not tell {what} ({text})"), remedy));
    }
}

fn gpu(device: &Device<'_>, index: u32, asked: &mut Asked) -> DriverGpu {
    let address = asked.needed("its address", device.pci_info()).map(|info| address(&info));
    if let Some(address) = &address {
        asked.at = format!("nvml/{address}");
    }
    let product = asked.needed("its product", device.name());
    let memory = asked.needed("its memory", device.memory_info()).map(|info| GpuMemory {
        total_bytes: info.total,
        used_bytes: info.used,
        reserved_bytes: info.reserved,
    });
    let total_bytes = memory.map_or(0, |memory| memory.total_bytes);
    let mig = asked
        .known("its MIG mode", device.mig_mode())
        .map(|mode| MigMode { enabled: mode.current != 0, pending: mode.pending != 0 });
    let profiles = match mig {
        Some(_) => profiles(device, product.as_deref(), total_bytes, asked),
        None => Vec::new(),
    };
    let instances = match mig {
        Some(mode) if mode.enabled => instances(device, &profiles, asked),
        _ => Vec::new(),
    };
    let usage = asked.known("its utilisation", device.utilization_rates());
    DriverGpu {
        index,
        uuid: asked.needed("its UUID", device.uuid()),
        address,
        product,
        memory,
        mig,
        profiles,
        instances,
        processes: processes(device, asked),
        health: health(device, asked),
        busy_percent: usage.as_ref().map(|usage| usage.gpu),
        memory_busy_percent: usage.as_ref().map(|usage| usage.memory),
        temperature_celsius: asked
            .known("its temperature", device.temperature(TemperatureSensor::Gpu)),
        power_milliwatts: asked.known("its power", device.power_usage()),
        power_limit_milliwatts: asked.known("its power limit", device.enforced_power_limit()),
        links: links(device, asked),
    }
}

/// NVML writes capitals and longer domains; the kernel does not.
fn address(info: &PciInfo) -> String {
    // The number of the function is in the text only.
    let function = info.bus_id.rsplit_once('.').map_or("0", |(_, function)| function);
    format!("{:04x}:{:02x}:{:02x}.{function}", info.domain, info.bus, info.device)
}

/// Which board it is, if that is known.
pub(crate) fn board(product: &str, gpu_bytes: u64) -> Option<&'static Board> {
    Board::by_product(product, Some(gpu_bytes >> 20)).ok()
}

/// The slices that a GPU can be divided into, for whoever divides it; what is refused is left out.
pub(crate) fn kinds_of_slices(device: &Device<'_>, product: &str, gpu_bytes: u64) -> Vec<Profile> {
    let mut asked = Asked { at: String::new(), notes: Vec::new() };
    profiles(device, Some(product), gpu_bytes, &mut asked)
}

fn profiles(
    device: &Device<'_>,
    product: Option<&str>,
    gpu_bytes: u64,
    asked: &mut Asked,
) -> Vec<Profile> {
    let board = product.and_then(|product| board(product, gpu_bytes));
    let mut profiles: Vec<Profile> = Vec::new();
    for (number, suffix) in (0..).zip(KINDS) {
        // A GPU has some of these kinds; an older driver takes the newest for a wrong argument.
        let answer = match device.profile_info(number) {
            Err(NvmlError::InvalidArg) => continue,
            other => other,
        };
        let Some(info) = asked.known("its MIG profiles", answer) else { continue };
        let mut profile = Profile {
            id: info.id,
            name: name_of_slice(info.slice_count, info.memory_size_mb, gpu_bytes, suffix),
            instances: info.instance_count,
            slices: info.slice_count,
            memory_mib: info.memory_size_mb,
            multiprocessors: info.multiprocessor_count,
            copy_engines: info.copy_engine_count,
            decoders: info.decoder_count,
            encoders: info.encoder_count,
            ..Profile::default()
        };
        let told = asked.placed("MIG placements", Instances::of(device).placements(info.id));
        let told = told.unwrap_or_default();
        if let Some(first) = told.first() {
            profile.units = first.size;
            profile.starts = told.iter().map(|one| one.start).collect();
            profile.placements = PlacementSource::Driver;
        } else if let Some(board) = board {
            profile.place_by_table(board);
        }
        profiles.push(profile);
    }
    profiles.sort_by_key(Profile::order);
    let unknown = profiles.iter().filter(|one| one.placements == PlacementSource::Unknown);
    let unknown: Vec<&str> = unknown.map(|one| one.name.as_str()).collect();
    if !unknown.is_empty() {
        let what = format!("where slices {} may start is not known", unknown.join(", "));
        asked.notes.push(note(&asked.at, what, "compare with nvidia-smi mig -lgipp"));
    }
    profiles
}

/// What CUDA sees, and where the GPU instances lie that it is in.
fn instances(device: &Device<'_>, profiles: &[Profile], asked: &mut Asked) -> Vec<Instance> {
    let mut places = BTreeMap::new();
    for profile in profiles {
        let found = Instances::of(device).gpu_instances(profile.id);
        let found = asked.placed("where its slices lie", found).unwrap_or_default();
        places.extend(found.into_iter().map(|one| (one.id, one.placement)));
    }
    let count = asked.known("how many slices it can have", device.mig_device_count()).unwrap_or(0);
    let mut instances = Vec::new();
    for index in 0..count.min(INSTANCES_MAX) {
        // There may be gaps: numbers without a slice are not found.
        let Some(one) = asked.known("a slice", device.mig_device_by_index(index)) else { continue };
        // `NVIDIA H200 MIG 1g.18gb`.
        let name = asked.known("the name of a slice", one.name());
        let profile = name.as_deref().and_then(|name| name.split_once(" MIG "));
        let attributes = asked.known("the size of a slice", one.attributes());
        let gpu_instance = asked.placed("what a slice is part of", gpu_instance_of(&one));
        let compute_instance = asked.placed("which part of it", compute_instance_of(&one));
        let place = gpu_instance.and_then(|id| places.get(&id));
        instances.push(Instance {
            index,
            uuid: asked.needed("the UUID of a slice", one.uuid()),
            profile: profile.map(|(_, profile)| profile.trim().to_owned()),
            memory_bytes: attributes.map(|one| one.memory_size_mb << 20),
            gpu_instance,
            compute_instance,
            start: place.map(|place| place.start),
            units: place.map(|place| place.size),
        });
    }
    instances
}

fn processes(device: &Device<'_>, asked: &mut Asked) -> Vec<GpuProcess> {
    let mut found: BTreeMap<(u32, Option<u32>), Option<u64>> = BTreeMap::new();
    let kinds = [
        device.running_compute_processes(),
        device.mps_running_compute_processes(),
        device.running_graphics_processes(),
    ];
    for answer in kinds {
        for process in asked.known("its processes", answer).unwrap_or_default() {
            let memory = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            let known = found.entry((process.pid, process.gpu_instance_id)).or_default();
            *known = (*known).max(memory);
        }
    }
    let process =
        |((pid, gpu_instance), memory_bytes)| GpuProcess { pid, memory_bytes, gpu_instance };
    found.into_iter().map(process).collect()
}

fn health(device: &Device<'_>, asked: &mut Asked) -> Health {
    let ecc = asked.known("whether memory is checked", device.is_ecc_enabled());
    let ecc = ecc.map(|state| state.currently_enabled);
    let mut errors = |kind: MemoryError| match ecc {
        Some(true) => {
            asked.known("memory errors", device.total_ecc_errors(kind, EccCounter::Volatile))
        }
        _ => None,
    };
    let (corrected, uncorrected) =
        (errors(MemoryError::Corrected), errors(MemoryError::Uncorrected));
    let mut pages = |cause| asked.known("retired pages", device.retired_pages(cause));
    let single = pages(RetirementCause::MultipleSingleBitEccErrors);
    let double = pages(RetirementCause::DoubleBitEccError);
    let retired_pages = match (single, double) {
        (None, None) => None,
        (one, other) => {
            let count = one.map_or(0, |all| all.len()) + other.map_or(0, |all| all.len());
            u32::try_from(count).ok()
        }
    };
    let pages_pending = asked.known("pages to be retired", device.are_pages_pending_retired());
    let ids = REMAPPED.map(FieldId);
    let rows = asked.known("replaced rows", device.field_values_for(&ids)).unwrap_or_default();
    let mut rows = rows.into_iter().map(|one| number(one.ok()?.value.ok()?));
    let mut next = || rows.next().flatten();
    let (after_corrected, after_others, waiting, failed) = (next(), next(), next(), next());
    let rows_pending = waiting.map(|count| count > 0);
    Health {
        ecc,
        corrected,
        uncorrected,
        retired_pages,
        remapped_rows: after_corrected
            .zip(after_others)
            .map(|(one, other)| one.saturating_add(other)),
        repair_pending: match (pages_pending, rows_pending) {
            (None, None) => None,
            (one, other) => Some(one == Some(true) || other == Some(true)),
        },
        repair_failed: failed.map(|count| count > 0),
    }
}

fn number(value: SampleValue) -> Option<u64> {
    match value {
        SampleValue::U32(number) => Some(u64::from(number)),
        SampleValue::U64(number) => Some(number),
        SampleValue::I64(number) => u64::try_from(number).ok(),
        SampleValue::F64(_) => None,
    }
}

fn links(device: &Device<'_>, asked: &mut Asked) -> Vec<LinkPeer> {
    let mut peers: BTreeMap<String, u32> = BTreeMap::new();
    for number in 0..LINKS_MAX {
        let link = device.link_wrapper_for(number);
        let is_active = match link.is_active() {
            // It has no link of this number, and none of higher ones.
            Err(NvmlError::InvalidArg | NvmlError::NotSupported) => break,
            answer => asked.known("its NVLinks", answer).unwrap_or(false),
        };
        if !is_active {
            continue;
        }
        if let Some(info) = asked.known("the ends of its NVLinks", link.remote_pci_info()) {
            *peers.entry(address(&info)).or_default() += 1;
        }
    }
    peers.into_iter().map(|(address, links)| LinkPeer { address, links }).collect()
}

fn levels(devices: &[(DriverGpu, Device<'_>)], asked: &mut Asked) -> Vec<Level> {
    let mut levels = Vec::new();
    for (at, (one, device)) in devices.iter().enumerate() {
        for (other, another) in devices.iter().skip(at + 1) {
            let (Some(first), Some(second)) = (&one.address, &other.address) else { continue };
            asked.at = format!("nvml/{first}");
            let answer = device.nvml().topology_common_ancestor(device, another);
            let Some(level) = asked.known("how far others are", answer) else { continue };
            let level = match level {
                TopologyLevel::Internal | TopologyLevel::Single => Distance::Pix,
                TopologyLevel::Multiple => Distance::Pxb,
                TopologyLevel::HostBridge => Distance::Phb,
                TopologyLevel::Node => Distance::Node,
                TopologyLevel::System => Distance::Sys,
            };
            levels.push(Level { one: first.clone(), other: second.clone(), level });
        }
    }
    levels
}

/// A critical error that the driver told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// UUID of the GPU.
    pub uuid: Option<String>,
    /// Number of the error; `None` if the driver does not know it.
    pub number: Option<u64>,
}

/// Critical errors of GPUs, from now on. Those from before are in the kernel's log only.
#[derive(Debug)]
pub struct Xids {
    nvml: Nvml,
}

impl Xids {
    /// Gets ready to be told.
    ///
    /// # Errors
    /// When there is no driver to ask; the text says what to do.
    pub fn new() -> Result<Self, Diagnosis> {
        let nvml = opened(OsStr::new(LIBRARY)).map_err(|(why, remedy)| {
            note("nvml", format!("cannot be asked ({why}), so XIDs are not seen"), remedy)
        })?;
        Ok(Self { nvml })
    }

    /// Tells `each` of errors as they come, until it says that it has enough (`false`). It is called
    /// with `None` each time that `wait_ms` passed without one.
    ///
    /// # Errors
    /// When no GPU can tell of errors, or the driver stops telling.
    pub fn watch(
        &self,
        wait_ms: u32,
        each: &mut dyn FnMut(Option<Xid>) -> bool,
    ) -> Result<(), Diagnosis> {
        let failed = |error: &dyn Display| {
            let what = format!("does not tell of XIDs ({error})");
            note("nvml", what, "look at the kernel's log for them")
        };
        let set = self.registered().map_err(|error| failed(&error))?;
        loop {
            let heard = match set.wait(wait_ms) {
                Ok(event) => match event.event_data {
                    Some(xid) => Some(Xid {
                        uuid: event.device.uuid().ok(),
                        number: match xid {
                            XidError::Value(number) => Some(number),
                            XidError::Unknown => None,
                        },
                    }),
                    None => continue,
                },
                Err(NvmlError::Timeout) => None,
                Err(error) => return Err(failed(&error)),
            };
            if !each(heard) {
                return Ok(());
            }
        }
    }

    fn registered(&self) -> Result<EventSet<'_>, NvmlError> {
        let mut set = self.nvml.create_event_set()?;
        let mut any = false;
        for index in 0..self.nvml.device_count()?.min(GPUS_MAX) {
            let Ok(device) = self.nvml.device_by_index(index) else { continue };
            let can = device.supported_event_types().unwrap_or(EventTypes::empty());
            if !can.contains(EventTypes::CRITICAL_XID_ERROR) {
                continue;
            }
            // A set that a GPU could not be added to is gone.
            set = device
                .register_events(EventTypes::CRITICAL_XID_ERROR, set)
                .map_err(|error| error.error)?;
            any = true;
        }
        if any { Ok(set) } else { Err(NvmlError::NotSupported) }
    }
}
