//! What of a node's GPUs is on offer: from the report to what the device plugin hands out.
//!
//! Owns how GPUs of the report become those that are handed out: numbers, NUMA nodes, distances, device files, and
//! which of them are ill and for how long an error makes one so. Must not know the kubelet, nor what is held.

use std::collections::BTreeMap;
use std::path::Path;

use berth_devices::offer::{self, FoundGpu, FoundInstance, Offer};
use berth_devices::{GpuIndex, Stock};
use berth_hardware::Diagnosis;
use berth_hardware::pci::Distance;

use crate::gpus::{Gpu, Xid};
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

    fn of(&self, uuid: &str) -> Option<String> {
        self.errors.get(uuid).map(|(number, _)| format!("XID {number}"))
    }
}

/// What is on offer of a node. `base` is the root below which its files are.
pub fn stock(
    report: &NodeReport,
    base: &Path,
    offers: &[Offer],
    ailments: &Ailments,
) -> (Stock, Vec<Diagnosis>) {
    let mut known: Vec<(&GpuReport, &Gpu, &str)> = report
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
    let found = known.iter().filter_map(|(one, told, uuid)| {
        let index = GpuIndex(u16::try_from(told.index).ok()?);
        let to = |(other, ..): &(&GpuReport, &Gpu, &str)| distance(report, one, other);
        let minor = minor(base, &one.address).unwrap_or(told.index);
        Some(FoundGpu {
            gpu: berth_devices::Gpu {
                index,
                uuid: (*uuid).to_owned(),
                numa: one.numa.into_iter().collect(),
                memory_bytes: told.memory.map_or(0, |memory| memory.total_bytes),
                distances: known.iter().map(to).collect(),
                device_files: vec![format!("/dev/nvidia{minor}")],
            },
            divided: told.mig.is_some_and(|mode| mode.enabled),
            instances: instances(told),
        })
    });
    let (inventory, diagnoses) = offer::inventory(found.collect(), offers);
    (Stock { inventory, ill }, diagnoses)
}

fn instances(told: &Gpu) -> Vec<FoundInstance> {
    let instance = |one: &crate::gpus::Instance| {
        Some(FoundInstance {
            uuid: one.uuid.clone()?,
            profile: one.profile.clone()?,
            start: u8::try_from(one.start.unwrap_or(one.index)).unwrap_or(u8::MAX),
            memory_bytes: one.memory_bytes.unwrap_or(0),
            device_files: Vec::new(),
        })
    };
    told.instances.iter().filter_map(instance).collect()
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
