//! Gangs: pods that start together or not at all.
//!
//! Owns the data only: what a pod or a PodGroup says about its gang. Must not know which pods exist.

use std::sync::Arc;

/// How long a gang may hold what is set aside for it, if it does not say.
pub const DEFAULT_TIMEOUT_MS: i64 = 10 * 60 * 1000;

/// What a pod says about the gang it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Membership {
    /// The gang's name; gangs of one name in two namespaces are two.
    pub name: Arc<str>,
    /// What the gang asks for, as this pod says; `None`: the gang is an object of its own.
    pub terms: Option<GangTerms>,
}

/// What a gang asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangTerms {
    /// So many members start together, or none does.
    pub min: u32,
    /// Nodes that are near each other, if that is asked for.
    pub topology: Option<GangTopology>,
    /// For so long at most something is set aside for it; then it is another gang's turn.
    pub timeout_ms: i64,
    /// What becomes of the others when one is evicted.
    pub disruption: Disruption,
}

/// All members go to nodes with one and the same value of a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangTopology {
    /// The label's key: a zone, a rack, an NVLink domain.
    pub key: Arc<str>,
    /// Whether they wait for that; otherwise it is only tried first.
    pub required: bool,
}

/// What becomes of a gang when some of its members are evicted for another pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Disruption {
    /// If fewer than its minimum would be left, all are evicted.
    #[default]
    Whole,
    /// The others stay.
    Single,
}

/// A gang that is an object of its own (a PodGroup).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What it asks for.
    pub terms: GangTerms,
}
