//! Undoing: what was before, kept while somebody may want it back.
//!
//! Owns checkpoints. What-if, gangs and dry runs change the live state under a checkpoint and roll
//! back; nothing is cloned but the mirrors of the nodes that were touched. Must not know what is
//! tried.

use std::sync::Arc;

use berth_model::spec::PodObject;

use super::{FullName, PodState, State};
use crate::changes::Change;
use crate::event::Event;
use crate::mirror::Mirror;
use crate::table::PodIx;

/// A mark to come back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint(usize);

/// What to do to have it as before, in the order of the changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    entries: Vec<Undo>,
    /// How many checkpoints are open.
    open: usize,
}

#[derive(Clone, Debug)]
enum Undo {
    /// The pod of this UID was like this, or was not there.
    Pod(Arc<str>, Option<Box<Before>>),
    /// The mirror of the node of this name was like this.
    Mirror(Arc<str>, Option<Box<Mirror>>),
    /// Some other object was as this event says.
    Object(Box<Event>),
    /// Pods of this workload were last evicted then, or never.
    Eviction(FullName, Option<i64>),
    /// Whether it was remembered that pods of this workload were evicted then.
    EvictionTime(i64, FullName, bool),
    /// The pod of this UID had not been counted as an arrival.
    Arrival(Arc<str>),
}

/// A pod as it was.
#[derive(Clone, Debug)]
struct Before {
    object: PodObject,
    decided: bool,
    bound_serial: Option<u64>,
    evicted_at_ms: Option<i64>,
    replaces_evicted_at_ms: Option<i64>,
    counted: bool,
    devices: Vec<Arc<str>>,
}

impl State {
    /// From here on changes can be undone.
    pub(crate) fn checkpoint(&mut self) -> Checkpoint {
        self.journal.open += 1;
        Checkpoint(self.journal.entries.len())
    }

    /// Keeps what was done since; checkpoints before this one can still go further back.
    pub(crate) fn commit(&mut self, _: Checkpoint) {
        self.journal.open = self.journal.open.saturating_sub(1);
        if self.journal.open == 0 {
            self.journal.entries.clear();
        }
    }

    /// Everything is as it was at the checkpoint. Pods have the numbers they had, because they are
    /// given back in reverse; classes may have others.
    pub(crate) fn rollback(&mut self, checkpoint: Checkpoint) {
        self.journal.open = self.journal.open.saturating_sub(1);
        let open = std::mem::take(&mut self.journal.open);
        while self.journal.entries.len() > checkpoint.0 {
            match self.journal.entries.pop() {
                None => break,
                Some(Undo::Pod(uid, before)) => {
                    self.remove_pod(&uid);
                    if let Some(before) = before {
                        self.add_pod(&before.object);
                        if let Some(at) = self.pod_by_uid(&uid) {
                            if before.evicted_at_ms.is_some() {
                                self.leaving.insert(at);
                            }
                            let pod = &mut self.pods[at];
                            pod.decided = before.decided;
                            pod.evicted_at_ms = before.evicted_at_ms;
                            pod.bound_serial = before.bound_serial;
                            pod.replaces_evicted_at_ms = before.replaces_evicted_at_ms;
                            pod.counted = before.counted;
                            pod.devices = before.devices;
                            self.set_awaited(at);
                            self.restake(at);
                        }
                    }
                }
                Some(Undo::Mirror(name, mirror)) => {
                    if let Some(node) = self.node_by_name(&name) {
                        self.nodes[node].mirror = mirror;
                        self.touch(node, Change::Node);
                    }
                }
                Some(Undo::Object(event)) => self.apply_object(*event),
                Some(Undo::Eviction(workload, before)) => self.set_eviction(workload, before),
                Some(Undo::EvictionTime(at_ms, workload, was_there)) => {
                    if was_there {
                        self.eviction_times.insert((at_ms, workload));
                    } else {
                        self.eviction_times.remove(&(at_ms, workload));
                    }
                }
                Some(Undo::Arrival(uid)) => {
                    if let Some(at) = self.pod_by_uid(&uid) {
                        self.pods[at].counted = false;
                    }
                }
            }
        }
        self.journal.open = open;
        if open == 0 {
            self.journal.entries.clear();
        }
    }

    fn is_journalling(&self) -> bool {
        self.journal.open > 0
    }

    /// Remembers a pod as it is, and the mirror of the node it is on.
    pub(super) fn journal_pod(&mut self, at: PodIx) {
        if self.is_journalling() {
            let object = self.object(at);
            let name = object.node.clone();
            let PodState {
                decided,
                bound_serial,
                evicted_at_ms,
                replaces_evicted_at_ms,
                counted,
                ..
            } = self.pods[at];
            let uid = object.uid.clone();
            let devices = self.pods[at].devices.clone();
            let before = Before {
                object,
                decided,
                bound_serial,
                evicted_at_ms,
                replaces_evicted_at_ms,
                counted,
                devices,
            };
            let undo = Undo::Pod(uid, Some(Box::new(before)));
            name.into_iter().for_each(|name| self.journal_mirror(&name));
            self.journal.entries.push(undo);
        }
    }

    /// Remembers that there is no pod of this UID yet.
    pub(super) fn journal_no_pod(&mut self, uid: &Arc<str>) {
        if self.is_journalling() {
            self.journal.entries.push(Undo::Pod(uid.clone(), None));
        }
    }

    /// Remembers the mirror of a node as it is.
    pub(super) fn journal_mirror(&mut self, name: &Arc<str>) {
        if self.is_journalling()
            && let Some(node) = self.node_by_name(name)
        {
            let mirror = self.nodes[node].mirror.clone();
            self.journal.entries.push(Undo::Mirror(name.clone(), mirror));
        }
    }

    /// Remembers the event that would make an object as it is.
    pub(super) fn journal_object(&mut self, before: Event) {
        if self.is_journalling() {
            self.journal.entries.push(Undo::Object(Box::new(before)));
        }
    }

    /// Remembers that a pod has not been counted as an arrival.
    pub(super) fn journal_arrival(&mut self, at: PodIx) {
        if self.is_journalling() {
            self.journal.entries.push(Undo::Arrival(self.pods[at].uid.clone()));
        }
    }

    /// Remembers whether there was this time at which pods of a workload were evicted.
    pub(super) fn journal_eviction_time(&mut self, at_ms: i64, workload: &FullName, there: bool) {
        if self.is_journalling() {
            self.journal.entries.push(Undo::EvictionTime(at_ms, workload.clone(), there));
        }
    }

    /// Remembers when pods of a workload were last evicted.
    pub(super) fn journal_eviction(&mut self, workload: &FullName) {
        if self.is_journalling() {
            let before = self.evictions.get(workload).copied();
            self.journal.entries.push(Undo::Eviction(workload.clone(), before));
        }
    }
}
