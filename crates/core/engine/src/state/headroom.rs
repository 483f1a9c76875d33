//! Headroom objects and the nodes where room is reserved for them.
//!
//! A reservation is a claim on what is left of a node, not a pod: no kubelet knows of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::spec::PodSpec;
use berth_model::workload::{Headroom, WorkloadClass};
use smallvec::SmallVec;

use super::State;
use crate::changes::{Change, Cursor};
use crate::event::Event;
use crate::headroom::ReservedHeadroom;
use crate::placement::room::Ask;
use crate::table::{Bits, ClassIx, Lookup, NodeIx};

/// Order of headroom: the strongest claim first, then by name.
pub(crate) type Turn = (Reverse<WorkloadClass>, Arc<str>);

#[derive(Clone, Debug)]
pub(crate) struct HeadroomState {
    pub(crate) headroom: Headroom,
    /// The class of its template.
    pub(crate) class: ClassIx,
    pub(crate) spec: Arc<PodSpec>,
    pub(crate) ask: Ask,
    /// Repeated for each piece on a node.
    pub(crate) places: Vec<NodeIx>,
    /// Some pieces are missing, and no node could take one when all were evaluated: only nodes
    /// changed since can.
    pub(crate) searched: bool,
    pub(crate) blocked: Bits,
}

impl HeadroomState {
    pub(crate) fn turn(&self) -> Turn {
        (Reverse(self.headroom.class), self.headroom.name.clone())
    }

    pub(crate) fn lacking(&self) -> usize {
        (self.headroom.count as usize).saturating_sub(self.places.len())
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Headrooms {
    rows: BTreeMap<Turn, HeadroomState>,
    /// By node, in order.
    on: Lookup<NodeIx, SmallVec<[Turn; 2]>>,
    /// Position in the log of changes.
    pub(crate) cursor: Cursor,
}

#[derive(Clone, Debug)]
pub(crate) struct Places {
    of: Vec<(Turn, Vec<NodeIx>, bool)>,
    cursor: Cursor,
}

impl Headrooms {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn turns(&self) -> Vec<Turn> {
        self.rows.keys().cloned().collect()
    }

    pub(crate) fn get(&self, turn: &Turn) -> Option<&HeadroomState> {
        self.rows.get(turn)
    }

    pub(crate) fn get_mut(&mut self, turn: &Turn) -> Option<&mut HeadroomState> {
        self.rows.get_mut(turn)
    }

    pub(crate) fn rows_mut(&mut self) -> impl Iterator<Item = &mut HeadroomState> {
        self.rows.values_mut()
    }

    pub(crate) fn turns_on(&self, node: NodeIx) -> &[Turn] {
        self.on.get(&node).map_or(&[], |turns| turns)
    }

    pub(crate) fn on(&self, node: NodeIx) -> impl Iterator<Item = &HeadroomState> {
        self.turns_on(node).iter().filter_map(|turn| self.rows.get(turn))
    }

    /// Reservations on a node with a stronger claim than a class, in order.
    pub(crate) fn stronger_than(
        &self,
        class: Option<WorkloadClass>,
        node: NodeIx,
    ) -> impl Iterator<Item = &HeadroomState> {
        self.on(node).filter(move |kept| class.is_some_and(|class| kept.headroom.class > class))
    }

    /// In no order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeIx> {
        self.on.keys().copied()
    }

    fn put(&mut self, turn: &Turn, node: NodeIx) {
        let Some(kept) = self.rows.get_mut(turn) else { return };
        kept.places.push(node);
        let on = self.on.entry(node).or_default();
        let at = on.partition_point(|one| one <= turn);
        on.insert(at, turn.clone());
    }

    fn take(&mut self, turn: &Turn, node: NodeIx) {
        if let Some(kept) = self.rows.get_mut(turn)
            && let Some(at) = kept.places.iter().position(|one| *one == node)
        {
            kept.places.swap_remove(at);
        }
        if let Some(on) = self.on.get_mut(&node) {
            if let Some(at) = on.iter().position(|one| one == turn) {
                on.remove(at);
            }
            if on.is_empty() {
                self.on.remove(&node);
            }
        }
    }

    /// The node is gone and its number may be reused.
    pub(super) fn forget_node(&mut self, node: NodeIx) {
        if let Some(turns) = self.on.remove(&node) {
            for turn in turns {
                if let Some(kept) = self.rows.get_mut(&turn) {
                    kept.places.retain(|one| *one != node);
                }
            }
        }
    }

    pub(crate) fn places(&self) -> Places {
        let of = self.rows.iter();
        let of = of.map(|(turn, kept)| (turn.clone(), kept.places.clone(), kept.searched));
        Places { of: of.collect(), cursor: self.cursor }
    }
}

impl State {
    pub(crate) fn reserve(&mut self, turn: &Turn, node: NodeIx) {
        self.headrooms.put(turn, node);
        let mirror = self.nodes[node].mirror.as_ref();
        if let (Some(kept), Some(mirror)) = (self.headrooms.rows.get_mut(turn), mirror) {
            // Cached, because it is evaluated again and again.
            let version = mirror.kubelet().config().version;
            kept.ask.demands.get(&kept.spec.pod, version, None);
        }
        self.touch(node, Change::Taken);
    }

