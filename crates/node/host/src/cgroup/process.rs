//! Processes: their pod, the CPUs and NUMA nodes they may use, and where their memory is.
//!
//! Reads `/proc/<pid>`, but never command lines, environments or open files.

use std::collections::BTreeMap;

use berth_model::idset::{CpuSet, IdSet};
use serde::{Deserialize, Serialize};

use super::names;
use crate::list::{as_list_if_known, list};
use crate::root::{Diagnosis, Fault, Notes, Root};

/// Bytes of `/proc/<pid>/status`, and of `/proc/<pid>/cgroup`.
const STATUS_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    pub pid: u32,
    #[serde(with = "as_list_if_known")]
    pub cpus_allowed: Option<CpuSet>,
    /// NUMA nodes it may allocate memory from.
    #[serde(with = "as_list_if_known")]
    pub mems_allowed: Option<IdSet>,
    /// By NUMA node, as far as `numa_maps` was read.
    pub memory: Vec<NodeMemory>,
    /// Whether all of `numa_maps` was read.
    pub whole: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMemory {
    pub node: u32,
    pub bytes: u64,
}

/// The pod and container of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// UID.
    pub pod: String,
    /// Id; `None` for a process outside of containers.
    pub container: Option<String>,
}

impl Process {
    /// Reads a process. At most `maps_bytes_max` are read of `numa_maps`, for which the kernel walks all of
    /// the process's memory. `None`: the process does not exist (any more).
    pub fn read(root: &Root, pid: u32, maps_bytes_max: usize) -> (Option<Self>, Vec<Diagnosis>) {
        root.begin_reading();
        let mut notes = Notes::default();
        let path = format!("proc/{pid}/status");
        let status = match root.text(&path, STATUS_BYTES_MAX) {
            Ok(status) => status,
            Err(Fault::Missing | Fault::Gone) => return (None, Vec::new()),
            Err(fault) => {
                notes.fault(&path, &fault, "the CPUs it may use are unknown");
                String::new()
            }
        };
        let mut allowed = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let set = list(line.trim_start_matches(':'));
            if let Err(why) = &set {
                let what = format!("{name} is not a list ({why}), so it is unknown");
                notes.add(&path, what, "check that procfs is mounted");
            }
            set.ok()
        };
        let cpus_allowed = allowed("Cpus_allowed_list");
        let mems_allowed = allowed("Mems_allowed_list");
        let path = format!("proc/{pid}/numa_maps");
        let (memory, whole) = match root.start_of(&path, maps_bytes_max) {
            Ok((text, cut)) => (memory(&text), !cut),
            // A kernel without NUMA, or the process has ended.
            Err(Fault::Missing | Fault::Gone) => (Vec::new(), false),
            Err(fault) => {
                notes.fault(&path, &fault, "the location of its memory is unknown");
                (Vec::new(), false)
            }
        };
        (Some(Self { pid, cpus_allowed, mems_allowed, memory, whole }), notes.done())
    }
}

impl Owner {
    /// `None` for a process that is not a pod's.
    pub fn read(root: &Root, pid: u32) -> (Option<Self>, Vec<Diagnosis>) {
        root.begin_reading();
        let mut notes = Notes::default();
        let path = format!("proc/{pid}/cgroup");
        let text = match root.text(&path, STATUS_BYTES_MAX) {
            Ok(text) => text,
            Err(Fault::Missing | Fault::Gone) => return (None, Vec::new()),
            Err(fault) => {
                notes.fault(&path, &fault, "the pod of the process is unknown");
                return (None, notes.done());
            }
        };
        // `hierarchy:controllers:path`; all paths of a pod are alike.
        let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        (paths.filter_map(owner).next(), notes.done())
    }
}

fn owner(path: &str) -> Option<Owner> {
    let mut names = path.split('/').skip_while(|name| names::pod(name).is_none());
    let pod = names::pod(names.next()?)?;
    let container = names.find_map(names::container).map(|(id, _)| id);
    Some(Owner { pod, container })
}

/// Lines such as `7f2c… default anon=9 dirty=9 N0=4 N1=5 kernelpagesize_kB=4`.
fn memory(text: &str) -> Vec<NodeMemory> {
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for line in text.lines() {
        let words = line.split_ascii_whitespace().skip(2);
        let mut kilobytes = 4;
        let mut pages: Vec<(u32, u64)> = Vec::new();
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let Ok(value) = value.parse::<u64>() else { continue };
            match key.strip_prefix('N').map(str::parse) {
                Some(Ok(node)) => pages.push((node, value)),
                _ if key == "kernelpagesize_kB" => kilobytes = value,
                _ => {}
            }
        }
        for (node, count) in pages {
            let more = count.saturating_mul(kilobytes).saturating_mul(1024);
            let sum = bytes.entry(node).or_default();
            *sum = sum.saturating_add(more);
        }
    }
    bytes.into_iter().map(|(node, bytes)| NodeMemory { node, bytes }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_with_their_size() {
        let text = "00400000 default file=/usr/bin/N1=3 mapped=2 N0=2 kernelpagesize_kB=4\n\
                    7f0000000000 bind:1 huge anon=3 dirty=3 N1=3 kernelpagesize_kB=2048\n\
                    7f0000600000 default\n\
                    odd\n\
                    7f1 default N0=18446744073709551615 N9=1 kernelpagesize_kB=4\n";
        let found: Vec<(u32, u64)> = memory(text).iter().map(|one| (one.node, one.bytes)).collect();
        assert_eq!(found, [(0, u64::MAX), (1, 3 << 21), (9, 4096)]);
    }

    #[test]
    fn owners_are_read_from_paths_of_all_drivers() {
        let id = "ab".repeat(32);
        let uid = "3f6e8b1a-52c5-4a3e-9a3e-0d4f1f7f2a11";
        let slice = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/crio-{id}.scope/container",
            uid.replace('-', "_")
        );
        let found = owner(&slice).unwrap();
        assert_eq!((found.pod.as_str(), found.container.as_deref()), (uid, Some(id.as_str())));
        let found = owner(&format!("/kubepods/pod{uid}/{id}")).unwrap();
        assert_eq!((found.pod.as_str(), found.container.as_deref()), (uid, Some(id.as_str())));
        assert_eq!(owner("/system.slice/kubelet.service"), None);
    }
}
