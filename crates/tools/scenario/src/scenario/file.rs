//! A scenario as it is written: `apiVersion: berth.dev/v1alpha1`, `kind: Scenario`.
//!
//! Owns the fields and their defaults. Must not know what comes of them.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::units::{Bytes, Part, Time};

/// The version of the API.
pub const API_VERSION: &str = "berth.dev/v1alpha1";
/// The kind.
pub const KIND: &str = "Scenario";

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Scenario {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) metadata: Metadata,
    pub(crate) spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Metadata {
    pub(crate) name: String,
}

/// What is simulated.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    pub(crate) title: String,
    pub(crate) description: String,
    pub(crate) seed: u64,
    pub(crate) duration: Time,
    pub(crate) cluster: Cluster,
    /// Files and directories, relative to the scenario's own.
    pub(crate) manifests: Vec<String>,
    pub(crate) behaviour: Vec<Behaviour>,
    pub(crate) arrivals: Vec<Arrivals>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) headroom: Vec<Headroom>,
    pub(crate) teams: Vec<Team>,
    /// The workload class of pods with a PriorityClass.
    pub(crate) workload_classes: BTreeMap<String, String>,
    pub(crate) compare: Vec<Setup>,
    pub(crate) assumptions: Assumptions,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Cluster {
    pub(crate) pools: Vec<Pool>,
    /// Files and directories with Node and NodeResourceTopology objects.
    pub(crate) manifests: Vec<String>,
}

