//! Checkpoints and rollback.
//!
//! Trials change the live state under a checkpoint and roll back; only the mirrors of touched nodes
//! are cloned.

use std::sync::Arc;

use berth_model::spec::PodObject;

use super::{FullName, PodState, State};
use crate::changes::Change;
use crate::event::Event;
use crate::mirror::Mirror;
use crate::table::PodIx;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint(usize);

#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    entries: Vec<Undo>,
    open: usize,
}

#[derive(Clone, Debug)]
enum Undo {
    Pod(Arc<str>, Option<Box<SavedPod>>),
    Mirror(Arc<str>, Option<Box<Mirror>>),
    Object(Box<Event>),
    Eviction(FullName, Option<i64>),
    /// Whether an entry of `eviction_times` existed.
    EvictionTime(i64, FullName, bool),
    Arrival(Arc<str>),
}

#[derive(Clone, Debug)]
struct SavedPod {
    object: PodObject,
    decided: bool,
    bound_serial: Option<u64>,
    evicted_at_ms: Option<i64>,
    replaces_evicted_at_ms: Option<i64>,
    counted: bool,
    devices: Vec<Arc<str>>,
}

impl State {
    pub(crate) fn checkpoint(&mut self) -> Checkpoint {
        self.journal.open += 1;
        Checkpoint(self.journal.entries.len())
    }

    /// Keeps what was done since; earlier checkpoints can still roll it back.
    pub(crate) fn commit(&mut self, _: Checkpoint) {
        self.journal.open = self.journal.open.saturating_sub(1);
        if self.journal.open == 0 {
            self.journal.entries.clear();
        }
    }

    /// Rolls back to a checkpoint. Pods get their old numbers, because they are restored in
    /// reverse; classes may get others.
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
                            self.update_charge(at);
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
                Some(Undo::EvictionTime(at_ms, workload, existed)) => {
                    if existed {
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
            let before = SavedPod {
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

    pub(super) fn journal_no_pod(&mut self, uid: &Arc<str>) {
        if self.is_journalling() {
            self.journal.entries.push(Undo::Pod(uid.clone(), None));
        }
    }

    pub(super) fn journal_mirror(&mut self, name: &Arc<str>) {
        if self.is_journalling()
            && let Some(node) = self.node_by_name(name)
        {
            let mirror = self.nodes[node].mirror.clone();
            self.journal.entries.push(Undo::Mirror(name.clone(), mirror));
        }
    }

    pub(super) fn journal_object(&mut self, before: Event) {
        if self.is_journalling() {
            self.journal.entries.push(Undo::Object(Box::new(before)));
        }
    }

    pub(super) fn journal_arrival(&mut self, at: PodIx) {
        if self.is_journalling() {
            self.journal.entries.push(Undo::Arrival(self.pods[at].uid.clone()));
        }
    }

    pub(super) fn journal_eviction_time(&mut self, at_ms: i64, workload: &FullName, existed: bool) {
        if self.is_journalling() {
            self.journal.entries.push(Undo::EvictionTime(at_ms, workload.clone(), existed));
        }
    }

    pub(super) fn journal_eviction(&mut self, workload: &FullName) {
        if self.is_journalling() {
            let before = self.evictions.get(workload).copied();
            self.journal.entries.push(Undo::Eviction(workload.clone(), before));
        }
    }
}
