//! Synthetic nodes for tests: machines with a kubelet, pods and a driver.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use berth_agent::gpus::{DriverGpu, GpuMemory, Instance, LinkPeer, MigMode, Profile};
use berth_agent::{GpuReading, NodeReport};
use berth_host::Root;
use berth_host::synthetic::{
    self, CgroupVersion, Driver, Layout, Runtime, SyntheticContainer, SyntheticMachine,
    SyntheticPod, SyntheticProcess, Tree,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Timeout of [`until`].
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Polls until there is a value.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < SOON, "not within {SOON:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// In memory if possible: a machine has thousands of files.
pub(crate) fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let in_memory = memory.is_dir().then(|| tempfile::tempdir_in(memory).ok()).flatten();
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

pub(crate) const LAYOUT: Layout =
    Layout { version: CgroupVersion::V2, driver: Driver::Systemd, runtime: Runtime::Containerd };

pub(crate) const STATIC: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\n\
    kind: KubeletConfiguration\ntopologyManagerPolicy: best-effort\ncpuManagerPolicy: static\n\
    memoryManagerPolicy: None\nreservedSystemCPUs: \"0\"\n";

pub(crate) fn uid(number: usize) -> String {
    format!("{number:08x}-52c5-4a3e-9a3e-0d4f1f7f2a11")
}

pub(crate) fn gpu_uuid(number: usize) -> String {
    format!("GPU-{number:08x}-1111-4a2b-8c3d-0123456789ab")
}

pub(crate) fn slice_uuid(gpu: usize, number: usize) -> String {
    format!("MIG-{gpu:08x}-2222-4a2b-8c3d-{number:012x}")
}

/// Name, CPUs of its own (`""`: the shared pool), NUMA nodes of memory (`""`: all), pages by node.
pub(crate) type Container = (&'static str, String, String, Vec<(u32, u64)>);

/// A pod of a synthetic node, and the device ids it holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) qos: &'static str,
    pub(crate) containers: Vec<Container>,
    /// Container, resource, id, NUMA node reported by the plugin.
    pub(crate) devices: Vec<(&'static str, &'static str, String, Option<u32>)>,
    /// Whether the kubelet's state contradicts its cgroups.
    pub(crate) stale: bool,
}

/// A synthetic node.
pub(crate) struct Node {
    pub(crate) machine: SyntheticMachine,
    pub(crate) layout: Layout,
    pub(crate) configuration: &'static str,
    pub(crate) pods: Vec<Pod>,
    pub(crate) gpus: GpuReading,
}

impl Node {
    pub(crate) fn new(machine: SyntheticMachine) -> Self {
        let gpus = driver_of(&machine);
        Self { machine, layout: LAYOUT, configuration: STATIC, pods: Vec::new(), gpus }
    }

    pub(crate) fn cpus(&self) -> berth_model::idset::CpuSet {
        let nodes = 0..self.machine.sockets * self.machine.numa_per_socket;
        nodes.fold(berth_model::idset::CpuSet::EMPTY, |all, at| all | self.machine.cpus_of_node(at))
    }

    pub(crate) fn tree(&self) -> Tree {
        let mut tree = self.machine.tree();
        let all = self.cpus().to_string();
        let mut mems: Vec<u32> = self.machine.numa_ids.clone();
        mems.retain(|id| !self.machine.without_memory.contains(id));
        let mems = mems.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        self.layout.add_host(&mut tree, &all, &mems);
        let mut shared = self.cpus();
        shared.remove(0);
        let shared = shared.to_string();
        let (mut cpu_entries, mut device_entries) = (serde_json::Map::new(), Vec::new());
        for (number, pod) in self.pods.iter().enumerate() {
            let mut containers = vec![SyntheticContainer {
                id: format!("{:064x}", number * 16 + 15),
                processes: vec![SyntheticProcess {
                    pid: (number * 16 + 15) as u32 + 1000,
                    pages: vec![],
                }],
                ..SyntheticContainer::default()
            }];
            let mut own = serde_json::Map::new();
            for (at, (name, cpus, mems, pages)) in pod.containers.iter().enumerate() {
                let id = number * 16 + at;
                containers.push(SyntheticContainer {
                    id: format!("{id:064x}"),
                    cpus: if cpus.is_empty() { shared.clone() } else { cpus.clone() },
                    mems: mems.clone(),
                    processes: vec![SyntheticProcess {
                        pid: id as u32 + 1000,
                        pages: pages.clone(),
                    }],
                });
                if !cpus.is_empty() {
                    let said = if pod.stale { "0".to_owned() } else { cpus.clone() };
                    own.insert((*name).to_owned(), Value::String(said));
                }
            }
            if !own.is_empty() {
                cpu_entries.insert(pod.uid.clone(), Value::Object(own));
            }
            let synthetic = SyntheticPod { uid: pod.uid.clone(), qos: pod.qos, containers };
            self.layout.add(&mut tree, &synthetic, &all, &mems);
            for (container, resource, id, told) in &pod.devices {
                let node = told.map_or_else(|| "-1".to_owned(), |node| node.to_string());
                device_entries.push(json!({
                    "PodUID": pod.uid, "ContainerName": container, "ResourceName": resource,
                    "DeviceIDs": {node: [id]}, "AllocResp": "",
                }));
            }
        }
        let cpus = json!({"policyName": "static", "defaultCpuSet": shared, "entries": cpu_entries, "checksum": 0});
        let registered = self.registered();
        let devices = json!({"Data": {"PodDeviceEntries": device_entries, "RegisteredDevices": registered}, "Checksum": 0});
        let is_static = self.configuration.contains("cpuManagerPolicy: static");
        let cpus = cpus.to_string();
        synthetic::add_kubelet(
            &mut tree,
            self.configuration,
            is_static.then_some(cpus.as_str()),
            None,
            Some(&devices.to_string()),
        );
        tree
    }

    /// What NVIDIA's plugin would register: whole GPUs, and slices by their kind.
    fn registered(&self) -> Value {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for gpu in &self.gpus.gpus {
            if gpu.mig.is_some_and(|mig| mig.enabled) {
                for one in &gpu.instances {
                    let resource = format!("nvidia.com/mig-{}", one.profile.as_deref().unwrap());
                    all.entry(resource).or_default().extend(one.uuid.clone());
                }
            } else {
                all.entry("nvidia.com/gpu".to_owned()).or_default().extend(gpu.uuid.clone());
            }
        }
        json!(all)
    }

    pub(crate) fn written(&self) -> (Root, TempDir) {
        let directory = directory();
        self.tree().write(directory.path()).unwrap();
        (Root::new(directory.path()), directory)
    }

    pub(crate) fn report(&self) -> NodeReport {
        let (root, _directory) = self.written();
        NodeReport::read(&root, self.gpus.clone())
    }
}

/// The driver's report on a machine whose GPUs are all connected by switches.
pub(crate) fn driver_of(machine: &SyntheticMachine) -> GpuReading {
    let gpus = machine.devices.iter().filter(|device| device.ids.0 == 0x10de);
    let gpu = |(index, device): (usize, &synthetic::SyntheticDevice)| DriverGpu {
        index: index as u32,
        uuid: Some(gpu_uuid(index)),
        address: Some(device.address().to_owned()),
        product: Some("NVIDIA H100 80GB HBM3".to_owned()),
        memory: Some(GpuMemory {
            total_bytes: 81_559 << 20,
            used_bytes: 4 << 30,
            reserved_bytes: 0,
        }),
        mig: Some(MigMode::default()),
        temperature_celsius: Some(31),
        power_milliwatts: Some(71_500),
        links: vec![LinkPeer { address: "0000:c5:00.0".to_owned(), links: 18 }],
        ..DriverGpu::default()
    };
    GpuReading {
        driver: Some("580.159.04".to_owned()),
        nvml: Some("13.580.159.04".to_owned()),
        cuda: Some("13.0".to_owned()),
        gpus: gpus.enumerate().map(gpu).collect(),
        ..GpuReading::default()
    }
}

/// Partitions a GPU into slices.
pub(crate) fn divide(gpu: &mut DriverGpu, slices: usize) {
    gpu.mig = Some(MigMode { enabled: true, pending: true });
    gpu.profiles = vec![Profile {
        id: 19,
        name: "1g.10gb".to_owned(),
        instances: 7,
        slices: 1,
        memory_mib: 9_856,
        multiprocessors: 16,
        starts: (0..7).collect(),
        units: 1,
        ..Profile::default()
    }];
    let index = gpu.index as usize;
    gpu.instances = (0..slices)
        .map(|number| Instance {
            index: number as u32,
            uuid: Some(slice_uuid(index, number)),
            profile: Some("1g.10gb".to_owned()),
            memory_bytes: Some(9_856 << 20),
            gpu_instance: Some(7 + number as u32),
            compute_instance: Some(0),
            start: Some(number as u32),
            units: Some(1),
        })
        .collect();
}
