//! The queue: who is next, and who waits for what.
//!
//! Owns the order: priority first and then age, and between teams as their books say. Owns also the
//! pods that nothing can be done for at the moment, and those that are held, by class. Whether
//! something changed for a class is for the engine to find out. Must not know nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_tenancy::share::{self, Line, TeamIx};

use crate::table::{ClassIx, Lookup, PodIx};

/// Highest priority first, then oldest, then by UID.
pub(crate) type Turn = (Reverse<i32>, i64, Arc<str>);

/// Pods of some classes, each class in the order of turns.
type ByClass = BTreeMap<ClassIx, BTreeMap<Turn, PodIx>>;

/// Pods that look for their place.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    active: Line<ClassIx, Turn, PodIx>,
    parked: ByClass,
    /// Classes whose parked pods are held: nodes are not asked about them.
    held: BTreeSet<ClassIx>,
    entries: Lookup<PodIx, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    turn: Turn,
    class: ClassIx,
    team: TeamIx,
    parked: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            active: Line::new(false),
            parked: ByClass::new(),
            held: BTreeSet::new(),
            entries: Lookup::default(),
        }
    }
}

impl Queue {
    /// A pod looks for its place. One that is known already keeps it in the queue, unless it has
    /// become a pod of another kind.
    pub(crate) fn add(&mut self, pod: PodIx, class: ClassIx, team: TeamIx, turn: Turn) {
        let same = |entry: &Entry| (entry.class, entry.team) == (class, team) && entry.turn == turn;
        if self.entries.get(&pod).is_some_and(same) {
            return;
        }
        self.remove(pod);
        self.active.insert(team, class, turn.clone(), pod);
        self.entries.insert(pod, Entry { turn, class, team, parked: false });
    }

    /// A pod does not look for its place any more. If it was its turn for its class, it is the next
    /// one's.
    pub(crate) fn remove(&mut self, pod: PodIx) {
        let Some(entry) = self.entries.remove(&pod) else { return };
        if entry.parked {
            self.unpark(&entry);
        } else {
            self.active.remove(entry.team, entry.class, &entry.turn);
            let next = self.parked_of(entry.class).next();
            next.into_iter().for_each(|next| self.wake(next));
        }
    }

    fn unpark(&mut self, entry: &Entry) {
        if let Some(of_class) = self.parked.get_mut(&entry.class) {
            of_class.remove(&entry.turn);
            if of_class.is_empty() {
                self.parked.remove(&entry.class);
                self.held.remove(&entry.class);
            }
        }
    }

    /// Pods may be of classes of other numbers now, or of other teams.
    pub(crate) fn refile(
        &mut self,
        has_teams: bool,
        class_of: impl Fn(PodIx) -> (ClassIx, TeamIx),
    ) {
        let held = std::mem::take(&mut self.held);
        for (class, pods) in std::mem::take(&mut self.parked) {
            for (turn, pod) in pods {
                let now = class_of(pod).0;
                self.parked.entry(now).or_default().insert(turn, pod);
                if held.contains(&class) {
                    self.held.insert(now);
                }
            }
        }
        self.active = Line::new(has_teams);
        for (pod, entry) in &mut self.entries {
            (entry.class, entry.team) = class_of(*pod);
            if !entry.parked {
                self.active.insert(entry.team, entry.class, entry.turn.clone(), *pod);
            }
        }
    }

    /// Whether a pod is in the queue, parked or not.
    pub(crate) fn contains(&self, pod: PodIx) -> bool {
        self.entries.contains_key(&pod)
    }

    /// Whose turn it is; between teams, as they stand.
    pub(crate) fn next(&mut self, turn_of: impl Fn(PodIx) -> share::Turn) -> Option<PodIx> {
        self.active.first(turn_of)
    }

    /// Something changed for a team.
    pub(crate) fn distrust(&mut self, team: TeamIx) {
        self.active.distrust(team);
    }

    /// Nothing can be done for a pod until something changes.
    pub(crate) fn park(&mut self, pod: PodIx) {
        let Some(entry) = self.entries.get_mut(&pod).filter(|entry| !entry.parked) else { return };
        entry.parked = true;
        self.active.remove(entry.team, entry.class, &entry.turn);
        self.parked.entry(entry.class).or_default().insert(entry.turn.clone(), pod);
    }

    /// Pods of a class are not to start until what holds them changes.
    pub(crate) fn hold(&mut self, class: ClassIx) {
        self.held.insert(class);
    }

    /// Nothing holds the pods of a class any more.
    pub(crate) fn release(&mut self, class: ClassIx) {
        self.held.remove(&class);
    }

    /// Something changed for a parked pod: it is to be looked at again.
    pub(crate) fn wake(&mut self, pod: PodIx) {
        let Some(entry) = self.entries.get_mut(&pod).filter(|entry| entry.parked) else { return };
        entry.parked = false;
        let entry = entry.clone();
        self.unpark(&entry);
        self.active.insert(entry.team, entry.class, entry.turn, pod);
    }

    /// Classes with parked pods.
    pub(crate) fn parked_classes(&self) -> impl Iterator<Item = ClassIx> {
        self.parked.keys().copied()
    }

    /// The parked pods of a class, whose turn it is first.
    pub(crate) fn parked_of(&self, class: ClassIx) -> impl Iterator<Item = PodIx> {
        self.parked.get(&class).into_iter().flat_map(|pods| pods.values().copied())
    }

    /// Classes whose pods are held.
    pub(crate) fn held_classes(&self) -> impl Iterator<Item = ClassIx> {
        self.held.iter().copied()
    }

    /// How many pods look for their place, and how many of them nothing can be done for.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.entries.len(), self.entries.len() - self.active.len())
    }

    /// How many pods are held.
    pub(crate) fn held(&self) -> usize {
        let of = |class: &ClassIx| self.parked.get(class).map_or(0, BTreeMap::len);
        self.held.iter().map(of).sum()
    }
}
