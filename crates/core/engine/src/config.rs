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
    /// How long a preemptor waits for its victims to terminate, at most. It waits for the victims' own
    /// grace period and a minute more, up to this limit; then it looks for room elsewhere.
    pub eviction_max_wait_ms: i64,
    /// A gang that has waited this long may have nodes reserved, one gang at a time.
    pub gang_patience_ms: i64,
    /// What reservations for gangs may keep from other pods.
    pub reservations: ReservationBudget,
}

/// What reservations for gangs may keep from other pods. Every value out of range counts as the
/// nearest that is in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationBudget {
    /// The longest that one reservation lasts. A gang's own timeout can only shorten it.
    pub max_ms: i64,
    /// The share of the GPUs of each model that a reservation may keep, in percent; on nodes without
    /// GPUs, the share of these nodes. With 0 nothing is ever reserved.
    pub share_percent: u8,
    /// The share of all time in which nodes are reserved for gangs of one team, or of one namespace
    /// without a team, in percent: after a reservation it waits until that is true again.
    pub time_percent: u8,
}

impl Default for ReservationBudget {
    fn default() -> Self {
        Self { max_ms: 10 * 60 * 1000, share_percent: 25, time_percent: 25 }
    }
}

impl ReservationBudget {
    /// No limit but the gangs' own timeouts.
    pub const UNLIMITED: Self = Self { max_ms: i64::MAX, share_percent: 100, time_percent: 100 };

    /// How long a team rests after nodes were reserved for one of its gangs.
    pub(crate) fn rest_ms(&self, kept_ms: i64) -> i64 {
        let percent = i64::from(self.time_percent.clamp(1, 100));
        kept_ms.saturating_mul(100 - percent) / percent
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            unknown_topology: UnknownTopology::default(),
            eviction_rest_ms: 10 * 60 * 1000,
            eviction_max_wait_ms: 10 * 60 * 1000,
            gang_patience_ms: 60 * 1000,
            reservations: ReservationBudget::default(),
        }
    }
}

impl From<Profile> for Config {
    fn from(profile: Profile) -> Self {
        Self { profile, ..Self::default() }
    }
}
