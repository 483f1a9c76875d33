//! Which devices a machine's GPUs are offered as.
//!
//! Owns the way from GPUs and slices that were found, and the offers that somebody wrote down, to devices: names
//! of resources, ids, and the limits of shares. What does not go together is left out, with a diagnosis. Must not
//! know drivers, nor text.

use std::collections::{BTreeMap, BTreeSet};

use berth_host::Diagnosis;

use crate::device::{Device, GpuIndex, Inventory, Kind, OfferedGpu, Share, SharingMode, ThreadCap};

/// The resource of whole GPUs where no other is named.
pub const WHOLE: &str = "nvidia.com/gpu";
/// The resource of MPS shares where no other is named.
pub const SHARES: &str = "berth.dev/gpu-share";
/// The resource of time-sliced replicas where no other is named.
pub const REPLICAS: &str = "nvidia.com/gpu.shared";
/// What names of MIG instances' resources start with, where no other is named.
const SLICES: &str = "nvidia.com/mig-";

const MIB: u64 = 1 << 20;

/// A GPU that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundGpu {
    /// The GPU.
    pub gpu: OfferedGpu,
    /// Whether MIG is on: then only instances can be used.
    pub divided: bool,
    /// Its MIG instances.
    pub instances: Vec<FoundInstance>,
}

/// A MIG instance that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundInstance {
    /// Its UUID.
    pub uuid: String,
    /// Its profile, such as `1g.18gb`.
    pub profile: String,
    /// The first memory slice of it, or its number where that is not known.
    pub start: u8,
    /// Its memory.
    pub memory_bytes: u64,
    /// Device files that give access to it.
    pub device_files: Vec<String>,
}

/// Which GPUs an offer is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuChoice {
    /// All there are.
    #[default]
    All,
    /// These, by number or UUID.
    These(Vec<String>),
}

impl GpuChoice {
    fn names(&self, gpu: &OfferedGpu) -> bool {
        match self {
            Self::All => true,
            Self::These(names) => names.iter().any(|name| is(name, gpu)),
        }
    }
}

fn is(name: &str, gpu: &OfferedGpu) -> bool {
    name == gpu.uuid || name.parse() == Ok(gpu.index.0)
}

/// What GPUs are offered as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// Whole.
    Whole,
    /// Each MIG instance.
    Slices,
    /// Shares under MPS, of GPUs or of instances.
    Shares {
        /// How many of each.
        count: u8,
        /// Memory of each; else equal parts.
        memory_bytes: Option<u64>,
        /// Cap on the threads of each; else an equal part, rounded up. There is always one.
        threads: Option<ThreadCap>,
        /// How many a container may have.
        per_container: u8,
    },
    /// Replicas that take turns, of GPUs or of instances.
    Replicas {
        /// How many of each.
        count: u8,
    },
}

/// An offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Of which GPUs.
    pub gpus: GpuChoice,
    /// As what.
    pub form: Form,
    /// Under which name, if not the usual one.
    pub resource: Option<String>,
    /// Of which MIG instances. For shares and replicas `None` means GPUs that are not divided, for slices all.
    pub profile: Option<String>,
}

impl Offer {
    /// What is offered where nobody says anything: GPUs whole, or their slices where they are divided.
    pub fn usual() -> Vec<Self> {
        let of = |form| Self { gpus: GpuChoice::All, form, resource: None, profile: None };
        vec![of(Form::Whole), of(Form::Slices)]
    }

    fn resource(&self, profile: Option<&str>) -> String {
        if let Some(resource) = &self.resource {
            return resource.clone();
        }
        let plain = match (&self.form, profile) {
            (Form::Slices, Some(profile)) => return slices(profile),
            (Form::Replicas { .. }, Some(profile)) => return format!("{}.shared", slices(profile)),
            (Form::Whole | Form::Slices, _) => WHOLE,
            (Form::Shares { .. }, _) => SHARES,
            (Form::Replicas { .. }, None) => REPLICAS,
        };
        plain.to_owned()
    }
}

/// The resource of a profile's instances, as NVIDIA's plugin names it. Names may not have a plus sign.
fn slices(profile: &str) -> String {
    format!("{SLICES}{}", profile.replace('+', "."))
}

/// A piece of hardware that an offer is about.
struct Unit<'a> {
    gpu: GpuIndex,
    uuid: &'a str,
    memory_bytes: u64,
    kind: Kind,
}

/// The units of a GPU that an offer is about.
fn units<'a>(found: &'a FoundGpu, offer: &Offer) -> Vec<Unit<'a>> {
    let gpu = found.gpu.index;
    let of_instances = matches!(offer.form, Form::Slices) || offer.profile.is_some();
    if !of_instances {
        let (uuid, memory_bytes) = (found.gpu.uuid.as_str(), found.gpu.memory_bytes);
        let whole = Unit { gpu, uuid, memory_bytes, kind: Kind::Whole };
        return if found.divided { Vec::new() } else { vec![whole] };
    }
    let wanted =
        |one: &&FoundInstance| offer.profile.as_ref().is_none_or(|profile| *profile == one.profile);
    let instances = found.instances.iter().filter(wanted);
    instances
        .map(|one| Unit {
            gpu,
            uuid: &one.uuid,
            memory_bytes: one.memory_bytes,
            kind: Kind::Mig {
                uuid: one.uuid.clone(),
                profile: one.profile.clone(),
                start: one.start,
                device_files: one.device_files.clone(),
            },
        })
        .collect()
}

