//! A virtual node: a real kubelet admission model over a described machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_kubelet::NodeTopology;
use berth_kubelet::{
    Admission, CpuManagerPolicy, Kubelet, KubeletConfig, MemoryManagerPolicy, PodDemand, Rejection,
    TopologyPolicy,
};
use berth_model::alignment::Alignment;
use berth_model::gpu::{self, Gpu, GpuInventory, MigStrategy, WHOLE_GPU};
use berth_model::mig::Board;
use berth_model::node::Node;
use berth_model::numa::NumaMask;
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::ResourceName;
use berth_model::spec::{GpuGrant, GpuNeed, PodSpec};

use crate::experiment::{Division, Isolation, KubeletPolicy, NodeSetup, Setup};
use crate::report::{GpuOutline, GpuPart, NodeOutline, NumaOutline};

/// A node that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node}: {problem}")]
pub struct NodeError {
    pub node: String,
    pub problem: String,
}

/// All of a GPU, in thousandths.
const WHOLE_MILLI: u16 = 1000;

/// Label of nodes on which Berth divides GPUs on demand.
const DIVISION: &str = "berth.dev/gpu-division";

const DOMAIN: &str = "nvidia.com/";

/// The part of a GPU that a device of the plugin is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) gpu: GpuPart,
    pub(crate) memory_bytes: u64,
    numa: NumaMask,
    /// Whether other devices are the same part.
    pub(crate) replica: bool,
}

/// What the kubelet gave a pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    pub(crate) parts: Vec<Part>,
    /// `None` without a GPU.
    pub(crate) alignment: Option<Alignment>,
    /// Share of its requests that cross to another NUMA node.
    pub(crate) crossing: f64,
    /// Pinned CPUs by NUMA node; empty if none are pinned.
    pub(crate) cpus: Vec<usize>,
}

impl Placed {
    /// Thousandths of GPUs.
    pub(crate) fn milli(&self) -> i64 {
        self.parts.iter().map(|part| i64::from(part.gpu.milli)).sum()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct VirtualNode {
    pub(crate) object: Node,
    pub(crate) topology: Arc<NodeTopology>,
    kubelet: Kubelet,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) sharing: Isolation,
    pub(crate) microusd_per_hour: i64,
    /// By the kubelet's device pool and device.
    devices: Vec<Vec<Part>>,
    pub(crate) pods: BTreeSet<u64>,
    /// By GPU.
    pub(crate) allocated_milli: Vec<i64>,
    /// Allocated shares by GPU.
    shares: Vec<u32>,
    /// Requested millicores and bytes.
    pub(crate) used: (i64, i64),
    /// Faults that keep it down now.
    pub(crate) active_faults: u32,
    pub(crate) losses: u64,
    /// Whether it was removed.
    pub(crate) gone: bool,
    /// End of the device plugin's absence.
    pub(crate) plugin_back_ms: i64,
    /// If it was added: its pool, and since when it has been without pods.
    pub(crate) added: Option<(usize, i64)>,
    /// Start of its cost.
    pub(crate) from_ms: i64,
}

impl VirtualNode {
    pub(crate) fn new(described: &NodeSetup, setup: &Setup) -> Result<Self, NodeError> {
        let mut object = described.node.clone();
        let error = |problem: String| NodeError { node: object.name.to_string(), problem };
        let mut gpus = described.gpus.clone();
        let mut naming = described.naming;
        if setup.division == Division::Whole {
            for gpu in &mut gpus {
                (gpu.mig, gpu.replicas) = (None, None);
            }
            naming.mig = MigStrategy::None;
        }
        let inventory = GpuInventory { gpus: gpus.clone(), naming, preferred: described.preferred };
        inventory.pools().map_err(|problem| error(problem.to_string()))?;
        let config = kubelet_config(&described.kubelet, setup.kubelet);
        let machine = described.machine.clone();
        let topology = NodeTopology::with_gpus(machine, config, inventory, Vec::new())
            .map_err(|problem| error(problem.to_string()))?;
        let kubelet = topology.empty_kubelet().clone();
        if !gpus.is_empty() {
            object.allocatable.retain(|name, _| !name.as_str().starts_with(DOMAIN));
            for pool in kubelet.pools() {
                let count = Quantity::from_units(pool.devices.len() as i64, Format::DecimalSi);
                object.allocatable.insert(pool.resource.clone(), count);
            }
        }
        if setup.division == Division::Whole {
            object.labels = object
                .labels
                .iter()
                .filter(|(key, _)| key.as_ref() != DIVISION)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
        }
        let part = |id: &str, numa| part_of(&gpus, id, numa);
        let devices = kubelet
            .pools()
            .map(|pool| pool.devices.iter().map(|device| part(&device.id, device.numa)).collect())
            .collect();
        Ok(Self {
            topology: Arc::new(topology),
            devices,
            pods: BTreeSet::new(),
            allocated_milli: vec![0; gpus.len()],
            shares: vec![0; gpus.len()],
            used: (0, 0),
            gpus,
            sharing: described.sharing,
            microusd_per_hour: described.microusd_per_hour,
            active_faults: 0,
            losses: 0,
            gone: false,
            plugin_back_ms: 0,
            added: None,
            from_ms: 0,
            kubelet,
            object,
        })
    }

