//! Processors and memory, as sysfs and procfs show them, with the numbering that Linux uses on x86.

use berth_model::idset::IdSet;

use super::{SyntheticDevice, Tree};

const CPUS: &str = "sys/devices/system/cpu";
const NODES: &str = "sys/devices/system/node";

#[derive(Clone, Debug)]
pub struct SyntheticMachine {
    pub processor: &'static str,
    pub sockets: usize,
    pub numa_per_socket: usize,
    pub cores_per_numa: usize,
    pub threads: usize,
    /// Cores per L3 cache, which does not cross sockets.
    pub cores_per_l3: usize,
    /// Distance of L3 ids between sockets.
    pub l3_ids_per_socket: usize,
    /// Ids of NUMA nodes with CPUs, ascending.
    pub numa_ids: Vec<u32>,
    /// Per NUMA node with CPUs.
    pub memory_bytes: u64,
    /// NUMA nodes with CPUs but without memory.
    pub without_memory: Vec<u32>,
    /// Per NUMA node with memory: page size in bytes, number of pages.
    pub hugepages: Vec<(u64, u64)>,
    pub nodes_without_cpus: Vec<SyntheticNode>,
    /// To another node of the same socket, and of another socket.
    pub distances: (u32, u32),
    /// CPUs that are switched off.
    pub offline: IdSet,
    pub devices: Vec<SyntheticDevice>,
}

/// A NUMA node without CPUs.
#[derive(Clone, Debug)]
pub struct SyntheticNode {
    pub id: u32,
    pub memory_bytes: u64,
    /// To all other nodes.
    pub distance: u32,
}

impl SyntheticMachine {
    fn cores(&self) -> usize {
        self.sockets * self.numa_per_socket * self.cores_per_numa
    }

    /// Online or not, numbered as Linux does: first threads first.
    fn present(&self) -> IdSet {
        IdSet::first_ids(self.cores() * self.threads)
    }

    fn cpus_of_cores(&self, cores: std::ops::Range<usize>) -> IdSet {
        let all = self.cores();
        (0..self.threads)
            .flat_map(|thread| cores.clone().map(move |core| thread * all + core))
            .collect()
    }

    fn online_of_cores(&self, cores: std::ops::Range<usize>) -> IdSet {
        self.cpus_of_cores(cores) - self.offline
    }

    /// Online CPUs of the NUMA node at a position in `numa_ids`.
    pub fn cpus_of_node(&self, position: usize) -> IdSet {
        let first = position * self.cores_per_numa;
        self.online_of_cores(first..first + self.cores_per_numa)
    }

    pub fn tree(&self) -> Tree {
        let mut tree = Tree::default();
        let online = self.present() - self.offline;
        for (name, set) in [
            ("online", online),
            ("present", self.present()),
            ("possible", self.present()),
            ("offline", self.offline),
        ] {
            tree.line(format!("{CPUS}/{name}"), set);
        }
        for cpu in self.present().iter() {
            self.cpu(&mut tree, cpu);
        }
        self.nodes(&mut tree);
        self.proc(&mut tree);
        for device in &self.devices {
            device.add(&mut tree, self);
        }
        tree
    }

    fn cpu(&self, tree: &mut Tree, cpu: usize) {
        let at = format!("{CPUS}/cpu{cpu}");
        let core = cpu % self.cores();
        tree.link(format!("{at}/subsystem"), "../../../../bus/cpu");
        if cpu > 0 {
            // CPU 0 cannot be taken offline and has no such file.
            tree.line(format!("{at}/online"), u8::from(!self.offline.contains(cpu)));
        }
        if self.offline.contains(cpu) {
            return;
        }
        let node = self.numa_ids.get(core / self.cores_per_numa).copied().unwrap_or(0);
        tree.link(format!("{at}/node{node}"), format!("../../node/node{node}"));
        let per_socket = self.numa_per_socket * self.cores_per_numa;
        let socket = core / per_socket;
        let siblings = self.online_of_cores(core..core + 1);
        let package = self.online_of_cores(socket * per_socket..(socket + 1) * per_socket);
        let topology = format!("{at}/topology");
        tree.line(format!("{topology}/physical_package_id"), socket)
            .line(format!("{topology}/core_id"), core % per_socket)
            .line(format!("{topology}/die_id"), 0)
            .line(format!("{topology}/core_cpus_list"), siblings)
            .line(format!("{topology}/thread_siblings_list"), siblings)
            .line(format!("{topology}/thread_siblings"), mask(&siblings, self.present().len()))
            .line(format!("{topology}/package_cpus_list"), package);
        let first = core / self.cores_per_l3 * self.cores_per_l3;
        let sharing = self.online_of_cores(first..first + self.cores_per_l3);
        let l3 = socket * self.l3_ids_per_socket + core % per_socket / self.cores_per_l3;
        let caches = [
            (1, "Data", core, siblings),
            (1, "Instruction", core, siblings),
            (2, "Unified", core, siblings),
            (3, "Unified", l3, sharing),
        ];
        for (index, (level, kind, id, sharing)) in caches.into_iter().enumerate() {
            let cache = format!("{at}/cache/index{index}");
            tree.line(format!("{cache}/level"), level);
            // Of other caches only the level is ever read; fewer files make tests faster.
            if level == 3 {
                tree.line(format!("{cache}/type"), kind)
                    .line(format!("{cache}/id"), id)
                    .line(format!("{cache}/shared_cpu_list"), sharing);
            }
        }
    }