/// The devices that a unit is offered as, or why not.
fn devices(unit: &Unit<'_>, offer: &Offer) -> Result<Vec<Device>, (String, String)> {
    let profile = match &unit.kind {
        Kind::Mig { profile, .. } => Some(profile.as_str()),
        Kind::Whole => None,
    };
    let device = |id: String, sharing| Device {
        id,
        resource: offer.resource(profile),
        gpu: unit.gpu,
        kind: unit.kind.clone(),
        sharing,
    };
    let part = |nth: u8| format!("{}::{nth}", unit.uuid);
    match offer.form {
        Form::Whole | Form::Slices => {
            Ok(vec![device(unit.uuid.to_owned(), SharingMode::Exclusive)])
        }
        Form::Replicas { count } => {
            Ok((0..count).map(|nth| device(part(nth), SharingMode::TimeSliced)).collect())
        }
        Form::Shares { count, memory_bytes, threads, per_container } => {
            // In whole MiB, as MPS is told.
            let equal = unit.memory_bytes / u64::from(count.max(1)) / MIB * MIB;
            let memory_bytes = memory_bytes.unwrap_or(equal);
            let all = memory_bytes.saturating_mul(u64::from(count));
            if memory_bytes < MIB || all > unit.memory_bytes {
                let what = format!(
                    "{count} shares of {} MiB of {}, which has {} MiB, cannot be",
                    memory_bytes / MIB,
                    unit.uuid,
                    unit.memory_bytes / MIB
                );
                return Err((what, "make fewer or smaller shares".to_owned()));
            }
            let threads = threads.unwrap_or_else(|| ThreadCap::of_equal_shares(count));
            let share = Share { memory_bytes, threads, per_container };
            Ok((0..count).map(|nth| device(part(nth), SharingMode::Mps(share))).collect())
        }
    }
}

/// Puts GPUs on offer. A GPU can be offered in several ways at once, under a name for each: it is held in one of
/// them at a time.
pub fn inventory(mut found: Vec<FoundGpu>, offers: &[Offer]) -> (Inventory, Vec<Diagnosis>) {
    let mut diagnoses = Vec::new();
    let mut note = |at: usize, field: &str, what: String, remedy: &str| {
        let path = format!("spec.offers[{at}]{field}");
        diagnoses.push(Diagnosis { path, what, remedy: remedy.to_owned() });
    };
    found.sort_by_key(|one| one.gpu.index);
    found.dedup_by_key(|one| one.gpu.index);
    let mut all: Vec<Device> = Vec::new();
    let mut names: BTreeSet<(String, String)> = BTreeSet::new();
    let mut shared: BTreeMap<GpuIndex, u64> = BTreeMap::new();
    for (at, offer) in offers.iter().enumerate() {
        if let GpuChoice::These(wanted) = &offer.gpus {
            for name in wanted.iter().filter(|name| !found.iter().any(|one| is(name, &one.gpu))) {
                let what = format!("names {name}, which is no number or UUID of a GPU here");
                note(at, ".gpus", what, "see berth agent --once for those that are");
            }
        }
        for one in found.iter().filter(|one| offer.gpus.names(&one.gpu)) {
            for unit in units(one, offer) {
                let more = match devices(&unit, offer) {
                    Ok(more) => more,
                    Err((what, remedy)) => {
                        note(at, "", what, &remedy);
                        continue;
                    }
                };
                let name = |device: &Device| (device.resource.clone(), device.id.clone());
                if more.iter().any(|device| names.contains(&name(device))) {
                    let what = format!("offers {} a second time under one name", unit.uuid);
                    note(at, "", what, "give it another resource, or leave one of the two out");
                    continue;
                }
                let sum: u64 = more.iter().map(memory_of).sum();
                let sum = sum.saturating_add(shared.get(&unit.gpu).copied().unwrap_or(0));
                if sum > one.gpu.memory_bytes {
                    let what = format!(
                        "would have more memory of {} in shares than there is, with other offers",
                        one.gpu.uuid
                    );
                    note(at, "", what, "make fewer or smaller shares, or leave one offer out");
                    continue;
                }
                shared.insert(unit.gpu, sum);
                names.extend(more.iter().map(name));
                all.extend(more);
            }
        }
    }
    let gpus = found.into_iter().map(|one| one.gpu).collect();
    let inventory = Inventory::new(gpus, all).unwrap_or_else(|error| {
        note(0, "", format!("cannot be: {error}"), "correct the offers");
        Inventory::default()
    });
    (inventory, diagnoses)
}

fn memory_of(device: &Device) -> u64 {
    match device.sharing {
        SharingMode::Mps(share) => share.memory_bytes,
        SharingMode::Exclusive | SharingMode::TimeSliced => 0,
    }
}
