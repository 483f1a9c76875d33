//! Pods' cgroups: the CPUs and NUMA nodes that containers may use, and their processes.
//!
//! Supports cgroups version 1, 2 and hybrid, the drivers `systemd` and `cgroupfs`, and containerd, CRI-O and
//! Docker. Pods are identified by UID; cgroups have no pod names.

mod names;
mod process;

use std::collections::BTreeMap;

use berth_model::idset::{CpuSet, IdSet};
use serde::{Deserialize, Serialize};

use crate::list::{as_list_if_known, list};
use crate::root::{Diagnosis, Fault, Notes, Root};
pub use names::{Qos, Runtime};
pub use process::{NodeMemory, Owner, Process};

const CGROUPS: &str = "sys/fs/cgroup";

/// Nested cgroups of a container that are searched for processes.
const INNER_MAX: usize = 64;
/// Depth of that search.
const INNER_DEPTH_MAX: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CgroupVersion {
    /// One tree per controller.
    V1,
    /// A single tree.
    V2,
    /// Version 1, with an empty version 2 tree beside it.
    Hybrid,
    /// No cgroups were found.
    #[default]
    Unknown,
}

/// The kubelet's cgroup driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CgroupDriver {
    /// systemd slices and scopes.
    Systemd,
    /// Plain directories.
    Cgroupfs,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cgroups {
    pub version: CgroupVersion,
    /// `None` if there is no pod.
    pub driver: Option<CgroupDriver>,
    /// By UID.
    pub pods: Vec<PodCgroup>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCgroup {
    pub uid: String,
    pub qos: Qos,
    /// By id, including the sandbox container.
    pub containers: Vec<ContainerCgroup>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerCgroup {
    pub id: String,
    /// `None` if the cgroup's name does not tell.
    pub runtime: Option<Runtime>,
    /// Path of the cgroup, from the root.
    pub path: String,
    #[serde(flatten)]
    pub cpuset: Cpuset,
    pub pids: Vec<u32>,
}

/// CPUs and NUMA nodes of a cgroup. The configured ones are `None` if not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cpuset {
    #[serde(with = "as_list_if_known")]
    pub cpus: Option<CpuSet>,
    #[serde(with = "as_list_if_known")]
    pub mems: Option<IdSet>,
    /// CPUs it can actually use.
    #[serde(with = "as_list_if_known")]
    pub effective_cpus: Option<CpuSet>,
    /// NUMA nodes it can actually use.
    #[serde(with = "as_list_if_known")]
    pub effective_mems: Option<IdSet>,
}

/// File names that differ between versions.
struct Files {
    effective_cpus: &'static str,
    effective_mems: &'static str,
}

const V1_FILES: Files =
    Files { effective_cpus: "cpuset.effective_cpus", effective_mems: "cpuset.effective_mems" };
const V2_FILES: Files =
    Files { effective_cpus: "cpuset.cpus.effective", effective_mems: "cpuset.mems.effective" };

impl Cgroups {
    /// Reads the cgroups of all pods below `root`.
    pub fn read(root: &Root) -> (Self, Vec<Diagnosis>) {
        root.begin_reading();
        let mut notes = Notes::default();
        let (version, trees) = trees(root, &mut notes);
        let mut reading = Reading {
            root,
            files: if version == CgroupVersion::V2 { &V2_FILES } else { &V1_FILES },
            driver: None,
            pods: BTreeMap::new(),
            notes: &mut notes,
        };
        for tree in &trees {
            if tree.ends_with("/unified") {
                reading.files = &V2_FILES;
            }
            reading.tree(tree);
            if !reading.pods.is_empty() {
                break;
            }
        }
        let driver = reading.driver;
        let pods = reading.pods.into_values().collect();
        (Self { version, driver, pods }, notes.done())
    }

    pub fn pod(&self, uid: &str) -> Option<&PodCgroup> {
        self.pods.iter().find(|pod| pod.uid == uid)
    }

    pub fn container(&self, id: &str) -> Option<(&PodCgroup, &ContainerCgroup)> {
        let all = self.pods.iter().flat_map(|pod| pod.containers.iter().map(move |one| (pod, one)));
        all.into_iter().find(|(_, container)| container.id == id)
    }
}

/// The UID of the pod with a cgroup of this name.
pub(crate) fn pod_named(name: &str) -> Option<String> {
    names::pod(name)
}

/// The id of the container with a cgroup of this name, or of the container that this `conmon` monitors.
pub(crate) fn container_named(name: &str) -> Option<String> {
    let own = name.strip_prefix("crio-conmon-").unwrap_or(name);
    names::container(own).map(|(id, _)| id)
}

/// Whether a cgroup of this name is a parent of pods.
pub(crate) fn is_level(name: &str) -> bool {
    names::is_pods(name) || names::qos(name).is_some()
}

/// The version, and the trees that may have cpusets, the most likely first.
fn trees(root: &Root, notes: &mut Notes) -> (CgroupVersion, Vec<String>) {
    let names = match root.names(CGROUPS) {
        Ok(names) => names,
        Err(fault) => {
            notes.fault(CGROUPS, &fault, "CPUs and memory of pods are unknown");
            return (CgroupVersion::Unknown, Vec::new());
        }
    };
    let is_v2 = |at: &str| root.line(&format!("{at}/cgroup.controllers")).is_ok();
    if is_v2(CGROUPS) {
        return (CgroupVersion::V2, vec![CGROUPS.to_owned()]);
    }
    // Controllers can be mounted together, as `cpu,cpuset`.
    let cpuset = names.iter().find(|name| name.split(',').any(|one| one == "cpuset"));
    let mut trees: Vec<String> =
        cpuset.map(|name| format!("{CGROUPS}/{name}")).into_iter().collect();
    let unified = format!("{CGROUPS}/unified");
    let hybrid = is_v2(&unified);
    if hybrid {
        trees.push(unified);
    }
    if trees.is_empty() {
        let what = "is not a version 2 tree and has no cpuset controller, so CPUs and memory of pods are \
                    unknown";
        notes.add(CGROUPS, what, "mount the host's cgroups there");
        return (CgroupVersion::Unknown, trees);
    }
    (if hybrid { CgroupVersion::Hybrid } else { CgroupVersion::V1 }, trees)
}

struct Reading<'a> {
    root: &'a Root,
    files: &'static Files,
    driver: Option<CgroupDriver>,
    pods: BTreeMap<String, PodCgroup>,
    notes: &'a mut Notes,
}