    pub(crate) fn release(&mut self, turn: &Turn, node: NodeIx) {
        self.headrooms.take(turn, node);
        self.touch(node, Change::Freed);
    }

    pub(crate) fn restore_places(&mut self, places: &Places) {
        for (turn, nodes, searched) in &places.of {
            let Some(kept) = self.headrooms.get_mut(turn) else { continue };
            (kept.searched, kept.blocked) = (*searched, Bits::default());
            let mut lost = kept.places.clone();
            let mut missing = nodes.clone();
            missing.retain(|node| match lost.iter().position(|one| one == node) {
                Some(at) => {
                    lost.swap_remove(at);
                    false
                }
                None => true,
            });
            lost.into_iter().for_each(|node| self.release(turn, node));
            missing.into_iter().for_each(|node| self.reserve(turn, node));
        }
        self.headrooms.cursor = places.cursor;
    }

    fn release_all(&mut self, turn: &Turn) {
        let places = self.headrooms.get(turn).map(|kept| kept.places.clone());
        places.into_iter().flatten().for_each(|node| self.release(turn, node));
    }

    fn turn_of(&self, name: &str) -> Option<Turn> {
        self.headrooms.rows.keys().find(|(_, one)| one.as_ref() == name).cloned()
    }

    /// Sets a Headroom; returns the event that undoes a change.
    pub(super) fn set_headroom(&mut self, headroom: Headroom) -> Option<Event> {
        let name = headroom.name.clone();
        let turn = (Reverse(headroom.class), name.clone());
        let known = self.headrooms.get_mut(&turn);
        if let Some(kept) = known.filter(|kept| kept.headroom.template == headroom.template) {
            let before = kept.headroom.clone();
            if before.count == headroom.count {
                return None;
            }
            kept.headroom.count = headroom.count;
            return Some(Event::Headroom(before));
        }
        let before = self.remove_headroom(&name);
        let template = &*headroom.template;
        // Rules about other pods, ports and volumes are ignored.
        let spec = Arc::new(PodSpec {
            pod: template.pod.clone(),
            node_name: template.node_name.clone(),
            node_selector: template.node_selector.clone(),
            node_affinity: template.node_affinity.clone(),
            tolerations: template.tolerations.clone(),
            images: template.images.clone(),
            priority: template.priority,
            gpu: template.gpu,
            class: Some(headroom.class),
            model: template.model.clone(),
            ..PodSpec::default()
        });
        let class = self.acquire_class(&spec);
        let ask = Ask::new(&self.class_rows[class].requests, &self.resources);
        let (places, searched, blocked) = (Vec::new(), false, Bits::default());
        let kept = HeadroomState { headroom, class, spec, ask, places, searched, blocked };
        self.headrooms.rows.insert(turn, kept);
        self.update_classes_matter();
        Some(before.unwrap_or(Event::HeadroomGone(name)))
    }

    /// Removes a Headroom; returns the event that undoes it.
    pub(super) fn remove_headroom(&mut self, name: &str) -> Option<Event> {
        let turn = self.turn_of(name)?;
        self.release_all(&turn);
        let kept = self.headrooms.rows.remove(&turn)?;
        self.release_class(kept.class);
        self.update_classes_matter();
        Some(Event::Headroom(kept.headroom))
    }

    /// Releases pieces beyond the count, the last ones by the nodes' ties.
    pub(crate) fn release_surplus(&mut self, turn: &Turn) {
        let Some(kept) = self.headrooms.get(turn) else { return };
        let count = kept.headroom.count as usize;
        let mut places = kept.places.clone();
        places.sort_by_key(|node| self.nodes[*node].tie);
        for node in places.drain(count.min(places.len())..) {
            self.release(turn, node);
        }
    }

    pub(crate) fn reserved_headroom(&self) -> Vec<ReservedHeadroom> {
        let name = |at: &NodeIx| self.nodes[*at].object.name.clone();
        let room = |kept: &HeadroomState| {
            let mut nodes: Vec<Arc<str>> = kept.places.iter().map(name).collect();
            nodes.sort_unstable();
            ReservedHeadroom {
                name: kept.headroom.name.clone(),
                class: kept.headroom.class,
                nodes,
                lacking: kept.lacking(),
            }
        };
        self.headrooms.rows.values().map(room).collect()
    }
}
