//! The scenario format: `apiVersion: berth.dev/v1alpha1`, `kind: Scenario`.
//!
//! Documentation comments of this file are the descriptions in the JSON Schema and in the reference
//! page. Teams, headroom and what pools are for are written as objects of their own (`kind: Team`,
//! `Headroom`, `Pool`), beside the scenario or in its manifests.

use std::collections::BTreeMap;

use berth_sim::experiment::Fault;
use schemars::JsonSchema;
use serde::Deserialize;

use super::units::{Bytes, Fraction, Time};

pub const API_VERSION: &str = "berth.dev/v1alpha1";
pub const KIND: &str = "Scenario";

/// A cluster, its workloads, and the schedulers to compare on them, for `berth sim`. Teams, headroom
/// and what pools are for are written as Team, Headroom and Pool objects, in the same file or in the
/// manifests.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["apiVersion", "kind", "spec"]))]
pub(crate) struct Scenario {
    /// `berth.dev/v1alpha1`.
    #[schemars(extend("const" = API_VERSION))]
    pub(crate) api_version: String,
    /// `Scenario`.
    #[schemars(extend("const" = KIND))]
    pub(crate) kind: String,
    pub(crate) metadata: Metadata,
    pub(crate) spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Metadata {
    /// The title of the report if `spec.title` is empty.
    pub(crate) name: String,
}

/// What is simulated.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    /// Title of the report.
    pub(crate) title: String,
    /// A few sentences for the report.
    pub(crate) description: String,
    /// Seed of all random draws. The same seed gives the same report on every machine.
    pub(crate) seed: u64,
    /// How much time is simulated. Required by `berth sim`.
    pub(crate) duration: Time,
    pub(crate) cluster: Cluster,
    /// Files and directories with Kubernetes objects, relative to the scenario's file. Objects in the
    /// same file as the scenario count, too.
    pub(crate) manifests: Vec<String>,
    /// What the workloads of the manifests do. If several entries match a workload, the last one
    /// counts.
    pub(crate) behaviour: Vec<Behaviour>,
    /// When copies of Jobs and Pods are created. A workload that no entry names is created once, at
    /// the start.
    pub(crate) arrivals: Vec<Arrivals>,
    /// What fails and when.
    pub(crate) failures: Vec<Failure>,
    /// Workload class (`interactive`, `embedding`, `batch` or `experimentation`) by name of the
    /// PriorityClass, for pods without the label `berth.dev/class`. The same as `--workload-class` of
    /// `berth serve`.
    pub(crate) workload_classes: BTreeMap<String, String>,
    /// Budget of node reservations for gangs.
    pub(crate) reservations: Reservations,
    /// The setups to compare. Default: kube-scheduler and Berth on the cluster as described.
    pub(crate) compare: Vec<Setup>,
    pub(crate) goals: Option<Goals>,
    /// Replacements for numbers that Berth assumes. The report lists all of them with their sources.
    pub(crate) assumptions: Assumptions,
}

/// The nodes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Cluster {
    /// Groups of identical nodes.
    pub(crate) pools: Vec<NodePool>,
    /// Files and directories with Node, NodeResourceTopology and NodePool objects, relative to the
    /// scenario's file.
    pub(crate) manifests: Vec<String>,
}

/// Identical nodes. A Pool object of the same name says for which classes of work they are.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["name"]))]
pub(crate) struct NodePool {
    /// Name of the pool; its nodes are called NAME-0, NAME-1 and so on.
    pub(crate) name: String,
    /// Number of nodes at the start.
    pub(crate) count: usize,
    /// Zones of the nodes, in turn.
    pub(crate) zones: Vec<String>,
    pub(crate) machine: Machine,
    pub(crate) gpus: Option<Gpus>,
    pub(crate) kubelet: Kubelet,
    /// Node labels. Labels of GPU feature discovery are added. `karpenter.sh/capacity-type: spot` makes
    /// spot nodes.
    pub(crate) labels: BTreeMap<String, String>,
    /// Taints as `kubectl taint` takes them: `key=value:Effect`.
    pub(crate) taints: Vec<String>,
    /// Price of one node in dollars. Default: list prices of its GPUs.
    pub(crate) price_per_hour: Option<f64>,
    /// Names of models whose weights the nodes already hold (annotation `berth.dev/models`).
    pub(crate) models: Vec<String>,
    pub(crate) grow: Option<Grow>,
}

