//! Alignment of a pod with the NUMA nodes of its GPUs.

use serde::{Deserialize, Serialize};

/// Whether a GPU pod's CPUs, memory and GPUs are on the same NUMA nodes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Alignment {
    Aligned,
    /// CPUs pinned to the pod, or most of its memory, are on another NUMA node, or a GPU has no CPU near it.
    Misaligned,
    /// Nothing is pinned: the kernel may run the pod near its GPUs or far from them.
    Floating,
    /// The data to decide it is missing. Also what an unrecognised word is read as.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Alignment {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Aligned => "aligned",
            Self::Misaligned => "misaligned",
            Self::Floating => "floating",
            Self::Unknown => "unknown",
        }
    }
}
