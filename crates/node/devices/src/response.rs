//! The response to Allocate: CDI devices, or environment and mounts for runtimes without CDI.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::cdi;
use crate::device::{Device, Inventory, SharingMode};
use crate::mps::pipes;
use crate::proto::deviceplugin::{CdiDevice, ContainerAllocateResponse, Mount};

/// Path of the MPS sockets in containers.
const MPS_PIPES: &str = "/run/nvidia-mps";

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseConfig {
    /// Vendor and class of the CDI specification, Berth's own or that of NVIDIA's toolkit (`nvidia.com/gpu`).
    /// `None`: use environment variables, for NVIDIA's runtime.
    pub cdi_kind: Option<String>,
    /// Directory of the MPS daemons.
    pub mps_directory: PathBuf,
}

impl Default for ResponseConfig {
    fn default() -> Self {
        Self { cdi_kind: None, mps_directory: "/run/berth/mps".into() }
    }
}

impl ResponseConfig {
    /// The response for a container that gets these devices.
    pub fn response(
        &self,
        inventory: &Inventory,
        devices: &[&Device],
    ) -> ContainerAllocateResponse {
        let mut sorted: Vec<&Device> = devices.to_vec();
        sorted.sort_by_key(|device| (device.gpu, cdi::name(inventory, device)));
        let mut hardware: Vec<&str> = Vec::new();
        for device in &sorted {
            let name = cdi::name(inventory, device);
            if !hardware.contains(&name) {
                hardware.push(name);
            }
        }
        let mut response = ContainerAllocateResponse::default();
        match &self.cdi_kind {
            Some(kind) => {
                let named = |name: &&str| CdiDevice { name: format!("{kind}={name}") };
                response.cdi_devices = hardware.iter().map(named).collect();
                // CUDA images set "all", which NVIDIA's runtime would apply in addition to CDI.
                response.envs.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned());
            }
            None => {
                response.envs.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), hardware.join(","));
            }
        }
        if let Some(first) = sorted.first() {
            self.add_limits(&mut response, first, sorted.len(), inventory);
        }
        response
    }

    /// Limits of MPS shares, which are alike and of one GPU. The daemon enforces the maximum of a container;
    /// these variables lower it for a container with fewer shares.
    fn add_limits(
        &self,
        response: &mut ContainerAllocateResponse,
        device: &Device,
        count: usize,
        inventory: &Inventory,
    ) {
        let SharingMode::Mps(share) = device.sharing else { return };
        let all = share.of_many(count);
        response.envs.extend(HashMap::from([
            ("CUDA_MPS_PIPE_DIRECTORY".to_owned(), MPS_PIPES.to_owned()),
            (
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".to_owned(),
                format!("0={}M", all.memory_bytes / MIB),
            ),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), all.threads.percent().to_string()),
        ]));
        let pipes = pipes(&self.mps_directory, cdi::name(inventory, device));
        response.mounts.push(Mount {
            container_path: MPS_PIPES.to_owned(),
            host_path: pipes.display().to_string(),
            read_only: false,
        });
    }
}
