//! A kubelet's configuration: its files and flags merged, and the fields that placement depends on.
//!
//! Each field is read by itself, so an invalid one does not affect the others.

use std::collections::BTreeMap;

use berth_kubelet::{
    ConfigError, CpuManagerPolicy, CpuOption, CpuOptions, KubeletConfig, KubeletVersion,
    MemoryManagerPolicy, ReservedCpus, ReservedMemory as ModelMemory,
};
use berth_manifest::{Source, Strictness};
use berth_model::idset::CpuSet;
use berth_model::quantity::Quantity;
use berth_model::resource::{MemoryKind, ResourceName};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::paths::KubeletPaths;
use crate::list::{as_list_if_known, list, shortened};
use crate::root::{Fault, Notes, Root};

/// Bytes of a configuration file.
const BYTES_MAX: usize = 1 << 20;

/// Files in a configuration directory, and the depth of nested directories.
const FILES_MAX: usize = 256;
const DEPTH_MAX: usize = 8;

/// Fields that are read and recorded. All others are ignored.
pub(crate) const FIELDS: [&str; 12] = [
    "topologyManagerPolicy",
    "topologyManagerScope",
    "topologyManagerPolicyOptions",
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "reservedSystemCPUs",
    "memoryManagerPolicy",
    "reservedMemory",
    "systemReserved",
    "kubeReserved",
    "evictionHard",
    "cgroupDriver",
];

/// A kubelet's configuration. Fields that are not set have the kubelet's defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    pub topology_manager_policy: String,
    pub topology_manager_scope: String,
    pub topology_manager_policy_options: BTreeMap<String, String>,
    pub cpu_manager_policy: String,
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    #[serde(with = "as_list_if_known")]
    pub reserved_system_cpus: Option<CpuSet>,
    pub memory_manager_policy: String,
    pub reserved_memory: Vec<ReservedMemory>,
    pub system_reserved: BTreeMap<String, String>,
    pub kube_reserved: BTreeMap<String, String>,
    pub eviction_hard: BTreeMap<String, String>,
    /// The container runtime may override it.
    pub cgroup_driver: Option<String>,
}

/// Memory of a NUMA node that is reserved for the system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservedMemory {
    pub numa_node: u32,
    /// Quantity by resource name.
    pub limits: BTreeMap<String, String>,
}

/// The merged configuration, and the file to name in diagnoses; `None` if there is none.
pub(crate) fn configured(
    root: &Root,
    paths: &KubeletPaths,
    notes: &mut Notes,
) -> Option<(Value, String)> {
    let mut named = None;
    let mut whole = Value::Null;
    if let Some(path) = &paths.configuration {
        match object(root, path) {
            Ok(value) => {
                whole = value;
                named = Some(path.clone());
            }
            Err(why) => {
                let what = format!("{why}, so the kubelet's configuration is unknown");
                notes.add(path, what, "mount the kubelet's configuration file");
            }
        }
    }
    let mut files = Vec::new();
    if let Some(directory) = &paths.config_dir {
        walk(root, directory, DEPTH_MAX, &mut files);
    }
    for path in files {
        match object(root, &path) {
            Ok(value) => {
                json_patch::merge(&mut whole, &value);
                named.get_or_insert(path);
            }
            Err(why) => {
                let what = format!("{why}, so it is ignored; a kubelet would not start with it");
                notes.add(&path, what, "fix or remove it");
            }
        }
    }
    let flags = paths.flags.as_object().filter(|flags| !flags.is_empty());
    if flags.is_some() {
        json_patch::merge(&mut whole, &paths.flags);
    }
    let named = named.or_else(|| flags.map(|_| "proc".to_owned()))?;
    Some((whole, named))
}

/// Collects files that end in `.conf`, in the kubelet's order: by name.
fn walk(root: &Root, directory: &str, depth: usize, files: &mut Vec<String>) {
    for name in root.names(directory).unwrap_or_default() {
        let path = format!("{directory}/{name}");
        if files.len() >= FILES_MAX {
            return;
        }
        if depth > 0 && root.has_directory(&path) {
            walk(root, &path, depth - 1, files);
        } else if name.ends_with(".conf") {
            files.push(path);
        }
    }
}