    pub(crate) fn admit(
        &mut self,
        uid: &str,
        spec: &PodSpec,
        grant: Option<&GpuGrant>,
        demand: &PodDemand,
    ) -> Result<Placed, Rejection> {
        let admission = self.kubelet.admit(uid, demand)?;
        let mut placed = self.placed(&admission);
        if let (Some(GpuGrant { resource, gpu: Some(number) }), Some(need)) = (grant, &spec.gpu)
            && let Some(part) = self.share(resource, usize::from(*number), need)
        {
            placed.parts.push(part);
            self.set_alignment(&mut placed, &admission);
        }
        for part in &placed.parts {
            if let Some(allocated) = self.allocated_milli.get_mut(part.gpu.gpu) {
                *allocated += i64::from(part.gpu.milli);
            }
        }
        let requests = spec.pod.total_requests(self.kubelet.config().version.pod_level_resources());
        let (cpu, memory) = cpu_and_memory(&requests);
        self.used = (self.used.0 + cpu, self.used.1 + memory);
        Ok(placed)
    }

    pub(crate) fn remove(&mut self, uid: &str, spec: &PodSpec, placed: &Placed, is_share: bool) {
        self.kubelet.remove(uid);
        for part in &placed.parts {
            if let Some(allocated) = self.allocated_milli.get_mut(part.gpu.gpu) {
                *allocated -= i64::from(part.gpu.milli);
            }
            if is_share {
                self.unshare(part.gpu.gpu);
            }
        }
        let requests = spec.pod.total_requests(self.kubelet.config().version.pod_level_resources());
        let (cpu, memory) = cpu_and_memory(&requests);
        self.used = (self.used.0 - cpu, self.used.1 - memory);
    }

    pub(crate) fn version(&self) -> berth_kubelet::KubeletVersion {
        self.kubelet.config().version
    }

    /// Allocates a share of a GPU that is divided on demand. It is no longer offered whole.
    fn share(&mut self, resource: &ResourceName, device: usize, need: &GpuNeed) -> Option<Part> {
        let pool = self.kubelet.pool_of(resource.as_str())?;
        let whole = *self.devices.get(pool)?.get(device)?;
        let by_memory = |bytes: u64| {
            (u128::from(bytes) * 1000).div_ceil(u128::from(whole.memory_bytes.max(1))) as u16
        };
        let milli = need.compute_milli.max(by_memory(need.memory_bytes)).min(WHOLE_MILLI);
        let memory_bytes = match need.memory_bytes {
            0 => whole.memory_bytes * u64::from(milli) / u64::from(WHOLE_MILLI),
            bytes => bytes,
        };
        let shares = self.shares.get_mut(whole.gpu.gpu)?;
        *shares += 1;
        if *shares == 1 {
            self.kubelet.set_device_health(pool, device, false);
        }
        let gpu = GpuPart { units: 0, milli, ..whole.gpu };
        Some(Part { gpu, memory_bytes, replica: true, ..whole })
    }

