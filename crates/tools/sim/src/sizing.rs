//! Searches the fewest nodes on which a setup still does the work of another setup.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::workload::pool_of;

use crate::experiment::{Experiment, NodeSetup, Setup, Subject};
use crate::node::NodeError;
use crate::parallel;
use crate::report::{Fewest, Summary};
use crate::world;

/// Removes GPU nodes, one more at a time, in every combination of pools, as long as a setup does the
/// work of the reference. Assumes that a cluster that is too small does not become sufficient by
/// removing more nodes. Nodes that a failure names are kept.
pub(crate) fn fewest(
    experiment: &Experiment,
    setup: &Setup,
    whole: &Summary,
    reference: &Summary,
) -> Result<Fewest, NodeError> {
    let removable = removable(experiment);
    let mut best = Fewest::of(&experiment.nodes, whole);
    let mut frontier: Vec<Vec<usize>> = vec![vec![0; removable.len()]];
    while !frontier.is_empty() {
        let mut candidates = BTreeSet::new();
        for counts in &frontier {
            for (pool, nodes) in removable.iter().enumerate() {
                if counts[pool] < nodes.len() {
                    let mut more = counts.clone();
                    more[pool] += 1;
                    candidates.insert(more);
                }
            }
        }
        let candidates: Vec<Vec<usize>> = candidates.into_iter().collect();
        let smaller: Vec<Experiment> =
            candidates.iter().map(|counts| without(experiment, &removable, counts)).collect();
        let summaries = parallel::map(&smaller, &|_, smaller| {
            world::run(smaller, setup, &mut |_| {}).map(|(run, _)| run.summary)
        });
        let mut sufficient = Vec::new();
        let mut cheapest: Option<Fewest> = None;
        for ((counts, smaller), summary) in candidates.into_iter().zip(&smaller).zip(summaries) {
            let summary = summary?;
            if summary.does_work_of(reference, whole) {
                let found = Fewest::of(&smaller.nodes, &summary);
                if cheapest.as_ref().is_none_or(|one| found.cost_microusd < one.cost_microusd) {
                    cheapest = Some(found);
                }
                sufficient.push(counts);
            }
        }
        best = cheapest.unwrap_or(best);
        frontier = sufficient;
    }
    Ok(best)
}

/// GPU nodes that can be removed, by pool, in the order of removal: the last ones first.
fn removable(experiment: &Experiment) -> Vec<Vec<Arc<str>>> {
    let kept: BTreeSet<&Arc<str>> = experiment
        .failures
        .iter()
        .filter_map(|failure| match failure.fault.subject() {
            Subject::Node(name) => Some(name),
            Subject::Zone(_) | Subject::Pool(_) => None,
        })
        .collect();
    let mut pools: BTreeMap<Option<&Arc<str>>, Vec<Arc<str>>> = BTreeMap::new();
    for node in experiment.nodes.iter().rev() {
        if !node.gpus.is_empty() && !kept.contains(&node.node.name) {
            pools.entry(pool_of(&node.node.labels)).or_default().push(node.node.name.clone());
        }
    }
    pools.into_values().collect()
}

fn without(experiment: &Experiment, removable: &[Vec<Arc<str>>], counts: &[usize]) -> Experiment {
    let removed = removable.iter().zip(counts).flat_map(|(nodes, count)| nodes.iter().take(*count));
    let removed: BTreeSet<&Arc<str>> = removed.collect();
    let mut smaller = experiment.clone();
    smaller.nodes.retain(|node| !removed.contains(&node.node.name));
    smaller
}

impl Summary {
    /// At least as many batch GPU hours as the reference, with no more breaches than on the whole
    /// cluster, and no more lost requests than the reference or the whole cluster.
    fn does_work_of(&self, reference: &Self, whole: &Self) -> bool {
        self.batch_gpu_hours >= reference.batch_gpu_hours
            && self.breaches <= whole.breaches
            && self.requests_lost <= reference.requests_lost.max(whole.requests_lost)
    }
}

impl Fewest {
    pub(crate) fn of(nodes: &[NodeSetup], summary: &Summary) -> Self {
        Self {
            nodes: nodes.len(),
            gpus: nodes.iter().map(|node| node.gpus.len()).sum(),
            batch_gpu_hours: summary.batch_gpu_hours,
            p99_us: summary.p99_us,
            cost_microusd: summary.cost_microusd,
        }
    }
}
