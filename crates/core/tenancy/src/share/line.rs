//! The line: pods that wait for their turn, team by team.
//!
//! Owns which pod is first, without looking at every pod: pods of one team that ask for the same have
//! a lane of their own, in which the order never changes, and only the standing of the first of each
//! lane is kept in order. The lanes of a team whose books changed are looked at again when the line
//! is asked next. Must not know what decides a turn.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::TeamIx;
use super::rules::Turn;

/// The pods of a team by lane.
type Lanes<L, K, P> = BTreeMap<L, BTreeMap<K, P>>;

/// Pods `P` in an order; inside of each lane `L` that of their keys `K`.
#[derive(Clone, Debug)]
pub struct Line<L, K, P> {
    /// Whether there are teams to compare.
    is_ranked: bool,
    /// All pods, where there are no teams.
    unranked: BTreeMap<K, P>,
    teams: BTreeMap<TeamIx, Lanes<L, K, P>>,
    len: usize,
    /// The first of every lane in the order of their turns.
    heads: BTreeMap<(Turn, K), P>,
    head_of: BTreeMap<(TeamIx, L), (Turn, K)>,
    /// Lanes to be looked at again.
    stale: BTreeSet<(TeamIx, L)>,
}

impl<L: Ord + Copy, K: Ord + Clone, P: Copy> Line<L, K, P> {
    /// Nobody waits; and whether there are teams to compare.
    pub fn new(is_ranked: bool) -> Self {
        Self {
            is_ranked,
            unranked: BTreeMap::new(),
            teams: BTreeMap::new(),
            len: 0,
            heads: BTreeMap::new(),
            head_of: BTreeMap::new(),
            stale: BTreeSet::new(),
        }
    }

    /// A pod waits.
    pub fn insert(&mut self, team: TeamIx, lane: L, key: K, pod: P) {
        let before = if self.is_ranked {
            self.stale.insert((team, lane));
            let lanes = self.teams.entry(team).or_default();
            lanes.entry(lane).or_default().insert(key, pod)
        } else {
            self.unranked.insert(key, pod)
        };
        self.len += usize::from(before.is_none());
    }

    /// A pod does not wait any more.
    pub fn remove(&mut self, team: TeamIx, lane: L, key: &K) {
        let before = if self.is_ranked {
            self.stale.insert((team, lane));
            let lanes = self.teams.get_mut(&team);
            lanes.and_then(|lanes| lanes.get_mut(&lane)).and_then(|pods| pods.remove(key))
        } else {
            self.unranked.remove(key)
        };
        self.len -= usize::from(before.is_some());
    }

    /// Something changed for a team.
    pub fn distrust(&mut self, team: TeamIx) {
        let lanes = self.teams.get(&team).into_iter().flat_map(BTreeMap::keys);
        self.stale.extend(lanes.map(|lane| (team, *lane)));
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Who is first. A turn must be the same for all pods of a lane.
    pub fn first(&mut self, turn_of: impl Fn(P) -> Turn) -> Option<P> {
        if !self.is_ranked {
            return self.unranked.first_key_value().map(|(_, pod)| *pod);
        }
        while let Some((team, lane)) = self.stale.pop_first() {
            if let Some(before) = self.head_of.remove(&(team, lane)) {
                self.heads.remove(&before);
            }
            let Some(lanes) = self.teams.get_mut(&team) else { continue };
            match lanes.get(&lane).and_then(BTreeMap::first_key_value) {
                Some((key, pod)) => {
                    let head = (turn_of(*pod), key.clone());
                    self.heads.insert(head.clone(), *pod);
                    self.head_of.insert((team, lane), head);
                }
                None => {
                    lanes.remove(&lane);
                }
            }
        }
        self.heads.first_key_value().map(|(_, pod)| *pod)
    }
}
