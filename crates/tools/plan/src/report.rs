//! A plan as data: the one form behind the table, JSON and YAML.
//!
//! Money is in millionths of a dollar, parts of GPUs are in thousandths.

use std::collections::BTreeMap;

use berth_inspect::PodRef;
use berth_inspect::place::Placed;
use berth_inspect::remedy::{Diagnosis, Reason, RemedyReport};
use berth_inspect::usage::GpuUse;
use serde::Serialize;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Of this JSON form; 1.
    pub version: u32,
    /// The scheduling profile.
    pub profile: String,
    /// Changes that were made before planning, as on the command line.
    pub what_if: Vec<String>,
    /// In the order of the manifests.
    pub workloads: Vec<WorkloadPlan>,
    /// Pods of the cluster that were pending, or lost their place.
    pub others: WorkloadPlan,
    pub evictions: Vec<Eviction>,
    /// Evicted pods that no controller replaces.
    pub lost: Vec<PodRef>,
    pub pools: Vec<PoolUse>,
    pub cost: Cost,
    pub notes: Vec<String>,
    /// From the plan without the changes; `None` if there are none.
    pub difference: Option<Difference>,
}

impl Plan {
    /// How many pods the manifests create, and how many of them are placed.
    pub fn counts(&self) -> (usize, usize) {
        let placed = self.workloads.iter().map(|one| one.placed.len()).sum();
        let unplaced: usize =
            self.workloads.iter().flat_map(|one| &one.unplaced).map(|one| one.pods.len()).sum();
        (placed + unplaced, placed)
    }

    /// Whether all pods of the manifests are placed and the changes cost no pod its place.
    pub fn is_complete(&self) -> bool {
        let (pods, placed) = self.counts();
        placed == pods && self.difference.as_ref().is_none_or(|one| one.unplaced.is_empty())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkloadPlan {
    /// `Deployment`, `Job` and so on; empty for pods of the cluster.
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// Empty if it is of no team.
    pub team: String,
    pub class: String,
    pub placed: Vec<Placed>,
    pub unplaced: Vec<Unplaced>,
    /// Of the placed pods; `None` if the price of a node is unknown.
    pub microusd_per_month: Option<i64>,
}

/// Pods without a place for the same reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unplaced {
    pub pods: Vec<PodRef>,
    pub reason: Reason,
    pub why: String,
    /// Each makes one of the pods fit by itself. All have been tried out.
    pub remedies: Vec<RemedyReport>,
}

impl From<Diagnosis> for Unplaced {
    fn from(Diagnosis { reason, why, remedies }: Diagnosis) -> Self {
        Self { pods: Vec::new(), reason, why, remedies }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Eviction {
    pub pod: PodRef,
    pub node: String,
    pub priority: i32,
    /// For which pod.
    pub by: PodRef,
    /// Whether evicting all victims violates a disruption budget.
    pub against_budget: bool,
    /// Where its replacement goes; `None` if it is pending, or there is no replacement.
    pub goes_to: Option<String>,
    /// Whether a controller replaces it.
    pub is_replaced: bool,
}

/// GPUs of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolUse {
    /// Empty: nodes in no pool.
    pub pool: String,
    /// Nodes by GPU product.
    pub products: BTreeMap<String, usize>,
    pub nodes: usize,
    pub gpus: usize,
    /// Before anything was placed.
    pub before: GpuUse,
    pub after: GpuUse,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Of all placed pods of the manifests, while they run.
    pub microusd_per_month: i64,
    /// Pods without a team count under the empty name.
    pub by_team: BTreeMap<String, i64>,
    /// Of all nodes, used or not.
    pub cluster_microusd_per_month: i64,
    pub nodes_without_price: usize,
    /// The assumptions behind the figures.
    pub basis: Vec<String>,
}

/// From one plan to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Pods that are placed only in the second.
    pub placed: Vec<Change>,
    /// Pods that are placed only in the first.
    pub unplaced: Vec<Change>,
    pub moved: Vec<Change>,
    /// Evictions in the second only.
    pub evicted: Vec<PodRef>,
    /// Evictions in the first only.
    pub spared: Vec<PodRef>,
    pub microusd_per_month: i64,
    pub cluster_microusd_per_month: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Change {
    pub pod: PodRef,
    pub from: Option<String>,
    pub to: Option<String>,
}
