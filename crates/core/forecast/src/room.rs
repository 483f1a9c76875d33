//! What a node has left, by requests and parts of GPUs.
//!
//! NUMA nodes, affinity between pods, spreading and volumes are left out: forecasts are too early
//! where these exclude nodes, and only calibration corrects that.

use std::collections::BTreeMap;

use berth_engine::node_rules::{GpuPart, gpu_parts, share_of};
use berth_model::node::Node;
use berth_model::pod::PodLevelResources;
use berth_model::resource::{ResourceList, ResourceName};
use berth_model::spec::{GpuGrant, GpuNeed, PodSpec};
use smallvec::SmallVec;

/// All of a GPU's compute, in thousandths.
const WHOLE_MILLI: u32 = 1000;

/// Larger counts are ignored.
const GPUS_MAX: i64 = 1024;

const PODS: &str = "pods";

#[derive(Clone, Debug, Default)]
pub(crate) struct Resources {
    numbers: BTreeMap<ResourceName, usize>,
}

impl Resources {
    fn number(&mut self, name: &ResourceName) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry(name.clone()).or_insert(next)
    }

    fn amounts(&mut self, list: &ResourceList) -> SmallVec<[(usize, i64); 4]> {
        let amount = |(name, quantity): (&ResourceName, &berth_model::quantity::Quantity)| {
            let milli = name.as_str() == "cpu";
            let amount = if milli { quantity.milli_value() } else { quantity.value() };
            (self.number(name), amount.max(0))
        };
        list.iter().map(amount).collect()
    }

    pub(crate) fn ask(&mut self, spec: &PodSpec) -> Ask {
        let requests = spec.pod.total_requests(PodLevelResources::HonouredIfEmptyToo);
        let mut amounts = self.amounts(&requests);
        amounts.retain(|(_, amount)| *amount > 0);
        amounts.insert(0, (self.number(&ResourceName::new(PODS)), 1));
        Ask { amounts, gpu: spec.gpu }
    }

    pub(crate) fn room(&mut self, node: &Node) -> Room {
        let mut free = SmallVec::new();
        for (number, amount) in self.amounts(&node.allocatable) {
            *at_mut(&mut free, number) = amount;
        }
        let mut parts = Parts::new();
        let mut gpus = SmallVec::new();
        for part in gpu_parts(node) {
            let GpuPart { memory_bytes, compute_milli, divisible, .. } = part;
            let resource = self.number(&part.resource);
            if divisible && gpus.is_empty() {
                let count = at(&free, resource).clamp(0, GPUS_MAX) as usize;
                gpus.resize(
                    count,
                    SharedGpuRoom { compute_milli: WHOLE_MILLI, memory_bytes, shares: 0 },
                );
            }
            parts.push(Part { resource, memory_bytes, compute_milli, divisible });
        }
        Room { free, gpus, parts }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ask {
    amounts: SmallVec<[(usize, i64); 4]>,
    gpu: Option<GpuNeed>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    resource: usize,
    memory_bytes: u64,
    compute_milli: u16,
    divisible: bool,
}

type Parts = SmallVec<[Part; 1]>;

/// The remainder of a GPU that is split on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SharedGpuRoom {
    compute_milli: u32,
    memory_bytes: u64,
    shares: u16,
}

#[derive(Clone, Debug)]
pub(crate) struct Room {
    free: SmallVec<[i64; 6]>,
    gpus: SmallVec<[SharedGpuRoom; 8]>,
    parts: Parts,
}

/// What a pod was allocated for its GPU need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allocation {
    None,
    Unit(usize),
    /// GPU number, compute in thousandths and memory.
    Share(usize, u32, u64),
}

fn at(free: &[i64], number: usize) -> i64 {
    free.get(number).copied().unwrap_or(0)
}

fn at_mut(free: &mut SmallVec<[i64; 6]>, number: usize) -> &mut i64 {
    if number >= free.len() {
        free.resize(number + 1, 0);
    }
    &mut free[number]
}

impl Room {
    pub(crate) fn none() -> Self {
        Self { free: SmallVec::new(), gpus: SmallVec::new(), parts: Parts::new() }
    }

