//! Sockets, cores, caches, NUMA nodes, memory.
//!
//! Owns what a machine is made of as its kernel tells it, and the way from there to the machine that
//! the scheduler plans with. What varies while it runs (free memory, load) is left out, so that the
//! same hardware reads the same. Must not know devices, nor who runs on it.

mod cpus;
mod nodes;

use std::collections::BTreeMap;

use berth_model::idset::{CpuSet, IdSet};
use berth_model::machine::{
    CoreSpec, Machine as PlannedMachine, MachineError, MachineSpec, NumaSpec,
};
use serde::{Deserialize, Serialize};

use crate::list::{as_list, list, shortened};
use crate::root::{Diagnosis, Notes, Root};

const CPUS: &str = "sys/devices/system/cpu";

/// Bytes of `/proc/meminfo`, and of `/proc/cpuinfo` as far as it matters.
const PROC_BYTES_MAX: usize = 64 << 10;

/// Of the machine's memory, so much at least is in NUMA nodes, as a fraction. Kernels keep some for
/// themselves before they count, the same in both places.
const MEMORY_TOLD: (u128, u128) = (3, 4);

/// What a machine is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Machine {
    /// What its processors are called.
    pub processor: Option<String>,
    /// CPUs in use.
    #[serde(with = "as_list")]
    pub cpus: CpuSet,
    /// CPUs that are there and switched off.
    #[serde(with = "as_list")]
    pub offline_cpus: CpuSet,
    /// All memory that the kernel manages.
    pub memory_bytes: u64,
    /// Sockets with CPUs in use, ascending.
    pub sockets: Vec<Socket>,
    /// NUMA nodes, ascending.
    pub numa: Vec<NumaNode>,
    /// Groups of cores with an L3 cache of their own, ascending; on EPYC, core complexes.
    pub l3: Vec<L3>,
    /// Physical cores with CPUs in use, by their lowest CPU.
    pub cores: Vec<Core>,
}

/// A socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Socket {
    /// Its id, which may be any number.
    pub id: u32,
    /// Its CPUs in use.
    #[serde(with = "as_list")]
    pub cpus: CpuSet,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NumaNode {
    /// Its id; ids may have gaps.
    pub id: u32,
    /// Its CPUs in use; none where it has only memory.
    #[serde(with = "as_list")]
    pub cpus: CpuSet,
    /// Sockets that its CPUs are in: one, but for odd firmware.
    pub sockets: Vec<u32>,
    /// Its memory, hugepages included; none where it has only CPUs.
    pub memory_bytes: u64,
    /// Hugepages set aside in it, by size; sizes without pages are listed too.
    pub hugepages: Vec<Hugepages>,
    /// How far it is to each node; empty if not told.
    pub distances: Vec<Distance>,
}

/// Hugepages of a size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hugepages {
    /// Size of a page.
    pub page_bytes: u64,
    /// How many, free or not.
    pub pages: u64,
}

/// How far it is to a NUMA node, in the firmware's measure: 10 is the node itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Distance {
    /// Id of the node.
    pub to: u32,
    /// How far.
    pub distance: u32,
}

/// Cores with an L3 cache of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct L3 {
    /// Its id; the lowest of its CPUs where the kernel gives none.
    pub id: u32,
    /// CPUs in use that share it.
    #[serde(with = "as_list")]
    pub cpus: CpuSet,
}

/// A physical core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Core {
    /// Its CPUs in use: hardware threads.
    #[serde(with = "as_list")]
    pub threads: CpuSet,
    /// Id of its socket.
    pub socket: u32,
    /// Id of its NUMA node.
    pub numa: u32,
    /// Id of its L3 cache, if it is told.
    pub l3: Option<u32>,
}

