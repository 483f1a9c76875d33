//! Which parked classes a change may help, and which are due for evaluation.
//!
//! Every parked class that is not held has a trigger: a necessary condition for a place. A class
//! that is not due has no place, because its trigger has not fired since it was evaluated.
//! Namespaces take turns, so that classes of one do not delay those of others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::changes::Cursor;
use crate::queue::Turn;
use crate::table::{ClassIx, Lookup, ResourceIx, TallyIx};

/// What has to change before a class can have a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// Anything: other pods, claims or volumes decide.
    Anything,
    /// One node has this much of a resource, free or by evictions.
    Room(ResourceIx, i64),
    /// A node object changes, because none allows such pods.
    NodeObject,
    /// A pod counted by this tally is placed: required affinity, and there is none.
    Neighbour(TallyIx),
}

/// Changes not evaluated yet; `None`: evaluate every node.
pub(crate) type Since = Option<Cursor>;

/// Position of a class: its namespace, and the turn of its first parked pod.
pub(crate) type Position = (Arc<str>, Turn);

#[derive(Clone, Debug)]
struct Due {
    since: Since,
    spot: Position,
}

#[derive(Clone, Debug)]
struct Row {
    priority: i32,
    trigger: Trigger,
    spot: Position,
    swept: u64,
}

/// By namespace, in queue order.
type ByTurn = BTreeMap<Arc<str>, BTreeSet<(Turn, ClassIx)>>;

/// A pass over all classes triggered by anything, for changes since a cursor.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    number: u64,
    since: Cursor,
}

/// Limit of sweeps; the earliest are merged.
const SWEEPS_MAX: usize = 32;

#[derive(Clone, Debug, Default)]
pub(crate) struct Rechecks {
    triggers: Lookup<ClassIx, Row>,
    /// Classes by trigger; those waiting for room by priority.
    anything: ByTurn,
    node_object: BTreeSet<ClassIx>,
    neighbour: BTreeMap<TallyIx, BTreeSet<ClassIx>>,
    room: BTreeMap<i32, BTreeSet<(ResourceIx, i64, ClassIx)>>,
    due: Lookup<ClassIx, Due>,
    order: ByTurn,
    /// Unfinished sweeps, earliest first.
    sweeps: Vec<Sweep>,
    sweep: u64,
    /// Position of the sweeps by namespace.
    swept: Lookup<Arc<str>, (Turn, ClassIx)>,
    /// The namespace that had its turn last.
    served: Option<Arc<str>>,
}

impl Rechecks {
    pub(crate) fn trigger(&self, class: ClassIx) -> Option<Trigger> {
        self.triggers.get(&class).map(|row| row.trigger)
    }

    /// Records that a class was evaluated in vain.
    pub(crate) fn set(&mut self, class: ClassIx, priority: i32, spot: Position, trigger: Trigger) {
        self.forget(class);
        let row = Row { priority, trigger, spot: spot.clone(), swept: self.sweep };
        self.triggers.insert(class, row);
        match trigger {
            Trigger::Anything => file(&mut self.anything, spot, class),
            Trigger::NodeObject => self.node_object.insert(class),
            Trigger::Neighbour(tally) => self.neighbour.entry(tally).or_default().insert(class),
            Trigger::Room(resource, amount) => {
                self.room.entry(priority).or_default().insert((resource, amount, class))
            }
        };
    }

    /// Removes a class that is no longer parked, or is held.
    pub(crate) fn forget(&mut self, class: ClassIx) {
        self.settle(class);
        let Some(Row { priority, trigger, spot, .. }) = self.triggers.remove(&class) else {
            return;
        };
        match trigger {
            Trigger::Anything => unfile(&mut self.anything, spot, class),
            Trigger::NodeObject => {
                self.node_object.remove(&class);
            }
            Trigger::Neighbour(tally) => {
                if let Some(classes) = self.neighbour.get_mut(&tally) {
                    classes.remove(&class);
                    if classes.is_empty() {
                        self.neighbour.remove(&tally);
                    }
                }
            }
            Trigger::Room(resource, amount) => {
                if let Some(classes) = self.room.get_mut(&priority) {
                    classes.remove(&(resource, amount, class));
                    if classes.is_empty() {
                        self.room.remove(&priority);
                    }
                }
            }
        }
    }

    pub(crate) fn move_to(&mut self, class: ClassIx, turn: Turn) {
        let Some(row) = self.triggers.get_mut(&class) else { return };
        let after = (row.spot.0.clone(), turn);
        let before = std::mem::replace(&mut row.spot, after.clone());
        if row.trigger == Trigger::Anything {
            unfile(&mut self.anything, before, class);
            file(&mut self.anything, after.clone(), class);
            // The sweeps may be past its new turn.
            if let Some(since) = self.sweep(class) {
                self.mark_due(class, after, Some(since));
            }
        }
    }

