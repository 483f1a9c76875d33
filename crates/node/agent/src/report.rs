//! All that is known of one node, put together.
//!
//! Owns how the machine, its devices, its driver, its kubelet and its pods are joined: GPUs by PCI
//! address, devices that pods hold by their ids. Must not print, nor judge: verdicts are the audit's.

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

/// Processes of each container whose memory is looked at, and bytes of what the kernel says of it, which
/// takes the kernel time for every page.
const PROCESSES_MAX: usize = 4;
const MAPS_BYTES_MAX: usize = 256 << 10;

/// What was read of a node, before it is put together.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Processors and memory.
    pub machine: Machine,
    /// Devices.
    pub pci: Pci,
    /// The kubelet's files.
    pub kubelet: KubeletFiles,
    /// Pods.
    pub cgroups: Cgroups,
    /// What the driver says.
    pub gpus: GpuReading,
    /// What could not be read; what the driver refused is in its reading.
    pub diagnoses: Vec<Diagnosis>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Processors and memory in all.
    pub machine: MachineReport,
    /// Versions of the driver.
    pub driver: DriverReport,
    /// NUMA nodes.
    pub numa: Vec<NumaReport>,
    /// GPUs, by address.
    pub gpus: Vec<GpuReport>,
    /// Network cards, by address; without virtual ones.
    pub nics: Vec<NicReport>,
    /// How far each GPU is from other GPUs and from network cards.
    pub distances: Vec<PairReport>,
    /// How the kubelet is set up.
    pub kubelet: Option<Configuration>,
    /// Pods, by UID.
    pub pods: Vec<PodReport>,
    /// What could not be read or believed, and what to do.
    pub diagnoses: Vec<Diagnosis>,
}

/// Processors and memory in all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineReport {
    /// What the processors are called.
    pub processor: Option<String>,
    /// Sockets in use.
    pub sockets: usize,
    /// Physical cores in use.
    pub cores: usize,
    /// The most hardware threads of a core.
    pub threads_per_core: usize,
    /// Groups of cores with an L3 cache of their own.
    pub l3_groups: usize,
    /// CPUs in use.
    pub cpus: String,
    /// CPUs that are there and switched off.
    pub offline_cpus: String,
    /// All memory.
    pub memory_bytes: u64,
}

/// Versions of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverReport {
    /// Of the driver itself.
    pub version: Option<String>,
    /// Of its library.
    pub nvml: Option<String>,
    /// Of the newest CUDA that it can run.
    pub cuda: Option<String>,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaReport {
    /// Its id.
    pub id: u32,
    /// Sockets that it is in.
    pub sockets: Vec<u32>,
    /// Its CPUs.
    pub cpus: String,
    /// How many these are.
    pub cpu_count: usize,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its hugepages.
    pub hugepages: Vec<Hugepages>,
    /// How far other nodes are.
    pub distances: Vec<NodeDistance>,
    /// Addresses of the GPUs on it.
    pub gpus: Vec<String>,
    /// Addresses of the network cards on it.
    pub nics: Vec<String>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuReport {
    /// Its PCI address.
    pub address: String,
    /// Its NUMA node, if it is known.
    pub numa: Option<u32>,
    /// How that is known; `None` where PCI does not have the GPU.
    pub numa_known: Option<DeviceNuma>,
    /// Vendor and device, as PCI tells, such as `10de:2330`.
    pub pci_id: Option<String>,
    /// What the driver says; `None` if it does not know it.
    pub told: Option<DriverGpu>,
    /// UIDs of the pods that hold it or some of it.
    pub pods: Vec<String>,
}

/// A network card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NicReport {
    /// Its PCI address.
    pub address: String,
    /// Its NUMA node, if it is known.
    pub numa: Option<u32>,
    /// Names of its interfaces and RDMA devices.
    pub names: Vec<String>,
}

/// How far a GPU and another device are from each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PairReport {
    /// Address of a GPU.
    pub gpu: String,
    /// Address of a GPU or network card.
    pub other: String,
    /// How far by PCI.
    pub pci: Distance,
    /// How far, as the driver says.
    pub driver: Option<Distance>,
    /// NVLinks between them, through switches too.
    pub nvlinks: u32,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReport {
    /// Its UID.
    pub uid: String,
    /// Its quality of service.
    pub qos: Qos,
    /// Its containers, the one that holds its namespaces included.
    pub containers: Vec<ContainerReport>,
    /// Its devices.
    pub devices: Vec<HeldReport>,
    /// The verdict on it, if it has a GPU.
    pub audit: Option<PodAudit>,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerReport {
    /// Its id.
    pub id: String,
    /// CPUs that it can really use.
    pub cpus: Option<String>,
    /// NUMA nodes that it can really have memory of.
    pub mems: Option<String>,
    /// How many processes it has.
    pub processes: usize,
}

/// A device that a container holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldReport {
    /// Name of the container.
    pub container: String,
    /// Resource.
    pub resource: String,
    /// Id.
    pub id: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Its NUMA nodes, as far as they are known.
    pub numa: Vec<u32>,
}