/// Why a configuration file has no configuration.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("{0}")]
    File(Fault),
    #[error("is not valid YAML or JSON ({0})")]
    Syntax(String),
    #[error("contains no KubeletConfiguration")]
    NoConfiguration,
}

fn object(root: &Root, path: &str) -> Result<Value, Unreadable> {
    let text = root.text(path, BYTES_MAX).map_err(Unreadable::File)?;
    let source = Source::new(path, text);
    let documents = berth_manifest::read_as(&source, Strictness::Dump)
        .map_err(|problem| Unreadable::Syntax(problem.message))?;
    let mut wanted = documents.iter().filter(|document| document.kind() == "KubeletConfiguration");
    match wanted.next() {
        Some(document) => Ok(document.value()),
        None => Err(Unreadable::NoConfiguration),
    }
}

/// Reads fields, and adds a diagnosis for each invalid one.
struct Fields<'a> {
    value: &'a Value,
    path: &'a str,
    notes: &'a mut Notes,
}

impl Fields<'_> {
    fn invalid(&mut self, name: &str, what: &str) {
        let what = format!("{name} is {what}, so the default applies");
        self.notes.add(self.path, what, "fix it: a kubelet does not start with it");
    }

    fn text(&mut self, name: &str) -> Option<String> {
        match self.value.get(name)? {
            Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
            Value::Null => None,
            _ => {
                self.invalid(name, "not a string");
                None
            }
        }
    }

    /// A map of strings; unquoted numbers and booleans count as strings.
    fn pairs(&mut self, name: &str) -> BTreeMap<String, String> {
        let found = match self.value.get(name) {
            None | Some(Value::Null) => return BTreeMap::new(),
            Some(value) => texts(value),
        };
        found.unwrap_or_else(|| {
            self.invalid(name, "not a map of strings");
            BTreeMap::new()
        })
    }

    fn reserved_memory(&mut self) -> Vec<ReservedMemory> {
        let name = "reservedMemory";
        let list = match self.value.get(name) {
            None | Some(Value::Null) => return Vec::new(),
            Some(value) => value.as_array(),
        };
        let one = |value: &Value| {
            let numa_node = value.get("numaNode")?.as_u64()?.try_into().ok()?;
            Some(ReservedMemory { numa_node, limits: texts(value.get("limits")?)? })
        };
        let found = list.and_then(|list| list.iter().map(one).collect());
        found.unwrap_or_else(|| {
            self.invalid(name, "not a list of numaNode and limits");
            Vec::new()
        })
    }
}

fn texts(value: &Value) -> Option<BTreeMap<String, String>> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    };
    let pairs = value.as_object()?.iter();
    pairs.map(|(key, value)| Some((key.clone(), text(value)?))).collect()
}

impl Configuration {
    pub(super) fn of(value: &Value, path: &str, notes: &mut Notes) -> Self {
        let mut fields = Fields { value, path, notes };
        let reserved_system_cpus = fields.text("reservedSystemCPUs").and_then(|text| {
            let found = list(&text);
            if let Err(why) = &found {
                fields.invalid("reservedSystemCPUs", &format!("not a list of CPUs ({why})"));
            }
            found.ok()
        });
        let mut or =
            |name: &str, default: &str| fields.text(name).unwrap_or_else(|| default.to_owned());
        Self {
            topology_manager_policy: or("topologyManagerPolicy", "none"),
            topology_manager_scope: or("topologyManagerScope", "container"),
            cpu_manager_policy: or("cpuManagerPolicy", "none"),
            memory_manager_policy: or("memoryManagerPolicy", "None"),
            topology_manager_policy_options: fields.pairs("topologyManagerPolicyOptions"),
            cpu_manager_policy_options: fields.pairs("cpuManagerPolicyOptions"),
            reserved_system_cpus,
            reserved_memory: fields.reserved_memory(),
            system_reserved: fields.pairs("systemReserved"),
            kube_reserved: fields.pairs("kubeReserved"),
            eviction_hard: fields.pairs("evictionHard"),
            cgroup_driver: fields.text("cgroupDriver"),
        }
    }