/// Nodes that are alike.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) count: usize,
    pub(crate) zones: Vec<String>,
    pub(crate) machine: Machine,
    pub(crate) gpus: Option<Gpus>,
    pub(crate) kubelet: Kubelet,
    pub(crate) labels: BTreeMap<String, String>,
    /// `key=value:Effect`, as `kubectl taint` writes them.
    pub(crate) taints: Vec<String>,
    /// Dollars for a node.
    pub(crate) price_per_hour: Option<f64>,
    pub(crate) capacity: Option<Capacity>,
    /// Which classes of work it is for; others may use what is left.
    pub(crate) classes: Vec<String>,
    /// Others may not.
    pub(crate) only: bool,
    /// Models its nodes hold.
    pub(crate) models: Vec<String>,
    pub(crate) grow: Option<Grow>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Capacity {
    OnDemand,
    Spot,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Machine {
    pub(crate) sockets: usize,
    pub(crate) numa_per_socket: usize,
    pub(crate) cores_per_numa: usize,
    pub(crate) threads_per_core: usize,
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

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Gpus {
    pub(crate) product: String,
    pub(crate) count: usize,
    /// Of each; by default what the product has.
    pub(crate) memory: Option<Bytes>,
    /// How each GPU is divided, in order: `whole`, `7x1g.10gb`, `4g.40gb@0 + 3g.40gb@4`.
    pub(crate) mig: Vec<String>,
    /// NUMA nodes of the GPUs, in order; by default they are spread evenly.
    pub(crate) numa: Vec<usize>,
    pub(crate) sharing: Option<Sharing>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sharing {
    pub(crate) method: SharingMethod,
    /// How many share each GPU; by shares of any size, if nothing is said.
    pub(crate) replicas: Option<u16>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SharingMethod {
    TimeSlicing,
    Mps,
    MpsUncapped,
    /// Berth divides GPUs on demand, by MPS with caps.
    Shares,
}

/// How kubelets are set up. By default as Berth recommends it for GPU nodes.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Kubelet {
    pub(crate) topology_policy: String,
    pub(crate) topology_scope: String,
    pub(crate) cpu_manager: Manager,
    pub(crate) memory_manager: Manager,
    pub(crate) cpu_options: Vec<String>,
    pub(crate) reserved_cpus: usize,
    pub(crate) reserved_memory: Bytes,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
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

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Grow {
    pub(crate) max: u32,
    pub(crate) provision: Time,
    /// Idle nodes that were added are given back after this.
    pub(crate) idle: Option<Time>,
}

/// What a workload of the manifests does when it runs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Behaviour {
    /// `namespace/name`; a `*` at the end stands for anything.
    pub(crate) workload: String,
    pub(crate) load: Option<Load>,
    pub(crate) latency: Option<Latency>,
    /// What p99 should be at most.
    pub(crate) objective: Option<Time>,
    pub(crate) model_load: Option<Time>,
    /// GPU memory that it really needs.
    pub(crate) gpu_memory: Option<Bytes>,
    /// The part of a whole GPU that it uses while it is busy.
    pub(crate) busy: Option<Part>,
    pub(crate) autoscale: Option<Autoscale>,
    /// From when there are so many replicas.
    pub(crate) replicas: Vec<Replicas>,
    pub(crate) duration: Option<Duration>,
    pub(crate) checkpoint: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Load {
    /// Requests per second, at the peak.
    pub(crate) per_second: Option<f64>,
    pub(crate) rhythm: Option<Rhythm>,
    /// One standard deviation, as a part of the load.
    pub(crate) noise: Option<Part>,
    /// Other requests per second, from a time on.
    pub(crate) steps: Vec<LoadStep>,
    /// A file of requests or rates, relative to the scenario's own.
    pub(crate) trace: Option<String>,
    /// The trace's load times this.
    pub(crate) scale: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoadStep {
    pub(crate) at: Time,
    pub(crate) per_second: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Rhythm {
    pub(crate) trough: Part,
    pub(crate) peak_hour: f64,
    pub(crate) weekend: Part,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self { trough: Part(1.0), peak_hour: 12.0, weekend: Part(1.0) }
    }
}

/// How long a request takes, by itself or, for a trace that tells them, by its tokens.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Latency {
    pub(crate) mean: Option<Time>,
    pub(crate) p99: Option<Time>,
    pub(crate) per_input_token: Option<Time>,
    pub(crate) per_output_token: Option<Time>,
    /// Requests that are served at a time.
    pub(crate) slots: Option<u32>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Autoscale {
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) target: Part,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Replicas {
    pub(crate) at: Time,
    pub(crate) count: u32,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Duration {
    pub(crate) fixed: Option<Time>,
    pub(crate) mean: Option<Time>,
    pub(crate) p50: Option<Time>,
    pub(crate) p90: Option<Time>,
}

/// When copies of a workload come.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Arrivals {
    /// `namespace/name` of a Job or Pod.
    pub(crate) workload: String,
    pub(crate) at: Vec<Time>,
    pub(crate) every: Option<Time>,
    /// Pods of a trace instead, with openb's columns, as they came and went.
    pub(crate) trace: Option<String>,
    /// How often each of them comes.
    pub(crate) copies: Option<u32>,
    /// So many an hour on average, at the peak, at random.
    pub(crate) per_hour: Option<f64>,
    pub(crate) rhythm: Option<Rhythm>,
    pub(crate) from: Time,
    pub(crate) until: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Failure {
    pub(crate) at: Time,
    pub(crate) r#for: Option<Time>,
    pub(crate) node: Option<String>,
    pub(crate) zone: Option<String>,
    pub(crate) kubelet: Option<String>,
    pub(crate) provisioning: Option<String>,
    /// How much longer new nodes take.
    pub(crate) factor: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Headroom {
    pub(crate) name: String,
    /// What is to fit: one more pod of `namespace/name`.
    pub(crate) workload: String,
    pub(crate) count: u32,
    /// For which class; by default that of the workload.
    pub(crate) class: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Team {
    pub(crate) name: String,
    pub(crate) namespaces: Vec<String>,
    /// GPUs it is guaranteed.
    pub(crate) gpus: i64,
    /// How many more it may have at most.
    pub(crate) borrow: Option<i64>,
    /// How many others may have at most.
    pub(crate) lend: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Setup {
    pub(crate) name: String,
    pub(crate) scheduler: Scheduler,
    /// `as-described`, `defaults`, or a topology policy.
    pub(crate) kubelet: Option<String>,
    pub(crate) gpus: Gpu,
    /// Replicas are moved so that more of the GPUs can be used.
    pub(crate) consolidate: Option<Consolidate>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Consolidate {
    pub(crate) every: Time,
    /// So many replicas at a time.
    pub(crate) moves: usize,
    /// So much of a GPU must be won by each.
    pub(crate) gain: Part,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scheduler {
    #[default]
    Berth,
    #[serde(rename = "kube-scheduler")]
    Kube,
    #[serde(rename = "kube-scheduler-packing")]
    KubePacking,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Gpu {
    #[default]
    AsDescribed,
    Whole,
}

/// Other numbers than Berth assumes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Assumptions {
    pub(crate) misaligned: Option<Slowdown>,
    pub(crate) time_sliced: Option<Slowdown>,
    pub(crate) time_sliced_more: Option<Slowdown>,
    pub(crate) mps_alone: Option<Slowdown>,
    pub(crate) mps_capped: Option<Slowdown>,
    pub(crate) mps_uncapped: Option<Slowdown>,
    pub(crate) start: Option<Time>,
    pub(crate) grace: Option<Time>,
    pub(crate) replace: Option<Time>,
    pub(crate) replace_max: Option<Time>,
    pub(crate) unreachable: Option<Time>,
    pub(crate) evict: Option<Time>,
    pub(crate) plugin_gap: Option<Time>,
    pub(crate) timeout: Option<Time>,
    pub(crate) window: Option<Time>,
    pub(crate) breach: Option<Time>,
    pub(crate) scale_down: Option<Time>,
}

/// So many times as long.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Slowdown {
    pub(crate) mean: f64,
    pub(crate) p99: f64,
}
