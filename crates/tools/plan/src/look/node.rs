//! Nodes: sockets, NUMA nodes, CPUs, GPUs and slices, and who holds what.
//!
//! Owns what is read off the mirror of a kubelet, with how certain it is. Must not know how it is shown.

use std::collections::BTreeMap;

use berth_kubelet::{CpuManagerPolicy, Kubelet, KubeletConfig, MemoryManagerPolicy};
use berth_model::gpu::{Gpu, part_of};
use berth_model::idset::CpuSet;
use berth_model::machine::Machine;
use berth_model::resource::MemoryKind;
use berth_scenario::cluster::{ClusterNode, Prices};
use serde::Serialize;
use thiserror::Error;

use super::{Scene, named, wants};
use crate::account::Ledger;
use crate::report::{GpuUse, Placed, PodRef};
use crate::{doubt, place};

/// No such node.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("no node {name:?}")]
pub struct NoSuchNode {
    /// The name.
    pub name: String,
    /// One that it may have been meant to be.
    pub near: Option<String>,
}

/// Nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Nodes {
    /// Of this shape of the data; 1.
    pub version: u32,
    /// In order of name.
    pub nodes: Vec<NodeReport>,
    /// What is to be known besides.
    pub notes: Vec<String>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// Its pool; empty if it names none.
    pub pool: String,
    /// Its zone; empty if it names none.
    pub zone: String,
    /// Whether its kubelet says that it is ready.
    pub is_ready: bool,
    /// Whether nothing new is to go there.
    pub is_cordoned: bool,
    /// How old it is.
    pub age_seconds: Option<i64>,
    /// As its kubelet says.
    pub kubelet_version: String,
    /// What its GPUs are; empty if it has none.
    pub product: String,
    /// How many it has.
    pub gpus: usize,
    /// Memory of one.
    pub gpu_memory_bytes: u64,
    /// What has become of them.
    pub gpu_use: GpuUse,
    /// What is known of its inside.
    pub inside: Insight,
    /// How its kubelet is set up.
    pub policies: Option<Policies>,
    /// Its devices by kind, free and in all.
    pub devices: Vec<DeviceRoom>,
    /// Its sockets.
    pub sockets: Vec<Socket>,
    /// GPUs of which is not known, or not said by one place, where they are.
    pub elsewhere: Vec<GpuReport>,
    /// Its pods that hold GPUs or CPUs for themselves.
    pub pods: Vec<Resident>,
    /// How many others it has.
    pub other_pods: usize,
    /// What shows that some of this is wrong.
    pub doubts: Vec<String>,
}

/// What is known of a node's inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Insight {
    /// Nothing.
    #[default]
    Unknown,
    /// Something that cannot be true.
    Doubted,
    /// How it is built; what it has handed out depends on a draw.
    Drawn,
    /// All of it follows from the kubelet's rules.
    Known,
}

/// How a kubelet is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Policies {
    /// `topologyManagerPolicy`.
    pub topology: String,
    /// `topologyManagerScope`.
    pub scope: String,
    /// `cpuManagerPolicy`.
    pub cpu: String,
    /// `memoryManagerPolicy`.
    pub memory: String,
}

/// Devices of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceRoom {
    /// The resource.
    pub resource: String,
    /// Whether they are GPUs, or parts of some.
    pub is_gpu: bool,
    /// How many there are.
    pub all: usize,
    /// How many are free, by NUMA nodes that have some.
    pub free: Vec<FreeHere>,
}

/// Devices that are free on some NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FreeHere {
    /// Ids of the NUMA nodes.
    pub numa: Vec<u32>,
    /// How many are free.
    pub free: usize,
    /// How many there are.
    pub all: usize,
}

/// A socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Socket {
    /// Its id.
    pub id: u32,
    /// Its NUMA nodes.
    pub numa: Vec<NumaReport>,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NumaReport {
    /// Its id.
    pub id: u32,
    /// Its CPUs.
    pub cpus: Vec<usize>,
    /// How many can be given away for exclusive use; `None`: its kubelet does not do that.
    pub cpus_free: Option<usize>,
    /// How many are kept for the system.
    pub cpus_reserved: usize,
    /// Who has some for itself.
    pub cpu_holders: Vec<CpuHolder>,
    /// Its memory.
    pub memory_bytes: u64,
    /// What of it is not pinned; `None`: its kubelet does not pin memory.
    pub memory_free_bytes: Option<u64>,
    /// GPUs that are attached there.
    pub gpus: Vec<GpuReport>,
}

