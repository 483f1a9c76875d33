//! What is free on one node.
//!
//! Owns the free amounts and the arithmetic of taking and giving back. Must not know who holds the
//! rest, nor what would be a good place.

use smallvec::SmallVec;

use crate::fleet::{Capacity, KindIx};
use crate::request::{GpuAsk, Part, Request};

/// Positions of GPUs on their node.
pub type GpuPositions = SmallVec<[u16; 8]>;

/// What is free on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeNode {
    /// CPU, in thousandths of a core.
    pub cpu_milli: u64,
    /// Memory of the host.
    pub memory_bytes: u64,
    /// What is free of each GPU, by position. One that cannot be used now has nothing free.
    pub gpus: SmallVec<[Part; 8]>,
    /// Index of the GPUs' model.
    pub model: u8,
    /// What kind of machine it is.
    pub kind: KindIx,
}

impl FreeNode {
    /// A machine that nothing runs on.
    #[must_use]
    pub fn empty(capacity: &Capacity, kind: KindIx) -> Self {
        Self {
            cpu_milli: capacity.cpu_milli,
            memory_bytes: capacity.memory_bytes,
            gpus: SmallVec::from_elem(Part::WHOLE, usize::from(capacity.gpus)),
            model: capacity.model,
            kind,
        }
    }

    /// Whether CPU, memory and the model will do.
    #[must_use]
    pub fn has_host_room(&self, request: &Request) -> bool {
        request.cpu_milli <= self.cpu_milli
            && request.memory_bytes <= self.memory_bytes
            && (request.gpus == GpuAsk::None || request.models.contains(self.model))
    }

    /// Whether the pod fits.
    #[must_use]
    pub fn can_take(&self, request: &Request) -> bool {
        self.has_host_room(request)
            && match request.gpus {
                GpuAsk::None => true,
                GpuAsk::Whole(count) => self.wholes() >= usize::from(count),
                GpuAsk::Share(part) => self.gpus.iter().any(|free| free.holds(part)),
            }
    }

    /// How many GPUs nobody uses.
    #[must_use]
    pub fn wholes(&self) -> usize {
        self.gpus.iter().filter(|free| **free == Part::WHOLE).count()
    }

    /// Positions of the first so many GPUs that nobody uses; fewer if there are fewer.
    #[must_use]
    pub fn first_wholes(&self, count: u16) -> GpuPositions {
        (0_u16..)
            .zip(&self.gpus)
            .filter(|(_, free)| **free == Part::WHOLE)
            .map(|(at, _)| at)
            .take(usize::from(count))
            .collect()
    }

    /// Takes what the pod asks for, on these GPUs.
    pub fn take(&mut self, request: &Request, gpus: &[u16]) {
        self.cpu_milli = self.cpu_milli.saturating_sub(request.cpu_milli);
        self.memory_bytes = self.memory_bytes.saturating_sub(request.memory_bytes);
        self.each_gpu(request, gpus, Part::minus);
    }

    /// Gives back what the pod held, on these GPUs.
    pub fn give_back(&mut self, request: &Request, gpus: &[u16]) {
        self.cpu_milli = self.cpu_milli.saturating_add(request.cpu_milli);
        self.memory_bytes = self.memory_bytes.saturating_add(request.memory_bytes);
        self.each_gpu(request, gpus, Part::plus);
    }

    fn each_gpu(&mut self, request: &Request, gpus: &[u16], change: fn(Part, Part) -> Part) {
        let part = match request.gpus {
            GpuAsk::None => return,
            GpuAsk::Whole(_) => Part::WHOLE,
            GpuAsk::Share(part) => part,
        };
        for at in gpus {
            if let Some(free) = self.gpus.get_mut(usize::from(*at)) {
                *free = change(*free, part);
            }
        }
    }
}
