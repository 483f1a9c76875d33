//! Localities: nodes with the same values of all coarse topology keys (zones and racks, not host
//! names).
//!
//! A rule about a coarse key gives the same answer for a whole locality, so it is evaluated once
//! for it.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::state::State;
use crate::table::{DomainIx, KeyIx, Lookup, NodeIx};

/// Keys with more values are evaluated node by node.
const COARSE_DOMAINS_MAX: usize = 512;

/// Further coarse keys are evaluated node by node.
const COARSE_KEYS_MAX: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LocalityIx(u32);

#[derive(Clone, Debug, Default)]
pub(crate) struct Localities {
    /// A coarse key stays while there is room even if no pod refers to it, so that rankings stay
    /// valid.
    keys: SmallVec<[KeyIx; 8]>,
    numbers: Lookup<SmallVec<[DomainIx; 4]>, LocalityIx>,
    pub(crate) generation: u64,
}

impl Localities {
    /// Adds keys that have come into use and drops keys that are no longer coarse. A new generation
    /// invalidates everything sorted by locality.
    pub(crate) fn refresh(&mut self, state: &mut State) {
        let census = &state.census;
        let nodes = state.nodes.len();
        let fine = |key: &KeyIx| !is_coarse(census.domain_count(*key), nodes);
        let mut dropped: SmallVec<[KeyIx; 8]> = self.keys.iter().copied().filter(fine).collect();
        let new = census.keys().filter(|(key, _)| !self.keys.contains(key) && !fine(key));
        let mut new: Vec<(Arc<str>, KeyIx)> = new.map(|(key, name)| (name.clone(), key)).collect();
        if dropped.is_empty() && new.is_empty() {
            return;
        }
        new.sort_unstable();
        let lacking = (self.keys.len() - dropped.len() + new.len()).saturating_sub(COARSE_KEYS_MAX);
        // Keys without other references make room for those with some.
        let idle = |key: &KeyIx| census.key_references(*key) <= 1 && !dropped.contains(key);
        let idle: SmallVec<[KeyIx; 8]> =
            self.keys.iter().copied().filter(idle).take(lacking).collect();
        dropped.extend(idle);
        new.truncate(COARSE_KEYS_MAX - (self.keys.len() - dropped.len()));
        if dropped.is_empty() && new.is_empty() {
            return;
        }
        self.keys.retain(|key| !dropped.contains(key));
        dropped.into_iter().for_each(|key| state.census.release_key(key));
        for (_, key) in new {
            state.census.retain_key(key);
            self.keys.push(key);
        }
        self.numbers.clear();
        self.generation += 1;
    }

    pub(crate) fn keys(&self) -> SmallVec<[KeyIx; 8]> {
        self.keys.clone()
    }

    pub(crate) fn of(&mut self, state: &State, keys: &[KeyIx], node: NodeIx) -> LocalityIx {
        let domains = keys.iter().map(|key| state.census.domain(*key, node)).collect();
        let next = LocalityIx(self.numbers.len() as u32);
        *self.numbers.entry(domains).or_insert(next)
    }
}

fn is_coarse(domains: usize, nodes: usize) -> bool {
    const NODES_PER_DOMAIN_MIN: usize = 2;
    (1..=COARSE_DOMAINS_MAX).contains(&domains) && domains * NODES_PER_DOMAIN_MIN <= nodes
}
