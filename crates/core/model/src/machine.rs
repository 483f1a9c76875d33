//! A machine's topology: sockets, NUMA nodes, physical cores with their SMT threads, uncore caches,
//! distances, memory and hugepages.
//!
//! [`Machine::new`] checks it for consistency once; users rely on that.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::idset::{CpuSet, IdSet};
use crate::numa::NumaMask;
use crate::resource::MemoryKind;

/// Limit of hardware threads per core.
pub const MAX_THREADS_PER_CORE: usize = 8;

/// The unchecked description of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineSpec {
    /// Number of sockets the operating system reports; `None`: those that the cores name.
    pub sockets: Option<usize>,
    /// In any order.
    pub numa: Vec<NumaSpec>,
    /// In any order.
    pub cores: Vec<CoreSpec>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaSpec {
    /// As the operating system numbers it.
    pub id: u32,
    /// Hugepages included.
    pub memory_bytes: u64,
    /// Page size in bytes → number of pages.
    pub hugepages: BTreeMap<u64, u64>,
    /// Distance to every node in ascending order of node id; empty if not reported.
    pub distances: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreSpec {
    pub numa: u32,
    pub socket: u32,
    /// Uncore (L3) cache; `None` if the machine reports none.
    pub uncore: Option<u32>,
    /// Online logical CPUs.
    pub threads: Vec<usize>,
}

/// A machine on which all NUMA nodes have the same cores and memory.
#[derive(Clone, Copy, Debug)]
pub struct RegularMachine {
    pub sockets: usize,
    pub numa_per_socket: usize,
    pub cores_per_numa: usize,
    pub threads: usize,
    pub memory_bytes: u64,
}

impl RegularMachine {
    /// CPU ids are numbered as Linux does on x86: all first threads come first.
    pub fn build(self) -> Result<Machine, MachineError> {
        let nodes = self.sockets * self.numa_per_socket;
        let cores = nodes * self.cores_per_numa;
        let distance = |from: usize, to: usize| match from {
            _ if from == to => 10,
            _ if from / self.numa_per_socket == to / self.numa_per_socket => 12,
            _ => 32,
        };
        let numa = (0..nodes)
            .map(|id| NumaSpec {
                id: id as u32,
                memory_bytes: self.memory_bytes,
                hugepages: BTreeMap::new(),
                distances: (0..nodes).map(|to| distance(id, to)).collect(),
            })
            .collect();
        let cores = (0..cores)
            .map(|core| CoreSpec {
                numa: (core / self.cores_per_numa) as u32,
                socket: (core / self.cores_per_numa / self.numa_per_socket) as u32,
                uncore: None,
                threads: (0..self.threads).map(|thread| thread * cores + core).collect(),
            })
            .collect();
        Machine::new(MachineSpec { sockets: Some(self.sockets), numa, cores })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// As the operating system numbers it.
    pub id: u32,
    /// Empty for a node that has only memory.
    pub cpus: CpuSet,
    /// Hugepages included.
    pub memory_bytes: u64,
    /// Page size in bytes → number of pages.
    pub hugepages: BTreeMap<u64, u64>,
    /// By position; empty if not reported.
    pub distances: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its lowest logical CPU.
    pub id: u16,
    /// Position in [`Machine::numa`].
    pub numa: u8,
    /// Position in [`Machine::sockets`].
    pub socket: u16,
    /// Position in [`Machine::uncores`].
    pub uncore: u16,
    threads: [u16; MAX_THREADS_PER_CORE],
    thread_count: u8,
}

impl Core {
    /// Ascending.
    pub fn threads(&self) -> impl Iterator<Item = usize> + '_ {
        self.threads.iter().take(usize::from(self.thread_count)).map(|cpu| usize::from(*cpu))
    }
}

/// A socket or an uncore cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuGroup {
    /// As the operating system numbers it.
    pub id: u32,
    pub cpus: CpuSet,
    /// NUMA nodes that have CPUs in it.
    pub numa: NumaMask,
}

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

/// Why a [`MachineSpec`] is inconsistent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct MachineError {
    pub field: String,
    pub problem: String,
}

fn error<T>(field: impl Into<String>, problem: impl Into<String>) -> Result<T, MachineError> {
    Err(MachineError { field: field.into(), problem: problem.into() })
}

