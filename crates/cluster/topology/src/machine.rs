//! A machine and its kubelet's configuration, from a NodeResourceTopology or else from labels. Without
//! either the topology is unknown.
//!
//! From a NodeResourceTopology:
//! - Zones of type `Node` are NUMA nodes, with the number at the end of their name; costs are
//!   distances. NUMA nodes closer than 20 are on one socket, as are zones with the same parent.
//! - CPUs and memory of a zone are its capacity; what is not allocatable is reserved for the system.
//!   If zones do not list them, the node's own capacity is divided evenly.
//! - CPUs are pinned if zones list allocatable ones and reserve some: the kubelet reports none under any
//!   policy but `static`. The same holds for memory. Attributes with the names of the kubelet's own fields
//!   (`cpuManagerPolicy`, or `berth.dev/cpu-manager-policy`, and so on) take precedence, and so do labels
//!   and annotations of the node.
//! - Attributes of ours in zones ([`crate::detail`]) tell which CPUs are threads of which core, and other
//!   things that counts cannot tell.
//! - Devices that no zone lists are attached to no NUMA node; those that several list, to all of these.
//!
//! From labels (or annotations, if the value is no valid label): `berth.dev/numa-nodes` is the number of
//! NUMA nodes, all alike, and `berth.dev/sockets` that of sockets. Policies are labels too, such as
//! `berth.dev/topology-manager-policy`. Labels that a node lacks default to the topology of its Pool.

mod cores;

use std::borrow::Cow;
use std::collections::BTreeMap;

use berth_api::FieldPath;
use berth_api::crd::PoolTopology;
use berth_api::keys::{NUMA_NODES, SOCKETS, THREADS_PER_CORE};
use berth_api::topology::{NodeResourceTopology, Zone};
use berth_kubelet::{
    CpuManagerPolicy, CpuOption, CpuOptions, KubeletConfig, KubeletVersion, MemoryManagerPolicy,
    ReservedCpus, ReservedMemory, TopologyPolicy, TopologyScope,
};
use berth_model::idset::{CpuSet, IdSet};
use berth_model::machine::{Machine, MachineSpec, NumaSpec};
use berth_model::numa::NumaMask;
use berth_model::quantity::Quantity;
use berth_model::resource::{MemoryKind, ResourceName};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use self::cores::{cores, lowest};
use crate::detail::{self, Detail};
use crate::gpus::DEVICES_MAX;
use crate::{DeviceCounts, Origin, TopologyError};

/// Zones of this type are NUMA nodes.
const NUMA_ZONE: &str = "Node";

/// Distances of NUMA nodes on the same socket are below this: firmware says 10 for a node itself,
/// 11 or 12 for its neighbours on the socket, and 20 and more for other sockets.
const OTHER_SOCKET_DISTANCE: u32 = 20;

/// A label of node feature discovery.
const MULTITHREADING: &str = "feature.node.kubernetes.io/cpu-hardware_multithreading";

/// A machine, its kubelet, and where devices are attached.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    pub(crate) machine: Machine,
    pub(crate) kubelet: KubeletConfig,
    pub(crate) devices: DeviceCounts,
    /// As the exporter reports them.
    pub(crate) free: DeviceCounts,
}

fn invalid<T>(
    field: FieldPath,
    message: impl Into<String>,
    remedy: impl Into<String>,
) -> Result<T, TopologyError> {
    Err(TopologyError {
        origin: Origin::Node,
        field,
        message: message.into(),
        remedy: remedy.into(),
    })
}

/// A NUMA node.
#[derive(Clone, Debug, Default)]
struct Part {
    id: u32,
    cpus: usize,
    cpus_reserved: usize,
    memory_bytes: u64,
    memory_reserved_bytes: u64,
    hugepages: BTreeMap<u64, u64>,
    distances: Vec<u32>,
    socket: u32,
    devices: BTreeMap<ResourceName, u64>,
    free: BTreeMap<ResourceName, u64>,
    detail: Detail,
}

/// Looks up a value by name.
type Find<'a> = Box<dyn Fn(&str) -> Option<&'a str> + 'a>;

