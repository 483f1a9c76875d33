//! Runs an experiment under all its setups.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::experiment::{Division, Experiment, KubeletPolicy, Setup};
use crate::node::NodeError;
use crate::parallel;
use crate::report::{Fewest, NodeOutline, Report, Run};
use crate::sizing::{self, Work};
use crate::world;

/// Runs all setups. `progress` is called with the current setup and how much of it is done, from 0 to
/// 1. The search for the fewest nodes, if the experiment asks for it, comes after that.
pub fn run(
    experiment: &Experiment,
    progress: &mut dyn FnMut(&Setup, f64),
) -> Result<Report, NodeError> {
    let mut nodes: Vec<NodeOutline> = Vec::new();
    let mut by_name: BTreeMap<String, usize> = BTreeMap::new();
    let mut runs = Vec::new();
    for setup in &experiment.setups {
        let (mut run, outlines) = world::run(experiment, setup, &mut |part| progress(setup, part))?;
        // Setups may add different nodes; in the report each has one number.
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
    if let Some(goals) = experiment.goals.as_ref().filter(|goals| goals.fewest_nodes)
        && let Some(reference) = runs.get(goals.against).map(|run| &run.summary)
    {
        let work = Work {
            batch_gpu_hours: reference.batch_gpu_hours,
            requests_lost_max: reference.requests_lost,
            breaches_max: goals.breaches.unwrap_or(0),
        };
        for (number, (setup, run)) in experiment.setups.iter().zip(&mut runs).enumerate() {
            run.fewest = Some(if number == goals.against {
                Fewest::of(&experiment.nodes, &run.summary)
            } else {
                sizing::fewest(experiment, setup, &run.summary, &work)?
            });
        }
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
        goals: experiment.goals.clone(),
        runs,
    })
}

/// Runs experiments, usually one with several seeds, in parallel. `progress` is called with how many
/// are done. Only the first report keeps its stays, because they are large and only one is shown.
pub fn run_all(
    experiments: &[Experiment],
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Vec<Report>, NodeError> {
    let done = AtomicUsize::new(0);
    let reports = parallel::map(experiments, &|at, experiment| {
        let mut report = run(experiment, &mut |_, _| {});
        if let Ok(report) = &mut report
            && at > 0
        {
            report.runs.iter_mut().for_each(|run| run.stays.clear());
        }
        progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        report
    });
    reports.into_iter().collect()
}

fn renumber(run: &mut Run, numbers: &[usize]) {
    let number = |node: &mut usize| *node = numbers.get(*node).copied().unwrap_or(*node);
    run.stays.iter_mut().for_each(|stay| number(&mut stay.node));
    run.layouts.iter_mut().for_each(|layout| number(&mut layout.node));
}

impl Setup {
    /// Its settings as name and value.
    pub fn words(&self) -> Vec<(String, String)> {
        use berth_engine::Profile;
        let scheduler = match self.profile {
            Profile::Berth => "berth",
            Profile::KubeScheduler => "kube-scheduler",
            Profile::KubeSchedulerPacking => "kube-scheduler (MostAllocated on GPUs)",
        };
        let kubelet = match self.kubelet {
            KubeletPolicy::AsDescribed => "as described".to_owned(),
            KubeletPolicy::Defaults => "defaults (nothing pinned or aligned)".to_owned(),
            KubeletPolicy::Topology(policy) => format!("topology policy {policy}"),
        };
        let gpus = match self.division {
            Division::AsDescribed => "as described",
            Division::Whole => "whole only",
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
