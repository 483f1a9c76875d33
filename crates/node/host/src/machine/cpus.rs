//! Cores: which CPUs are threads of one, and which socket and cache each is in.
//!
//! Owns reading `/sys/devices/system/cpu/cpu*`. A file is read once per core, since its threads share
//! socket and cache. Must not know memory.

use std::collections::BTreeMap;

use berth_model::idset::CpuSet;

use super::{CPUS, Core, L3, NumaNode};
use crate::list::{list, mask, number};
use crate::root::{Fault, Notes, Root};

const NOT_SYSFS: &str = "look whether sysfs is mounted there";

/// Caches that a CPU may list.
const CACHES_MAX: usize = 8;

/// Cores and the caches they share.
pub(super) struct Cores {
    pub(super) cores: Vec<Core>,
    pub(super) l3: Vec<L3>,
}

/// The cores of the CPUs in use, by their lowest CPU.
pub(super) fn cores(root: &Root, cpus: CpuSet, numa: &[NumaNode], notes: &mut Notes) -> Cores {
    let mut cores = Vec::new();
    let mut caches = Caches::default();
    for threads in siblings(root, cpus, notes) {
        let Some(lead) = threads.iter().next() else { continue };
        let node = numa.iter().find(|node| node.cpus.contains(lead));
        cores.push(Core {
            threads,
            socket: 0,
            numa: node.map_or(0, |node| node.id),
            l3: caches.of(root, threads, notes),
        });
    }
    place_in_sockets(root, &mut cores, notes);
    let l3 = caches.known.into_iter().map(|(id, cpus)| L3 { id, cpus: cpus & cpus_of(&cores) });
    let l3 = l3.filter(|one| !one.cpus.is_empty()).collect();
    Cores { cores, l3 }
}

fn cpus_of(cores: &[Core]) -> CpuSet {
    cores.iter().fold(CpuSet::EMPTY, |all, core| all | core.threads)
}

/// The CPUs in use, by core. A CPU whose siblings cannot be read joins the core that names it, and is a
/// core by itself if none does.
fn siblings(root: &Root, cpus: CpuSet, notes: &mut Notes) -> Vec<CpuSet> {
    let mut cores: Vec<CpuSet> = Vec::new();
    let mut placed = CpuSet::EMPTY;
    let mut untold: Vec<(usize, String, String)> = Vec::new();
    for cpu in cpus.iter() {
        if placed.contains(cpu) {
            continue;
        }
        match siblings_of(root, cpu) {
            Ok(told) => {
                let threads = (told & cpus) - placed;
                placed |= threads;
                cores.push(threads);
            }
            Err((path, why)) => untold.push((cpu, path, why)),
        }
    }
    for (cpu, path, why) in untold {
        let remedy = NOT_SYSFS;
        if placed.contains(cpu) {
            notes.add(
                &path,
                format!("{why}, so the siblings of CPU {cpu} are as they say"),
                remedy,
            );
            continue;
        }
        notes.add(&path, format!("{why}, so CPU {cpu} counts as a core by itself"), remedy);
        cores.push([cpu].into_iter().collect());
    }
    cores.sort_unstable_by_key(|threads| threads.iter().next());
    cores
}

/// Threads of the core that a CPU is in; otherwise the file and what is wrong with it.
fn siblings_of(root: &Root, cpu: usize) -> Result<CpuSet, (String, String)> {
    // The second name is that of kernels before 5.2 (and still there).
    let path = format!("{CPUS}/cpu{cpu}/topology/core_cpus_list");
    let read = |name: &str, parse: fn(&str) -> Result<CpuSet, String>| {
        let path = format!("{CPUS}/cpu{cpu}/topology/{name}");
        let line = root.line(&path).map_err(|fault| fault.to_string())?;
        let threads = parse(&line).map_err(|why| format!("is no list of CPUs ({why})"))?;
        if threads.contains(cpu) { Ok(threads) } else { Err(format!("does not name CPU {cpu}")) }
    };
    let tries = [
        ("core_cpus_list", list as fn(&str) -> Result<CpuSet, String>),
        ("thread_siblings_list", list),
        ("thread_siblings", mask),
    ];
    let mut why = None;
    for (name, parse) in tries {
        match read(name, parse) {
            Ok(threads) => return Ok(threads),
            Err(error) => why = why.or(Some(error)),
        }
    }
    Err((path, why.unwrap_or_default()))
}

/// Cores whose socket cannot be read are where the other cores of their NUMA node are.
fn place_in_sockets(root: &Root, cores: &mut [Core], notes: &mut Notes) {
    let mut by_node: BTreeMap<u32, u32> = BTreeMap::new();
    let mut untold = Vec::new();
    for (index, core) in cores.iter_mut().enumerate() {
        match socket_of(root, core.threads) {
            Ok(socket) => {
                core.socket = socket;
                by_node.entry(core.numa).or_insert(socket);
            }
            Err((path, why)) => untold.push((index, path, why)),
        }
    }
    for (index, path, why) in untold {
        let Some(core) = cores.get_mut(index) else { continue };
        let neighbours = by_node.get(&core.numa);
        core.socket = neighbours.copied().unwrap_or(0);
        let whence = if neighbours.is_some() { "where its NUMA node is" } else { "as a guess" };
        let what = format!("{why}, so the core counts as in socket {}, {whence}", core.socket);
        notes.add(&path, what, NOT_SYSFS);
    }
}

