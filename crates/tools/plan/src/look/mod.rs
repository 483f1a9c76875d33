//! A cluster as it is: who waits and why, who is where, what nodes hold.
//!
//! Owns the engine that has been told of everything, and what objects say that the engine has no use
//! for: whose scheduler decides, what it wrote, since when. Nothing is placed here. Must not know where
//! objects come from, nor how anything is shown ([`table`]).

mod eta;
mod labels;
pub mod node;
pub mod pod;
pub mod queue;
pub mod table;
mod wants;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::Lower as _;
use berth_api::keys::PLACEMENT;
use berth_engine::event::Event;
use berth_engine::{Engine, Profile, TEAM_LABEL};
use berth_manifest::Object;
use berth_model::spec::{Phase, PodObject, PodSpec};
use berth_model::workload::ClassRules;
use berth_scenario::cluster::{Cluster, FullName, Objects};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Serialize;

pub use labels::{SelectorError, parse_selector};

use self::eta::Ended;
use crate::PlanError;
use crate::report::PodRef;

/// The scheduler that is Berth.
pub const SCHEDULER: &str = "berth";

/// Where pods are that do not say in which namespace.
const DEFAULT_NAMESPACE: &str = "default";

/// A cluster, and an engine that has been told of it.
pub struct Scene {
    cluster: Cluster,
    engine: Engine,
    /// All pods, also those that have finished.
    pods: BTreeMap<FullName, Particulars>,
    nodes: BTreeMap<Arc<str>, NodeParticulars>,
    /// Pods that have ended and are still listed.
    ended: Vec<Ended>,
    /// UIDs of those that have not ended.
    by_uid: BTreeMap<Arc<str>, usize>,
    notes: Vec<String>,
    now_ms: i64,
}

/// What a pod says that does not decide where it may go.
#[derive(Clone, Debug, Default)]
struct Particulars {
    uid: Arc<str>,
    scheduler: String,
    created_at_ms: Option<i64>,
    /// `Pending`, `Running` and so on.
    phase: String,
    /// Why it is in that phase, where a kubelet says so.
    phase_reason: Option<String>,
    /// What whoever schedules it said last.
    scheduled: Option<Condition>,
    /// What Berth wrote when it bound it.
    placement: Option<String>,
    finished_at_ms: Option<i64>,
}

/// What a scheduler says about a pod: its condition `PodScheduled`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// `True` or `False`.
    pub status: String,
    /// In one word.
    pub reason: String,
    /// In its own words.
    pub message: String,
    /// Since when, in milliseconds since 1970.
    pub since_ms: Option<i64>,
}

#[derive(Clone, Debug, Default)]
struct NodeParticulars {
    created_at_ms: Option<i64>,
    is_ready: bool,
    kubelet_version: String,
}

impl Scene {
    /// Tells an engine of a cluster that was read from these objects. Without a clock, it is as late as
    /// the latest thing that an object tells of.
    ///
    /// # Errors
    /// When a node of it cannot be.
    pub fn new(
        objects: &Objects,
        cluster: Cluster,
        now_ms: Option<i64>,
    ) -> Result<Self, PlanError> {
        let mut engine = Engine::new(Profile::Berth);
        for event in cluster.events().map_err(PlanError::Node)? {
            engine.apply(event);
        }
        let mut pods = BTreeMap::new();
        let mut ended = Vec::new();
        let mut nodes = BTreeMap::new();
        for read in &objects.0 {
            match &read.object {
                Object::Pod(pod) => {
                    let own = particulars(pod);
                    let model = pod.lower().ok().filter(|pod| pod.phase == Phase::Finished);
                    ended.extend(model.map(|pod| {
                        let started_ms = pod.started_at_ms.unwrap_or(pod.created_at_ms);
                        let at_ms = own.finished_at_ms.unwrap_or(started_ms);
                        Ended { pod, at_ms }
                    }));
                    pods.insert(full_name(&pod.metadata), own);
                }
                Object::Node(node) => {
                    let name = node.metadata.name.as_deref().unwrap_or_default();
                    nodes.insert(name.into(), node_particulars(node));
                }
                _ => {}
            }
        }
        let told = pods.values().flat_map(|one: &Particulars| {
            let scheduled = one.scheduled.as_ref().and_then(|one| one.since_ms);
            [one.created_at_ms, scheduled, one.finished_at_ms]
        });
        let latest_ms = told.flatten().chain([cluster.now_ms]).max().unwrap_or(0);
        let by_uid = cluster.pods.iter().enumerate().map(|(at, pod)| (pod.uid.clone(), at));
        let by_uid = by_uid.collect();
        let notes = crate::doubt::notes(&engine, &cluster);
        let now_ms = now_ms.unwrap_or(latest_ms).max(latest_ms);
        Ok(Self { cluster, engine, pods, nodes, ended, by_uid, notes, now_ms })
    }

