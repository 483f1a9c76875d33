//! What is written to the API.
//!
//! Owns requests, and how long each may take. Topologies and labels are applied by the server, under our name
//! and never by force: what somebody else has set is a conflict, not ours to take. Must not know when
//! anything is written.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::keys::ALIGNMENT;
use berth_api::topology::NodeResourceTopology;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::owners::{MANAGER, others, ours};
use super::pods::KnownPod;
use super::telling::Note;

/// No request may take longer.
const REQUEST: Duration = Duration::from_secs(10);

/// The longest note of an event, and so much of a pod's name is in the name of an event about it.
const NOTE_BYTES_MAX: usize = 1024;
const NAME_BYTES_MAX: usize = 230;

/// Why something was not written.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Somebody else has set it: who, as the API tells.
    Theirs(String),
    /// There is no such object, or no such kind.
    Absent,
    /// Something else.
    Failed(String),
}

impl Refusal {
    fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 409 => Self::Theirs(status.message.clone()),
            kube::Error::Api(status) if status.code == 404 => Self::Absent,
            other => Self::Failed(other.to_string()),
        }
    }
}

async fn within<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Refusal> {
    match tokio::time::timeout(REQUEST, request).await {
        Ok(answer) => answer.map_err(|error| Refusal::of(&error)),
        Err(_) => Err(Refusal::Failed(format!("no answer within {} s", REQUEST.as_secs()))),
    }
}

/// Labels and annotations of ours on the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
}

/// Whoever writes.
pub(super) struct Desk {
    client: Client,
    node: String,
}

impl Desk {
    pub(super) fn new(client: Client, node: String) -> Self {
        Self { client, node }
    }

    /// What is known of the Node, and who wrote it.
    pub(super) async fn node(&self) -> Result<ObjectMeta, Refusal> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        within(nodes.get_metadata(&self.node)).await.map(|found| found.metadata)
    }

    /// Applies the NodeResourceTopology, and gives it as it stands then.
    pub(super) async fn topology(
        &self,
        object: &NodeResourceTopology,
    ) -> Result<NodeResourceTopology, Refusal> {
        let api: Api<NodeResourceTopology> = Api::all(self.client.clone());
        let how = PatchParams::apply(MANAGER);
        within(api.patch(&self.node, &how, &Patch::Apply(object))).await
    }

    /// Applies those marks that nobody else has set; whether there was anything to write.
    pub(super) async fn marks(&self, node: &ObjectMeta, wanted: &Marks) -> Result<bool, Refusal> {
        let marks = left_to_us(node, wanted);
        if stands(node, &marks) {
            return Ok(false);
        }
        let object = json!({
            "apiVersion": "v1",
            "kind": "Node",
            // The UID: another node of the same name is not meant, and none is to be made.
            "metadata": {
                "name": self.node, "uid": node.uid,
                "labels": marks.labels, "annotations": marks.annotations,
            },
        });
        let nodes: Api<Node> = Api::all(self.client.clone());
        let how = PatchParams::apply(MANAGER);
        within(nodes.patch_metadata(&self.node, &how, &Patch::Apply(&object))).await?;
        Ok(true)
    }

    /// Writes on a pod how it lies.
    pub(super) async fn alignment(&self, pod: &KnownPod, text: &str) -> Result<(), Refusal> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let change = json!({
            "metadata": { "uid": pod.uid, "annotations": { ALIGNMENT: text } },
        });
        let how = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        within(pods.patch_metadata(&pod.name, &how, &Patch::Merge(&change))).await.map(drop)
    }

    /// Tells of it in an event.
    pub(super) async fn event(&self, pod: &KnownPod, note: &Note) -> Result<(), Refusal> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &pod.namespace);
        let event = serde_json::from_value(event(pod, note, &self.node))
            .map_err(|error| Refusal::Failed(error.to_string()))?;
        within(events.create(&PostParams::default(), &event)).await.map(drop)
    }
}

