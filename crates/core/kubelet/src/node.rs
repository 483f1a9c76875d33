//! One node's kubelet: its configuration, allocations and free resources. Admission is in
//! [`attempt`](crate::attempt).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::device::DevicePool;
use berth_model::idset::{CpuSet, DeviceSet};
use berth_model::machine::Machine;
use berth_model::numa::NumaMask;
use berth_model::pod::{ContainerKind, Pod, PodError};
use berth_model::resource::MemoryKind;
use smallvec::SmallVec;
use thiserror::Error;

use crate::attempt::Attempt;
use crate::config::{
    ConfigError, CpuManagerPolicy, KubeletConfig, MemoryManagerPolicy, TopologyPolicy,
};
use crate::cpu::{CpuLedger, StaticCpus};
use crate::demand::PodDemand;
use crate::device::{AnyDevice, NumaPool, PoolLedger};
use crate::hint::Hint;
use crate::memory::{MemoryLedger, StaticMemory};
use crate::outcome::{
    Admission, Certainty, ContainerAssignment, DeviceAssignment, MemoryBlock, Rejection, Verdict,
};

/// A node's kubelet with the allocations of its pods.
#[derive(Clone, Debug)]
pub struct Kubelet {
    setup: Arc<Setup>,
    ledger: Ledger,
    pods: BTreeMap<String, Vec<Holding>>,
    any_device: AnyDevice,
}

/// What does not change while the kubelet runs.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) machine: Arc<Machine>,
    pub(crate) config: KubeletConfig,
    pub(crate) cpus: Option<StaticCpus>,
    pub(crate) memory: Option<StaticMemory>,
    pub(crate) pools: Vec<NumaPool>,
}

/// The allocation state. Small, so that it can be copied for each attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) cpus: Option<CpuLedger>,
    pub(crate) memory: Option<MemoryLedger>,
    pub(crate) pools: SmallVec<[PoolLedger; 8]>,
    /// Every hint so far followed from what is certain.
    pub(crate) hints_certain: bool,
}

/// A container's allocation.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    pub(crate) container: String,
    pub(crate) kind: ContainerKind,
    pub(crate) affinity: Option<Hint>,
    pub(crate) cpus: Option<CpuSet>,
    pub(crate) memory: SmallVec<[MemoryBlock; 2]>,
    pub(crate) devices: Vec<DeviceAssignment>,
    pub(crate) certain: bool,
}

impl Holding {
    fn of(assignment: &ContainerAssignment) -> Self {
        Self {
            container: assignment.name.clone(),
            kind: ContainerKind::App,
            affinity: assignment.affinity,
            cpus: assignment.cpus,
            memory: assignment.memory.iter().copied().collect(),
            devices: assignment.devices.clone(),
            certain: assignment.certain,
        }
    }
}

/// Why a pod cannot hold what it is reported to hold on this node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("pod {pod:?}: {field}: {problem}")]
pub struct AdoptError {
    pub pod: String,
    pub field: String,
    pub problem: String,
}

/// What a pod holds on some NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub cpus: usize,
    /// NUMA nodes on which it has pinned memory, inside the mask asked about or not.
    pub numa: NumaMask,
    /// Pool and count; a pool can occur more than once.
    pub devices: SmallVec<[(usize, usize); 4]>,
}

/// Free memory of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    pub kind: MemoryKind,
    /// Per NUMA node; `None` if a node does not list the kind.
    pub bytes: Vec<Option<u64>>,
}

impl Kubelet {
    /// A kubelet on `machine` without pods.
    pub fn new(
        machine: impl Into<Arc<Machine>>,
        config: KubeletConfig,
        devices: Vec<DevicePool>,
    ) -> Result<Self, ConfigError> {
        let machine = machine.into();
        config.check(&machine)?;
        let cpus = match &config.cpu_manager {
            CpuManagerPolicy::None => None,
            CpuManagerPolicy::Static { options, reserved } => {
                Some(StaticCpus::new(&machine, config.version, *options, reserved)?)
            }
        };
        let memory = match &config.memory_manager {
            MemoryManagerPolicy::None => None,
            MemoryManagerPolicy::Static { reserved } => {
                Some(StaticMemory::new(&machine, config.version, reserved)?)
            }
        };
        let hints_needed = config.topology_policy != TopologyPolicy::None;
        let mut pools = devices
            .into_iter()
            .map(|pool| NumaPool::new(pool, &machine, config.version, hints_needed))
            .collect::<Result<Vec<_>, _>>()?;
        pools.sort_by(|one, other| one.inventory.resource.cmp(&other.inventory.resource));
        for pair in pools.windows(2) {
            if pair[0].inventory.resource == pair[1].inventory.resource {
                let field = format!("devices[{}]", pair[0].inventory.resource);
                return Err(ConfigError::new(field, "is listed twice; list each resource once"));
            }
        }
        let ledger = Ledger {
            cpus: cpus.as_ref().map(|policy| policy.initial_pool(&machine)),
            memory: memory.as_ref().map(StaticMemory::empty_ledger),
            pools: pools.iter().map(NumaPool::empty_ledger).collect(),
            hints_certain: true,
        };
        let setup = Arc::new(Setup { machine, config, cpus, memory, pools });
        Ok(Self { setup, ledger, pods: BTreeMap::new(), any_device: AnyDevice::default() })
    }

