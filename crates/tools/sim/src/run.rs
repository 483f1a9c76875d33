//! Runs an experiment under all its setups.
//!
//! Owns how the runs become one report. Must not know what happens in a run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::experiment::{Division, Experiment, KubeletPolicy, Setup};
use crate::node::NodeError;
use crate::report::{NodeOutline, Report, Run};
use crate::world;

/// Runs all setups. `progress` is told which setup runs and how much of it is done.
pub fn run(
    experiment: &Experiment,
    progress: &mut dyn FnMut(&Setup, f64),
) -> Result<Report, NodeError> {
    let mut nodes: Vec<NodeOutline> = Vec::new();
    let mut by_name: BTreeMap<String, usize> = BTreeMap::new();
    let mut runs = Vec::new();
    for setup in &experiment.setups {
        let (mut run, outlines) = world::run(experiment, setup, &mut |part| progress(setup, part))?;
        // Nodes that were added differ from run to run; in the report each has one number.
        let numbers: Vec<usize> = outlines
            .into_iter()
            .map(|outline| {
                *by_name.entry(outline.name.clone()).or_insert_with(|| {
                    nodes.push(outline);
                    nodes.len() - 1
                })
            })
            .collect();
        renumber(&mut run, &numbers);
        runs.push(run);
    }
    Ok(Report {
        version: 1,
        title: experiment.title.clone(),
        description: experiment.description.clone(),
        seed: experiment.seed,
        duration_ms: experiment.duration_ms,
        assumptions: experiment.assumptions.list(),
        nodes,
        workloads: experiment.workloads.iter().map(|workload| workload.outline.clone()).collect(),
        runs,
    })
}

/// Runs experiments, usually one with several seeds, in parallel. Of each report but the first the
/// record of who was where is dropped: it is large, and nothing shows it. `progress` is called with
/// how many experiments are done.
pub fn run_all(
    experiments: &[Experiment],
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Vec<Report>, NodeError> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let mut reports: Vec<Mutex<Option<Result<Report, NodeError>>>> = Vec::new();
    reports.resize_with(experiments.len(), Mutex::default);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(experiments.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(experiment), Some(slot)) = (experiments.get(at), reports.get(at))
                    else {
                        return;
                    };
                    let mut report = run(experiment, &mut |_, _| {});
                    if let Ok(report) = &mut report
                        && at > 0
                    {
                        report.runs.iter_mut().for_each(|run| run.stays.clear());
                    }
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    let report = |slot: Mutex<Option<_>>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
    reports.into_iter().filter_map(report).collect()
}

fn renumber(run: &mut Run, numbers: &[usize]) {
    let number = |node: &mut usize| *node = numbers.get(*node).copied().unwrap_or(*node);
    run.stays.iter_mut().for_each(|stay| number(&mut stay.node));
    run.layouts.iter_mut().for_each(|layout| number(&mut layout.node));
}

impl Setup {
    /// What is particular about it.
    pub fn words(&self) -> Vec<(String, String)> {
        use berth_engine::Profile;
        let scheduler = match self.profile {
            Profile::Berth => "berth",
            Profile::KubeScheduler => "kube-scheduler, defaults",
            Profile::KubeSchedulerPacking => "kube-scheduler, packing by GPU (MostAllocated)",
        };
        let kubelet = match self.kubelet {
            KubeletPolicy::AsDescribed => "as the nodes say".to_owned(),
            KubeletPolicy::Defaults => "defaults: nothing pinned, nothing aligned".to_owned(),
            KubeletPolicy::Topology(policy) => format!("topology policy {policy}"),
        };
        let gpus = match self.division {
            Division::AsDescribed => "divided as the nodes say",
            Division::Whole => "whole GPUs only",
        };
        let moves = self.consolidation.map(|one| {
            let hours = one.every_ms as f64 / 3_600_000.0;
            ("moves", format!("up to {} replicas every {hours} h", one.moves_max))
        });
        [("scheduler", scheduler), ("kubelet", kubelet.as_str()), ("GPUs", gpus)]
            .into_iter()
            .map(|(what, value)| (what, value.to_owned()))
            .chain(moves)
            .map(|(what, value)| (what.to_owned(), value))
            .collect()
    }
}
