//! Turns discovered GPUs and MIG instances into devices, as `DeviceOffers` say. Offers that conflict are left
//! out, with a diagnosis.

use std::collections::{BTreeMap, BTreeSet};

use berth_host::Diagnosis;

use crate::device::{Device, GpuIndex, Inventory, Kind, OfferedGpu, Share, SharingMode, ThreadCap};

/// Default resource of whole GPUs.
pub const WHOLE: &str = "nvidia.com/gpu";
/// Default resource of MPS shares.
pub const SHARES: &str = "berth.dev/gpu-share";
/// Default resource of time-sliced replicas.
pub const REPLICAS: &str = "nvidia.com/gpu.shared";
/// Prefix of the default resources of MIG instances.
const SLICES: &str = "nvidia.com/mig-";

const MIB: u64 = 1 << 20;

/// A discovered GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundGpu {
    pub gpu: OfferedGpu,
    /// With MIG on, only instances can be used.
    pub mig_enabled: bool,
    pub instances: Vec<FoundInstance>,
}

/// A discovered MIG instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundInstance {
    pub uuid: String,
    /// Such as `1g.18gb`.
    pub profile: String,
    /// First memory slice, or the instance's number if that is unknown.
    pub start: u8,
    pub memory_bytes: u64,
    /// In addition to those of the GPU.
    pub device_files: Vec<String>,
}

/// GPUs that an offer applies to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuChoice {
    #[default]
    All,
    /// By number or UUID.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    Whole,
    Slices,
    /// MPS shares of GPUs or MIG instances.
    Shares {
        /// Per GPU or instance.
        count: u8,
        /// Per share; default: an equal part.
        memory_bytes: Option<u64>,
        /// Per share; default: an equal part, rounded up.
        threads: Option<ThreadCap>,
        /// Maximum per container.
        per_container: u8,
    },
    /// Time-sliced replicas of GPUs or MIG instances.
    Replicas {
        /// Per GPU or instance.
        count: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub gpus: GpuChoice,
    pub form: Form,
    /// `None`: the default of the form.
    pub resource: Option<String>,
    /// Profile of MIG instances. `None` selects GPUs without MIG for shares and replicas, all instances for slices.
    pub profile: Option<String>,
}

impl Offer {
    /// The default offers: GPUs whole, or their slices where MIG is on.
    pub fn defaults() -> Vec<Self> {
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

/// The resource of a profile, as NVIDIA's plugin names it. Resource names cannot contain a plus sign.
fn slices(profile: &str) -> String {
    format!("{SLICES}{}", profile.replace('+', "."))
}

/// A GPU or MIG instance that an offer applies to.
struct Unit<'a> {
    gpu: GpuIndex,
    uuid: &'a str,
    memory_bytes: u64,
    kind: Kind,
}

fn units<'a>(found: &'a FoundGpu, offer: &Offer) -> Vec<Unit<'a>> {
    let gpu = found.gpu.index;
    let of_instances = matches!(offer.form, Form::Slices) || offer.profile.is_some();
    if !of_instances {
        let (uuid, memory_bytes) = (found.gpu.uuid.as_str(), found.gpu.memory_bytes);
        let whole = Unit { gpu, uuid, memory_bytes, kind: Kind::Whole };
        return if found.mig_enabled { Vec::new() } else { vec![whole] };
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

/// Shares that need more memory than their GPU or instance has.
#[derive(Debug, thiserror::Error)]
#[error("{count} shares of {share_mib} MiB do not fit into {uuid} with {memory_mib} MiB")]
struct SharesTooLarge {
    count: u8,
    share_mib: u64,
    uuid: String,
    memory_mib: u64,
}

/// The devices that a unit is offered as.
fn devices(unit: &Unit<'_>, offer: &Offer) -> Result<Vec<Device>, SharesTooLarge> {
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
            // MPS takes limits in whole MiB.
            let equal = unit.memory_bytes / u64::from(count.max(1)) / MIB * MIB;
            let memory_bytes = memory_bytes.unwrap_or(equal);
            let all = memory_bytes.saturating_mul(u64::from(count));
            if memory_bytes < MIB || all > unit.memory_bytes {
                return Err(SharesTooLarge {
                    count,
                    share_mib: memory_bytes / MIB,
                    uuid: unit.uuid.to_owned(),
                    memory_mib: unit.memory_bytes / MIB,
                });
            }
            let threads = threads.unwrap_or_else(|| ThreadCap::of_equal_shares(count));
            let share = Share { memory_bytes, threads, per_container };
            Ok((0..count).map(|nth| device(part(nth), SharingMode::Mps(share))).collect())
        }
    }
}

/// Builds the inventory. A GPU can be offered in several ways at once, under different resources; it is held in
/// one of them at a time.
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
                let what = format!("no GPU with number or UUID {name}");
                note(at, ".gpus", what, "list this node's GPUs with berth agent --once");
            }
        }
        for one in found.iter().filter(|one| offer.gpus.names(&one.gpu)) {
            for unit in units(one, offer) {
                let more = match devices(&unit, offer) {
                    Ok(more) => more,
                    Err(error) => {
                        note(at, "", error.to_string(), "offer fewer or smaller shares");
                        continue;
                    }
                };
                let name = |device: &Device| (device.resource.clone(), device.id.clone());
                if more.iter().any(|device| names.contains(&name(device))) {
                    let what = format!("offers {} again under the same resource", unit.uuid);
                    note(at, "", what, "set another resource, or remove one of the offers");
                    continue;
                }
                let sum: u64 = more.iter().map(memory_of).sum();
                let sum = sum.saturating_add(shared.get(&unit.gpu).copied().unwrap_or(0));
                if sum > one.gpu.memory_bytes {
                    let what = format!(
                        "together with other offers, shares of {} need more memory than it has",
                        one.gpu.uuid
                    );
                    note(at, "", what, "offer fewer or smaller shares, or remove an offer");
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
        note(0, "", error.to_string(), "fix the offers");
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
