//! Cores: their threads, socket and L3 cache, from `/sys/devices/system/cpu/cpu*`.
//!
//! Each file is read once per core, since threads of a core share socket and cache.

use std::collections::BTreeMap;

use berth_model::idset::CpuSet;

use super::{CPUS, Core, L3, NumaNode};
use crate::list::{ParseError, list, mask, number};
use crate::root::{Fault, Notes, Root};

const NOT_SYSFS: &str = "check that sysfs is mounted";

/// Caches that a CPU may have.
const CACHES_MAX: usize = 8;

/// A file without a usable value.
#[derive(Default)]
struct Unusable {
    path: String,
    why: String,
}

impl Unusable {
    fn new(path: String, why: impl ToString) -> Self {
        Self { path, why: why.to_string() }
    }
}

pub(super) struct Cores {
    pub(super) cores: Vec<Core>,
    pub(super) l3: Vec<L3>,
}

/// Cores with online CPUs, by lowest CPU.
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

/// Online CPUs by core. A CPU whose siblings cannot be read joins the core that names it, or else is a core
/// by itself.
fn siblings(root: &Root, cpus: CpuSet, notes: &mut Notes) -> Vec<CpuSet> {
    let mut cores: Vec<CpuSet> = Vec::new();
    let mut placed = CpuSet::EMPTY;
    let mut unusable: Vec<(usize, Unusable)> = Vec::new();
    for cpu in cpus.iter() {
        if placed.contains(cpu) {
            continue;
        }
        match siblings_of(root, cpu) {
            Ok(siblings) => {
                let threads = (siblings & cpus) - placed;
                placed |= threads;
                cores.push(threads);
            }
            Err(fault) => unusable.push((cpu, fault)),
        }
    }
    for (cpu, Unusable { path, why }) in unusable {
        let what = if placed.contains(cpu) {
            format!("{why}, so CPU {cpu} counts as a thread of the core that lists it")
        } else {
            cores.push([cpu].into_iter().collect());
            format!("{why}, so CPU {cpu} counts as a core by itself")
        };
        notes.add(&path, what, NOT_SYSFS);
    }
    cores.sort_unstable_by_key(|threads| threads.iter().next());
    cores
}