    /// What a pod would get here, if it fits.
    pub(crate) fn fits(&self, ask: &Ask) -> Option<Allocation> {
        // Last first: devices are scarcer than CPUs, and follow them by name.
        if ask.amounts.iter().rev().any(|(number, amount)| *amount > at(&self.free, *number)) {
            return None;
        }
        let Some(need) = &ask.gpu else { return Some(Allocation::None) };
        self.parts.iter().find_map(|part| {
            if part.divisible {
                let (compute_milli, memory_bytes) = part.share(need);
                let roomy = (0..).zip(&self.gpus).filter(|(_, gpu)| {
                    gpu.compute_milli >= compute_milli && gpu.memory_bytes >= memory_bytes
                });
                // The fullest GPU. Whole ones may all be taken as whole ones.
                let whole = at(&self.free, part.resource) > 0;
                let fullest = roomy
                    .filter(|(_, gpu)| gpu.shares > 0 || whole)
                    .min_by_key(|(_, gpu)| gpu.compute_milli);
                return fullest.map(|(gpu, _)| Allocation::Share(gpu, compute_milli, memory_bytes));
            }
            let enough =
                part.memory_bytes >= need.memory_bytes && part.compute_milli >= need.compute_milli;
            let left = enough && at(&self.free, part.resource) > 0;
            left.then_some(Allocation::Unit(part.resource))
        })
    }

    /// A recorded grant, in terms of this node.
    pub(crate) fn granted(
        &self,
        ask: &Ask,
        grant: Option<&GpuGrant>,
        resources: &mut Resources,
    ) -> Allocation {
        let (Some(need), Some(grant)) = (&ask.gpu, grant) else {
            return self.fits(ask).unwrap_or(Allocation::None);
        };
        let resource = resources.number(&grant.resource);
        let part = self.parts.iter().find(|part| part.resource == resource);
        match (grant.gpu, part) {
            (Some(gpu), Some(part)) => {
                let (compute_milli, memory_bytes) = part.share(need);
                Allocation::Share(usize::from(gpu), compute_milli, memory_bytes)
            }
            _ => Allocation::Unit(resource),
        }
    }

    /// Takes a pod's room (`sign` 1) or returns it (-1).
    pub(crate) fn take(&mut self, ask: &Ask, allocation: Allocation, sign: i64) {
        for (number, amount) in &ask.amounts {
            *at_mut(&mut self.free, *number) -= sign * amount;
        }
        match allocation {
            Allocation::None => {}
            Allocation::Unit(resource) => *at_mut(&mut self.free, resource) -= sign,
            Allocation::Share(number, compute_milli, memory_bytes) => {
                let whole = self.parts.iter().find(|part| part.divisible).map(|part| part.resource);
                let Some(gpu) = self.gpus.get_mut(number) else { return };
                let was_divided = gpu.shares > 0;
                if sign > 0 {
                    gpu.shares = gpu.shares.saturating_add(1);
                    gpu.compute_milli = gpu.compute_milli.saturating_sub(compute_milli);
                    gpu.memory_bytes = gpu.memory_bytes.saturating_sub(memory_bytes);
                } else {
                    gpu.shares = gpu.shares.saturating_sub(1);
                    gpu.compute_milli = (gpu.compute_milli + compute_milli).min(WHOLE_MILLI);
                    gpu.memory_bytes = gpu.memory_bytes.saturating_add(memory_bytes);
                }
                let divided = i64::from(gpu.shares > 0) - i64::from(was_divided);
                if let Some(whole) = whole {
                    *at_mut(&mut self.free, whole) -= divided;
                }
            }
        }
    }

    /// The amount left, by which packing chooses the fullest node.
    pub(crate) fn spare(&self) -> i64 {
        let divided = self.gpus.iter().filter(|gpu| gpu.shares > 0);
        let shares: u32 = divided.map(|gpu| gpu.compute_milli).sum();
        let whole = self.parts.iter().map(|part| at(&self.free, part.resource)).sum::<i64>();
        whole.saturating_mul(WHOLE_MILLI.into()).saturating_add(shares.into())
    }
}

impl Part {
    fn share(&self, need: &GpuNeed) -> (u32, u64) {
        let (compute_milli, memory_bytes) = share_of(need, self.memory_bytes);
        (compute_milli.into(), memory_bytes)
    }
}
