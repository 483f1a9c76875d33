//! Who can tell which pods run on a machine, apart from the kubelet.
//!
//! Owns the question, and the answer from cgroups. Must not know what follows from it.

use std::collections::BTreeSet;

use berth_hardware::Root;
use berth_hardware::cgroup::{CgroupVersion, Cgroups};

/// Who can tell which pods run on this machine, apart from the kubelet.
pub trait Witness: Send + Sync + 'static {
    /// UIDs of all pods that have processes, be it only the one that holds their namespaces; `None`: cannot tell
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
        let runs = |pod: &&berth_hardware::cgroup::PodCgroup| {
            pod.containers.iter().any(|container| !container.pids.is_empty())
        };
        Some(cgroups.pods.iter().filter(runs).map(|pod| pod.uid.clone()).collect())
    }
}
