//! What of a node's GPUs is on offer: from the report to what the device plugin hands out.
//!
//! Owns how GPUs of the report become those that are handed out: numbers, NUMA nodes, distances, device files, and
//! which of them are ill and for how long an error makes one so. Must not know the kubelet, nor what is held.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use berth_devices::file;
use berth_devices::offer::{self, FoundGpu, FoundInstance, Offer};
use berth_devices::{DeviceConfig, GpuIndex, Stock};
use berth_host::pci::Distance;
use berth_host::{Diagnosis, Root};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::gpus::{DriverGpu, GpuReading, GpuSource, Instance, Xid};
use crate::report::{GpuReport, NodeReport, PairReport};

/// How long a critical error makes a GPU ill that says nothing else. One that stays broken fails again, or is
/// told by its memory or by the driver, which loses it.
pub const XID_MS: i64 = 10 * 60_000;

/// Errors of programs, not of GPUs, after NVIDIA's table of XIDs: bad instructions and addresses, and what follows
/// when somebody else on the GPU ended.
const OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Distances as the plugin compares them: NVLinks are nearer the more there are, then PCI.
const NVLINK_FAR: u32 = 100;

/// Critical errors that GPUs had of late.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ailments {
    /// By UUID: the error, and when it was.
    errors: BTreeMap<String, (u64, i64)>,
}

impl Ailments {
    /// Remembers an error. Those of programs make no GPU ill.
    pub fn note(&mut self, xid: &Xid, now_ms: i64) {
        if let (Some(uuid), Some(number)) = (&xid.uuid, xid.number)
            && !OF_PROGRAMS.contains(&number)
        {
            self.errors.insert(uuid.clone(), (number, now_ms));
        }
    }

    /// Forgets what is long ago.
    pub fn forget(&mut self, now_ms: i64) {
        self.errors.retain(|_, (_, since_ms)| now_ms - *since_ms < XID_MS);
    }

    /// What an earlier process kept in a file. A GPU is not well because the agent was started again.
    pub fn recall(path: &Path) -> Self {
        file::recall(path, "which GPUs had errors")
    }

    /// Keeps them in a file.
    pub fn keep(&self, path: &Path) {
        let text = serde_json::to_string(self).unwrap_or_default();
        if let Err(error) = file::write_whole(path, &text) {
            warn!(path = %path.display(), %error, "which GPUs had errors cannot be written down");
        }
    }

    fn of(&self, uuid: &str) -> Option<String> {
        self.errors.get(uuid).map(|(number, _)| format!("XID {number}"))
    }
}

/// What GPUs are offered as, which may be written anew while it is in force.
#[derive(Clone, Debug)]
pub struct Offers {
    /// Where it is written; `None`: it does not change.
    file: Option<PathBuf>,
    now: Vec<Offer>,
    /// What is wrong with the file, and what of it does not go here, so that it is said once.
    trouble: Option<String>,
    said: BTreeSet<Diagnosis>,
}

impl Offers {
    /// These, for good.
    pub fn fixed(offers: Vec<Offer>) -> Self {
        Self { file: None, now: offers, trouble: None, said: BTreeSet::new() }
    }

    /// As a file says, which was read just now.
    pub fn of_file(file: PathBuf, offers: Vec<Offer>) -> Self {
        Self { file: Some(file), ..Self::fixed(offers) }
    }

    /// As they are now. A file that has become wrong changes nothing.
    fn read(&mut self) -> &[Offer] {
        let Some(file) = &self.file else { return &self.now };
        let read = berth_manifest::read_file(file)
            .map_err(|error| error.to_string())
            .and_then(|source| DeviceConfig::read(&source).map_err(|problem| problem.to_string()));
        let trouble = match read {
            Ok(config) => {
                self.now = config.offers;
                None
            }
            Err(why) => Some(why),
        };
        if let Some(why) = &trouble
            && self.trouble != trouble
        {
            warn!(why, "what is offered stays as it was");
        }
        self.trouble = trouble;
        &self.now
    }
}