    /// Sets which device stands for "any" where the kubelet takes one at random. What an outcome
    /// calls certain does not depend on it.
    pub fn set_any_device(&mut self, any: AnyDevice) {
        self.any_device = any;
    }

    pub fn machine(&self) -> &Machine {
        &self.setup.machine
    }

    pub fn config(&self) -> &KubeletConfig {
        &self.setup.config
    }

    /// In order of resource name, each with its devices in order of id.
    pub fn pools(&self) -> impl Iterator<Item = &DevicePool> {
        self.setup.pools.iter().map(|pool| &pool.inventory)
    }

    /// `None` unless the CPU manager's policy is static.
    pub fn reserved_cpus(&self) -> Option<CpuSet> {
        self.setup.cpus.as_ref().map(StaticCpus::reserved)
    }

    /// CPUs that are not exclusive; `None` unless the CPU manager's policy is static.
    pub fn shared_cpus(&self) -> Option<CpuSet> {
        self.ledger.cpus.as_ref().map(|ledger| ledger.shared)
    }

    /// Empty unless the memory manager's policy is Static.
    pub fn free_memory(&self) -> Vec<FreeMemory> {
        let (Some(policy), Some(ledger)) = (&self.setup.memory, &self.ledger.memory) else {
            return Vec::new();
        };
        let kinds = policy.kinds().iter().enumerate();
        kinds
            .map(|(at, kind)| FreeMemory { kind: *kind, bytes: policy.free_bytes(ledger, at) })
            .collect()
    }

    /// Healthy devices that are not held.
    pub fn free_devices(&self, pool: usize) -> DeviceSet {
        self.ledger.pools.get(pool).map_or(DeviceSet::EMPTY, PoolLedger::available)
    }

    /// `devices` counted by the NUMA nodes they are attached to.
    pub fn devices_by_numa(&self, pool: usize, devices: DeviceSet) -> Vec<(NumaMask, usize)> {
        self.setup.pools.get(pool).map_or_else(Vec::new, |pool| pool.by_numa(devices))
    }

    /// The position of a resource's pool.
    pub fn pool_of(&self, resource: &str) -> Option<usize> {
        self.setup.pools.iter().position(|pool| pool.inventory.resource.as_str() == resource)
    }

    /// Healthy devices that are not held, counted by the NUMA nodes they are attached to.
    pub fn free_by_numa(&self, pool: usize) -> impl Iterator<Item = (NumaMask, usize)> {
        let both = self.setup.pools.get(pool).zip(self.ledger.pools.get(pool));
        both.into_iter().flat_map(|(pool, ledger)| pool.free_by_numa(ledger))
    }

    /// CPUs that can become exclusive, by NUMA node; `None` unless the CPU manager's policy is
    /// static.
    pub fn free_cpus_by_numa(&self) -> Option<&[u16]> {
        self.ledger.cpus.as_ref().map(CpuLedger::free_by_numa)
    }

    /// What the pod `name` holds on some of the NUMA nodes. Init containers that have ended still
    /// count, as in the kubelet until the pod is gone.
    pub fn held_on(&self, name: &str, numa: NumaMask) -> Option<Held> {
        let holdings = self.pods.get(name)?;
        let mut held = Held::default();
        let on_numa: CpuSet = numa
            .iter()
            .filter_map(|node| self.setup.machine.numa().get(node))
            .fold(CpuSet::EMPTY, |all, node| all | node.cpus);
        for holding in holdings {
            held.cpus += holding.cpus.map_or(0, |cpus| (cpus & on_numa).len());
            held.numa = holding.memory.iter().fold(held.numa, |all, block| all | block.numa);
            for assignment in &holding.devices {
                let Some(pool) = self.setup.pools.get(assignment.pool) else { continue };
                let count = pool.count_on(assignment.devices, numa);
                held.devices.push((assignment.pool, count));
            }
        }
        Some(held)
    }

