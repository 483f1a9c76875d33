//! The queue: who is next, and who waits for what.
//!
//! Owns the order, priority first and then age, and the pods that nothing can be done for at the
//! moment, by class. Whether something changed for a class is for the engine to find out. Must not
//! know nodes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::table::{ClassIx, Lookup, PodIx};

/// Highest priority first, then oldest, then by UID.
pub(crate) type Turn = (Reverse<i32>, i64, Arc<str>);

/// Pods that look for their place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    active: BTreeMap<Turn, PodIx>,
    parked: BTreeMap<ClassIx, BTreeMap<Turn, PodIx>>,
    entries: Lookup<PodIx, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    turn: Turn,
    class: ClassIx,
    parked: bool,
}

impl Queue {
    /// A pod looks for its place. One that is known already keeps it in the queue, unless it has
    /// become a pod of another kind.
    pub(crate) fn add(&mut self, pod: PodIx, class: ClassIx, turn: Turn) {
        if self.entries.get(&pod).is_some_and(|entry| entry.class == class && entry.turn == turn) {
            return;
        }
        self.remove(pod);
        self.active.insert(turn.clone(), pod);
        self.entries.insert(pod, Entry { turn, class, parked: false });
    }

    /// A pod does not look for its place any more. If it was its turn for its class, it is the next
    /// one's.
    pub(crate) fn remove(&mut self, pod: PodIx) {
        let Some(entry) = self.entries.remove(&pod) else { return };
        if entry.parked {
            if let Some(of_class) = self.parked.get_mut(&entry.class) {
                of_class.remove(&entry.turn);
                if of_class.is_empty() {
                    self.parked.remove(&entry.class);
                }
            }
        } else {
            self.active.remove(&entry.turn);
            let next = self.parked_of(entry.class).next();
            next.into_iter().for_each(|next| self.wake(next));
        }
    }

    /// Pods may be of classes of other numbers now.
    pub(crate) fn refile(&mut self, class_of: impl Fn(PodIx) -> ClassIx) {
        for (turn, pod) in std::mem::take(&mut self.parked).into_values().flatten() {
            self.parked.entry(class_of(pod)).or_default().insert(turn, pod);
        }
        for (pod, entry) in &mut self.entries {
            entry.class = class_of(*pod);
        }
    }

    /// Whether a pod is in the queue, parked or not.
    pub(crate) fn contains(&self, pod: PodIx) -> bool {
        self.entries.contains_key(&pod)
    }

    /// Whose turn it is.
    pub(crate) fn next(&self) -> Option<PodIx> {
        self.active.first_key_value().map(|(_, pod)| *pod)
    }

    /// Nothing can be done for a pod until something changes.
    pub(crate) fn park(&mut self, pod: PodIx) {
        let Some(entry) = self.entries.get_mut(&pod).filter(|entry| !entry.parked) else { return };
        entry.parked = true;
        self.active.remove(&entry.turn);
        self.parked.entry(entry.class).or_default().insert(entry.turn.clone(), pod);
    }

    /// Something changed for a parked pod: it is to be looked at again.
    pub(crate) fn wake(&mut self, pod: PodIx) {
        let Some(entry) = self.entries.get_mut(&pod).filter(|entry| entry.parked) else { return };
        entry.parked = false;
        if let Some(of_class) = self.parked.get_mut(&entry.class) {
            of_class.remove(&entry.turn);
            if of_class.is_empty() {
                self.parked.remove(&entry.class);
            }
        }
        self.active.insert(entry.turn.clone(), pod);
    }

    /// Everything may have changed.
    pub(crate) fn wake_all(&mut self) {
        for (turn, pod) in std::mem::take(&mut self.parked).into_values().flatten() {
            if let Some(entry) = self.entries.get_mut(&pod) {
                entry.parked = false;
            }
            self.active.insert(turn, pod);
        }
    }

    /// Classes with parked pods.
    pub(crate) fn parked_classes(&self) -> impl Iterator<Item = ClassIx> {
        self.parked.keys().copied()
    }

    /// The parked pods of a class, whose turn it is first.
    pub(crate) fn parked_of(&self, class: ClassIx) -> impl Iterator<Item = PodIx> {
        self.parked.get(&class).into_iter().flat_map(|pods| pods.values().copied())
    }

    /// How many pods look for their place, and how many of them nothing can be done for.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.entries.len(), self.entries.len() - self.active.len())
    }
}
