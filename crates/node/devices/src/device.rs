//! GPUs and the devices that the kubelet allocates; which devices are the same hardware.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Number of a GPU on its machine, in the driver's order.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct GpuIndex(pub u16);

/// A GPU, as far as it matters for allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferedGpu {
    pub index: GpuIndex,
    /// Such as `GPU-5c2f…`.
    pub uuid: String,
    /// NUMA nodes near it; empty if unknown.
    pub numa: Vec<u32>,
    pub memory_bytes: u64,
    /// Distance to each GPU, in the order of the inventory: 0 for itself, less is nearer. Empty if unknown;
    /// then NUMA nodes decide.
    pub distances: Vec<u32>,
    /// Such as `/dev/nvidia0`.
    pub device_files: Vec<String>,
}

/// Percentage of a GPU's threads that a share may use. There is no uncapped share: next to an uncapped
/// neighbour, tail latency grew twentyfold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct ThreadCap(u8);

impl ThreadCap {
    /// 1 to 100.
    pub fn new(percent: u8) -> Result<Self, InventoryError> {
        if (1..=100).contains(&percent) {
            Ok(Self(percent))
        } else {
            Err(InventoryError::Cap { percent })
        }
    }

    /// An equal part, rounded up: threads that no share may use would be wasted.
    pub fn of_equal_shares(shares: u8) -> Self {
        Self(100_u8.div_ceil(shares.max(1)))
    }

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

/// An MPS share: part of the memory, and always a cap on threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// Of all processes of the share together.
    pub memory_bytes: u64,
    pub threads: ThreadCap,
    /// Maximum number per container, all of one GPU; enforced by the GPU's MPS daemon.
    pub per_container: u8,
}

impl Share {
    /// Several shares together.
    pub(crate) fn of_many(self, count: usize) -> Self {
        let count = u8::try_from(count).unwrap_or(u8::MAX).max(1);
        Self {
            memory_bytes: self.memory_bytes.saturating_mul(count.into()),
            threads: ThreadCap(self.threads.0.saturating_mul(count).min(100)),
            ..self
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SharingMode {
    Exclusive,
    Mps(Share),
    /// Pods take turns, and nothing limits their memory.
    TimeSliced,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Kind {
    Whole,
    Mig {
        /// Such as `MIG-9a1e…`.
        uuid: String,
        /// Such as `1g.18gb`.
        profile: String,
        /// First memory slice.
        start: u8,
        /// In addition to those of the GPU: `/dev/nvidia-caps/nvidia-cap12`.
        device_files: Vec<String>,
    },
}

/// A device that the kubelet allocates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Unique within its resource.
    pub id: String,
    pub resource: String,
    pub gpu: GpuIndex,
    pub kind: Kind,
    pub sharing: SharingMode,
}

impl Device {
    /// Whether the devices share hardware.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.gpu == other.gpu
            && match (&self.kind, &other.kind) {
                (Kind::Mig { uuid, .. }, Kind::Mig { uuid: others, .. }) => uuid == others,
                (Kind::Whole, _) | (_, Kind::Whole) => true,
            }
    }

    /// Whether only one of the devices can be held at a time.
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

/// An inventory that is not consistent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InventoryError {
    #[error("thread cap of {percent} % is out of range (1 to 100)")]
    Cap { percent: u8 },
    #[error("duplicate device {id:?} of {resource}")]
    Twice { resource: String, id: String },
    #[error("GPU {} is listed twice or out of order (list GPUs once, by number)", index.0)]
    GpuOrder { index: GpuIndex },
    #[error("device {id:?} of {resource} is on GPU {}, which is not listed", gpu.0)]
    NoGpu { resource: String, id: String, gpu: GpuIndex },
    #[error(
        "MPS shares of {unit} need {shared_bytes} bytes of memory, but it has {memory_bytes}: offer fewer or \
         smaller shares"
    )]
    Overcommitted {
        /// UUID of the GPU.
        unit: String,
        shared_bytes: u64,
        memory_bytes: u64,
    },
}

/// All GPUs and devices of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    gpus: Vec<OfferedGpu>,
    devices: Vec<Device>,
    by_name: BTreeMap<(String, String), usize>,
}

impl Inventory {
    /// GPUs must be sorted by number.
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

    /// By number.
    pub fn gpus(&self) -> &[OfferedGpu] {
        &self.gpus
    }

    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Resource names, sorted.
    pub fn resources(&self) -> BTreeSet<&str> {
        self.devices.iter().map(|device| device.resource.as_str()).collect()
    }

    /// Position in [`Inventory::devices`].
    pub fn find(&self, resource: &str, id: &str) -> Option<usize> {
        self.by_name.get(&(resource.to_owned(), id.to_owned())).copied()
    }

    pub fn gpu(&self, index: GpuIndex) -> Option<&OfferedGpu> {
        self.gpus.binary_search_by_key(&index, |gpu| gpu.index).ok().map(|at| &self.gpus[at])
    }

    /// Distance between two GPUs; derived from NUMA nodes where the driver reports none.
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

/// Upper limit of distances.
pub(crate) const FAR: u32 = 1_000;