    fn unshare(&mut self, gpu: usize) {
        let Some(shares) = self.shares.get_mut(gpu) else { return };
        *shares = shares.saturating_sub(1);
        if *shares > 0 {
            return;
        }
        for (pool, devices) in self.devices.iter().enumerate() {
            for (device, part) in devices.iter().enumerate() {
                if part.gpu.gpu == gpu {
                    self.kubelet.set_device_health(pool, device, true);
                }
            }
        }
    }

    fn placed(&self, admission: &Admission) -> Placed {
        let mut placed = Placed::default();
        for allocated in admission.containers.iter().flat_map(|container| &container.devices) {
            let Some(devices) = self.devices.get(allocated.pool) else { continue };
            placed.parts.extend(allocated.devices.iter().filter_map(|device| devices.get(device)));
        }
        self.set_alignment(&mut placed, admission);
        placed
    }

    fn set_alignment(&self, placed: &mut Placed, admission: &Admission) {
        let machine = self.kubelet.machine();
        let near = placed.parts.iter().fold(NumaMask::EMPTY, |all, part| all | part.numa);
        let all_cpus: usize = machine.numa().iter().map(|numa| numa.cpus.len()).sum();
        let mut by_numa = vec![0; machine.numa().len()];
        let mut memory = NumaMask::EMPTY;
        for container in &admission.containers {
            for (at, numa) in machine.numa().iter().enumerate() {
                by_numa[at] += container.cpus.map_or(0, |cpus| (cpus & numa.cpus).len());
            }
            memory = container.memory.iter().fold(memory, |all, block| all | block.numa);
        }
        let pinned: usize = by_numa.iter().sum();
        let on = |near: NumaMask, counts: &[usize]| -> usize {
            counts
                .iter()
                .enumerate()
                .filter(|(at, _)| near.contains(*at))
                .map(|(_, count)| count)
                .sum()
        };
        let (alignment, crossing) = if placed.parts.is_empty() || near.is_empty() {
            (None, 0.0)
        } else if machine.numa().len() == 1 {
            (Some(Alignment::Aligned), 0.0)
        } else if pinned == 0 {
            let counts: Vec<usize> = machine.numa().iter().map(|numa| numa.cpus.len()).collect();
            (Some(Alignment::Floating), 1.0 - on(near, &counts) as f64 / all_cpus.max(1) as f64)
        } else {
            let off = 1.0 - on(near, &by_numa) as f64 / pinned as f64;
            let off = if memory.is_subset(near) { off } else { off.max(0.5) };
            let alignment = if off > 0.0 { Alignment::Misaligned } else { Alignment::Aligned };
            (Some(alignment), off)
        };
        placed.cpus = if pinned > 0 { by_numa } else { Vec::new() };
        (placed.alignment, placed.crossing) = (alignment, crossing);
    }

    pub(crate) fn outline(&self, pool: &str, zone: &str) -> NodeOutline {
        let machine = self.kubelet.machine();
        let socket = |cpu: Option<usize>| {
            let holds = |group: &berth_model::machine::CpuGroup| {
                cpu.is_some_and(|cpu| group.cpus.contains(cpu))
            };
            machine.sockets().iter().position(holds).unwrap_or(0)
        };
        NodeOutline {
            name: self.object.name.to_string(),
            pool: pool.to_owned(),
            zone: zone.to_owned(),
            numa: machine
                .numa()
                .iter()
                .map(|numa| NumaOutline {
                    socket: socket(numa.cpus.iter().next()),
                    cpus: numa.cpus.len(),
                    memory_bytes: numa.memory_bytes,
                })
                .collect(),
            gpus: self
                .gpus
                .iter()
                .map(|gpu| GpuOutline {
                    product: gpu.product.clone(),
                    numa: gpu.numa.iter().collect(),
                    memory_bytes: gpu.memory_bytes,
                    units: units(gpu),
                })
                .collect(),
            microusd_per_hour: self.microusd_per_hour,
        }
    }

