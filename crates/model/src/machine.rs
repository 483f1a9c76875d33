//! One machine: sockets, NUMA nodes, physical cores with their SMT threads, uncore caches,
//! distances, memory and hugepages.
//!
//! Owns the shape of the hardware as the operating system reports it, checked for consistency once
//! so that nobody has to check again. Must not know what is running on it.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::idset::{CpuSet, IdSet};
use crate::numa::NumaMask;
use crate::resource::MemoryKind;

/// Most hardware threads one core can have.
pub const MAX_THREADS_PER_CORE: usize = 8;

/// What a machine is described with; [`Machine::new`] checks it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineSpec {
    /// Number of sockets the operating system reports; `None`: as many as the cores name.
    pub sockets: Option<usize>,
    /// NUMA nodes, in any order.
    pub numa: Vec<NumaSpec>,
    /// Physical cores, in any order.
    pub cores: Vec<CoreSpec>,
}

/// One NUMA node of a [`MachineSpec`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaSpec {
    /// Node id as the operating system numbers it.
    pub id: u32,
    /// All memory of the node, hugepages included.
    pub memory_bytes: u64,
    /// Hugepages: size of a page in bytes → number of pages.
    pub hugepages: BTreeMap<u64, u64>,
    /// Distance to every node in ascending order of node id; empty if not reported.
    pub distances: Vec<u32>,
}

/// One physical core of a [`MachineSpec`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreSpec {
    /// Id of its NUMA node.
    pub numa: u32,
    /// Id of its socket.
    pub socket: u32,
    /// Id of its uncore (L3) cache; `None` where the machine reports none.
    pub uncore: Option<u32>,
    /// Its online logical CPUs.
    pub threads: Vec<usize>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Node id as the operating system numbers it.
    pub id: u32,
    /// Its logical CPUs; empty for a node that has only memory.
    pub cpus: CpuSet,
    /// All its memory, hugepages included.
    pub memory_bytes: u64,
    /// Hugepages: size of a page in bytes → number of pages.
    pub hugepages: BTreeMap<u64, u64>,
    /// Distances by position; empty if not reported.
    pub distances: Vec<u32>,
}

/// A physical core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its lowest logical CPU, which identifies it on the machine.
    pub id: u16,
    /// Position of its NUMA node.
    pub numa: u8,
    /// Position of its socket.
    pub socket: u16,
    /// Position of its uncore cache.
    pub uncore: u16,
    threads: [u16; MAX_THREADS_PER_CORE],
    thread_count: u8,
}

impl Core {
    /// Its logical CPUs, ascending.
    pub fn threads(&self) -> impl Iterator<Item = usize> + '_ {
        self.threads.iter().take(usize::from(self.thread_count)).map(|cpu| usize::from(*cpu))
    }
}

/// A socket or an uncore cache: an id and the CPUs in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuGroup {
    /// Id as the operating system numbers it.
    pub id: u32,
    /// Its logical CPUs.
    pub cpus: CpuSet,
    /// NUMA nodes that have CPUs in it.
    pub numa: NumaMask,
}

/// A consistent machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    cpus: CpuSet,
    numa: Vec<NumaNode>,
    cores: Vec<Core>,
    sockets: Vec<CpuGroup>,
    uncores: Vec<CpuGroup>,
    socket_count: usize,
    memory_kinds: Vec<MemoryKind>,
}

