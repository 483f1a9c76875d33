//! The static CPU manager policy: reserved CPUs, hints, and allocation under the merged hint. CPUs
//! are chosen in [`take`] (packed) and [`distribute`] (spread over NUMA nodes).

mod distribute;
mod take;

use berth_model::idset::CpuSet;
use berth_model::machine::Machine;
use berth_model::numa::NumaMask;
use smallvec::SmallVec;

use crate::config::{ConfigError, CpuOption, CpuOptions, KubeletVersion, ReservedCpus};
use crate::hint::{HintSource, Hints, most_of_nodes};
use crate::outcome::Failure;

/// The static policy on one machine.
#[derive(Clone, Debug)]
pub(crate) struct StaticCpus {
    options: CpuOptions,
    version: KubeletVersion,
    reserved: CpuSet,
    /// The reserved CPUs and all threads of their cores.
    reserved_cores: CpuSet,
    domain: NumaMask,
    /// `most[k]`: the most CPUs that `k` NUMA nodes have.
    most: Vec<u64>,
    threads_per_core: usize,
    cpus_per_socket: usize,
    cpus_per_uncore: usize,
    /// Average NUMA nodes per socket.
    numa_per_socket: usize,
    /// NUMA nodes contain sockets, rather than the other way round.
    numa_outermost: bool,
    /// See [`Self::is_regular`].
    regular: bool,
}

/// The shared pool with precomputed counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuLedger {
    /// CPUs that are not exclusive.
    pub(crate) shared: CpuSet,
    /// By NUMA node: how many of them can become exclusive.
    free: SmallVec<[u16; 8]>,
    /// How many of them are on cores without reserved CPUs.
    on_free_cores: usize,
}

impl CpuLedger {
    pub(crate) fn free_by_numa(&self) -> &[u16] {
        &self.free
    }
}

/// What a container's CPUs are taken from.
#[derive(Clone, Copy)]
pub(crate) struct CpuPool<'a> {
    pub(crate) ledger: &'a CpuLedger,
    /// CPUs of the pod's init containers that later containers may reuse.
    pub(crate) reusable: CpuSet,
}

impl StaticCpus {
    pub(crate) fn new(
        machine: &Machine,
        version: KubeletVersion,
        options: CpuOptions,
        reserved: &ReservedCpus,
    ) -> Result<Self, ConfigError> {
        let domain = machine.cpu_numa();
        let cpus = machine.cpus().len();
        let most = most_of_nodes(domain.iter().map(|node| machine.numa()[node].cpus.len() as u64));
        let mut policy = Self {
            options,
            version,
            reserved: CpuSet::EMPTY,
            reserved_cores: CpuSet::EMPTY,
            domain,
            most,
            threads_per_core: cpus / machine.cores().len(),
            cpus_per_socket: cpus / machine.socket_count(),
            cpus_per_uncore: cpus / machine.uncores().len(),
            numa_per_socket: domain.count() / machine.socket_count(),
            numa_outermost: machine.socket_count() >= domain.count(),
            regular: false,
        };
        policy.regular = policy.is_regular(machine);
        policy.reserved = match reserved {
            ReservedCpus::Explicit(cpus) => *cpus,
            ReservedCpus::Millis(millis) => policy.choose_reserved(machine, *millis)?,
        };
        policy.reserved_cores = machine
            .cores()
            .iter()
            .filter(|core| core.threads().any(|cpu| policy.reserved.contains(cpu)))
            .flat_map(|core| core.threads())
            .collect();
        Ok(policy)
    }

    fn choose_reserved(&self, machine: &Machine, millis: u64) -> Result<CpuSet, ConfigError> {
        let wanted = millis.div_ceil(1000) as usize;
        let chosen = self.take(machine, machine.cpus(), wanted as i64).unwrap_or_default();
        if chosen.len() != wanted {
            let problem = format!(
                "the kubelet cannot reserve {wanted} CPUs with these options and does not start; \
                 reserve explicit CPUs instead"
            );
            return Err(ConfigError::new("cpu_manager.reserved_quantity", problem));
        }
        Ok(chosen)
    }

    pub(crate) fn reserved(&self) -> CpuSet {
        self.reserved
    }

    /// The shared pool without any pods.
    pub(crate) fn initial_pool(&self, machine: &Machine) -> CpuLedger {
        self.count(
            machine,
            if self.has(CpuOption::StrictCpuReservation) {
                machine.cpus() - self.reserved
            } else {
                machine.cpus()
            },
        )
    }

    pub(crate) fn count(&self, machine: &Machine, shared: CpuSet) -> CpuLedger {
        let available = shared - self.reserved;
        CpuLedger {
            shared,
            free: machine.numa().iter().map(|node| node.cpus.count_in(&available) as u16).collect(),
            on_free_cores: (shared - self.reserved_cores).len(),
        }
    }

    fn has(&self, option: CpuOption) -> bool {
        self.options.has(option)
    }

