//! One case: a node, and operations with their recorded outcomes.
//!
//! Owns the way from JSON to a [`Kubelet`] and pods, with errors that name the field.

use std::collections::BTreeMap;

use berth_kubelet::{
    CpuManagerPolicy, CpuOption, CpuOptions, Kubelet, KubeletConfig, MemoryManagerPolicy,
    PodDemand, ReservedCpus, ReservedMemory,
};
use berth_model::device::{Device, DevicePool, PreferredAllocation};
use berth_model::idset::CpuSet;
use berth_model::machine::{CoreSpec, Machine, MachineSpec, NumaSpec};
use berth_model::numa::NumaMask;
use berth_model::pod::{Container, ContainerKind, Pod, Resources};
use berth_model::quantity::Quantity;
use berth_model::resource::{MemoryKind, ResourceList, ResourceName};

use super::schema::{
    CaseJson, ContainerJson, CpuJson, KubeletJson, MachineJson, MemoryJson, OutcomeJson, PodJson,
    PoolJson, ResourcesJson, StateJson,
};
use crate::vector::{CaseError, FieldResult, read};

/// A case ready to be run.
#[derive(Debug)]
pub struct Case {
    /// Unique id.
    pub id: String,
    /// Label for counting.
    pub stratum: String,
    /// Label of the machine.
    pub shape: String,
    /// The node before the first operation.
    pub kubelet: Kubelet,
    /// What happens to it.
    pub operations: Vec<Operation>,
    /// Where each device is attached, as the recording labels it, by resource and device id.
    pub(super) places: BTreeMap<String, BTreeMap<String, String>>,
    pub(super) initial: StateJson,
    pub(super) expected_reserved: Option<CpuSet>,
}

/// One operation with what was recorded.
#[derive(Debug)]
pub struct Operation {
    /// Name of the pod.
    pub pod: String,
    /// The pod if it arrives, `None` if it goes.
    pub admit: Option<(Pod, PodDemand)>,
    pub(super) expected_qos: Option<String>,
    pub(super) outcome: Option<OutcomeJson>,
    pub(super) after: Option<StateJson>,
    pub(super) unstable: Vec<String>,
}

fn at<E: ToString>(field: impl Into<String>) -> impl FnOnce(E) -> (String, String) {
    let field = field.into();
    move |cause| (field, cause.to_string())
}

impl Case {
    /// Reads a case from one line of JSON.
    pub fn parse(line: &str) -> Result<Self, CaseError> {
        let json: CaseJson = read(line)?;
        let id = json.id.clone();
        Self::lower(json).map_err(|(field, problem)| CaseError { id, field, problem })
    }

    fn lower(json: CaseJson) -> FieldResult<Self> {
        let machine = machine(&json.machine)?;
        let mut config = config(&json.kubelet, json.kubelet_version.as_deref())?;
        let version = config.version;
        // Only options that are switches are recorded, and the recorded kubelet did start.
        config.max_allowable_numa_nodes = Some(NumaMask::CAPACITY);
        let pools = json
            .devices
            .iter()
            .map(|(resource, pool)| device_pool(resource, pool, &machine))
            .collect::<FieldResult<Vec<_>>>()?;
        let kubelet = Kubelet::new(machine, config, pools)
            .map_err(|error| (format!("kubelet.{}", error.field), error.problem))?;
        let mut operations = Vec::with_capacity(json.ops.len());
        for (index, op) in json.ops.into_iter().enumerate() {
            let field = format!("ops[{index}]");
            let (pod, admit, expected_qos) = match (op.admit, op.remove) {
                (Some(pod), None) => {
                    let qos = pod.qos.clone();
                    let pod = self::pod(&format!("{field}.admit"), pod)?;
                    let demand = PodDemand::new(&pod, version).map_err(|error| {
                        (format!("{field}.admit.{}", error.field), error.problem)
                    })?;
                    (pod.name.clone(), Some((pod, demand)), qos)
                }
                (None, Some(name)) => (name, None, None),
                _ => return Err((field, "needs exactly one of admit and remove".to_owned())),
            };
            if admit.is_some() != op.outcome.is_some() {
                return Err((field, "outcome goes with admit, and only with it".to_owned()));
            }
            operations.push(Operation {
                pod,
                admit,
                expected_qos,
                outcome: op.outcome,
                after: op.after,
                unstable: op.unstable,
            });
        }
        let recorded = json.kubelet.cpu_manager.reserved_cpus.as_deref();
        let expected_reserved = recorded.map(str::parse).transpose();
        Ok(Self {
            id: json.id,
            stratum: json.stratum,
            shape: json.machine.shape,
            kubelet,
            operations,
            places: json.devices.iter().map(|(name, pool)| (name.clone(), places(pool))).collect(),
            initial: json.initial,
            expected_reserved: expected_reserved
                .map_err(at("kubelet.cpu_manager.reserved_cpus"))?,
        })
    }
}

