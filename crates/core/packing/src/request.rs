//! A pod's request, as far as packing needs it.

/// A whole GPU, or all of its compute or memory, in thousandths.
pub const WHOLE_MILLI: u16 = 1_000;

/// A part of one GPU, or its free part, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    pub compute_milli: u16,
    pub memory_milli: u16,
}

impl Part {
    pub const WHOLE: Self = Self { compute_milli: WHOLE_MILLI, memory_milli: WHOLE_MILLI };

    /// The same part of compute and of memory.
    pub fn even(milli: u16) -> Self {
        Self { compute_milli: milli, memory_milli: milli }
    }

    /// Whether `other` fits into this.
    pub fn holds(self, other: Self) -> bool {
        self.compute_milli >= other.compute_milli && self.memory_milli >= other.memory_milli
    }

    /// Saturates at zero.
    pub fn minus(self, other: Self) -> Self {
        Self {
            compute_milli: self.compute_milli.saturating_sub(other.compute_milli),
            memory_milli: self.memory_milli.saturating_sub(other.memory_milli),
        }
    }

    /// Saturates at a whole GPU.
    pub fn plus(self, other: Self) -> Self {
        let sum = |a: u16, b: u16| a.saturating_add(b).min(WHOLE_MILLI);
        Self {
            compute_milli: sum(self.compute_milli, other.compute_milli),
            memory_milli: sum(self.memory_milli, other.memory_milli),
        }
    }

    /// The room it needs: the larger of the two. A pod that requests memory alone leaves compute
    /// behind that nothing without memory can use.
    pub fn size_milli(self) -> u16 {
        self.compute_milli.max(self.memory_milli).min(WHOLE_MILLI)
    }

    /// The room it provides: the smaller of the two.
    pub fn room_milli(self) -> u16 {
        self.compute_milli.min(self.memory_milli).min(WHOLE_MILLI)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuRequest {
    #[default]
    None,
    /// Exclusive GPUs.
    Whole(u16),
    /// A part of one.
    Share(Part),
}

impl GpuRequest {
    /// In thousandths of a GPU.
    pub fn total_milli(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Whole(count) => u64::from(count) * u64::from(WHOLE_MILLI),
            Self::Share(part) => u64::from(part.size_milli()),
        }
    }

    /// Number of GPUs.
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
    pub const ANY: Self = Self(u64::MAX);

    /// An index of 64 or more is only in [`Models::ANY`].
    pub fn contains(self, model: u8) -> bool {
        1_u64.checked_shl(u32::from(model)).map_or(self == Self::ANY, |bit| self.0 & bit != 0)
    }
}

impl Models {
    /// The same models with new indexes.
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// In thousandths of a core.
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    pub gpus: GpuRequest,
    /// Ignored without GPUs.
    pub models: Models,
}

impl Request {
    pub fn with_models(self, models: Models) -> Self {
        Self { models, ..self }
    }
}
