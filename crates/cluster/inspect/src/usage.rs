//! How much of a node's GPUs is allocated, free and stranded.

use std::collections::BTreeMap;

use berth_kubelet::KubeletVersion;
use berth_model::gpu::part_of;
use berth_model::node::Node;
use berth_model::resource::{ResourceList, ResourceName};
use berth_model::spec::{GpuGrant, PodSpec};
use berth_topology::Inside;
use serde::Serialize;

/// A whole GPU.
pub const WHOLE_MILLI: u64 = 1000;

/// Without a CPU and a GiB of memory to go with it, a free GPU is of no use.
const CPU_MILLI_MIN: i64 = 1000;
const MEMORY_BYTES_MIN: i64 = 1 << 30;

/// GPUs in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuUse {
    pub allocated_milli: u64,
    pub free_milli: u64,
    /// Free, but unusable: without a CPU and a GiB of memory to go with it, or in no slice.
    pub stranded_milli: u64,
    /// Free, but on a cordoned node.
    pub cordoned_milli: u64,
}

impl std::ops::AddAssign for GpuUse {
    fn add_assign(&mut self, other: Self) {
        self.allocated_milli += other.allocated_milli;
        self.free_milli += other.free_milli;
        self.stranded_milli += other.stranded_milli;
        self.cordoned_milli += other.cordoned_milli;
    }
}

/// A node's resources, of which pods take.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    pub gpus: usize,
    /// What one of a resource is, in thousandths of a GPU.
    parts_milli: BTreeMap<ResourceName, u64>,
    gpu_memory_bytes: u64,
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    used_cpu_milli: i64,
    used_memory_bytes: i64,
    used_gpu_milli: u64,
    /// Of MIG GPUs, what is in no slice.
    unsliced_milli: u64,
    is_cordoned: bool,
}

impl Usage {
    /// The node without pods.
    pub fn new(node: &Node, inside: &Inside) -> Self {
        let mut parts_milli = BTreeMap::new();
        for pool in inside.devices().unwrap_or_default() {
            let parts = pool.devices.iter().filter_map(|device| part_of(&inside.gpus, &device.id));
            if let Some(milli) = parts.map(|part| u64::from(part.milli)).min() {
                parts_milli.insert(pool.resource, milli);
            }
        }
        let unsliced = inside.gpus.iter().filter_map(|gpu| gpu.mig.as_ref()).map(|layout| {
            let in_slices: u64 = layout
                .shares()
                .slices()
                .map(|(_, share)| u64::from(share.parts) * WHOLE_MILLI / u64::from(share.of.max(1)))
                .sum();
            WHOLE_MILLI.saturating_sub(in_slices)
        });
        let (cpu_milli, memory_bytes) = cpu_and_memory(&node.allocatable);
        Self {
            gpus: inside.gpus.len(),
            parts_milli,
            gpu_memory_bytes: inside.gpus.first().map_or(0, |gpu| gpu.memory_bytes),
            cpu_milli,
            memory_bytes,
            used_cpu_milli: 0,
            used_memory_bytes: 0,
            used_gpu_milli: 0,
            unsliced_milli: unsliced.sum(),
            is_cordoned: node.unschedulable,
        }
    }

    /// GPUs that a pod takes here, in thousandths.
    pub fn gpu_milli(&self, spec: &PodSpec, grant: Option<&GpuGrant>) -> u64 {
        let requested: u64 = requests(spec)
            .iter()
            .filter_map(|(name, count)| {
                let part = self.parts_milli.get(name)?;
                Some(u64::try_from(count.value()).unwrap_or(0) * part)
            })
            .sum();
        let granted = match (grant, spec.gpu) {
            (Some(GpuGrant { resource, gpu: None }), _) => {
                self.parts_milli.get(resource).copied().unwrap_or(0)
            }
            (Some(_), Some(need)) => {
                let by_memory = (need.memory_bytes.saturating_mul(WHOLE_MILLI))
                    .checked_div(self.gpu_memory_bytes)
                    .unwrap_or(0);
                by_memory.max(u64::from(need.compute_milli)).min(WHOLE_MILLI)
            }
            _ => 0,
        };
        requested + granted
    }

    pub fn add(&mut self, spec: &PodSpec, grant: Option<&GpuGrant>) {
        let (cpu, memory) = cpu_and_memory(&requests(spec));
        self.used_cpu_milli = self.used_cpu_milli.saturating_add(cpu);
        self.used_memory_bytes = self.used_memory_bytes.saturating_add(memory);
        self.used_gpu_milli += self.gpu_milli(spec, grant);
    }

    pub fn gpu_use(&self) -> GpuUse {
        let all = self.gpus as u64 * WHOLE_MILLI;
        let allocated_milli = self.used_gpu_milli.min(all);
        let rest = all - allocated_milli;
        let gpus = |free: i64, each: i64| {
            u64::try_from(free.max(0) / each).unwrap_or(0).saturating_mul(WHOLE_MILLI)
        };
        let by_cpu = gpus(self.cpu_milli - self.used_cpu_milli, CPU_MILLI_MIN);
        let by_memory = gpus(self.memory_bytes - self.used_memory_bytes, MEMORY_BYTES_MIN);
        let usable = rest.saturating_sub(self.unsliced_milli).min(by_cpu.min(by_memory));
        let (free_milli, cordoned_milli) = if self.is_cordoned { (0, usable) } else { (usable, 0) };
        GpuUse { allocated_milli, free_milli, stranded_milli: rest - usable, cordoned_milli }
    }
}

pub fn requests(spec: &PodSpec) -> ResourceList {
    spec.pod.total_requests(KubeletVersion::default().pod_level_resources())
}

/// In milli-CPUs and bytes.
pub fn cpu_and_memory(list: &ResourceList) -> (i64, i64) {
    let cpu = list.get(&ResourceName::cpu()).map_or(0, |cpu| cpu.milli_value());
    (cpu, list.get(&ResourceName::memory()).map_or(0, |memory| memory.value()))
}
