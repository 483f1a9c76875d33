//! Gangs: pods that start together or not at all.

use std::sync::Arc;

/// How long a reservation of a gang without its own timeout lasts.
pub const DEFAULT_TIMEOUT_MS: i64 = 10 * 60 * 1000;

/// A pod's membership in a gang.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangMembership {
    /// Unique in its namespace.
    pub name: Arc<str>,
    /// The gang's terms as this pod states them; `None`: the gang is an object of its own.
    pub terms: Option<GangTerms>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangTerms {
    /// At least this many members start together, or none.
    pub min: u32,
    pub topology: Option<GangTopology>,
    /// How long a reservation for the gang lasts at most; then another gang's turn comes.
    pub timeout_ms: i64,
    pub disruption: Disruption,
}

/// All members go to one topology domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangTopology {
    /// The node label: a zone, a rack, an NVLink domain.
    pub key: Arc<str>,
    /// Whether the gang stays pending without such a domain; otherwise it is only preferred.
    pub required: bool,
}

/// What happens to a gang when some of its members are preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Disruption {
    /// If fewer than its minimum would be left, all are preempted.
    #[default]
    Whole,
    Single,
}

/// A PodGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub terms: GangTerms,
}
