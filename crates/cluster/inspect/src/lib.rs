//! Reports on nodes, the queue and single pods: what `berth nodes`, `queue` and `explain` print, and what
//! the scheduler's `/api/v1` returns, in one JSON form.
//!
//! A report is computed from an engine, which knows where pods go, and a [`Source`] of what objects say
//! beyond that. Nothing is placed: whatever is tried is rolled back.

mod doubt;
mod forecast;
mod holdings;
pub mod node;
pub mod place;
pub mod pod;
pub mod queue;
mod record;
pub mod remedy;
mod request;
mod selector;
pub mod table;
pub mod text;
pub mod usage;

use berth_engine::Engine;
use berth_model::spec::{PodObject, PodSpec};
use berth_model::workload::{ClassRules, pool_of};
use berth_topology::{DeviceCounts, Inside};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

use self::usage::Usage;

pub use doubt::doubts;
pub use forecast::{Ended, History};
pub use record::{Evidence, Record};
pub use selector::{SelectorError, parse_selector};

/// The schedulerName that Berth serves unless it is configured otherwise.
pub const SCHEDULER: &str = "berth";

/// The version of all reports' JSON.
const VERSION: u32 = 1;

/// What objects of the cluster say that the engine does not keep.
pub trait Source {
    /// In order of name.
    fn nodes(&self) -> Vec<NodeFacts<'_>>;
    fn node(&self, name: &str) -> Option<NodeFacts<'_>>;
    /// Pods bound to the node that have not finished.
    fn pods_on(&self, node: &str) -> Vec<PodFacts<'_>>;
    /// `None` if the pod has finished or does not exist.
    fn pod(&self, uid: &str) -> Option<PodFacts<'_>>;
    /// Pending pods with scheduling gates.
    fn gated(&self) -> Vec<PodFacts<'_>>;
    fn classes(&self) -> &ClassRules;
    /// Whether Berth schedules pods with this schedulerName.
    fn serves(&self, scheduler: &str) -> bool;
    /// Pods from which lifetimes are learned; `None` if too little is known of finished ones.
    fn history(&self) -> Option<History<'_>> {
        None
    }
}

/// What a node's objects say beyond the model.
#[derive(Clone, Copy, Debug)]
pub struct NodeFacts<'a> {
    pub name: &'a str,
    pub inside: &'a Inside,
    /// Free devices by NUMA node, as the node's exporter reports them.
    pub exported_free: &'a DeviceCounts,
    pub created_at_ms: Option<i64>,
    pub is_ready: bool,
    pub kubelet_version: &'a str,
}

impl<'a> NodeFacts<'a> {
    /// `object` is `None` where the node comes from a scenario and not from the API.
    pub fn new(
        object: Option<&'a core::Node>,
        name: &'a str,
        inside: &'a Inside,
        exported_free: &'a DeviceCounts,
    ) -> Self {
        let status = object.and_then(|object| object.status.as_ref());
        let mut conditions = status.iter().flat_map(|status| &status.conditions).flatten();
        let info = status.and_then(|status| status.node_info.as_ref());
        Self {
            name,
            inside,
            exported_free,
            created_at_ms: object
                .and_then(|object| unix_ms(object.metadata.creation_timestamp.as_ref())),
            is_ready: conditions.any(|one| one.type_ == "Ready" && one.status == "True"),
            kubelet_version: info.map_or("", |info| &info.kubelet_version),
        }
    }
}

/// A pod, and what its object says beyond the model.
#[derive(Clone, Copy, Debug)]
pub struct PodFacts<'a> {
    pub object: &'a PodObject,
    pub scheduler: &'a str,
    /// What annotations say that it holds on its node.
    pub record: Option<&'a Record>,
}

/// A pod, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
}

impl From<&PodObject> for PodRef {
    fn from(pod: &PodObject) -> Self {
        Self { namespace: pod.spec.namespace.to_string(), name: pod.name.to_string() }
    }
}

/// Whose eyes a report is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audience {
    /// Somebody who may see all namespaces.
    #[default]
    Cluster,
    /// Somebody who may see the pod's namespace only: names of pods in others are withheld.
    Namespace,
}

/// A cluster to report on.
pub struct Inspection<'a, S> {
    /// Decisions are tried on it and rolled back.
    pub engine: &'a mut Engine,
    pub source: &'a S,
    pub now_ms: i64,
}

impl<S: Source> Inspection<'_, S> {
    /// By the scheduler's rule; in a cluster without teams, by the label alone.
    fn team_of(&self, spec: &PodSpec) -> String {
        let team = match self.engine.teams().next() {
            Some(_) => self.engine.team_of(spec),
            None => spec.labels.get(berth_engine::TEAM_LABEL),
        };
        team.map(ToString::to_string).unwrap_or_default()
    }

    /// Empty if the node is in no pool, or unknown.
    fn pool_of(&self, node: &str) -> String {
        let node = self.engine.node(node);
        node.and_then(|node| pool_of(&node.labels)).map(ToString::to_string).unwrap_or_default()
    }

    /// The node as the engine knows it, without its pods.
    fn usage(&self, facts: &NodeFacts<'_>) -> Usage {
        self.engine.node(facts.name).map(|node| Usage::new(node, facts.inside)).unwrap_or_default()
    }

    fn class_of(&self, spec: &PodSpec) -> String {
        self.source.classes().class_of(spec).to_string()
    }

    fn seconds_since(&self, then_ms: i64) -> i64 {
        self.now_ms.saturating_sub(then_ms).max(0) / 1000
    }
}

fn unix_ms(time: Option<&Time>) -> Option<i64> {
    time.map(|time| time.0.as_millisecond())
}