/// What of it is not somebody else's.
fn left_to_us(node: &ObjectMeta, wanted: &Marks) -> Marks {
    let keep =
        |field: &str, there: Option<&BTreeMap<String, String>>, all: &BTreeMap<String, String>| {
            let is_free = |key: &String| {
                let stands = there.is_some_and(|there| there.contains_key(key));
                !stands || others(node, &["metadata", field, key]).is_empty()
            };
            let free = all.iter().filter(|(key, _)| is_free(key));
            free.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
    Marks {
        labels: keep("labels", node.labels.as_ref(), &wanted.labels),
        annotations: keep("annotations", node.annotations.as_ref(), &wanted.annotations),
    }
}

/// Whether the Node has these marks, and no others of ours.
fn stands(node: &ObjectMeta, marks: &Marks) -> bool {
    let same = |field: &str,
                there: Option<&BTreeMap<String, String>>,
                all: &BTreeMap<String, String>| {
        let has =
            |(key, value): (&String, &String)| there.is_some_and(|map| map.get(key) == Some(value));
        all.iter().all(has)
            && ours(node, &["metadata", field]).iter().all(|key| all.contains_key(key))
    };
    same("labels", node.labels.as_ref(), &marks.labels)
        && same("annotations", node.annotations.as_ref(), &marks.annotations)
}

fn event(pod: &KnownPod, note: &Note, instance: &str) -> Value {
    let now = Timestamp::now();
    let cut = note.text.floor_char_boundary(NOTE_BYTES_MAX);
    let stem = pod.name.get(..pod.name.len().min(NAME_BYTES_MAX)).unwrap_or_default();
    let name = format!("{}.{:x}", stem.trim_end_matches(['.', '-']), now.as_nanosecond());
    json!({
        "metadata": { "name": name, "namespace": pod.namespace },
        "eventTime": format!("{now:.6}"),
        "reportingController": MANAGER,
        "reportingInstance": instance,
        "type": if note.warning { "Warning" } else { "Normal" },
        "reason": note.reason,
        "action": "Auditing",
        "note": note.text.get(..cut).unwrap_or_default(),
        "regarding": {
            "apiVersion": "v1", "kind": "Pod",
            "name": pod.name, "namespace": pod.namespace, "uid": pod.uid,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(labels: &[(&str, &str, &str)]) -> ObjectMeta {
        let entry = |(manager, key, _): &(&str, &str, &str)| {
            let fields = json!({ "f:metadata": { "f:labels": { format!("f:{key}"): {} } } });
            json!({ "manager": manager, "operation": "Apply", "fieldsV1": fields })
        };
        let entries: Vec<Value> = labels.iter().map(entry).collect();
        let labels: BTreeMap<&str, &str> =
            labels.iter().map(|(_, key, value)| (*key, *value)).collect();
        let meta = json!({ "labels": labels, "managedFields": entries });
        serde_json::from_value(meta).unwrap_or_default()
    }

    fn wanted(labels: &[(&str, &str)]) -> Marks {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Marks { labels: labels.collect(), ..Marks::default() }
    }

    #[test]
    fn labels_of_others_are_left_alone_and_ours_are_kept() {
        let product = "nvidia.com/gpu.product";
        let wanted = wanted(&[(product, "H100"), ("berth.dev/sockets", "2")]);
        let there = node(&[("nfd-master", product, "H100-SHARED")]);
        let left = left_to_us(&there, &wanted);
        assert_eq!(left.labels.keys().collect::<Vec<_>>(), ["berth.dev/sockets"]);
        assert!(!stands(&there, &left));
        let there =
            node(&[("nfd-master", product, "H100-SHARED"), (MANAGER, "berth.dev/sockets", "2")]);
        assert!(stands(&there, &left_to_us(&there, &wanted)));
        let there = node(&[("kubelet", "a", ""), (MANAGER, product, "H100")]);
        assert_eq!(left_to_us(&there, &wanted), wanted);
    }

    #[test]
    fn a_label_of_ours_that_is_not_wanted_any_more_is_taken_away() {
        let there = node(&[(MANAGER, "berth.dev/sockets", "2"), (MANAGER, "berth.dev/old", "1")]);
        let wanted = wanted(&[("berth.dev/sockets", "2")]);
        assert!(!stands(&there, &left_to_us(&there, &wanted)));
    }
}
