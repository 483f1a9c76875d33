//! The engine's settings.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Profile {
    KubeScheduler,
    /// kube-scheduler with `MostAllocated` packing on the devices a pod asks for, as careful
    /// operators configure it.
    KubeSchedulerPacking,
    #[default]
    Berth,
}

/// How to treat nodes of unknown topology for pods that would be pinned there. Such nodes never
/// count as aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnknownTopology {
    /// Use them after all nodes known to admit the pod.
    #[default]
    Last,
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub profile: Profile,
    pub unknown_topology: UnknownTopology,
    /// After a pod was preempted, pods that replace it are not preempted for this long.
    pub eviction_cooldown_ms: i64,
    /// How long a preemptor waits for its victims at most. It waits for their grace period plus a
    /// minute, up to this limit; then it looks for room elsewhere.
    pub eviction_max_wait_ms: i64,
    /// A gang pending this long may get a reservation, one gang at a time.
    pub gang_patience_ms: i64,
    pub reservations: ReservationBudget,
}

/// Limits of reservations for gangs. Values out of range are clamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationBudget {
    /// Maximum duration of a reservation. A gang's own timeout can only shorten it.
    pub max_ms: i64,
    /// Percentage of the GPUs of each model that a reservation may hold; on nodes without GPUs,
    /// percentage of these nodes. 0 disables reservations.
    pub share_percent: u8,
    /// Percentage of time in which a team, or a namespace without a team, may have nodes reserved:
    /// after a reservation it waits accordingly.
    pub time_percent: u8,
}

impl Default for ReservationBudget {
    fn default() -> Self {
        Self { max_ms: 10 * 60 * 1000, share_percent: 25, time_percent: 25 }
    }
}

impl ReservationBudget {
    /// Limited by the gangs' own timeouts only.
    pub const UNLIMITED: Self = Self { max_ms: i64::MAX, share_percent: 100, time_percent: 100 };

    /// How long a team waits after one of its gangs had a reservation.
    pub(crate) fn cooldown_ms(&self, kept_ms: i64) -> i64 {
        let percent = i64::from(self.time_percent.clamp(1, 100));
        kept_ms.saturating_mul(100 - percent) / percent
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            unknown_topology: UnknownTopology::default(),
            eviction_cooldown_ms: 10 * 60 * 1000,
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
