//! A queue of pods by team.
//!
//! Pods of one team with equal requests share a lane with a fixed order, and only the first of each
//! lane is compared. Lanes of a team with changes are compared again when the line is read next.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::TeamIx;
use super::rules::Turn;

type Lanes<L, K, P> = BTreeMap<L, BTreeMap<K, P>>;

/// Pods `P` in order; within each lane `L` by key `K`.
#[derive(Clone, Debug)]
pub struct TeamQueue<L, K, P> {
    is_ranked: bool,
    /// All pods, without teams.
    unranked: BTreeMap<K, P>,
    teams: BTreeMap<TeamIx, Lanes<L, K, P>>,
    len: usize,
    /// The first of every lane, by turn.
    heads: BTreeMap<(Turn, K), P>,
    head_of: BTreeMap<(TeamIx, L), (Turn, K)>,
    stale: BTreeSet<(TeamIx, L)>,
}

impl<L: Ord + Copy, K: Ord + Clone, P: Copy> TeamQueue<L, K, P> {
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

    pub fn invalidate(&mut self, team: TeamIx) {
        let lanes = self.teams.get(&team).into_iter().flat_map(BTreeMap::keys);
        self.stale.extend(lanes.map(|lane| (team, *lane)));
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first pod. Turns must be equal within a lane.
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
