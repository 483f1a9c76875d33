//! Reads GPUs through NVML.
//!
//! A query that a GPU does not support (most support only some) is silently left out; one that is refused or
//! fails gives a diagnosis. Placements come from [`berth_nvml`] or, if the driver does not report them, from the
//! table of boards. The wrapper (0.13) never knows the type of an NVLink's remote device, so PCI tells it.

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

/// The name in every container with a driver; the one without a version is often missing.
pub(crate) const LIBRARY: &str = "libnvidia-ml.so.1";

/// Upper limits for queries: GPUs, MIG devices per GPU, links per GPU.
const GPUS_MAX: u32 = 64;
const INSTANCES_MAX: u32 = 64;
const LINKS_MAX: u32 = 36;

/// Name suffixes of MIG profiles by NVML's number.
const KINDS: [&str; 17] = [
    "", "", "", "", "", "", "", "+me", "+me", "", "+gfx", "+gfx", "+gfx", "-me", "-me", "+me.all",
    "+me.all",
];

/// Field ids: rows remapped after corrected errors, after uncorrected errors, pending, failed.
const REMAPPED: [u32; 4] = [142, 143, 144, 145];

/// NVML cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{why}; {remedy}")]
pub(crate) struct NvmlUnavailable {
    pub(crate) why: String,
    pub(crate) remedy: &'static str,
}

impl NvmlUnavailable {
    pub(crate) fn diagnosis(&self, consequence: &str) -> Diagnosis {
        note("nvml", format!("unavailable ({}), so {consequence}", self.why), self.remedy)
    }
}

pub(crate) fn opened(library: &OsStr) -> Result<Nvml, NvmlUnavailable> {
    Nvml::builder().lib_path(library).init().map_err(|error| {
        let remedy = match &error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
                "install NVIDIA's driver, or mount its libraries into the container, if the machine has \
                 NVIDIA GPUs"
            }
            NvmlError::DriverNotLoaded => "load NVIDIA's kernel modules: modprobe nvidia",
            NvmlError::LibRmVersionMismatch => {
                "reload the kernel modules, which are older than the driver, or reboot"
            }
            NvmlError::NoPermission | NvmlError::OperatingSystem => {
                "give the container access to /dev/nvidiactl, /dev/nvidia0 and so on"
            }
            _ => "run nvidia-smi, and check the kernel log",
        };
        let why = match &error {
            NvmlError::LibloadingError(_) => format!("{} not found", library.display()),
            other => other.to_string(),
        };
        NvmlUnavailable { why, remedy }
    })
}

pub(super) fn read() -> GpuReading {
    let nvml = match opened(OsStr::new(LIBRARY)) {
        Ok(nvml) => nvml,
        Err(error) => {
            let diagnoses = vec![error.diagnosis("GPUs are known from PCI only")];
            return GpuReading { diagnoses, ..GpuReading::default() };
        }
    };
    let mut queries = Queries { at: "nvml".to_owned(), notes: Vec::new() };
    let mut reading = GpuReading {
        driver: queries.needed("driver version", nvml.sys_driver_version()),
        nvml: queries.needed("NVML version", nvml.sys_nvml_version()),
        cuda: queries
            .known("CUDA version", nvml.sys_cuda_driver_version())
            .map(|version| format!("{}.{}", version / 1000, version % 1000 / 10)),
        ..GpuReading::default()
    };
    let count = queries.needed("number of GPUs", nvml.device_count()).unwrap_or(0);
    if count == 0 {
        queries.notes.push(note("nvml", "reports no GPU", "check PCI and the kernel log"));
    }
    let mut devices = Vec::new();
    for index in 0..count.min(GPUS_MAX) {
        queries.at = format!("nvml/{index}");
        if let Some(device) = queries.needed("GPU", nvml.device_by_index(index)) {
            let gpu = gpu(&device, index, &mut queries);
            devices.push((gpu, device));
        }
    }
    reading.levels = levels(&devices, &mut queries);
    reading.gpus = devices.into_iter().map(|(gpu, _)| gpu).collect();
    reading.gpus.sort_by(|one, other| one.address.cmp(&other.address));
    reading.diagnoses = queries.notes;
    reading
}

/// Collects diagnoses of failed queries.
struct Queries {
    at: String,
    notes: Vec<Diagnosis>,
}

impl Queries {
    fn needed<T>(&mut self, what: &str, answer: Result<T, NvmlError>) -> Option<T> {
        answer.map_err(|error| self.refused(what, &error)).ok()
    }

    /// Of values that not every GPU or driver version supports.
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

    /// As [`Queries::known`], for calls that bypass the wrapper.
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
            "grant permission to query it"
        } else if text.contains("off the bus") {
            "drain the node and reset the GPU, or replace it"
        } else if text.contains("reset") {
            "reset the GPU when it is idle"
        } else {
            "run nvidia-smi -q, and check the kernel log"
        };
        self.notes.push(note(&self.at, format!("cannot query {what} ({text})"), remedy));
    }
}

