//! A cluster at one moment, from the API or from a dump, to report on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::Lower as _;
use berth_api::keys::PLACEMENT;
use berth_engine::{Engine, Profile};
use berth_inspect::pod::{PodReport, finished_at_ms, scheduler_of};
use berth_inspect::{
    Audience, Ended, History, Inspection, NodeFacts, PodFacts, Record, SCHEDULER, Source,
};
use berth_manifest::Object;
use berth_model::spec::{Phase, PodObject};
use berth_model::workload::ClassRules;
use berth_scenario::cluster::{Cluster, ClusterNode, FullName, Objects};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use thiserror::Error;

use crate::PlanError;

const DEFAULT_NAMESPACE: &str = "default";

/// How many namespaces an error names.
const NAMED_MAX: usize = 3;

/// A cluster with an engine that knows it.
pub struct Snapshot {
    engine: Engine,
    facts: Facts,
    now_ms: i64,
}

#[derive(Debug, PartialEq, Eq, Error)]
#[error("pod {name:?} not found in namespace {namespace:?}")]
pub struct NoSuchPod {
    pub namespace: String,
    pub name: String,
    /// Namespaces that have a pod of this name.
    pub elsewhere: Vec<String>,
}

impl Snapshot {
    /// `objects` are those from which the cluster was read. Without a clock, the time is that of the latest
    /// event that objects mention.
    pub fn new(objects: Objects, cluster: Cluster, now_ms: Option<i64>) -> Result<Self, PlanError> {
        let mut engine = Engine::new(Profile::Berth);
        for event in cluster.events().map_err(PlanError::Node)? {
            engine.apply(event);
        }
        let facts = Facts::new(objects, cluster);
        let latest_ms = facts.latest_ms();
        let now_ms = now_ms.unwrap_or(latest_ms).max(latest_ms);
        Ok(Self { engine, facts, now_ms })
    }

    pub fn inspect(&mut self) -> Inspection<'_, impl Source> {
        Inspection { engine: &mut self.engine, source: &self.facts, now_ms: self.now_ms }
    }

    pub fn pod(&mut self, namespace: &str, name: &str) -> Result<PodReport, NoSuchPod> {
        let Self { engine, facts, now_ms } = self;
        let pod =
            facts.object(namespace, name).ok_or_else(|| facts.no_such_pod(namespace, name))?;
        let mut inspection = Inspection { engine, source: &*facts, now_ms: *now_ms };
        Ok(inspection.pod(pod, Audience::Cluster))
    }
}

struct Facts {
    objects: Objects,
    cluster: Cluster,
    /// Positions in `objects`.
    pods: BTreeMap<FullName, usize>,
    nodes: BTreeMap<Arc<str>, usize>,
    /// Positions in `cluster.pods`.
    by_uid: BTreeMap<Arc<str>, usize>,
    by_node: BTreeMap<Arc<str>, Vec<usize>>,
    /// By UID.
    records: BTreeMap<Arc<str>, Record>,
    ended: Vec<Ended>,
    classes: ClassRules,
    schedulers: BTreeSet<String>,
}

impl Facts {
    fn new(objects: Objects, cluster: Cluster) -> Self {
        let mut facts = Self {
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            by_uid: BTreeMap::new(),
            by_node: BTreeMap::new(),
            records: BTreeMap::new(),
            ended: Vec::new(),
            classes: ClassRules::default(),
            schedulers: [SCHEDULER.to_owned()].into(),
            objects,
            cluster,
        };
        for (at, pod) in facts.cluster.pods.iter().enumerate() {
            facts.by_uid.insert(pod.uid.clone(), at);
            if let Some(node) = &pod.node {
                facts.by_node.entry(node.clone()).or_default().push(at);
            }
        }
        for (at, read) in facts.objects.0.iter().enumerate() {
            match &read.object {
                Object::Pod(pod) => {
                    facts.pods.insert(full_name(&pod.metadata), at);
                    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                    let record = pod.metadata.annotations.as_ref().and_then(Record::read);
                    facts.records.extend(record.map(|record| (uid.into(), record)));
                    facts.ended.extend(ended(pod));
                    if is_scheduled_by_berth(pod) {
                        facts.schedulers.insert(scheduler_of(pod).to_owned());
                    }
                }
                Object::Node(node) => {
                    let name = node.metadata.name.as_deref().unwrap_or_default();
                    facts.nodes.insert(name.into(), at);
                }
                _ => {}
            }
        }
        facts
    }

    fn object(&self, namespace: &str, name: &str) -> Option<&core::Pod> {
        match &self.objects.0.get(*self.pods.get(&(namespace.into(), name.into()))?)?.object {
            Object::Pod(pod) => Some(pod),
            _ => None,
        }
    }

