//! GPUs of a node that are split into shares on demand.
//!
//! A GPU with a share in use counts as taken for pods that need a whole one; it is whole again when
//! its last share is returned.

use std::cmp::Reverse;

use berth_model::spec::GpuNeed;
use smallvec::SmallVec;

use crate::amounts;
use crate::offer::Offer;
use crate::table::ResourceIx;

pub(crate) const WHOLE_MILLI: u16 = 1000;

/// Larger GPU numbers are ignored.
const GPUS_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) resource: ResourceIx,
    /// The GPU of a share; `None`: one unit of the resource.
    pub(crate) gpu: Option<u16>,
}

impl Grant {
    /// The device that the kubelet allocates for it. Shares are not allocated by the kubelet.
    pub(crate) fn device(self) -> Option<ResourceIx> {
        self.gpu.is_none().then_some(self.resource)
    }
}

/// If only memory or only compute is requested, the other is in proportion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) compute_milli: u16,
    pub(crate) memory_bytes: u64,
}

impl Share {
    /// The share of a GPU with this memory that satisfies a need.
    pub(crate) fn of(need: &GpuNeed, gpu_memory_bytes: u64) -> Self {
        let memory = u128::from(gpu_memory_bytes.max(1));
        let by_memory = (u128::from(need.memory_bytes) * u128::from(WHOLE_MILLI)).div_ceil(memory);
        let by_compute = memory * u128::from(need.compute_milli) / u128::from(WHOLE_MILLI);
        Self {
            compute_milli: match need.compute_milli {
                0 => u16::try_from(by_memory).unwrap_or(u16::MAX),
                milli => milli,
            },
            memory_bytes: match need.memory_bytes {
                0 => u64::try_from(by_compute).unwrap_or(u64::MAX),
                bytes => bytes,
            },
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Divided {
    pub(crate) shares: u16,
    pub(crate) compute_milli: u32,
    pub(crate) memory_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// The resource of whole GPUs.
    pub(crate) resource: ResourceIx,
    /// Per GPU.
    memory_bytes: u64,
    /// By number. With a known topology that is the index in the plugin's list; otherwise it only
    /// identifies shares of the same GPU.
    gpus: SmallVec<[Divided; 8]>,
}

impl Shares {
    pub(crate) fn new(offer: &Offer, count: i64) -> Self {
        let count = usize::try_from(count).unwrap_or(0).min(GPUS_MAX);
        let gpus = std::iter::repeat_n(Divided::default(), count).collect();
        Self { resource: offer.resource, memory_bytes: offer.memory_bytes, gpus }
    }

    pub(crate) fn share(&self, need: &GpuNeed) -> Share {
        Share::of(need, self.memory_bytes)
    }

    pub(crate) fn has_room(&self, gpu: &Divided, share: Share) -> bool {
        gpu.compute_milli + u32::from(share.compute_milli) <= u32::from(WHOLE_MILLI)
            && gpu.memory_bytes.saturating_add(share.memory_bytes) <= self.memory_bytes
    }

    /// A guess for a share taken elsewhere: the fullest GPU with room, or the first whole one.
    pub(crate) fn likely_gpu(&self, need: &GpuNeed) -> Option<u16> {
        let share = self.share(need);
        let with_room = self.gpus().filter(|(_, gpu)| self.has_room(gpu, share));
        let fullest = |(number, gpu): &(u16, &Divided)| (Reverse(gpu.compute_milli), *number);
        with_room.min_by_key(fullest).map(|(number, _)| number)
    }

    /// What is left of a split GPU, in thousandths of compute and memory; `None` if it is whole.
    pub(crate) fn left(&self, gpu: u16) -> Option<(u16, u16)> {
        let gpu = self.gpus.get(usize::from(gpu)).filter(|gpu| gpu.shares > 0)?;
        let compute = u32::from(WHOLE_MILLI).saturating_sub(gpu.compute_milli);
        let left = u128::from(self.memory_bytes.saturating_sub(gpu.memory_bytes));
        let memory = left * u128::from(WHOLE_MILLI) / u128::from(self.memory_bytes.max(1));
        let milli = |part: u128| u16::try_from(part).unwrap_or(WHOLE_MILLI).min(WHOLE_MILLI);
        Some((milli(compute.into()), milli(memory)))
    }

    /// A part of a GPU's memory, in thousandths, rounded up.
    pub(crate) fn memory_milli(&self, bytes: u64) -> u16 {
        let milli = u128::from(bytes) * u128::from(WHOLE_MILLI);
        let milli = milli.div_ceil(u128::from(self.memory_bytes.max(1)));
        u16::try_from(milli).unwrap_or(WHOLE_MILLI).min(WHOLE_MILLI)
    }

    /// All GPUs by number, split or not.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = (u16, &Divided)> {
        (0..).zip(&self.gpus)
    }

    pub(crate) fn is_divided(&self, gpu: u16) -> bool {
        self.gpus.get(usize::from(gpu)).is_some_and(|gpu| gpu.shares > 0)
    }

    /// Takes a share (`sign` 1) or returns it (-1). The GPU counts as used as a whole while it has
    /// shares.
    pub(crate) fn count(&mut self, used: &mut Vec<i64>, gpu: u16, need: &GpuNeed, sign: i64) {
        let (number, share) = (usize::from(gpu), self.share(need));
        if number >= self.gpus.len() {
            if number >= GPUS_MAX {
                return;
            }
            self.gpus.resize(number + 1, Divided::default());
        }
        let gpu = &mut self.gpus[number];
        let was_divided = gpu.shares > 0;
        if sign > 0 {
            gpu.shares = gpu.shares.saturating_add(1);
            gpu.compute_milli = gpu.compute_milli.saturating_add(share.compute_milli.into());
            gpu.memory_bytes = gpu.memory_bytes.saturating_add(share.memory_bytes);
        } else {
            gpu.shares = gpu.shares.saturating_sub(1);
            gpu.compute_milli = gpu.compute_milli.saturating_sub(share.compute_milli.into());
            gpu.memory_bytes = gpu.memory_bytes.saturating_sub(share.memory_bytes);
        }
        let whole = i64::from(gpu.shares > 0) - i64::from(was_divided);
        *amounts::at_mut(used, self.resource) += whole;
    }
}

pub(crate) fn count(
    grant: Grant,
    need: Option<&GpuNeed>,
    used: &mut Vec<i64>,
    shares: Option<&mut Shares>,
    sign: i64,
) {
    match (grant.gpu, need, shares) {
        (None, ..) => *amounts::at_mut(used, grant.resource) += sign,
        (Some(gpu), Some(need), Some(shares)) => shares.count(used, gpu, need, sign),
        // The node no longer splits GPUs.
        (Some(_), ..) => {}
    }
}
