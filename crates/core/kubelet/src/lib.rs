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
//!
//! ```
//! use berth_kubelet::{Kubelet, KubeletConfig, TopologyPolicy};
//! use berth_model::device::{Device, DevicePool, PreferredAllocation};
//! use berth_model::machine::{CoreSpec, Machine, MachineSpec, NumaSpec};
//! use berth_model::numa::NumaMask;
//! use berth_model::pod::{Container, ContainerKind, Pod, Resources};
//!
//! // Two NUMA nodes with a core and a GPU each.
//! let node = |id| NumaSpec { id, memory_bytes: 64 << 30, ..NumaSpec::default() };
//! let core = |numa| CoreSpec { numa, socket: numa, uncore: None, threads: vec![numa as usize] };
//! let machine = Machine::new(MachineSpec {
//!     sockets: Some(2),
//!     numa: vec![node(0), node(1)],
//!     cores: vec![core(0), core(1)],
//! })?;
//! let gpu = |at: usize| Device {
//!     id: format!("gpu-{at}"),
//!     numa: NumaMask::single(at),
//!     misplaced: false,
//!     healthy: true,
//! };
//! let gpus = DevicePool {
//!     resource: "nvidia.com/gpu".into(),
//!     preferred: PreferredAllocation::LowestId,
//!     devices: vec![gpu(0), gpu(1)],
//! };
//! let config = KubeletConfig {
//!     topology_policy: TopologyPolicy::SingleNumaNode,
//!     ..KubeletConfig::default()
//! };
//! let mut kubelet = Kubelet::new(machine, config, vec![gpus])?;
//!
//! // A pod of two GPUs finds them on different NUMA nodes.
//! let limits = [("nvidia.com/gpu".into(), "2".parse()?)].into();
//! let resources = Resources { limits, ..Resources::default() };
//! let server = Container { name: "server".into(), kind: ContainerKind::App, resources };
//! let pod = Pod { name: "llm".into(), containers: vec![server], ..Pod::default() };
//! let demand = kubelet.demand(&pod.checked()?)?;
//!
//! assert!(!kubelet.would_admit(&demand).admits());
//! let rejection = kubelet.admit("llm", &demand).unwrap_err();
//! assert_eq!(rejection.reason.as_str(), "TopologyAffinityError");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
pub use node::{AdoptError, FreeMemory, Held, Kubelet};
pub use outcome::{
    Admission, Certainty, ContainerAssignment, DeviceAssignment, MemoryBlock, Reason, Rejection,
    Verdict,
};
