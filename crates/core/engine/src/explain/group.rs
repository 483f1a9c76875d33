//! Groups nodes by cause, so that a thousand nodes give a handful of causes.

use berth_model::quantity::Quantity;

use super::data::{Cause, Group, Offered, PodName};
use crate::state::State;
use crate::table::{Lookup, NodeIx};

const GROUPS_MAX: usize = 12;

const EXAMPLES_MAX: usize = 3;

pub(super) struct Row {
    pub(super) cause: Cause,
    /// By name.
    pub(super) nodes: Vec<NodeIx>,
}

#[derive(Default)]
pub(super) struct Grouping {
    rows: Vec<Row>,
    numbers: Lookup<Cause, usize>,
}

impl Grouping {
    /// Adds a node; nodes must come in name order.
    pub(super) fn add(&mut self, at: NodeIx, cause: Cause) {
        self.join(cause.key(), cause, &[at]);
    }

    fn join(&mut self, key: Cause, cause: Cause, nodes: &[NodeIx]) {
        let next = self.rows.len();
        let number = *self.numbers.entry(key).or_insert(next);
        match self.rows.get_mut(number) {
            Some(row) => {
                row.cause.absorb(&cause);
                row.nodes.extend_from_slice(nodes);
            }
            None => self.rows.push(Row { cause, nodes: nodes.to_vec() }),
        }
    }

    /// Most nodes first, then by first node.
    pub(super) fn rows(self) -> Vec<Row> {
        let mut rows = self.rows;
        rows.sort_by_key(|row| std::cmp::Reverse(row.nodes.len()));
        rows
    }
}

pub(super) fn groups(state: &State, rows: &[Row]) -> Vec<Group> {
    let group = |row: &Row| {
        let name = |at: &NodeIx| state.nodes[*at].object.name.clone();
        let mut examples: Vec<_> = row.nodes.iter().map(name).collect();
        examples.sort_unstable();
        examples.truncate(EXAMPLES_MAX);
        Group { cause: row.cause.clone(), nodes: row.nodes.len(), examples }
    };
    if rows.len() <= GROUPS_MAX {
        return rows.iter().map(group).collect();
    }
    let mut coarse = Grouping::default();
    for row in rows {
        let cause = row.cause.coarse();
        coarse.join(cause.key(), cause, &row.nodes);
    }
    let mut rows = coarse.rows();
    if rows.len() > GROUPS_MAX {
        let tail = rows.split_off(GROUPS_MAX - 1);
        let cause = Cause::Others { reasons: tail.len() };
        rows.push(Row { cause, nodes: tail.into_iter().flat_map(|row| row.nodes).collect() });
    }
    rows.iter().map(group).collect()
}

impl Cause {
    /// Identifies a group: everything but the amounts that `absorb` merges.
    fn key(&self) -> Self {
        let mut key = self.clone();
        match &mut key {
            Self::Short(all) => all.iter_mut().for_each(|one| one.most = Quantity::ZERO),
            Self::NoOffer { largest: Some(largest), .. } => {
                *largest = Offered { resource: "".into(), memory_bytes: 0, compute_milli: 0 };
            }
            Self::Split { most, .. } => *most = 0,
            Self::Crowded { most, .. } => *most = Quantity::ZERO,
            Self::Kubelet { words, .. } => words.clear(),
            Self::Spread { skew, .. } => *skew = 0,
            Self::Refused { by, .. } => *by = None,
            Self::Reserved { by } => *by = PodName::default(),
            _ => {}
        }
        key
    }

    /// Without the details that split most groups.
    fn coarse(&self) -> Self {
        let mut coarse = self.clone();
        match &mut coarse {
            Self::Taint(taint) => taint.value = "".into(),
            Self::Short(all) => all.truncate(1),
            Self::Split { free, .. } => free.clear(),
            Self::Spread { domain, .. }
            | Self::Unwelcome { domain, .. }
            | Self::Refused { domain, .. } => *domain = None,
            _ => {}
        }
        coarse
    }

    /// Merges the amounts of a cause with the same key.
    fn absorb(&mut self, other: &Self) {
        match (self, other) {
            (Self::Short(all), Self::Short(others)) => {
                for (one, other) in all.iter_mut().zip(others) {
                    one.most = one.most.max(other.most);
                }
            }
            (
                Self::NoOffer { largest: Some(one), .. },
                Self::NoOffer { largest: Some(other), .. },
            ) if other.memory_bytes > one.memory_bytes => *one = other.clone(),
            (Self::Split { most: one, .. }, Self::Split { most: other, .. }) => {
                *one = (*one).max(*other);
            }
            (Self::Crowded { most: one, .. }, Self::Crowded { most: other, .. }) => {
                *one = (*one).max(*other);
            }
            (Self::Spread { skew: one, .. }, Self::Spread { skew: other, .. }) => {
                *one = (*one).min(*other);
            }
            _ => {}
        }
    }
}
