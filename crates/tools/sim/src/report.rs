//! What came of an experiment, as data.
//!
//! Owns the vocabulary that the terminal, JSON and the page share. Must not know how any of it is
//! worked out or shown. Times are milliseconds since the start of the experiment, money is in
//! micro-dollars, latencies are in microseconds, shares are between 0 and 1.

use std::collections::BTreeMap;

pub use berth_model::alignment::Alignment;
use serde::Serialize;

/// An experiment: the same cluster and the same arrivals under several setups.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Of this shape of the data; 1.
    pub version: u32,
    /// What it is about.
    pub title: String,
    /// Some sentences about it.
    pub description: String,
    /// The same seed gives the same report.
    pub seed: u64,
    /// For how long.
    pub duration_ms: i64,
    /// What was assumed, and from where.
    pub assumptions: Vec<Assumption>,
    /// The nodes, in the order in which [`Stay::node`] numbers them.
    pub nodes: Vec<NodeOutline>,
    /// The workloads, in the order in which [`Stay::workload`] numbers them.
    pub workloads: Vec<WorkloadOutline>,
    /// One for each setup.
    pub runs: Vec<Run>,
}

/// Something the figures rest on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Assumption {
    /// What it is about.
    pub name: String,
    /// What is assumed.
    pub value: String,
    /// Where that comes from.
    pub source: String,
}

/// What a node looks like.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeOutline {
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its zone; empty if it has none.
    pub zone: String,
    /// Its NUMA nodes.
    pub numa: Vec<NumaOutline>,
    /// Its GPUs.
    pub gpus: Vec<GpuOutline>,
    /// What an hour of it costs.
    pub microusd_per_hour: i64,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NumaOutline {
    /// The socket it is on.
    pub socket: usize,
    /// Its CPUs.
    pub cpus: usize,
    /// Its memory.
    pub memory_bytes: u64,
}

/// One GPU.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GpuOutline {
    /// The product.
    pub product: String,
    /// NUMA nodes it is attached to, by position in [`NodeOutline::numa`].
    pub numa: Vec<usize>,
    /// All its memory.
    pub memory_bytes: u64,
    /// Into how many units of memory MIG divides it; 1 if it cannot be divided.
    pub units: u8,
}

/// Something that makes pods.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WorkloadOutline {
    /// `Deployment`, `Job` and so on; `arrivals` for pods of a trace or a process.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub team: String,
    /// What kind of work: `interactive`, `embedding`, `batch` or `experimentation`.
    pub class: String,
}

/// What came of it under one setup.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    /// The setup's name.
    pub name: String,
    /// Whose rules the scheduler follows, what kubelets insist on, how GPUs are divided.
    pub setup: Vec<(String, String)>,
    /// In a few numbers.
    pub summary: Summary,
    /// Over time.
    pub series: Series,
    /// By service.
    pub services: Vec<ServiceReport>,
    /// By class of work, the strongest claim first.
    pub classes: Vec<ClassReport>,
    /// By team.
    pub teams: Vec<TeamReport>,
    /// How often kubelets turned pods down, by reason.
    pub rejections: BTreeMap<String, u64>,
    /// Who was where when. Where there are too many, the shortest are left out.
    pub stays: Vec<Stay>,
    /// How many stays were left out.
    pub stays_left_out: usize,
    /// How GPUs were divided: from which time on, which GPU, into which slices.
    pub layouts: Vec<LayoutChange>,
    /// What happened, first things first; at most so many of a kind.
    pub happenings: Vec<Happening>,
    /// Pods that never started, in groups, with why not and what would help.
    pub waiting: Vec<Waiting>,
}

/// A run in a few numbers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// GPUs, averaged over time.
    pub gpus: f64,
    /// The part of GPUs that was handed out, averaged over time.
    pub allocated: f64,
    /// The part of GPUs that was busy, averaged over time.
    pub utilised: f64,
    /// The part of GPUs that was free but in pieces no typical pod can use, averaged over time.
    pub fragmented: f64,
    /// Requests that were served.
    pub requests: u64,
    /// Requests that arrived when no replica was ready, or beyond what replicas could ever catch up
    /// with.
    pub requests_lost: u64,
    /// The median latency of all requests.
    pub p50_us: u64,
    /// 99 of 100 requests took at most this.
    pub p99_us: u64,
    /// Times at which a service's p99 was above its objective for a while.
    pub breaches: u64,
    /// For how long, all services together.
    pub above_ms: i64,
    /// The part of the time of running GPU pods in which CPUs and GPU were near each other.
    pub aligned: f64,
    /// Pods that were created.
    pub pods: u64,
    /// Pods that started.
    pub started: u64,
    /// Pods that wait at the end.
    pub waiting: u64,
    /// Times a kubelet turned a pod down.
    pub rejections: u64,
    /// Pods evicted to make room.
    pub preemptions: u64,
    /// Pods that were stopped before they were done, for whatever reason, and jobs given up.
    pub lost: u64,
    /// Replicas moved so that more of the GPUs could be used.
    pub moves: u64,
    /// Times a container ended for lack of GPU memory.
    pub out_of_memory: u64,
    /// Work of pods with an end that was not in vain, in GPU hours.
    pub batch_gpu_hours: f64,
    /// Work of theirs that was lost when they were stopped.
    pub wasted_gpu_hours: f64,
    /// Jobs that are done.
    pub jobs: u64,
    /// All nodes, for as long as they were there.
    pub cost_microusd: i64,
    /// The part of it for GPUs that nobody had.
    pub idle_microusd: i64,
    /// What a million requests cost, of the GPUs that served them.
    pub microusd_per_million_requests: i64,
    /// The cost of all nodes for each hour of a busy GPU.
    pub microusd_per_busy_gpu_hour: i64,
    /// Decisions made.
    pub decisions: u64,
}