/// The kubelet's configuration under the names of its configuration file, wherever it is set.
struct Policies<'a> {
    /// Whether reserved CPUs and memory imply that they are pinned.
    inferred: bool,
    find: Find<'a>,
    field: Box<dyn Fn(&str) -> FieldPath + 'a>,
}

pub(crate) fn exported(
    node: &core::Node,
    topology: &NodeResourceTopology,
) -> Result<Option<Description>, TopologyError> {
    let root = || FieldPath::root().key("zones");
    let zones: Vec<(usize, &Zone)> =
        topology.zones.iter().enumerate().filter(|(_, zone)| zone.zone_type == NUMA_ZONE).collect();
    if zones.is_empty() {
        return Ok(None);
    }
    if zones.len() > NumaMask::CAPACITY {
        let message = format!("{} zones of type Node", zones.len());
        return invalid(root(), message, format!("at most {} are supported", NumaMask::CAPACITY));
    }
    let mut parts = Vec::with_capacity(zones.len());
    for (index, zone) in &zones {
        parts.push(part(zone, &root().at(*index))?);
    }
    fill_gaps(node, &zones, &mut parts)?;
    check_cpus(&parts, root())?;
    let costs = distances(&zones, &parts);
    for (part, distances) in parts.iter_mut().zip(costs) {
        part.distances = distances;
    }
    find_sockets(&zones, &mut parts);
    let listed = |name: &str| {
        let own = || topology.attribute(&key_of(name)).or_else(|| marked(node, &key_of(name)));
        topology.attribute(name).or_else(own)
    };
    let position = |name: &str| {
        let own = key_of(name);
        topology.attributes.iter().position(|one| one.name == name || one.name == own)
    };
    let policies = Policies {
        inferred: true,
        find: Box::new(listed),
        field: Box::new(move |name| match position(name) {
            Some(index) => FieldPath::root().key("attributes").at(index).key("value"),
            None => FieldPath::root().key("attributes"),
        }),
    };
    let mut kubelet = policies.read(node, &parts)?;
    if policies.topology()?.is_none()
        && let Some((policy, scope)) = deprecated(&topology.topology_policies)
    {
        (kubelet.topology_policy, kubelet.topology_scope) = (policy, scope);
    }
    finish(node, parts, kubelet, root())
}

pub(crate) fn labelled(node: &core::Node) -> Result<Option<Description>, TopologyError> {
    let Some(count) = number(node, NUMA_NODES)? else { return Ok(None) };
    let sockets = number(node, SOCKETS)?.unwrap_or(count);
    if count == 0 || count > NumaMask::CAPACITY as u64 || sockets == 0 || count % sockets != 0 {
        let message = format!("cannot divide {count} NUMA nodes evenly among {sockets} sockets");
        let remedy = "set 1 to 64 NUMA nodes, a multiple of the sockets";
        return invalid(field_of(node, NUMA_NODES), message, remedy);
    }
    let mut parts: Vec<Part> = (0..count)
        .map(|id| Part {
            id: id as u32,
            socket: (id / (count / sockets)) as u32,
            ..Part::default()
        })
        .collect();
    divide_evenly(node, &mut parts)?;
    check_cpus(&parts, field_of(node, NUMA_NODES))?;
    let of_socket: Vec<u32> = parts.iter().map(|part| part.socket).collect();
    for (from, part) in parts.iter_mut().enumerate() {
        let distance = |(to, socket): (usize, &u32)| match *socket == part.socket {
            _ if to == from => 10,
            true => 12,
            false => OTHER_SOCKET_DISTANCE + 1,
        };
        part.distances = of_socket.iter().enumerate().map(distance).collect();
    }
    spread_devices(node, &mut parts)?;
    reserve_memory(node, &mut parts)?;
    let policies = Policies {
        inferred: false,
        find: Box::new(|name| marked(node, &key_of(name))),
        field: Box::new(|name| field_of(node, &key_of(name))),
    };
    let kubelet = policies.read(node, &parts)?;
    finish(node, parts, kubelet, field_of(node, NUMA_NODES))
}

