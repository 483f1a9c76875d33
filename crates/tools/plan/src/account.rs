//! What pods take of nodes, and what that costs.
//!
//! Owns the arithmetic of GPUs by pool and of money by pod. A pod pays for its parts of a node's GPUs;
//! on nodes without GPUs, for the larger of its shares of CPU and memory. Must not know where pods go.

use std::collections::BTreeMap;

use berth_kubelet::KubeletVersion;
use berth_model::gpu::part_of;
use berth_model::resource::{ResourceList, ResourceName};
use berth_model::spec::{GpuGrant, PodSpec};
use berth_scenario::cluster::{Cluster, ClusterNode, Prices};

use crate::report::{GpuUse, PoolUse};

const WHOLE_MILLI: u64 = 1000;

/// What a free GPU needs to be of any use.
const LEAST_CPU_MILLI: i64 = 1000;
const LEAST_MEMORY_BYTES: i64 = 1 << 30;

/// What figures rest on, in words.
pub(crate) fn basis(prices: &Prices) -> Vec<String> {
    vec![
        format!("prices: {}", prices.source),
        format!("a month has {} hours; jobs cost this while they run", prices.hours_per_month),
        "a pod pays for its parts of the node's GPUs; on nodes without GPUs for the larger of its \
         shares of CPU and memory; without a GPU on a node with GPUs nothing, since those bear the \
         node's price"
            .to_owned(),
    ]
}

/// A node as far as accounts go.
pub(crate) struct Ledger {
    gpus: usize,
    /// What one of a resource is, in thousandths of a GPU.
    parts_milli: BTreeMap<ResourceName, u64>,
    memory_bytes: u64,
    cpu_milli: i64,
    memory: i64,
    pub(crate) price: Option<i64>,
    used_cpu_milli: i64,
    used_memory: i64,
    used_milli: u64,
    /// In no slice.
    undivided_milli: u64,
    cordoned: bool,
    pool: String,
    product: String,
}

impl Ledger {
    pub(crate) fn new(node: &ClusterNode, prices: &Prices) -> Self {
        let mut parts_milli = BTreeMap::new();
        for pool in node.inside.devices().unwrap_or_default() {
            let least =
                pool.devices.iter().filter_map(|device| part_of(&node.inside.gpus, &device.id));
            if let Some(milli) = least.map(|part| u64::from(part.milli)).min() {
                parts_milli.insert(pool.resource, milli);
            }
        }
        let sliced = node.inside.gpus.iter().filter_map(|gpu| gpu.mig.as_ref()).map(|layout| {
            let in_slices: u64 = layout
                .shares()
                .slices()
                .map(|(_, share)| u64::from(share.parts) * WHOLE_MILLI / u64::from(share.of.max(1)))
                .sum();
            WHOLE_MILLI.saturating_sub(in_slices)
        });
        let (cpu_milli, memory) = cpu_and_memory(&node.node.allocatable);
        Self {
            gpus: node.inside.gpus.len(),
            parts_milli,
            memory_bytes: node.inside.gpus.first().map_or(0, |gpu| gpu.memory_bytes),
            cpu_milli,
            memory,
            price: prices.node(&node.node, &node.inside.gpus, node.stated_microusd_per_hour),
            used_cpu_milli: 0,
            used_memory: 0,
            used_milli: 0,
            undivided_milli: sliced.sum(),
            cordoned: node.node.unschedulable,
            pool: node.pool().to_owned(),
            product: node.inside.gpus.first().map_or_else(String::new, |gpu| gpu.product.clone()),
        }
    }

