//! What there is to hand out: GPUs, and the devices that the kubelet is told of.
//!
//! Owns which devices are the same hardware, and what a set of them has to satisfy before anything is handed
//! out. Must not know who holds what.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The number of a GPU on its machine, as drivers count.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct GpuIndex(pub u16);

/// A GPU, as far as it matters which one is handed out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferedGpu {
    /// Its number.
    pub index: GpuIndex,
    /// Its UUID, such as `GPU-5c2f…`.
    pub uuid: String,
    /// NUMA nodes near to it; none where that is not known.
    pub numa: Vec<u32>,
    /// Its memory.
    pub memory_bytes: u64,
    /// How far each GPU is from it, in the order of the inventory: 0 for itself, and less is nearer. Empty
    /// where nothing is known; then NUMA nodes decide.
    pub distances: Vec<u32>,
    /// Its device files, such as `/dev/nvidia0`.
    pub device_files: Vec<String>,
}

/// The part of a GPU's threads that a share may use at a time, in per cent. There is no way to say "all of
/// it, whoever else is there": beside an uncapped neighbour tail latency grew twentyfold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct ThreadCap(u8);

impl ThreadCap {
    /// A cap of 1 to 100 per cent.
    pub fn new(percent: u8) -> Result<Self, InventoryError> {
        if (1..=100).contains(&percent) {
            Ok(Self(percent))
        } else {
            Err(InventoryError::Cap { percent })
        }
    }

    /// The cap of one of so many equal shares, rounded up: threads that no share could use would be lost.
    pub fn of_equal_shares(shares: u8) -> Self {
        Self(100_u8.div_ceil(shares.max(1)))
    }

    /// Per cent.
    pub fn percent(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for ThreadCap {
    type Error = InventoryError;

    fn try_from(percent: u8) -> Result<Self, InventoryError> {
        Self::new(percent)
    }
}

impl From<ThreadCap> for u8 {
    fn from(cap: ThreadCap) -> Self {
        cap.0
    }
}

/// A share under MPS: a part of the memory, and always a cap on threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// Memory that its processes may take together.
    pub memory_bytes: u64,
    /// Threads they may use.
    pub threads: ThreadCap,
    /// How many a container may have, all of one GPU. The GPU's MPS daemon lets nobody have more than so many.
    pub per_container: u8,
}

impl Share {
    /// So many of them together.
    pub(crate) fn of_many(self, count: usize) -> Self {
        let count = u8::try_from(count).unwrap_or(u8::MAX).max(1);
        Self {
            memory_bytes: self.memory_bytes.saturating_mul(count.into()),
            threads: ThreadCap(self.threads.0.saturating_mul(count).min(100)),
            ..self
        }
    }
}

/// How a device shares its hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SharingMode {
    /// Not at all.
    Exclusive,
    /// With others under MPS.
    Mps(Share),
    /// In turns, with nothing that keeps one from another's memory.
    TimeSliced,
}

/// What a device is a piece of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Kind {
    /// A whole GPU.
    Whole,
    /// A MIG instance.
    Mig {
        /// Its UUID, such as `MIG-9a1e…`.
        uuid: String,
        /// Its profile, such as `1g.18gb`.
        profile: String,
        /// The first memory slice of it.
        start: u8,
        /// Device files that give access to it, beside those of its GPU: `/dev/nvidia-caps/nvidia-cap12`.
        device_files: Vec<String>,
    },
}

/// A device that the kubelet hands out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Its id, which the kubelet knows it by.
    pub id: String,
    /// The resource it is one of.
    pub resource: String,
    /// The GPU it is on.
    pub gpu: GpuIndex,
    /// What it is a piece of.
    pub kind: Kind,
    /// With whom.
    pub sharing: SharingMode,
}

impl Device {
    /// Whether both are, at least in part, the same hardware.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.gpu == other.gpu
            && match (&self.kind, &other.kind) {
                (Kind::Mig { uuid, .. }, Kind::Mig { uuid: others, .. }) => uuid == others,
                (Kind::Whole, _) | (_, Kind::Whole) => true,
            }
    }

    /// Whether one cannot be held while another holds the other.
    pub fn excludes(&self, other: &Self) -> bool {
        if !self.meets(other) {
            return false;
        }
        if self.id == other.id && self.resource == other.resource {
            return true;
        }
        let alike = self.kind == other.kind;
        let both = (self.sharing, other.sharing);
        !(alike
            && matches!(
                both,
                (SharingMode::Mps(_), SharingMode::Mps(_))
                    | (SharingMode::TimeSliced, SharingMode::TimeSliced)
            ))
    }
}

