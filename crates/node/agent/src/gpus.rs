//! GPUs as their driver tells of them.
//!
//! Owns the data: what a reading holds, however it was made (by NVML, from a recording, by a test). What
//! the driver refuses is left out, with a diagnosis. Must not know NUMA nodes, nor whose a GPU is.

pub(crate) mod nvml;
mod profile;

use std::path::{Path, PathBuf};

use berth_host::Diagnosis;
use berth_host::pci::Distance;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use nvml::{Xid, Xids};
pub use profile::{PlacementSource, Profile, name_of_slice};

/// The file of a recording that holds a reading.
pub const RECORDED: &str = "nvml.json";

/// Bytes of a recorded reading.
const RECORDED_BYTES_MAX: u64 = 16 << 20;

/// Where a reading comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSource {
    /// From the driver of this machine.
    Nvml,
    /// From the directory of a recording.
    Recorded(PathBuf),
}

/// What the driver says of all GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuReading {
    /// Version of the driver; `None` where there is none to ask.
    pub driver: Option<String>,
    /// Version of its library.
    pub nvml: Option<String>,
    /// The newest CUDA that it can run.
    pub cuda: Option<String>,
    /// The GPUs, by PCI address.
    pub gpus: Vec<DriverGpu>,
    /// How far pairs of GPUs are from each other, as the driver sees it.
    pub levels: Vec<Level>,
    /// What it refused, and what follows.
    pub diagnoses: Vec<Diagnosis>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriverGpu {
    /// Its number, in the driver's order.
    pub index: u32,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Its PCI address as the kernel writes it, such as `0000:41:00.0`.
    pub address: Option<String>,
    /// What it is called.
    pub product: Option<String>,
    /// Its memory.
    pub memory: Option<GpuMemory>,
    /// Whether it is divided; `None` where it cannot be.
    pub mig: Option<MigMode>,
    /// Slices that it can be divided into, smallest first.
    pub profiles: Vec<Profile>,
    /// Slices that it is divided into.
    pub instances: Vec<Instance>,
    /// Processes that use it.
    pub processes: Vec<GpuProcess>,
    /// How well it is.
    pub health: Health,
    /// Share of time in which it worked, in percent.
    pub busy_percent: Option<u32>,
    /// Share of time in which its memory did, in percent.
    pub memory_busy_percent: Option<u32>,
    /// Temperature, in degrees Celsius.
    pub temperature_celsius: Option<u32>,
    /// Power that it takes.
    pub power_milliwatts: Option<u32>,
    /// Power that it may take.
    pub power_limit_milliwatts: Option<u32>,
    /// What is at the other ends of its NVLinks.
    pub links: Vec<LinkPeer>,
}

/// Memory of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuMemory {
    /// All of it.
    pub total_bytes: u64,
    /// What is in use.
    pub used_bytes: u64,
    /// What the driver keeps.
    pub reserved_bytes: u64,
}

/// Whether a GPU is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigMode {
    /// Now.
    pub enabled: bool,
    /// After it is reset.
    pub pending: bool,
}

/// A slice of a GPU, as CUDA sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Instance {
    /// Its number on the GPU.
    pub index: u32,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Name of its profile, such as `1g.18gb`.
    pub profile: Option<String>,
    /// Its memory.
    pub memory_bytes: Option<u64>,
    /// Number of the GPU instance that it is in.
    pub gpu_instance: Option<u32>,
    /// Number of the compute instance that it is there.
    pub compute_instance: Option<u32>,
    /// Where the GPU instance starts, in units of memory.
    pub start: Option<u32>,
    /// How many units it takes.
    pub units: Option<u32>,
}

/// A process that uses a GPU. Neither its name nor its arguments are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuProcess {
    /// Its id, as the driver's host sees it.
    pub pid: u32,
    /// Memory that it uses; not told inside of slices to everybody.
    pub memory_bytes: Option<u64>,
    /// Number of the GPU instance that it runs on.
    pub gpu_instance: Option<u32>,
}

/// How well a GPU is. What it does not know of itself is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Health {
    /// Whether memory is checked.
    pub ecc: Option<bool>,
    /// Errors corrected since the driver was loaded.
    pub corrected: Option<u64>,
    /// Errors not corrected since then.
    pub uncorrected: Option<u64>,
    /// Pages taken out of use, on GPUs before Ampere.
    pub retired_pages: Option<u32>,
    /// Rows of memory replaced by spare ones, since Ampere.
    pub remapped_rows: Option<u64>,
    /// Whether rows or pages wait for a reset to be replaced.
    pub repair_pending: Option<bool>,
    /// Whether a row could not be replaced.
    pub repair_failed: Option<bool>,
}

impl Health {
    /// Why it should not be given to anybody, if so.
    pub fn trouble(&self) -> Option<&'static str> {
        if self.repair_failed == Some(true) {
            return Some("a row of its memory could not be replaced");
        }
        if self.repair_pending == Some(true) {
            return Some("rows of its memory wait for a reset to be replaced");
        }
        self.uncorrected.is_some_and(|count| count > 0).then_some("its memory had errors")
    }
}

/// What NVLinks lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkPeer {
    /// PCI address of a GPU or of a switch.
    pub address: String,
    /// How many links.
    pub links: u32,
}

/// How far two GPUs are from each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Level {
    /// PCI address of one.
    pub one: String,
    /// PCI address of the other.
    pub other: String,
    /// How far.
    pub level: Distance,
}

impl GpuReading {
    /// Reads what there is to read.
    pub fn read(source: &GpuSource) -> Self {
        match source {
            GpuSource::Nvml => nvml::read(),
            GpuSource::Recorded(directory) => recorded(directory),
        }
    }

    /// The GPU at an address, as the kernel writes it.
    pub fn at(&self, address: &str) -> Option<&DriverGpu> {
        self.gpus.iter().find(|gpu| gpu.address.as_deref() == Some(address))
    }

    /// The GPU that has a UUID, or a slice with it.
    pub fn with_uuid(&self, uuid: &str) -> Option<(&DriverGpu, Option<&Instance>)> {
        self.gpus.iter().find_map(|gpu| {
            if gpu.uuid.as_deref() == Some(uuid) {
                return Some((gpu, None));
            }
            let own = gpu.instances.iter().find(|one| one.uuid.as_deref() == Some(uuid));
            own.map(|instance| (gpu, Some(instance)))
        })
    }

    /// A reading that holds nothing but the reason.
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
                "nvml.json is no file, so GPUs are known from PCI only",
                "record anew",
            );
        }
        Err(error) => {
            let what =
                format!("nvml.json cannot be read ({error}), so GPUs are known from PCI only");
            return GpuReading::nothing(
                what,
                "record on the machine itself with its driver loaded",
            );
        }
    };
    if size > RECORDED_BYTES_MAX {
        let what = format!("nvml.json has more than {RECORDED_BYTES_MAX} bytes, so it is not read");
        return GpuReading::nothing(what, "record anew");
    }
    let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
    let reading = text.and_then(|text| {
        let value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        // A list of the fields' values would be taken for one.
        if !value.is_object() {
            return Err("it is no object".to_owned());
        }
        serde_json::from_value(value).map_err(|error| error.to_string())
    });
    reading.unwrap_or_else(|why| {
        GpuReading::nothing(format!("nvml.json holds no reading ({why})"), "record anew")
    })
}