/// Numbers over time, each for one step.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    /// How long a step is. The first begins at 0.
    pub step_ms: i64,
    /// GPUs there were.
    pub gpus: Vec<f32>,
    /// GPUs that were handed out.
    pub allocated: Vec<f32>,
    /// GPUs that were busy.
    pub utilised: Vec<f32>,
    /// GPUs free in useless pieces.
    pub fragmented: Vec<f32>,
    /// Pods that waited.
    pub waiting: Vec<f32>,
    /// Rejections by kubelets.
    pub rejections: Vec<u32>,
    /// Preemptions.
    pub preemptions: Vec<u32>,
    /// The p99 of all requests; 0 where there were none.
    pub p99_us: Vec<u32>,
}

/// A service.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ServiceReport {
    /// Its number among the workloads.
    pub workload: usize,
    /// Requests that were served.
    pub requests: u64,
    /// Requests that were not.
    pub requests_lost: u64,
    /// The median latency.
    pub p50_us: u64,
    /// 99 of 100 took at most this.
    pub p99_us: u64,
    /// What p99 should be at most; 0 if nothing is promised.
    pub objective_us: u64,
    /// Times it was above that for a while.
    pub breaches: u64,
    /// For how long in all.
    pub above_ms: i64,
    /// Replicas that were ready, averaged over time.
    pub replicas: f64,
    /// The part of its replicas' time in which CPUs and GPU were near each other.
    pub aligned: f64,
    /// The p99 over time, by the steps of [`Series`]; 0 where there were no requests.
    pub p99_us_series: Vec<u32>,
}

/// A class of work.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClassReport {
    /// Its name.
    pub class: String,
    /// Pods that were created.
    pub pods: u64,
    /// Pods that started.
    pub started: u64,
    /// How long they waited, or have waited so far: the median.
    pub wait_p50_ms: i64,
    /// 90 of 100 waited at most so long.
    pub wait_p90_ms: i64,
    /// 99 of 100 waited at most so long.
    pub wait_p99_ms: i64,
    /// The longest that any of them waited, or waits.
    pub wait_max_ms: i64,
    /// How many were evicted.
    pub preempted: u64,
}

/// A team.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TeamReport {
    /// Its name; empty for pods of no team.
    pub team: String,
    /// GPUs it had, times hours.
    pub gpu_hours: f64,
    /// GPUs it kept busy, times hours.
    pub busy_gpu_hours: f64,
    /// What it had costs so much.
    pub cost_microusd: i64,
}

/// A pod on a node, from a time to a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stay {
    /// Which workload's pod, by number.
    pub workload: usize,
    /// The pod's number within the workload.
    pub pod: u64,
    /// Where, by number.
    pub node: usize,
    /// From when.
    pub from_ms: i64,
    /// Until when.
    pub to_ms: i64,
    /// What it has of which GPUs.
    pub gpus: Vec<GpuPart>,
    /// CPUs by NUMA node; empty if it is pinned to none.
    pub cpus: Vec<usize>,
    /// `None` without a GPU.
    pub alignment: Option<Alignment>,
}

/// A part of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuPart {
    /// The GPU, by number on its node.
    pub gpu: usize,
    /// The first of its units.
    pub first: u8,
    /// So many units.
    pub units: u8,
    /// The part of its compute, in thousandths.
    pub milli: u16,
}

/// A GPU is divided anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LayoutChange {
    /// From when.
    pub at_ms: i64,
    /// The node, by number.
    pub node: usize,
    /// The GPU, by number on its node.
    pub gpu: usize,
    /// Slices: profile, first unit, units. None: it is whole.
    pub slices: Vec<(String, u8, u8)>,
}

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Happening {
    /// When.
    pub at_ms: i64,
    /// `failure`, `recovery`, `breach`, `rejection`, `preemption`, `out-of-memory`, `provision`.
    pub kind: String,
    /// In words.
    pub text: String,
}

/// Pods that never started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The workload, by number.
    pub workload: usize,
    /// How many of its pods wait.
    pub pods: u64,
    /// Why, and what would help.
    pub why: String,
}