fn machine(json: &MachineJson) -> FieldResult<Machine> {
    let mut spec = MachineSpec { sockets: Some(json.sockets), ..MachineSpec::default() };
    for (index, numa) in json.numa.iter().enumerate() {
        let mut hugepages = BTreeMap::new();
        for (size, pages) in &numa.hugepages {
            let field = format!("machine.numa[{index}].hugepages[{size}]");
            let name = ResourceName::new(format!("hugepages-{size}"));
            match MemoryKind::of(&name).map_err(at(field))? {
                Some(MemoryKind::Hugepages { page_bytes }) => hugepages.insert(page_bytes, *pages),
                _ => None,
            };
        }
        spec.numa.push(NumaSpec {
            id: numa.id,
            memory_bytes: numa.memory_bytes,
            hugepages,
            distances: numa.distances.clone(),
        });
    }
    for (index, group) in json.core_groups.iter().enumerate() {
        let field = format!("machine.core_groups[{index}].threads");
        let lists = group
            .threads
            .iter()
            .map(|list| list.parse::<CpuSet>().map(|cpus| cpus.iter().collect::<Vec<_>>()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(at(field.clone()))?;
        let cores = lists.first().map_or(0, Vec::len);
        if lists.iter().any(|list| list.len() != cores) {
            return Err((
                field,
                "the lists differ in length; the k-th CPUs form a core".to_owned(),
            ));
        }
        for core in 0..cores {
            spec.cores.push(CoreSpec {
                numa: group.numa,
                socket: group.socket,
                uncore: group.uncore,
                threads: lists.iter().map(|list| list[core]).collect(),
            });
        }
    }
    let machine =
        Machine::new(spec).map_err(|error| (format!("machine.{}", error.field), error.problem))?;
    for (index, numa) in json.numa.iter().enumerate() {
        let field = format!("machine.numa[{index}].cpus");
        let listed: CpuSet = numa.cpus.parse().map_err(at(field.clone()))?;
        let position = machine.numa_position(numa.id).unwrap_or(usize::MAX);
        let in_cores = machine.numa().get(position).map_or(CpuSet::EMPTY, |node| node.cpus);
        if listed != in_cores {
            return Err((field, format!("{listed} differs from the core groups' {in_cores}")));
        }
    }
    Ok(machine)
}

fn config(json: &KubeletJson, version: Option<&str>) -> FieldResult<KubeletConfig> {
    let mut config = KubeletConfig::default();
    if let Some(version) = version {
        config.version = version.parse().map_err(at("kubelet_version"))?;
    }
    let topology = &json.topology_manager;
    config.topology_policy =
        topology.policy.parse().map_err(at("kubelet.topology_manager.policy"))?;
    if let Some(scope) = &topology.scope {
        config.topology_scope = scope.parse().map_err(at("kubelet.topology_manager.scope"))?;
    }
    for option in &topology.options {
        match option.as_str() {
            "prefer-closest-numa-nodes" => config.prefer_closest_numa_nodes = true,
            _ => {
                let problem =
                    format!("{option:?} is unknown; write prefer-closest-numa-nodes or nothing");
                return Err(("kubelet.topology_manager.options".to_owned(), problem));
            }
        }
    }
    config.cpu_manager = cpu_manager(&json.cpu_manager)?;
    config.memory_manager = memory_manager(&json.memory_manager)?;
    Ok(config)
}

fn cpu_manager(json: &CpuJson) -> FieldResult<CpuManagerPolicy> {
    let field = |name: &str| format!("kubelet.cpu_manager.{name}");
    match json.policy.as_str() {
        "none" => return Ok(CpuManagerPolicy::None),
        "static" => {}
        other => {
            let problem = format!("{other:?} is unknown; write none or static");
            return Err((field("policy"), problem));
        }
    }
    let options = json
        .options
        .iter()
        .map(|option| option.parse::<CpuOption>())
        .collect::<Result<CpuOptions, _>>()
        .map_err(|error| (field("options"), error.problem))?;
    let missing = |name: &str| (field(name), "is missing".to_owned());
    let reserved = match json.reserved_from.as_deref() {
        Some("explicit") => {
            let cpus = json.reserved_cpus.as_deref().ok_or_else(|| missing("reserved_cpus"))?;
            ReservedCpus::Explicit(cpus.parse().map_err(at(field("reserved_cpus")))?)
        }
        Some("quantity") => {
            let name = "reserved_quantity";
            let text = json.reserved_quantity.as_deref().ok_or_else(|| missing(name))?;
            ReservedCpus::Millis(quantity(&field(name), text)?.milli_value().unsigned_abs())
        }
        other => {
            let problem = format!("{other:?} is unknown; write \"explicit\" or \"quantity\"");
            return Err((field("reserved_from"), problem));
        }
    };
    Ok(CpuManagerPolicy::Static { options, reserved })
}

fn memory_manager(json: &MemoryJson) -> FieldResult<MemoryManagerPolicy> {
    match json.policy.as_str() {
        "None" => return Ok(MemoryManagerPolicy::None),
        "Static" => {}
        other => {
            let problem = format!("{other:?} is unknown; write None or Static");
            return Err(("kubelet.memory_manager.policy".to_owned(), problem));
        }
    }
    let mut reserved = Vec::new();
    for (node, amounts) in &json.reserved {
        let field = format!("kubelet.memory_manager.reserved[{node}]");
        let id: u32 = node.parse().map_err(at(field.clone()))?;
        for (name, bytes) in amounts {
            let field = format!("{field}[{name}]");
            let kind = MemoryKind::of(&name.as_str().into()).map_err(at(field.clone()))?;
            let kind = kind.ok_or((field, "is no kind of memory".to_owned()))?;
            reserved.push(ReservedMemory { numa: id, kind, bytes: *bytes });
        }
    }
    Ok(MemoryManagerPolicy::Static { reserved })
}

fn device_pool(resource: &str, json: &PoolJson, machine: &Machine) -> FieldResult<DevicePool> {
    let field = format!("devices[{resource}]");
    let preferred = match json.preferred_allocation.as_deref() {
        None | Some("none") => PreferredAllocation::NotImplemented,
        Some("lowest_id") => PreferredAllocation::LowestId,
        Some("highest_id") => PreferredAllocation::HighestId,
        Some(other) => {
            let problem = format!("{other:?} is unknown; write none, lowest_id or highest_id");
            return Err((format!("{field}.preferred_allocation"), problem));
        }
    };
    let devices = json
        .devices
        .iter()
        .map(|device| {
            let position = |id: &u32| machine.numa_position(*id);
            Device {
                id: device.id.clone(),
                numa: device.numa.iter().filter_map(position).collect(),
                misplaced: device.numa.iter().any(|id| position(id).is_none()),
                healthy: !device.unhealthy,
            }
        })
        .collect();
    Ok(DevicePool { resource: resource.into(), preferred, devices })
}

/// `0`, `0+1` for a device on two NUMA nodes, `none` for one without topology.
fn places(json: &PoolJson) -> BTreeMap<String, String> {
    let place = |numa: &[u32]| {
        let ids: Vec<String> = numa.iter().map(u32::to_string).collect();
        if ids.is_empty() { "none".to_owned() } else { ids.join("+") }
    };
    json.devices.iter().map(|device| (device.id.clone(), place(&device.numa))).collect()
}

fn pod(field: &str, json: PodJson) -> FieldResult<Pod> {
    let mut containers = Vec::new();
    for container in json.init_containers {
        let kind = match container.restart_policy.as_deref() {
            None => ContainerKind::Init,
            Some("Always") => ContainerKind::Sidecar,
            Some(other) => {
                let field = format!("{field}.init_containers[{}].restart_policy", container.name);
                return Err((field, format!("{other:?} is unknown; write Always or nothing")));
            }
        };
        containers.push(self::container(field, container, kind)?);
    }
    for container in json.containers {
        containers.push(self::container(field, container, ContainerKind::App)?);
    }
    let resources = json.resources.map(|json| resources(&format!("{field}.resources"), json));
    Ok(Pod {
        name: json.name,
        containers,
        resources: resources.transpose()?,
        overhead: resource_list(&format!("{field}.overhead"), &json.overhead)?,
    })
}

fn container(field: &str, json: ContainerJson, kind: ContainerKind) -> FieldResult<Container> {
    let resources = resources(&format!("{field}.containers[{}]", json.name), json.resources)?;
    Ok(Container { name: json.name, kind, resources })
}

fn resources(field: &str, json: ResourcesJson) -> FieldResult<Resources> {
    let requests = json.requests.as_ref().unwrap_or(&json.limits);
    Ok(Resources {
        limits: resource_list(&format!("{field}.limits"), &json.limits)?,
        requests: resource_list(&format!("{field}.requests"), requests)?,
    })
}

fn resource_list(field: &str, json: &BTreeMap<String, String>) -> FieldResult<ResourceList> {
    json.iter()
        .map(|(name, text)| {
            let value = quantity(&format!("{field}[{name}]"), text)?;
            Ok((ResourceName::new(name.as_str()), value))
        })
        .collect()
}

fn quantity(field: &str, text: &str) -> FieldResult<Quantity> {
    Quantity::parse(text).and_then(Quantity::non_negative).map_err(at(field))
}
