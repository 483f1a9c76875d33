//! NUMA nodes: CPUs, memory, hugepages and distances, from `/sys/devices/system/node`.

use berth_model::idset::CpuSet;

use super::{CPUS, Distance, Hugepages, NumaNode, kilobytes, numbered};
use crate::list::{list, mask, number, shortened};
use crate::root::{Fault, Notes, Root};

pub(super) const NODES: &str = "sys/devices/system/node";

/// Bytes of a node's `meminfo`.
const MEMINFO_BYTES_MAX: usize = 64 << 10;

const NOT_SYSFS: &str = "check that sysfs is mounted";

/// By id; empty if the kernel reports none.
pub(super) fn read(root: &Root, notes: &mut Notes) -> Vec<NumaNode> {
    let names = match root.names(NODES) {
        Ok(names) => names,
        Err(Fault::Missing) => return Vec::new(),
        Err(fault) => {
            notes.fault(NODES, &fault, "NUMA nodes are unknown");
            return Vec::new();
        }
    };
    let mut ids: Vec<u32> = names.iter().filter_map(|name| numbered(name, "node")).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut nodes: Vec<NumaNode> = ids
        .iter()
        .map(|id| NumaNode {
            id: *id,
            cpus: cpus(root, *id, notes),
            sockets: Vec::new(),
            memory_bytes: memory_bytes(root, *id, notes),
            hugepages: hugepages(root, *id, notes),
            distances: distances(root, *id, &ids, notes),
        })
        .collect();
    keep_cpus_apart(&mut nodes, notes);
    nodes
}

fn cpus(root: &Root, id: u32, notes: &mut Notes) -> CpuSet {
    let path = format!("{NODES}/node{id}/cpulist");
    let why = match root.line(&path).map(|line| list(&line)) {
        Ok(Ok(cpus)) => return cpus,
        Ok(Err(why)) => format!("is not a list of CPUs ({why})"),
        Err(fault) => fault.to_string(),
    };
    let from_map = root.line(&format!("{NODES}/node{id}/cpumap")).map(|line| mask(&line));
    if let Ok(Ok(cpus)) = from_map {
        notes.add(&path, format!("{why}, so the CPUs are taken from cpumap"), NOT_SYSFS);
        return cpus;
    }
    let what = format!("{why}, so each CPU of NUMA node {id} is looked up by itself");
    notes.add(&path, what, NOT_SYSFS);
    CpuSet::EMPTY
}

/// A CPU is in one NUMA node: the first that lists it.
fn keep_cpus_apart(nodes: &mut [NumaNode], notes: &mut Notes) {
    let mut seen = CpuSet::EMPTY;
    for node in nodes {
        let twice = node.cpus & seen;
        if !twice.is_empty() {
            let path = format!("{NODES}/node{}/cpulist", node.id);
            let what = format!("lists CPUs {twice}, which another NUMA node also lists");
            notes.add(&path, what, "correct the firmware's tables");
            node.cpus -= twice;
        }
        seen |= node.cpus;
    }
}

fn memory_bytes(root: &Root, id: u32, notes: &mut Notes) -> u64 {
    let path = format!("{NODES}/node{id}/meminfo");
    let what = format!("NUMA node {id} counts as without memory");
    let text = match root.start_of(&path, MEMINFO_BYTES_MAX) {
        Ok((text, _)) => text,
        Err(fault) => {
            notes.fault(&path, &fault, &what);
            return 0;
        }
    };
    let total = text.lines().find_map(|line| line.split_once("MemTotal:"));
    total.and_then(|(_, amount)| kilobytes(amount)).unwrap_or_else(|| {
        notes.add(&path, format!("has no MemTotal, so {what}"), NOT_SYSFS);
        0
    })
}

fn hugepages(root: &Root, id: u32, notes: &mut Notes) -> Vec<Hugepages> {
    let directory = format!("{NODES}/node{id}/hugepages");
    let names = match root.names(&directory) {
        Ok(names) => names,
        // The kernel has none, or the node has no memory.
        Err(Fault::Missing) => return Vec::new(),
        Err(fault) => {
            notes.fault(&directory, &fault, &format!("hugepages of NUMA node {id} are unknown"));
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for name in names {
        let Some(page_bytes) = page_bytes(&name) else {
            let what = format!("{:?} is not a hugepage size", shortened(&name));
            notes.add(&directory, what, NOT_SYSFS);
            continue;
        };
        let path = format!("{directory}/{name}/nr_hugepages");
        let pages = match root.line(&path) {
            Ok(line) => number(&line).map_err(|why| why.to_string()),
            Err(fault) => Err(fault.to_string()),
        };
        match pages {
            Ok(pages) => found.push(Hugepages { page_bytes, pages }),
            Err(why) => {
                notes.add(&path, format!("{why}, so these pages are not counted"), NOT_SYSFS);
            }
        }
    }
    found.sort_unstable_by_key(|one| one.page_bytes);
    found
}

/// `hugepages-2048kB` in bytes.
fn page_bytes(name: &str) -> Option<u64> {
    let kilobytes = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    let bytes = number(kilobytes).ok()?.checked_mul(1024)?;
    bytes.is_power_of_two().then_some(bytes)
}

/// One number per NUMA node, in their order.
fn distances(root: &Root, id: u32, ids: &[u32], notes: &mut Notes) -> Vec<Distance> {
    let path = format!("{NODES}/node{id}/distance");
    let what = format!("distances from NUMA node {id} are unknown");
    let line = match root.line(&path) {
        Ok(line) => line,
        Err(fault) => {
            notes.fault(&path, &fault, &what);
            return Vec::new();
        }
    };
    let numbers: Option<Vec<u32>> =
        line.split_whitespace().map(|one| number(one).ok()?.try_into().ok()).collect();
    match numbers {
        Some(numbers) if numbers.len() == ids.len() => {
            let pairs = ids.iter().zip(numbers);
            pairs.map(|(to, distance)| Distance { to: *to, distance }).collect()
        }
        _ => {
            let why = format!("does not have one number for each of {} NUMA nodes", ids.len());
            notes.add(&path, format!("{why}, so {what}"), NOT_SYSFS);
            Vec::new()
        }
    }
}

/// Assigns each online CPU a NUMA node, and removes CPUs that are not online.
pub(super) fn place_cpus(root: &Root, cpus: CpuSet, nodes: &mut [NumaNode], notes: &mut Notes) {
    let mut placed = CpuSet::EMPTY;
    for node in nodes.iter_mut() {
        node.cpus &= cpus;
        placed |= node.cpus;
    }
    let mut guessed = CpuSet::EMPTY;
    for cpu in (cpus - placed).iter() {
        // Each CPU's directory has a link to its node.
        let names = root.names(&format!("{CPUS}/cpu{cpu}")).unwrap_or_default();
        let linked = names.iter().find_map(|name| numbered(name, "node"));
        if let Some(id) = linked {
            // The name is all that is needed; reading the link puts it into the recording.
            let _ = root.link(&format!("{CPUS}/cpu{cpu}/node{id}"));
        }
        let position = linked.and_then(|id| nodes.iter().position(|node| node.id == id));
        if position.is_none() {
            guessed.insert(cpu);
        }
        if let Some(node) = nodes.get_mut(position.unwrap_or(0)) {
            node.cpus.insert(cpu);
        }
    }
    if let Some(first) = nodes.first().filter(|_| !guessed.is_empty()) {
        let what = format!(
            "no NUMA node lists CPUs {guessed}, so they count to node {}; do not trust alignment that \
             depends on them",
            first.id
        );
        notes.add(NODES, what, NOT_SYSFS);
    }
}
