//! What a container is given when devices are handed out to it.
//!
//! Owns names of CDI devices, and the environment and mounts where runtimes do not know CDI. Must not know
//! whether they may be handed out.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::cdi;
use crate::device::{Device, Inventory, SharingMode};
use crate::mps::pipes;
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
    /// Directory of the machine's MPS daemons.
    pub mps_directory: PathBuf,
}

impl Default for Answers {
    fn default() -> Self {
        Self { cdi_kind: None, mps_directory: "/run/berth/mps".into() }
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
        if let Some(first) = sorted.first() {
            self.limit(&mut answer, first, sorted.len(), inventory);
        }
        answer
    }

    /// The limits of MPS shares, which are all of one GPU and alike. Their daemon knows them too: what is said here is
    /// for containers that have fewer than the most that it allows.
    fn limit(
        &self,
        answer: &mut ContainerAllocateResponse,
        device: &Device,
        count: usize,
        inventory: &Inventory,
    ) {
        let SharingMode::Mps(share) = device.sharing else { return };
        let all = share.of_many(count);
        answer.envs.extend(HashMap::from([
            ("CUDA_MPS_PIPE_DIRECTORY".to_owned(), MPS_PIPES.to_owned()),
            (
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".to_owned(),
                format!("0={}M", all.memory_bytes / MIB),
            ),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), all.threads.percent().to_string()),
        ]));
        let pipes = pipes(&self.mps_directory, cdi::name(inventory, device));
        answer.mounts.push(Mount {
            container_path: MPS_PIPES.to_owned(),
            host_path: pipes.display().to_string(),
            read_only: false,
        });
    }
}
