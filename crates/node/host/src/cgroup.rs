//! Pods' cgroups: which CPUs and NUMA nodes their containers may use, and their processes.
//!
//! Owns how kubelets and container runtimes lay cgroups out: version 1, 2 and both at once, the drivers
//! `systemd` and `cgroupfs`, containerd, CRI-O and Docker. Must not know pods' names, which stand nowhere
//! in cgroups, nor whether what they have is good for them.

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

/// Cgroups inside of a container's that are looked into for processes.
const INNER_MAX: usize = 64;
/// How deep those are looked for.
const INNER_DEPTH_MAX: usize = 4;

/// Which version of cgroups a machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CgroupVersion {
    /// A tree for each controller.
    V1,
    /// One tree.
    V2,
    /// Version 1 with an empty tree of version 2 beside it.
    Hybrid,
    /// None was found.
    #[default]
    Unknown,
}

/// How the kubelet makes cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CgroupDriver {
    /// As slices and scopes of systemd.
    Systemd,
    /// As directories.
    Cgroupfs,
}

/// All pods' cgroups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cgroups {
    /// Version.
    pub version: CgroupVersion,
    /// Driver of the kubelet; `None` where there is no pod.
    pub driver: Option<CgroupDriver>,
    /// Pods, by UID.
    pub pods: Vec<PodCgroup>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCgroup {
    /// Its UID.
    pub uid: String,
    /// Its quality of service.
    pub qos: Qos,
    /// Its containers, the one that holds its namespaces included, by id.
    pub containers: Vec<ContainerCgroup>,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerCgroup {
    /// Its id.
    pub id: String,
    /// Who runs it, where names tell.
    pub runtime: Option<Runtime>,
    /// Where its cgroup is, from the root on.
    pub path: String,
    /// What it may use.
    #[serde(flatten)]
    pub cpuset: Cpuset,
    /// Its processes.
    pub pids: Vec<u32>,
}

/// CPUs and NUMA nodes of a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cpuset {
    /// CPUs set for it; `None` where none are.
    #[serde(with = "as_list_if_known")]
    pub cpus: Option<CpuSet>,
    /// NUMA nodes set for it; `None` where none are.
    #[serde(with = "as_list_if_known")]
    pub mems: Option<IdSet>,
    /// CPUs that it can really use.
    #[serde(with = "as_list_if_known")]
    pub effective_cpus: Option<CpuSet>,
    /// NUMA nodes that it can really use.
    #[serde(with = "as_list_if_known")]
    pub effective_mems: Option<IdSet>,
}

/// The names of files, which differ between versions.
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
        root.begin();
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

    /// The pod with a UID.
    pub fn pod(&self, uid: &str) -> Option<&PodCgroup> {
        self.pods.iter().find(|pod| pod.uid == uid)
    }

    /// The container with an id, and its pod.
    pub fn container(&self, id: &str) -> Option<(&PodCgroup, &ContainerCgroup)> {
        let all = self.pods.iter().flat_map(|pod| pod.containers.iter().map(move |one| (pod, one)));
        all.into_iter().find(|(_, container)| container.id == id)
    }
}

/// The UID of the pod whose cgroup is named like this.
pub(crate) fn pod_named(name: &str) -> Option<String> {
    names::pod(name)
}

/// The id of the container whose cgroup is named like this, or of the one that is watched over.
pub(crate) fn container_named(name: &str) -> Option<String> {
    let own = name.strip_prefix("crio-conmon-").unwrap_or(name);
    names::container(own).map(|(id, _)| id)
}

/// Whether a cgroup is above those of pods.
pub(crate) fn is_level(name: &str) -> bool {
    names::is_pods(name) || names::qos(name).is_some()
}

/// The version, and the trees in which cpusets may be, the likeliest first.
fn trees(root: &Root, notes: &mut Notes) -> (CgroupVersion, Vec<String>) {
    let names = match root.names(CGROUPS) {
        Ok(names) => names,
        Err(fault) => {
            notes.fault(CGROUPS, &fault, "what CPUs and memory pods have is unknown");
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
        let what = "is neither a tree of version 2 nor has a cpuset controller, so what CPUs and memory \
                    pods have is unknown";
        notes.add(CGROUPS, what, "mount the host's cgroups there");
        return (CgroupVersion::Unknown, trees);
    }
    (if hybrid { CgroupVersion::Hybrid } else { CgroupVersion::V1 }, trees)
}

/// What is known so far.
struct Reading<'a> {
    root: &'a Root,
    files: &'static Files,
    driver: Option<CgroupDriver>,
    pods: BTreeMap<String, PodCgroup>,
    notes: &'a mut Notes,
}

impl Reading<'_> {
    /// A tree: pods are below `kubepods`, or, where the kubelet was given a root, below that.
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

    /// Pods of a quality of service; other qualities are below the first.
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

    /// Directories; a pod may go while it is looked at, which is no fault.
    fn names(&mut self, at: &str) -> Vec<String> {
        match self.root.names(at) {
            Ok(names) => names,
            Err(Fault::Missing | Fault::Gone) => Vec::new(),
            // A file in its place has nothing below it.
            Err(Fault::Odd(_)) => Vec::new(),
            Err(fault) => {
                self.notes.fault(at, &fault, "the pods below it are unknown");
                Vec::new()
            }
        }
    }

    /// Where the controller is not passed on to a cgroup, it can use what the one above can.
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
                let what = format!("is no list ({why}), so it counts as not set");
                self.notes.add(&path, what, "look whether cgroups are mounted there");
                None
            }
            Err(Fault::Missing | Fault::Gone) => None,
            Err(fault) => {
                self.notes.fault(&path, &fault, "it counts as not set");
                None
            }
        }
    }

    /// Processes of a cgroup and of those inside: CRI-O and containers that run systemd make some.
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
            // Files of cgroups have a dot, and so have units of systemd; nothing else does.
            let inner = !name.contains('.') || names::is_unit(&name);
            let path = format!("{at}/{name}");
            if inner && self.root.has_directory(&path) {
                self.pids(&path, depth - 1, seen, pids);
            }
        }
    }
}
