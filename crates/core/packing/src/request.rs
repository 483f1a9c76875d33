//! What a pod asks of a node, as far as packing cares.
//!
//! Owns units and the two ways to ask for GPUs. Must not know names, priorities or topology.

/// A whole GPU, or all of its compute or memory, in thousandths.
pub const WHOLE_MILLI: u16 = 1_000;

/// A part of one GPU, or what is free of it, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// Of its compute.
    pub compute_milli: u16,
    /// Of its memory.
    pub memory_milli: u16,
}

impl Part {
    /// All of a GPU.
    pub const WHOLE: Self = Self { compute_milli: WHOLE_MILLI, memory_milli: WHOLE_MILLI };

    /// The same part of compute and of memory.
    #[must_use]
    pub fn even(milli: u16) -> Self {
        Self { compute_milli: milli, memory_milli: milli }
    }

    /// Whether `other` fits into this.
    #[must_use]
    pub fn holds(self, other: Self) -> bool {
        self.compute_milli >= other.compute_milli && self.memory_milli >= other.memory_milli
    }

    /// This without `other`; nothing is below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            compute_milli: self.compute_milli.saturating_sub(other.compute_milli),
            memory_milli: self.memory_milli.saturating_sub(other.memory_milli),
        }
    }

    /// This and `other`; nothing is above a whole GPU.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = |a: u16, b: u16| a.saturating_add(b).min(WHOLE_MILLI);
        Self {
            compute_milli: sum(self.compute_milli, other.compute_milli),
            memory_milli: sum(self.memory_milli, other.memory_milli),
        }
    }

    /// How much room it needs: the larger of the two. Whoever asks for memory alone leaves compute
    /// behind that nobody without memory can use.
    #[must_use]
    pub fn size_milli(self) -> u16 {
        self.compute_milli.max(self.memory_milli).min(WHOLE_MILLI)
    }

    /// How much room it gives: the smaller of the two.
    #[must_use]
    pub fn room_milli(self) -> u16 {
        self.compute_milli.min(self.memory_milli).min(WHOLE_MILLI)
    }
}

/// How a pod asks for GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuAsk {
    /// Not at all.
    #[default]
    None,
    /// So many, each for itself alone.
    Whole(u16),
    /// A part of one.
    Share(Part),
}

impl GpuAsk {
    /// All that is asked for, in thousandths of a GPU.
    #[must_use]
    pub fn total_milli(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Whole(count) => u64::from(count) * u64::from(WHOLE_MILLI),
            Self::Share(part) => u64::from(part.size_milli()),
        }
    }

    /// On how many GPUs.
    #[must_use]
    pub fn count(self) -> u16 {
        match self {
            Self::None => 0,
            Self::Whole(count) => count,
            Self::Share(_) => 1,
        }
    }
}

/// A set of GPU models, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Models(pub u64);

impl Models {
    /// Any model.
    pub const ANY: Self = Self(u64::MAX);

    /// Whether the model is among them. An index of 64 or more is only in [`Models::ANY`].
    #[must_use]
    pub fn contains(self, model: u8) -> bool {
        1_u64.checked_shl(u32::from(model)).map_or(self == Self::ANY, |bit| self.0 & bit != 0)
    }
}

impl Models {
    /// The same models where each index is another.
    #[must_use]
    pub(crate) fn moved(self, moved: &[u8]) -> Self {
        if self == Self::ANY {
            return self;
        }
        let models = (0_u8..).zip(moved).filter(|(before, _)| self.contains(*before));
        let bits = models.filter_map(|(_, after)| 1_u64.checked_shl(u32::from(*after)));
        Self(bits.fold(0, |all, bit| all | bit))
    }
}

impl Default for Models {
    fn default() -> Self {
        Self::ANY
    }
}

/// What a pod asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// CPU, in thousandths of a core.
    pub cpu_milli: u64,
    /// Memory of the host.
    pub memory_bytes: u64,
    /// GPUs.
    pub gpus: GpuAsk,
    /// Which models will do. Without GPUs this does not matter.
    pub models: Models,
}

impl Request {
    /// The same, of these models.
    #[must_use]
    pub fn with_models(self, models: Models) -> Self {
        Self { models, ..self }
    }
}