    /// Marks a class as due.
    pub(crate) fn mark_due(&mut self, class: ClassIx, spot: Position, since: Since) {
        let before = self.due.get(&class).map(|due| due.since);
        // Cursors only grow, so the earlier entry covers this one.
        if before.is_some_and(|before| before.is_none() || since.is_some()) {
            return;
        }
        self.settle(class);
        file(&mut self.order, spot.clone(), class);
        self.due.insert(class, Due { since, spot });
    }

    /// Makes every class triggered by anything due. The cost does not depend on their number: they
    /// become due at their turn.
    pub(crate) fn mark_anything_due(&mut self, since: Cursor) {
        if self.anything.is_empty() {
            return;
        }
        if self.sweeps.len() >= SWEEPS_MAX {
            let first = self.sweeps.remove(0);
            self.sweeps[0].since = first.since;
        }
        self.sweep += 1;
        self.sweeps.push(Sweep { number: self.sweep, since });
        self.swept.clear();
    }

    fn settle(&mut self, class: ClassIx) -> Option<Due> {
        let due = self.due.remove(&class)?;
        unfile(&mut self.order, due.spot.clone(), class);
        Some(due)
    }

    /// The first class of a namespace not covered by the sweeps.
    fn first_unswept(&self, namespace: &Arc<str>) -> Option<(&Turn, ClassIx)> {
        if self.sweeps.is_empty() {
            return None;
        }
        let classes = self.anything.get(namespace)?;
        let from = self.swept.get(namespace).map_or(Bound::Unbounded, Bound::Excluded);
        let is_due =
            |class: &ClassIx| self.triggers.get(class).is_some_and(|row| row.swept < self.sweep);
        let mut left = classes.range((from, Bound::Unbounded));
        left.find(|(_, class)| is_due(class)).map(|(turn, class)| (turn, *class))
    }

    fn first_due(&self, namespace: &Arc<str>) -> Option<ClassIx> {
        let by_itself = self.order.get(namespace).and_then(BTreeSet::first);
        let swept = self.first_unswept(namespace);
        let both = by_itself.map(|(turn, class)| (turn, *class)).into_iter().chain(swept);
        both.min().map(|(_, class)| class)
    }

    fn peek(&self) -> Option<(Arc<str>, ClassIx)> {
        let served = self.served.as_ref();
        let after = served.and_then(|served| self.first_due_of(Bound::Excluded(served)));
        after.or_else(|| self.first_due_of(Bound::Unbounded))
    }

    /// The same, from a namespace on.
    fn first_due_of<'a>(&'a self, mut from: Bound<&'a Arc<str>>) -> Option<(Arc<str>, ClassIx)> {
        loop {
            let by_itself = self.order.range::<Arc<str>, _>((from, Bound::Unbounded)).next();
            let swept = self.anything.range::<Arc<str>, _>((from, Bound::Unbounded)).next();
            let swept = swept.filter(|_| !self.sweeps.is_empty());
            let (namespace, _) = by_itself.into_iter().chain(swept).min_by_key(|(one, _)| *one)?;
            if let Some(class) = self.first_due(namespace) {
                return Some((namespace.clone(), class));
            }
            from = Bound::Excluded(namespace);
        }
    }

    /// Removes and returns the first due class of the next namespace.
    pub(crate) fn next(&mut self) -> Option<(ClassIx, Since)> {
        let Some((namespace, class)) = self.peek() else {
            self.sweeps.clear();
            return None;
        };
        let by_itself = self.settle(class).map(|due| due.since);
        let by_sweep = self.sweep(class).map(Some);
        if let Some(row) = self.triggers.get(&class).filter(|_| by_sweep.is_some()) {
            self.swept.insert(namespace.clone(), (row.spot.1.clone(), class));
        }
        self.served = Some(namespace);
        Some((class, by_itself.into_iter().chain(by_sweep).min()?))
    }

    /// Covers a class by the sweeps; returns since when it was due for them.
    fn sweep(&mut self, class: ClassIx) -> Option<Cursor> {
        let row = self.triggers.get_mut(&class)?;
        if row.trigger != Trigger::Anything {
            return None;
        }
        let swept = std::mem::replace(&mut row.swept, self.sweep);
        self.sweeps.iter().find(|sweep| sweep.number > swept).map(|sweep| sweep.since)
    }

    /// Ends sweeps that have covered everything.
    pub(crate) fn end_sweeps(&mut self) {
        if !self.sweeps.is_empty() && self.peek().is_none() {
            self.sweeps.clear();
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.due.is_empty() && self.sweeps.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.triggers.is_empty()
    }

    pub(crate) fn of_node_object(&self) -> impl Iterator<Item = ClassIx> {
        self.node_object.iter().copied()
    }

    pub(crate) fn of_neighbour(&self, tally: TallyIx) -> impl Iterator<Item = ClassIx> {
        self.neighbour.get(&tally).into_iter().flatten().copied()
    }

    /// Tallies may be renumbered: any change may help classes that wait for one.
    pub(crate) fn invalidate_tallies(&mut self) {
        for class in std::mem::take(&mut self.neighbour).into_values().flatten() {
            if let Some(row) = self.triggers.get_mut(&class) {
                row.trigger = Trigger::Anything;
                file(&mut self.anything, row.spot.clone(), class);
            }
        }
    }

    pub(crate) fn priorities(&self) -> impl Iterator<Item = i32> {
        self.room.keys().copied()
    }

    pub(crate) fn of_room(
        &self,
        priority: i32,
        resource: ResourceIx,
        amount: i64,
    ) -> impl Iterator<Item = ClassIx> {
        let from = (resource, i64::MIN, ClassIx(0));
        let classes = self.room.get(&priority).into_iter();
        let enough = classes.flat_map(move |all| all.range(from..=(resource, amount, LAST)));
        enough.map(|(_, _, class)| *class)
    }

    pub(crate) fn of_any_room(&self) -> impl Iterator<Item = ClassIx> {
        self.room.values().flatten().map(|(_, _, class)| *class)
    }

    /// Applies new numbers of classes.
    pub(crate) fn renumber(&mut self, now: impl Fn(ClassIx) -> Option<ClassIx>) {
        let before = std::mem::take(self);
        self.served = before.served;
        (self.sweeps, self.sweep) = (before.sweeps, before.sweep);
        for (class, row) in before.triggers {
            if let Some(class) = now(class) {
                self.set(class, row.priority, row.spot, row.trigger);
                if let Some(renumbered) = self.triggers.get_mut(&class) {
                    renumbered.swept = row.swept;
                }
            }
        }
        for (class, due) in before.due {
            if let Some(class) = now(class) {
                self.mark_due(class, due.spot, due.since);
            }
        }
    }
}

