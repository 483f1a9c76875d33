//! The kinds of machine in the cluster and how many there are of each. Scarcity is judged by
//! capacity, whatever is running now.

use crate::request::Request;

/// Index of a kind of machine in its [`Fleet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindIx(pub u32);

/// Resources of an empty machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capacity {
    /// In thousandths of a core.
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    /// All of one model.
    pub gpus: u16,
    /// Index of the GPU model.
    pub model: u8,
}

impl Capacity {
    /// Whether an empty machine could take the pod.
    pub fn can_take(&self, request: &Request) -> bool {
        let gpus = request.gpus.count();
        request.cpu_milli <= self.cpu_milli
            && request.memory_bytes <= self.memory_bytes
            && (gpus == 0 || gpus <= self.gpus && request.models.contains(self.model))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) capacity: Capacity,
    pub(crate) machines: u64,
}

impl Kind {
    pub(crate) fn gpus(&self) -> u64 {
        self.machines.saturating_mul(u64::from(self.capacity.gpus))
    }
}

#[derive(Clone, Debug, Default)]
pub struct Fleet {
    kinds: Vec<Kind>,
}

impl Fleet {
    pub fn join(&mut self, capacity: Capacity) -> KindIx {
        let at =
            self.kinds.iter().position(|kind| kind.capacity == capacity).unwrap_or_else(|| {
                self.kinds.push(Kind { capacity, machines: 0 });
                self.kinds.len() - 1
            });
        if let Some(kind) = self.kinds.get_mut(at) {
            kind.machines += 1;
        }
        KindIx(u32::try_from(at).unwrap_or(u32::MAX))
    }

    pub fn leave(&mut self, kind: KindIx) {
        if let Some(kind) = self.kinds.get_mut(kind.0 as usize) {
            kind.machines = kind.machines.saturating_sub(1);
        }
    }

    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }
}