    /// Whether such a pod fits; on one NUMA node if the kubelet insists on that.
    pub(crate) fn has_room(&self, request: &GpuRequest) -> bool {
        let (cpu, memory) = cpu_and_memory(&self.object.allocatable);
        if self.used.0 + request.cpu_milli > cpu || self.used.1 + request.memory_bytes > memory {
            return false;
        }
        let Some(pool) =
            request.resource.as_ref().and_then(|name| self.kubelet.pool_of(name.as_str()))
        else {
            let part = |(allocated, _): &(&i64, &Gpu)| {
                **allocated + request.part_milli <= i64::from(WHOLE_MILLI)
            };
            return request.part_milli > 0
                && self.allocated_milli.iter().zip(&self.gpus).any(|one| part(&one));
        };
        let free: Vec<(NumaMask, usize)> = self.kubelet.free_by_numa(pool).collect();
        let strict = self.kubelet.config().topology_policy.is_strict();
        let together: usize = free.iter().map(|(_, count)| count).sum();
        let all: usize = self.kubelet.pools().nth(pool).map_or(0, |pool| pool.devices.len());
        let most = free.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let local = strict && request.count <= all / self.kubelet.machine().numa().len().max(1);
        request.count <= if local { most } else { together }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.active_faults == 0 && !self.gone
    }

    pub(crate) fn free_milli(&self) -> i64 {
        self.gpus.len() as i64 * i64::from(WHOLE_MILLI) - self.allocated_milli.iter().sum::<i64>()
    }

    /// Memory and thousandths of a GPU of each resource that the plugin offers.
    pub(crate) fn offers(&self) -> BTreeMap<ResourceName, (u64, u16)> {
        let pools = self.kubelet.pools().zip(&self.devices);
        pools
            .filter_map(|(pool, devices)| {
                let least = devices.iter().min_by_key(|part| part.memory_bytes)?;
                Some((pool.resource.clone(), (least.memory_bytes, least.gpu.milli)))
            })
            .collect()
    }
}

/// The requests that decide whether a pod can use free GPUs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GpuRequest {
    pub(crate) cpu_milli: i64,
    pub(crate) memory_bytes: i64,
    /// A device resource, with `count`.
    pub(crate) resource: Option<ResourceName>,
    pub(crate) count: usize,
    /// Otherwise thousandths of a GPU.
    pub(crate) part_milli: i64,
}

impl GpuRequest {
    /// `None` if the pod requests no GPU.
    pub(crate) fn of(spec: &PodSpec) -> Option<Self> {
        let requests =
            spec.pod.total_requests(berth_kubelet::KubeletVersion::default().pod_level_resources());
        let (cpu_milli, memory_bytes) = cpu_and_memory(&requests);
        let device = requests.iter().find(|(name, _)| name.as_str().starts_with(DOMAIN));
        let part_milli = spec.gpu.map_or(0, |need| i64::from(need.compute_milli.max(1)));
        if device.is_none() && part_milli == 0 {
            return None;
        }
        let count = device.map_or(0, |(_, count)| usize::try_from(count.value()).unwrap_or(0));
        let resource = device.map(|(name, _)| name.clone());
        Some(Self { cpu_milli, memory_bytes, resource, count, part_milli })
    }
}

