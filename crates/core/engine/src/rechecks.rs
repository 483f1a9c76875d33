//! Rechecks: which parked classes a change can help, and which of them are due for another look.
//!
//! Owns, for every parked class that is not held, its trigger: what has to change before looking again
//! can be of use. A class that is not due could have no place if it were looked at: its trigger has not
//! fired since it was looked at last. Namespaces take turns, so that the classes of one do not hold up
//! those of others. Must not know nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use crate::changes::Cursor;
use crate::queue::Turn;
use crate::table::{ClassIx, Lookup, ResourceIx};

/// What has to change before a class can have a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// Anything anywhere: other pods, claims or volumes decide where it can go.
    Anything,
    /// One node has so much of a resource, free or by evictions.
    Room(ResourceIx, i64),
    /// The object of a node, because none allows such pods.
    NodeObject,
}

/// Since when a class has not been looked at; `None`: every node is to be looked at.
pub(crate) type Since = Option<Cursor>;

/// A class to be looked at.
#[derive(Clone, Debug)]
struct Due {
    since: Since,
    namespace: Arc<str>,
    turn: Turn,
}

/// Triggers of parked classes, and those that fired.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rechecks {
    /// With the class's priority.
    triggers: Lookup<ClassIx, (i32, Trigger)>,
    /// Classes by trigger; those that wait for room by priority.
    anything: BTreeSet<ClassIx>,
    node_object: BTreeSet<ClassIx>,
    room: BTreeMap<i32, BTreeSet<(ResourceIx, i64, ClassIx)>>,
    due: Lookup<ClassIx, Due>,
    /// What is due, by namespace and turn.
    order: BTreeMap<Arc<str>, BTreeSet<(Turn, ClassIx)>>,
    /// The namespace that had its turn last.
    served: Option<Arc<str>>,
}

impl Rechecks {
    pub(crate) fn trigger(&self, class: ClassIx) -> Option<Trigger> {
        self.triggers.get(&class).map(|(_, trigger)| *trigger)
    }

    /// A class was looked at in vain.
    pub(crate) fn set(&mut self, class: ClassIx, priority: i32, trigger: Trigger) {
        self.forget(class);
        self.triggers.insert(class, (priority, trigger));
        match trigger {
            Trigger::Anything => self.anything.insert(class),
            Trigger::NodeObject => self.node_object.insert(class),
            Trigger::Room(resource, amount) => {
                self.room.entry(priority).or_default().insert((resource, amount, class))
            }
        };
    }

    /// A class is not parked any more, or held.
    pub(crate) fn forget(&mut self, class: ClassIx) {
        self.settle(class);
        match self.triggers.remove(&class) {
            None => {}
            Some((_, Trigger::Anything)) => {
                self.anything.remove(&class);
            }
            Some((_, Trigger::NodeObject)) => {
                self.node_object.remove(&class);
            }
            Some((priority, Trigger::Room(resource, amount))) => {
                if let Some(classes) = self.room.get_mut(&priority) {
                    classes.remove(&(resource, amount, class));
                    if classes.is_empty() {
                        self.room.remove(&priority);
                    }
                }
            }
        }
    }

    /// A class is to be looked at, whatever else is known of what changed for it.
    pub(crate) fn owe(
        &mut self,
        class: ClassIx,
        (namespace, turn): (Arc<str>, Turn),
        since: Since,
    ) {
        let before = self.due.get(&class).map(|due| due.since);
        // Cursors only grow: what is due is due since an earlier one.
        if before.is_some_and(|before| before.is_none() || since.is_some()) {
            return;
        }
        self.settle(class);
        self.order.entry(namespace.clone()).or_default().insert((turn.clone(), class));
        self.due.insert(class, Due { since, namespace, turn });
    }

    /// A class has been looked at, or need not be.
    fn settle(&mut self, class: ClassIx) -> Option<Due> {
        let due = self.due.remove(&class)?;
        if let Some(classes) = self.order.get_mut(&due.namespace) {
            classes.remove(&(due.turn.clone(), class));
            if classes.is_empty() {
                self.order.remove(&due.namespace);
            }
        }
        Some(due)
    }

    /// The first class that is due of the next namespace, which is due no more.
    pub(crate) fn next(&mut self) -> Option<(ClassIx, Since)> {
        let after = |served: &Arc<str>| {
            let next = (Bound::Excluded(served.clone()), Bound::Unbounded);
            self.order.range::<Arc<str>, _>(next).next()
        };
        let next = self.served.as_ref().and_then(after).or_else(|| self.order.first_key_value());
        let (namespace, classes) = next?;
        let class = classes.first()?.1;
        self.served = Some(namespace.clone());
        Some((class, self.settle(class)?.since))
    }

    /// Whether no class is due.
    pub(crate) fn is_settled(&self) -> bool {
        self.due.is_empty()
    }

    /// Whether no parked class has a trigger.
    pub(crate) fn is_empty(&self) -> bool {
        self.triggers.is_empty()
    }

    /// Classes that any change can help.
    pub(crate) fn of_anything(&self) -> impl Iterator<Item = ClassIx> {
        self.anything.iter().copied()
    }

    /// Classes that the object of a node can help.
    pub(crate) fn of_node_object(&self) -> impl Iterator<Item = ClassIx> {
        self.node_object.iter().copied()
    }

    /// Priorities of classes that wait for room.
    pub(crate) fn priorities(&self) -> impl Iterator<Item = i32> {
        self.room.keys().copied()
    }

    /// Classes of a priority that so much room of a resource can help.
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

    /// Classes may have other numbers now.
    pub(crate) fn renumber(&mut self, now: impl Fn(ClassIx) -> Option<ClassIx>) {
        let before = std::mem::take(self);
        self.served = before.served;
        for (class, (priority, trigger)) in before.triggers {
            if let Some(class) = now(class) {
                self.set(class, priority, trigger);
            }
        }
        for (class, due) in before.due {
            if let Some(class) = now(class) {
                self.owe(class, (due.namespace, due.turn), due.since);
            }
        }
    }
}

/// No class has a larger number.
const LAST: ClassIx = ClassIx(u32::MAX);
