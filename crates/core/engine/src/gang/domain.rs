//! Where a gang may run: anywhere, or on nodes with the same value of a label.
//!
//! Orders the domains and counts how many members fit. Counts are upper limits, so a domain they
//! rule out is impossible.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::queueing::GangStatus;
use crate::engine::Engine;
use crate::state::Place;
use crate::table::{Bits, ClassIx, NodeIx, PodIx};

const DOMAINS_MAX: usize = 16;

pub(super) struct Domain {
    pub(super) value: Option<Arc<str>>,
    pub(super) nodes: Option<Bits>,
    /// Upper limit of pending members that fit.
    pub(super) room: usize,
    /// Upper limit of members of all classes together; a measure of what would be left.
    copies: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeScope {
    WithRoom,
    All,
}

impl Engine {
    /// Domains where a gang could be placed now, best first: reserved nodes, then where all of it
    /// fits, then where least is left.
    pub(super) fn domains_to_place(&mut self, status: &GangStatus) -> Vec<Domain> {
        let kept = self.kept_value(status);
        let mut domains = self.domains(status, NodeScope::WithRoom);
        domains.retain(|domain| domain.room >= status.need);
        let all = status.waiting.len();
        domains.sort_by_key(|domain| {
            let elsewhere = domain.value.is_none() || domain.value != kept;
            let anywhere = domain.nodes.is_none();
            (anywhere, elsewhere, domain.room < all, domain.copies, domain.value.clone())
        });
        domains.truncate(DOMAINS_MAX);
        domains
    }

    /// Domains where room could be made for a gang, the emptiest first.
    pub(super) fn domains_to_clear(&mut self, status: &GangStatus) -> Vec<Domain> {
        let mut domains = self.domains(status, NodeScope::All);
        domains.sort_by_key(|domain| {
            let anywhere = domain.nodes.is_none();
            (anywhere, std::cmp::Reverse((domain.room, domain.copies)), domain.value.clone())
        });
        domains.truncate(DOMAINS_MAX);
        domains
    }

    pub(super) fn domains(&mut self, status: &GangStatus, scope: NodeScope) -> Vec<Domain> {
        let by_class = self.copies(status);
        let mut domains = Vec::new();
        let topology = status.terms.topology.as_ref();
        if let Some(topology) = topology {
            let pinned = self.state.gang_domain(&status.gang, &topology.key);
            let mut by_value: BTreeMap<Arc<str>, Bits> = BTreeMap::new();
            let mut add = |node: NodeIx| {
                let value = self.state.nodes[node].object.labels.get(&topology.key);
                let value = value.filter(|value| pinned.as_ref().is_none_or(|one| one == *value));
                if let Some(value) = value {
                    by_value.entry(value.clone()).or_default().set(node, true);
                }
            };
            match scope {
                NodeScope::All => self.state.nodes.indexes().for_each(&mut add),
                NodeScope::WithRoom => {
                    let with_room = by_class.iter().flat_map(|(_, copies)| copies);
                    with_room.for_each(|(node, _)| add(*node));
                }
            }
            domains.extend(by_value.into_iter().map(|(value, nodes)| {
                let (room, copies) = count(status, &self.state, &by_class, Some(&nodes));
                Domain { value: Some(value), nodes: Some(nodes), room, copies }
            }));
        }
        if topology.is_none_or(|topology| !topology.required) {
            let (room, copies) = count(status, &self.state, &by_class, None);
            domains.push(Domain { value: None, nodes: None, room, copies });
        }
        domains
    }

    /// For each class of members, nodes with room and for how many, as upper limits.
    fn copies(&mut self, status: &GangStatus) -> Vec<(ClassIx, Vec<(NodeIx, u32)>)> {
        let mut classes: Vec<ClassIx> =
            status.waiting.iter().map(|pod| self.state.pods[*pod].class).collect();
        classes.sort_unstable();
        classes.dedup();
        let mut all = Vec::new();
        for class in classes {
            self.state.rules(class);
            let copies = self.rankings.with(&mut self.state, class, |state, ranking, _| {
                let nodes = ranking.buckets().flat_map(|bucket| bucket.order.iter());
                nodes.map(|(_, _, node)| (*node, ranking.copies(state, *node))).collect()
            });
            all.push((class, copies));
        }
        all
    }

    fn kept_value(&self, status: &GangStatus) -> Option<Arc<str>> {
        let key = &status.terms.topology.as_ref()?.key;
        status.waiting.iter().find_map(|pod| {
            let node = nominated(&self.state.pods[*pod].place)?;
            self.state.nodes[node].object.labels.get(key).cloned()
        })
    }

    /// The nodes in the domain of a gang's placed members, and whether its pods must be there.
    pub(crate) fn gang_nodes(&self, at: PodIx) -> Option<(Bits, bool)> {
        let gang = self.scheduled_gang(at)?;
        let topology = self.state.gang_terms(&gang)?.topology?;
        let value = self.state.gang_domain(&gang, &topology.key);
        let mut nodes = Bits::default();
        for (node, row) in self.state.nodes.iter() {
            let own = row.object.labels.get(&topology.key);
            // Without placed members any domain will do, but a node needs the label.
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

fn count(
    status: &GangStatus,
    state: &crate::state::State,
    by_class: &[(ClassIx, Vec<(NodeIx, u32)>)],
    nodes: Option<&Bits>,
) -> (usize, u64) {
    let (mut room, mut all) = (0, 0);
    for (class, copies) in by_class {
        let on = copies.iter().filter(|(node, _)| nodes.is_none_or(|nodes| nodes.contains(*node)));
        let copies: u64 = on.map(|(_, copies)| u64::from(*copies)).sum();
        let waiting = status.waiting.iter().filter(|pod| state.pods[**pod].class == *class).count();
        room += waiting.min(usize::try_from(copies).unwrap_or(usize::MAX));
        all += copies;
    }
    (room, all)
}
