//! Packed allocation of CPUs: the fewest and fullest NUMA nodes, sockets, caches and cores first.
//!
//! All ids compared here are those of the operating system. Numbers of free CPUs are counted when a
//! list is made, not while it is walked, as in the kubelet. On uneven machines the kubelet
//! considers a socket or core free if it has as many free CPUs as the average socket or core has
//! CPUs, and then takes all of it, so CPUs can be allocated twice. That is modelled.

use berth_model::idset::CpuSet;
use berth_model::machine::{Core, CpuGroup, Machine};
use smallvec::SmallVec;

use super::StaticCpus;
use crate::config::CpuOption;
use crate::outcome::Failure;

/// Positions of NUMA nodes, sockets or caches, in the order in which they are visited.
pub(super) type Order = SmallVec<[u16; 32]>;

pub(super) struct CpuSelection<'m> {
    pub(super) machine: &'m Machine,
    pub(super) policy: &'m StaticCpus,
    pub(super) free: CpuSet,
    pub(super) taken: CpuSet,
    /// Negative once more were taken than requested.
    pub(super) missing: i64,
}

impl StaticCpus {
    pub(super) fn take_packed(
        &self,
        machine: &Machine,
        free: CpuSet,
        need: i64,
        by_uncore: bool,
    ) -> Result<CpuSet, Failure> {
        let mut cpus = CpuSelection::new(machine, self, free, need);
        if cpus.done() {
            return Ok(cpus.taken);
        }
        let available = free.len();
        if need > available as i64 {
            return Err(Failure::CpuShortage { requested: need as usize, available });
        }
        if self.numa_outermost {
            cpus.take_numa_nodes();
        }
        if !cpus.done() {
            cpus.take_sockets();
        }
        if !cpus.done() && !self.numa_outermost {
            cpus.take_numa_nodes();
        }
        if !cpus.done() && by_uncore {
            cpus.take_uncore_caches();
        }
        if !cpus.done() && !self.has(CpuOption::DistributeCpusAcrossCores) {
            cpus.take_cores();
        }
        if !cpus.done() {
            cpus.take_single_cpus();
        }
        if cpus.done() { Ok(cpus.taken) } else { Err(Failure::CpuIncomplete) }
    }
}

impl<'m> CpuSelection<'m> {
    pub(super) fn new(
        machine: &'m Machine,
        policy: &'m StaticCpus,
        free: CpuSet,
        need: i64,
    ) -> Self {
        Self { machine, policy, free, taken: CpuSet::EMPTY, missing: need }
    }

    pub(super) fn done(&self) -> bool {
        self.missing < 1
    }

    pub(super) fn take(&mut self, cpus: CpuSet) {
        self.taken |= cpus;
        self.free -= cpus;
        self.missing -= cpus.len() as i64;
    }

    /// Takes each group whole, while at least that many are missing.
    fn take_whole(&mut self, groups: impl Iterator<Item = CpuSet>) {
        for cpus in groups {
            if self.missing >= cpus.len() as i64 {
                self.take(cpus);
            }
        }
    }

    fn take_numa_nodes(&mut self) {
        let free = self.free;
        let nodes = self.numa_in_order().into_iter().map(|at| self.numa_cpus(at));
        let whole: SmallVec<[CpuSet; 8]> = nodes.filter(|cpus| cpus.is_subset(&free)).collect();
        self.take_whole(whole.into_iter());
    }

    fn take_sockets(&mut self) {
        let machine = self.machine;
        let whole: Order = self
            .sockets_in_order()
            .into_iter()
            .filter(|at| {
                let free = machine.sockets()[usize::from(*at)].cpus.count_in(&self.free);
                free == self.policy.cpus_per_socket
            })
            .collect();
        self.take_whole(whole.iter().map(|at| machine.sockets()[usize::from(*at)].cpus));
    }

    fn take_uncore_caches(&mut self) {
        for at in self.uncores_in_order() {
            if self.missing >= self.policy.cpus_per_uncore as i64 {
                self.take_whole_uncore_caches();
            }
            if !self.done() {
                self.take_part_of_uncore_cache(at);
            }
            if self.done() {
                return;
            }
        }
    }

    fn take_whole_uncore_caches(&mut self) {
        let machine = self.machine;
        let free = self.free;
        let caches = self.uncores_in_order().into_iter();
        let cpus = caches.map(|at| machine.uncores()[usize::from(at)].cpus);
        self.take_whole(cpus.filter(|cpus| cpus.is_subset(&free)));
    }

    /// Takes all missing CPUs from the lowest cores of one cache, or none.
    fn take_part_of_uncore_cache(&mut self, at: u16) {
        let threads = self.policy.threads_per_core as i64;
        let odd_parts = self.policy.version.takes_odd_parts_of_uncore();
        let cores =
            if odd_parts { (self.missing + threads - 1) / threads } else { self.missing / threads };
        let mut part: CpuSet = self
            .machine
            .cores()
            .iter()
            .filter(|core| core.uncore == at && self.free_threads(core) > 0)
            .take(cores as usize)
            .flat_map(|core| core.threads().filter(|cpu| self.free.contains(*cpu)))
            .collect();
        if odd_parts
            && self.missing % 2 != 0
            && threads > 1
            && part.len() as i64 > self.missing
            && let Some(last) = part.last()
        {
            part.remove(last);
        }
        if part.len() as i64 == self.missing {
            self.take(part);
        }
    }

