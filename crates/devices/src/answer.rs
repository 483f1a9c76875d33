//! What a container is given when devices are handed out to it.
//!
//! Owns names of CDI devices, and the environment and mounts where runtimes do not know CDI. Must not know
//! whether they may be handed out.

use std::collections::{BTreeMap, HashMap};

use crate::cdi;
use crate::device::{Device, Inventory, Sharing};
use crate::proto::deviceplugin::{CdiDevice, ContainerAllocateResponse, Mount};

/// Where the sockets of MPS are inside containers.
const MPS_PIPES: &str = "/run/nvidia-mps";

const MIB: u64 = 1 << 20;

/// How devices are handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// Vendor and class of the CDI specification, ours or the one of NVIDIA's toolkit (`nvidia.com/gpu`).
    /// `None`: by environment, for NVIDIA's own runtime.
    pub cdi_kind: Option<String>,
    /// Directory of the machine's MPS daemon, with `pipe` and `shm` in it.
    pub mps_directory: String,
}

impl Default for Answers {
    fn default() -> Self {
        Self { cdi_kind: None, mps_directory: "/run/berth/mps".to_owned() }
    }
}

impl Answers {
    /// The answer for a container that gets these devices.
    pub fn answer(&self, inventory: &Inventory, devices: &[&Device]) -> ContainerAllocateResponse {
        let mut sorted: Vec<&Device> = devices.to_vec();
        sorted.sort_by_key(|device| (device.gpu, cdi::name(inventory, device)));
        let mut hardware: Vec<&str> = Vec::new();
        for device in &sorted {
            let name = cdi::name(inventory, device);
            if !hardware.contains(&name) {
                hardware.push(name);
            }
        }
        let mut answer = ContainerAllocateResponse::default();
        match &self.cdi_kind {
            Some(kind) => {
                let named = |name: &&str| CdiDevice { name: format!("{kind}={name}") };
                answer.cdi_devices = hardware.iter().map(named).collect();
                // Images of CUDA say "all", which NVIDIA's runtime would obey beside CDI.
                answer.envs.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned());
            }
            None => {
                answer.envs.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), hardware.join(","));
            }
        }
        self.limit(&mut answer, &sorted, &hardware, inventory);
        answer
    }

    /// The limits of MPS shares. Memory is per device, in the order in which the container sees them; the cap on
    /// threads is one number for all, so it is the smallest that any of its GPUs was shared with.
    fn limit(
        &self,
        answer: &mut ContainerAllocateResponse,
        devices: &[&Device],
        hardware: &[&str],
        inventory: &Inventory,
    ) {
        let mut memory: BTreeMap<usize, u64> = BTreeMap::new();
        let mut threads: BTreeMap<usize, u32> = BTreeMap::new();
        for device in devices {
            let Sharing::Mps { memory_bytes, threads: cap } = device.sharing else { continue };
            let name = cdi::name(inventory, device);
            let Some(at) = hardware.iter().position(|one| *one == name) else { continue };
            *memory.entry(at).or_default() += memory_bytes;
            *threads.entry(at).or_default() += u32::from(cap.percent());
        }
        let Some(cap) = threads.values().min() else { return };
        let limits = memory.iter().map(|(at, bytes)| format!("{at}={}M", bytes / MIB));
        let limits: Vec<String> = limits.collect();
        answer.envs.extend(HashMap::from([
            ("CUDA_MPS_PIPE_DIRECTORY".to_owned(), MPS_PIPES.to_owned()),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".to_owned(), limits.join(",")),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), (*cap).min(100).to_string()),
        ]));
        let mount = |container: &str, host: &str| Mount {
            container_path: container.to_owned(),
            host_path: format!("{}/{host}", self.mps_directory),
            read_only: false,
        };
        answer.mounts.extend([mount(MPS_PIPES, "pipe"), mount("/dev/shm", "shm")]);
    }
}
