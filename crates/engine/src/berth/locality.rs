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
    /// The coarse keys, by name: a key that nobody asks about any more stays, so that rankings do.
    keys: Vec<Arc<str>>,
    numbers: Lookup<SmallVec<[DomainIx; 4]>, LocalityIx>,
    generation: u64,
}

impl Localities {
    /// Takes in keys that have come into use and drops those that turned out to be fine. Everything
    /// that was sorted by locality is void if the generation changes.
    pub(crate) fn refresh(&mut self, state: &mut State) {
        let fine: Vec<Arc<str>> =
            self.keys.iter().filter(|name| !is_coarse(state, name)).cloned().collect();
        let mut new: Vec<Arc<str>> = state
            .census
            .keys()
            .map(|(_, name)| name)
            .filter(|name| !self.keys.contains(name) && is_coarse(state, name))
            .cloned()
            .collect();
        if fine.is_empty() && new.is_empty() {
            return;
        }
        new.sort_unstable();
        let kept = self.keys.len() - fine.len();
        let lacking = (kept + new.len()).saturating_sub(COARSE_KEYS_MAX);
        // Keys that nobody else asks about make room for those that somebody does.
        let idle = self.keys.iter().filter(|name| state.is_key_idle(name));
        let idle: Vec<Arc<str>> = idle.take(lacking).cloned().collect();
        new.truncate(COARSE_KEYS_MAX.saturating_sub(kept - idle.len().min(kept)));
        if fine.is_empty() && new.is_empty() {
            return;
        }
        for name in fine.iter().chain(&idle) {
            if let Some(at) = self.keys.iter().position(|one| one == name) {
                self.keys.remove(at);
                state.let_go_of_key(name);
            }
        }
        for name in new {
            state.hold_key(&name);
            self.keys.push(name);
        }
        self.numbers.clear();
        self.generation += 1;
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The coarse keys by number.
    pub(crate) fn keys(&self, state: &State) -> SmallVec<[KeyIx; 4]> {
        self.keys.iter().filter_map(|name| state.census.find_key(name)).collect()
    }

    /// The locality of a node, given the coarse keys.
    pub(crate) fn of(&mut self, state: &State, keys: &[KeyIx], node: NodeIx) -> LocalityIx {
        let domains = keys.iter().map(|key| state.census.domain(*key, node)).collect();
        let next = LocalityIx(self.numbers.len() as u32);
        *self.numbers.entry(domains).or_insert(next)
    }
}

/// Whether a key has few values, each of several nodes.
fn is_coarse(state: &State, name: &Arc<str>) -> bool {
    const NODES_PER_DOMAIN_MIN: usize = 2;
    let domains = state.census.find_key(name).map_or(0, |key| state.census.domain_count(key));
    domains <= COARSE_DOMAINS_MAX && domains * NODES_PER_DOMAIN_MIN <= state.nodes.len()
}