    /// The certainty of which devices of a pool are held.
    pub fn device_certainty(&self, pool: usize) -> Certainty {
        self.ledger.pools.get(pool).map_or(Certainty::Exact, |use_| use_.certainty)
    }

    /// Whether allocations follow from the kubelet's code alone, device ids aside. They do not
    /// after a hint depended on where devices taken at random are attached, until the node is empty
    /// again; nor once the kubelet [may lose memory](Self::may_lose_memory), because then it
    /// matters in which order terminated pods and containers are released.
    pub fn is_certain(&self) -> bool {
        self.ledger.is_certain()
    }

    /// Whether a NUMA node has served in different groups at once, which best-effort hints allow.
    /// The kubelet then loses track of bytes: what pods release may be less than what they took,
    /// and after that it refuses to start again with its own state file.
    pub fn may_lose_memory(&self) -> bool {
        self.ledger.may_lose_memory()
    }

    /// Sets a device's health as its plugin reports it. Returns whether there is such a device.
    pub fn set_device_health(&mut self, pool: usize, device: usize, healthy: bool) -> bool {
        match (self.setup.pools.get(pool), self.ledger.pools.get_mut(pool)) {
            (Some(pool), Some(ledger)) => pool.set_health(ledger, device, healthy),
            _ => false,
        }
    }

    pub fn pods(&self) -> impl Iterator<Item = &str> {
        self.pods.keys().map(String::as_str)
    }

    pub fn assignment(&self, name: &str) -> Option<Admission> {
        self.pods.get(name).map(|holdings| admission(holdings))
    }

    /// Admits a pod, or rejects it and releases what its first containers had been allocated;
    /// memory can have moved within a group all the same. A pod that is on the node already keeps
    /// what it has.
    pub fn admit(&mut self, name: &str, demand: &PodDemand) -> Result<Admission, Rejection> {
        if let Some(holdings) = self.pods.get(name) {
            return Ok(admission(holdings));
        }
        let mut holdings = Vec::with_capacity(demand.containers().len());
        let mut attempt =
            Attempt::new(&self.setup, Cow::Owned(self.ledger.clone()), self.any_device);
        let outcome = attempt.run(demand, Some(&mut holdings));
        self.ledger = attempt.ledger.into_owned();
        match outcome {
            Ok(_) => {
                let admission = admission(&holdings);
                self.pods.insert(name.to_owned(), holdings);
                Ok(admission)
            }
            Err((failure, container)) => {
                let certain = self.ledger.is_certain();
                self.release(&holdings);
                let container = container.and_then(|at| demand.containers().get(at));
                Err(failure.rejection(container.map(|container| container.name.clone()), certain))
            }
        }
    }

    /// Records that a pod is on the node and holds this, as state files or an agent report it. On
    /// an error nothing changes.
    pub fn adopt(&mut self, name: &str, held: &Admission) -> Result<(), AdoptError> {
        let field = |container: &str, what: &str| format!("containers[{container}].{what}");
        let error = |field: String, problem: &str| {
            Err(AdoptError { pod: name.to_owned(), field, problem: problem.to_owned() })
        };
        if self.pods.contains_key(name) {
            return error("name".to_owned(), "is on the node already; remove it first");
        }
        let machine = &self.setup.machine;
        for assignment in &held.containers {
            if !assignment.cpus.unwrap_or_default().is_subset(&machine.cpus()) {
                return error(field(&assignment.name, "cpus"), "the machine has no such CPUs");
            }
            let known = |block: &MemoryBlock| {
                block.numa.is_subset(machine.all_numa())
                    && machine.memory_kinds().contains(&block.kind)
            };
            if !assignment.memory.iter().all(known) {
                return error(field(&assignment.name, "memory"), "the machine has no such memory");
            }
            for devices in &assignment.devices {
                let pool = self.setup.pools.get(devices.pool);
                let known = pool.is_some_and(|pool| {
                    let all = DeviceSet::first_ids(pool.inventory.devices.len());
                    pool.inventory.resource == devices.resource && devices.devices.is_subset(&all)
                });
                if !known {
                    return error(
                        field(&assignment.name, "devices"),
                        "the node has no such devices",
                    );
                }
                if self.ledger.pools[devices.pool].holds_any(devices.devices) {
                    return error(
                        field(&assignment.name, "devices"),
                        "another pod holds some of them",
                    );
                }
            }
        }
        let holdings: Vec<Holding> = held.containers.iter().map(Holding::of).collect();
        self.record(&holdings);
        self.pods.insert(name.to_owned(), holdings);
        Ok(())
    }