/// CPUs that a pod has for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CpuHolder {
    /// The pod.
    pub pod: PodRef,
    /// The CPUs.
    pub cpus: Vec<usize>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuReport {
    /// Its number on the node.
    pub gpu: usize,
    /// Whether it can be handed out.
    pub is_healthy: bool,
    /// What it is divided into; one part if it is whole.
    pub parts: Vec<PartReport>,
    /// Who has a share of it, where it is divided on demand.
    pub shares: Vec<PodRef>,
}

/// A GPU, or a slice of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartReport {
    /// The slice, as `3g.40gb@4`; `None`: the whole GPU.
    pub slice: Option<String>,
    /// Among how many it is shared; 1 if it is not.
    pub replicas: u16,
    /// Who certainly holds it.
    pub held_by: Vec<PodRef>,
    /// Who may hold it: the kubelet or its plugin picks.
    pub perhaps_by: Vec<PodRef>,
}

/// A pod on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resident {
    /// What it holds, by the model of the kubelet.
    pub place: Placed,
    /// What it wants of GPUs, in a few words.
    pub gpus: String,
}

impl Scene {
    /// All nodes, or those of these names.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn nodes_report(&self, names: &[String]) -> Result<Nodes, NoSuchNode> {
        for name in names {
            if self.cluster.node(name).is_none() {
                return Err(self.no_such_node(name));
            }
        }
        let meant =
            self.cluster.nodes.iter().filter(|node| {
                names.is_empty() || names.iter().any(|name| *name == *node.node.name)
            });
        let nodes: Vec<NodeReport> = meant.map(|node| self.node_report(node)).collect();
        let notes = if names.is_empty() { self.notes.clone() } else { Vec::new() };
        Ok(Nodes { version: 1, nodes, notes })
    }

    fn no_such_node(&self, name: &str) -> NoSuchNode {
        let all: Vec<&str> = self.cluster.nodes.iter().map(|node| &*node.node.name).collect();
        let near = berth_manifest::closest(name, &all).map(str::to_owned);
        NoSuchNode { name: name.to_owned(), near }
    }

    /// The accounts of a node without anybody.
    pub(super) fn ledger_of(&self, node: &ClusterNode) -> Ledger {
        Ledger::new(node, &Prices::default())
    }

    fn node_report(&self, node: &ClusterNode) -> NodeReport {
        let own = self.nodes.get(&node.node.name).cloned().unwrap_or_default();
        let first = node.inside.gpus.first();
        let mut report = NodeReport {
            name: node.node.name.to_string(),
            pool: node.pool().to_owned(),
            zone: node.zone().to_owned(),
            is_ready: own.is_ready,
            is_cordoned: node.node.unschedulable,
            age_seconds: own.created_at_ms.map(|created| self.since_s(created)),
            kubelet_version: own.kubelet_version,
            product: first.map_or_else(String::new, |gpu| gpu.product.clone()),
            gpus: node.inside.gpus.len(),
            gpu_memory_bytes: first.map_or(0, |gpu| gpu.memory_bytes),
            ..NodeReport::default()
        };
        let mut ledger = self.ledger_of(node);
        let pods = self.cluster.pods.iter();
        for pod in pods.filter(|pod| pod.node.as_ref() == Some(&node.node.name)) {
            ledger.take(&pod.spec, pod.gpu_grant.as_ref());
            let mut placed =
                Placed { pod: named(pod), node: report.name.clone(), ..Placed::default() };
            place::held(&self.engine, node, &pod.uid, &mut placed);
            placed.gpu_milli = ledger.gpu_milli(&pod.spec, pod.gpu_grant.as_ref());
            placed.share = pod.gpu_grant.as_ref().and_then(place::share_of);
            let gpus = wants::gpus(pod);
            if placed.gpu_milli > 0 || placed.cpus > 0 || gpus != "-" {
                report.pods.push(Resident { place: placed, gpus });
            } else {
                report.other_pods += 1;
            }
        }
        report.gpu_use = ledger.gpu_use();
        let seen = doubt::seen_otherwise(&self.engine, node);
        report.doubts = seen
            .iter()
            .map(|resource| {
                format!("the exporter saw other {resource} free than follow from the pods")
            })
            .collect();
        self.look_inside(node, &mut report);
        report
    }

    fn look_inside(&self, node: &ClusterNode, report: &mut NodeReport) {
        let mut holders = Holders::default();
        if let Some((kubelet, believed)) = self.engine.kubelet(&node.node.name) {
            report.inside = match (believed, kubelet.is_certain()) {
                (false, _) => Insight::Doubted,
                (true, false) => Insight::Drawn,
                (true, true) => Insight::Known,
            };
            report.policies = Some(policies(kubelet.config()));
            report.devices = rooms(kubelet, &node.inside.gpus);
            holders = self.holders(kubelet);
            report.sockets = sockets(kubelet, &holders);
        }
        for (number, gpu) in node.inside.gpus.iter().enumerate() {
            let gpu_report = GpuReport {
                gpu: number,
                is_healthy: gpu.is_healthy(),
                parts: holders.parts(node, number),
                shares: report
                    .pods
                    .iter()
                    .filter(|pod| {
                        pod.place.share.as_ref().is_some_and(|one| usize::from(one.gpu) == number)
                    })
                    .map(|pod| pod.place.pod.clone())
                    .collect(),
            };
            match home(report, &place::ids(node, gpu.numa)) {
                Some(numa) => numa.gpus.push(gpu_report),
                None => report.elsewhere.push(gpu_report),
            }
        }
    }

    fn holders(&self, kubelet: &Kubelet) -> Holders {
        let mut holders = Holders::default();
        for uid in kubelet.pods() {
            let Some(held) = kubelet.assignment(uid) else { continue };
            let pod = match self.pod(uid) {
                Some(pod) => named(pod),
                None => PodRef { namespace: String::new(), name: uid.to_owned() },
            };
            for container in &held.containers {
                for given in &container.devices {
                    let Some(pool) = kubelet.pools().nth(given.pool) else { continue };
                    let is_drawn = given.devices.len() > given.certain.len();
                    for (at, device) in pool.devices.iter().enumerate() {
                        let by = if given.certain.contains(at) {
                            &mut holders.certain
                        } else if is_drawn && given.candidates.contains(at) {
                            &mut holders.perhaps
                        } else {
                            continue;
                        };
                        by.entry(device.id.clone()).or_default().push(pod.clone());
                    }
                }
                if let Some(cpus) = container.cpus {
                    let all = holders.cpus.entry(pod.clone()).or_insert(CpuSet::EMPTY);
                    *all |= cpus;
                }
            }
        }
        holders
    }
}

