//! The JSON form of a case, field by field as the vectors document it.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct CaseJson {
    pub(super) id: String,
    #[serde(default)]
    pub(super) stratum: String,
    pub(super) twin_of: Option<String>,
    pub(super) diff: Option<String>,
    pub(super) nodes: Vec<Node>,
    #[serde(default)]
    pub(super) pods: Vec<Pod>,
    #[serde(default)]
    pub(super) nominated_pods: Vec<Pod>,
    pub(super) pod: Pod,
    #[serde(default)]
    pub(super) pdbs: Vec<PodDisruptionBudget>,
    #[serde(default)]
    pub(super) namespaces: Vec<Namespace>,
    #[serde(default)]
    pub(super) priority_classes: Vec<PriorityClass>,
    #[serde(default)]
    pub(super) pvcs: Vec<PersistentVolumeClaim>,
    #[serde(default)]
    pub(super) pvs: Vec<PersistentVolume>,
    #[serde(default)]
    pub(super) storage_classes: Vec<StorageClass>,
    #[serde(default)]
    pub(super) csi_nodes: Vec<CSINode>,
    #[serde(default)]
    pub(super) services: Vec<Service>,
    #[serde(default)]
    pub(super) replica_sets: Vec<ReplicaSet>,
    #[serde(default)]
    pub(super) replication_controllers: Vec<ReplicationController>,
    #[serde(default)]
    pub(super) stateful_sets: Vec<StatefulSet>,
    pub(super) expect: ExpectJson,
}

/// The recorded decision.
#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct ExpectJson {
    pub(super) nodes: BTreeMap<String, NodeJson>,
    #[serde(default)]
    pub(super) scores: BTreeMap<String, BTreeMap<String, i64>>,
    #[serde(default)]
    pub(super) totals: BTreeMap<String, i64>,
    #[serde(default)]
    pub(super) selected_one_of: Vec<String>,
    pub(super) preemption: Option<PreemptionJson>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct NodeJson {
    pub(super) feasible: bool,
    #[serde(default)]
    pub(super) plugin: String,
    #[serde(default)]
    pub(super) code: String,
    #[serde(default)]
    pub(super) reasons: Vec<String>,
    pub(super) at: Option<String>,
    pub(super) filter: Option<Box<NodeJson>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct PreemptionJson {
    pub(super) eligible: bool,
    pub(super) reason: Option<String>,
    #[serde(default)]
    pub(super) candidates: BTreeMap<String, CandidateJson>,
    #[serde(default)]
    pub(super) chosen_one_of: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "an object with any_of, or with victims and pdb_violations")]
pub(super) enum CandidateJson {
    /// Any of these may come out.
    AnyOf { any_of: Vec<EvictionJson> },
    /// This comes out.
    One(EvictionJson),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct EvictionJson {
    pub(super) victims: Vec<String>,
    pub(super) pdb_violations: usize,
}
