//! What a node's kubelet does with a pod: an exact, pure model of kubelet admission.
//!
//! [`Kubelet::admit`] runs a pod through the topology, device, CPU and memory managers of
//! Kubernetes 1.33 to 1.37 and returns the assignment, or the rejection in the kubelet's words.
//! [`Kubelet::would_admit`] returns the verdict only and changes nothing. Recorded verdicts of the
//! real kubelet are the reference.
//!
//! - Defects of the real kubelet are modelled where they happen and named there: CPUs handed out
//!   twice on uneven machines, combinations overwritten in a shared Go slice, shortages where reuse
//!   would help. Where the real one would crash or never return, the rejection is a `KubeletFault`.
//! - Where the kubelet picks at random, [`Certainty`] says how much of the outcome is certain.
//!   Property tests run every scenario with two opposite choices of "any device" and fail if
//!   something certain differs.
//! - Differences between versions are questions in `config`, not copies of the model.
//! - CPU and device sets are fixed arrays, so that trying something is a copy on the stack and
//!   needs no undo log.
//!
//! Not modelled: the checks around the four managers (node fit, taints, sysctls, eviction),
//! container starts, the feature gate `PodLevelResourceManagers`, and device pools of more than
//! 1,024 devices.
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

mod attempt;
mod config;
mod cpu;
mod demand;
mod device;
mod hint;
mod memory;
mod merge;
mod node;
mod outcome;
mod topology;

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
pub use topology::NodeTopology;