fn gpu(device: &Device<'_>, index: u32, queries: &mut Queries) -> DriverGpu {
    let address = queries.needed("PCI address", device.pci_info()).map(|info| address(&info));
    if let Some(address) = &address {
        queries.at = format!("nvml/{address}");
    }
    let product = queries.needed("product name", device.name());
    let memory = queries.needed("memory", device.memory_info()).map(|info| GpuMemory {
        total_bytes: info.total,
        used_bytes: info.used,
        reserved_bytes: info.reserved,
    });
    let total_bytes = memory.map_or(0, |memory| memory.total_bytes);
    let mig = queries
        .known("MIG mode", device.mig_mode())
        .map(|mode| MigMode { enabled: mode.current != 0, pending: mode.pending != 0 });
    let profiles = match mig {
        Some(_) => profiles(device, product.as_deref(), total_bytes, queries),
        None => Vec::new(),
    };
    let instances = match mig {
        Some(mode) if mode.enabled => instances(device, &profiles, queries),
        _ => Vec::new(),
    };
    let usage = queries.known("utilization", device.utilization_rates());
    DriverGpu {
        index,
        uuid: queries.needed("UUID", device.uuid()),
        address,
        product,
        memory,
        mig,
        profiles,
        instances,
        processes: processes(device, queries),
        health: health(device, queries),
        busy_percent: usage.as_ref().map(|usage| usage.gpu),
        memory_busy_percent: usage.as_ref().map(|usage| usage.memory),
        temperature_celsius: queries
            .known("temperature", device.temperature(TemperatureSensor::Gpu)),
        power_milliwatts: queries.known("power", device.power_usage()),
        power_limit_milliwatts: queries.known("power limit", device.enforced_power_limit()),
        links: links(device, queries),
    }
}

/// NVML writes upper case and longer domains; the kernel does not.
fn address(info: &PciInfo) -> String {
    // Only the text has the function number.
    let function = info.bus_id.rsplit_once('.').map_or("0", |(_, function)| function);
    format!("{:04x}:{:02x}:{:02x}.{function}", info.domain, info.bus, info.device)
}

/// `None` for an unknown board.
pub(crate) fn board(product: &str, gpu_bytes: u64) -> Option<&'static Board> {
    Board::by_product(product, Some(gpu_bytes >> 20)).ok()
}

/// MIG profiles that a GPU supports. Failed queries are left out.
pub(crate) fn mig_profiles(device: &Device<'_>, product: &str, gpu_bytes: u64) -> Vec<Profile> {
    let mut queries = Queries { at: String::new(), notes: Vec::new() };
    profiles(device, Some(product), gpu_bytes, &mut queries)
}

