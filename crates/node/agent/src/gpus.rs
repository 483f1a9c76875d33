//! GPUs as the driver reports them: by NVML, from a recording, or made by a test. What the driver refuses is
//! left out, with a diagnosis.

pub(crate) mod nvml;
mod profile;

use std::path::{Path, PathBuf};

use berth_host::Diagnosis;
use berth_host::pci::Distance;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use nvml::{Xid, Xids};
pub use profile::{PlacementSource, Profile, name_of_slice};

/// File of a recording with the driver's report.
pub const RECORDED: &str = "nvml.json";

/// Bytes of that file.
const RECORDED_BYTES_MAX: u64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSource {
    /// This machine's driver.
    Nvml,
    /// The directory of a recording.
    Recorded(PathBuf),
}

/// The driver's report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuReading {
    /// Version; `None` without a driver.
    pub driver: Option<String>,
    /// Version of the NVML library.
    pub nvml: Option<String>,
    /// Newest CUDA version supported.
    pub cuda: Option<String>,
    /// By PCI address.
    pub gpus: Vec<DriverGpu>,
    /// Distances between GPUs, as the driver sees them.
    pub levels: Vec<Level>,
    pub diagnoses: Vec<Diagnosis>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriverGpu {
    /// In the driver's order.
    pub index: u32,
    pub uuid: Option<String>,
    /// As the kernel writes it, such as `0000:41:00.0`.
    pub address: Option<String>,
    pub product: Option<String>,
    pub memory: Option<GpuMemory>,
    /// `None` if the GPU does not support MIG.
    pub mig: Option<MigMode>,
    /// MIG profiles that it supports, smallest first.
    pub profiles: Vec<Profile>,
    /// Existing MIG instances.
    pub instances: Vec<Instance>,
    pub processes: Vec<GpuProcess>,
    pub health: Health,
    /// Share of time in which kernels ran.
    pub busy_percent: Option<u32>,
    /// Share of time in which memory was read or written.
    pub memory_busy_percent: Option<u32>,
    pub temperature_celsius: Option<u32>,
    pub power_milliwatts: Option<u32>,
    pub power_limit_milliwatts: Option<u32>,
    /// Devices at the other ends of its NVLinks.
    pub links: Vec<LinkPeer>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuMemory {
    pub total_bytes: u64,
    pub used_bytes: u64,
    /// Reserved by the driver.
    pub reserved_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigMode {
    pub enabled: bool,
    /// After a reset.
    pub pending: bool,
}

/// A MIG device, as CUDA sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Instance {
    /// Number on the GPU.
    pub index: u32,
    pub uuid: Option<String>,
    /// Such as `1g.18gb`.
    pub profile: Option<String>,
    pub memory_bytes: Option<u64>,
    /// Id of its GPU instance.
    pub gpu_instance: Option<u32>,
    /// Id of its compute instance within the GPU instance.
    pub compute_instance: Option<u32>,
    /// First memory unit of the GPU instance.
    pub start: Option<u32>,
    /// Memory units of the GPU instance.
    pub units: Option<u32>,
}

/// A process that uses a GPU. Its name and arguments are never read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuProcess {
    /// As the host sees it.
    pub pid: u32,
    /// Without privileges, the driver does not report it inside slices.
    pub memory_bytes: Option<u64>,
    /// Id of the GPU instance that it runs on.
    pub gpu_instance: Option<u32>,
}

/// Health of a GPU. Values that it does not support are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Health {
    /// Whether ECC is enabled.
    pub ecc: Option<bool>,
    /// Corrected ECC errors since the driver was loaded.
    pub corrected: Option<u64>,
    /// Uncorrected ECC errors since the driver was loaded.
    pub uncorrected: Option<u64>,
    /// Before Ampere.
    pub retired_pages: Option<u32>,
    /// Since Ampere.
    pub remapped_rows: Option<u64>,
    /// Whether remapped rows or retired pages wait for a reset.
    pub repair_pending: Option<bool>,
    /// Whether a row could not be remapped.
    pub repair_failed: Option<bool>,
}

impl Health {
    /// Why it must not be allocated, if so.
    pub fn fault(&self) -> Option<&'static str> {
        if self.repair_failed == Some(true) {
            return Some("row remapping failed");
        }
        if self.repair_pending == Some(true) {
            return Some("row remapping pending, needs a reset");
        }
        self.uncorrected.is_some_and(|count| count > 0).then_some("uncorrected ECC errors")
    }
}

/// A device connected by NVLink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkPeer {
    /// PCI address of a GPU or of a switch.
    pub address: String,
    pub links: u32,
}

/// Distance between two GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Level {
    pub one: String,
    pub other: String,
    pub level: Distance,
}

impl GpuReading {
    pub fn read(source: &GpuSource) -> Self {
        match source {
            GpuSource::Nvml => nvml::read(),
            GpuSource::Recorded(directory) => recorded(directory),
        }
    }

    /// The GPU at a PCI address in the kernel's notation.
    pub fn at(&self, address: &str) -> Option<&DriverGpu> {
        self.gpus.iter().find(|gpu| gpu.address.as_deref() == Some(address))
    }

    /// The GPU with a UUID, or with a slice of that UUID.
    pub fn with_uuid(&self, uuid: &str) -> Option<(&DriverGpu, Option<&Instance>)> {
        self.gpus.iter().find_map(|gpu| {
            if gpu.uuid.as_deref() == Some(uuid) {
                return Some((gpu, None));
            }
            let own = gpu.instances.iter().find(|one| one.uuid.as_deref() == Some(uuid));
            own.map(|instance| (gpu, Some(instance)))
        })
    }

    /// An empty reading with a diagnosis.
    pub(crate) fn nothing(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { diagnoses: vec![note("nvml", what, remedy)], ..Self::default() }
    }
}

pub(crate) fn note(path: &str, what: impl Into<String>, remedy: impl Into<String>) -> Diagnosis {
    Diagnosis { path: path.to_owned(), what: what.into(), remedy: remedy.into() }
}

fn recorded(directory: &Path) -> GpuReading {
    let path = directory.join(RECORDED);
    let size = match std::fs::metadata(&path) {
        Ok(found) if found.is_file() => found.len(),
        Ok(_) => {
            return GpuReading::nothing(
                "nvml.json is not a regular file, so GPUs are known from PCI only",
                "record the machine again",
            );
        }
        Err(error) => {
            let what =
                format!("nvml.json cannot be read ({error}), so GPUs are known from PCI only");
            return GpuReading::nothing(
                what,
                "record on the machine itself, with its driver loaded",
            );
        }
    };
    if size > RECORDED_BYTES_MAX {
        let what = format!("nvml.json is larger than {RECORDED_BYTES_MAX} bytes, so it is ignored");
        return GpuReading::nothing(what, "record the machine again");
    }
    let reading = std::fs::read_to_string(&path).and_then(|text| {
        // A list of the fields' values would be accepted in place of an object.
        let object: Map<String, Value> = serde_json::from_str(&text)?;
        Ok(serde_json::from_value(Value::Object(object))?)
    });
    reading.unwrap_or_else(|error| {
        let what = format!("nvml.json is invalid ({error})");
        GpuReading::nothing(what, "record the machine again")
    })
}