/// CPUs and memory of a node. Default: 2 sockets with 32 cores, 64 threads and 512Gi each.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Machine {
    pub(crate) sockets: usize,
    pub(crate) numa_per_socket: usize,
    pub(crate) cores_per_numa: usize,
    pub(crate) threads_per_core: usize,
    /// Memory of each NUMA node. Default: 512Gi.
    pub(crate) memory_per_numa: Bytes,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            sockets: 2,
            numa_per_socket: 1,
            cores_per_numa: 32,
            threads_per_core: 2,
            memory_per_numa: Bytes(512 << 30),
        }
    }
}

/// GPUs of a node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["product", "count"]))]
pub(crate) struct Gpus {
    /// Product as in the label `nvidia.com/gpu.product`.
    pub(crate) product: String,
    pub(crate) count: usize,
    /// Memory of each GPU. Default: that of the product, if Berth knows it.
    pub(crate) memory: Option<Bytes>,
    /// MIG layout of each GPU, in order: `whole`, profiles such as `7x1g.10gb`, or placements such as
    /// `4g.40gb@0 + 3g.40gb@4`. GPUs beyond the list are whole.
    pub(crate) mig: Vec<String>,
    /// NUMA node of each GPU, in order. Default: spread evenly.
    pub(crate) numa: Vec<usize>,
    pub(crate) sharing: Option<GpuSharing>,
}

/// How pods share whole GPUs.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GpuSharing {
    pub(crate) method: SharingMethod,
    /// Pods per GPU. Default for `shares`: as many as fit.
    pub(crate) replicas: Option<u16>,
}

/// How a GPU is shared.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SharingMethod {
    /// Replicas of the device plugin; pods take turns.
    TimeSlicing,
    /// Replicas under MPS, with limits on threads and memory.
    Mps,
    /// Replicas under MPS without limits.
    MpsUncapped,
    /// Berth divides GPUs on demand under MPS, with limits on threads and memory.
    Shares,
}

/// Kubelet configuration. The defaults are what Berth recommends for GPU nodes.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Kubelet {
    /// `none`, `best-effort`, `restricted` or `single-numa-node`.
    pub(crate) topology_policy: String,
    /// `container` or `pod`.
    pub(crate) topology_scope: String,
    pub(crate) cpu_manager: Manager,
    pub(crate) memory_manager: Manager,
    /// CPU manager options, such as `full-pcpus-only`.
    pub(crate) cpu_options: Vec<String>,
    /// CPUs that are reserved for the system.
    pub(crate) reserved_cpus: usize,
    /// Memory that is reserved for the system. Default: 4Gi.
    pub(crate) reserved_memory: Bytes,
}

/// Policy of the CPU manager or the memory manager.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Manager {
    None,
    Static,
}

impl Default for Kubelet {
    fn default() -> Self {
        Self {
            topology_policy: "single-numa-node".to_owned(),
            topology_scope: "pod".to_owned(),
            cpu_manager: Manager::Static,
            memory_manager: Manager::Static,
            cpu_options: Vec::new(),
            reserved_cpus: 2,
            reserved_memory: Bytes(4 << 30),
        }
    }
}

/// How a pool grows when pending pods would fit on a new node.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Grow {
    /// Maximum number of additional nodes.
    pub(crate) max: u32,
    /// Time from the request for a node until it is ready.
    pub(crate) provision: Time,
    /// An added node without pods is removed after this time. Default: never.
    pub(crate) idle: Option<Time>,
}

/// What a workload of the manifests does when it runs.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["workload"]))]
pub(crate) struct Behaviour {
    /// NAMESPACE/NAME of a workload; a trailing `*` matches any rest.
    pub(crate) workload: String,
    pub(crate) load: Option<Load>,
    pub(crate) latency: Option<Latency>,
    /// Latency objective: the maximum p99.
    pub(crate) objective: Option<Time>,
    /// Time to load the model after the container has started.
    pub(crate) model_load: Option<Time>,
    /// GPU memory that each pod really needs on each of its GPUs. With less, its container is killed.
    pub(crate) gpu_memory: Option<Bytes>,
    /// Share of a whole GPU's compute that a pod uses while it is busy. Default: 100%, and for replicas
    /// what they request.
    pub(crate) busy: Option<Fraction>,
    pub(crate) autoscale: Option<Autoscale>,
    /// Number of replicas over time; overrides `spec.replicas` of the manifest.
    pub(crate) replicas: Vec<Replicas>,
    /// How long a pod of a Job runs. Default: p50 1h, p90 4h.
    pub(crate) duration: Option<Duration>,
    /// Interval of checkpoints. A pod that is stopped loses its work since the last one. Default: it
    /// loses everything.
    pub(crate) checkpoint: Option<Time>,
}