/// The node with annotations from its pool for labels that it lacks.
pub(crate) fn in_pool<'a>(node: &'a core::Node, pool: &PoolTopology) -> Cow<'a, core::Node> {
    let PoolTopology { numa_nodes, sockets, threads_per_core, kubelet } = pool;
    let counts =
        [(NUMA_NODES, numa_nodes), (SOCKETS, sockets), (THREADS_PER_CORE, threads_per_core)];
    let counts = counts
        .into_iter()
        .filter_map(|(key, count)| count.as_ref().map(|count| (key.to_owned(), count.to_string())));
    let of_pool = counts.chain(kubelet.iter().map(|(field, value)| (key_of(field), value.clone())));
    let lacking: Vec<_> = of_pool.filter(|(key, _)| marked(node, key).is_none()).collect();
    if lacking.is_empty() {
        return Cow::Borrowed(node);
    }
    let mut node = node.clone();
    node.metadata.annotations.get_or_insert_default().extend(lacking);
    Cow::Owned(node)
}

/// Our label, annotation or attribute for a field of the kubelet's configuration:
/// `topologyManagerPolicy` is `berth.dev/topology-manager-policy`.
pub fn key_of(field: &str) -> String {
    let mut key = String::from("berth.dev/");
    let mut before = 'A';
    for one in field.chars() {
        if one.is_ascii_uppercase() && !before.is_ascii_uppercase() {
            key.push('-');
        }
        key.push(one.to_ascii_lowercase());
        before = one;
    }
    key
}

fn part(zone: &Zone, at: &FieldPath) -> Result<Part, TopologyError> {
    let digits = zone.name.trim_end_matches(|one: char| one.is_ascii_digit()).len();
    let Some(id) = zone.name.get(digits..).and_then(|id| id.parse().ok()) else {
        let message = format!("zone name {:?} does not end in a NUMA node id", zone.name);
        return invalid(at.clone().key("name"), message, "use a name such as node-0");
    };
    let mut part = Part { id, ..Part::default() };
    for (index, resource) in zone.resources.iter().enumerate() {
        let at = at.clone().key("resources").at(index);
        let amount = |text: &Text, field: &str| -> Result<u64, TopologyError> {
            if text.0.is_empty() {
                return Ok(0);
            }
            amount_of(text).map_or_else(
                |error| invalid(at.clone().key(field), error, "use a quantity such as 64Gi"),
                Ok,
            )
        };
        let allocatable = amount(&resource.allocatable, "allocatable")?;
        let capacity = amount(&resource.capacity, "capacity")?.max(allocatable);
        let name = ResourceName::new(resource.name.as_str());
        match (resource.name.as_str(), MemoryKind::of(&name)) {
            ("cpu", _) => {
                let small = |cpus: u64| usize::try_from(cpus).unwrap_or(usize::MAX);
                (part.cpus, part.cpus_reserved) = (small(capacity), small(capacity - allocatable));
            }
            (_, Ok(Some(MemoryKind::Ordinary))) => {
                part.memory_bytes = capacity;
                part.memory_reserved_bytes = capacity - allocatable;
            }
            (_, Ok(Some(MemoryKind::Hugepages { page_bytes }))) => {
                part.hugepages.insert(page_bytes, capacity.checked_div(page_bytes).unwrap_or(0));
            }
            _ if name.is_extended() => {
                if !resource.available.0.is_empty() {
                    let available = amount(&resource.available, "available")?;
                    part.free.insert(name.clone(), available);
                }
                part.devices.insert(name, allocatable);
            }
            _ => {}
        }
    }
    part.detail = detail::read(zone).or_else(|(index, problem)| {
        let field = at.clone().key("attributes").at(index).key("value");
        invalid(field, problem, "re-export it, or remove it")
    })?;
    Ok(part)
}

fn amount_of(text: &Text) -> Result<u64, String> {
    let parsed = Quantity::parse(&text.0).and_then(Quantity::non_negative);
    let amount = parsed.map_err(|error| error.to_string())?;
    u64::try_from(amount.value()).map_err(|_| format!("{:?} is out of range", text.0))
}

