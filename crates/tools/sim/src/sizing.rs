//! Searches the fewest nodes on which a setup still does the work of another setup.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::workload::pool_of;

use crate::experiment::{Experiment, NodeSetup, Setup, Subject};
use crate::node::NodeError;
use crate::parallel;
use crate::report::{Fewest, Summary};
use crate::world;

/// What a cluster has to be sufficient for.
pub(crate) struct Work {
    pub(crate) batch_gpu_hours: f64,
    pub(crate) requests_lost_max: u64,
    pub(crate) breaches_max: u64,
}

/// The same work, measured over other intervals, differs by rounding.
const ROUNDING: f64 = 1e-9;

impl Work {
    fn is_done_by(&self, summary: &Summary) -> bool {
        summary.batch_gpu_hours >= self.batch_gpu_hours * (1.0 - ROUNDING)
            && summary.requests_lost <= self.requests_lost_max
            && summary.breaches <= self.breaches_max
    }
}

/// Removes GPU nodes, one more at a time, in every combination of pools, as long as a setup does the
/// work. Assumes that a cluster that is too small does not become sufficient by removing more nodes.
/// Nodes that a failure names are kept.
pub(crate) fn fewest(
    experiment: &Experiment,
    setup: &Setup,
    whole: &Summary,
    work: &Work,
) -> Result<Fewest, NodeError> {
    let mut best = Fewest::of(&experiment.nodes, whole);
    if !work.is_done_by(whole) {
        return Ok(Fewest { gpus: None, ..best });
    }
    let removable = removable(experiment);
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
            if work.is_done_by(&summary) {
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

impl Fewest {
    pub(crate) fn of(nodes: &[NodeSetup], summary: &Summary) -> Self {
        Self {
            nodes: nodes.len(),
            gpus: Some(nodes.iter().map(|node| node.gpus.len()).sum()),
            batch_gpu_hours: summary.batch_gpu_hours,
            p99_us: summary.p99_us,
            cost_microusd: summary.cost_microusd,
        }
    }
}