/// The socket, from whichever thread tells it; otherwise the first file and what is wrong with it.
fn socket_of(root: &Root, threads: CpuSet) -> Result<u32, (String, String)> {
    let mut first = None;
    for cpu in threads.iter() {
        let path = format!("{CPUS}/cpu{cpu}/topology/physical_package_id");
        let why = match root.line(&path) {
            // Some machines say -1: they do not know.
            Ok(line) => match number(&line).map(u32::try_from) {
                Ok(Ok(socket)) => return Ok(socket),
                Ok(Err(_)) => "is no id of a socket".to_owned(),
                Err(why) => why,
            },
            Err(fault) => fault.to_string(),
        };
        first = first.or(Some((path, why)));
    }
    Err(first.unwrap_or_default())
}

/// L3 caches, as far as they were seen.
#[derive(Default)]
struct Caches {
    known: BTreeMap<u32, CpuSet>,
    /// Number of the L3 among a CPU's caches, the same for most CPUs of a machine.
    index: Option<usize>,
}

impl Caches {
    /// The L3 of a core, from whichever thread tells it. That there is none is no fault: many virtual
    /// machines have none.
    fn of(&mut self, root: &Root, threads: CpuSet, notes: &mut Notes) -> Option<u32> {
        let mut fault = None;
        for cpu in threads.iter() {
            match self.told_by(root, cpu) {
                Ok(Some((id, cpus))) => {
                    let known = self.known.entry(id).or_insert(cpus);
                    *known |= threads;
                    return Some(id);
                }
                Ok(None) => {}
                Err(why) => fault = fault.or(Some(why)),
            }
        }
        let (path, why) = fault?;
        // Another core of the same cache may have named this one.
        let named = self.known.iter().find(|(_, cpus)| threads.is_subset(cpus)).map(|(id, _)| *id);
        let so = match named {
            Some(id) => format!("the core counts as in L3 cache {id}, which names it"),
            None => "the L3 cache of the core is unknown".to_owned(),
        };
        notes.add(&path, format!("{why}, so {so}"), NOT_SYSFS);
        named
    }

    fn told_by(
        &mut self,
        root: &Root,
        cpu: usize,
    ) -> Result<Option<(u32, CpuSet)>, (String, String)> {
        let Some(index) = self.index_for(root, cpu)? else { return Ok(None) };
        let file = |name: &str| format!("{CPUS}/cpu{cpu}/cache/index{index}/{name}");
        let path = file("shared_cpu_list");
        let sharing = match root.line(&path).map(|line| list(&line)) {
            Ok(Ok(cpus)) if cpus.contains(cpu) => cpus,
            Ok(Ok(_)) => return Err((path, format!("does not name CPU {cpu}"))),
            Ok(Err(why)) => return Err((path, format!("is no list of CPUs ({why})"))),
            Err(fault) => return Err((path, fault.to_string())),
        };
        // Kernels before 4.11 give no id.
        let lowest = sharing.iter().next().and_then(|cpu| u32::try_from(cpu).ok()).unwrap_or(0);
        let path = file("id");
        let id = match root.line(&path).map(|line| number(&line).map(u32::try_from)) {
            Ok(Ok(Ok(id))) => id,
            Err(Fault::Missing) => lowest,
            Ok(_) => return Err((path, "is no id of a cache".to_owned())),
            Err(fault) => return Err((path, fault.to_string())),
        };
        Ok(Some((id, sharing)))
    }

    /// Which of a CPU's caches is the L3.
    fn index_for(&mut self, root: &Root, cpu: usize) -> Result<Option<usize>, (String, String)> {
        // Almost always the fourth: two of level 1, one of level 2.
        let likely = self.index.unwrap_or(3);
        let order = [likely].into_iter().chain((0..CACHES_MAX).filter(|one| *one != likely));
        let mut fault = None;
        for (tried, index) in order.enumerate() {
            let path = format!("{CPUS}/cpu{cpu}/cache/index{index}/level");
            match root.line(&path) {
                Ok(line) if line == "3" => {
                    self.index = Some(index);
                    return Ok(Some(index));
                }
                Ok(line) if number(&line).is_ok() => {}
                Ok(_) => fault = fault.or(Some((path, "is no level of a cache".to_owned()))),
                // The first try may be off; after that, numbers have no gaps.
                Err(Fault::Missing) if tried > 0 => break,
                Err(Fault::Missing) => {}
                Err(error) => fault = fault.or(Some((path, error.to_string()))),
            }
        }
        fault.map_or(Ok(None), Err)
    }
}