/// Zones list CPUs and memory only where they are pinned.
fn fill_gaps(
    node: &core::Node,
    zones: &[(usize, &Zone)],
    parts: &mut [Part],
) -> Result<(), TopologyError> {
    let lists =
        |name: &str| zones.iter().any(|(_, zone)| zone.resources.iter().any(|r| r.name == name));
    let mut even = parts.to_vec();
    if !lists("cpu") || !lists("memory") {
        divide_evenly(node, &mut even)?;
    }
    for (part, even) in parts.iter_mut().zip(even) {
        let threads_of = |cores: &Vec<Vec<usize>>| cores.iter().map(Vec::len).sum();
        let detail = &part.detail;
        match detail.cores.as_ref().map(threads_of) {
            threads if !lists("cpu") => part.cpus = threads.unwrap_or(even.cpus),
            Some(threads) if threads != part.cpus => {
                let field = FieldPath::root().key("zones");
                let message = format!(
                    "node-{} has {} CPUs, but its cores have {threads}",
                    part.id, part.cpus
                );
                return invalid(field, message, "re-export the zones");
            }
            _ => {}
        }
        if !lists("memory") {
            part.memory_bytes = detail.memory_bytes.unwrap_or(even.memory_bytes);
        }
        if part.hugepages.is_empty() {
            part.hugepages = detail.hugepages.clone().unwrap_or_default();
        }
        // Whether huge pages are part of the memory is not known.
        let huge = part.hugepages.iter().map(|(size, pages)| size.saturating_mul(*pages));
        let huge = huge.fold(0, u64::saturating_add);
        part.memory_bytes = part.memory_bytes.max(huge);
    }
    Ok(())
}

/// Divides the node's CPUs and memory among its parts; the first parts get the remainder.
fn divide_evenly(node: &core::Node, parts: &mut [Part]) -> Result<(), TopologyError> {
    let cpus = total(node, "cpu")?.0;
    let memory = total(node, "memory")?.0;
    let count = parts.len().max(1) as u64;
    for (index, part) in parts.iter_mut().enumerate() {
        let extra = u64::from((index as u64) < cpus % count);
        part.cpus = usize::try_from(cpus / count + extra).unwrap_or(usize::MAX);
        part.memory_bytes = memory / count;
    }
    Ok(())
}

/// The capacity of a resource, and how much of it is reserved.
fn total(node: &core::Node, resource: &str) -> Result<(u64, u64), TopologyError> {
    let status = node.status.as_ref();
    let field = |list: &str| FieldPath::root().key("status").key(list).key(resource);
    let read = |list: Option<&BTreeMap<String, Text>>, name: &str| match list
        .and_then(|list| list.get(resource))
    {
        None => Ok(None),
        Some(text) => amount_of(text)
            .map(Some)
            .or_else(|error| invalid(field(name), error, "use a quantity such as 64Gi")),
    };
    let capacity = read(status.and_then(|status| status.capacity.as_ref()), "capacity")?;
    let allocatable = read(status.and_then(|status| status.allocatable.as_ref()), "allocatable")?;
    let capacity = capacity.or(allocatable).unwrap_or(0);
    Ok((capacity, capacity.saturating_sub(allocatable.unwrap_or(capacity))))
}

/// Reserves on the first NUMA node what is not allocatable.
fn reserve_memory(node: &core::Node, parts: &mut [Part]) -> Result<(), TopologyError> {
    let (_, memory) = total(node, "memory")?;
    if let Some(first) = parts.first_mut() {
        first.memory_reserved_bytes = memory.min(first.memory_bytes);
    }
    Ok(())
}

fn spread_devices(node: &core::Node, parts: &mut [Part]) -> Result<(), TopologyError> {
    let allocatable = node.status.iter().flat_map(|status| &status.allocatable).flatten();
    let count = parts.len().max(1) as u64;
    for (name, text) in allocatable {
        let resource = ResourceName::new(name.as_str());
        if !resource.is_extended() {
            continue;
        }
        let field = || FieldPath::root().key("status").key("allocatable").key(name.as_str());
        let devices = amount_of(text)
            .or_else(|error| invalid(field(), error, "use an integer"))?
            .min(DEVICES_MAX);
        for (index, part) in parts.iter_mut().enumerate() {
            let until = |index: u64| devices * index / count;
            let here = until(index as u64 + 1) - until(index as u64);
            if here > 0 {
                part.devices.insert(resource.clone(), here);
            }
        }
    }
    Ok(())
}