    /// The pod of this UID, unless it has finished.
    fn pod(&self, uid: &str) -> Option<&PodObject> {
        self.cluster.pods.get(*self.by_uid.get(uid)?)
    }

    fn particulars(&self, pod: &PodObject) -> Particulars {
        let key = (pod.spec.namespace.clone(), pod.name.clone());
        self.pods.get(&key).cloned().unwrap_or_default()
    }

    /// The pod's team by the scheduler's rule; in a cluster without teams, what its label says.
    fn team_of(&self, spec: &PodSpec) -> String {
        if !self.cluster.others.iter().any(|event| matches!(event, Event::Team(_))) {
            return spec.labels.get(TEAM_LABEL).map(ToString::to_string).unwrap_or_default();
        }
        self.engine.team_of(spec).map(ToString::to_string).unwrap_or_default()
    }

    fn since_s(&self, then_ms: i64) -> i64 {
        self.now_ms.saturating_sub(then_ms).max(0) / 1000
    }
}

fn full_name(meta: &ObjectMeta) -> FullName {
    let namespace = meta.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    (namespace.into(), meta.name.as_deref().unwrap_or_default().into())
}

fn unix_ms(time: Option<&Time>) -> Option<i64> {
    time.map(|time| time.0.as_millisecond())
}

fn particulars(pod: &core::Pod) -> Particulars {
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let scheduled = conditions.into_iter().find(|one| one.type_ == "PodScheduled").map(|one| {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Condition {
            status: one.status.clone(),
            reason: text(&one.reason),
            message: text(&one.message),
            since_ms: unix_ms(one.last_transition_time.as_ref()),
        }
    });
    let ended = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    let ended = ended
        .filter_map(|one| one.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref())
        .map(|time| time.0.as_millisecond());
    let reason = status.and_then(|status| status.reason.clone()).filter(|text| !text.is_empty());
    let message = status.and_then(|status| status.message.clone()).filter(|text| !text.is_empty());
    Particulars {
        uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
        scheduler: spec
            .and_then(|spec| spec.scheduler_name.clone())
            .unwrap_or_else(|| "default-scheduler".to_owned()),
        created_at_ms: unix_ms(pod.metadata.creation_timestamp.as_ref()),
        phase: status.and_then(|status| status.phase.clone()).unwrap_or_default(),
        phase_reason: match (reason, message) {
            (Some(reason), Some(message)) => Some(format!("{reason}: {message}")),
            (reason, message) => reason.or(message),
        },
        scheduled,
        placement: pod.metadata.annotations.as_ref().and_then(|all| all.get(PLACEMENT).cloned()),
        finished_at_ms: ended.max(),
    }
}

fn node_particulars(node: &core::Node) -> NodeParticulars {
    let status = node.status.as_ref();
    let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    NodeParticulars {
        created_at_ms: unix_ms(node.metadata.creation_timestamp.as_ref()),
        is_ready: conditions.any(|one| one.type_ == "Ready" && one.status == "True"),
        kubelet_version: status
            .and_then(|status| status.node_info.as_ref())
            .map(|info| info.kubelet_version.clone())
            .unwrap_or_default(),
    }
}

fn named(pod: &PodObject) -> PodRef {
    crate::run::named(pod)
}

/// What kind of work it does.
fn class_of(spec: &PodSpec) -> String {
    ClassRules::default().class_of(spec).to_string()
}

/// A moment as people in logs write it.
pub(crate) fn moment(at_ms: i64) -> String {
    let seconds = Timestamp::from_second(at_ms.div_euclid(1000));
    seconds.map_or_else(|_| "unknown".to_owned(), |time| time.to_string())
}