/// The NUMA node of this id, if it is one.
fn home<'a>(report: &'a mut NodeReport, ids: &[u32]) -> Option<&'a mut NumaReport> {
    let [id] = ids else { return None };
    report.sockets.iter_mut().flat_map(|socket| &mut socket.numa).find(|numa| numa.id == *id)
}

/// Who holds what on a node, by ids of devices.
#[derive(Default)]
struct Holders {
    certain: BTreeMap<String, Vec<PodRef>>,
    perhaps: BTreeMap<String, Vec<PodRef>>,
    cpus: BTreeMap<PodRef, CpuSet>,
}

impl Holders {
    /// What a GPU is divided into, and who holds it. Replicas of one thing are one part.
    fn parts(&self, node: &ClusterNode, gpu: usize) -> Vec<PartReport> {
        let mut parts: Vec<PartReport> = Vec::new();
        for pool in node.inside.devices().unwrap_or_default() {
            for device in &pool.devices {
                let part = part_of(&node.inside.gpus, &device.id);
                let Some(part) = part.filter(|part| part.gpu == gpu) else { continue };
                let slice = part.slice.map(|slice| slice.to_string());
                let at = parts.iter().position(|one| one.slice == slice).unwrap_or_else(|| {
                    let replicas = part.replicas;
                    parts.push(PartReport { slice, replicas, ..PartReport::default() });
                    parts.len() - 1
                });
                let Some(own) = parts.get_mut(at) else { continue };
                let of = |by: &BTreeMap<String, Vec<PodRef>>| {
                    by.get(&device.id).cloned().unwrap_or_default()
                };
                own.held_by.extend(of(&self.certain));
                own.perhaps_by.extend(of(&self.perhaps));
            }
        }
        for part in &mut parts {
            for pods in [&mut part.held_by, &mut part.perhaps_by] {
                pods.sort();
                pods.dedup();
            }
        }
        parts.sort_by_key(|part| start_of(part.slice.as_deref()));
        parts
    }
}