/// Why a [`MachineSpec`] does not describe a machine. Every message names the field.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MachineError {
    /// The list is empty.
    #[error("{field}: is empty; a machine has at least one")]
    Empty {
        /// Which list.
        field: &'static str,
    },
    /// An id or a list is larger than supported.
    #[error("{field}: {value} is out of range; at most {limit} is supported")]
    OutOfRange {
        /// Which field.
        field: String,
        /// Its value.
        value: u64,
        /// The greatest value supported.
        limit: u64,
    },
    /// Two entries have the same id.
    #[error("{field}: {id} is listed twice; give each one its own id")]
    Duplicate {
        /// Which list.
        field: &'static str,
        /// The id.
        id: u32,
    },
    /// A CPU belongs to two cores.
    #[error("{field}: CPU {cpu} already belongs to another core; every CPU belongs to exactly one")]
    OverlappingCpu {
        /// Which core.
        field: String,
        /// The CPU.
        cpu: usize,
    },
    /// A core names a NUMA node that is not listed.
    #[error("{field}: there is no NUMA node {id}; list it under numa")]
    UnknownNumaNode {
        /// Which core.
        field: String,
        /// The id.
        id: u32,
    },
    /// The distances do not name every node once.
    #[error("{field}: has {got} entries but the machine has {expected} NUMA nodes; give one each")]
    DistanceCount {
        /// Which NUMA node.
        field: String,
        /// How many there are.
        got: usize,
        /// How many there should be.
        expected: usize,
    },
    /// Fewer sockets than the cores name.
    #[error("sockets: is {got} but the cores name {named}; it cannot be less")]
    SocketCount {
        /// What was given.
        got: usize,
        /// How many the cores name.
        named: usize,
    },
    /// More hugepages than memory.
    #[error(
        "{field}: hugepages take {hugepages_bytes} bytes of {memory_bytes}; lower their number"
    )]
    HugepagesExceedMemory {
        /// Which NUMA node.
        field: String,
        /// Bytes in hugepages.
        hugepages_bytes: u64,
        /// Bytes in all.
        memory_bytes: u64,
    },
}

impl Machine {
    /// Checks `spec` and indexes it.
    pub fn new(spec: MachineSpec) -> Result<Self, MachineError> {
        if spec.numa.is_empty() {
            return Err(MachineError::Empty { field: "numa" });
        }
        if spec.cores.is_empty() {
            return Err(MachineError::Empty { field: "cores" });
        }
        let mut numa = checked_nodes(spec.numa)?;
        let sockets = groups(spec.cores.iter().map(|core| core.socket));
        // A kubelet takes the socket for the cache where none is reported.
        let uncores = groups(spec.cores.iter().map(|core| core.uncore.unwrap_or(core.socket)));
        let mut machine = Self {
            cpus: CpuSet::EMPTY,
            cores: Vec::with_capacity(spec.cores.len()),
            socket_count: spec.sockets.unwrap_or(sockets.len()),
            sockets,
            uncores,
            memory_kinds: memory_kinds(&numa),
            numa: Vec::new(),
        };
        if machine.socket_count < machine.sockets.len() {
            return Err(MachineError::SocketCount {
                got: machine.socket_count,
                named: machine.sockets.len(),
            });
        }
        for (index, core) in spec.cores.iter().enumerate() {
            machine.add_core(index, core, &mut numa)?;
        }
        machine.cores.sort_by_key(|core| core.id);
        machine.numa = numa;
        Ok(machine)
    }

    fn add_core(
        &mut self,
        index: usize,
        spec: &CoreSpec,
        numa: &mut [NumaNode],
    ) -> Result<(), MachineError> {
        let field = |name: &str| format!("cores[{index}].{name}");
        let unknown = || MachineError::UnknownNumaNode { field: field("numa"), id: spec.numa };
        let node = numa.binary_search_by_key(&spec.numa, |node| node.id).map_err(|_| unknown())?;
        if spec.threads.is_empty() {
            return Err(MachineError::Empty { field: "cores[].threads" });
        }
        if spec.threads.len() > MAX_THREADS_PER_CORE {
            return Err(MachineError::OutOfRange {
                field: field("threads"),
                value: spec.threads.len() as u64,
                limit: MAX_THREADS_PER_CORE as u64,
            });
        }
        let mut threads = [u16::MAX; MAX_THREADS_PER_CORE];
        for (slot, cpu) in threads.iter_mut().zip(&spec.threads) {
            if *cpu >= IdSet::CAPACITY {
                return Err(MachineError::OutOfRange {
                    field: field("threads"),
                    value: *cpu as u64,
                    limit: IdSet::CAPACITY as u64 - 1,
                });
            }
            if self.cpus.contains(*cpu) {
                return Err(MachineError::OverlappingCpu { field: field("threads"), cpu: *cpu });
            }
            self.cpus.insert(*cpu);
            *slot = *cpu as u16;
        }
        threads.sort_unstable();
        let cpus: CpuSet = spec.threads.iter().copied().collect();
        let socket = join(&mut self.sockets, spec.socket, cpus, node);
        let uncore = join(&mut self.uncores, spec.uncore.unwrap_or(spec.socket), cpus, node);
        if let Some(node) = numa.get_mut(node) {
            node.cpus |= cpus;
        }
        self.cores.push(Core {
            id: threads[0],
            numa: node as u8,
            socket,
            uncore,
            threads,
            thread_count: spec.threads.len() as u8,
        });
        Ok(())
    }

