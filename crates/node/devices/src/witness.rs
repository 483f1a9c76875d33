//! Who can tell which pods run on a machine, apart from the kubelet.
//!
//! Owns the question, and the answer from cgroups. Must not know what follows from it.

use std::collections::BTreeSet;

use berth_host::Root;
use berth_host::cgroup::{CgroupVersion, Cgroups};

/// Who can tell which pods run on this machine, apart from the kubelet.
pub trait Witness: Send + Sync + 'static {
    /// UIDs of all pods that have processes, other than the one that holds their namespaces; `None`: cannot tell
    /// now. A pod that is being admitted must not be among them yet, nor one whose processes have ended.
    fn pods(&self) -> Option<BTreeSet<String>>;
}

/// A witness who never knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWitness;

impl Witness for NoWitness {
    fn pods(&self) -> Option<BTreeSet<String>> {
        None
    }
}

/// The program that holds a pod's namespaces and does nothing else, with containerd and CRI-O alike.
const SANDBOX: &str = "pause";

/// Cgroups tell.
#[derive(Debug)]
pub struct CgroupWitness {
    root: Root,
}

impl CgroupWitness {
    /// The cgroups below a root.
    pub fn new(root: Root) -> Self {
        Self { root }
    }
}

impl Witness for CgroupWitness {
    fn pods(&self) -> Option<BTreeSet<String>> {
        let (cgroups, _) = Cgroups::read(&self.root);
        if cgroups.version == CgroupVersion::Unknown {
            return None;
        }
        let works = |pid: &u32| {
            let name = std::fs::read_to_string(self.root.base().join(format!("proc/{pid}/comm")));
            // Whose name cannot be read counts as work: what is held stays held.
            name.map_or(true, |name| name.trim_end() != SANDBOX)
        };
        let runs = |pod: &&berth_host::cgroup::PodCgroup| {
            pod.containers.iter().flat_map(|container| &container.pids).any(works)
        };
        Some(cgroups.pods.iter().filter(runs).map(|pod| pod.uid.clone()).collect())
    }
}
