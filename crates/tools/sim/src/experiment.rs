//! What is simulated: a cluster, its workloads, failures, and the setups to compare.

use std::sync::Arc;

use berth_engine::Profile;
use berth_engine::config::ReservationBudget;
use berth_engine::event::Event;
use berth_kubelet::{KubeletConfig, TopologyPolicy};
use berth_model::device::PreferredAllocation;
use berth_model::gpu::{Gpu, Naming};
use berth_model::label::Selector;
use berth_model::machine::Machine;
use berth_model::node::Node;
use berth_model::spec::PodSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::assumptions::Assumptions;
use crate::latency::Speed;
use crate::report::WorkloadOutline;

#[derive(Clone, Debug, Default)]
pub struct Experiment {
    pub title: String,
    pub description: String,
    /// The same seed gives the same report.
    pub seed: u64,
    pub duration_ms: i64,
    /// Nodes at the start.
    pub nodes: Vec<NodeSetup>,
    /// Pools from which nodes are added for pending pods.
    pub pools: Vec<PoolSetup>,
    /// Everything else for the engine at the start: priority classes, quotas, teams, headroom, pools
    /// and so on, but no disruption budgets.
    pub objects: Vec<Event>,
    /// Their remaining disruptions are computed as pods come and go.
    pub budgets: Vec<Budget>,
    pub workloads: Vec<Workload>,
    pub failures: Vec<Failure>,
    pub reservations: ReservationBudget,
    pub setups: Vec<Setup>,
    pub goals: Option<Goals>,
    pub assumptions: Assumptions,
}

/// What setups should reach, relative to one of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goals {
    /// The setup to compare with, by position.
    pub against: usize,
    /// Of the p99 latency, as a fraction.
    pub p99_reduction: Option<f64>,
    /// Of the busy share of GPUs, relative to that setup's.
    pub utilisation_gain: Option<f64>,
    /// At most so many breached objectives.
    pub breaches: Option<u64>,
    /// Whether to search the fewest nodes on which other setups do the same work.
    pub fewest_nodes: bool,
}

/// A node with its topology.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    /// Its allocatable devices follow from `gpus`.
    pub node: Node,
    pub machine: Arc<Machine>,
    pub kubelet: KubeletConfig,
    /// With their MIG layouts and replicas.
    pub gpus: Vec<Gpu>,
    pub naming: Naming,
    pub preferred: PreferredAllocation,
    pub sharing: Isolation,
    pub microusd_per_hour: i64,
}

/// How pods that share a GPU or a slice are isolated from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isolation {
    #[default]
    TimeSliced,
    /// MPS with thread limits.
    MpsCapped,
    /// MPS without thread limits.
    MpsUncapped,
}

#[derive(Clone, Debug)]
pub struct PoolSetup {
    pub name: Arc<str>,
    /// A new node; it gets a name of its own.
    pub template: NodeSetup,
    /// Maximum number of additional nodes.
    pub growth: u32,
    /// Time from the request for a node until it is ready.
    pub provision_ms: i64,
    /// A node without pods (except DaemonSets) is removed after this time; `None`: never.
    pub idle_ms: Option<i64>,
}

#[derive(Clone, Debug)]
pub struct Budget {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub selector: Selector,
    pub bound: BudgetBound,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetBound {
    MinAvailable(Amount),
    MaxUnavailable(Amount),
}

/// A number of pods, or a percentage of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Count(u32),
    /// Rounded up, as Kubernetes does.
    Percent(u32),
}