fn profiles(
    device: &Device<'_>,
    product: Option<&str>,
    gpu_bytes: u64,
    queries: &mut Queries,
) -> Vec<Profile> {
    let board = product.and_then(|product| board(product, gpu_bytes));
    let mut profiles: Vec<Profile> = Vec::new();
    for (number, suffix) in (0..).zip(KINDS) {
        // Not every profile is supported; older drivers reject the newest ones as an argument.
        let answer = match device.profile_info(number) {
            Err(NvmlError::InvalidArg) => continue,
            other => other,
        };
        let Some(info) = queries.known("MIG profiles", answer) else { continue };
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
        let placements =
            queries.placed("MIG placements", Instances::of(device).placements(info.id));
        let placements = placements.unwrap_or_default();
        if let Some(first) = placements.first() {
            profile.units = first.size;
            profile.starts = placements.iter().map(|one| one.start).collect();
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
        let what = format!("placements of MIG profiles {} are unknown", unknown.join(", "));
        queries.notes.push(note(&queries.at, what, "compare with nvidia-smi mig -lgipp"));
    }
    profiles
}

/// MIG devices, with the position of their GPU instances.
fn instances(device: &Device<'_>, profiles: &[Profile], queries: &mut Queries) -> Vec<Instance> {
    let mut places = BTreeMap::new();
    for profile in profiles {
        let found = Instances::of(device).gpu_instances(profile.id);
        let found = queries.placed("MIG instances", found).unwrap_or_default();
        places.extend(found.into_iter().map(|one| (one.id, one.placement)));
    }
    let count = queries.known("number of MIG devices", device.mig_device_count()).unwrap_or(0);
    let mut instances = Vec::new();
    for index in 0..count.min(INSTANCES_MAX) {
        // Numbers may have gaps.
        let Some(one) = queries.known("MIG device", device.mig_device_by_index(index)) else {
            continue;
        };
        // `NVIDIA H200 MIG 1g.18gb`.
        let name = queries.known("name of a MIG device", one.name());
        let profile = name.as_deref().and_then(|name| name.split_once(" MIG "));
        let attributes = queries.known("size of a MIG device", one.attributes());
        let gpu_instance = queries.placed("GPU instance of a MIG device", gpu_instance_of(&one));
        let compute_instance =
            queries.placed("compute instance of a MIG device", compute_instance_of(&one));
        let place = gpu_instance.and_then(|id| places.get(&id));
        instances.push(Instance {
            index,
            uuid: queries.needed("UUID of a MIG device", one.uuid()),
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

fn processes(device: &Device<'_>, queries: &mut Queries) -> Vec<GpuProcess> {
    let mut found: BTreeMap<(u32, Option<u32>), Option<u64>> = BTreeMap::new();
    let kinds = [
        device.running_compute_processes(),
        device.mps_running_compute_processes(),
        device.running_graphics_processes(),
    ];
    for answer in kinds {
        for process in queries.known("processes", answer).unwrap_or_default() {
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

fn health(device: &Device<'_>, queries: &mut Queries) -> Health {
    let ecc = queries.known("ECC mode", device.is_ecc_enabled());
    let ecc = ecc.map(|state| state.currently_enabled);
    let mut errors = |kind: MemoryError| match ecc {
        Some(true) => {
            queries.known("ECC errors", device.total_ecc_errors(kind, EccCounter::Volatile))
        }
        _ => None,
    };
    let (corrected, uncorrected) =
        (errors(MemoryError::Corrected), errors(MemoryError::Uncorrected));
    let mut pages = |cause| queries.known("retired pages", device.retired_pages(cause));
    let single = pages(RetirementCause::MultipleSingleBitEccErrors);
    let double = pages(RetirementCause::DoubleBitEccError);
    let retired_pages = match (single, double) {
        (None, None) => None,
        (one, other) => {
            let count = one.map_or(0, |all| all.len()) + other.map_or(0, |all| all.len());
            u32::try_from(count).ok()
        }
    };
    let pages_pending =
        queries.known("pending page retirements", device.are_pages_pending_retired());
    let ids = REMAPPED.map(FieldId);
    let rows = queries.known("remapped rows", device.field_values_for(&ids)).unwrap_or_default();
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

fn links(device: &Device<'_>, queries: &mut Queries) -> Vec<LinkPeer> {
    let mut peers: BTreeMap<String, u32> = BTreeMap::new();
    for number in 0..LINKS_MAX {
        let link = device.link_wrapper_for(number);
        let is_active = match link.is_active() {
            // There is no link with this number or a higher one.
            Err(NvmlError::InvalidArg | NvmlError::NotSupported) => break,
            answer => queries.known("NVLinks", answer).unwrap_or(false),
        };
        if !is_active {
            continue;
        }
        if let Some(info) = queries.known("remote ends of NVLinks", link.remote_pci_info()) {
            *peers.entry(address(&info)).or_default() += 1;
        }
    }
    peers.into_iter().map(|(address, links)| LinkPeer { address, links }).collect()
}

fn levels(devices: &[(DriverGpu, Device<'_>)], queries: &mut Queries) -> Vec<Level> {
    let mut levels = Vec::new();
    for (at, (one, device)) in devices.iter().enumerate() {
        for (other, another) in devices.iter().skip(at + 1) {
            let (Some(first), Some(second)) = (&one.address, &other.address) else { continue };
            queries.at = format!("nvml/{first}");
            let answer = device.nvml().topology_common_ancestor(device, another);
            let Some(level) = queries.known("distance between GPUs", answer) else { continue };
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

/// A critical error (XID) reported by the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    pub uuid: Option<String>,
    /// `None` if the driver does not know the error.
    pub number: Option<u64>,
}

/// Watches XIDs from now on. Older ones are only in the kernel log.
#[derive(Debug)]
pub struct Xids {
    nvml: Nvml,
}

impl Xids {
    pub fn new() -> Result<Self, Diagnosis> {
        let nvml =
            opened(OsStr::new(LIBRARY)).map_err(|error| error.diagnosis("XIDs are not watched"))?;
        Ok(Self { nvml })
    }

    /// Calls `each` with every XID, and with `None` whenever `wait_ms` passed without one, until it returns
    /// `false`.
    pub fn watch(
        &self,
        wait_ms: u32,
        each: &mut dyn FnMut(Option<Xid>) -> bool,
    ) -> Result<(), Diagnosis> {
        let failed = |error: &dyn Display| {
            let what = format!("cannot watch XIDs ({error})");
            note("nvml", what, "check the kernel log for them")
        };
        let set = self.registered().map_err(|error| failed(&error))?;
        loop {
            let xid = match set.wait(wait_ms) {
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
            if !each(xid) {
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
            // If a GPU cannot be added, the set is lost.
            set = device
                .register_events(EventTypes::CRITICAL_XID_ERROR, set)
                .map_err(|error| error.error)?;
            any = true;
        }
        if any { Ok(set) } else { Err(NvmlError::NotSupported) }
    }
}
