//! Paths, bodies and content types of the requests.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use berth_api::keys::{FENCED_CLAIM, FENCED_CONDITION, PLACEMENT};
use berth_protobuf::Written;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::core::{BindOrder, EventNote, Eviction, StatusUpdate};
use crate::lease::PodRef;
use crate::object_statuses::ObjectStatus;

/// Field manager, and reporting controller of events.
const MANAGER: &str = "berth";

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

const NOTE_MAX_BYTES: usize = 1_024;

/// How much of a pod's name goes into the name of its events.
const NAME_MAX_BYTES: usize = 230;

fn request(method: http::Method, path: String, kind: &str, body: &Value) -> http::Request<Vec<u8>> {
    request_of(method, path, kind, body.to_string().into_bytes())
}

fn request_of(
    method: http::Method,
    path: String,
    kind: &str,
    body: Vec<u8>,
) -> http::Request<Vec<u8>> {
    let mut request = http::Request::new(body);
    *request.method_mut() = method;
    if let Ok(uri) = path.parse() {
        *request.uri_mut() = uri;
    }
    if let Ok(kind) = http::HeaderValue::from_str(kind) {
        request.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    }
    request
}

fn pod_path(pod: &PodRef, subresource: &str) -> String {
    format!("/api/v1/namespaces/{}/pods/{}/{subresource}", pod.namespace, pod.name)
}

/// Binds a pod if it still has this version.
pub(super) fn binding(
    order: &BindOrder,
    version: u64,
    annotation: Option<&str>,
) -> Option<http::Request<Vec<u8>>> {
    // Without a version the API server would bind the pod whatever has changed.
    let version = Some(version).filter(|version| *version > 0)?;
    // In protobuf, by the field numbers of Binding, ObjectMeta and ObjectReference: this request is sent for every
    // pod, and the API server decodes it in a fraction of the time.
    let meta = Written::new().text(1, &order.pod.name).text(3, &order.pod.namespace);
    let meta = meta.text(5, &order.pod.uid).text(6, &version.to_string());
    let meta = match annotation {
        Some(text) => meta.entry(12, PLACEMENT, text),
        None => meta,
    };
    let target = Written::new().text(1, "Node").text(3, &order.binding.node).text(5, "v1");
    let body = Written::new().message(1, meta).message(2, target).into_object("v1", "Binding");
    let path = pod_path(&order.pod, "binding");
    Some(request_of(http::Method::POST, path, berth_protobuf::MEDIA_TYPE, body))
}

pub(super) fn disruption_target(order: &Eviction) -> http::Request<Vec<u8>> {
    let condition = json!({
        "type": "DisruptionTarget",
        "status": "True",
        "reason": order.why,
        "message": why(order),
        "lastTransitionTime": now(),
    });
    let body =
        json!({ "metadata": { "uid": order.pod.uid }, "status": { "conditions": [condition] } });
    let path = format!("{}?fieldManager={MANAGER}", pod_path(&order.pod, "status"));
    request(http::Method::PATCH, path, STRATEGIC, &body)
}

fn why(order: &Eviction) -> &'static str {
    match order.waiting {
        Some(_) => "berth: preempted by a pod that is ahead in the queue",
        None => "berth: the gang cannot start as a whole",
    }
}

/// Evicts a pod with its own grace period.
pub(super) fn eviction(pod: &PodRef) -> http::Request<Vec<u8>> {
    let body = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": pod.name, "namespace": pod.namespace },
        "deleteOptions": { "preconditions": { "uid": pod.uid } },
    });
    request(http::Method::POST, pod_path(pod, "eviction"), JSON, &body)
}

/// `None` if there is nothing to write.
pub(super) fn status(update: &StatusUpdate) -> Option<http::Request<Vec<u8>>> {
    let mut status = json!({});
    if let Some(condition) = &update.condition {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": now(),
        }]);
    }
    if let Some(nominated) = &update.nominated {
        status["nominatedNodeName"] = json!(nominated);
    }
    if update.condition.is_none() && update.nominated.is_none() {
        return None;
    }
    // The UID excludes another pod of the same name; the version, one that has been bound meanwhile.
    let version = update.version.to_string();
    let body = json!({
        "metadata": { "uid": update.pod.uid, "resourceVersion": version },
        "status": status,
    });
    let path = format!("{}?fieldManager={MANAGER}", pod_path(&update.pod, "status"));
    Some(request(http::Method::PATCH, path, STRATEGIC, &body))
}

pub(super) fn status_patch(object: &ObjectStatus) -> http::Request<Vec<u8>> {
    let ObjectStatus { plural, name, status } = object;
    let path = format!("/apis/berth.dev/v1alpha1/{plural}/{name}/status?fieldManager={MANAGER}");
    request(http::Method::PATCH, path, MERGE, &json!({ "status": status }))
}

