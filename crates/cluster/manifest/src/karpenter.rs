//! The parts of Karpenter's NodePool and NodeClaim (`karpenter.sh/v1`) that Berth reads.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

pub const API_VERSION: &str = "karpenter.sh/v1";

/// Nodes that may be made.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodePool {
    pub metadata: ObjectMeta,
    pub spec: NodePoolSpec,
}

/// What a pool's nodes are like, and how many there may be.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodePoolSpec {
    /// What every node is made from.
    pub template: NodeTemplate,
    /// All its nodes together have at most this.
    pub limits: BTreeMap<String, Quantity>,
    /// Pools with more of it are tried first.
    pub weight: Option<i32>,
    /// A pool of a fixed number of nodes.
    pub replicas: Option<i64>,
    /// When nodes are taken away.
    pub disruption: Disruption,
}

/// What every node is made from.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeTemplate {
    /// Labels and annotations of its nodes.
    pub metadata: TemplateMeta,
    pub spec: NodeClaimSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TemplateMeta {
    /// Their labels.
    pub labels: BTreeMap<String, String>,
    /// Their annotations.
    pub annotations: BTreeMap<String, String>,
}

/// A node that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeClaim {
    pub metadata: ObjectMeta,
    pub spec: NodeClaimSpec,
    pub status: NodeClaimStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeClaimSpec {
    /// Labels it must have.
    pub requirements: Vec<Requirement>,
    /// Taints it has for good.
    pub taints: Vec<Taint>,
    /// Taints that somebody takes away when it is ready.
    pub startup_taints: Vec<Taint>,
    pub resources: ResourceNeeds,
    /// The class that knows the provider's side.
    pub node_class_ref: Option<NodeClassRef>,
    /// After which time it is replaced; `Never` for never.
    pub expire_after: Option<String>,
    /// How long its pods may take to leave.
    pub termination_grace_period: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceNeeds {
    /// So much.
    pub requests: BTreeMap<String, Quantity>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeClaimStatus {
    /// The node's name, once there is one.
    pub node_name: Option<String>,
    pub capacity: BTreeMap<String, Quantity>,
    pub allocatable: BTreeMap<String, Quantity>,
}

/// What a label of nodes must be.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Requirement {
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
    pub operator: String,
    pub values: Vec<String>,
    /// At least so many different values.
    pub min_values: Option<i64>,
}

/// Where the provider's side of a node is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeClassRef {
    pub group: String,
    pub kind: String,
    pub name: String,
}

/// When nodes are taken away.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Disruption {
    /// `WhenEmpty` or `WhenEmptyOrUnderutilized`.
    pub consolidation_policy: Option<String>,
    /// How long they are spared; `Never` for always.
    pub consolidate_after: Option<String>,
    pub budgets: Vec<Budget>,
}

/// How many nodes may go at once.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// A number, or a share such as `10%`.
    pub nodes: String,
    /// When it begins to hold, as in crontab.
    pub schedule: Option<String>,
    /// For how long it holds.
    pub duration: Option<String>,
    /// What it is about: `Empty`, `Drifted`, `Underutilized`.
    pub reasons: Vec<String>,
}