/// Distances by ascending id of NUMA node; empty unless all are known.
fn distances(zones: &[(usize, &Zone)], parts: &[Part]) -> Vec<Vec<u32>> {
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|at| parts.get(*at).map(|part| part.id));
    let row = |(_, zone): &(usize, &Zone)| -> Option<Vec<u32>> {
        let to = |at: &usize| {
            let name = &zones.get(*at)?.1.name;
            let cost = zone.costs.iter().find(|cost| cost.name == *name)?;
            u32::try_from(cost.value).ok()
        };
        order.iter().map(to).collect()
    };
    let rows: Option<Vec<Vec<u32>>> = zones.iter().map(row).collect();
    rows.unwrap_or_else(|| vec![Vec::new(); parts.len()])
}

fn find_sockets(zones: &[(usize, &Zone)], parts: &mut [Part]) {
    if parts.iter().all(|part| part.cpus == 0 || part.detail.socket.is_some()) {
        for part in parts {
            part.socket = part.detail.socket.unwrap_or(0);
        }
        return;
    }
    let mut parents: Vec<&str> =
        zones.iter().filter_map(|(_, zone)| zone.parent.as_deref()).collect();
    if parents.len() == zones.len() {
        parents.sort_unstable();
        parents.dedup();
        for (part, (_, zone)) in parts.iter_mut().zip(zones) {
            let parent = zone.parent.as_deref().unwrap_or_default();
            part.socket = parents.partition_point(|one| *one < parent) as u32;
        }
        return;
    }
    // By id, since distances are.
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|at| parts.get(*at).map(|part| part.id));
    let mut sockets: Vec<(u32, usize)> = Vec::new();
    for (position, at) in order.iter().enumerate() {
        let near = |(_, first): &&(u32, usize)| {
            let from = order.get(*first).and_then(|at| parts.get(*at));
            let distance = from.and_then(|from| from.distances.get(position));
            distance.is_some_and(|distance| *distance < OTHER_SOCKET_DISTANCE)
        };
        let socket = sockets.iter().find(near).map(|(socket, _)| *socket);
        let socket = socket.unwrap_or_else(|| {
            let next = sockets.len() as u32;
            sockets.push((next, position));
            next
        });
        if let Some(part) = parts.get_mut(*at) {
            part.socket = socket;
        }
    }
}