/// Requests to a service.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Load {
    /// Requests per second at the peak.
    pub(crate) per_second: Option<f64>,
    pub(crate) rhythm: Option<Rhythm>,
    /// Standard deviation of the load, relative to the load.
    pub(crate) noise: Option<Fraction>,
    /// Changes of the peak load over time.
    pub(crate) steps: Vec<LoadStep>,
    /// A file with requests or rates, relative to the scenario's file, instead of the fields above.
    pub(crate) trace: Option<String>,
    /// Factor for the load of the trace.
    pub(crate) scale: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoadStep {
    /// Time since the start.
    pub(crate) at: Time,
    /// Requests per second at the peak from then on.
    pub(crate) per_second: f64,
}

/// Daily and weekly rhythm. The first day is a Monday.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Rhythm {
    /// Load at the quietest hour, relative to the peak. Default: 100%.
    pub(crate) trough: Fraction,
    /// Hour of the day with the highest load.
    pub(crate) peak_hour: f64,
    /// Load on weekends, relative to other days. Default: 100%.
    pub(crate) weekend: Fraction,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self { trough: Fraction(1.0), peak_hour: 12.0, weekend: Fraction(1.0) }
    }
}

/// Service time of a request on an aligned replica without neighbours.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Latency {
    pub(crate) mean: Option<Time>,
    /// Default: twice the mean.
    pub(crate) p99: Option<Time>,
    /// For traces with tokens: time per input token.
    pub(crate) per_input_token: Option<Time>,
    /// For traces with tokens: time per output token.
    pub(crate) per_output_token: Option<Time>,
    /// Requests that a replica serves concurrently.
    pub(crate) slots: Option<u32>,
}

/// Replicas that follow the load.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Autoscale {
    pub(crate) min: u32,
    pub(crate) max: u32,
    /// Target load of a replica, relative to its capacity.
    pub(crate) target: Fraction,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub(crate) struct Replicas {
    /// Time since the start.
    pub(crate) at: Time,
    /// Number of replicas from then on.
    pub(crate) count: u32,
}

/// A run time: `fixed`, or exponential with `mean`, or log-normal with `p50` and `p90`.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Duration {
    pub(crate) fixed: Option<Time>,
    pub(crate) mean: Option<Time>,
    pub(crate) p50: Option<Time>,
    pub(crate) p90: Option<Time>,
}

/// When copies of a Job or Pod are created: at given times, periodically, at random, or as in a trace.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Arrivals {
    /// NAMESPACE/NAME of a Job or Pod; a trailing `*` matches any rest.
    pub(crate) workload: String,
    /// Times since the start.
    pub(crate) at: Vec<Time>,
    /// Interval between arrivals.
    pub(crate) every: Option<Time>,
    /// Instead of a workload: a file of pods with the columns of Alibaba's openb trace, relative to the
    /// scenario's file.
    pub(crate) trace: Option<String>,
    /// Copies of each pod of the trace.
    pub(crate) copies: Option<u32>,
    /// Average random arrivals per hour, at the peak of the rhythm.
    pub(crate) per_hour: Option<f64>,
    pub(crate) rhythm: Option<Rhythm>,
    /// Start of the arrivals.
    pub(crate) from: Time,
    /// End of the arrivals. Default: the end of the simulation.
    pub(crate) until: Option<Time>,
}

/// Something that fails.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(crate) struct Failure {
    /// Time since the start.
    pub(crate) at: Time,
    /// Duration. Default: a kubelet's device plugin is back after the assumed time; everything else
    /// never recovers.
    pub(crate) r#for: Option<Time>,
    pub(crate) fault: Fault,
}

/// What reservations for gangs may keep from other pods, as `--reservation-max-ms`,
/// `--reservation-share` and `--reservation-time` of `berth serve`.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Reservations {
    /// Maximum duration of a reservation; the annotation `berth.dev/gang-timeout` can only shorten it.
    /// Default: 10m.
    pub(crate) max: Option<Time>,
    /// Maximum share of the GPUs of each model (nodes without GPUs: of those nodes); 0% disables
    /// reservations. Default: 25%.
    pub(crate) share: Option<Fraction>,
    /// Maximum share of time for the gangs of one team, or of one namespace without a team. Default: 25%.
    pub(crate) time: Option<Fraction>,
}