    /// All logical CPUs.
    pub fn cpus(&self) -> CpuSet {
        self.cpus
    }

    /// NUMA nodes, ascending by id.
    pub fn numa(&self) -> &[NumaNode] {
        &self.numa
    }

    /// Physical cores, ascending by id.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// Sockets that have CPUs, ascending by id.
    pub fn sockets(&self) -> &[CpuGroup] {
        &self.sockets
    }

    /// Uncore caches, ascending by id; the socket stands in where no cache is reported.
    pub fn uncores(&self) -> &[CpuGroup] {
        &self.uncores
    }

    /// Number of sockets the operating system reports.
    pub fn socket_count(&self) -> usize {
        self.socket_count
    }

    /// The mask of all NUMA nodes.
    pub fn all_numa(&self) -> NumaMask {
        NumaMask::first(self.numa.len())
    }

    /// The mask of the NUMA nodes that have CPUs.
    pub fn cpu_numa(&self) -> NumaMask {
        (0..self.numa.len()).filter(|position| !self.numa[*position].cpus.is_empty()).collect()
    }

    /// Kinds of memory that some NUMA node lists: ordinary first, then hugepages by size.
    pub fn memory_kinds(&self) -> &[MemoryKind] {
        &self.memory_kinds
    }

    /// Position of the NUMA node with this id.
    pub fn numa_position(&self, id: u32) -> Option<usize> {
        self.numa.binary_search_by_key(&id, |node| node.id).ok()
    }

    /// Ids of the NUMA nodes in `mask`, ascending.
    pub fn numa_ids(&self, mask: NumaMask) -> Vec<u32> {
        mask.iter().filter_map(|position| self.numa.get(position)).map(|node| node.id).collect()
    }
}

fn checked_nodes(mut specs: Vec<NumaSpec>) -> Result<Vec<NumaNode>, MachineError> {
    specs.sort_by_key(|spec| spec.id);
    let count = specs.len();
    let mut nodes: Vec<NumaNode> = Vec::with_capacity(count);
    for spec in specs {
        let field = |name: &str| format!("numa[{}].{name}", spec.id);
        if nodes.last().is_some_and(|last| last.id == spec.id) {
            return Err(MachineError::Duplicate { field: "numa", id: spec.id });
        }
        if spec.id as usize >= NumaMask::CAPACITY {
            return Err(MachineError::OutOfRange {
                field: field("id"),
                value: u64::from(spec.id),
                limit: NumaMask::CAPACITY as u64 - 1,
            });
        }
        if !spec.distances.is_empty() && spec.distances.len() != count {
            return Err(MachineError::DistanceCount {
                field: field("distances"),
                got: spec.distances.len(),
                expected: count,
            });
        }
        let hugepages_bytes = spec
            .hugepages
            .iter()
            .fold(0u64, |sum, (size, pages)| sum.saturating_add(size.saturating_mul(*pages)));
        if hugepages_bytes > spec.memory_bytes {
            return Err(MachineError::HugepagesExceedMemory {
                field: field("hugepages"),
                hugepages_bytes,
                memory_bytes: spec.memory_bytes,
            });
        }
        nodes.push(NumaNode {
            id: spec.id,
            cpus: CpuSet::EMPTY,
            memory_bytes: spec.memory_bytes,
            hugepages: spec.hugepages,
            distances: spec.distances,
        });
    }
    Ok(nodes)
}