/// Where a slice starts on its GPU.
fn start_of(slice: Option<&str>) -> usize {
    slice.and_then(|slice| slice.split_once('@')?.1.parse().ok()).unwrap_or(0)
}

fn policies(config: &KubeletConfig) -> Policies {
    Policies {
        topology: config.topology_policy.to_string(),
        scope: config.topology_scope.to_string(),
        cpu: match config.cpu_manager {
            CpuManagerPolicy::None => "none",
            CpuManagerPolicy::Static { .. } => "static",
        }
        .to_owned(),
        memory: match config.memory_manager {
            MemoryManagerPolicy::None => "None",
            MemoryManagerPolicy::Static { .. } => "Static",
        }
        .to_owned(),
    }
}

fn rooms(kubelet: &Kubelet, gpus: &[Gpu]) -> Vec<DeviceRoom> {
    let machine = kubelet.machine();
    let mut rooms = Vec::new();
    for (position, pool) in kubelet.pools().enumerate() {
        let mut here: BTreeMap<Vec<u32>, (usize, usize)> = BTreeMap::new();
        for device in &pool.devices {
            here.entry(machine.numa_ids(device.numa)).or_default().1 += 1;
        }
        for (numa, free) in kubelet.free_by_numa(position) {
            here.entry(machine.numa_ids(numa)).or_default().0 += free;
        }
        let free = here.into_iter().map(|(numa, (free, all))| FreeHere { numa, free, all });
        rooms.push(DeviceRoom {
            resource: pool.resource.to_string(),
            is_gpu: pool.devices.first().is_some_and(|one| part_of(gpus, &one.id).is_some()),
            all: pool.devices.len(),
            free: free.collect(),
        });
    }
    rooms
}

fn sockets(kubelet: &Kubelet, holders: &Holders) -> Vec<Socket> {
    let machine = kubelet.machine();
    let mut sockets: Vec<Socket> =
        machine.sockets().iter().map(|socket| Socket { id: socket.id, numa: Vec::new() }).collect();
    for (position, numa) in machine.numa().iter().enumerate() {
        let at = machine.sockets().iter().position(|socket| socket.cpus.intersects(&numa.cpus));
        let report = numa_report(kubelet, machine, position, holders);
        match sockets.get_mut(at.unwrap_or(0)) {
            Some(socket) => socket.numa.push(report),
            None => sockets.push(Socket { id: 0, numa: vec![report] }),
        }
    }
    sockets.retain(|socket| !socket.numa.is_empty());
    sockets
}

fn numa_report(
    kubelet: &Kubelet,
    machine: &Machine,
    position: usize,
    holders: &Holders,
) -> NumaReport {
    let Some(numa) = machine.numa().get(position) else { return NumaReport::default() };
    let free = kubelet.free_cpus_by_numa().and_then(|free| free.get(position)).copied();
    let memory = kubelet.free_memory();
    let memory = memory.iter().find(|one| one.kind == MemoryKind::Ordinary);
    let cpu_holders = holders.cpus.iter().filter_map(|(pod, cpus)| {
        let cpus: Vec<usize> = (*cpus & numa.cpus).iter().collect();
        (!cpus.is_empty()).then(|| CpuHolder { pod: pod.clone(), cpus })
    });
    NumaReport {
        id: numa.id,
        cpus: numa.cpus.iter().collect(),
        cpus_free: free.map(usize::from),
        cpus_reserved: kubelet.reserved_cpus().map_or(0, |all| all.count_in(&numa.cpus)),
        cpu_holders: cpu_holders.collect(),
        memory_bytes: numa.memory_bytes,
        memory_free_bytes: memory.and_then(|one| one.bytes.get(position).copied().flatten()),
        gpus: Vec::new(),
    }
}