impl Policies<'_> {
    fn one<T: std::str::FromStr<Err = berth_kubelet::ConfigError>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, TopologyError> {
        let Some(text) = (self.find)(name) else { return Ok(None) };
        text.parse().map(Some).or_else(|error: berth_kubelet::ConfigError| {
            invalid((self.field)(name), format!("{name}: {}", error.problem), "correct the value")
        })
    }

    fn topology(&self) -> Result<Option<TopologyPolicy>, TopologyError> {
        self.one("topologyManagerPolicy")
    }

    fn read(&self, node: &core::Node, parts: &[Part]) -> Result<KubeletConfig, TopologyError> {
        let mut config = KubeletConfig {
            version: version(node),
            topology_policy: self.topology()?.unwrap_or_default(),
            topology_scope: self.one::<TopologyScope>("topologyManagerScope")?.unwrap_or_default(),
            ..KubeletConfig::default()
        };
        let options = (self.find)("topologyManagerPolicyOptions").unwrap_or_default();
        for (name, value) in pairs(options) {
            match (name, value) {
                ("prefer-closest-numa-nodes", value) => {
                    config.prefer_closest_numa_nodes = value != "false";
                }
                ("max-allowable-numa-nodes", value) => {
                    config.max_allowable_numa_nodes = value.parse().ok();
                }
                _ => {
                    let message = format!("the topology manager has no option {name:?}");
                    let remedy = "write prefer-closest-numa-nodes or max-allowable-numa-nodes";
                    return invalid((self.field)("topologyManagerPolicyOptions"), message, remedy);
                }
            }
        }
        config.cpu_manager = self.cpu_manager(node, parts)?;
        config.memory_manager = self.memory_manager(parts)?;
        Ok(config)
    }

    fn cpu_manager(
        &self,
        node: &core::Node,
        parts: &[Part],
    ) -> Result<CpuManagerPolicy, TopologyError> {
        let lists_reserved = parts.iter().any(|part| part.cpus > part.cpus_reserved)
            && parts.iter().any(|part| part.cpus_reserved > 0);
        let is_static = match (self.find)("cpuManagerPolicy") {
            Some("static") => true,
            Some("none") => false,
            Some(other) => {
                let message = format!("unknown CPU manager policy {other:?}");
                return invalid((self.field)("cpuManagerPolicy"), message, "use none or static");
            }
            None => lists_reserved && self.inferred,
        };
        if !is_static {
            return Ok(CpuManagerPolicy::None);
        }
        let field = "cpuManagerPolicyOptions";
        let mut options = Vec::new();
        for (name, value) in pairs((self.find)(field).unwrap_or_default()) {
            let option: CpuOption = name.parse().or_else(|error: berth_kubelet::ConfigError| {
                invalid((self.field)(field), error.problem, "correct its name, or remove it")
            })?;
            options.extend((value != "false").then_some(option));
        }
        let options: CpuOptions = options.into_iter().collect();
        let field = "reservedSystemCPUs";
        let reserved = match (self.find)(field) {
            Some(text) => {
                let cpus: CpuSet =
                    text.parse().or_else(|error: berth_model::idset::IdSetError| {
                        invalid(
                            (self.field)(field),
                            error.to_string(),
                            "use a CPU list such as 0-1,64-65",
                        )
                    })?;
                ReservedCpus::Explicit(cpus)
            }
            None if lists_reserved => ReservedCpus::Explicit(lowest(parts, threads(node, parts)?)),
            // The static policy reserves at least one.
            None => ReservedCpus::Millis(reserved_cpu_milli(node).max(1)),
        };
        Ok(CpuManagerPolicy::Static { options, reserved })
    }

    fn memory_manager(&self, parts: &[Part]) -> Result<MemoryManagerPolicy, TopologyError> {
        let inferred: Vec<ReservedMemory> = parts
            .iter()
            .filter(|part| part.memory_reserved_bytes > 0)
            .map(|part| ReservedMemory {
                numa: part.id,
                kind: MemoryKind::Ordinary,
                bytes: part.memory_reserved_bytes.min(ordinary_bytes(part)),
            })
            .collect();
        let is_static = match (self.find)("memoryManagerPolicy") {
            Some("Static") => true,
            Some("None") => false,
            Some(other) => {
                let message = format!("unknown memory manager policy {other:?}");
                return invalid((self.field)("memoryManagerPolicy"), message, "use None or Static");
            }
            None => self.inferred && !inferred.is_empty(),
        };
        if !is_static {
            return Ok(MemoryManagerPolicy::None);
        }
        let field = "reservedMemory";
        let reserved = match (self.find)(field) {
            Some(text) => reserved_memory(text).or_else(|problem| {
                invalid(
                    (self.field)(field),
                    problem,
                    "use a value such as 0:memory=1Gi;1:memory=1Gi",
                )
            })?,
            None => inferred,
        };
        if reserved.is_empty() {
            let message = "the static memory manager requires reserved memory, but all of the node's memory \
                           is allocatable";
            let remedy = "correct allocatable, or the policy";
            return invalid((self.field)("memoryManagerPolicy"), message, remedy);
        }
        Ok(MemoryManagerPolicy::Static { reserved })
    }
}

/// In the form of the kubelet's flag: `0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=2Gi`.
fn reserved_memory(text: &str) -> Result<Vec<ReservedMemory>, String> {
    let mut kept = Vec::new();
    for of_node in text.split(';').filter(|text| !text.trim().is_empty()).take(NumaMask::CAPACITY) {
        let Some((node, amounts)) = of_node.split_once(':') else {
            return Err(format!("{of_node:?} has no NUMA node"));
        };
        let numa = node.trim().parse().map_err(|_| format!("{node:?} is not a NUMA node id"))?;
        for (name, amount) in pairs(amounts) {
            let Ok(Some(kind)) = MemoryKind::of(&ResourceName::new(name)) else {
                return Err(format!("unknown memory type {name:?}"));
            };
            kept.push(ReservedMemory { numa, kind, bytes: amount_of(&Text(amount.to_owned()))? });
        }
    }
    Ok(kept)
}

