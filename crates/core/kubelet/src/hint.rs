//! What one resource of a pod says about NUMA nodes.
//!
//! A manager does not list its hints: it gives a [`Voice`], from which the merge asks about the
//! masks it needs. Owns the question; must not know how the answers are weighed.

use berth_model::numa::NumaMask;

use crate::cpu::CpuVoice;
use crate::device::DeviceVoice;
use crate::memory::MemoryVoice;

/// A merged hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The NUMA nodes; `None`: any.
    pub numa: Option<NumaMask>,
    /// Whether nothing narrower could have been had on this hardware.
    pub preferred: bool,
}

impl Hint {
    /// What every container has under topology policy none.
    pub(crate) const NO_POLICY: Self = Self { numa: None, preferred: false };
}

/// What one manager says about one resource.
pub(crate) enum Voice<'a> {
    /// Any NUMA nodes will do.
    Indifferent,
    /// None will.
    Impossible,
    /// Some will.
    Cpu(CpuVoice<'a>),
    /// Some will; the same for each kind of memory requested.
    Memory(MemoryVoice<'a>),
    /// Some will.
    Device(DeviceVoice<'a>),
}

/// A voice that has hints to give.
pub(crate) trait Hints {
    /// The NUMA nodes over whose non-empty subsets the hints range.
    fn domain(&self) -> NumaMask;

    /// Size of the narrowest masks that could serve the request on an empty machine.
    fn narrowest(&self) -> usize;

    /// Whether there is a hint for `mask`, a non-empty subset of the domain.
    fn feasible(&self, mask: NumaMask) -> bool;

    /// Whether the hint for `mask` is a preferred one.
    fn preferred(&self, mask: NumaMask) -> bool {
        mask.count() == self.narrowest()
    }

    /// Whether a mask other than a narrowest one can be preferred.
    fn prefers_wider(&self) -> bool {
        false
    }

    /// How many resources speak with this one voice.
    fn resources(&self) -> usize {
        1
    }
}

impl Voice<'_> {
    /// The hints, if it has any to give.
    pub(crate) fn hints(&self) -> Option<&dyn Hints> {
        match self {
            Self::Indifferent | Self::Impossible => None,
            Self::Cpu(voice) => Some(voice),
            Self::Memory(voice) => Some(voice),
            Self::Device(voice) => Some(voice),
        }
    }
}

/// For each number of NUMA nodes, the most that so many of them have together.
pub(crate) fn most_of_nodes(of_nodes: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut amounts: Vec<u64> = of_nodes.collect();
    amounts.sort_unstable_by(|a, b| b.cmp(a));
    let sums = amounts.iter().scan(0u64, |sum, amount| {
        *sum = sum.saturating_add(*amount);
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}