impl Machine {
    pub fn new(spec: MachineSpec) -> Result<Self, MachineError> {
        if spec.numa.is_empty() {
            return error("numa", "is empty; a machine has at least one NUMA node");
        }
        if spec.cores.is_empty() {
            return error("cores", "is empty; a machine has at least one core");
        }
        let mut numa = checked_nodes(spec.numa)?;
        let sockets = groups(spec.cores.iter().map(|core| core.socket));
        // Without a reported cache, the kubelet uses the socket.
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
        if machine.socket_count > IdSet::CAPACITY {
            return error("sockets", "exceeds the number of supported CPUs");
        }
        if machine.socket_count < machine.sockets.len() {
            let named = machine.sockets.len();
            let problem = format!(
                "is {} but the cores name {named}; it cannot be less",
                machine.socket_count
            );
            return error("sockets", problem);
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
        let Ok(node) = numa.binary_search_by_key(&spec.numa, |node| node.id) else {
            let problem = format!("there is no NUMA node {}; list it under numa", spec.numa);
            return error(field("numa"), problem);
        };
        if spec.threads.is_empty() || spec.threads.len() > MAX_THREADS_PER_CORE {
            let problem = format!(
                "has {} CPUs; a core has between 1 and {MAX_THREADS_PER_CORE}",
                spec.threads.len()
            );
            return error(field("threads"), problem);
        }
        let mut threads = [u16::MAX; MAX_THREADS_PER_CORE];
        for (slot, cpu) in threads.iter_mut().zip(&spec.threads) {
            if *cpu >= IdSet::CAPACITY {
                let limit = IdSet::CAPACITY;
                let problem = format!("CPU {cpu} is out of range; ids below {limit} are supported");
                return error(field("threads"), problem);
            }
            if self.cpus.contains(*cpu) {
                let problem =
                    format!("CPU {cpu} already belongs to another core; every CPU belongs to one");
                return error(field("threads"), problem);
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

    pub fn cpus(&self) -> CpuSet {
        self.cpus
    }

    /// Ascending by id.
    pub fn numa(&self) -> &[NumaNode] {
        &self.numa
    }

    /// Ascending by id.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// Sockets with CPUs, ascending by id.
    pub fn sockets(&self) -> &[CpuGroup] {
        &self.sockets
    }

    /// Ascending by id; sockets if no cache is reported.
    pub fn uncores(&self) -> &[CpuGroup] {
        &self.uncores
    }

    /// As the operating system reports it; may exceed the sockets with CPUs.
    pub fn socket_count(&self) -> usize {
        self.socket_count
    }

    pub fn all_numa(&self) -> NumaMask {
        NumaMask::first(self.numa.len())
    }

    /// NUMA nodes that have CPUs.
    pub fn cpu_numa(&self) -> NumaMask {
        (0..self.numa.len()).filter(|position| !self.numa[*position].cpus.is_empty()).collect()
    }

    /// Kinds of memory that some NUMA node has: ordinary first, then hugepages by size.
    pub fn memory_kinds(&self) -> &[MemoryKind] {
        &self.memory_kinds
    }

    pub fn numa_position(&self, id: u32) -> Option<usize> {
        self.numa.binary_search_by_key(&id, |node| node.id).ok()
    }

    /// Ascending.
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
            return error(field("id"), "is listed twice; give each NUMA node its own id");
        }
        if spec.id as usize >= NumaMask::CAPACITY {
            let limit = NumaMask::CAPACITY;
            return error(field("id"), format!("is out of range; ids below {limit} are supported"));
        }
        if !spec.distances.is_empty() && spec.distances.len() != count {
            let got = spec.distances.len();
            let problem = format!("has {got} entries for {count} NUMA nodes; give one for each");
            return error(field("distances"), problem);
        }
        if let Some(size) = spec.hugepages.keys().find(|size| !size.is_power_of_two()) {
            let problem = format!("{size} bytes is not a page size; page sizes are powers of two");
            return error(field("hugepages"), problem);
        }
        let mut in_hugepages = spec.hugepages.iter().map(|(size, pages)| size.checked_mul(*pages));
        let in_hugepages = in_hugepages.try_fold(0u64, |sum, bytes| sum.checked_add(bytes?));
        if in_hugepages.is_none_or(|bytes| bytes > spec.memory_bytes) {
            let total = spec.memory_bytes;
            let problem =
                format!("take more than the {total} bytes of the node; lower their number");
            return error(field("hugepages"), problem);
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

/// Adds CPUs of a NUMA node to a group and returns the group's position.
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
            (broken(|m| m.numa[1].id = 0), "numa[0].id: is listed twice"),
            (broken(|m| m.numa[1].id = 64), "numa[64].id: is out of range"),
            (broken(|m| m.numa[1].distances = vec![10]), "numa[2].distances: has 1 entries"),
            (broken(|m| m.sockets = Some(1)), "sockets: is 1 but the cores name 2"),
            (
                broken(|m| m.cores[0].threads = vec![2000]),
                "cores[0].threads: CPU 2000 is out of range",
            ),
            (broken(|m| m.cores.clear()), "cores: is empty"),
            (
                broken(|m| m.numa[0].hugepages = [(1 << 30, 2)].into()),
                "numa[0].hugepages: take more than the 1073741824 bytes",
            ),
        ];
        for (got, want) in cases {
            assert!(got.starts_with(want), "{got:?} should start with {want:?}");
        }
    }
}
