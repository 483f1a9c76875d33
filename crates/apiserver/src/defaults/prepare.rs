//! What creating and updating does to an object, beyond defaults.
//!
//! Owns which parts of a write do not count (a status sent with the rest), generations, and what the
//! server generates itself. Knows no other object.

use serde_json::{Map, Value, json};

use super::{default, default_text, has, pod, text, with, within};
use crate::kinds::{Kind, Origin};

/// Kinds that have a status but keep what is sent in it when they are created.
const KEEPS_STATUS: [(&str, &str); 2] = [("", "nodes"), ("", "persistentvolumes")];

/// Kinds without a generation.
const NO_GENERATION: [(&str, &str); 10] = [
    ("", "namespaces"),
    ("", "nodes"),
    ("", "persistentvolumeclaims"),
    ("", "persistentvolumes"),
    ("", "resourcequotas"),
    ("", "services"),
    ("autoscaling", "horizontalpodautoscalers"),
    ("apiregistration.k8s.io", "apiservices"),
    ("certificates.k8s.io", "certificatesigningrequests"),
    ("resource.k8s.io", "resourceclaims"),
];

/// Kinds that have no status and yet a generation.
const COUNTED: [(&str, &str); 8] = [
    ("scheduling.k8s.io", "priorityclasses"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("networking.k8s.io", "networkpolicies"),
    ("networking.k8s.io", "ingressclasses"),
    ("resource.k8s.io", "deviceclasses"),
    ("resource.k8s.io", "resourceslices"),
    ("discovery.k8s.io", "endpointslices"),
];

fn id(kind: &Kind) -> (&str, &str) {
    (&*kind.resource.group, &*kind.resource.plural)
}

fn has_generation(kind: &Kind) -> bool {
    let custom = matches!(kind.origin, Origin::Custom(_));
    let counted = kind.subresources.status && !NO_GENERATION.contains(&id(kind));
    custom || counted || COUNTED.contains(&id(kind))
}

/// Makes of an object what is stored when it is created: after mutating admission, and after its
/// uid and creation time have been set.
pub fn prepare_create(kind: &Kind, object: &mut Value) {
    let Some(object) = object.as_object_mut() else { return };
    if kind.subresources.status && !KEEPS_STATUS.contains(&id(kind)) {
        match kind.origin {
            Origin::Custom(_) => {
                object.remove("status");
            }
            Origin::BuiltIn => {
                let empty = empty_status(kind);
                object.insert("status".to_owned(), empty);
            }
        }
    }
    match id(kind) {
        ("", "pods") => create_pod(object),
        ("", "namespaces") => create_namespace(object),
        ("", "secrets") => create_secret(object),
        ("", "persistentvolumeclaims") => {
            object.insert("status".to_owned(), json!({"phase": "Pending"}));
        }
        ("", "persistentvolumes") => {
            object.insert("status".to_owned(), json!({"phase": "Pending"}));
        }
        ("batch", "jobs") => create_job(object),
        ("", "resourcequotas") => {}
        _ => {}
    }
    within(object, "metadata", |metadata| {
        metadata.remove("generation");
        if has_generation(kind) {
            metadata.insert("generation".to_owned(), Value::from(1));
        }
    });
}

/// A status that says nothing, as Go writes it.
fn empty_status(kind: &Kind) -> Value {
    let node = crate::schema::of(kind);
    match node.child("status") {
        Some(status) => crate::schema::empty(status),
        None => json!({}),
    }
}

fn create_pod(pod: &mut Map<String, Value>) {
    let Some(spec) = pod.get("spec").and_then(Value::as_object) else { return };
    let mut status = Map::new();
    status.insert("phase".to_owned(), Value::from("Pending"));
    status.insert("qosClass".to_owned(), Value::from(pod::qos_class(spec)));
    let gates = spec.get("schedulingGates").and_then(Value::as_array);
    if gates.is_some_and(|gates| !gates.is_empty()) {
        status.insert(
            "conditions".to_owned(),
            json!([{
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": null,
                "lastTransitionTime": null,
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates"
            }]),
        );
    }
    pod.insert("status".to_owned(), Value::Object(status));
}

fn create_namespace(namespace: &mut Map<String, Value>) {
    namespace.insert("status".to_owned(), json!({"phase": "Active"}));
    within(namespace, "spec", |spec| {
        let kept = spec.get("finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
        if !kept.contains(&json!("kubernetes")) {
            let all: Vec<Value> = kept.into_iter().chain([json!("kubernetes")]).collect();
            spec.insert("finalizers".to_owned(), Value::Array(all));
        }
    });
}

/// Text given for convenience is kept as bytes.
fn create_secret(secret: &mut Map<String, Value>) {
    use base64::Engine;
    let Some(Value::Object(given)) = secret.remove("stringData") else { return };
    let engine = base64::engine::general_purpose::STANDARD;
    within(secret, "data", |data| {
        for (name, value) in given {
            let text = value.as_str().unwrap_or_default();
            data.insert(name, Value::from(engine.encode(text)));
        }
    });
}

/// Selector and labels that only the server knows how to make.
fn create_job(job: &mut Map<String, Value>) {
    let metadata = job.get("metadata").and_then(Value::as_object);
    let name = metadata.map(|m| text(m, "name").to_owned()).unwrap_or_default();
    let uid = metadata.map(|m| text(m, "uid").to_owned()).unwrap_or_default();
    with(job, "spec", |spec| {
        if spec.get("manualSelector") == Some(&Value::Bool(true)) {
            return;
        }
        within(spec, "template", |template| {
            within(template, "metadata", |metadata| {
                within(metadata, "labels", |labels| {
                    default(labels, "controller-uid", uid.as_str());
                    default(labels, "job-name", name.as_str());
                    default(labels, "batch.kubernetes.io/controller-uid", uid.as_str());
                    default(labels, "batch.kubernetes.io/job-name", name.as_str());
                });
            });
        });
        within(spec, "selector", |selector| {
            within(selector, "matchLabels", |labels| {
                default(labels, "batch.kubernetes.io/controller-uid", uid.as_str());
            });
        });
    });
}

/// Makes of an object what is stored when it replaces another: after mutating admission.
/// `subresource` is empty for the object itself.
pub fn prepare_update(kind: &Kind, subresource: &str, old: &Value, new: &mut Value) {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object_mut()) else { return };
    match subresource {
        "status" => keep_all_but_status(kind, old, new),
        "" if kind.subresources.status => keep(old, new, "status"),
        _ => {}
    }
    if subresource.is_empty() {
        update_object(kind, old, new);
    }
    let generation = old.get("metadata").and_then(|m| m.get("generation")).cloned();
    let counts = has_generation(kind) && subresource != "status" && differs(kind, old, new);
    within(new, "metadata", |metadata| match generation {
        Some(before) => {
            let before = before.as_i64().unwrap_or(0);
            metadata.insert("generation".to_owned(), Value::from(before + i64::from(counts)));
        }
        None => {
            metadata.remove("generation");
        }
    });
}

fn keep(old: &Map<String, Value>, new: &mut Map<String, Value>, name: &str) {
    match old.get(name) {
        Some(value) => new.insert(name.to_owned(), value.clone()),
        None => new.remove(name),
    };
}

fn keep_all_but_status(kind: &Kind, old: &Map<String, Value>, new: &mut Map<String, Value>) {
    let names: Vec<String> = old.keys().chain(new.keys()).cloned().collect();
    for name in names {
        if !matches!(name.as_str(), "status" | "metadata" | "apiVersion" | "kind") {
            keep(old, new, &name);
        }
    }
    let managed = new.get("metadata").and_then(|m| m.get("managedFields")).cloned();
    if matches!(kind.origin, Origin::Custom(_)) {
        keep(old, new, "metadata");
        if let Some(managed) = managed {
            within(new, "metadata", |m| {
                m.insert("managedFields".to_owned(), managed);
            });
        }
    }
}

/// Whether what the generation counts has changed.
fn differs(kind: &Kind, old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    let custom = matches!(kind.origin, Origin::Custom(_));
    let whole = custom || COUNTED.contains(&id(kind));
    if whole {
        let skipped = |name: &str| {
            name == "metadata" || name == "status" && (kind.subresources.status || !custom)
        };
        let rest = |map: &Map<String, Value>| -> Vec<(String, Value)> {
            let rest = map.iter().filter(|(name, _)| !skipped(name));
            rest.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        return rest(old) != rest(new);
    }
    let deleting = |map: &Map<String, Value>| {
        map.get("metadata").is_some_and(|m| m.get("deletionTimestamp").is_some())
    };
    let annotations =
        |map: &Map<String, Value>| map.get("metadata").and_then(|m| m.get("annotations")).cloned();
    old.get("spec") != new.get("spec")
        || deleting(old) != deleting(new)
        || (id(kind) == ("apps", "deployments") && annotations(old) != annotations(new))
}

fn update_object(kind: &Kind, old: &Map<String, Value>, new: &mut Map<String, Value>) {
    match id(kind) {
        ("", "secrets") => create_secret(new),
        ("", "namespaces") => {
            if let Some(finalizers) = old.get("spec").and_then(|s| s.get("finalizers")).cloned() {
                within(new, "spec", |spec| {
                    spec.insert("finalizers".to_owned(), finalizers);
                });
            }
        }
        ("", "services") => keep_addresses(old, new),
        ("batch", "jobs") => {
            let before = old.get("spec").and_then(|spec| spec.get("selector")).cloned();
            with(new, "spec", |spec| {
                if let (false, Some(selector)) = (has(spec, "selector"), before) {
                    spec.insert("selector".to_owned(), selector);
                }
            });
        }
        _ => {}
    }
}

/// A service keeps its addresses unless its type changes.
fn keep_addresses(old: &Map<String, Value>, new: &mut Map<String, Value>) {
    let Some(before) = old.get("spec").and_then(Value::as_object) else { return };
    with(new, "spec", |spec| {
        if text(spec, "type") == "ExternalName" || text(before, "type") == "ExternalName" {
            return;
        }
        for name in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if let Some(value) = before.get(name) {
                default(spec, name, value.clone());
            }
        }
        if let Some(address) = before.get("clusterIP").and_then(Value::as_str) {
            default_text(spec, "clusterIP", address);
        }
    });
}
