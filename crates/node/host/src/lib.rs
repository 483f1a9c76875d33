//! Reads a Linux machine, its kubelet's state and its pods' cgroups from files below a root directory.
//!
//! Every read has a limit, only regular files are opened, and links never lead out of the root. A
//! missing, unexpected or damaged file becomes a [`Diagnosis`] beside the result; the rest is still read.
//!
//! A device's NUMA node that the kernel does not report is derived from bridges or nearby CPUs and
//! marked as derived. NVML, the Kubernetes API and the judgement of alignment belong to other crates.

pub mod cgroup;
mod fingerprint;
pub mod kubelet;
mod list;
pub mod machine;
pub mod pci;
mod read_log;
pub mod record;
mod root;
#[cfg(feature = "synthetic")]
#[doc(hidden)]
pub mod synthetic;

pub use cgroup::Cgroups;
pub use fingerprint::Fingerprint;
pub use kubelet::{KubeletFiles, KubeletPaths};
pub use machine::Machine;
pub use pci::Pci;
pub use record::{RecordError, Recording, record};
pub use root::{Diagnosis, Root};
