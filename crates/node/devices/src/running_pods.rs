//! Finds the pods that run on a machine, independently of the kubelet.

use std::collections::BTreeSet;

use berth_host::Root;
use berth_host::cgroup::{CgroupVersion, Cgroups};

/// Finds the pods that run on this machine, independently of the kubelet.
pub trait RunningPods: Send + Sync + 'static {
    /// UIDs of all pods with processes other than the sandbox's; `None` if unknown at the moment. Must not include
    /// a pod that is being admitted, nor one whose processes have ended.
    fn pods(&self) -> Option<BTreeSet<String>>;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct UnknownPods;

impl RunningPods for UnknownPods {
    fn pods(&self) -> Option<BTreeSet<String>> {
        None
    }
}

/// The sandbox program of containerd and CRI-O.
const SANDBOX: &str = "pause";

#[derive(Debug)]
pub struct CgroupPods {
    root: Root,
}

impl CgroupPods {
    pub fn new(root: Root) -> Self {
        Self { root }
    }
}

impl RunningPods for CgroupPods {
    fn pods(&self) -> Option<BTreeSet<String>> {
        let (cgroups, _) = Cgroups::read(&self.root);
        if cgroups.version == CgroupVersion::Unknown {
            return None;
        }
        let works = |pid: &u32| {
            let name = std::fs::read_to_string(self.root.base().join(format!("proc/{pid}/comm")));
            // A process without a readable name counts, so that holds remain.
            name.map_or(true, |name| name.trim_end() != SANDBOX)
        };
        let runs = |pod: &&berth_host::cgroup::PodCgroup| {
            pod.containers.iter().flat_map(|container| &container.pids).any(works)
        };
        Some(cgroups.pods.iter().filter(runs).map(|pod| pod.uid.clone()).collect())
    }
}
