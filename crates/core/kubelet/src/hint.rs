//! Topology hints of the managers.
//!
//! A manager does not list its hints: it provides a [`HintSource`], which the merge asks about the
//! masks it needs.

use berth_model::numa::NumaMask;

use crate::cpu::CpuHints;
use crate::device::DeviceHints;
use crate::memory::MemoryHints;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// `None`: any NUMA nodes.
    pub numa: Option<NumaMask>,
    /// Whether nothing narrower is possible on this hardware.
    pub preferred: bool,
}

impl Hint {
    /// The hint of every container under topology policy none.
    pub(crate) const NO_POLICY: Self = Self { numa: None, preferred: false };
}

/// One manager's hints for one resource.
pub(crate) enum HintSource<'a> {
    /// No preference.
    Indifferent,
    /// No NUMA nodes are feasible.
    Impossible,
    Cpu(CpuHints<'a>),
    /// The same for each kind of memory requested.
    Memory(MemoryHints<'a>),
    Device(DeviceHints<'a>),
}

/// The hints of a source that has a preference.
pub(crate) trait Hints {
    /// The NUMA nodes over whose non-empty subsets the hints range.
    fn domain(&self) -> NumaMask;

    /// Size of the narrowest masks that could serve the request on an empty machine.
    fn narrowest(&self) -> usize;

    /// Whether there is a hint for `mask`, a non-empty subset of the domain.
    fn feasible(&self, mask: NumaMask) -> bool;

    /// Whether the hint for `mask` is preferred.
    fn preferred(&self, mask: NumaMask) -> bool {
        mask.count() == self.narrowest()
    }

    /// Whether a mask other than a narrowest one can be preferred.
    fn prefers_wider(&self) -> bool {
        false
    }

    /// How many resources these hints stand for.
    fn resources(&self) -> usize {
        1
    }
}

impl HintSource<'_> {
    pub(crate) fn hints(&self) -> Option<&dyn Hints> {
        match self {
            Self::Indifferent | Self::Impossible => None,
            Self::Cpu(hints) => Some(hints),
            Self::Memory(hints) => Some(hints),
            Self::Device(hints) => Some(hints),
        }
    }
}

/// `most[k]`: the largest sum over `k` NUMA nodes.
pub(crate) fn most_of_nodes(of_nodes: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut amounts: Vec<u64> = of_nodes.collect();
    amounts.sort_unstable_by(|a, b| b.cmp(a));
    let sums = amounts.iter().scan(0u64, |sum, amount| {
        *sum = sum.saturating_add(*amount);
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}