fn memory_kinds(numa: &[NumaNode]) -> Vec<MemoryKind> {
    let mut kinds = vec![MemoryKind::Ordinary];
    let hugepages = numa.iter().flat_map(|node| node.hugepages.keys());
    kinds.extend(hugepages.map(|page_bytes| MemoryKind::Hugepages { page_bytes: *page_bytes }));
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

fn groups(ids: impl Iterator<Item = u32>) -> Vec<CpuGroup> {
    let ids: std::collections::BTreeSet<u32> = ids.collect();
    ids.into_iter().map(|id| CpuGroup { id, cpus: CpuSet::EMPTY, numa: NumaMask::EMPTY }).collect()
}

/// Adds `cpus` of the NUMA node at `node` to the group `id`, and says where the group is.
fn join(groups: &mut [CpuGroup], id: u32, cpus: CpuSet, node: usize) -> u16 {
    let position = groups.partition_point(|group| group.id < id);
    if let Some(group) = groups.get_mut(position) {
        group.cpus |= cpus;
        group.numa = group.numa | NumaMask::single(node);
    }
    position as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_nodes() -> MachineSpec {
        let core = |numa, threads: [usize; 2]| CoreSpec {
            numa,
            socket: numa,
            uncore: None,
            threads: threads.into(),
        };
        MachineSpec {
            sockets: None,
            numa: [0, 2]
                .map(|id| NumaSpec { id, memory_bytes: 1 << 30, ..NumaSpec::default() })
                .into(),
            cores: vec![core(0, [0, 4]), core(0, [1, 5]), core(2, [2, 6]), core(2, [7, 3])],
        }
    }

    #[test]
    fn positions_follow_ids_with_gaps() {
        let machine = Machine::new(two_nodes()).unwrap();
        assert_eq!(machine.numa_position(2), Some(1));
        assert_eq!(machine.numa_ids(machine.all_numa()), [0, 2]);
        assert_eq!(machine.numa()[1].cpus.to_string(), "2-3,6-7");
        assert_eq!(machine.cores()[3].threads().collect::<Vec<_>>(), [3, 7]);
    }

    #[test]
    fn errors_name_the_field() {
        let broken = |change: fn(&mut MachineSpec)| {
            let mut spec = two_nodes();
            change(&mut spec);
            Machine::new(spec).unwrap_err().to_string()
        };
        let cases = [
            (broken(|m| m.cores[1].threads = vec![1, 4]), "cores[1].threads: CPU 4 already"),
            (broken(|m| m.cores[3].numa = 1), "cores[3].numa: there is no NUMA node 1"),
            (broken(|m| m.numa[1].id = 0), "numa: 0 is listed twice"),
            (broken(|m| m.numa[1].id = 64), "numa[64].id: 64 is out of range"),
            (broken(|m| m.numa[1].distances = vec![10]), "numa[2].distances: has 1 entries"),
            (broken(|m| m.sockets = Some(1)), "sockets: is 1 but the cores name 2"),
            (broken(|m| m.cores[0].threads = vec![2000]), "cores[0].threads: 2000 is out of range"),
            (broken(|m| m.cores.clear()), "cores: is empty"),
            (
                broken(|m| m.numa[0].hugepages = [(1 << 30, 2)].into()),
                "numa[0].hugepages: hugepages take 2147483648 bytes of 1073741824",
            ),
        ];
        for (got, want) in cases {
            assert!(got.starts_with(want), "{got:?} should start with {want:?}");
        }
    }
}
