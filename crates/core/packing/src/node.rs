//! Free resources of one node.

use smallvec::SmallVec;

use crate::fleet::{Capacity, KindIx};
use crate::request::{GpuRequest, Part, Request};

/// Positions of GPUs on their node.
pub type GpuPositions = SmallVec<[u16; 8]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeNode {
    /// In thousandths of a core.
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    /// By position. An unusable GPU has nothing free.
    pub gpus: SmallVec<[Part; 8]>,
    /// Index of the GPU model.
    pub model: u8,
    pub kind: KindIx,
}

impl FreeNode {
    /// A node without pods.
    pub fn empty(capacity: &Capacity, kind: KindIx) -> Self {
        Self {
            cpu_milli: capacity.cpu_milli,
            memory_bytes: capacity.memory_bytes,
            gpus: SmallVec::from_elem(Part::WHOLE, usize::from(capacity.gpus)),
            model: capacity.model,
            kind,
        }
    }

    /// Whether CPU, memory and the model suffice.
    pub fn has_host_room(&self, request: &Request) -> bool {
        request.cpu_milli <= self.cpu_milli
            && request.memory_bytes <= self.memory_bytes
            && (request.gpus == GpuRequest::None || request.models.contains(self.model))
    }

    pub fn can_take(&self, request: &Request) -> bool {
        self.has_host_room(request)
            && match request.gpus {
                GpuRequest::None => true,
                GpuRequest::Whole(count) => self.unused_gpus() >= usize::from(count),
                GpuRequest::Share(part) => self.gpus.iter().any(|free| free.holds(part)),
            }
    }

    /// Number of unused GPUs.
    pub fn unused_gpus(&self) -> usize {
        self.gpus.iter().filter(|free| **free == Part::WHOLE).count()
    }

    /// Positions of the first `count` unused GPUs; fewer if there are fewer.
    pub fn first_unused(&self, count: u16) -> GpuPositions {
        (0_u16..)
            .zip(&self.gpus)
            .filter(|(_, free)| **free == Part::WHOLE)
            .map(|(at, _)| at)
            .take(usize::from(count))
            .collect()
    }

    /// Takes the requested amounts, on these GPUs.
    pub fn take(&mut self, request: &Request, gpus: &[u16]) {
        self.cpu_milli = self.cpu_milli.saturating_sub(request.cpu_milli);
        self.memory_bytes = self.memory_bytes.saturating_sub(request.memory_bytes);
        self.each_gpu(request, gpus, Part::minus);
    }

    /// Returns the requested amounts, on these GPUs.
    pub fn release(&mut self, request: &Request, gpus: &[u16]) {
        self.cpu_milli = self.cpu_milli.saturating_add(request.cpu_milli);
        self.memory_bytes = self.memory_bytes.saturating_add(request.memory_bytes);
        self.each_gpu(request, gpus, Part::plus);
    }

    fn each_gpu(&mut self, request: &Request, gpus: &[u16], change: fn(Part, Part) -> Part) {
        let part = match request.gpus {
            GpuRequest::None => return,
            GpuRequest::Whole(_) => Part::WHOLE,
            GpuRequest::Share(part) => part,
        };
        for at in gpus {
            if let Some(free) = self.gpus.get_mut(usize::from(*at)) {
                *free = change(*free, part);
            }
        }
    }
}
