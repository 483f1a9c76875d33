//! The kubelet's configuration beyond what NFD publishes, in the kubelet's own terms. Derived values (which CPUs the
//! kubelet reserves if only their number is configured) are computed.

use std::collections::BTreeMap;

use berth_host::kubelet::Configuration;
use berth_kubelet::{
    Kubelet, KubeletConfig, KubeletVersion, MemoryManagerPolicy, ReservedMemory, TopologyPolicy,
};
use berth_model::idset::CpuSet;
use berth_model::machine::Machine as ModelMachine;
use berth_topology::key_of;

use crate::report::Reading;

/// Empty if the configuration is unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) pins_cpus: bool,
    pub(super) pins_memory: bool,
    /// Reserved for the system, if CPUs are pinned.
    pub(super) reserved_cpus: CpuSet,
    /// Reserved for the system, if memory is pinned.
    pub(super) reserved_memory: Vec<ReservedMemory>,
    fields: Vec<(&'static str, String)>,
}

impl Facts {
    pub(super) fn of(reading: &Reading, planned: Option<&ModelMachine>) -> Self {
        let Some(configuration) = &reading.kubelet.configuration else { return Self::default() };
        let (pins_cpus, pins_memory) = (configuration.pins_cpus(), configuration.pins_memory());
        let set = configuration.to_model(KubeletVersion::default());
        let reserved_cpus = match (pins_cpus, configuration.reserved_system_cpus) {
            (false, _) => CpuSet::EMPTY,
            (true, Some(cpus)) => cpus & reading.machine.cpus,
            (true, None) => set
                .clone()
                .ok()
                .zip(planned)
                .map_or(CpuSet::EMPTY, |(set, machine)| reserved_cpus_of(set, machine)),
        };
        let reserved_memory = match set.map(|set| set.memory_manager) {
            Ok(MemoryManagerPolicy::Static { reserved }) => reserved,
            _ => Vec::new(),
        };
        let mut facts =
            Self { pins_cpus, pins_memory, reserved_cpus, reserved_memory, fields: Vec::new() };
        facts.write(configuration);
        facts
    }

    fn write(&mut self, configuration: &Configuration) {
        let mut add = |field: &'static str, value: String| self.fields.push((field, value));
        add("cpuManagerPolicy", configuration.cpu_manager_policy.clone());
        if self.pins_cpus {
            let options = pairs(&configuration.cpu_manager_policy_options);
            if !options.is_empty() {
                add("cpuManagerPolicyOptions", options);
            }
            add("reservedSystemCPUs", self.reserved_cpus.to_string());
        }
        add("memoryManagerPolicy", configuration.memory_manager_policy.clone());
        if self.pins_memory {
            add("reservedMemory", as_flag(&self.reserved_memory));
        }
        let options = pairs(&configuration.topology_manager_policy_options);
        if !options.is_empty() {
            add("topologyManagerPolicyOptions", options);
        }
    }

    /// Names with Berth's prefix, and values.
    pub(super) fn attributes(&self) -> Vec<(String, String)> {
        self.fields.iter().map(|(field, value)| (key_of(field), value.clone())).collect()
    }
}

/// The CPUs that a kubelet reserves if only their number is configured.
fn reserved_cpus_of(set: KubeletConfig, machine: &ModelMachine) -> CpuSet {
    let alone = KubeletConfig {
        topology_policy: TopologyPolicy::None,
        memory_manager: MemoryManagerPolicy::None,
        ..set
    };
    let kubelet = Kubelet::new(machine.clone(), alone, Vec::new());
    kubelet.ok().and_then(|kubelet| kubelet.reserved_cpus()).unwrap_or(CpuSet::EMPTY)
}

fn pairs(options: &BTreeMap<String, String>) -> String {
    options.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

/// In the format of the kubelet's flag: `0:memory=1073741824;1:memory=1073741824`.
fn as_flag(reserved: &[ReservedMemory]) -> String {
    let mut nodes: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for one in reserved {
        let amount = format!("{}={}", one.kind.resource_name().as_str(), one.bytes);
        nodes.entry(one.numa).or_default().push(amount);
    }
    let nodes = nodes.iter().map(|(numa, amounts)| format!("{numa}:{}", amounts.join(",")));
    nodes.collect::<Vec<_>>().join(";")
}

/// The value of the deprecated field `topologyPolicies`, which some readers still use.
pub(super) fn deprecated_policy(configuration: &Configuration) -> String {
    let policy = match configuration.topology_manager_policy.as_str() {
        "single-numa-node" => "SingleNUMANode",
        "restricted" => "Restricted",
        "best-effort" => "BestEffort",
        _ => return "None".to_owned(),
    };
    let scope = match configuration.topology_manager_scope.as_str() {
        "pod" => "PodLevel",
        _ => "ContainerLevel",
    };
    format!("{policy}{scope}")
}
