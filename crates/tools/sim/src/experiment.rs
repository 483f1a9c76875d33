//! What is simulated: a cluster, the work that comes to it, what fails, and under which setups.
//!
//! Owns plain data, complete and in the model's terms. Must not know how it was written down, nor
//! what comes of it.

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
use serde::{Deserialize, Deserializer, de};

use crate::assumptions::Assumptions;
use crate::latency::Speed;
use crate::report::WorkloadOutline;

/// One cluster and its work, under several setups.
#[derive(Clone, Debug, Default)]
pub struct Experiment {
    /// What it is about.
    pub title: String,
    /// Some sentences about it.
    pub description: String,
    /// The same seed gives the same course of things.
    pub seed: u64,
    /// For how long.
    pub duration_ms: i64,
    /// The nodes there are from the beginning.
    pub nodes: Vec<NodeSetup>,
    /// Pools from which nodes are added when pods wait for them.
    pub pools: Vec<PoolSetup>,
    /// Everything else the engine is told at the beginning: priority classes, quotas, teams,
    /// headroom, pools and so on. Budgets are in `budgets`.
    pub objects: Vec<Event>,
    /// Disruption budgets; what is left of them is counted as pods come and go.
    pub budgets: Vec<Budget>,
    /// What makes pods.
    pub workloads: Vec<Workload>,
    /// What fails.
    pub failures: Vec<Failure>,
    /// What reservations for gangs may keep from other pods.
    pub reservations: ReservationBudget,
    /// Under which setups all of that happens.
    pub setups: Vec<Setup>,
    pub goals: Option<Goals>,
    /// What the figures rest on.
    pub assumptions: Assumptions,
}

/// What setups should reach, relative to one of them.
#[derive(Clone, Debug, PartialEq)]
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

/// A node, with its inside.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    /// The node. What it has of devices follows from `gpus`.
    pub node: Node,
    /// Sockets, NUMA nodes, CPUs, memory.
    pub machine: Arc<Machine>,
    /// How its kubelet is set up.
    pub kubelet: KubeletConfig,
    /// Its GPUs, and how they are divided.
    pub gpus: Vec<Gpu>,
    /// Under which names the device plugin offers them.
    pub naming: Naming,
    /// Which ones the plugin would rather hand out.
    pub preferred: PreferredAllocation,
    /// How those who share a GPU are kept apart.
    pub sharing: Isolation,
    /// What an hour costs.
    pub microusd_per_hour: i64,
}

/// How those who share a GPU, or a slice, are kept apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isolation {
    /// They take turns.
    #[default]
    TimeSliced,
    /// By MPS, each with a cap on its threads.
    MpsCapped,
    /// By MPS, without caps.
    MpsUncapped,
}

/// Nodes that can be added.
#[derive(Clone, Debug)]
pub struct PoolSetup {
    /// Its name.
    pub name: Arc<str>,
    /// What a new node looks like; its name gets a number.
    pub template: NodeSetup,
    /// How many can be added.
    pub growth: u32,
    /// How long it takes from the wish to a node that is ready.
    pub provision_ms: i64,
    /// A node without pods of interest is given back after so long; `None`: never.
    pub idle_ms: Option<i64>,
}

/// A disruption budget.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Which pods it protects.
    pub selector: Selector,
    /// How many of them must, or need not, be there.
    pub bound: BudgetBound,
}

/// What a budget insists on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetBound {
    /// So many at least.
    MinAvailable(Amount),
    /// So many may lack.
    MaxUnavailable(Amount),
}

/// A number, or a part of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many.
    Count(u32),
    /// So many of a hundred, rounded up.
    Percent(u32),
}

impl Amount {
    /// How many of `all` that is.
    pub fn of(self, all: u32) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Percent(percent) => (u64::from(all) * u64::from(percent)).div_ceil(100) as u32,
        }
    }
}

