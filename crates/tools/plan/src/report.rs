//! A plan, as data.
//!
//! Owns the vocabulary that the table, JSON and YAML share. Must not know how any of it is found out,
//! nor how it is shown. Money is in millionths of a dollar, parts of GPUs are in thousandths.

use berth_model::alignment::Alignment;
use std::collections::BTreeMap;

use serde::Serialize;

/// Where everything would go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Of this shape of the data; 1.
    pub version: u32,
    /// Whose rules were followed.
    pub profile: String,
    /// What was changed before planning, as it was written.
    pub what_if: Vec<String>,
    /// What the manifests make, in the order in which it is written.
    pub workloads: Vec<WorkloadPlan>,
    /// Pods of the cluster that were without a place, or lost theirs.
    pub others: WorkloadPlan,
    /// Pods that would be evicted for others.
    pub evictions: Vec<Eviction>,
    /// Pods that would be gone for good: nothing makes them anew.
    pub lost: Vec<PodRef>,
    /// GPUs by pool.
    pub pools: Vec<PoolUse>,
    /// What it would cost.
    pub cost: Cost,
    /// What is to be known besides.
    pub notes: Vec<String>,
    /// What is different from the plan without the changes; `None` if nothing was changed.
    pub difference: Option<Difference>,
}

impl Plan {
    /// How many pods of the manifests there are, and how many of them have a place.
    pub fn counts(&self) -> (usize, usize) {
        let placed = self.workloads.iter().map(|one| one.placed.len()).sum();
        let waiting: usize =
            self.workloads.iter().flat_map(|one| &one.unplaced).map(|one| one.pods.len()).sum();
        (placed + waiting, placed)
    }

    /// Whether every pod of the manifests has a place, and no pod has lost its own by the changes.
    pub fn is_complete(&self) -> bool {
        let (pods, placed) = self.counts();
        placed == pods && self.difference.as_ref().is_none_or(|one| one.unplaced.is_empty())
    }
}

/// A pod, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Something that makes pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkloadPlan {
    /// `Deployment`, `Job` and so on; empty for pods of the cluster.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whose it is; empty if it does not say.
    pub team: String,
    /// What kind of work it is.
    pub class: String,
    /// Its pods that have a place.
    pub placed: Vec<Placed>,
    /// Its pods that have none, those with the same reason together.
    pub unplaced: Vec<Unplaced>,
    /// What those that have a place cost a month; `None` if the price of a node is not known.
    pub microusd_per_month: Option<i64>,
}

/// A pod and its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Placed {
    /// The pod.
    pub pod: PodRef,
    /// The node.
    pub node: String,
    /// Its pool; empty if the node names none.
    pub pool: String,
    /// How it lies there.
    pub alignment: Alignment,
    /// Ids of the NUMA nodes that the kubelet would choose; empty if it does not choose.
    pub numa: Vec<u32>,
    /// CPUs of its own.
    pub cpus: usize,
    /// Devices that the kubelet would give it.
    pub devices: Vec<Given>,
    /// The share of a GPU it would get.
    pub share: Option<GpuShare>,
    /// Devices that its claims would be given: driver, pool and name.
    pub claimed: Vec<String>,
    /// Parts of GPUs in all.
    pub gpu_milli: u64,
    /// What its part of the node costs a month; `None` if that is not known.
    pub microusd_per_month: Option<i64>,
}

/// Devices of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Given {
    /// The resource.
    pub resource: String,
    /// How many.
    pub count: usize,
    /// Those that it certainly gets.
    pub certain: Vec<DeviceName>,
    /// Those from which the kubelet and the plugin pick the rest.
    pub one_of: Vec<DeviceName>,
}

/// A device, by what it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DeviceName {
    /// The number of its GPU on the node; `None` if it is no GPU that is known.
    pub gpu: Option<usize>,
    /// The slice, as `3g.40gb@4`.
    pub slice: Option<String>,
    /// Its id. Where a dump does not tell ids, it is made up.
    pub id: String,
}