fn ordinary_bytes(part: &Part) -> u64 {
    let huge = part.hugepages.iter().map(|(size, pages)| size.saturating_mul(*pages));
    part.memory_bytes.saturating_sub(huge.fold(0, u64::saturating_add))
}

/// `a=true,b` as names and values; a name alone has the value `true`.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let all = text.split(',').map(str::trim).filter(|one| !one.is_empty());
    all.map(|one| one.split_once(['=', ':']).unwrap_or((one, "true")))
        .map(|(name, value)| (name.trim(), value.trim()))
}

/// The field that attributes have replaced.
fn deprecated(policies: &[String]) -> Option<(TopologyPolicy, TopologyScope)> {
    let written = policies.first()?.as_str();
    let scope =
        if written.ends_with("PodLevel") { TopologyScope::Pod } else { TopologyScope::Container };
    let policy = match written.trim_end_matches("PodLevel").trim_end_matches("ContainerLevel") {
        "SingleNUMANode" => TopologyPolicy::SingleNumaNode,
        "Restricted" => TopologyPolicy::Restricted,
        "BestEffort" => TopologyPolicy::BestEffort,
        "None" => TopologyPolicy::None,
        _ => return None,
    };
    Some((policy, scope))
}

/// The version of the node's kubelet, or the nearest known one.
fn version(node: &core::Node) -> KubeletVersion {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let written = info.map_or("", |info| info.kubelet_version.trim_start_matches('v'));
    let mut numbers = written.split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let minor = minor.trim_end_matches('+');
    if let Ok(known) = format!("{major}.{minor}").parse() {
        return known;
    }
    match minor.parse::<u32>() {
        Ok(minor) if minor < 33 => KubeletVersion::V1_33,
        Ok(minor) if minor > 37 => KubeletVersion::V1_37,
        _ => KubeletVersion::default(),
    }
}

/// Hardware threads per core: by label, else one on ARM, else two if all CPU counts are even.
fn threads(node: &core::Node, parts: &[Part]) -> Result<usize, TopologyError> {
    if let Some(threads) = number(node, THREADS_PER_CORE)? {
        let most = berth_model::machine::MAX_THREADS_PER_CORE as u64;
        if threads == 0 || threads > most {
            let message = format!("{threads} threads per core");
            return invalid(field_of(node, THREADS_PER_CORE), message, format!("use 1 to {most}"));
        }
        return Ok(threads as usize);
    }
    let paired = parts.iter().all(|part| part.cpus.is_multiple_of(2));
    Ok(match (marked(node, MULTITHREADING), marked(node, "kubernetes.io/arch")) {
        (Some("false"), _) | (None, Some("arm64")) => 1,
        _ if paired => 2,
        _ => 1,
    })
}

fn reserved_cpu_milli(node: &core::Node) -> u64 {
    let status = node.status.as_ref();
    let of = |list: Option<&BTreeMap<String, Text>>| {
        let text = list?.get("cpu")?;
        u64::try_from(Quantity::parse(&text.0).ok()?.milli_value()).ok()
    };
    let capacity = of(status.and_then(|status| status.capacity.as_ref())).unwrap_or(0);
    let allocatable = of(status.and_then(|status| status.allocatable.as_ref())).unwrap_or(capacity);
    capacity.saturating_sub(allocatable)
}

/// Before cores are made up: a count is a number in an object, and can be any.
fn check_cpus(parts: &[Part], field: FieldPath) -> Result<(), TopologyError> {
    let all = parts.iter().map(|part| part.cpus).fold(0, usize::saturating_add);
    if all > IdSet::CAPACITY {
        let message = format!("{all} CPUs exceed the supported {}", IdSet::CAPACITY);
        return invalid(field, message, "correct the number");
    }
    Ok(())
}