/// Something that makes pods.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What it is.
    pub outline: WorkloadOutline,
    /// GPU memory that each of its pods really needs on each of its GPUs, whatever it asks for;
    /// 0: any will do. With less, its container ends at once.
    pub gpu_memory_bytes: u64,
    /// The part of each GPU's compute it uses while it is busy, in thousandths of the whole GPU.
    pub busy_milli: u32,
    /// How long it takes to load the model before it does anything useful.
    pub load_ms: i64,
    /// How its pods come and go.
    pub kind: WorkloadKind,
}

/// How pods come and go.
#[derive(Clone, Debug)]
pub enum WorkloadKind {
    /// So many replicas, kept alive.
    Service(Service),
    /// Pods that end, or never do, each with its own time of arrival.
    Jobs(Vec<Job>),
    /// One on every node that takes it.
    Daemon(Arc<PodSpec>),
}

/// Replicas, and what they serve.
#[derive(Clone, Debug)]
pub struct Service {
    /// What its pods are made from.
    pub template: Arc<PodSpec>,
    /// How many there are to be, from which time on; in order of time.
    pub replicas: Vec<(i64, u32)>,
    /// Whether the number follows the load instead.
    pub autoscale: Option<Autoscale>,
    /// Requests that come; `None`: nobody counts them.
    pub load: Option<Load>,
    /// How fast a replica is when nothing is in its way.
    pub speed: Speed,
    /// What its p99 should be at most; 0: nothing is promised.
    pub objective_us: u64,
}

/// Replicas that follow the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autoscale {
    /// At least so many.
    pub min: u32,
    /// At most so many.
    pub max: u32,
    /// As many as keep a replica this busy, in thousandths of what it can do.
    pub target_milli: u32,
}

/// Requests over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// How long each entry counts.
    pub step_ms: i64,
    /// Requests per second. After the last entry it begins anew.
    pub per_s: Arc<[f32]>,
    /// How much work a request is, relative to the usual; empty: always the usual.
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

/// Pods that belong together and end.
#[derive(Clone, Debug)]
pub struct Job {
    /// When it comes.
    pub at_ms: i64,
    /// What its pods are made from.
    pub template: Arc<PodSpec>,
    /// So many have to succeed.
    pub completions: u32,
    /// So many run at a time.
    pub parallelism: u32,
    /// How long each runs; `None`: for ever.
    pub duration_ms: Option<i64>,
    /// How many pods may fail before it is given up.
    pub retries: u32,
    /// It is given up so long after it came.
    pub deadline_ms: Option<i64>,
    /// A pod that was stopped has lost what it did since the last multiple of this; 0: everything.
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

/// What fails; exactly one field. To add a failure type, add a variant here and its effect in
/// `world/failures.rs`.
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

/// A way to run the same cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Its name.
    pub name: String,
    /// Whose rules the scheduler follows.
    pub profile: Profile,
    /// How kubelets are set up.
    pub kubelet: KubeletPolicy,
    /// How GPUs are divided.
    pub division: Division,
    /// Whether replicas are moved so that more of the GPUs can be used; Berth only.
    pub consolidation: Option<Consolidation>,
}

/// Proposals of the engine are carried out. Only replicas are moved, which lose no work, and only as
/// far as disruption budgets allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consolidation {
    /// How often it is asked.
    pub every_ms: i64,
    /// So many moves at a time.
    pub moves_max: usize,
    /// So much more must be usable after each, in millionths of a GPU.
    pub gain_min_micro: i64,
}

/// How kubelets are set up, other than the nodes say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubeletPolicy {
    /// As the nodes say.
    #[default]
    AsDescribed,
    /// As Kubernetes ships it: nothing is pinned, nothing is aligned.
    Defaults,
    /// As the nodes say, but with this topology policy.
    Topology(TopologyPolicy),
}

/// How GPUs are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Division {
    /// As the nodes say.
    #[default]
    AsDescribed,
    /// Not at all: whoever needs a part or a slice gets a whole GPU.
    Whole,
}