/// A share of a GPU that is divided on demand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuShare {
    /// The resource of which the GPU is one.
    pub resource: String,
    /// The number of the GPU.
    pub gpu: u16,
}

/// Pods without a place, for one and the same reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unplaced {
    /// The pods.
    pub pods: Vec<PodRef>,
    /// What keeps them.
    pub reason: Reason,
    /// Why, in words.
    pub why: String,
    /// What would make one of them fit, each by itself. All of it has been tried out.
    pub remedies: Vec<RemedyPlan>,
}

/// What keeps a pod from its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// There is no room.
    #[default]
    NoRoom,
    /// A quota, or its team's share.
    Quota,
    /// Its gang does not start.
    Gang,
    /// It is not to be scheduled yet.
    Gated,
    /// The API server would not let it in.
    Refused,
    /// The node's kubelet would turn it down.
    RejectedByKubelet,
    /// It would have been evicted for another, or is being deleted.
    Leaving,
}

/// What would make a pod fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RemedyPlan {
    /// `evict`, `grow`, `relax`, `uncordon` or `loosen`.
    pub kind: String,
    /// The node on which it would fit then.
    pub node: Option<String>,
    /// The pool that gets one more node.
    pub pool: Option<String>,
    /// Who would have to leave.
    pub victims: Vec<PodRef>,
    /// The whole, in words.
    pub text: String,
}

/// A pod that would be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Eviction {
    /// The pod.
    pub pod: PodRef,
    /// From here.
    pub node: String,
    /// Its priority.
    pub priority: i32,
    /// For this one.
    pub by: PodRef,
    /// Whether that is against a disruption budget, as far as the scheduler says so for the whole
    /// of the victims.
    pub against_budget: bool,
    /// The node on which what makes it would place another; `None`: none.
    pub goes_to: Option<String>,
    /// Whether something makes another.
    pub is_made_anew: bool,
}

/// GPUs of a pool, before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolUse {
    /// The pool; empty: nodes that name none.
    pub pool: String,
    /// Products, with how many nodes have them.
    pub products: BTreeMap<String, usize>,
    /// How many nodes.
    pub nodes: usize,
    /// How many GPUs.
    pub gpus: usize,
    /// Before anything was placed.
    pub before: GpuUse,
    /// After.
    pub after: GpuUse,
}

/// What has become of GPUs, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuUse {
    /// Handed out.
    pub allocated_milli: u64,
    /// To be had.
    pub free_milli: u64,
    /// Neither: on a cordoned node, without a CPU and a GiB of memory to go with it, or in no slice.
    pub stranded_milli: u64,
}

/// What it would cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// All pods of the manifests that have a place, while they run.
    pub microusd_per_month: i64,
    /// By team; those that name none are under the empty name.
    pub by_team: BTreeMap<String, i64>,
    /// All nodes, whoever uses them.
    pub cluster_microusd_per_month: i64,
    /// Nodes of which no price is known.
    pub nodes_without_price: usize,
    /// What the figures rest on.
    pub basis: Vec<String>,
}

/// What is different from another plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Pods that have a place only now.
    pub placed: Vec<Change>,
    /// Pods that have none any more.
    pub unplaced: Vec<Change>,
    /// Pods that are elsewhere.
    pub moved: Vec<Change>,
    /// Evictions that are needed only now.
    pub evicted: Vec<PodRef>,
    /// Evictions that are not needed any more.
    pub spared: Vec<PodRef>,
    /// How much more the pods of the manifests cost a month.
    pub microusd_per_month: i64,
    /// How much more all nodes cost a month.
    pub cluster_microusd_per_month: i64,
}

/// A pod that fares otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Change {
    /// The pod.
    pub pod: PodRef,
    /// Where it was.
    pub from: Option<String>,
    /// Where it is.
    pub to: Option<String>,
}