    fn record(&mut self, holdings: &[Holding]) {
        let setup = &self.setup;
        if let (Some(policy), Some(ledger)) = (&setup.cpus, &mut self.ledger.cpus) {
            let cpus = holdings.iter().filter_map(|holding| holding.cpus);
            let shared = cpus.fold(ledger.shared, |shared, cpus| shared - cpus);
            *ledger = policy.count(&setup.machine, shared);
        }
        if let (Some(policy), Some(ledger)) = (&setup.memory, &mut self.ledger.memory) {
            let blocks = holdings.iter().flat_map(|holding| &holding.memory);
            blocks.for_each(|block| policy.claim(ledger, *block));
        }
        for held in holdings.iter().flat_map(|holding| &holding.devices) {
            let pool = &setup.pools[held.pool];
            pool.hold(&mut self.ledger.pools[held.pool], held.devices, held.certainty);
        }
    }

    /// The demand of `pod` for this kubelet's version.
    pub fn demand(&self, pod: &Pod) -> Result<PodDemand, PodError> {
        PodDemand::new(pod, self.setup.config.version)
    }

    /// Whether the pod would be admitted. Changes nothing.
    pub fn would_admit(&self, demand: &PodDemand) -> Verdict {
        let mut attempt = Attempt::new(&self.setup, Cow::Borrowed(&self.ledger), self.any_device);
        let outcome = attempt.run(demand, None);
        let certain = attempt.ledger.is_certain();
        match outcome {
            Ok(Hint { numa, preferred }) => Verdict::Admit { numa, preferred, certain },
            Err((failure, _)) => Verdict::Reject { reason: failure.reason(), certain },
        }
    }

    /// Releases a terminated pod. Returns whether it was on the node.
    pub fn remove(&mut self, name: &str) -> bool {
        let holdings = self.pods.remove(name);
        self.release(holdings.as_deref().unwrap_or_default());
        holdings.is_some()
    }

    fn release(&mut self, holdings: &[Holding]) {
        if let (Some(policy), Some(ledger)) = (&self.setup.cpus, &mut self.ledger.cpus) {
            let cpus = holdings.iter().filter_map(|holding| holding.cpus);
            let shared = cpus.fold(ledger.shared, |shared, cpus| shared | cpus);
            *ledger = policy.count(&self.setup.machine, shared);
        }
        for holding in holdings {
            if let (Some(policy), Some(ledger)) = (&self.setup.memory, &mut self.ledger.memory) {
                holding.memory.iter().for_each(|block| policy.release(ledger, *block));
            }
        }
        for (at, ledger) in self.ledger.pools.iter_mut().enumerate() {
            let of_pool = |holdings: &[Holding]| {
                let devices = holdings.iter().flat_map(|holding| &holding.devices);
                let of_pool = devices.filter(|one| one.pool == at);
                of_pool.fold((DeviceSet::EMPTY, Certainty::Exact), |(held, certainty), one| {
                    (held | one.devices, certainty.max(one.certainty))
                })
            };
            let (returned, _) = of_pool(holdings);
            // If everything is certain, so is the rest.
            let rest = match ledger.certainty {
                Certainty::Exact => Certainty::Exact,
                _ => {
                    let others = self.pods.values().map(|holdings| of_pool(holdings).1);
                    others.max().unwrap_or_default()
                }
            };
            self.setup.pools[at].release(ledger, returned, rest);
        }
        self.ledger.hints_certain |= self.pods.is_empty();
    }
}

impl Ledger {
    fn may_lose_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|ledger| ledger.groups_overlapped)
    }

    pub(crate) fn is_certain(&self) -> bool {
        self.hints_certain && !self.may_lose_memory()
    }
}

fn admission(holdings: &[Holding]) -> Admission {
    let containers = holdings
        .iter()
        .map(|holding| ContainerAssignment {
            name: holding.container.clone(),
            affinity: holding.affinity,
            cpus: holding.cpus,
            memory: holding.memory.to_vec(),
            devices: holding.devices.clone(),
            certain: holding.certain,
        })
        .collect();
    Admission { containers }
}
