//! Room that is kept warm: what is wanted, and on which nodes it is kept.
//!
//! Owns the books of reservations. A reservation is a claim on what is left of a node, not a pod: no
//! kubelet knows of it. Must not know where one should be, nor whom it keeps away.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::spec::PodSpec;
use berth_model::workload::{Headroom, WorkloadClass};
use smallvec::SmallVec;

use super::State;
use crate::berth::room::Ask;
use crate::changes::{Change, Cursor};
use crate::event::Event;
use crate::headroom::WarmRoom;
use crate::table::{Bits, ClassIx, Lookup, NodeIx};

/// In which order headroom is kept: the strongest claim first, then by name.
pub(crate) type Turn = (Reverse<WorkloadClass>, Arc<str>);

/// One headroom and where it is kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) headroom: Headroom,
    /// Pods like its template, of its class.
    pub(crate) class: ClassIx,
    pub(crate) spec: Arc<PodSpec>,
    pub(crate) ask: Ask,
    /// Its nodes, each as often as it is kept there.
    pub(crate) places: Vec<NodeIx>,
    /// Some are lacking, and no node could take one when all were last looked at: only nodes that
    /// have changed since can.
    pub(crate) searched: bool,
    /// Nodes that cannot take one more, as they are.
    pub(crate) blocked: Bits,
}

impl Kept {
    pub(crate) fn turn(&self) -> Turn {
        (Reverse(self.headroom.class), self.headroom.name.clone())
    }

    pub(crate) fn lacking(&self) -> usize {
        (self.headroom.count as usize).saturating_sub(self.places.len())
    }
}

/// All headroom.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headrooms {
    rows: BTreeMap<Turn, Kept>,
    /// What is kept on each node, in order.
    on: Lookup<NodeIx, SmallVec<[Turn; 2]>>,
    /// Up to where changes have been looked through.
    pub(crate) cursor: Cursor,
}

/// Where headroom was kept, to come back to.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    of: Vec<(Turn, Vec<NodeIx>, bool)>,
    cursor: Cursor,
}

impl Headrooms {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// All of them, in order.
    pub(crate) fn turns(&self) -> Vec<Turn> {
        self.rows.keys().cloned().collect()
    }

    pub(crate) fn get(&self, turn: &Turn) -> Option<&Kept> {
        self.rows.get(turn)
    }

    pub(crate) fn get_mut(&mut self, turn: &Turn) -> Option<&mut Kept> {
        self.rows.get_mut(turn)
    }

    pub(crate) fn rows_mut(&mut self) -> impl Iterator<Item = &mut Kept> {
        self.rows.values_mut()
    }

    /// The turns of what is kept on a node, in order.
    pub(crate) fn turns_on(&self, node: NodeIx) -> &[Turn] {
        self.on.get(&node).map_or(&[], |turns| turns)
    }

    /// What is kept on a node, in order.
    pub(crate) fn on(&self, node: NodeIx) -> impl Iterator<Item = &Kept> {
        self.turns_on(node).iter().filter_map(|turn| self.rows.get(turn))
    }

    /// What is kept on a node from pods of a class, in order.
    pub(crate) fn kept_from(
        &self,
        class: Option<WorkloadClass>,
        node: NodeIx,
    ) -> impl Iterator<Item = &Kept> {
        self.on(node).filter(move |kept| class.is_some_and(|class| kept.headroom.class > class))
    }

    /// The nodes on which something is kept, in no order.
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

    /// A node is gone, and its number may be another's soon.
    pub(super) fn forget_node(&mut self, node: NodeIx) {
        if let Some(turns) = self.on.remove(&node) {
            for turn in turns {
                if let Some(kept) = self.rows.get_mut(&turn) {
                    kept.places.retain(|one| *one != node);
                }
            }
        }
    }

    /// Where everything is kept.
    pub(crate) fn places(&self) -> Places {
        let of = self.rows.iter();
        let of = of.map(|(turn, kept)| (turn.clone(), kept.places.clone(), kept.searched));
        Places { of: of.collect(), cursor: self.cursor }
    }
}

impl State {
    /// One more is kept on a node.
    pub(crate) fn reserve(&mut self, turn: &Turn, node: NodeIx) {
        self.headrooms.put(turn, node);
        let mirror = self.nodes[node].mirror.as_ref();
        if let (Some(kept), Some(mirror)) = (self.headrooms.rows.get_mut(turn), mirror) {
            // It will be asked about again and again.
            let version = mirror.kubelet().config().version;
            kept.ask.demands.get(&kept.spec.pod, version, None);
        }
        self.touch(node, Change::Taken);
    }

    /// One less is kept on a node.
    pub(crate) fn release(&mut self, turn: &Turn, node: NodeIx) {
        self.headrooms.take(turn, node);
        self.touch(node, Change::Freed);
    }

    /// Everything is kept again where it was. Nodes have the numbers they had.
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

    /// What is to be kept; the event that would say what was before, if that is something else.
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
        // What depends on other pods, ports and volumes is not kept.
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
        let kept = Kept { headroom, class, spec, ask, places, searched, blocked };
        self.headrooms.rows.insert(turn, kept);
        self.classes_may_matter();
        Some(before.unwrap_or(Event::HeadroomGone(name)))
    }

    /// Nothing is to be kept under this name.
    pub(super) fn remove_headroom(&mut self, name: &str) -> Option<Event> {
        let turn = self.turn_of(name)?;
        self.release_all(&turn);
        let kept = self.headrooms.rows.remove(&turn)?;
        self.release_class(kept.class);
        self.classes_may_matter();
        Some(Event::Headroom(kept.headroom))
    }

    /// Fewer may be to be kept than are: the last by the nodes' ties are given up.
    pub(crate) fn release_surplus(&mut self, turn: &Turn) {
        let Some(kept) = self.headrooms.get(turn) else { return };
        let count = kept.headroom.count as usize;
        let mut places = kept.places.clone();
        places.sort_by_key(|node| self.nodes[*node].tie);
        for node in places.drain(count.min(places.len())..) {
            self.release(turn, node);
        }
    }

    /// What is kept where, and what is lacking.
    pub(crate) fn warm_rooms(&self) -> Vec<WarmRoom> {
        let name = |at: &NodeIx| self.nodes[*at].object.name.clone();
        let room = |kept: &Kept| {
            let mut nodes: Vec<Arc<str>> = kept.places.iter().map(name).collect();
            nodes.sort_unstable();
            WarmRoom {
                name: kept.headroom.name.clone(),
                class: kept.headroom.class,
                nodes,
                lacking: kept.lacking(),
            }
        };
        self.headrooms.rows.values().map(room).collect()
    }
}