    /// Parts of GPUs that a pod takes here.
    pub(crate) fn gpu_milli(&self, spec: &PodSpec, grant: Option<&GpuGrant>) -> u64 {
        let requests = requests(spec);
        let asked: u64 = requests
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
                    .checked_div(self.memory_bytes)
                    .unwrap_or(0);
                by_memory.max(u64::from(need.compute_milli)).min(WHOLE_MILLI)
            }
            _ => 0,
        };
        asked + granted
    }

    /// What a pod's part of the node costs a month.
    pub(crate) fn monthly(&self, spec: &PodSpec, gpu_milli: u64, prices: &Prices) -> Option<i64> {
        let month = i128::from(self.price?) * i128::from(prices.hours_per_month);
        let share = |part: i128, all: i128| month.checked_mul(part)?.checked_div(all);
        let amount = if self.gpus > 0 {
            share(i128::from(gpu_milli), self.gpus as i128 * i128::from(WHOLE_MILLI))?
        } else {
            let (cpu, memory) = cpu_and_memory(&requests(spec));
            let of_cpu = share(i128::from(cpu), i128::from(self.cpu_milli)).unwrap_or(0);
            of_cpu.max(share(i128::from(memory), i128::from(self.memory)).unwrap_or(0))
        };
        i64::try_from(amount).ok()
    }

    /// A pod is there.
    pub(crate) fn take(&mut self, spec: &PodSpec, grant: Option<&GpuGrant>) {
        let (cpu, memory) = cpu_and_memory(&requests(spec));
        self.used_cpu_milli = self.used_cpu_milli.saturating_add(cpu);
        self.used_memory = self.used_memory.saturating_add(memory);
        self.used_milli += self.gpu_milli(spec, grant);
    }

    pub(crate) fn gpu_use(&self) -> GpuUse {
        let all = self.gpus as u64 * WHOLE_MILLI;
        let allocated_milli = self.used_milli.min(all);
        let rest = all - allocated_milli;
        let usable = if self.cordoned {
            0
        } else {
            let gpus = |free: i64, each: i64| {
                u64::try_from(free.max(0) / each).unwrap_or(0).saturating_mul(WHOLE_MILLI)
            };
            let by_cpu = gpus(self.cpu_milli - self.used_cpu_milli, LEAST_CPU_MILLI);
            let by_memory = gpus(self.memory - self.used_memory, LEAST_MEMORY_BYTES);
            by_cpu.min(by_memory)
        };
        let free_milli = rest.saturating_sub(self.undivided_milli).min(usable);
        GpuUse { allocated_milli, free_milli, stranded_milli: rest - free_milli }
    }
}

fn requests(spec: &PodSpec) -> ResourceList {
    spec.pod.total_requests(KubeletVersion::default().pod_level_resources())
}

fn cpu_and_memory(list: &ResourceList) -> (i64, i64) {
    let cpu = list.get(&ResourceName::cpu()).map_or(0, |cpu| cpu.milli_value());
    (cpu, list.get(&ResourceName::memory()).map_or(0, |memory| memory.value()))
}

/// Ledgers of all nodes, by name.
pub(crate) type Ledgers = BTreeMap<String, Ledger>;

pub(crate) fn ledgers(cluster: &Cluster, prices: &Prices) -> Ledgers {
    let nodes = cluster.nodes.iter();
    nodes.map(|node| (node.node.name.to_string(), Ledger::new(node, prices))).collect()
}

/// GPUs by pool, as they are now.
pub(crate) fn uses(ledgers: &Ledgers) -> BTreeMap<String, (PoolUse, GpuUse)> {
    let mut pools: BTreeMap<String, (PoolUse, GpuUse)> = BTreeMap::new();
    for ledger in ledgers.values().filter(|ledger| ledger.gpus > 0) {
        let (pool, sum) = pools.entry(ledger.pool.clone()).or_default();
        pool.pool.clone_from(&ledger.pool);
        *pool.products.entry(ledger.product.clone()).or_default() += 1;
        pool.nodes += 1;
        pool.gpus += ledger.gpus;
        let of_node = ledger.gpu_use();
        sum.allocated_milli += of_node.allocated_milli;
        sum.free_milli += of_node.free_milli;
        sum.stranded_milli += of_node.stranded_milli;
    }
    pools
}