    fn take_cores(&mut self) {
        let free = self.free;
        let whole = self.policy.threads_per_core;
        self.visit_core_groups(|cpus, group| {
            // All these cores have the same number of free CPUs, so their order is that of ids.
            for core in group.cores(cpus.machine) {
                // A core with this many free CPUs has at least as many, which is more than is
                // missing.
                if cpus.missing < whole as i64 {
                    return;
                }
                if count_threads(core, &free) == whole {
                    let threads: CpuSet = core.threads().collect();
                    cpus.take_whole(std::iter::once(threads));
                }
            }
        });
    }

    fn take_single_cpus(&mut self) {
        let free = self.free;
        if self.policy.has(CpuOption::DistributeCpusAcrossCores) {
            for at in self.sockets_in_order() {
                let cpus = self.machine.sockets()[usize::from(at)].cpus & free;
                cpus.iter().for_each(|cpu| self.take_one(cpu));
            }
            return;
        }
        self.visit_core_groups(|cpus, group| {
            let most =
                group.cores(cpus.machine).map(|core| count_threads(core, &free)).max().unwrap_or(0);
            for threads in 1..=most {
                for core in group.cores(cpus.machine) {
                    if count_threads(core, &free) == threads {
                        let free_threads = core.threads().filter(|cpu| free.contains(*cpu));
                        free_threads.for_each(|cpu| cpus.take_one(cpu));
                    }
                }
            }
        });
    }

    fn take_one(&mut self, cpu: usize) {
        if !self.done() {
            self.take(std::iter::once(cpu).collect());
        }
    }

    /// Visits the innermost groups that contain cores, in order: sockets or NUMA nodes.
    fn visit_core_groups(&mut self, mut visit: impl FnMut(&mut Self, Group)) {
        let order =
            if self.policy.numa_outermost { self.sockets_in_order() } else { self.numa_in_order() };
        for at in order {
            let group =
                if self.policy.numa_outermost { Group::Socket(at) } else { Group::Numa(at as u8) };
            visit(self, group);
            if self.done() {
                return;
            }
        }
    }

    fn free_threads(&self, core: &Core) -> usize {
        count_threads(core, &self.free)
    }

    fn numa_cpus(&self, at: u16) -> CpuSet {
        self.machine.numa()[usize::from(at)].cpus
    }

    /// NUMA nodes with free CPUs: the fullest first, within their sockets if those are larger.
    pub(super) fn numa_in_order(&self) -> Order {
        if self.policy.numa_outermost {
            return self.numa_within(&self.free);
        }
        let sockets = self.sockets_in_order().into_iter();
        let cpus = sockets.map(|at| self.machine.sockets()[usize::from(at)].cpus & self.free);
        cpus.flat_map(|cpus| self.numa_within(&cpus)).collect()
    }

    /// Sockets with free CPUs: the fullest first, within their NUMA nodes if those are larger.
    fn sockets_in_order(&self) -> Order {
        if !self.policy.numa_outermost {
            return self.groups_within(self.machine.sockets(), &self.free);
        }
        let nodes = self.numa_in_order().into_iter().map(|at| self.numa_cpus(at) & self.free);
        nodes.flat_map(|cpus| self.groups_within(self.machine.sockets(), &cpus)).collect()
    }

    fn uncores_in_order(&self) -> Order {
        let nodes = self.numa_in_order().into_iter().map(|at| self.numa_cpus(at) & self.free);
        nodes.flat_map(|cpus| self.groups_within(self.machine.uncores(), &cpus)).collect()
    }

    /// NUMA nodes that have one of `cpus`, by the number of their free CPUs, then by id.
    fn numa_within(&self, cpus: &CpuSet) -> Order {
        let nodes = self.machine.numa().iter().map(|node| &node.cpus);
        self.by_free_cpus(nodes, cpus)
    }

    fn groups_within(&self, groups: &[CpuGroup], cpus: &CpuSet) -> Order {
        self.by_free_cpus(groups.iter().map(|group| &group.cpus), cpus)
    }

    fn by_free_cpus<'a>(&self, groups: impl Iterator<Item = &'a CpuSet>, cpus: &CpuSet) -> Order {
        let mut order: SmallVec<[(u16, u16); 32]> = groups
            .enumerate()
            .filter(|(_, group)| group.intersects(cpus))
            .map(|(at, group)| (group.count_in(&self.free) as u16, at as u16))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, at)| at).collect()
    }
}

fn count_threads(core: &Core, free: &CpuSet) -> usize {
    core.threads().filter(|cpu| free.contains(*cpu)).count()
}

#[derive(Clone, Copy)]
enum Group {
    Socket(u16),
    Numa(u8),
}

impl Group {
    fn cores(self, machine: &Machine) -> impl Iterator<Item = &Core> {
        machine.cores().iter().filter(move |core| match self {
            Self::Socket(at) => core.socket == at,
            Self::Numa(at) => core.numa == at,
        })
    }
}
