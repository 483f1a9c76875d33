//! Writes to the API. Topologies and labels are applied server-side without force, so fields of other clients are
//! conflicts and stay untouched.

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

use super::alignment::PodEvent;
use super::owners::{MANAGER, others, ours};
use super::pods::KnownPod;

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits: the note of an Event, and the part of a pod's name in the name of an Event.
const NOTE_BYTES_MAX: usize = 1024;
const NAME_BYTES_MAX: usize = 230;

/// Why an object was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// Another client owns a field.
    #[error("{0}")]
    Conflict(String),
    #[error("not found in the cluster")]
    NotFound,
    #[error("{0}")]
    Failed(String),
}

impl WriteError {
    fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 409 => {
                Self::Conflict(status.message.clone())
            }
            kube::Error::Api(status) if status.code == 404 => Self::NotFound,
            other => Self::Failed(other.to_string()),
        }
    }
}

async fn within<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, WriteError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| WriteError::of(&error)),
        Err(_) => {
            Err(WriteError::Failed(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())))
        }
    }
}

/// Berth's labels and annotations of the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeMetadata {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
}

pub(super) struct ApiWriter {
    client: Client,
    node: String,
}

impl ApiWriter {
    pub(super) fn new(client: Client, node: String) -> Self {
        Self { client, node }
    }

    /// Metadata of the Node, with its field managers.
    pub(super) async fn node(&self) -> Result<ObjectMeta, WriteError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        within(nodes.get_metadata(&self.node)).await.map(|found| found.metadata)
    }

    /// Applies the NodeResourceTopology, and returns the new version.
    pub(super) async fn topology(
        &self,
        object: &NodeResourceTopology,
    ) -> Result<NodeResourceTopology, WriteError> {
        let api: Api<NodeResourceTopology> = Api::all(self.client.clone());
        let how = PatchParams::apply(MANAGER);
        within(api.patch(&self.node, &how, &Patch::Apply(object))).await
    }

    /// Applies the metadata that no other client owns. Returns whether anything had to be written.
    pub(super) async fn node_metadata(
        &self,
        node: &ObjectMeta,
        wanted: &NodeMetadata,
    ) -> Result<bool, WriteError> {
        let metadata = without_foreign(node, wanted);
        if is_current(node, &metadata) {
            return Ok(false);
        }
        let object = json!({
            "apiVersion": "v1",
            "kind": "Node",
            // The UID: the patch must not apply to another Node with this name, nor create one.
            "metadata": {
                "name": self.node, "uid": node.uid,
                "labels": metadata.labels, "annotations": metadata.annotations,
            },
        });
        let nodes: Api<Node> = Api::all(self.client.clone());
        let how = PatchParams::apply(MANAGER);
        within(nodes.patch_metadata(&self.node, &how, &Patch::Apply(&object))).await?;
        Ok(true)
    }

    /// Sets the annotation of a pod.
    pub(super) async fn alignment(&self, pod: &KnownPod, text: &str) -> Result<(), WriteError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let change = json!({
            "metadata": { "uid": pod.uid, "annotations": { ALIGNMENT: text } },
        });
        let how = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        within(pods.patch_metadata(&pod.name, &how, &Patch::Merge(&change))).await.map(drop)
    }

    pub(super) async fn event(&self, pod: &KnownPod, note: &PodEvent) -> Result<(), WriteError> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &pod.namespace);
        let event = serde_json::from_value(event(pod, note, &self.node))
            .map_err(|error| WriteError::Failed(error.to_string()))?;
        within(events.create(&PostParams::default(), &event)).await.map(drop)
    }
}

/// The part of `wanted` that no other client owns.
fn without_foreign(node: &ObjectMeta, wanted: &NodeMetadata) -> NodeMetadata {
    let keep =
        |field: &str, there: Option<&BTreeMap<String, String>>, all: &BTreeMap<String, String>| {
            let is_free = |key: &String| {
                let present = there.is_some_and(|there| there.contains_key(key));
                !present || others(node, &["metadata", field, key]).is_empty()
            };
            let free = all.iter().filter(|(key, _)| is_free(key));
            free.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
    NodeMetadata {
        labels: keep("labels", node.labels.as_ref(), &wanted.labels),
        annotations: keep("annotations", node.annotations.as_ref(), &wanted.annotations),
    }
}

/// Whether the Node has this metadata, and no other of Berth's.
fn is_current(node: &ObjectMeta, metadata: &NodeMetadata) -> bool {
    let same = |field: &str,
                there: Option<&BTreeMap<String, String>>,
                all: &BTreeMap<String, String>| {
        let has =
            |(key, value): (&String, &String)| there.is_some_and(|map| map.get(key) == Some(value));
        all.iter().all(has)
            && ours(node, &["metadata", field]).iter().all(|key| all.contains_key(key))
    };
    same("labels", node.labels.as_ref(), &metadata.labels)
        && same("annotations", node.annotations.as_ref(), &metadata.annotations)
}

fn event(pod: &KnownPod, note: &PodEvent, instance: &str) -> Value {
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

    fn wanted(labels: &[(&str, &str)]) -> NodeMetadata {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        NodeMetadata { labels: labels.collect(), ..NodeMetadata::default() }
    }

    #[test]
    fn labels_of_other_clients_are_left_alone() {
        let product = "nvidia.com/gpu.product";
        let wanted = wanted(&[(product, "H100"), ("berth.dev/sockets", "2")]);
        let there = node(&[("nfd-master", product, "H100-SHARED")]);
        let left = without_foreign(&there, &wanted);
        assert_eq!(left.labels.keys().collect::<Vec<_>>(), ["berth.dev/sockets"]);
        assert!(!is_current(&there, &left));
        let there =
            node(&[("nfd-master", product, "H100-SHARED"), (MANAGER, "berth.dev/sockets", "2")]);
        assert!(is_current(&there, &without_foreign(&there, &wanted)));
        let there = node(&[("kubelet", "a", ""), (MANAGER, product, "H100")]);
        assert_eq!(without_foreign(&there, &wanted), wanted);
    }

    #[test]
    fn a_label_that_is_no_longer_wanted_is_removed() {
        let there = node(&[(MANAGER, "berth.dev/sockets", "2"), (MANAGER, "berth.dev/old", "1")]);
        let wanted = wanted(&[("berth.dev/sockets", "2")]);
        assert!(!is_current(&there, &without_foreign(&there, &wanted)));
    }
}
