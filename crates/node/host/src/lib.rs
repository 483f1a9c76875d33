//! What a Linux machine is made of, what its kubelet keeps, and which CPUs and memory its containers
//! have: read from files below a root.
//!
//! Owns the way from sysfs, procfs, the kubelet's files and cgroups to plain data. All of it is
//! synchronous, bounded and without state. Whatever a file says, nothing panics: what is missing, odd or
//! broken becomes a [`Diagnosis`] beside the result, and the rest is read all the same.
//!
//! Must not know drivers of devices (NVML), Kubernetes' API, nor what is done with what it finds.

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
