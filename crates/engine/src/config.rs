//! How the engine decides: the settings an operator has.
//!
//! Owns every number and rule that is a matter of choice. Must not know what they are used for.

/// Whose rules are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Those of kube-scheduler 1.36 with its defaults.
    KubeScheduler,
    /// Those of kube-scheduler, but nodes are packed by GPUs (`MostAllocated` on the devices a pod
    /// asks for) rather than spread. What careful operators of kube-scheduler set up.
    KubeSchedulerPacking,
    /// Berth's own.
    #[default]
    Berth,
}

/// What to do with nodes of whose inside nothing is known, for pods that would be pinned to CPUs,
/// memory or devices there. They are never taken for aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnknownTopology {
    /// They come after every node that is known to take the pod, aligned or not.
    #[default]
    Last,
    /// They are not used.
    Refuse,
}

/// The engine's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whose rules are followed.
    pub profile: Profile,
    /// What to do with nodes of whose inside nothing is known.
    pub unknown_topology: UnknownTopology,
    /// For so long after a pod of a workload was evicted for another, pods that replace it are not.
    pub eviction_rest_ms: i64,
    /// A gang that has waited for so long gets nodes set aside, one gang at a time.
    pub gang_patience_ms: i64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            unknown_topology: UnknownTopology::default(),
            eviction_rest_ms: 10 * 60 * 1000,
            gang_patience_ms: 60 * 1000,
        }
    }
}

impl From<Profile> for Config {
    fn from(profile: Profile) -> Self {
        Self { profile, ..Self::default() }
    }
}
