//! What came of a world.
//!
//! Owns the vocabulary only.

use std::fmt;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The world.
    pub seed: u64,
    /// When.
    pub at_ms: u64,
    /// What.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at_ms, what } = self;
        write!(f, "seed {seed}, at {}.{:03} s: {what}", at_ms / 1_000, at_ms % 1_000)
    }
}

/// How much happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Times that somebody began to lead.
    pub terms: u64,
    /// Pods that were bound by replicas.
    pub bound: u64,
    /// Bindings that the server rejected.
    pub refused_bindings: u64,
    /// Pods that kubelets rejected.
    pub rejections: u64,
    /// Evictions that were done.
    pub evictions: u64,
    /// Calls that arrived after their sender was gone or led no more.
    pub late: u64,
    /// Calls in all.
    pub calls: u64,
    /// Kills, pauses, outages, lost watches and changed clocks.
    pub faults: u64,
    /// Pods that wait at the end.
    pub waiting: u64,
}

impl Tally {
    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        let Self { terms, bound, refused_bindings, rejections, evictions, late, calls, .. } = other;
        self.terms += terms;
        self.bound += bound;
        self.refused_bindings += refused_bindings;
        self.rejections += rejections;
        self.evictions += evictions;
        self.late += late;
        self.calls += calls;
        self.faults += other.faults;
        self.waiting += other.waiting;
    }
}