/// Devices that cannot be handed out like this.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InventoryError {
    /// A cap that is none.
    #[error("a thread cap of {percent} % is none: give 1 to 100")]
    Cap {
        /// What was given.
        percent: u8,
    },
    /// A device twice.
    #[error("{resource} has two devices {id:?}: give each an id of its own")]
    Twice {
        /// Resource.
        resource: String,
        /// Id.
        id: String,
    },
    /// A GPU twice, or out of order.
    #[error("GPU {} is listed twice or out of order: list GPUs once, by number", index.0)]
    GpuOrder {
        /// Its number.
        index: GpuIndex,
    },
    /// A device on no GPU.
    #[error("device {id:?} of {resource} is on GPU {}, which is not listed", gpu.0)]
    NoGpu {
        /// Resource.
        resource: String,
        /// Id.
        id: String,
        /// The GPU's number.
        gpu: GpuIndex,
    },
    /// Shares of more memory than there is.
    #[error(
        "MPS shares of {unit} have {shared_bytes} bytes of memory together, but it has {memory_bytes}: make \
         fewer or smaller shares"
    )]
    Overcommitted {
        /// UUID of the GPU.
        unit: String,
        /// Sum of the shares.
        shared_bytes: u64,
        /// What there is.
        memory_bytes: u64,
    },
}

/// All of a machine's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    gpus: Vec<OfferedGpu>,
    devices: Vec<Device>,
    by_name: BTreeMap<(String, String), usize>,
}

impl Inventory {
    /// GPUs by number, and devices on them in any order.
    pub fn new(gpus: Vec<OfferedGpu>, devices: Vec<Device>) -> Result<Self, InventoryError> {
        if let Some(pair) = gpus.windows(2).find(|pair| pair[0].index >= pair[1].index) {
            return Err(InventoryError::GpuOrder { index: pair[1].index });
        }
        let mut by_name = BTreeMap::new();
        let mut shared: BTreeMap<GpuIndex, u64> = BTreeMap::new();
        for (at, device) in devices.iter().enumerate() {
            let name = (device.resource.clone(), device.id.clone());
            if by_name.insert(name, at).is_some() {
                let (resource, id) = (device.resource.clone(), device.id.clone());
                return Err(InventoryError::Twice { resource, id });
            }
            if gpus.binary_search_by_key(&device.gpu, |gpu| gpu.index).is_err() {
                let (resource, id) = (device.resource.clone(), device.id.clone());
                return Err(InventoryError::NoGpu { resource, id, gpu: device.gpu });
            }
            if let SharingMode::Mps(share) = device.sharing {
                let sum = shared.entry(device.gpu).or_default();
                *sum = sum.saturating_add(share.memory_bytes);
            }
        }
        for gpu in &gpus {
            let shared_bytes = shared.get(&gpu.index).copied().unwrap_or(0);
            if shared_bytes > gpu.memory_bytes {
                let (unit, memory_bytes) = (gpu.uuid.clone(), gpu.memory_bytes);
                return Err(InventoryError::Overcommitted { unit, shared_bytes, memory_bytes });
            }
        }
        Ok(Self { gpus, devices, by_name })
    }

    /// GPUs, by number.
    pub fn gpus(&self) -> &[OfferedGpu] {
        &self.gpus
    }

    /// Devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Names of the resources, in order.
    pub fn resources(&self) -> BTreeSet<&str> {
        self.devices.iter().map(|device| device.resource.as_str()).collect()
    }

    /// The position of a device.
    pub fn find(&self, resource: &str, id: &str) -> Option<usize> {
        self.by_name.get(&(resource.to_owned(), id.to_owned())).copied()
    }

    /// The GPU with a number.
    pub fn gpu(&self, index: GpuIndex) -> Option<&OfferedGpu> {
        self.gpus.binary_search_by_key(&index, |gpu| gpu.index).ok().map(|at| &self.gpus[at])
    }

    /// How far two GPUs are from each other. Where nobody tells, those of a NUMA node are near.
    pub fn distance(&self, one: GpuIndex, other: GpuIndex) -> u32 {
        if one == other {
            return 0;
        }
        let place = |index: GpuIndex| self.gpus.binary_search_by_key(&index, |gpu| gpu.index).ok();
        let (Some(one), Some(other)) = (place(one), place(other)) else { return FAR };
        match self.gpus[one].distances.get(other) {
            Some(distance) => (*distance).min(FAR),
            None if self.gpus[one].numa == self.gpus[other].numa => FAR / 2,
            None => FAR,
        }
    }
}

/// The farthest that two GPUs can be: what is beyond counts the same.
pub(crate) const FAR: u32 = 1_000;