    /// Whether Guaranteed pods get exclusive CPUs.
    pub fn pins_cpus(&self) -> bool {
        self.cpu_manager_policy == "static"
    }

    /// Whether memory of Guaranteed pods is pinned to NUMA nodes.
    pub fn pins_memory(&self) -> bool {
        self.memory_manager_policy == "Static"
    }

    /// The configuration for the model of a kubelet of this version.
    ///
    /// # Errors
    /// If this version of the kubelet does not know a policy, an option or a quantity.
    pub fn to_model(&self, version: KubeletVersion) -> Result<KubeletConfig, ConfigError> {
        let option =
            |name: &str| self.topology_manager_policy_options.get(name).map(String::as_str);
        let max_allowable_numa_nodes = match option("max-allowable-numa-nodes") {
            Some(text) => Some(text.parse().map_err(|_| {
                invalid(
                    "topologyManagerPolicyOptions",
                    format!("{:?} is not a number", shortened(text)),
                )
            })?),
            None => None,
        };
        Ok(KubeletConfig {
            version,
            topology_policy: self.topology_manager_policy.parse()?,
            topology_scope: self.topology_manager_scope.parse()?,
            prefer_closest_numa_nodes: option("prefer-closest-numa-nodes") == Some("true"),
            max_allowable_numa_nodes,
            cpu_manager: self.cpu_manager()?,
            memory_manager: self.memory_manager()?,
        })
    }

    fn cpu_manager(&self) -> Result<CpuManagerPolicy, ConfigError> {
        match self.cpu_manager_policy.as_str() {
            "none" => return Ok(CpuManagerPolicy::None),
            "static" => {}
            other => {
                let problem = format!("unknown policy {:?}; use none or static", shortened(other));
                return Err(invalid("cpuManagerPolicy", problem));
            }
        }
        let set = self.cpu_manager_policy_options.iter().filter(|(_, value)| *value == "true");
        let options: CpuOptions = set
            .map(|(name, _)| name.parse::<CpuOption>())
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .collect();
        let reserved = match self.reserved_system_cpus {
            Some(cpus) => ReservedCpus::Explicit(cpus),
            None => {
                let of = |field: &str, list: &BTreeMap<String, String>| match list.get("cpu") {
                    Some(text) => amount(field, text).map(Quantity::milli_value),
                    None => Ok(0),
                };
                let milli = of("systemReserved", &self.system_reserved)?
                    .saturating_add(of("kubeReserved", &self.kube_reserved)?);
                ReservedCpus::Millis(u64::try_from(milli).unwrap_or(0))
            }
        };
        Ok(CpuManagerPolicy::Static { options, reserved })
    }

    fn memory_manager(&self) -> Result<MemoryManagerPolicy, ConfigError> {
        match self.memory_manager_policy.as_str() {
            "None" => return Ok(MemoryManagerPolicy::None),
            "Static" => {}
            other => {
                let problem = format!("unknown policy {:?}; use None or Static", shortened(other));
                return Err(invalid("memoryManagerPolicy", problem));
            }
        }
        let mut reserved = Vec::new();
        for node in &self.reserved_memory {
            for (name, text) in &node.limits {
                let kind = MemoryKind::of(&ResourceName::new(name.as_str()));
                let Ok(Some(kind)) = kind else {
                    let problem = format!("{:?} is not a memory resource", shortened(name));
                    return Err(invalid("reservedMemory", problem));
                };
                let bytes = u64::try_from(amount("reservedMemory", text)?.value()).unwrap_or(0);
                reserved.push(ModelMemory { numa: node.numa_node, kind, bytes });
            }
        }
        Ok(MemoryManagerPolicy::Static { reserved })
    }
}

fn amount(field: &str, text: &str) -> Result<Quantity, ConfigError> {
    Quantity::parse(text).map_err(|error| invalid(field, error.to_string()))
}

fn invalid(field: &str, problem: String) -> ConfigError {
    ConfigError { field: field.to_owned(), problem }
}
