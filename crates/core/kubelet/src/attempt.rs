//! One admission attempt, in the kubelet's order: hints and merge, then devices, CPUs and memory,
//! container by container.
//!
//! It works on a copy of the node's ledger, so a failed or hypothetical attempt changes nothing.

use std::borrow::Cow;

use berth_model::idset::{CpuSet, DeviceSet};
use berth_model::pod::ContainerKind;
use smallvec::SmallVec;

use crate::config::{TopologyPolicy, TopologyScope};
use crate::cpu::{CpuPool, StaticCpus};
use crate::demand::{ContainerDemand, PodDemand};
use crate::device::{AnyDevice, NumaPool};
use crate::hint::{Hint, HintSource};
use crate::memory::ReusableMemory;
use crate::merge::Merge;
use crate::node::{Holding, Ledger, Setup};
use crate::outcome::{Certainty, DeviceAssignment, DeviceShortage, Failure, MemoryBlock};

pub(crate) struct Attempt<'k> {
    setup: &'k Setup,
    /// Borrowed until something is allocated.
    pub(crate) ledger: Cow<'k, Ledger>,
    any_device: AnyDevice,
    reusable_cpus: CpuSet,
    reusable_memory: ReusableMemory,
    /// By pool; empty until an init container leaves devices.
    reusable_devices: SmallVec<[DeviceSet; 8]>,
}

/// A failure, and the container at which it happened.
pub(crate) type LocatedFailure = (Failure, Option<usize>);

impl<'k> Attempt<'k> {
    pub(crate) fn new(setup: &'k Setup, ledger: Cow<'k, Ledger>, any_device: AnyDevice) -> Self {
        Self {
            setup,
            ledger,
            any_device,
            reusable_cpus: CpuSet::EMPTY,
            reusable_memory: ReusableMemory::default(),
            reusable_devices: SmallVec::new(),
        }
    }

    /// Admits the containers in order and returns their combined hint. Without `holdings` only the
    /// verdict matters, so nothing needs to be allocated for the last container.
    pub(crate) fn run(
        &mut self,
        demand: &PodDemand,
        mut holdings: Option<&mut Vec<Holding>>,
    ) -> Result<Hint, LocatedFailure> {
        let config = &self.setup.config;
        debug_assert_eq!(demand.version(), config.version, "lowered for another kubelet");
        let of_pod = match (config.topology_policy, config.topology_scope) {
            (TopologyPolicy::None, _) => Some(Hint::NO_POLICY),
            (_, TopologyScope::Container) => None,
            (_, TopologyScope::Pod) => Some(self.merge(demand.total()).map_err(|f| (f, None))?),
        };
        let mut together: Option<Hint> = None;
        let last = demand.containers().len().saturating_sub(1);
        for (at, container) in demand.containers().iter().enumerate() {
            let refused = |failure| (failure, Some(at));
            let hint = match of_pod {
                Some(hint) => hint,
                None => self.merge(container).map_err(refused)?,
            };
            together = Some(match together {
                None => hint,
                Some(before) => Hint {
                    numa: [before.numa, hint.numa].into_iter().flatten().reduce(|a, b| a | b),
                    preferred: before.preferred && hint.preferred,
                },
            });
            match &mut holdings {
                None if at == last => self.can_allocate(container, hint),
                record => self.allocate(container, hint, record.as_deref_mut()),
            }
            .map_err(refused)?;
        }
        Ok(together.unwrap_or(Hint::NO_POLICY))
    }

    /// The static CPU policy and its pool, if the policy is static and the container gets exclusive
    /// CPUs.
    fn exclusive_cpus(&self, demand: &ContainerDemand) -> Option<(&'k StaticCpus, CpuPool<'_>)> {
        let policy = self.setup.cpus.as_ref().filter(|_| demand.cpus > 0)?;
        let ledger = self.ledger.cpus.as_ref()?;
        Some((policy, CpuPool { ledger, reusable: self.reusable_cpus }))
    }

    fn reusable_devices(&self, pool: usize) -> DeviceSet {
        self.reusable_devices.get(pool).copied().unwrap_or_default()
    }