fn cpu_and_memory(requests: &berth_model::resource::ResourceList) -> (i64, i64) {
    let cpu = requests.get(&ResourceName::cpu()).map_or(0, |cpu| cpu.milli_value());
    let memory = requests.get(&ResourceName::memory()).map_or(0, |memory| memory.value());
    (cpu, memory)
}

fn units(gpu: &Gpu) -> u8 {
    let board = Board::by_product(&gpu.product, None).ok();
    board.and_then(|board| board.memory_units()).unwrap_or(1)
}

fn kubelet_config(described: &KubeletConfig, policy: KubeletPolicy) -> KubeletConfig {
    match policy {
        KubeletPolicy::AsDescribed => described.clone(),
        KubeletPolicy::Topology(topology_policy) => {
            KubeletConfig { topology_policy, ..described.clone() }
        }
        KubeletPolicy::Defaults => KubeletConfig {
            topology_policy: TopologyPolicy::None,
            cpu_manager: CpuManagerPolicy::None,
            memory_manager: MemoryManagerPolicy::None,
            ..described.clone()
        },
    }
}

fn part_of(gpus: &[Gpu], id: &str, numa: NumaMask) -> Part {
    let known = gpu::part_of(gpus, id);
    let Some((part, gpu)) = known.and_then(|part| Some((part, gpus.get(part.gpu)?))) else {
        let gpu = GpuPart { milli: WHOLE_MILLI, units: 1, ..GpuPart::default() };
        return Part { gpu, memory_bytes: 0, numa, replica: false };
    };
    let (first, units, memory_bytes) = match part.slice {
        Some(slice) => {
            let units = slice.profile.memory_units().unwrap_or(1);
            (slice.start, units, slice.profile.memory_bytes())
        }
        None => (0, units(gpu), gpu.memory_bytes),
    };
    let milli = u16::try_from(part.milli).unwrap_or(WHOLE_MILLI);
    let memory_bytes = memory_bytes / u64::from(part.replicas);
    let gpu = GpuPart { gpu: part.gpu, first, units, milli };
    Part { gpu, memory_bytes, numa, replica: part.replicas > 1 }
}

/// The template for a setup with whole GPUs only: a whole GPU for each share or slice.
pub(crate) fn as_whole(spec: &PodSpec) -> PodSpec {
    let mut spec = spec.clone();
    if spec.gpu.take().is_some() {
        spec.pod = spec.pod.with_device(&ResourceName::new(WHOLE_GPU));
    }
    for container in &mut spec.pod.containers {
        let resources = &mut container.resources;
        for list in [&mut resources.requests, &mut resources.limits] {
            let is_part = |name: &ResourceName| {
                let name = name.as_str().strip_prefix(DOMAIN).unwrap_or_default();
                name.starts_with("mig-") || name.ends_with(".shared")
            };
            let parts: Vec<ResourceName> =
                list.keys().filter(|name| is_part(name)).cloned().collect();
            for part in parts {
                if let Some(count) = list.remove(&part) {
                    list.insert(ResourceName::new(WHOLE_GPU), count);
                }
            }
        }
    }
    spec
}

/// The template for a scheduler that does not know `berth.dev/gpu-memory`: the smallest sufficient
/// resource that any node offers, else a whole GPU.
pub(crate) fn by_hand(spec: &PodSpec, offers: &BTreeMap<ResourceName, (u64, u16)>) -> PodSpec {
    let Some(need) = spec.gpu else { return spec.clone() };
    let enough = |(_, (memory, milli)): &(&ResourceName, &(u64, u16))| {
        *memory >= need.memory_bytes && *milli >= need.compute_milli
    };
    let least = offers.iter().filter(enough).min_by_key(|(name, offer)| (**offer, (*name).clone()));
    let resource = least.map_or_else(|| ResourceName::new(WHOLE_GPU), |(name, _)| name.clone());
    PodSpec { pod: spec.pod.with_device(&resource), gpu: None, ..spec.clone() }
}
