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
    Pod(Arc<str>, Option<Box<(PodObject, PodState)>>),
    Mirror(Arc<str>, Option<Box<Mirror>>),
    Object(Box<Event>),
    Eviction(FullName, Option<i64>),
    /// Whether an entry of `eviction_times` existed.
    EvictionTime(i64, FullName, bool),
    Arrival(Arc<str>),
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
                    if let Some((object, before)) = before.map(|before| *before) {
                        self.add_pod(&object);
                        if let Some(at) = self.pod_by_uid(&uid) {
                            if before.evicted_at_ms.is_some() {
                                self.leaving.insert(at);
                            }
                            let pod = &mut self.pods[at];
                            let (class, place) = (pod.class, pod.place.clone());
                            let (grant, awaited_until_ms) = (pod.grant, pod.awaited_until_ms);
                            *pod = PodState { class, place, grant, awaited_until_ms, ..before };
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
            let before = Box::new((object, self.pods[at].clone()));
            let undo = Undo::Pod(self.pods[at].uid.clone(), Some(before));
            name.into_iter().for_each(|name| self.journal_mirror(&name));
            self.journal.entries.push(undo);
        }
    }

    fn journal(&mut self, undo: impl FnOnce(&Self) -> Undo) {
        if self.is_journalling() {
            self.journal.entries.push(undo(self));
        }
    }

    pub(super) fn journal_no_pod(&mut self, uid: &Arc<str>) {
        self.journal(|_| Undo::Pod(uid.clone(), None));
    }

    pub(super) fn journal_mirror(&mut self, name: &Arc<str>) {
        if self.is_journalling()
            && let Some(node) = self.node_by_name(name)
        {
            self.journal(|state| Undo::Mirror(name.clone(), state.nodes[node].mirror.clone()));
        }
    }

    pub(super) fn journal_object(&mut self, before: Event) {
        self.journal(|_| Undo::Object(Box::new(before)));
    }

    pub(super) fn journal_arrival(&mut self, at: PodIx) {
        self.journal(|state| Undo::Arrival(state.pods[at].uid.clone()));
    }

    pub(super) fn journal_eviction_time(&mut self, at_ms: i64, workload: &FullName, existed: bool) {
        self.journal(|_| Undo::EvictionTime(at_ms, workload.clone(), existed));
    }

    pub(super) fn journal_eviction(&mut self, workload: &FullName) {
        let before = |state: &Self| state.evictions.get(workload).copied();
        self.journal(|state| Undo::Eviction(workload.clone(), before(state)));
    }
}