/// Changes a condition, and so the pod's resource version.
pub(super) fn fence(pod: &PodRef, by: &str) -> http::Request<Vec<u8>> {
    let condition = json!({
        "type": FENCED_CONDITION,
        "status": "True",
        "reason": "LeaderChanged",
        "message": format!("Fenced against in-flight bindings of previous leaders ({})", nonce(by)),
        "lastTransitionTime": now(),
    });
    let body = json!({ "metadata": { "uid": pod.uid }, "status": { "conditions": [condition] } });
    let path = format!("{}?fieldManager={MANAGER}", pod_path(pod, "status"));
    request(http::Method::PATCH, path, STRATEGIC, &body)
}

/// Changes a label, and so the claim's resource version.
pub(super) fn fence_claim(
    namespace: &str,
    name: &str,
    uid: &str,
    by: &str,
) -> http::Request<Vec<u8>> {
    let labels = json!({ FENCED_CLAIM: nonce(by) });
    let body = json!({ "metadata": { "uid": uid, "labels": labels } });
    let path = format!(
        "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}?fieldManager={MANAGER}"
    );
    request(http::Method::PATCH, path, STRATEGIC, &body)
}

/// A label value that differs with every fence, because the API server does not write a patch without effect. Its
/// length is constant, so that a second fence does not make the object larger.
fn nonce(by: &str) -> String {
    let mut hasher = DefaultHasher::new();
    by.hash(&mut hasher);
    format!("{:016x}-{:032x}", hasher.finish(), Timestamp::now().as_nanosecond())
}

pub(super) fn event(pod: &PodRef, note: &EventNote, identity: &str) -> http::Request<Vec<u8>> {
    let kind = if note.warning { "Warning" } else { "Normal" };
    recorded(pod, (kind, note.reason, "Scheduling"), &note.note, identity)
}

pub(super) fn evicted_event(order: &Eviction, identity: &str) -> http::Request<Vec<u8>> {
    recorded(&order.pod, ("Normal", "Preempted", "Preempting"), why(order), identity)
}

fn recorded(
    pod: &PodRef,
    (kind, reason, action): (&str, &str, &str),
    note: &str,
    identity: &str,
) -> http::Request<Vec<u8>> {
    let cut = note.floor_char_boundary(NOTE_MAX_BYTES);
    let now = Timestamp::now();
    // client-go's scheme; pod names are ASCII.
    let stem = pod.name.get(..pod.name.len().min(NAME_MAX_BYTES)).unwrap_or_default();
    let name = format!("{}.{:x}", stem.trim_end_matches(['.', '-']), now.as_nanosecond());
    let body = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": pod.namespace },
        "eventTime": format!("{now:.6}"),
        "reportingController": MANAGER,
        "reportingInstance": identity,
        "type": kind,
        "reason": reason,
        "action": action,
        "note": note.get(..cut).unwrap_or_default(),
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
        },
    });
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", pod.namespace);
    request(http::Method::POST, path, JSON, &body)
}

fn now() -> String {
    format!("{:.0}", Timestamp::now())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use berth_engine::decision::Binding;
    use berth_model::alignment::Alignment;
    use berth_protobuf::{Envelope, MAGIC, from_message};
    use k8s_openapi::api::core::v1 as core;

    use super::*;

    #[test]
    fn a_binding_says_which_pod_at_which_version_goes_where_and_what_is_written_on_it() {
        let order = BindOrder {
            pod: PodRef { namespace: "n".into(), name: "p".into(), uid: "u".into() },
            version: 300,
            binding: Binding {
                pod: "u".into(),
                node: "node-1".into(),
                gpu_grant: None,
                devices: None,
                alignment: Alignment::Floating,
                numa: None,
            },
            claims: [].into(),
            volumes: Vec::new(),
            attempts: 0,
            is_last_attempt: false,
            created_at_ms: 0,
        };
        let long = format!("{{\"why\":\"{}\"}}", "x".repeat(500));
        let request = binding(&order, 300, Some(&long)).unwrap();
        assert_eq!(request.uri(), "/api/v1/namespaces/n/pods/p/binding");
        let envelope = Envelope::open(request.body().strip_prefix(MAGIC).unwrap()).unwrap();
        assert_eq!((envelope.api_version, envelope.kind), ("v1", "Binding"));
        let read: core::Binding = from_message(envelope.raw).unwrap();
        let expected: core::Binding = serde_json::from_value(json!({
            "metadata": { "name": "p", "namespace": "n", "uid": "u", "resourceVersion": "300",
                          "annotations": { PLACEMENT: long } },
            "target": { "apiVersion": "v1", "kind": "Node", "name": "node-1" },
        }))
        .unwrap();
        assert_eq!(read, expected);
        assert!(binding(&order, 0, None).is_none());
    }
}
