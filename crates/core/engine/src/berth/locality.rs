//! Localities: nodes that are alike in every coarse topology key that pods care about.
//!
//! Owns which keys are coarse (zones, racks; not host names) and which nodes share a locality. Rules
//! about coarse keys hold for a whole locality or not at all, so they are asked once for it. Must
//! not know the rules.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::state::State;
use crate::table::{DomainIx, KeyIx, Lookup, NodeIx};

/// A key with more values than this is asked about node by node.
const COARSE_DOMAINS_MAX: usize = 512;

/// With more coarse keys than this, further ones are asked about node by node.
const COARSE_KEYS_MAX: usize = 8;

/// Nodes that share all coarse domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LocalityIx(u32);

/// Which node is in which locality.
#[derive(Clone, Debug, Default)]
pub(crate) struct Localities {
    /// The coarse keys. One that nobody asks about any more stays while there is room, so that
    /// rankings do.
    keys: SmallVec<[KeyIx; 8]>,
    numbers: Lookup<SmallVec<[DomainIx; 4]>, LocalityIx>,
    generation: u64,
}

impl Localities {
    /// Takes in keys that have come into use and drops those that turned out to be fine. Everything
    /// that was sorted by locality is void if the generation changes.
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
        // Keys that nobody else asks about make room for those that somebody does.
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

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The coarse keys.
    pub(crate) fn keys(&self) -> SmallVec<[KeyIx; 8]> {
        self.keys.clone()
    }

    /// The locality of a node, given the coarse keys.
    pub(crate) fn of(&mut self, state: &State, keys: &[KeyIx], node: NodeIx) -> LocalityIx {
        let domains = keys.iter().map(|key| state.census.domain(*key, node)).collect();
        let next = LocalityIx(self.numbers.len() as u32);
        *self.numbers.entry(domains).or_insert(next)
    }
}

/// Whether a key has few values, each of several nodes.
fn is_coarse(domains: usize, nodes: usize) -> bool {
    const NODES_PER_DOMAIN_MIN: usize = 2;
    (1..=COARSE_DOMAINS_MAX).contains(&domains) && domains * NODES_PER_DOMAIN_MIN <= nodes
}