impl Reading {
    /// Reads all there is below `root`, with what the driver said.
    pub fn read(root: &Root, gpus: GpuReading) -> Self {
        let (machine, mut diagnoses) = Machine::read(root);
        let (pci, more) = Pci::read(root, &machine);
        diagnoses.extend(more);
        let (places, more) = KubeletPaths::of_running(root);
        diagnoses.extend(more);
        let places = places.unwrap_or_else(|| KubeletPaths::detect(root));
        let (kubelet, more) = KubeletFiles::read_at(root, &places);
        diagnoses.extend(more);
        let (cgroups, more) = Cgroups::read(root);
        diagnoses.extend(more);
        Self { machine, pci, kubelet, cgroups, gpus, diagnoses }
    }
}

impl NodeReport {
    /// Reads a node and puts it together.
    pub fn read(root: &Root, gpus: GpuReading) -> Self {
        Self::of(root, Reading::read(root, gpus))
    }

    /// Puts together what was read. The memory of pods with GPUs is looked at below `root`.
    pub fn of(root: &Root, mut reading: Reading) -> Self {
        let mut diagnoses = std::mem::take(&mut reading.diagnoses);
        diagnoses.append(&mut reading.gpus.diagnoses);
        let (held, more) = holdings(&reading);
        diagnoses.extend(more);
        let look = &mut |running: &mut RunningContainer, diagnoses: &mut Vec<Diagnosis>| {
            look_at_memory(root, running, diagnoses);
        };
        let pods: Vec<PodReport> = reading
            .cgroups
            .pods
            .iter()
            .map(|pod| {
                let own =
                    held.iter().filter(|(uid, _)| *uid == pod.uid).map(|(_, one)| one.clone());
                pod_report(&reading, pod, own.collect(), look, &mut diagnoses)
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

    /// The pods with a GPU, and the verdicts on them.
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

/// GPUs that PCI or the driver knows.
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
        let told = reading.gpus.at(&device.address);
        let asked = reading.gpus.driver.is_some() && device.vendor == berth_host::pci::NVIDIA;
        if told.is_none() && asked && !device.is_virtual() {
            let what = match device.driver.as_deref() {
                Some("vfio-pci") => "is given to a virtual machine, so NVML does not know it",
                Some("nvidia") => "is not known to NVML, so nothing can use it",
                _ => "has no driver of NVIDIA's, so NVML does not know it",
            };
            diagnoses.push(Diagnosis {
                path: format!("/sys/bus/pci/devices/{}", device.address),
                what: what.to_owned(),
                remedy: "look at the kernel's log for it (NVRM, XID), and reset it if it hangs"
                    .into(),
            });
        }
        reports.push(GpuReport {
            address: device.address.clone(),
            numa: device.numa.node(),
            numa_known: Some(device.numa.clone()),
            pci_id: Some(format!("{:04x}:{:04x}", device.vendor, device.device)),
            told: told.cloned(),
            pods: pods_of(told),
        });
    }
    for gpu in &reading.gpus.gpus {
        let address = gpu.address.clone().unwrap_or_else(|| format!("nvml/{}", gpu.index));
        if reports.iter().any(|report| report.address == address) {
            continue;
        }
        diagnoses.push(Diagnosis {
            path: format!("/sys/bus/pci/devices/{address}"),
            what: "is known to NVML and not to sysfs, so its NUMA node is unknown".to_owned(),
            remedy: "mount the host's sysfs".to_owned(),
        });
        let pods = pods_of(Some(gpu));
        reports.push(GpuReport { address, told: Some(gpu.clone()), pods, ..GpuReport::default() });
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

/// Links from one GPU straight to the other, and those of both that lead to switches.
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

/// Finds out where a container's memory is.
pub(crate) type Look<'a> = dyn FnMut(&mut RunningContainer, &mut Vec<Diagnosis>) + 'a;

/// The verdicts on the pods with a GPU, and what could not be read; nothing else of a report is made.
pub(crate) fn audits(reading: &Reading, look: &mut Look<'_>) -> (Vec<PodAudit>, Vec<Diagnosis>) {
    let (held, mut diagnoses) = holdings(reading);
    let mut audits = Vec::new();
    for pod in &reading.cgroups.pods {
        let own: Vec<Held> =
            held.iter().filter(|(uid, _)| *uid == pod.uid).map(|(_, one)| one.clone()).collect();
        if own.iter().any(|held| held.kind.is_gpu()) {
            audits.extend(pod_report(reading, pod, own, look, &mut diagnoses).audit);
        }
    }
    (audits, diagnoses)
}

fn pod_report(
    reading: &Reading,
    pod: &PodCgroup,
    devices: Vec<Held>,
    look: &mut Look<'_>,
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
            look(&mut running, diagnoses);
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

/// Looks into the kernel's account of a container's processes.
pub(crate) fn look_at_memory(
    root: &Root,
    running: &mut RunningContainer,
    diagnoses: &mut Vec<Diagnosis>,
) {
    for pid in running.pids.iter().take(PROCESSES_MAX) {
        let (process, more) = Process::read(root, *pid, MAPS_BYTES_MAX);
        // One is enough to say that it may not be read.
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