/// A way to run the cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Setup {
    pub(crate) name: String,
    pub(crate) scheduler: Scheduler,
    /// Kubelet configuration: `as-described` (default), `defaults` (Kubernetes' defaults: nothing is
    /// pinned or aligned), or a topology policy.
    pub(crate) kubelet: Option<String>,
    pub(crate) gpus: GpuUse,
    pub(crate) consolidate: Option<Consolidate>,
}

/// What the other setups should reach, relative to one of the setups. The report compares.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Goals {
    /// Name of the setup to compare with.
    pub(crate) against: String,
    /// Reduction of the p99 latency.
    pub(crate) p99_reduction: Option<Fraction>,
    /// Gain of GPU utilisation, relative to that setup's.
    pub(crate) utilisation_gain: Option<Fraction>,
    /// Maximum number of objective breaches.
    pub(crate) breaches: Option<u64>,
    /// Also search the fewest nodes on which the other setups do the same work: at least as many batch
    /// GPU hours and no more lost requests than that setup on all nodes, and no more than `breaches`
    /// (default 0). Simulates each candidate; nodes that a failure names are kept.
    #[serde(default)]
    pub(crate) fewest_nodes: bool,
}

/// Move replicas so that more of the GPUs can be used. Only with `scheduler: berth`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub(crate) struct Consolidate {
    /// Interval; at least 1m.
    pub(crate) every: Time,
    /// Maximum number of moves per interval.
    pub(crate) moves: usize,
    /// Minimum gain of a move, relative to one GPU.
    pub(crate) gain: Fraction,
}

/// The scheduler.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scheduler {
    /// Berth.
    #[default]
    Berth,
    /// kube-scheduler with its default plugins.
    #[serde(rename = "kube-scheduler")]
    Kube,
    /// kube-scheduler that packs GPUs (`MostAllocated`).
    #[serde(rename = "kube-scheduler-packing")]
    KubePacking,
}

/// Which GPUs pods can get.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GpuUse {
    /// Whole GPUs, slices and shares, as the nodes are described.
    #[default]
    AsDescribed,
    /// Whole GPUs only; a pod that needs a part gets a whole one.
    Whole,
}

/// Replacements for assumed numbers.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Assumptions {
    /// CPUs or memory on another NUMA node than the GPU.
    pub(crate) misaligned: Option<Slowdown>,
    /// Time-sliced GPU with one busy neighbour.
    pub(crate) time_sliced: Option<Slowdown>,
    /// Time-sliced GPU with two or more busy neighbours.
    pub(crate) time_sliced_more: Option<Slowdown>,
    /// MPS without busy neighbours.
    pub(crate) mps_alone: Option<Slowdown>,
    /// MPS with thread limits and a busy neighbour.
    pub(crate) mps_capped: Option<Slowdown>,
    /// MPS without thread limits and with a busy neighbour.
    pub(crate) mps_uncapped: Option<Slowdown>,
    /// Time from a binding until the container runs.
    pub(crate) start: Option<Time>,
    /// Termination grace period.
    pub(crate) grace: Option<Time>,
    /// Delay until a controller replaces a failed pod; doubles with each failure in a row.
    pub(crate) replace: Option<Time>,
    /// Maximum of that delay.
    pub(crate) replace_max: Option<Time>,
    /// Time until a lost node is marked unreachable.
    pub(crate) unreachable: Option<Time>,
    /// Time from then until its pods are replaced.
    pub(crate) evict: Option<Time>,
    /// Time without device plugin after a kubelet restart.
    pub(crate) plugin_gap: Option<Time>,
    /// Time after which clients give up.
    pub(crate) timeout: Option<Time>,
    /// Interval at which load is evaluated; at least 1s.
    pub(crate) window: Option<Time>,
    /// Time above the objective that counts as a breach.
    pub(crate) breach: Option<Time>,
    /// Time for which surplus replicas are kept.
    pub(crate) scale_down: Option<Time>,
}

/// Factors for the mean and the p99 of the service time.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub(crate) struct Slowdown {
    pub(crate) mean: f64,
    pub(crate) p99: f64,
}