impl Machine {
    /// Reads the machine below `root`, as far as it can be read.
    pub fn read(root: &Root) -> (Self, Vec<Diagnosis>) {
        root.begin();
        let mut notes = Notes::default();
        let (cpus, offline_cpus) = cpus_in_use(root, &mut notes);
        let memory_bytes = all_memory_bytes(root, &mut notes);
        let mut numa = nodes::read(root, &mut notes);
        if numa.is_empty() {
            let what = "no NUMA node is told, so all CPUs and memory count as one";
            notes.add(nodes::NODES, what, "mount sysfs, if the kernel knows NUMA");
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

    /// The most hardware threads of a core.
    pub fn threads_per_core(&self) -> usize {
        self.cores.iter().map(|core| core.threads.len()).max().unwrap_or(0)
    }

    /// The NUMA node with this id.
    pub fn node(&self, id: u32) -> Option<&NumaNode> {
        self.numa.iter().find(|node| node.id == id)
    }

    /// Ids of the NUMA nodes that these CPUs are in, ascending.
    pub fn numa_of(&self, cpus: &CpuSet) -> Vec<u32> {
        let nodes = self.numa.iter().filter(|node| node.cpus.intersects(cpus));
        nodes.map(|node| node.id).collect()
    }

    /// How far it is from one NUMA node to another, if that is told.
    pub fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let distances = &self.node(from)?.distances;
        distances.iter().find(|one| one.to == to).map(|one| one.distance)
    }

    /// The machine as a kubelet on it sees it, which is the one to plan with.
    ///
    /// # Errors
    /// When what was read makes no machine: it has no CPU in use, or more hugepages than memory.
    pub fn to_planned(&self) -> Result<PlannedMachine, MachineError> {
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
        PlannedMachine::new(MachineSpec {
            sockets: Some(self.sockets.len()),
            numa: self.numa.iter().map(numa).collect(),
            cores: self.cores.iter().map(core).collect(),
        })
    }

    /// A kubelet takes no notice of a cache that a whole NUMA node shares, which it sees by multiplying
    /// the node's cores by the threads of one.
    fn is_uncore(&self, l3: u32, core: &Core) -> bool {
        let sharing = self.l3.iter().find(|one| one.id == l3).map_or(0, |one| one.cpus.len());
        let cores = self.cores.iter().filter(|other| other.numa == core.numa).count();
        sharing != cores * core.threads.len()
    }
}

/// CPUs in use, and those that are there but switched off.
fn cpus_in_use(root: &Root, notes: &mut Notes) -> (CpuSet, CpuSet) {
    let mut told = |name: &str, unknown: &str| {
        let path = format!("{CPUS}/{name}");
        match root.line(&path).map(|line| list(&line)) {
            Ok(Ok(cpus)) if !(cpus.is_empty() && name == "online") => Some(cpus),
            Ok(found) => {
                let why = found.err().unwrap_or_else(|| "it names no CPU".to_owned());
                let what = format!("is no list of CPUs ({why}), so {unknown}");
                notes.add(&path, what, "look whether sysfs is mounted there");
                None
            }
            Err(fault) => {
                notes.fault(&path, &fault, unknown);
                None
            }
        }
    };
    let online = told("online", "every CPU with a topology counts as in use");
    let present = told("present", "CPUs that are switched off are not known");
    let online = online.unwrap_or_else(|| with_topology(root));
    (online, present.map_or(CpuSet::EMPTY, |present| present - online))
}

/// A CPU that is switched off has no topology.
fn with_topology(root: &Root) -> CpuSet {
    let names = root.names(CPUS).unwrap_or_default();
    let ids = names.iter().filter_map(|name| numbered(name, "cpu"));
    let in_use = ids
        .filter(|id| root.has_directory(&format!("{CPUS}/cpu{id}/topology")))
        .map(|id| id as usize);
    in_use.collect()
}

/// The number in a name such as `cpu12`.
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
            notes.fault(path, &fault, "how much memory there is in all is unknown");
            return 0;
        }
    };
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    total.and_then(kilobytes).unwrap_or_else(|| {
        let what = "has no MemTotal, so how much memory there is in all is unknown";
        notes.add(path, what, "look whether procfs is mounted there");
        0
    })
}

/// What all NUMA nodes have together is all there is, but for virtual machines to which memory was added
/// later: some kernels leave that out of the nodes' own files.
fn compare_memory(memory_bytes: u64, numa: &[NumaNode], notes: &mut Notes) {
    let of_nodes: u128 = numa.iter().map(|node| u128::from(node.memory_bytes)).sum();
    // A node whose file could not be read has its own diagnosis.
    let all_told = of_nodes > 0 && !notes.mention(nodes::NODES, "/meminfo");
    if !all_told || of_nodes * MEMORY_TOLD.1 >= u128::from(memory_bytes) * MEMORY_TOLD.0 {
        return;
    }
    let gib = |bytes: u128| format!("{}.{} GiB", bytes >> 30, ((bytes % (1 << 30)) * 10) >> 30);
    let what = format!(
        "NUMA nodes have {} together, while the machine has {}: what is missing counts to no node, \
         neither here nor to the kubelet's memory manager",
        gib(of_nodes),
        gib(memory_bytes.into())
    );
    let remedy = "give the machine all its memory at the start, or a kernel that counts what is added \
                  later; until then do not use the Static memory policy";
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
            notes.fault(path, &fault, "what the processors are called is unknown");
            None
        }
    }
}

/// Names are short; what is not is cut.
fn shortened_name(name: &str) -> String {
    let (first, rest) = (shortened(name), name.get(shortened(name).len()..).unwrap_or(""));
    format!("{first}{}", shortened(rest))
}
