//! Sockets, cores, caches, NUMA nodes and memory, as the kernel reports them.
//!
//! Values that vary at run time (free memory, load) are left out, so the same hardware always reads the
//! same.

mod cpus;
mod nodes;

use std::collections::BTreeMap;

use berth_model::idset::{CpuSet, IdSet};
use berth_model::machine::{
    CoreSpec, Machine as ModelMachine, MachineError, MachineSpec, NumaSpec,
};
use serde::{Deserialize, Serialize};

use crate::list::{as_list, list, shortened};
use crate::root::{Diagnosis, Notes, Root};

const CPUS: &str = "sys/devices/system/cpu";

/// Bytes of `/proc/meminfo`, and of the part of `/proc/cpuinfo` that is read.
const PROC_BYTES_MAX: usize = 64 << 10;

/// Minimum share of the machine's memory that its NUMA nodes must have together, as a fraction. Kernels
/// reserve some before they count, the same in both places.
const NODE_MEMORY_MIN: (u128, u128) = (3, 4);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Machine {
    /// Model name.
    pub processor: Option<String>,
    /// Online CPUs.
    #[serde(with = "as_list")]
    pub cpus: CpuSet,
    /// CPUs that are present but offline.
    #[serde(with = "as_list")]
    pub offline_cpus: CpuSet,
    pub memory_bytes: u64,
    /// Sockets with online CPUs, by id.
    pub sockets: Vec<Socket>,
    /// By id.
    pub numa: Vec<NumaNode>,
    /// L3 caches and the cores that share each, by id; on EPYC, core complexes.
    pub l3: Vec<L3>,
    /// Physical cores with online CPUs, by lowest CPU.
    pub cores: Vec<Core>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Socket {
    pub id: u32,
    /// Online CPUs.
    #[serde(with = "as_list")]
    pub cpus: CpuSet,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NumaNode {
    /// Ids may have gaps.
    pub id: u32,
    /// Online CPUs; empty for a node with memory only.
    #[serde(with = "as_list")]
    pub cpus: CpuSet,
    /// Sockets of its CPUs: one, except with unusual firmware.
    pub sockets: Vec<u32>,
    /// Includes hugepages; 0 for a node with CPUs only.
    pub memory_bytes: u64,
    /// By page size; sizes without pages are listed too.
    pub hugepages: Vec<Hugepages>,
    /// Distances to all nodes; empty if the kernel does not report them.
    pub distances: Vec<Distance>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hugepages {
    pub page_bytes: u64,
    /// Free or not.
    pub pages: u64,
}

/// Distance to a NUMA node in the firmware's unit: 10 is the node itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Distance {
    pub to: u32,
    pub distance: u32,
}

/// An L3 cache and the CPUs that share it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct L3 {
    /// The lowest of its CPUs if the kernel gives no id.
    pub id: u32,
    /// Online CPUs.
    #[serde(with = "as_list")]
    pub cpus: CpuSet,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Core {
    /// Online hardware threads.
    #[serde(with = "as_list")]
    pub threads: CpuSet,
    pub socket: u32,
    pub numa: u32,
    /// `None` if unknown.
    pub l3: Option<u32>,
}

impl Machine {
    /// Reads what can be read; the rest becomes diagnoses.
    pub fn read(root: &Root) -> (Self, Vec<Diagnosis>) {
        root.begin_reading();
        let mut notes = Notes::default();
        let (cpus, offline_cpus) = cpus_in_use(root, &mut notes);
        let memory_bytes = all_memory_bytes(root, &mut notes);
        let mut numa = nodes::read(root, &mut notes);
        if numa.is_empty() {
            let what = "no NUMA node found, so all CPUs and memory count as one node";
            notes.add(nodes::NODES, what, "mount sysfs, if the kernel supports NUMA");
            numa.push(NumaNode { cpus, memory_bytes, ..NumaNode::default() });
        }
        nodes::place_cpus(root, cpus, &mut numa, &mut notes);
        compare_memory(memory_bytes, &numa, &mut notes);
        let cores = cpus::cores(root, cpus, &numa, &mut notes);
        let mut machine = Self {
            processor: processor(root, &mut notes),
            cpus,
            offline_cpus,
            memory_bytes,
            sockets: Vec::new(),
            l3: cores.l3,
            numa,
            cores: cores.cores,
        };
        machine.gather_sockets();
        (machine, notes.done())
    }

    fn gather_sockets(&mut self) {
        let mut sockets: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for core in &self.cores {
            *sockets.entry(core.socket).or_default() |= core.threads;
        }
        for node in &mut self.numa {
            let own = sockets.iter().filter(|(_, cpus)| cpus.intersects(&node.cpus));
            node.sockets = own.map(|(id, _)| *id).collect();
        }
        self.sockets = sockets.into_iter().map(|(id, cpus)| Socket { id, cpus }).collect();
    }

    /// Maximum over all cores.
    pub fn threads_per_core(&self) -> usize {
        self.cores.iter().map(|core| core.threads.len()).max().unwrap_or(0)
    }

    pub fn node(&self, id: u32) -> Option<&NumaNode> {
        self.numa.iter().find(|node| node.id == id)
    }

    /// Ids of the NUMA nodes with any of these CPUs, ascending.
    pub fn numa_of(&self, cpus: &CpuSet) -> Vec<u32> {
        let nodes = self.numa.iter().filter(|node| node.cpus.intersects(cpus));
        nodes.map(|node| node.id).collect()
    }

    /// `None` if the kernel does not report it.
    pub fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let distances = &self.node(from)?.distances;
        distances.iter().find(|one| one.to == to).map(|one| one.distance)
    }

    /// The machine as its kubelet sees it, for the scheduler's model.
    ///
    /// # Errors
    /// If the machine has no online CPU, or more hugepages than memory.
    pub fn to_model(&self) -> Result<ModelMachine, MachineError> {
        let numa = |node: &NumaNode| NumaSpec {
            id: node.id,
            memory_bytes: node.memory_bytes,
            hugepages: node.hugepages.iter().map(|one| (one.page_bytes, one.pages)).collect(),
            distances: node.distances.iter().map(|one| one.distance).collect(),
        };
        let core = |core: &Core| CoreSpec {
            numa: core.numa,
            socket: core.socket,
            uncore: core.l3.filter(|id| self.is_uncore(*id, core)),
            threads: core.threads.iter().collect(),
        };
        ModelMachine::new(MachineSpec {
            sockets: Some(self.sockets.len()),
            numa: self.numa.iter().map(numa).collect(),
            cores: self.cores.iter().map(core).collect(),
        })
    }

    /// A kubelet ignores a cache that a whole NUMA node shares. It detects that by multiplying the node's
    /// cores by the threads of one core.
    fn is_uncore(&self, l3: u32, core: &Core) -> bool {
        let sharing = self.l3.iter().find(|one| one.id == l3).map_or(0, |one| one.cpus.len());
        let cores = self.cores.iter().filter(|other| other.numa == core.numa).count();
        sharing != cores * core.threads.len()
    }
}

/// Online and offline CPUs.
fn cpus_in_use(root: &Root, notes: &mut Notes) -> (CpuSet, CpuSet) {
    let mut read = |name: &str, unknown: &str| {
        let path = format!("{CPUS}/{name}");
        match root.line(&path).map(|line| list(&line)) {
            Ok(Ok(cpus)) if !(cpus.is_empty() && name == "online") => Some(cpus),
            Ok(found) => {
                let why =
                    found.err().map_or_else(|| "it is empty".to_owned(), |why| why.to_string());
                let what = format!("is not a list of CPUs ({why}), so {unknown}");
                notes.add(&path, what, "check that sysfs is mounted");
                None
            }
            Err(fault) => {
                notes.fault(&path, &fault, unknown);
                None
            }
        }
    };
    let online = read("online", "every CPU with a topology counts as online");
    let present = read("present", "offline CPUs are unknown");
    let online = online.unwrap_or_else(|| with_topology(root));
    (online, present.map_or(CpuSet::EMPTY, |present| present - online))
}

/// An offline CPU has no topology directory.
fn with_topology(root: &Root) -> CpuSet {
    let names = root.names(CPUS).unwrap_or_default();
    let ids = names.iter().filter_map(|name| numbered(name, "cpu"));
    let in_use = ids
        .filter(|id| root.has_directory(&format!("{CPUS}/cpu{id}/topology")))
        .map(|id| id as usize);
    in_use.collect()
}

/// The number in a name such as `cpu12`; `None` if it is beyond the ids supported.
fn numbered(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let id: u32 = digits.parse().ok().filter(|_| all_digits)?;
    ((id as usize) < IdSet::CAPACITY).then_some(id)
}

fn all_memory_bytes(root: &Root, notes: &mut Notes) -> u64 {
    let path = "proc/meminfo";
    let text = match root.start_of(path, PROC_BYTES_MAX) {
        Ok((text, _)) => text,
        Err(fault) => {
            notes.fault(path, &fault, "total memory is unknown");
            return 0;
        }
    };
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    total.and_then(kilobytes).unwrap_or_else(|| {
        let what = "has no MemTotal, so total memory is unknown";
        notes.add(path, what, "check that procfs is mounted");
        0
    })
}

/// The memory of all NUMA nodes must add up to that of the machine. In some virtual machines it does not:
/// certain kernels do not add hot-plugged memory to the nodes' own files.
fn compare_memory(memory_bytes: u64, numa: &[NumaNode], notes: &mut Notes) {
    let of_nodes: u128 = numa.iter().map(|node| u128::from(node.memory_bytes)).sum();
    // A node whose file could not be read has a diagnosis already.
    let complete = of_nodes > 0 && !notes.mention(nodes::NODES, "/meminfo");
    if !complete || of_nodes * NODE_MEMORY_MIN.1 >= u128::from(memory_bytes) * NODE_MEMORY_MIN.0 {
        return;
    }
    let gib = |bytes: u128| format!("{}.{} GiB", bytes >> 30, ((bytes % (1 << 30)) * 10) >> 30);
    let what = format!(
        "NUMA nodes have {} together, but the machine has {}: the kubelet's memory manager cannot assign \
         the difference",
        gib(of_nodes),
        gib(memory_bytes.into())
    );
    let remedy = "give the machine all its memory at boot, or use a kernel that counts hot-plugged memory; \
                  until then do not use the Static memory policy";
    notes.add(nodes::NODES, what, remedy);
}

/// `123 kB` in bytes.
fn kilobytes(text: &str) -> Option<u64> {
    let number = text.trim().strip_suffix("kB")?.trim();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

/// Only the first processor is read: the file grows with their number.
fn processor(root: &Root, notes: &mut Notes) -> Option<String> {
    let path = "proc/cpuinfo";
    match root.start_of(path, PROC_BYTES_MAX) {
        Ok((text, _)) => {
            let named = text.lines().filter_map(|line| line.split_once(':'));
            let mut named = named.filter(|(key, _)| key.trim() == "model name");
            named.next().map(|(_, name)| shortened_name(name.trim()))
        }
        Err(fault) => {
            notes.fault(path, &fault, "the processor's model name is unknown");
            None
        }
    }
}

/// At most 80 characters.
fn shortened_name(name: &str) -> String {
    let (first, rest) = (shortened(name), name.get(shortened(name).len()..).unwrap_or(""));
    format!("{first}{}", shortened(rest))
}
