//! A scheduler that judges every node by a cost of its own and takes the least.
//!
//! Owns the costs by request and node, brought up to date only where nodes have changed. Ties go to
//! the first node, which is the one with the smallest name. Must not know what costs mean.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use berth_packing::node::{FreeNode, GpuPositions};
use berth_packing::request::Request;

use super::scheduler::{Placement, PodIx, Scheduler};

/// A node that cannot take the pod.
pub(crate) const IMPOSSIBLE: i64 = i64::MAX;

/// What a placement costs.
pub(crate) trait Judge {
    /// What it costs on a node that can take it; less is better.
    fn cost(&self, node: &FreeNode, request: &Request) -> i64;

    /// The GPUs it gets on a node that can take it.
    fn gpus(&mut self, node: &FreeNode, request: &Request) -> GpuPositions;

    /// The node among these costs: the first of the least.
    fn pick(&mut self, costs: &[i64]) -> Option<usize> {
        let least = costs.iter().copied().min().filter(|least| *least != IMPOSSIBLE)?;
        costs.iter().position(|cost| *cost == least)
    }
}

/// The cluster as a judge sees it.
pub(crate) struct Ranked<J> {
    judge: J,
    nodes: Vec<FreeNode>,
    rankings: BTreeMap<Request, Ranking>,
    /// Nodes in the order in which they changed, once for each change.
    changes: Vec<usize>,
    held: BTreeMap<PodIx, (Request, Placement)>,
}

#[derive(Default)]
struct Ranking {
    costs: Vec<i64>,
    /// How many changes it knows.
    known: usize,
}

impl<J: Judge> Ranked<J> {
    pub(crate) fn new(nodes: Vec<FreeNode>, judge: J) -> Self {
        let (rankings, held) = (BTreeMap::new(), BTreeMap::new());
        Self { judge, nodes, rankings, changes: Vec::new(), held }
    }
}

impl<J: Judge> Scheduler for Ranked<J> {
    fn arrive(&mut self, pod: PodIx, request: &Request) -> Result<Option<Placement>> {
        let judge = &self.judge;
        let cost = |node: &FreeNode| {
            if node.can_take(request) { judge.cost(node, request) } else { IMPOSSIBLE }
        };
        let ranking = self.rankings.entry(*request).or_default();
        if ranking.costs.is_empty() {
            ranking.costs = self.nodes.iter().map(cost).collect();
        } else {
            let mut changed = self.changes.get(ranking.known..).unwrap_or_default().to_vec();
            changed.sort_unstable();
            changed.dedup();
            for at in changed {
                let (Some(slot), Some(node)) = (ranking.costs.get_mut(at), self.nodes.get(at))
                else {
                    continue;
                };
                *slot = cost(node);
            }
        }
        ranking.known = self.changes.len();
        let Some(at) = self.judge.pick(&ranking.costs) else {
            return Ok(None);
        };
        let node = self.nodes.get_mut(at).context("picked no node")?;
        let gpus = self.judge.gpus(node, request);
        node.take(request, &gpus);
        self.changes.push(at);
        let placement = Placement { node: at, gpus };
        self.held.insert(pod, (*request, placement.clone()));
        Ok(Some(placement))
    }

    fn depart(&mut self, pod: PodIx) -> Result<()> {
        let (request, placement) = self.held.remove(&pod).context("departs without a place")?;
        let node = self.nodes.get_mut(placement.node).context("no such node")?;
        node.release(&request, &placement.gpus);
        self.changes.push(placement.node);
        Ok(())
    }
}
