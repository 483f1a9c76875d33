//! The line: pods that wait for their turn, team by team.
//!
//! Owns who of a team is first and which team is first, without looking at every pod: each team has
//! a queue of its own, and only the standing of its first pod is kept in order. A team whose books or
//! queue changed is looked at again when the line is asked next. Must not know what decides a turn.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::TeamIx;
use super::rules::Turn;

/// Pods `P` in an order, inside of each team that of their keys `K`.
#[derive(Clone, Debug)]
pub struct Line<K, P> {
    /// Pods of no team; all of them where there are no teams.
    unclaimed: BTreeMap<K, P>,
    by_team: BTreeMap<TeamIx, BTreeMap<K, P>>,
    len: usize,
    /// The first of every team in the order of their turns.
    heads: BTreeMap<(Turn, K), P>,
    head_of: BTreeMap<TeamIx, (Turn, K)>,
    /// Teams to be looked at again.
    stale: BTreeSet<TeamIx>,
}

impl<K, P> Default for Line<K, P> {
    fn default() -> Self {
        Self {
            unclaimed: BTreeMap::new(),
            by_team: BTreeMap::new(),
            len: 0,
            heads: BTreeMap::new(),
            head_of: BTreeMap::new(),
            stale: BTreeSet::from([TeamIx::NONE]),
        }
    }
}

impl<K: Ord + Clone, P: Copy> Line<K, P> {
    /// A pod waits.
    pub fn insert(&mut self, team: TeamIx, key: K, pod: P) {
        let before = if team == TeamIx::NONE {
            self.unclaimed.insert(key, pod)
        } else {
            self.by_team.entry(team).or_default().insert(key, pod)
        };
        self.len += usize::from(before.is_none());
        self.distrust(team);
    }

    /// A pod does not wait any more.
    pub fn remove(&mut self, team: TeamIx, key: &K) {
        let before = if team == TeamIx::NONE {
            self.unclaimed.remove(key)
        } else {
            self.by_team.get_mut(&team).and_then(|queue| queue.remove(key))
        };
        self.len -= usize::from(before.is_some());
        self.distrust(team);
    }

    /// Something changed for a team.
    pub fn distrust(&mut self, team: TeamIx) {
        self.stale.insert(team);
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Who is first where there are no teams.
    pub fn first_unclaimed(&self) -> Option<P> {
        self.unclaimed.first_key_value().map(|(_, pod)| *pod)
    }

    /// Who is first.
    pub fn first(&mut self, turn_of: impl Fn(TeamIx, P) -> Turn) -> Option<P> {
        while let Some(team) = self.stale.pop_first() {
            if let Some(before) = self.head_of.remove(&team) {
                self.heads.remove(&before);
            }
            let queue = if team == TeamIx::NONE {
                Some(&self.unclaimed)
            } else {
                self.by_team.get(&team).filter(|queue| !queue.is_empty())
            };
            let Some(queue) = queue else {
                self.by_team.remove(&team);
                continue;
            };
            if let Some((key, pod)) = queue.first_key_value() {
                let head = (turn_of(team, *pod), key.clone());
                self.heads.insert(head.clone(), *pod);
                self.head_of.insert(team, head);
            }
        }
        self.heads.first_key_value().map(|(_, pod)| *pod)
    }
}
