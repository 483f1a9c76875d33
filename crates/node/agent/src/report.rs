//! The report on a node: machine, devices, driver, kubelet and pods, joined by PCI address and device id.

mod holdings;

use berth_host::cgroup::{Cgroups, PodCgroup, Process, Qos};
use berth_host::kubelet::Configuration;
use berth_host::machine::{Distance as NodeDistance, Hugepages};
use berth_host::pci::{Device, DeviceNuma, Distance, Pci};
use berth_host::{Diagnosis, KubeletFiles, KubeletPaths, Machine, Root};
use serde::{Deserialize, Serialize};

use crate::audit::{self, DeviceKind, Held, PodAudit, Rules, RunningContainer, RunningPod};
use crate::gpus::{DriverGpu, GpuReading};
pub use holdings::holdings;
pub(crate) use holdings::{base, device_behind};

/// Processes per container whose memory is read, and bytes of each `numa_maps`, for which the kernel walks all
/// pages.
const PROCESSES_MAX: usize = 4;
const MAPS_BYTES_MAX: usize = 256 << 10;

/// Raw data of a node.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub machine: Machine,
    pub pci: Pci,
    pub kubelet: KubeletFiles,
    pub cgroups: Cgroups,
    pub gpus: GpuReading,
    /// What could not be read; the driver's are in `gpus`.
    pub diagnoses: Vec<Diagnosis>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    pub machine: MachineReport,
    pub driver: DriverReport,
    pub numa: Vec<NumaReport>,
    /// By PCI address.
    pub gpus: Vec<GpuReport>,
    /// By PCI address, without virtual functions.
    pub nics: Vec<NicReport>,
    /// Distances of GPUs to other GPUs and to NICs.
    pub distances: Vec<PairReport>,
    pub kubelet: Option<Configuration>,
    /// By UID.
    pub pods: Vec<PodReport>,
    pub diagnoses: Vec<Diagnosis>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineReport {
    pub processor: Option<String>,
    /// With online CPUs.
    pub sockets: usize,
    /// Physical, with online CPUs.
    pub cores: usize,
    /// Maximum over all cores.
    pub threads_per_core: usize,
    pub l3_groups: usize,
    /// Online.
    pub cpus: String,
    pub offline_cpus: String,
    pub memory_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverReport {
    pub version: Option<String>,
    pub nvml: Option<String>,
    /// Newest version supported.
    pub cuda: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaReport {
    pub id: u32,
    pub sockets: Vec<u32>,
    pub cpus: String,
    pub cpu_count: usize,
    pub memory_bytes: u64,
    pub hugepages: Vec<Hugepages>,
    /// To all nodes.
    pub distances: Vec<NodeDistance>,
    /// PCI addresses.
    pub gpus: Vec<String>,
    /// PCI addresses.
    pub nics: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuReport {
    pub address: String,
    /// `None` if unknown.
    pub numa: Option<u32>,
    /// How the NUMA node is known; `None` for a GPU that sysfs does not have.
    pub numa_known: Option<DeviceNuma>,
    /// PCI vendor and device id, such as `10de:2330`.
    pub pci_id: Option<String>,
    /// The driver's report; `None` if the driver does not know the GPU.
    pub driver: Option<DriverGpu>,
    /// UIDs of the pods that hold it or a part of it.
    pub pods: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NicReport {
    pub address: String,
    /// `None` if unknown.
    pub numa: Option<u32>,
    /// Interfaces and RDMA devices.
    pub names: Vec<String>,
}

/// Distance between a GPU and another device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PairReport {
    /// PCI address.
    pub gpu: String,
    /// PCI address of a GPU or NIC.
    pub other: String,
    pub pci: Distance,
    /// As reported by the driver.
    pub driver: Option<Distance>,
    /// Number of NVLinks between them, direct or through switches.
    pub nvlinks: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReport {
    pub uid: String,
    pub qos: Qos,
    /// Including the sandbox.
    pub containers: Vec<ContainerReport>,
    pub devices: Vec<HeldReport>,
    /// `None` for a pod without a GPU.
    pub audit: Option<PodAudit>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerReport {
    pub id: String,
    /// Effective cpuset.
    pub cpus: Option<String>,
    /// Effective NUMA nodes for memory.
    pub mems: Option<String>,
    /// Number of processes.
    pub processes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldReport {
    pub container: String,
    pub resource: String,
    pub id: String,
    pub kind: DeviceKind,
    /// Empty if unknown.
    pub numa: Vec<u32>,
}

impl Reading {
    pub fn read(root: &Root, gpus: GpuReading) -> Self {
        let (machine, mut diagnoses) = Machine::read(root);
        let (pci, more) = Pci::read(root, &machine);
        diagnoses.extend(more);
        let (paths, more) = KubeletPaths::of_running(root);
        diagnoses.extend(more);
        let paths = paths.unwrap_or_else(|| KubeletPaths::detect(root));
        let (kubelet, more) = KubeletFiles::read_at(root, &paths);
        diagnoses.extend(more);
        let (cgroups, more) = Cgroups::read(root);
        diagnoses.extend(more);
        Self { machine, pci, kubelet, cgroups, gpus, diagnoses }
    }
}

impl NodeReport {
    pub fn read(root: &Root, gpus: GpuReading) -> Self {
        Self::of(root, Reading::read(root, gpus))
    }

    /// Builds the report. Reads the memory of pods with GPUs below `root`.
    pub fn of(root: &Root, mut reading: Reading) -> Self {
        let mut diagnoses = std::mem::take(&mut reading.diagnoses);
        diagnoses.append(&mut reading.gpus.diagnoses);
        let (held, more) = holdings(&reading);
        diagnoses.extend(more);
        let read = &mut |running: &mut RunningContainer, diagnoses: &mut Vec<Diagnosis>| {
            read_memory(root, running, diagnoses);
        };
        let pods: Vec<PodReport> = reading
            .cgroups
            .pods
            .iter()
            .map(|pod| {
                let own =
                    held.iter().filter(|(uid, _)| *uid == pod.uid).map(|(_, one)| one.clone());
                pod_report(&reading, pod, own.collect(), read, &mut diagnoses)
            })
            .collect();
        Self {
            machine: machine_report(&reading.machine),
            driver: DriverReport {
                version: reading.gpus.driver.clone(),
                nvml: reading.gpus.nvml.clone(),
                cuda: reading.gpus.cuda.clone(),
            },
            numa: numa_reports(&reading),
            gpus: gpu_reports(&reading, &held, &mut diagnoses),
            nics: nics(&reading.pci).map(nic_report).collect(),
            distances: pairs(&reading),
            kubelet: reading.kubelet.configuration.clone(),
            pods,
            diagnoses,
        }
    }

    pub fn audits(&self) -> impl Iterator<Item = &PodAudit> {
        self.pods.iter().filter_map(|pod| pod.audit.as_ref())
    }
}

fn machine_report(machine: &Machine) -> MachineReport {
    MachineReport {
        processor: machine.processor.clone(),
        sockets: machine.sockets.len(),
        cores: machine.cores.len(),
        threads_per_core: machine.threads_per_core(),
        l3_groups: machine.l3.len(),
        cpus: machine.cpus.to_string(),
        offline_cpus: machine.offline_cpus.to_string(),
        memory_bytes: machine.memory_bytes,
    }
}

fn nics(pci: &Pci) -> impl Iterator<Item = &Device> {
    pci.nics().filter(|nic| !nic.is_virtual())
}

fn nic_report(nic: &Device) -> NicReport {
    NicReport {
        address: nic.address.clone(),
        numa: nic.numa.node(),
        names: nic.interfaces.iter().chain(&nic.rdma).cloned().collect(),
    }
}

fn numa_reports(reading: &Reading) -> Vec<NumaReport> {
    let on = |devices: &mut dyn Iterator<Item = &Device>, id: u32| -> Vec<String> {
        let there = devices.filter(|device| device.numa.node() == Some(id));
        there.map(|device| device.address.clone()).collect()
    };
    let report = |node: &berth_host::machine::NumaNode| NumaReport {
        id: node.id,
        sockets: node.sockets.clone(),
        cpus: node.cpus.to_string(),
        cpu_count: node.cpus.len(),
        memory_bytes: node.memory_bytes,
        hugepages: node.hugepages.clone(),
        distances: node.distances.clone(),
        gpus: on(&mut reading.pci.gpus(), node.id),
        nics: on(&mut nics(&reading.pci), node.id),
    };
    reading.machine.numa.iter().map(report).collect()
}

/// GPUs that PCI or the driver reports.
fn gpu_reports(
    reading: &Reading,
    held: &[(String, Held)],
    diagnoses: &mut Vec<Diagnosis>,
) -> Vec<GpuReport> {
    let mut reports: Vec<GpuReport> = Vec::new();
    let pods_of = |gpu: Option<&DriverGpu>| {
        let uses = |one: &Held| {
            let known = reading.gpus.with_uuid(holdings::base(&one.id)).map(|(gpu, _)| gpu);
            known.is_some() && known.map(|gpu| &gpu.uuid) == gpu.map(|gpu| &gpu.uuid)
        };
        let mut pods: Vec<String> =
            held.iter().filter(|(_, one)| uses(one)).map(|(pod, _)| pod.clone()).collect();
        pods.sort_unstable();
        pods.dedup();
        pods
    };
    for device in reading.pci.gpus() {
        let driver = reading.gpus.at(&device.address);
        let asked = reading.gpus.driver.is_some() && device.vendor == berth_host::pci::NVIDIA;
        if driver.is_none() && asked && !device.is_virtual() {
            let what = match device.driver.as_deref() {
                Some("vfio-pci") => "assigned to a virtual machine, so NVML does not report it",
                Some("nvidia") => "NVML does not report it, so nothing can use it",
                _ => "not bound to NVIDIA's driver, so NVML does not report it",
            };
            diagnoses.push(Diagnosis {
                path: format!("/sys/bus/pci/devices/{}", device.address),
                what: what.to_owned(),
                remedy: "check the kernel log for it (NVRM, XID), and reset it if it hangs".into(),
            });
        }
        reports.push(GpuReport {
            address: device.address.clone(),
            numa: device.numa.node(),
            numa_known: Some(device.numa.clone()),
            pci_id: Some(format!("{:04x}:{:04x}", device.vendor, device.device)),
            driver: driver.cloned(),
            pods: pods_of(driver),
        });
    }
    for gpu in &reading.gpus.gpus {
        let address = gpu.address.clone().unwrap_or_else(|| format!("nvml/{}", gpu.index));
        if reports.iter().any(|report| report.address == address) {
            continue;
        }
        diagnoses.push(Diagnosis {
            path: format!("/sys/bus/pci/devices/{address}"),
            what: "NVML reports it but sysfs does not, so its NUMA node is unknown".to_owned(),
            remedy: "mount the host's sysfs".to_owned(),
        });
        let pods = pods_of(Some(gpu));
        reports.push(GpuReport {
            address,
            driver: Some(gpu.clone()),
            pods,
            ..GpuReport::default()
        });
    }
    reports.sort_by(|one, other| one.address.cmp(&other.address));
    reports
}

fn pairs(reading: &Reading) -> Vec<PairReport> {
    let gpus: Vec<&Device> = reading.pci.gpus().filter(|gpu| !gpu.is_virtual()).collect();
    let mut pairs = Vec::new();
    for (at, gpu) in gpus.iter().enumerate() {
        let others = gpus.iter().skip(at + 1).copied().chain(nics(&reading.pci));
        pairs.extend(others.map(|other| {
            let both = [&gpu.address, &other.address];
            let level = reading.gpus.levels.iter().find(|level| {
                both == [&level.one, &level.other] || both == [&level.other, &level.one]
            });
            PairReport {
                gpu: gpu.address.clone(),
                other: other.address.clone(),
                pci: gpu.distance(other),
                driver: level.map(|level| level.level),
                nvlinks: nvlinks(reading, &gpu.address, &other.address),
            }
        }));
    }
    pairs
}

/// Direct links between two GPUs, and links of both to switches.
fn nvlinks(reading: &Reading, one: &str, other: &str) -> u32 {
    let (Some(one), Some(another)) = (reading.gpus.at(one), reading.gpus.at(other)) else {
        return 0;
    };
    let straight = one.links.iter().filter(|peer| peer.address == other).map(|peer| peer.links);
    let switched = |gpu: &DriverGpu| -> u32 {
        let is_gpu = |address: &str| reading.gpus.at(address).is_some();
        gpu.links.iter().filter(|peer| !is_gpu(&peer.address)).map(|peer| peer.links).sum()
    };
    straight.sum::<u32>().saturating_add(switched(one).min(switched(another)))
}

/// Reads where a container's memory is.
pub(crate) type ReadMemory<'a> = dyn FnMut(&mut RunningContainer, &mut Vec<Diagnosis>) + 'a;

/// Only the audits of the pods with GPUs, and diagnoses.
pub(crate) fn audits(
    reading: &Reading,
    read: &mut ReadMemory<'_>,
) -> (Vec<PodAudit>, Vec<Diagnosis>) {
    let (held, mut diagnoses) = holdings(reading);
    let mut audits = Vec::new();
    for pod in &reading.cgroups.pods {
        let own: Vec<Held> =
            held.iter().filter(|(uid, _)| *uid == pod.uid).map(|(_, one)| one.clone()).collect();
        if own.iter().any(|held| held.kind.is_gpu()) {
            audits.extend(pod_report(reading, pod, own, read, &mut diagnoses).audit);
        }
    }
    (audits, diagnoses)
}

fn pod_report(
    reading: &Reading,
    pod: &PodCgroup,
    devices: Vec<Held>,
    read: &mut ReadMemory<'_>,
    diagnoses: &mut Vec<Diagnosis>,
) -> PodReport {
    let has_gpu = devices.iter().any(|held| held.kind.is_gpu());
    let containers = pod.containers.iter().map(|container| {
        let mut running = RunningContainer {
            id: container.id.clone(),
            cpus: container.cpuset.effective_cpus,
            mems: container.cpuset.effective_mems,
            memory: Vec::new(),
            pids: container.pids.clone(),
        };
        if has_gpu {
            read(&mut running, diagnoses);
        }
        running
    });
    let containers: Vec<RunningContainer> = containers.collect();
    let shown = containers.iter().map(|one| ContainerReport {
        id: one.id.clone(),
        cpus: one.cpus.map(|cpus| cpus.to_string()),
        mems: one.mems.map(|mems| mems.to_string()),
        processes: one.pids.len(),
    });
    let shown = shown.collect();
    let held = devices.iter().map(|one| HeldReport {
        container: one.container.clone(),
        resource: one.resource.clone(),
        id: one.id.clone(),
        kind: one.kind,
        numa: one.numa.clone(),
    });
    let held = held.collect();
    let running = RunningPod { uid: pod.uid.clone(), qos: pod.qos, containers, devices };
    let rules = Rules {
        configuration: reading.kubelet.configuration.as_ref(),
        cpus: reading.kubelet.cpus.as_ref(),
    };
    let audit = audit::audit(&reading.machine, rules, &running);
    PodReport { uid: pod.uid.clone(), qos: pod.qos, containers: shown, devices: held, audit }
}

/// Adds up the memory of a container's processes by NUMA node.
pub(crate) fn read_memory(
    root: &Root,
    running: &mut RunningContainer,
    diagnoses: &mut Vec<Diagnosis>,
) {
    for pid in running.pids.iter().take(PROCESSES_MAX) {
        let (process, more) = Process::read(root, *pid, MAPS_BYTES_MAX);
        // The same problem for each process is reported once.
        if let Some(first) = more.into_iter().next()
            && !diagnoses.iter().any(|known| known.what == first.what)
        {
            diagnoses.push(first);
        }
        for more in process.map(|process| process.memory).unwrap_or_default() {
            match running.memory.iter_mut().find(|known| known.node == more.node) {
                Some(known) => known.bytes = known.bytes.saturating_add(more.bytes),
                None => running.memory.push(more),
            }
        }
    }
    running.memory.sort_unstable_by_key(|one| one.node);
}