impl Reading<'_> {
    /// Pods are below `kubepods`, or below `kubelet/kubepods` if the kubelet has a cgroup root.
    fn tree(&mut self, tree: &str) {
        let above = self.cpuset(tree, Cpuset::default());
        for name in self.names(tree) {
            let at = format!("{tree}/{name}");
            if names::is_pods(&name) {
                let above = self.cpuset(&at, above);
                self.level(&at, Qos::Guaranteed, above);
            } else if name == "kubelet" || name == "kubelet.slice" {
                let above = self.cpuset(&at, above);
                for inner in self.names(&at).into_iter().filter(|inner| names::is_pods(inner)) {
                    let at = format!("{at}/{inner}");
                    let above = self.cpuset(&at, above);
                    self.level(&at, Qos::Guaranteed, above);
                }
            }
        }
    }

    /// Guaranteed pods are at the first level, other classes one below.
    fn level(&mut self, at: &str, qos: Qos, above: Cpuset) {
        for name in self.names(at) {
            let inner = format!("{at}/{name}");
            if let Some(uid) = names::pod(&name) {
                let driver = if name.ends_with(".slice") {
                    CgroupDriver::Systemd
                } else {
                    CgroupDriver::Cgroupfs
                };
                self.driver.get_or_insert(driver);
                let above = self.cpuset(&inner, above);
                self.pod(&inner, uid, qos, above);
            } else if let (Some(lower), Qos::Guaranteed) = (names::qos(&name), qos) {
                let above = self.cpuset(&inner, above);
                self.level(&inner, lower, above);
            }
        }
    }

    fn pod(&mut self, at: &str, uid: String, qos: Qos, above: Cpuset) {
        let mut containers = Vec::new();
        for name in self.names(at) {
            let Some((id, runtime)) = names::container(&name) else { continue };
            let path = format!("{at}/{name}");
            let cpuset = self.cpuset(&path, above);
            let mut pids = Vec::new();
            self.pids(&path, INNER_DEPTH_MAX, &mut 0, &mut pids);
            pids.sort_unstable();
            pids.dedup();
            let path = format!("/{path}");
            containers.push(ContainerCgroup { id, runtime, path, cpuset, pids });
        }
        containers.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        self.pods.insert(uid.clone(), PodCgroup { uid, qos, containers });
    }

    /// Directories. A pod that disappears during the reading is not a fault.
    fn names(&mut self, at: &str) -> Vec<String> {
        match self.root.names(at) {
            Ok(names) => names,
            Err(Fault::Missing | Fault::Gone) => Vec::new(),
            // There is nothing below a file.
            Err(Fault::Odd(_)) => Vec::new(),
            Err(fault) => {
                self.notes.fault(at, &fault, "pods below it are unknown");
                Vec::new()
            }
        }
    }

    /// A cgroup without the controller inherits what its parent can use.
    fn cpuset(&mut self, at: &str, above: Cpuset) -> Cpuset {
        let cpus = self.set(at, "cpuset.cpus");
        let mems = self.set(at, "cpuset.mems");
        let effective_cpus = self.set(at, self.files.effective_cpus);
        let effective_mems = self.set(at, self.files.effective_mems);
        Cpuset {
            cpus,
            mems,
            effective_cpus: effective_cpus.or(cpus).or(above.effective_cpus),
            effective_mems: effective_mems.or(mems).or(above.effective_mems),
        }
    }

    fn set(&mut self, at: &str, name: &str) -> Option<IdSet> {
        let path = format!("{at}/{name}");
        match self.root.line(&path).map(|line| list(&line)) {
            Ok(Ok(set)) => Some(set).filter(|set| !set.is_empty()),
            Ok(Err(why)) => {
                let what = format!("is not a list ({why}), so it counts as not set");
                self.notes.add(&path, what, "check that cgroups are mounted there");
                None
            }
            Err(Fault::Missing | Fault::Gone) => None,
            Err(fault) => {
                self.notes.fault(&path, &fault, "it counts as not set");
                None
            }
        }
    }

    /// Processes of a cgroup and of nested ones, which CRI-O and containers with systemd create.
    fn pids(&mut self, at: &str, depth: usize, seen: &mut usize, pids: &mut Vec<u32>) {
        *seen += 1;
        if depth == 0 || *seen > INNER_MAX {
            return;
        }
        let path = format!("{at}/cgroup.procs");
        match self.root.line(&path) {
            Ok(lines) => {
                pids.extend(lines.lines().filter_map(|line| line.trim().parse::<u32>().ok()))
            }
            Err(Fault::Missing | Fault::Gone) => {}
            Err(fault) => self.notes.fault(&path, &fault, "its processes are unknown"),
        }
        for name in self.names(at) {
            // Only cgroup files and systemd units have a dot in their name.
            let inner = !name.contains('.') || names::is_unit(&name);
            let path = format!("{at}/{name}");
            if inner && self.root.has_directory(&path) {
                self.pids(&path, depth - 1, seen, pids);
            }
        }
    }
}