fn file(all: &mut ByTurn, (namespace, turn): Position, class: ClassIx) -> bool {
    all.entry(namespace).or_default().insert((turn, class))
}

fn unfile(all: &mut ByTurn, (namespace, turn): Position, class: ClassIx) {
    if let Some(classes) = all.get_mut(&namespace) {
        classes.remove(&(turn, class));
        if classes.is_empty() {
            all.remove(&namespace);
        }
    }
}

const LAST: ClassIx = ClassIx(u32::MAX);

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;
    use crate::changes::{Change, Changes};
    use crate::table::NodeIx;

    fn spot(namespace: &str, age: i64) -> Position {
        (namespace.into(), (Reverse(0), age, "uid".into()))
    }

    /// Four classes that any change may help: 0 to 2 of one namespace, 3 of another.
    fn parked() -> Rechecks {
        let mut rechecks = Rechecks::default();
        for (class, namespace) in [(0, "a"), (1, "a"), (2, "a"), (3, "b")] {
            let spot = spot(namespace, i64::from(class));
            rechecks.set(ClassIx(class), 0, spot, Trigger::Anything);
        }
        rechecks
    }

    fn cursors() -> [Cursor; 2] {
        let mut changes = Changes::default();
        [(); 2].map(|()| {
            changes.push(NodeIx(0), Change::Freed, 1);
            changes.now()
        })
    }

    #[test]
    fn a_change_makes_no_class_due_before_its_turn_and_none_is_forgotten() {
        let mut rechecks = parked();
        let [first, second] = cursors();
        rechecks.mark_anything_due(first);
        assert!(rechecks.due.is_empty() && !rechecks.is_settled());
        assert_eq!(rechecks.next(), Some((ClassIx(0), Some(first))));
        assert_eq!(rechecks.next(), Some((ClassIx(3), Some(first))));
        // After another change, evaluated classes are due for that change only.
        rechecks.mark_anything_due(second);
        assert!(rechecks.due.is_empty());
        assert_eq!(rechecks.next(), Some((ClassIx(0), Some(second))));
        assert_eq!(rechecks.next(), Some((ClassIx(3), Some(second))));
        // A class moves ahead of the sweeps, and a new class is parked.
        rechecks.move_to(ClassIx(2), (Reverse(0), -1, "uid".into()));
        rechecks.set(ClassIx(4), 0, spot("a", 9), Trigger::Anything);
        assert_eq!(rechecks.next(), Some((ClassIx(2), Some(first))));
        assert_eq!(rechecks.next(), Some((ClassIx(1), Some(first))));
        rechecks.end_sweeps();
        assert!(rechecks.is_settled());
        assert_eq!(rechecks.next(), None);
    }

    #[test]
    fn sweeps_that_never_end_stay_few() {
        let mut rechecks = parked();
        let [first, second] = cursors();
        rechecks.mark_anything_due(first);
        (0..1_000).for_each(|_| rechecks.mark_anything_due(second));
        assert_eq!(rechecks.sweeps.len(), SWEEPS_MAX);
        for class in [0, 3, 1, 2] {
            assert_eq!(rechecks.next(), Some((ClassIx(class), Some(first))));
        }
        rechecks.end_sweeps();
        assert!(rechecks.is_settled());
    }
}