    fn no_such_pod(&self, namespace: &str, name: &str) -> NoSuchPod {
        let others = self.pods.keys().filter(|(_, one)| &**one == name);
        let elsewhere =
            others.map(|(namespace, _)| namespace.to_string()).take(NAMED_MAX).collect();
        NoSuchPod { namespace: namespace.to_owned(), name: name.to_owned(), elsewhere }
    }

    fn latest_ms(&self) -> i64 {
        let pods = self.objects.0.iter().filter_map(|read| match &read.object {
            Object::Pod(pod) => Some(pod),
            _ => None,
        });
        let moments = pods.flat_map(|pod| {
            let conditions = pod.status.iter().flat_map(|status| &status.conditions).flatten();
            let scheduled = conditions.filter(|one| one.type_ == "PodScheduled");
            let scheduled = scheduled.filter_map(|one| one.last_transition_time.as_ref()).max();
            let written = [pod.metadata.creation_timestamp.as_ref(), scheduled];
            written
                .map(|time| time.map(|time| time.0.as_millisecond()))
                .into_iter()
                .chain([finished_at_ms(pod)])
        });
        moments.flatten().max().unwrap_or(0).max(self.cluster.now_ms)
    }

    fn node_facts<'a>(&'a self, node: &'a ClusterNode) -> NodeFacts<'a> {
        let object = self.nodes.get(&node.node.name).and_then(|at| self.objects.0.get(*at));
        let object = object.and_then(|read| match &read.object {
            Object::Node(node) => Some(&**node),
            _ => None,
        });
        NodeFacts::new(object, &node.node.name, &node.inside, &node.inside.free)
    }

    fn pod_facts<'a>(&'a self, pod: &'a PodObject) -> PodFacts<'a> {
        let object = self.object(&pod.spec.namespace, &pod.name);
        PodFacts {
            object: pod,
            scheduler: object.map_or(SCHEDULER, scheduler_of),
            record: self.records.get(&pod.uid),
        }
    }
}

impl Source for Facts {
    fn nodes(&self) -> Vec<NodeFacts<'_>> {
        self.cluster.nodes.iter().map(|node| self.node_facts(node)).collect()
    }

    fn node(&self, name: &str) -> Option<NodeFacts<'_>> {
        self.cluster.node(name).map(|node| self.node_facts(node))
    }

    fn pods_on(&self, node: &str) -> Vec<PodFacts<'_>> {
        let there = self.by_node.get(node).into_iter().flatten();
        there.filter_map(|at| Some(self.pod_facts(self.cluster.pods.get(*at)?))).collect()
    }

    fn pod(&self, uid: &str) -> Option<PodFacts<'_>> {
        self.cluster.pods.get(*self.by_uid.get(uid)?).map(|pod| self.pod_facts(pod))
    }

    fn gated(&self) -> Vec<PodFacts<'_>> {
        let gated = |pod: &&PodObject| {
            pod.node.is_none() && pod.phase == Phase::Alive && !pod.spec.gates.is_empty()
        };
        self.cluster.pods.iter().filter(gated).map(|pod| self.pod_facts(pod)).collect()
    }

    fn classes(&self) -> &ClassRules {
        &self.classes
    }

    fn serves(&self, scheduler: &str) -> bool {
        self.schedulers.contains(scheduler)
    }

    fn history(&self) -> Option<History<'_>> {
        let pods = self.cluster.pods.iter().map(|pod| self.pod_facts(pod)).collect();
        Some(History { pods, ended: &self.ended })
    }
}

/// Berth can be configured to serve other schedulerNames than its own. It shows on pods that it has bound, and
/// on those that it has given a condition.
fn is_scheduled_by_berth(pod: &core::Pod) -> bool {
    let mut writers = pod.metadata.managed_fields.iter().flatten();
    let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let annotations = pod.metadata.annotations.as_ref();
    is_bound && annotations.is_some_and(|all| all.contains_key(PLACEMENT))
        || writers.any(|one| {
            one.manager.as_deref() == Some(SCHEDULER)
                && one.subresource.as_deref() == Some("status")
        })
}

fn ended(pod: &core::Pod) -> Option<Ended> {
    let object = pod.lower().ok().filter(|pod| pod.phase == Phase::Finished)?;
    let started_ms = object.started_at_ms.unwrap_or(object.created_at_ms);
    Some(Ended { at_ms: finished_at_ms(pod).unwrap_or(started_ms), pod: object })
}

fn full_name(meta: &ObjectMeta) -> FullName {
    let namespace = meta.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    (namespace.into(), meta.name.as_deref().unwrap_or_default().into())
}