/// Looks at a node's GPUs, and says what is on offer. What does not go is logged, once.
pub async fn look(
    root: &Root,
    gpus: &GpuSource,
    offers: &mut Offers,
    ailments: &Ailments,
) -> Stock {
    let (root, gpus) = (root.clone(), gpus.clone());
    let (wanted, ailments) = (offers.read().to_vec(), ailments.clone());
    let looked = tokio::task::spawn_blocking(move || {
        let report = NodeReport::read(&root, GpuReading::read(&gpus));
        stock(&report, root.base(), &wanted, &ailments)
    });
    // A reader that panicked is a defect; without it nothing is on offer.
    let (stock, diagnoses) = looked.await.unwrap_or_default();
    let diagnoses: BTreeSet<Diagnosis> = diagnoses.into_iter().collect();
    diagnoses.difference(&offers.said).for_each(say);
    offers.said = diagnoses;
    stock
}

pub(crate) fn say(diagnosis: &Diagnosis) {
    warn!(path = diagnosis.path, remedy = diagnosis.remedy, "{}", diagnosis.what);
}

/// What is on offer of a node. `base` is the root below which its files are.
pub fn stock(
    report: &NodeReport,
    base: &Path,
    offers: &[Offer],
    ailments: &Ailments,
) -> (Stock, Vec<Diagnosis>) {
    let mut known: Vec<(&GpuReport, &DriverGpu, &str)> = report
        .gpus
        .iter()
        .filter_map(|one| {
            let told = one.told.as_ref()?;
            Some((one, told, told.uuid.as_deref()?))
        })
        .collect();
    known.sort_by_key(|(_, told, _)| told.index);
    let mut ill = BTreeMap::new();
    for (_, told, uuid) in &known {
        let trouble = told.health.trouble().map(str::to_owned);
        if let Some(why) = trouble.or_else(|| ailments.of(uuid)) {
            ill.insert((*uuid).to_owned(), why);
        }
    }
    let capabilities = Capabilities::read(base);
    let found = known.iter().filter_map(|(one, told, uuid)| {
        let index = GpuIndex(u16::try_from(told.index).ok()?);
        let to = |(other, ..): &(&GpuReport, &DriverGpu, &str)| distance(report, one, other);
        let minor = minor(base, &one.address).unwrap_or(told.index);
        Some(FoundGpu {
            gpu: berth_devices::OfferedGpu {
                index,
                uuid: (*uuid).to_owned(),
                numa: one.numa.into_iter().collect(),
                memory_bytes: told.memory.map_or(0, |memory| memory.total_bytes),
                distances: known.iter().map(to).collect(),
                device_files: vec![format!("/dev/nvidia{minor}")],
            },
            divided: told.mig.is_some_and(|mode| mode.enabled),
            instances: instances(told, minor, &capabilities),
        })
    });
    let (inventory, diagnoses) = offer::inventory(found.collect(), offers);
    (Stock { inventory, ill }, diagnoses)
}

fn instances(told: &DriverGpu, minor: u32, capabilities: &Capabilities) -> Vec<FoundInstance> {
    let instance = |one: &Instance| {
        Some(FoundInstance {
            uuid: one.uuid.clone()?,
            profile: one.profile.clone()?,
            start: u8::try_from(one.start.unwrap_or(one.index)).unwrap_or(u8::MAX),
            memory_bytes: one.memory_bytes.unwrap_or(0),
            device_files: capabilities.of(minor, one),
        })
    };
    told.instances.iter().filter_map(instance).collect()
}

/// The files by which the driver lets processes at slices: whoever can open both that of the GPU instance and that of
/// the compute instance can use it.
#[derive(Debug, Default)]
struct Capabilities {
    /// Numbers of files by what they are for, such as `gpu0/gi1/ci0/access`.
    numbers: BTreeMap<String, u32>,
}

impl Capabilities {
    /// As the driver lists them; without a list there are none.
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
        links => (NVLINK_FAR / links).max(1),
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

/// The number of a GPU's device file, as the driver tells in procfs; it is mostly, but not always, the GPU's.
fn minor(base: &Path, address: &str) -> Option<u32> {
    let path = base.join("proc/driver/nvidia/gpus").join(address).join("information");
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
    line.trim().parse().ok()
}