impl Amount {
    pub fn of(self, all: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => (u64::from(all) * u64::from(percent)).div_ceil(100) as u32,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Workload {
    pub outline: WorkloadOutline,
    /// GPU memory that each pod really needs on each of its GPUs, whatever it requests. With less, its
    /// container is killed. 0: no minimum.
    pub gpu_memory_bytes: u64,
    /// Compute that a pod uses of each GPU while it is busy, in thousandths of a whole GPU.
    pub busy_milli: u32,
    /// Time to load the model after the container has started.
    pub load_ms: i64,
    pub kind: WorkloadKind,
}

#[derive(Clone, Debug)]
pub enum WorkloadKind {
    /// Replicas that are replaced when they fail.
    Service(Service),
    /// Each with its own arrival time.
    Jobs(Vec<Job>),
    /// One pod on every matching node.
    Daemon(Arc<PodSpec>),
}

#[derive(Clone, Debug)]
pub struct Service {
    pub template: Arc<PodSpec>,
    /// Start time and number, in order of time.
    pub replicas: Vec<(i64, u32)>,
    /// Overrides `replicas`.
    pub autoscale: Option<Autoscale>,
    pub load: Option<Load>,
    /// Service time of an aligned replica without neighbours.
    pub speed: Speed,
    /// Maximum p99; 0: no objective.
    pub objective_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autoscale {
    pub min: u32,
    pub max: u32,
    /// Target load of a replica, in thousandths of its capacity.
    pub target_milli: u32,
}

/// Requests over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub step_ms: i64,
    /// Requests per second by step; repeats after the last entry.
    pub per_s: Arc<[f32]>,
    /// Work per request relative to the service's speed, by step; empty: always 1.
    pub weight: Arc<[f32]>,
}

impl Load {
    /// Requests per second and their weight at a time.
    pub fn at(&self, now_ms: i64) -> (f64, f64) {
        let step = (now_ms.max(0) / self.step_ms.max(1)) as usize;
        let of = |list: &[f32], otherwise: f32| {
            f64::from(list.get(step % list.len().max(1)).copied().unwrap_or(otherwise))
        };
        (of(&self.per_s, 0.0).max(0.0), of(&self.weight, 1.0).max(0.0))
    }
}

#[derive(Clone, Debug)]
pub struct Job {
    /// Arrival.
    pub at_ms: i64,
    pub template: Arc<PodSpec>,
    /// Pods that have to succeed.
    pub completions: u32,
    pub parallelism: u32,
    /// Run time of each pod; `None`: unlimited.
    pub duration_ms: Option<i64>,
    /// Pods that may fail before the job fails.
    pub retries: u32,
    /// Time after the arrival at which the job fails.
    pub deadline_ms: Option<i64>,
    /// A stopped pod loses its work since the last multiple of this; 0: all of its work.
    pub checkpoint_ms: i64,
}

/// A fault that begins at some time.
#[derive(Clone, Debug)]
pub struct Failure {
    pub at_ms: i64,
    /// `None`: a device plugin is back after the assumed time; everything else never recovers.
    pub for_ms: Option<i64>,
    pub fault: Fault,
}

/// What fails; exactly one field.
// To add a failure type, add a variant here and its effect in `world/failures.rs`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// Name of a node that is lost with everything on it. It comes back empty.
    NodeLoss(Arc<str>),
    /// Name of a zone of which all nodes are lost.
    ZoneLoss(Arc<str>),
    /// Name of a node whose kubelet restarts. It rejects GPU pods until its device plugin is back.
    KubeletRestart(Arc<str>),
    /// New nodes of a pool take longer.
    SlowProvisioning {
        /// Name of the pool.
        pool: Arc<str>,
        /// Factor for the time until a new node is ready.
        #[serde(deserialize_with = "factor")]
        factor: f64,
    },
}

/// What a fault names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    Node(&'a Arc<str>),
    Zone(&'a Arc<str>),
    Pool(&'a Arc<str>),
}

impl Fault {
    pub fn subject(&self) -> Subject<'_> {
        match self {
            Self::NodeLoss(node) | Self::KubeletRestart(node) => Subject::Node(node),
            Self::ZoneLoss(zone) => Subject::Zone(zone),
            Self::SlowProvisioning { pool, .. } => Subject::Pool(pool),
        }
    }
}

fn factor<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let factor = f64::deserialize(from)?;
    if (0.0..=1e6).contains(&factor) {
        Ok(factor)
    } else {
        Err(de::Error::custom(format!("{factor} is out of range; write 0 to 1000000")))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    pub name: String,
    pub profile: Profile,
    pub kubelet: KubeletPolicy,
    pub division: Division,
    /// Only with the profile `berth`.
    pub consolidation: Option<Consolidation>,
}

/// Moves replicas so that more of the GPUs can be used, as the engine proposes and disruption budgets
/// allow. Replicas lose no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consolidation {
    pub every_ms: i64,
    /// Per interval.
    pub moves_max: usize,
    /// Minimum gain of a move, in millionths of a GPU.
    pub gain_min_micro: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubeletPolicy {
    #[default]
    AsDescribed,
    /// Kubernetes' defaults: nothing is pinned or aligned.
    Defaults,
    /// As described, but with this topology policy.
    Topology(TopologyPolicy),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Division {
    #[default]
    AsDescribed,
    /// Whole GPUs only: a pod that needs a part gets a whole one.
    Whole,
}
