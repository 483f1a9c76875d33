//! One case: a cluster, a pod that looks for its place, and the recorded decision.
//!
//! Owns the way from JSON to events, with errors that name the object and the field.

use std::sync::Arc;

use berth_api::Lower;
use berth_engine::event::Event;
use berth_model::spec::PodObject;

use super::schema::{CaseJson, ExpectJson};
use crate::vector::{CaseError, FieldResult, read};

/// A case ready to be decided.
#[derive(Debug)]
pub struct Case {
    /// Unique id.
    pub id: String,
    /// Label for counting.
    pub stratum: String,
    /// The case this one differs from in one thing, and that thing.
    pub twin: Option<(String, String)>,
    /// The cluster.
    pub events: Vec<Event>,
    /// The pod that is asked about.
    pub pod: PodObject,
    pub(super) expect: ExpectJson,
}

impl Case {
    /// Reads a case from one line of JSON.
    pub fn parse(line: &str) -> Result<Self, CaseError> {
        let json: CaseJson = read(line)?;
        let id = json.id.clone();
        Self::lower(json).map_err(|(field, problem)| CaseError { id, field, problem })
    }

    fn lower(mut json: CaseJson) -> FieldResult<Self> {
        // The recorded scheduler learned of its nodes in this order. Where nodes disagree on the
        // size of an image, it believes the first.
        json.nodes.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        let events = [
            all("namespaces", &json.namespaces, Event::Namespace)?,
            all("priority_classes", &json.priority_classes, Event::PriorityClass)?,
            all("storage_classes", &json.storage_classes, Event::StorageClass)?,
            all("pvs", &json.pvs, Event::Volume)?,
            all("pvcs", &json.pvcs, Event::Claim)?,
            all("csi_nodes", &json.csi_nodes, Event::CsiNode)?,
            all("services", &json.services, Event::Grouping)?,
            all("replica_sets", &json.replica_sets, Event::Grouping)?,
            all("replication_controllers", &json.replication_controllers, Event::Grouping)?,
            all("stateful_sets", &json.stateful_sets, Event::Grouping)?,
            all("pdbs", &json.pdbs, Event::Budget)?,
            all("nodes", &json.nodes, Event::Node)?,
            all("pods", &json.pods, Event::Pod)?,
            all("nominated_pods", &json.nominated_pods, Event::Pod)?,
        ];
        let pod = json.pod.lower().map_err(|error| ("pod".to_owned(), error.to_string()))?;
        Ok(Self {
            id: json.id,
            stratum: json.stratum,
            twin: json.twin_of.map(|twin| (twin, json.diff.unwrap_or_default())),
            events: events.into_iter().flatten().collect(),
            pod: unbound(pod),
            expect: json.expect,
        })
    }

    /// The pods of the cluster.
    pub(super) fn pods(&self) -> impl Iterator<Item = &PodObject> {
        self.events.iter().filter_map(|event| match event {
            Event::Pod(pod) => Some(pod),
            _ => None,
        })
    }
}

/// A pod that is asked about although it names its node: that is then the only one it may go to.
fn unbound(mut pod: PodObject) -> PodObject {
    if let Some(node) = pod.node.take() {
        Arc::make_mut(&mut pod.spec).node_name = Some(node);
    }
    pod
}

fn all<K: Lower>(
    list: &str,
    objects: &[K],
    event: impl Fn(K::Model) -> Event,
) -> FieldResult<Vec<Event>> {
    let lower = |(index, object): (usize, &K)| {
        let lowered = object.lower().map(&event);
        lowered.map_err(|error| (format!("{list}[{index}]"), error.to_string()))
    };
    objects.iter().enumerate().map(lower).collect()
}

/// A pod's namespace and name, as the vectors write it.
pub(super) fn full_name(pod: &PodObject) -> String {
    format!("{}/{}", pod.spec.namespace, pod.name)
}