    fn nodes(&self, tree: &mut Tree) {
        let count = self.sockets * self.numa_per_socket;
        let mut ids: Vec<u32> = self.numa_ids.iter().copied().take(count).collect();
        ids.extend(self.nodes_without_cpus.iter().map(|node| node.id));
        ids.sort_unstable();
        let all: IdSet = ids.iter().map(|id| *id as usize).collect();
        tree.line(format!("{NODES}/online"), all).line(format!("{NODES}/possible"), all);
        for (position, id) in self.numa_ids.iter().take(count).enumerate() {
            let distances = ids.iter().map(|to| self.distance(*id, *to).to_string());
            let distances: Vec<String> = distances.collect();
            let at = format!("{NODES}/node{id}");
            let cpus = self.cpus_of_node(position);
            tree.line(format!("{at}/cpulist"), cpus)
                .line(format!("{at}/cpumap"), mask(&cpus, self.present().len()))
                .line(format!("{at}/distance"), distances.join(" "))
                .file(format!("{at}/meminfo"), meminfo(*id, self.memory_of(*id)));
            let empty = self.without_memory.contains(id);
            self.hugepages(tree, &at, if empty { &[] } else { &self.hugepages });
        }
        for node in &self.nodes_without_cpus {
            let distances = ids.iter().map(|to| self.distance(node.id, *to).to_string());
            let distances: Vec<String> = distances.collect();
            let at = format!("{NODES}/node{}", node.id);
            tree.line(format!("{at}/cpulist"), "")
                .line(format!("{at}/cpumap"), mask(&IdSet::EMPTY, self.present().len()))
                .line(format!("{at}/distance"), distances.join(" "))
                .file(format!("{at}/meminfo"), meminfo(node.id, node.memory_bytes));
            self.hugepages(tree, &at, &[]);
        }
    }

    fn hugepages(&self, tree: &mut Tree, node: &str, pages: &[(u64, u64)]) {
        for page_bytes in [2 << 20, 1 << 30] {
            let count = pages.iter().find(|(bytes, _)| *bytes == page_bytes).map_or(0, |one| one.1);
            let at = format!("{node}/hugepages/hugepages-{}kB", page_bytes / 1024);
            tree.line(format!("{at}/nr_hugepages"), count)
                .line(format!("{at}/free_hugepages"), count)
                .line(format!("{at}/surplus_hugepages"), 0);
        }
    }

    fn memory_of(&self, id: u32) -> u64 {
        if self.without_memory.contains(&id) { 0 } else { self.memory_bytes }
    }

    fn distance(&self, from: u32, to: u32) -> u32 {
        let socket = |id| {
            let position = self.numa_ids.iter().position(|one| *one == id)?;
            Some(position / self.numa_per_socket)
        };
        let far = |id| {
            self.nodes_without_cpus.iter().find(|node| node.id == id).map(|node| node.distance)
        };
        match (socket(from), socket(to)) {
            _ if from == to => 10,
            (Some(one), Some(another)) if one == another => self.distances.0,
            (Some(_), Some(_)) => self.distances.1,
            _ => far(from).or(far(to)).unwrap_or(20),
        }
    }

    fn proc(&self, tree: &mut Tree) {
        let nodes = self.numa_ids.iter().take(self.sockets * self.numa_per_socket);
        let own: u64 = nodes.map(|id| self.memory_of(*id)).sum();
        let all = own + self.nodes_without_cpus.iter().map(|node| node.memory_bytes).sum::<u64>();
        let text = format!(
            "MemTotal:       {} kB\nMemFree:        {} kB\nHugePages_Total:       0\n",
            all / 1024,
            all / 4096
        );
        tree.file("proc/meminfo", text);
        let cpu = |cpu: usize| {
            format!("processor\t: {cpu}\nmodel name\t: {}\nmicrocode\t: 0x1\n\n", self.processor)
        };
        let text: String = (self.present() - self.offline).iter().map(cpu).collect();
        tree.file("proc/cpuinfo", text);
    }
}

fn meminfo(node: u32, bytes: u64) -> String {
    let line = |name: &str, kilobytes: u64| format!("Node {node} {name:<16}{kilobytes} kB\n");
    [("MemTotal:", bytes / 1024), ("MemFree:", bytes / 2048), ("MemUsed:", bytes / 2048)]
        .map(|(name, kilobytes)| line(name, kilobytes))
        .concat()
}

/// A mask in groups of 32 bits, as wide as the machine's CPU count.
fn mask(set: &IdSet, bits: usize) -> String {
    let groups = (0..bits.div_ceil(32).max(1)).rev().map(|group| {
        let bits = (0..32).filter(|bit| set.contains(group * 32 + bit));
        format!("{:08x}", bits.fold(0u32, |all, bit| all | 1 << bit))
    });
    groups.collect::<Vec<_>>().join(",")
}