/// Threads of a CPU's core.
fn siblings_of(root: &Root, cpu: usize) -> Result<CpuSet, Unusable> {
    // Kernels before 5.2 have only the second name; newer ones have both.
    let path = format!("{CPUS}/cpu{cpu}/topology/core_cpus_list");
    let read = |name: &str, parse: fn(&str) -> Result<CpuSet, ParseError>| {
        let path = format!("{CPUS}/cpu{cpu}/topology/{name}");
        let line = root.line(&path).map_err(|fault| fault.to_string())?;
        let threads = parse(&line).map_err(|why| format!("is not a list of CPUs ({why})"))?;
        if threads.contains(cpu) { Ok(threads) } else { Err(format!("does not name CPU {cpu}")) }
    };
    let tries = [
        ("core_cpus_list", list as fn(&str) -> Result<CpuSet, ParseError>),
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
    Err(Unusable { path, why: why.unwrap_or_default() })
}

/// A core whose socket cannot be read counts to the socket of its NUMA node's other cores.
fn place_in_sockets(root: &Root, cores: &mut [Core], notes: &mut Notes) {
    let mut by_node: BTreeMap<u32, u32> = BTreeMap::new();
    let mut unusable = Vec::new();
    for (index, core) in cores.iter_mut().enumerate() {
        match socket_of(root, core.threads) {
            Ok(socket) => {
                core.socket = socket;
                by_node.entry(core.numa).or_insert(socket);
            }
            Err(fault) => unusable.push((index, fault)),
        }
    }
    for (index, Unusable { path, why }) in unusable {
        let Some(core) = cores.get_mut(index) else { continue };
        let neighbours = by_node.get(&core.numa);
        core.socket = neighbours.copied().unwrap_or(0);
        let basis = if neighbours.is_some() { "that of its NUMA node" } else { "as a guess" };
        let what = format!("{why}, so the core counts to socket {}, {basis}", core.socket);
        notes.add(&path, what, NOT_SYSFS);
    }
}

/// The socket, from the first thread that has a valid one; otherwise the first fault.
fn socket_of(root: &Root, threads: CpuSet) -> Result<u32, Unusable> {
    let mut first = None;
    for cpu in threads.iter() {
        let path = format!("{CPUS}/cpu{cpu}/topology/physical_package_id");
        let why = match root.line(&path) {
            // Some machines report -1 for unknown.
            Ok(line) => match number(&line).map(u32::try_from) {
                Ok(Ok(socket)) => return Ok(socket),
                Ok(Err(_)) => "is not a socket id".to_owned(),
                Err(why) => why.to_string(),
            },
            Err(fault) => fault.to_string(),
        };
        first = first.or(Some(Unusable { path, why }));
    }
    Err(first.unwrap_or_default())
}

/// L3 caches found so far, by id.
#[derive(Default)]
struct Caches {
    known: BTreeMap<u32, CpuSet>,
    /// Index of the L3 among a CPU's caches, the same for most CPUs of a machine.
    index: Option<usize>,
}

impl Caches {
    /// The L3 of a core, from the first thread that has one. Many virtual machines have none, which is not
    /// a fault.
    fn of(&mut self, root: &Root, threads: CpuSet, notes: &mut Notes) -> Option<u32> {
        let mut fault = None;
        for cpu in threads.iter() {
            match self.l3_of(root, cpu) {
                Ok(Some((id, cpus))) => {
                    let known = self.known.entry(id).or_insert(cpus);
                    *known |= threads;
                    return Some(id);
                }
                Ok(None) => {}
                Err(why) => fault = fault.or(Some(why)),
            }
        }
        let Unusable { path, why } = fault?;
        // Another core of the same cache may have named this one.
        let named = self.known.iter().find(|(_, cpus)| threads.is_subset(cpus)).map(|(id, _)| *id);
        let so = match named {
            Some(id) => format!("the core counts to L3 cache {id}, which lists it"),
            None => "the L3 cache of the core is unknown".to_owned(),
        };
        notes.add(&path, format!("{why}, so {so}"), NOT_SYSFS);
        named
    }

    fn l3_of(&mut self, root: &Root, cpu: usize) -> Result<Option<(u32, CpuSet)>, Unusable> {
        let Some(index) = self.index_for(root, cpu)? else { return Ok(None) };
        let file = |name: &str| format!("{CPUS}/cpu{cpu}/cache/index{index}/{name}");
        let path = file("shared_cpu_list");
        let sharing = match root.line(&path).map(|line| list(&line)) {
            Ok(Ok(cpus)) if cpus.contains(cpu) => cpus,
            Ok(Ok(_)) => return Err(Unusable::new(path, format!("does not name CPU {cpu}"))),
            Ok(Err(why)) => {
                return Err(Unusable::new(path, format!("is not a list of CPUs ({why})")));
            }
            Err(fault) => return Err(Unusable::new(path, fault)),
        };
        // Kernels before 4.11 give no id.
        let lowest = sharing.iter().next().and_then(|cpu| u32::try_from(cpu).ok()).unwrap_or(0);
        let path = file("id");
        let id = match root.line(&path).map(|line| number(&line).map(u32::try_from)) {
            Ok(Ok(Ok(id))) => id,
            Err(Fault::Missing) => lowest,
            Ok(_) => return Err(Unusable::new(path, "is not a cache id")),
            Err(fault) => return Err(Unusable::new(path, fault)),
        };
        Ok(Some((id, sharing)))
    }

    fn index_for(&mut self, root: &Root, cpu: usize) -> Result<Option<usize>, Unusable> {
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
                Ok(_) => fault = fault.or(Some(Unusable::new(path, "is not a cache level"))),
                // The first try may be off; after that, numbers have no gaps.
                Err(Fault::Missing) if tried > 0 => break,
                Err(Fault::Missing) => {}
                Err(error) => fault = fault.or(Some(Unusable::new(path, error))),
            }
        }
        fault.map_or(Ok(None), Err)
    }
}
