//! The result of an experiment as data, for the terminal, JSON and the page.
//!
//! Times are milliseconds since the start, latencies microseconds, money micro-dollars, shares between
//! 0 and 1.

use std::collections::BTreeMap;

pub use berth_model::alignment::Alignment;
use serde::Serialize;

pub use crate::experiment::Goals;

/// An experiment: the same cluster and the same arrivals under several setups.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Version of this format.
    pub version: u32,
    pub title: String,
    pub description: String,
    /// The same seed gives the same report.
    pub seed: u64,
    pub duration_ms: i64,
    pub assumptions: Vec<Assumption>,
    /// The nodes, in the order in which [`Stay::node`] numbers them.
    pub nodes: Vec<NodeOutline>,
    /// The workloads, in the order in which [`Stay::workload`] numbers them.
    pub workloads: Vec<WorkloadOutline>,
    /// What the setups should reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goals: Option<Goals>,
    pub runs: Vec<Run>,
}

/// A number or rule that is assumed, not computed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Assumption {
    pub name: String,
    pub value: String,
    pub source: String,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeOutline {
    pub name: String,
    pub pool: String,
    /// Empty if it has none.
    pub zone: String,
    pub numa: Vec<NumaOutline>,
    pub gpus: Vec<GpuOutline>,
    pub microusd_per_hour: i64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct NumaOutline {
    pub socket: usize,
    pub cpus: usize,
    pub memory_bytes: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct GpuOutline {
    pub product: String,
    /// NUMA nodes it is attached to, by position in [`NodeOutline::numa`].
    pub numa: Vec<usize>,
    pub memory_bytes: u64,
    /// MIG memory units; 1 without MIG.
    pub units: u8,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct WorkloadOutline {
    /// `Deployment`, `Job` and so on; `arrivals` for pods of a trace or a process.
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub team: String,
    /// `interactive`, `embedding`, `batch` or `experimentation`.
    pub class: String,
}

/// The result under one setup.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    pub name: String,
    /// Settings of the setup as name and value.
    pub setup: Vec<(String, String)>,
    pub summary: Summary,
    /// The smallest cluster that does the work of the setup to compare with; of that setup itself, the
    /// whole cluster. `None`: not searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fewest: Option<Fewest>,
    pub series: Series,
    pub services: Vec<ServiceReport>,
    /// The class with the strongest claim first.
    pub classes: Vec<ClassReport>,
    pub teams: Vec<TeamReport>,
    /// Pods rejected by kubelets, by reason.
    pub rejections: BTreeMap<String, u64>,
    /// Pods on nodes over time. If there are too many, the shortest stays are omitted.
    pub stays: Vec<Stay>,
    /// Number of omitted stays.
    pub stays_left_out: usize,
    /// MIG layouts over time.
    pub layouts: Vec<LayoutChange>,
    /// In order of time, with a limit per kind.
    pub happenings: Vec<Happening>,
    /// Pods that are pending at the end, by workload, with reasons.
    pub waiting: Vec<Waiting>,
}

/// The smallest sufficient cluster, and what a setup does on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Fewest {
    pub nodes: usize,
    /// `None`: even the whole cluster is not sufficient.
    pub gpus: Option<usize>,
    pub batch_gpu_hours: f64,
    pub p99_us: u64,
    pub cost_microusd: i64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Mean number of GPUs.
    pub gpus: f64,
    /// Share of GPUs that is allocated to pods.
    pub allocated: f64,
    /// Share of GPUs that is busy.
    pub utilised: f64,
    /// Share of GPUs that is stranded.
    pub fragmented: f64,
    pub requests: u64,
    /// Requests without a ready replica, or that timed out in a backlog.
    pub requests_lost: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    /// Times at which a p99 stayed above its objective for the assumed duration.
    pub breaches: u64,
    /// Time above the objective, summed over services.
    pub above_ms: i64,
    /// Share of the GPU pods' run time during which they were aligned.
    pub aligned: f64,
    pub pods: u64,
    pub started: u64,
    /// Pods pending at the end.
    pub waiting: u64,
    pub rejections: u64,
    pub preemptions: u64,
    /// Pods that were stopped before they were done, and failed jobs.
    pub lost: u64,
    /// Replicas moved by consolidation.
    pub moves: u64,
    pub out_of_memory: u64,
    /// Work of batch pods that was not lost.
    pub batch_gpu_hours: f64,
    /// Work of batch pods that was lost when they were stopped.
    pub wasted_gpu_hours: f64,
    /// Completed jobs.
    pub jobs: u64,
    /// Of all nodes.
    pub cost_microusd: i64,
    /// Of free GPUs.
    pub idle_microusd: i64,
    /// Of the GPUs that served them.
    pub microusd_per_million_requests: i64,
    /// Cost of all nodes per busy GPU hour.
    pub microusd_per_busy_gpu_hour: i64,
    pub decisions: u64,
}

/// Means over time by step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    pub step_ms: i64,
    pub gpus: Vec<f32>,
    pub allocated: Vec<f32>,
    pub utilised: Vec<f32>,
    /// Stranded GPUs.
    pub fragmented: Vec<f32>,
    /// Pending pods.
    pub waiting: Vec<f32>,
    pub rejections: Vec<u32>,
    pub preemptions: Vec<u32>,
    /// 0 in steps without requests.
    pub p99_us: Vec<u32>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct ServiceReport {
    /// Position in [`Report::workloads`].
    pub workload: usize,
    pub requests: u64,
    pub requests_lost: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    /// Maximum p99; 0: no objective.
    pub objective_us: u64,
    pub breaches: u64,
    /// Time above the objective.
    pub above_ms: i64,
    /// Mean number of ready replicas.
    pub replicas: f64,
    /// Share of its replicas' time during which they were aligned.
    pub aligned: f64,
    /// By the steps of [`Series`]; 0 without requests.
    pub p99_us_series: Vec<u32>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct ClassReport {
    pub class: String,
    pub pods: u64,
    pub started: u64,
    /// Waits until the pods started, or until the end for pending pods.
    pub wait_p50_ms: i64,
    pub wait_p90_ms: i64,
    pub wait_p99_ms: i64,
    pub wait_max_ms: i64,
    pub preempted: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct TeamReport {
    /// Empty for pods without a team.
    pub team: String,
    pub gpu_hours: f64,
    pub busy_gpu_hours: f64,
    /// Of its allocated GPUs.
    pub cost_microusd: i64,
}

/// A pod on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stay {
    /// Position in [`Report::workloads`].
    pub workload: usize,
    /// Number within the workload.
    pub pod: u64,
    /// Position in [`Report::nodes`].
    pub node: usize,
    pub from_ms: i64,
    pub to_ms: i64,
    pub gpus: Vec<GpuPart>,
    /// Pinned CPUs by NUMA node; empty if none are pinned.
    pub cpus: Vec<usize>,
    /// `None` without a GPU.
    pub alignment: Option<Alignment>,
}

/// A part of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuPart {
    /// Position on the node.
    pub gpu: usize,
    /// First memory unit.
    pub first: u8,
    pub units: u8,
    /// Compute in thousandths of the GPU.
    pub milli: u16,
}

/// The MIG layout of a GPU from a time on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LayoutChange {
    pub at_ms: i64,
    /// Position in [`Report::nodes`].
    pub node: usize,
    /// Position on the node.
    pub gpu: usize,
    /// Profile, first unit, number of units; none: the GPU is whole.
    pub slices: Vec<(String, u8, u8)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Happening {
    pub at_ms: i64,
    /// `failure`, `recovery`, `breach`, `rejection`, `preemption`, `out-of-memory`, `provision`.
    pub kind: String,
    pub text: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// Position in [`Report::workloads`].
    pub workload: usize,
    pub pods: u64,
    /// Reasons and remedies.
    pub why: String,
}