    /// The hints for `need` exclusive CPUs.
    pub(crate) fn hint_source<'a>(
        &'a self,
        machine: &'a Machine,
        pool: CpuPool<'a>,
        need: usize,
    ) -> HintSource<'a> {
        if need == 0 {
            return HintSource::Indifferent;
        }
        let mut reusable_numa = NumaMask::EMPTY;
        if !pool.reusable.is_empty() {
            let touched = |at: &usize| machine.numa()[*at].cpus.intersects(&pool.reusable);
            reusable_numa = self.domain.iter().filter(touched).collect();
        }
        let most = self.most.iter().position(|most| *most >= need as u64);
        let hints = CpuHints {
            policy: self,
            machine,
            free: &pool.ledger.free,
            reusable_numa,
            reusable: pool.reusable.len(),
            need,
            narrowest: most.unwrap_or(self.domain.count()),
        };
        if hints.feasible(self.domain) { HintSource::Cpu(hints) } else { HintSource::Impossible }
    }

    /// Whether a container can have `need` exclusive CPUs at all.
    pub(crate) fn check(&self, pool: CpuPool<'_>, need: usize) -> Result<(), Failure> {
        if !self.has(CpuOption::FullPcpusOnly) {
            return Ok(());
        }
        let threads = self.threads_per_core;
        if !need.is_multiple_of(threads) {
            return Err(Failure::SmtMultiple { requested: need, threads });
        }
        let available = pool.ledger.on_free_cores;
        if need > available {
            return Err(Failure::SmtShortage { available, requested: need, threads });
        }
        Ok(())
    }

    /// Whether [`Self::allocate`] is certain to succeed, decided without choosing CPUs. That is so
    /// unless the machine is irregular, or distribution over several NUMA nodes can lose count:
    /// with whole cores, by sockets, and from four nodes on.
    pub(crate) fn surely_allocates(
        &self,
        pool: CpuPool<'_>,
        need: usize,
        affinity: Option<NumaMask>,
    ) -> bool {
        let free = &pool.ledger.free;
        let allocatable: usize = free.iter().map(|free| usize::from(*free)).sum();
        if !self.regular || allocatable + pool.reusable.len() < need {
            return false;
        }
        if !self.has(CpuOption::DistributeCpusAcrossNuma) {
            return true;
        }
        let few_nodes = self.domain.count() < 4 && !self.has(CpuOption::FullPcpusOnly);
        let on_one_node = || {
            let node = affinity.filter(|mask| mask.count() == 1)?.iter().next()?;
            free.get(node).map(|free| usize::from(*free) >= need)
        };
        !self.has(CpuOption::AlignBySocket) && (few_nodes || on_one_node() == Some(true))
    }

    /// Whether all sockets and all cores have as many CPUs as their average, and no NUMA node that
    /// is inside a socket is inside two.
    fn is_regular(&self, machine: &Machine) -> bool {
        let nested = |at: usize| {
            let sockets = machine.sockets().iter();
            sockets.filter(|socket| socket.numa.contains(at)).count() == 1
        };
        machine.sockets().iter().all(|socket| socket.cpus.len() == self.cpus_per_socket)
            && machine.cores().len() * self.threads_per_core == machine.cpus().len()
            && machine.cores().iter().all(|core| core.threads().count() == self.threads_per_core)
            && (self.numa_outermost || self.domain.iter().all(nested))
    }

    /// CPUs for a container, from the hint's NUMA nodes first.
    pub(crate) fn allocate(
        &self,
        machine: &Machine,
        pool: CpuPool<'_>,
        need: usize,
        affinity: Option<NumaMask>,
    ) -> Result<CpuSet, Failure> {
        let allocatable = (pool.ledger.shared - self.reserved) | pool.reusable;
        let mut taken = CpuSet::EMPTY;
        if let Some(mask) = affinity {
            let aligned = allocatable & self.aligned_cpus(machine, mask);
            taken = self.take(machine, aligned, need.min(aligned.len()) as i64)?;
        }
        let missing = need as i64 - taken.len() as i64;
        Ok(taken | self.take(machine, allocatable - taken, missing)?)
    }

    fn aligned_cpus(&self, machine: &Machine, mask: NumaMask) -> CpuSet {
        let union = |cpus: CpuSet, more: CpuSet| cpus | more;
        if self.has(CpuOption::AlignBySocket) {
            let sockets = machine.sockets().iter().filter(|socket| socket.numa.intersects(mask));
            return sockets.map(|socket| socket.cpus).fold(CpuSet::EMPTY, union);
        }
        mask.iter().map(|position| machine.numa()[position].cpus).fold(CpuSet::EMPTY, union)
    }

    /// Chooses `need` of the `free` CPUs.
    fn take(&self, machine: &Machine, free: CpuSet, need: i64) -> Result<CpuSet, Failure> {
        if self.has(CpuOption::DistributeCpusAcrossNuma) {
            self.take_distributed(machine, free, need)
        } else {
            let by_uncore = self.has(CpuOption::PreferAlignCpusByUncoreCache);
            self.take_packed(machine, free, need, by_uncore)
        }
    }
}

pub(crate) struct CpuHints<'a> {
    policy: &'a StaticCpus,
    machine: &'a Machine,
    free: &'a [u16],
    reusable_numa: NumaMask,
    reusable: usize,
    need: usize,
    narrowest: usize,
}

impl Hints for CpuHints<'_> {
    fn domain(&self) -> NumaMask {
        self.policy.domain
    }

    fn narrowest(&self) -> usize {
        self.narrowest
    }

    fn feasible(&self, mask: NumaMask) -> bool {
        let free: usize = mask.iter().map(|position| usize::from(self.free[position])).sum();
        self.reusable_numa.is_subset(mask) && self.reusable + free >= self.need
    }

    fn preferred(&self, mask: NumaMask) -> bool {
        if mask.count() == self.narrowest {
            return true;
        }
        let sockets = || {
            let sockets = self.machine.sockets().iter();
            sockets.filter(|socket| socket.numa.intersects(mask)).count()
        };
        self.prefers_wider() && sockets() == self.narrowest.div_ceil(self.policy.numa_per_socket)
    }

    fn prefers_wider(&self) -> bool {
        self.policy.has(CpuOption::AlignBySocket) && self.policy.numa_per_socket > 0
    }
}
