//! Answers of `/api/v1`, from the leader's engine. The reports are those of the CLI.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use berth_inspect::queue::QueueFilter;
use berth_inspect::{Audience, Inspection, NodeFacts, PodFacts, Source};
use berth_model::workload::ClassRules;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use serde_json::{Value, json};

use crate::core::{Core, Pods, SeenPod};
use crate::http::{Question, ViewError};
use crate::node_topologies::NodeTopologies;

/// The longest list of queued pods in an answer.
const QUEUE_MAX: usize = 10_000;

/// `pod` is the object of the pod that is to be explained.
pub(crate) fn answer(
    core: &mut Core,
    node_topologies: &NodeTopologies,
    schedulers: &[Arc<str>],
    question: &Question,
    pod: Option<&Pod>,
    now_ms: i64,
) -> Result<Value, ViewError> {
    if *question == Question::State {
        return Ok(state(core, node_topologies));
    }
    let (engine, pods, classes) = core.inspected();
    let source = Facts { pods, classes, node_topologies, schedulers };
    let mut inspection = Inspection { engine, source: &source, now_ms };
    match (question, pod) {
        (Question::Queue, _) => {
            let mut queue = inspection.queue(&QueueFilter::default());
            queue.pods.truncate(QUEUE_MAX);
            json_of(&queue)
        }
        (Question::Nodes, _) => match inspection.nodes(&[]) {
            Ok(nodes) => json_of(&nodes),
            Err(error) => Err(ViewError::NotFound(error.to_string())),
        },
        (Question::Explanation { whole_cluster, .. }, Some(pod)) => {
            let audience = if *whole_cluster { Audience::Cluster } else { Audience::Namespace };
            json_of(&inspection.pod(pod, audience))
        }
        (Question::State | Question::Explanation { .. }, _) => {
            Err(ViewError::NotFound("pod not found".to_owned()))
        }
    }
}

fn json_of(report: &impl Serialize) -> Result<Value, ViewError> {
    serde_json::to_value(report).map_err(|error| ViewError::NotReady(error.to_string()))
}

fn state(core: &Core, node_topologies: &NodeTopologies) -> Value {
    let unsettled = core.unsettled();
    let engine = core.engine();
    let (queued, parked) = engine.queued();
    json!({
        "leads": true,
        "nodes": node_topologies.names().count(),
        "queued": queued,
        "parked": parked,
        "held": engine.held(),
        "binding": unsettled,
    })
}

struct Facts<'a> {
    pods: &'a Pods,
    classes: &'a ClassRules,
    node_topologies: &'a NodeTopologies,
    schedulers: &'a [Arc<str>],
}

fn pod_facts(pod: &SeenPod) -> PodFacts<'_> {
    PodFacts {
        object: &pod.object,
        scheduler: pod.scheduler.as_deref().unwrap_or_default(),
        record: pod.record.as_deref(),
    }
}

impl Source for Facts<'_> {
    fn nodes(&self) -> Vec<NodeFacts<'_>> {
        self.node_topologies.names().filter_map(|name| self.node_topologies.facts(name)).collect()
    }

    fn node(&self, name: &str) -> Option<NodeFacts<'_>> {
        self.node_topologies.facts(name)
    }

    fn pods_on(&self, node: &str) -> Vec<PodFacts<'_>> {
        self.pods.on(node).map(pod_facts).collect()
    }

    fn pod(&self, uid: &str) -> Option<PodFacts<'_>> {
        self.pods.get(uid).map(pod_facts)
    }

    fn gated(&self) -> Vec<PodFacts<'_>> {
        let pending = self.pods.waiting();
        pending.filter(|pod| !pod.object.spec.gates.is_empty()).map(pod_facts).collect()
    }

    fn classes(&self) -> &ClassRules {
        self.classes
    }

    fn serves(&self, scheduler: &str) -> bool {
        self.schedulers.iter().any(|one| **one == *scheduler)
    }
}
