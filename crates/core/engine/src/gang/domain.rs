//! Where a gang may be: anywhere, or on nodes that share the value of a label.
//!
//! Owns the order in which domains are tried, and how many members fit there by counting. Counting
//! never says too few, so a domain that is ruled out by it is ruled out. Must not try anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::muster::Roll;
use crate::engine::Engine;
use crate::state::Place;
use crate::table::{Bits, ClassIx, NodeIx, PodIx};

/// So many domains are tried out for one decision.
const DOMAINS_MAX: usize = 16;

/// Nodes on which a gang could be.
pub(super) struct Spot {
    /// The value that they share.
    pub(super) value: Option<Arc<str>>,
    /// `None`: any node.
    pub(super) nodes: Option<Bits>,
    /// So many of those waiting fit, at most.
    pub(super) room: usize,
    /// So many of all kinds of members together, at most: what would be left over.
    copies: u64,
}

/// Which nodes are asked about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Among {
    /// Those that have room for a member.
    WithRoom,
    /// All of them.
    All,
}

impl Engine {
    /// Where a gang could be placed at once, the best first: where nodes are kept for it, where all of
    /// it fits, and where least would be left over.
    pub(super) fn spots_to_place(&mut self, roll: &Roll) -> Vec<Spot> {
        let kept = self.kept_value(roll);
        let mut spots = self.spots(roll, Among::WithRoom);
        spots.retain(|spot| spot.room >= roll.need);
        let all = roll.waiting.len();
        spots.sort_by_key(|spot| {
            let elsewhere = spot.value.is_none() || spot.value != kept;
            let anywhere = spot.nodes.is_none();
            (anywhere, elsewhere, spot.room < all, spot.copies, spot.value.clone())
        });
        spots.truncate(DOMAINS_MAX);
        spots
    }

    /// Where room could be made for a gang, the emptiest first.
    pub(super) fn spots_to_clear(&mut self, roll: &Roll) -> Vec<Spot> {
        let mut spots = self.spots(roll, Among::All);
        spots.sort_by_key(|spot| {
            let anywhere = spot.nodes.is_none();
            (anywhere, std::cmp::Reverse((spot.room, spot.copies)), spot.value.clone())
        });
        spots.truncate(DOMAINS_MAX);
        spots
    }

    /// All domains in which a gang may be, and anywhere if that will do.
    pub(super) fn spots(&mut self, roll: &Roll, among: Among) -> Vec<Spot> {
        let by_class = self.copies(roll);
        let mut spots = Vec::new();
        let topology = roll.terms.topology.as_ref();
        if let Some(topology) = topology {
            let pinned = self.state.gang_domain(&roll.gang, &topology.key);
            let mut by_value: BTreeMap<Arc<str>, Bits> = BTreeMap::new();
            let mut add = |node: NodeIx| {
                let value = self.state.nodes[node].object.labels.get(&topology.key);
                let value = value.filter(|value| pinned.as_ref().is_none_or(|one| one == *value));
                if let Some(value) = value {
                    by_value.entry(value.clone()).or_default().set(node, true);
                }
            };
            match among {
                Among::All => self.state.nodes.indexes().for_each(&mut add),
                Among::WithRoom => {
                    let with_room = by_class.iter().flat_map(|(_, copies)| copies);
                    with_room.for_each(|(node, _)| add(*node));
                }
            }
            spots.extend(by_value.into_iter().map(|(value, nodes)| {
                let (room, copies) = count(roll, &self.state, &by_class, Some(&nodes));
                Spot { value: Some(value), nodes: Some(nodes), room, copies }
            }));
        }
        if topology.is_none_or(|topology| !topology.required) {
            let (room, copies) = count(roll, &self.state, &by_class, None);
            spots.push(Spot { value: None, nodes: None, room, copies });
        }
        spots
    }

    /// For each kind of member, the nodes that have room and for how many, by counting.
    fn copies(&mut self, roll: &Roll) -> Vec<(ClassIx, Vec<(NodeIx, u32)>)> {
        let mut classes: Vec<ClassIx> =
            roll.waiting.iter().map(|pod| self.state.pods[*pod].class).collect();
        classes.sort_unstable();
        classes.dedup();
        let mut all = Vec::new();
        let mut rankings = std::mem::take(&mut self.rankings);
        for class in classes {
            self.state.rules(class);
            let copies = rankings.with(&mut self.state, class, |state, ranking, _| {
                let nodes = ranking.buckets().flat_map(|bucket| bucket.order.iter());
                nodes.map(|(_, _, node)| (*node, ranking.copies(state, *node))).collect()
            });
            all.push((class, copies));
        }
        self.rankings = rankings;
        all
    }

    /// The domain in which nodes are kept for a gang.
    fn kept_value(&self, roll: &Roll) -> Option<Arc<str>> {
        let key = &roll.terms.topology.as_ref()?.key;
        roll.waiting.iter().find_map(|pod| {
            let node = nominated(&self.state.pods[*pod].place)?;
            self.state.nodes[node].object.labels.get(key).cloned()
        })
    }

    /// The nodes near the members of its gang that have a place, for a pod that has to be there, or
    /// would rather be; whether it has to.
    pub(crate) fn near_mates(&self, at: PodIx) -> Option<(Bits, bool)> {
        let gang = self.gang_minded(at)?;
        let topology = self.state.gang_terms(&gang)?.topology?;
        let value = self.state.gang_domain(&gang, &topology.key);
        let mut nodes = Bits::default();
        for (node, row) in self.state.nodes.iter() {
            let own = row.object.labels.get(&topology.key);
            // Without mates any domain will do, but it must be one.
            let near = own.is_some() && value.as_ref().is_none_or(|value| own == Some(value));
            nodes.set(node, near);
        }
        Some((nodes, topology.required))
    }
}

pub(super) fn nominated(place: &Place) -> Option<NodeIx> {
    match place {
        Place::Nominated(_, node) => *node,
        _ => None,
    }
}

/// How many of those waiting fit on some nodes at most, and how many copies of all kinds of members.
fn count(
    roll: &Roll,
    state: &crate::state::State,
    by_class: &[(ClassIx, Vec<(NodeIx, u32)>)],
    nodes: Option<&Bits>,
) -> (usize, u64) {
    let (mut room, mut all) = (0, 0);
    for (class, copies) in by_class {
        let on = copies.iter().filter(|(node, _)| nodes.is_none_or(|nodes| nodes.contains(*node)));
        let copies: u64 = on.map(|(_, copies)| u64::from(*copies)).sum();
        let waiting = roll.waiting.iter().filter(|pod| state.pods[**pod].class == *class).count();
        room += waiting.min(usize::try_from(copies).unwrap_or(usize::MAX));
        all += copies;
    }
    (room, all)
}
