//! What a Linux machine consists of, what its kubelet keeps, and which CPUs and memory its
//! containers have: read from files below a root directory.
//!
//! Turns sysfs, procfs, the kubelet's files and cgroups into plain data, synchronously and without
//! state. Every read has a limit, only regular files are opened, and links never lead out of the
//! root. A missing, odd or broken file becomes a [`Diagnosis`] beside the result, and the rest is
//! still read.
//!
//! A NUMA node that the kernel does not report is derived from bridges or nearby CPUs and marked as
//! derived, else unknown with the reason. Drivers (NVML), the Kubernetes API and judging alignment
//! are not here; pods' names are in none of these files.

pub mod cgroup;
pub mod kubelet;
mod list;
pub mod machine;
#[cfg(feature = "made")]
#[doc(hidden)]
pub mod made;
pub mod pci;
mod pulse;
pub mod record;
mod root;
mod tape;

pub use cgroup::Cgroups;
pub use kubelet::{KubeletFiles, KubeletPlaces};
pub use machine::Machine;
pub use pci::Pci;
pub use pulse::Pulse;
pub use record::{RecordError, Recording, record};
pub use root::{Diagnosis, Root};
