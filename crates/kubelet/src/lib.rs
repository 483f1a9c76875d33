//! What a node will do with a pod: an exact, pure model of kubelet admission.
//!
//! [`Kubelet::admit`] runs a pod through the kubelet's topology, device, CPU and memory managers and
//! gives the assignment, or the rejection in the kubelet's own words; [`Kubelet::would_admit`] gives
//! the verdict alone and leaves no trace. Judged by recorded verdicts of the real kubelet.
//!
//! Owned here: everything that happens between a pod's arrival at a node and its containers' start,
//! as far as the four managers decide it. Deliberately absent: the checks around them (node fit,
//! taints, sysctls, eviction), container starts, any clock, file or randomness. Where the kubelet
//! itself picks at random, [`Certainty`] says how much of the outcome is certain.

mod arrival;
mod config;
mod cpu;
mod demand;
mod device;
mod hint;
mod memory;
mod merge;
mod node;
mod outcome;

pub use config::{
    ConfigError, CpuManagerPolicy, CpuOption, CpuOptions, KubeletConfig, KubeletVersion,
    MemoryManagerPolicy, ReservedCpus, ReservedMemory, TopologyPolicy, TopologyScope,
};
pub use demand::{ContainerDemand, PodDemand};
pub use device::AnyDevice;
pub use hint::Hint;
pub use node::{FreeMemory, Kubelet};
pub use outcome::{
    Admission, Certainty, ContainerAssignment, DeviceAssignment, MemoryBlock, Reason, Rejection,
    Verdict,
};
