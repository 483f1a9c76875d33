//! The node's GPUs as the device plugin offers them: numbers, NUMA nodes, distances, device files and health.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use berth_devices::file;
use berth_devices::offer::{self, FoundGpu, FoundInstance, Offer};
use berth_devices::{DeviceConfig, GpuIndex, Supply};
use berth_host::pci::Distance;
use berth_host::{Diagnosis, Root};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::gpus::{DriverGpu, GpuReading, GpuSource, Instance, Xid};
use crate::report::{GpuReport, NodeReport, PairReport};

/// How long a critical error makes a GPU unhealthy. A broken GPU fails again, or the driver or its ECC counters
/// report it.
pub const XID_MS: i64 = 10 * 60_000;

/// XIDs caused by programs, not by GPUs, according to NVIDIA's table: bad instructions and addresses, and the end of
/// another program on the GPU.
const PROGRAM_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Distance by one NVLink; more links are nearer. PCI is farther.
const NVLINK_DISTANCE: u32 = 100;

/// Recent critical errors of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuErrors {
    /// XID and time in milliseconds, by UUID.
    errors: BTreeMap<String, (u64, i64)>,
}

impl GpuErrors {
    /// Records an error, unless a program caused it.
    pub fn record(&mut self, xid: &Xid, now_ms: i64) {
        if let (Some(uuid), Some(number)) = (&xid.uuid, xid.number)
            && !PROGRAM_XIDS.contains(&number)
        {
            self.errors.insert(uuid.clone(), (number, now_ms));
        }
    }

    /// Forgets old errors.
    pub fn expire(&mut self, now_ms: i64) {
        self.errors.retain(|_, (_, since_ms)| now_ms - *since_ms < XID_MS);
    }

    /// Reads the errors that an earlier process saved: a restart of the agent does not make a GPU healthy.
    pub fn load(path: &Path) -> Self {
        file::read_or_default(path, "the file of GPU errors")
    }

    pub fn save(&self, path: &Path) {
        let text = serde_json::to_string(self).unwrap_or_default();
        if let Err(error) = file::write_atomically(path, &text) {
            warn!(path = %path.display(), %error, "cannot save GPU errors");
        }
    }

    fn of(&self, uuid: &str) -> Option<String> {
        self.errors.get(uuid).map(|(number, _)| format!("XID {number}"))
    }
}

/// Offers, fixed or from a file that is read again each time.
#[derive(Clone, Debug)]
pub struct Offers {
    file: Option<PathBuf>,
    now: Vec<Offer>,
    /// The last error of the file, and the last diagnoses, so that they are logged once.
    error: Option<String>,
    diagnosed: BTreeSet<Diagnosis>,
}

impl Offers {
    pub fn fixed(offers: Vec<Offer>) -> Self {
        Self { file: None, now: offers, error: None, diagnosed: BTreeSet::new() }
    }

    /// Of a file that was just read.
    pub fn of_file(file: PathBuf, offers: Vec<Offer>) -> Self {
        Self { file: Some(file), ..Self::fixed(offers) }
    }

    /// The current offers. A file that has become invalid is ignored.
    fn read(&mut self) -> &[Offer] {
        let Some(file) = &self.file else { return &self.now };
        let read = berth_manifest::read_file(file)
            .map_err(|error| error.to_string())
            .and_then(|source| DeviceConfig::read(&source).map_err(|problem| problem.to_string()));
        let error = match read {
            Ok(config) => {
                self.now = config.offers;
                None
            }
            Err(error) => Some(error),
        };
        if let Some(error) = &error
            && self.error.as_ref() != Some(error)
        {
            warn!(error, "invalid DeviceOffers; keeping the previous offers");
        }
        self.error = error;
        &self.now
    }
}

/// Reads a node's GPUs and returns the devices on offer. Logs new diagnoses.
pub async fn read_supply(
    root: &Root,
    gpus: &GpuSource,
    offers: &mut Offers,
    errors: &GpuErrors,
) -> Supply {
    let (root, gpus) = (root.clone(), gpus.clone());
    let (wanted, errors) = (offers.read().to_vec(), errors.clone());
    let supply = tokio::task::spawn_blocking(move || {
        let report = NodeReport::read(&root, GpuReading::read(&gpus));
        supply(&report, root.base(), &wanted, &errors)
    });
    // If reading panics, which is a defect, nothing is offered.
    let (supply, diagnoses) = supply.await.unwrap_or_default();
    let diagnoses: BTreeSet<Diagnosis> = diagnoses.into_iter().collect();
    diagnoses.difference(&offers.diagnosed).for_each(log);
    offers.diagnosed = diagnoses;
    supply
}

pub(crate) fn log(diagnosis: &Diagnosis) {
    warn!(path = diagnosis.path, remedy = diagnosis.remedy, "{}", diagnosis.what);
}

