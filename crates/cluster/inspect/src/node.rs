//! Nodes: sockets, NUMA nodes, CPUs, GPUs and slices, and which pod holds what.

use std::collections::BTreeMap;

use berth_kubelet::{CpuManagerPolicy, Kubelet, KubeletConfig, MemoryManagerPolicy};
use berth_model::gpu::{Gpu, part_of};
use berth_model::idset::CpuSet;
use berth_model::machine::Machine;
use berth_model::resource::MemoryKind;
use berth_topology::Inside;
use serde::Serialize;
use thiserror::Error;

use crate::holdings::Holdings;
use crate::place::{Placed, numa_ids};
use crate::record::Evidence;
use crate::usage::GpuUse;
use crate::{Inspection, NodeFacts, PodFacts, PodRef, Source, VERSION, doubt, request};

/// The label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Debug, PartialEq, Eq, Error)]
#[error("node {name:?} not found")]
pub struct NoSuchNode {
    pub name: String,
    /// A node with a similar name.
    pub near: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Nodes {
    /// Of this JSON form; 1.
    pub version: u32,
    /// In order of name.
    pub nodes: Vec<NodeReport>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    pub name: String,
    /// Empty if it is in no pool.
    pub pool: String,
    /// Empty if it has no zone label.
    pub zone: String,
    pub is_ready: bool,
    pub is_cordoned: bool,
    pub age_seconds: Option<i64>,
    pub kubelet_version: String,
    /// GPU product; empty if it has no GPUs.
    pub product: String,
    pub gpus: usize,
    /// Of one GPU.
    pub gpu_memory_bytes: u64,
    pub gpu_use: GpuUse,
    /// How much is known of the topology and of who holds what.
    pub inside: Insight,
    pub policies: Option<Policies>,
    pub devices: Vec<DeviceRoom>,
    pub sockets: Vec<Socket>,
    /// GPUs that are not attached to exactly one known NUMA node.
    pub elsewhere: Vec<GpuReport>,
    /// Pods that hold GPUs or exclusive CPUs.
    pub pods: Vec<Resident>,
    pub other_pods: usize,
    /// What shows that some of this is wrong.
    pub doubts: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Insight {
    /// No object describes the topology.
    #[default]
    Unknown,
    /// A pod runs there that the kubelet, as the node describes it, would have rejected.
    Doubted,
    /// The topology is known. What pods hold depends on a random choice of the kubelet.
    Drawn,
    Known,
}

/// The kubelet's configuration, in the words of its own fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Policies {
    pub topology: String,
    pub scope: String,
    pub cpu: String,
    pub memory: String,
}

/// Devices of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceRoom {
    pub resource: String,
    /// Whether they are GPUs, or parts of some.
    pub is_gpu: bool,
    pub all: usize,
    /// By the NUMA nodes that have some.
    pub free: Vec<FreeHere>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FreeHere {
    /// Ids of the NUMA nodes.
    pub numa: Vec<u32>,
    pub free: usize,
    pub all: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Socket {
    pub id: u32,
    pub numa: Vec<NumaReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NumaReport {
    pub id: u32,
    pub cpus: Vec<usize>,
    /// CPUs that can be allocated exclusively; `None`: the kubelet pins none.
    pub cpus_free: Option<usize>,
    pub cpus_reserved: usize,
    pub cpu_holders: Vec<CpuHolder>,
    pub memory_bytes: u64,
    /// `None`: the kubelet pins no memory.
    pub memory_free_bytes: Option<u64>,
    pub gpus: Vec<GpuReport>,
}

/// Exclusive CPUs of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CpuHolder {
    pub pod: PodRef,
    pub cpus: Vec<usize>,
    /// Which CPUs exactly is certain only if the kubelet says it.
    pub evidence: Evidence,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuReport {
    /// Its number on the node.
    pub gpu: usize,
    pub is_healthy: bool,
    /// One part if it is whole.
    pub parts: Vec<PartReport>,
    /// Pods with a part of it, if it is divided on demand.
    pub shares: Vec<PodRef>,
}

/// A GPU, or a slice of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartReport {
    /// The slice, as `3g.40gb@4`; `None`: the whole GPU.
    pub slice: Option<String>,
    /// How many pods can share it; 1 if it is not shared.
    pub replicas: u16,
    pub held_by: Vec<PodRef>,
    /// The kubelet or its plugin picks, so these may hold it.
    pub perhaps_by: Vec<PodRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resident {
    pub place: Placed,
    /// What it requests of GPUs, such as `2×1g.10gb`.
    pub gpus: String,
}

impl<S: Source> Inspection<'_, S> {
    /// All nodes, or those named.
    pub fn nodes(&self, names: &[String]) -> Result<Nodes, NoSuchNode> {
        let facts = if names.is_empty() {
            self.source.nodes()
        } else {
            let mut found = Vec::with_capacity(names.len());
            for name in names {
                found.push(self.source.node(name).ok_or_else(|| self.no_such_node(name))?);
            }
            found.sort_by_key(|facts| facts.name);
            found.dedup_by_key(|facts| facts.name);
            found
        };
        let notes = if names.is_empty() { self.doubts() } else { Vec::new() };
        let nodes = facts.iter().map(|facts| self.node_report(facts)).collect();
        Ok(Nodes { version: VERSION, nodes, notes })
    }

    fn no_such_node(&self, name: &str) -> NoSuchNode {
        let all = self.source.nodes();
        let all: Vec<&str> = all.iter().map(|facts| facts.name).collect();
        let near = berth_manifest::closest(name, &all).map(str::to_owned);
        NoSuchNode { name: name.to_owned(), near }
    }

    /// Notes on nodes of which something is uncertain.
    pub(crate) fn doubts(&self) -> Vec<String> {
        let nodes = self.source.nodes();
        doubt::doubts(self.engine, nodes.iter().map(|one| (one.name, one.exported_free)))
    }

    fn node_report(&self, facts: &NodeFacts<'_>) -> NodeReport {
        let NodeFacts { name, inside, .. } = *facts;
        let node = self.engine.node(name);
        let first = inside.gpus.first();
        let mut report = NodeReport {
            name: name.to_owned(),
            pool: self.pool_of(name),
            zone: node
                .and_then(|node| node.labels.get(ZONE))
                .map(ToString::to_string)
                .unwrap_or_default(),
            is_ready: facts.is_ready,
            is_cordoned: node.is_some_and(|node| node.unschedulable),
            age_seconds: facts.created_at_ms.map(|created| self.seconds_since(created)),
            kubelet_version: facts.kubelet_version.to_owned(),
            product: first.map_or_else(String::new, |gpu| gpu.product.clone()),
            gpus: inside.gpus.len(),
            gpu_memory_bytes: first.map_or(0, |gpu| gpu.memory_bytes),
            ..NodeReport::default()
        };
        let mut pods = self.source.pods_on(name);
        pods.sort_by_key(|pod| (&pod.object.spec.namespace, &pod.object.name));
        let kubelet = self.engine.kubelet(name);
        let holdings = kubelet.map(|(mirror, _)| Holdings::new(mirror, &pods));
        let mut usage = self.usage(facts);
        for PodFacts { object: pod, .. } in &pods {
            usage.add(&pod.spec, pod.gpu_grant.as_ref());
            let place = Placed::new(pod, &report.name, &report.pool);
            let mut place = place.held(holdings.as_ref(), inside, pod);
            place.gpu_milli = usage.gpu_milli(&pod.spec, pod.gpu_grant.as_ref());
            let gpus = request::gpus(pod);
            if place.gpu_milli > 0 || place.cpus > 0 || gpus != request::NONE {
                report.pods.push(Resident { place, gpus });
            } else {
                report.other_pods += 1;
            }
        }
        report.gpu_use = usage.gpu_use();
        if let (Some(holdings), Some((_, believed))) = (&holdings, kubelet) {
            let kubelet = &*holdings.kubelet;
            report.inside = match (believed, kubelet.is_certain()) {
                (false, _) => Insight::Doubted,
                (true, false) => Insight::Drawn,
                (true, true) => Insight::Known,
            };
            if believed {
                let contradicted = doubt::contradicted(kubelet, facts.exported_free);
                report.doubts = contradicted
                    .iter()
                    .map(|resource| {
                        format!(
                            "the exporter reports other free {resource} by NUMA node than the pods here \
                             account for"
                        )
                    })
                    .collect();
            }
        }
        self.fill_inside(inside, holdings.as_ref(), &mut report);
        report
    }

    fn fill_inside(
        &self,
        inside: &Inside,
        holdings: Option<&Holdings<'_>>,
        report: &mut NodeReport,
    ) {
        let mut holders = Holders::default();
        if let Some(holdings) = holdings {
            let kubelet = &*holdings.kubelet;
            report.policies = Some(policies(kubelet.config()));
            report.devices = rooms(kubelet, &inside.gpus);
            holders = self.holders(holdings);
            report.sockets = sockets(kubelet, &holders);
        }
        for (number, gpu) in inside.gpus.iter().enumerate() {
            let gpu_report = GpuReport {
                gpu: number,
                is_healthy: gpu.is_healthy(),
                parts: holders.parts(inside, number),
                shares: report
                    .pods
                    .iter()
                    .filter(|pod| {
                        pod.place.share.as_ref().is_some_and(|one| usize::from(one.gpu) == number)
                    })
                    .map(|pod| pod.place.pod.clone())
                    .collect(),
            };
            match home(report, &numa_ids(inside, gpu.numa)) {
                Some(numa) => numa.gpus.push(gpu_report),
                None => report.elsewhere.push(gpu_report),
            }
        }
    }

    fn holders(&self, holdings: &Holdings<'_>) -> Holders {
        let kubelet = &*holdings.kubelet;
        let mut holders = Holders::default();
        for uid in kubelet.pods() {
            let Some(held) = kubelet.assignment(uid) else { continue };
            let pod = match self.source.pod(uid) {
                Some(pod) => pod.object.into(),
                None => PodRef { namespace: String::new(), name: uid.to_owned() },
            };
            for container in &held.containers {
                for own in &container.devices {
                    let Some(pool) = kubelet.pools().nth(own.pool) else { continue };
                    let is_drawn = own.devices.len() > own.certain.len();
                    for (at, device) in pool.devices.iter().enumerate() {
                        let by = if own.certain.contains(at) {
                            &mut holders.certain
                        } else if is_drawn && own.candidates.contains(at) {
                            &mut holders.perhaps
                        } else {
                            continue;
                        };
                        by.entry(device.id.clone()).or_default().push(pod.clone());
                    }
                }
                if let Some(cpus) = container.cpus {
                    let evidence = holdings.evidence(uid);
                    let all = holders.cpus.entry(pod.clone()).or_insert((CpuSet::EMPTY, evidence));
                    all.0 |= cpus;
                }
            }
        }
        holders
    }
}

/// `None` unless exactly one NUMA node is meant and known.
fn home<'a>(report: &'a mut NodeReport, ids: &[u32]) -> Option<&'a mut NumaReport> {
    let [id] = ids else { return None };
    report.sockets.iter_mut().flat_map(|socket| &mut socket.numa).find(|numa| numa.id == *id)
}

/// Pods by the ids of the devices that they hold.
#[derive(Default)]
struct Holders {
    certain: BTreeMap<String, Vec<PodRef>>,
    perhaps: BTreeMap<String, Vec<PodRef>>,
    cpus: BTreeMap<PodRef, (CpuSet, Evidence)>,
}

impl Holders {
    /// Replicas of one GPU or slice are one part.
    fn parts(&self, inside: &Inside, gpu: usize) -> Vec<PartReport> {
        let mut parts: Vec<PartReport> = Vec::new();
        for pool in inside.devices().unwrap_or_default() {
            for device in &pool.devices {
                let part = part_of(&inside.gpus, &device.id);
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

/// The memory unit at which the slice starts on its GPU.
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
    let cpu_holders = holders.cpus.iter().filter_map(|(pod, (cpus, evidence))| {
        let cpus: Vec<usize> = (*cpus & numa.cpus).iter().collect();
        (!cpus.is_empty()).then(|| CpuHolder { pod: pod.clone(), cpus, evidence: *evidence })
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