fn finish(
    node: &core::Node,
    parts: Vec<Part>,
    kubelet: KubeletConfig,
    field: FieldPath,
) -> Result<Option<Description>, TopologyError> {
    let threads = threads(node, &parts)?;
    let numa = |part: &Part| NumaSpec {
        id: part.id,
        memory_bytes: part.memory_bytes,
        hugepages: part.hugepages.clone(),
        distances: part.distances.clone(),
    };
    let spec = MachineSpec {
        sockets: None,
        numa: parts.iter().map(numa).collect(),
        cores: cores(&parts, threads),
    };
    let machine = Machine::new(spec)
        .or_else(|error| invalid(field, error.to_string(), "correct it, or remove the zones"))?;
    let devices = attached(node, &machine, &parts);
    let free = |part: &Part| {
        let position = machine.numa_position(part.id)?;
        Some((NumaMask::single(position), part.free.clone()))
    };
    let free = parts.iter().filter_map(free).collect();
    Ok(Some(Description { machine, kubelet, devices, free }))
}

/// Both NUMA nodes of a device list it, so zones can list more devices than the node has. If it is not clear
/// which devices these are, all count as attached to none.
fn attached(node: &core::Node, machine: &Machine, parts: &[Part]) -> DeviceCounts {
    let mut counts: BTreeMap<NumaMask, BTreeMap<ResourceName, u64>> = BTreeMap::new();
    let mut names: Vec<&ResourceName> = parts.iter().flat_map(|part| part.devices.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let has = |name: &str| allocatable?.get(name).and_then(|text| amount_of(text).ok());
    for name in &names {
        let listed: Vec<(NumaMask, u64)> = parts
            .iter()
            .filter_map(|part| {
                let position = machine.numa_position(part.id)?;
                let count = part.devices.get(*name).filter(|count| **count > 0)?;
                Some((NumaMask::single(position), *count))
            })
            .collect();
        let sum = listed.iter().map(|(_, count)| *count).fold(0, u64::saturating_add);
        let all = has(name.as_str()).unwrap_or(sum);
        let mut add = |numa, count| {
            if count > 0 {
                *counts.entry(numa).or_default().entry((*name).clone()).or_default() += count;
            }
        };
        if sum <= all {
            listed.iter().for_each(|(numa, count)| add(*numa, *count));
            add(NumaMask::EMPTY, all - sum);
        } else if listed.iter().all(|(_, count)| *count == all) {
            add(listed.iter().fold(NumaMask::EMPTY, |mask, (numa, _)| mask | *numa), all);
        } else {
            add(NumaMask::EMPTY, all);
        }
    }
    // GPUs that no zone lists.
    for (name, text) in allocatable.into_iter().flatten() {
        let resource = ResourceName::new(name.as_str());
        if name.starts_with("nvidia.com/") && !names.contains(&&resource) {
            let count = amount_of(text).unwrap_or(0);
            if count > 0 {
                counts.entry(NumaMask::EMPTY).or_default().insert(resource, count);
            }
        }
    }
    // Devices without NUMA nodes come last, so that known ones get the first numbers.
    let mut counts: DeviceCounts = counts.into_iter().collect();
    counts.sort_by_key(|(numa, _)| (numa.is_empty(), *numa));
    counts
}

/// The value of a label, or else of an annotation.
pub fn marked<'a>(node: &'a core::Node, key: &str) -> Option<&'a str> {
    let of = |map: &'a Option<BTreeMap<String, String>>| map.as_ref()?.get(key);
    let found = of(&node.metadata.labels).or_else(|| of(&node.metadata.annotations));
    found.map(String::as_str)
}

/// The field of that label or annotation.
pub fn field_of(node: &core::Node, key: &str) -> FieldPath {
    let is_label = node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(key));
    let map = if is_label { "labels" } else { "annotations" };
    FieldPath::root().key("metadata").key(map).key(key)
}

fn number(node: &core::Node, key: &str) -> Result<Option<u64>, TopologyError> {
    let Some(text) = marked(node, key) else { return Ok(None) };
    text.parse().map(Some).or_else(|_| {
        invalid(
            field_of(node, key),
            format!("{text:?} is not an integer"),
            "use an integer such as 2",
        )
    })
}