/// The devices that a node offers. Its files are below `base`.
pub fn supply(
    report: &NodeReport,
    base: &Path,
    offers: &[Offer],
    errors: &GpuErrors,
) -> (Supply, Vec<Diagnosis>) {
    let mut known: Vec<(&GpuReport, &DriverGpu, &str)> = report
        .gpus
        .iter()
        .filter_map(|one| {
            let gpu = one.driver.as_ref()?;
            Some((one, gpu, gpu.uuid.as_deref()?))
        })
        .collect();
    known.sort_by_key(|(_, gpu, _)| gpu.index);
    let mut unhealthy = BTreeMap::new();
    for (_, gpu, uuid) in &known {
        let fault = gpu.health.fault().map(str::to_owned);
        if let Some(reason) = fault.or_else(|| errors.of(uuid)) {
            unhealthy.insert((*uuid).to_owned(), reason);
        }
    }
    let capabilities = Capabilities::read(base);
    let found = known.iter().filter_map(|(one, gpu, uuid)| {
        let index = GpuIndex(u16::try_from(gpu.index).ok()?);
        let to = |(other, ..): &(&GpuReport, &DriverGpu, &str)| distance(report, one, other);
        let minor = minor(base, &one.address).unwrap_or(gpu.index);
        Some(FoundGpu {
            gpu: berth_devices::OfferedGpu {
                index,
                uuid: (*uuid).to_owned(),
                numa: one.numa.into_iter().collect(),
                memory_bytes: gpu.memory.map_or(0, |memory| memory.total_bytes),
                distances: known.iter().map(to).collect(),
                device_files: vec![format!("/dev/nvidia{minor}")],
            },
            mig_enabled: gpu.mig.is_some_and(|mode| mode.enabled),
            instances: instances(gpu, minor, &capabilities),
        })
    });
    let (inventory, diagnoses) = offer::inventory(found.collect(), offers);
    (Supply { inventory, unhealthy }, diagnoses)
}

fn instances(gpu: &DriverGpu, minor: u32, capabilities: &Capabilities) -> Vec<FoundInstance> {
    let instance = |one: &Instance| {
        Some(FoundInstance {
            uuid: one.uuid.clone()?,
            profile: one.profile.clone()?,
            start: u8::try_from(one.start.unwrap_or(one.index)).unwrap_or(u8::MAX),
            memory_bytes: one.memory_bytes.unwrap_or(0),
            device_files: capabilities.of(minor, one),
        })
    };
    gpu.instances.iter().filter_map(instance).collect()
}

/// Device files that give access to slices. A process needs those of the GPU instance and of the compute instance.
#[derive(Debug, Default)]
struct Capabilities {
    /// Minor numbers by capability, such as `gpu0/gi1/ci0/access`.
    numbers: BTreeMap<String, u32>,
}

impl Capabilities {
    /// Empty without a driver.
    fn read(base: &Path) -> Self {
        let text = std::fs::read_to_string(base.join("proc/driver/nvidia-caps/mig-minors"));
        let text = text.unwrap_or_default();
        let numbers = text.lines().filter_map(|line| {
            let (what, number) = line.split_once(' ')?;
            Some((what.to_owned(), number.trim().parse().ok()?))
        });
        Self { numbers: numbers.collect() }
    }

    fn of(&self, gpu: u32, instance: &Instance) -> Vec<String> {
        let Some(parent) = instance.gpu_instance else { return Vec::new() };
        let own = instance.compute_instance.unwrap_or(0);
        let names =
            [format!("gpu{gpu}/gi{parent}/access"), format!("gpu{gpu}/gi{parent}/ci{own}/access")];
        let numbers = names.iter().filter_map(|name| self.numbers.get(name));
        numbers.map(|number| format!("/dev/nvidia-caps/nvidia-cap{number}")).collect()
    }
}

fn distance(report: &NodeReport, one: &GpuReport, other: &GpuReport) -> u32 {
    if one.address == other.address {
        return 0;
    }
    let both = |pair: &&PairReport| {
        (pair.gpu == one.address && pair.other == other.address)
            || (pair.gpu == other.address && pair.other == one.address)
    };
    let Some(pair) = report.distances.iter().find(both) else { return pci(Distance::Unknown) };
    match pair.nvlinks {
        0 => pci(pair.driver.unwrap_or(pair.pci)),
        links => (NVLINK_DISTANCE / links).max(1),
    }
}

fn pci(distance: Distance) -> u32 {
    match distance {
        Distance::Same => 0,
        Distance::Pix => 200,
        Distance::Pxb => 300,
        Distance::Phb => 400,
        Distance::Node => 500,
        Distance::Sys | Distance::Unknown => 900,
    }
}

/// Minor number of a GPU's device file, which may differ from the GPU's number.
fn minor(base: &Path, address: &str) -> Option<u32> {
    let path = base.join("proc/driver/nvidia/gpus").join(address).join("information");
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
    line.trim().parse().ok()
}