    /// Pools the container requests from, with device counts.
    fn requested_pools<'d>(
        &self,
        demand: &'d ContainerDemand,
    ) -> impl Iterator<Item = (usize, &'k NumaPool, u64)> + use<'k, 'd> {
        let pools = &self.setup.pools;
        demand.devices.iter().filter_map(move |(resource, count)| {
            let at = pools.iter().position(|pool| pool.inventory.resource == *resource)?;
            Some((at, &pools[at], *count))
        })
    }

    fn merge(&mut self, demand: &ContainerDemand) -> Result<Hint, Failure> {
        let setup = self.setup;
        let mut sources = SmallVec::<[HintSource<'_>; 8]>::new();
        let mut uncertain = false;
        for (at, pool, count) in self.requested_pools(demand) {
            uncertain |= self.ledger.pools[at].certainty == Certainty::CountOnly;
            sources.push(pool.hint_source(
                &self.ledger.pools[at],
                self.reusable_devices(at),
                count,
            ));
        }
        if let Some((policy, pool)) = self.exclusive_cpus(demand) {
            sources.push(policy.hint_source(&setup.machine, pool, demand.cpus));
        }
        if let (Some(policy), Some(ledger)) = (&setup.memory, &self.ledger.memory) {
            sources.push(policy.hint_source(ledger, &self.reusable_memory, &demand.memory)?);
        }
        let merge = Merge {
            machine: &setup.machine,
            policy: setup.config.topology_policy,
            prefer_closest: setup.config.prefer_closest_numa_nodes,
        };
        let hint = merge.best(&sources).ok_or(Failure::Topology);
        drop(sources);
        if uncertain && self.ledger.hints_certain {
            self.ledger.to_mut().hints_certain = false;
        }
        hint
    }

    /// Whether [`Self::allocate`] would succeed.
    fn can_allocate(&self, demand: &ContainerDemand, hint: Hint) -> Result<(), Failure> {
        self.check_devices(demand)?;
        if let Some((policy, pool)) = self.exclusive_cpus(demand) {
            policy.check(pool, demand.cpus)?;
            if !policy.surely_allocates(pool, demand.cpus, hint.numa) {
                policy.allocate(&self.setup.machine, pool, demand.cpus, hint.numa)?;
            }
        }
        if let (Some(policy), Some(ledger)) = (&self.setup.memory, &self.ledger.memory) {
            policy.choose(ledger, &self.reusable_memory, &demand.memory, hint)?;
        }
        Ok(())
    }

    /// Allocates a container's devices, CPUs and memory. What was allocated before a failure stays
    /// in `holdings`.
    fn allocate(
        &mut self,
        demand: &ContainerDemand,
        hint: Hint,
        mut holdings: Option<&mut Vec<Holding>>,
    ) -> Result<(), Failure> {
        if let Some(holdings) = &mut holdings {
            let none = self.setup.config.topology_policy == TopologyPolicy::None;
            holdings.push(Holding {
                container: demand.name.clone(),
                kind: demand.kind,
                affinity: (!none).then_some(hint),
                cpus: None,
                memory: SmallVec::new(),
                devices: Vec::new(),
                certain: self.ledger.is_certain(),
            });
        }
        let mut record = holdings.and_then(|holdings| holdings.split_last_mut());
        self.check_devices(demand)?;
        self.allocate_devices(
            demand,
            hint,
            record.as_mut().map(|(holding, _)| &mut holding.devices),
        );
        if let Some((policy, pool)) = self.exclusive_cpus(demand) {
            policy.check(pool, demand.cpus)?;
            let cpus = policy.allocate(&self.setup.machine, pool, demand.cpus, hint.numa)?;
            let rest = policy.count(&self.setup.machine, pool.ledger.shared - cpus);
            self.ledger.to_mut().cpus = Some(rest);
            match demand.kind {
                ContainerKind::Init => self.reusable_cpus |= cpus,
                _ => self.reusable_cpus -= cpus,
            }
            if let Some((holding, _)) = &mut record {
                holding.cpus = Some(cpus);
            }
        }
        let ledger = self.ledger.to_mut();
        if let (Some(policy), Some(ledger)) = (&self.setup.memory, &mut ledger.memory) {
            let reusable = &mut self.reusable_memory;
            if let Some(mask) = policy.choose(ledger, reusable, &demand.memory, hint)? {
                let blocks = policy.take(ledger, reusable, &demand.memory, mask, demand.kind);
                if let Some((holding, earlier)) = record {
                    transfer_memory(earlier, &blocks, holding.certain);
                    holding.memory = blocks;
                }
            }
        }
        Ok(())
    }

    /// Whether there are enough devices of every resource.
    fn check_devices(&self, demand: &ContainerDemand) -> Result<(), Failure> {
        let mut shortages = self.requested_pools(demand).filter_map(|(at, pool, count)| {
            let ledger = &self.ledger.pools[at];
            let kind = pool.check(ledger, self.reusable_devices(at), count).err()?;
            Some(DeviceShortage { resource: pool.inventory.resource.clone(), kind })
        });
        match shortages.next() {
            None => Ok(()),
            Some(first) => Err(Failure::Devices { first, others: shortages.collect() }),
        }
    }

    fn allocate_devices(
        &mut self,
        demand: &ContainerDemand,
        hint: Hint,
        mut record: Option<&mut Vec<DeviceAssignment>>,
    ) {
        for (at, pool, count) in self.requested_pools(demand) {
            let ledger = &mut self.ledger.to_mut().pools[at];
            let reusable = self.reusable_devices.get(at).copied().unwrap_or_default();
            let pick = pool.pick(ledger, reusable, count, hint.numa, self.any_device);
            if pick.devices.is_empty() {
                continue;
            }
            pool.hold(ledger, pick.devices, pick.certainty);
            self.reusable_devices.resize(self.setup.pools.len(), DeviceSet::EMPTY);
            match demand.kind {
                ContainerKind::Init => self.reusable_devices[at] |= pick.devices,
                _ => self.reusable_devices[at] -= pick.devices,
            }
            if let Some(record) = &mut record {
                record.push(DeviceAssignment {
                    resource: pool.inventory.resource.clone(),
                    pool: at,
                    devices: pick.devices,
                    certain: pick.certain,
                    candidates: pick.candidates,
                    certainty: pick.certainty,
                });
            }
        }
    }
}

/// Memory that a container reuses no longer counts for the init containers that had it. If it is
/// uncertain what it reuses, so is what they keep.
fn transfer_memory(earlier: &mut [Holding], blocks: &[MemoryBlock], certain: bool) {
    fn init(earlier: &mut [Holding]) -> impl Iterator<Item = &mut Holding> {
        earlier.iter_mut().filter(|holding| holding.kind == ContainerKind::Init)
    }
    init(earlier).for_each(|holding| holding.certain &= certain);
    for block in blocks {
        let mut bytes = block.bytes;
        for left in init(earlier).flat_map(|holding| &mut holding.memory) {
            if left.kind == block.kind && left.numa == block.numa {
                let part = left.bytes.min(bytes);
                left.bytes -= part;
                bytes -= part;
            }
        }
    }
}
