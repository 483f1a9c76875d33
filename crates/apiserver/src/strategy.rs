//! What a kind does with an object before it is stored: which parts a write may touch, what a new
//! object starts with, when the generation moves on.
//!
//! These are the real server's strategies without their defaults and validation. Pure.

use serde_json::{Map, Value, json};

use crate::kinds::{Kind, Origin};

/// Which part of an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The object itself.
    Main,
    /// Its status.
    Status,
}

/// Kinds whose objects count their generations.
fn has_generation(kind: &Kind) -> bool {
    if matches!(kind.origin, Origin::Custom(_)) {
        return true;
    }
    let plural = &*kind.resource.plural;
    match &*kind.resource.group {
        "" => matches!(plural, "pods" | "podtemplates" | "replicationcontrollers"),
        "apps" => plural != "controllerrevisions",
        "admissionregistration.k8s.io"
        | "apiextensions.k8s.io"
        | "batch"
        | "networking.k8s.io"
        | "policy"
        | "discovery.k8s.io"
        | "scheduling.k8s.io" => true,
        "resource.k8s.io" => matches!(plural, "deviceclasses" | "resourceslices"),
        _ => false,
    }
}

/// Whether a kind's new objects keep the status they come with.
fn keeps_status_of_new(kind: &Kind) -> bool {
    kind.is("", "nodes") || !kind.subresources.status
}

/// Whether replacing an object that is not there creates it.
pub(crate) fn creates_on_update(kind: &Kind) -> bool {
    let plural = &*kind.resource.plural;
    match &*kind.resource.group {
        "" => matches!(plural, "endpoints" | "events" | "limitranges" | "services"),
        "rbac.authorization.k8s.io" | "coordination.k8s.io" | "events.k8s.io" => true,
        _ => false,
    }
}

/// Whether objects can be replaced without saying which revision is replaced.
pub(crate) fn updates_unconditionally(kind: &Kind) -> bool {
    if matches!(kind.origin, Origin::Custom(_)) {
        return false;
    }
    !matches!(
        (&*kind.resource.group, &*kind.resource.plural),
        ("policy", _)
            | ("coordination.k8s.io", _)
            | ("apiextensions.k8s.io", _)
            | ("admissionregistration.k8s.io", _)
            | ("node.k8s.io", _)
    )
}

/// Prepares a new object.
pub(crate) fn prepare_for_create(kind: &Kind, object: &mut Value) {
    if has_generation(kind) {
        object["metadata"]["generation"] = Value::from(1);
    }
    let status = match (&*kind.resource.group, &*kind.resource.plural) {
        _ if keeps_status_of_new(kind) => return,
        ("", "namespaces") => {
            add_namespace_finalizer(object);
            Some(json!({"phase": "Active"}))
        }
        ("", "pods" | "persistentvolumes" | "persistentvolumeclaims") => {
            Some(json!({"phase": "Pending"}))
        }
        ("", "services") => Some(json!({"loadBalancer": {}})),
        ("", "replicationcontrollers") | ("apps", "replicasets") => Some(json!({"replicas": 0})),
        ("apps", "daemonsets") => Some(json!({
            "currentNumberScheduled": 0,
            "numberMisscheduled": 0,
            "desiredNumberScheduled": 0,
            "numberReady": 0,
        })),
        ("apps", "statefulsets") => Some(json!({"replicas": 0, "availableReplicas": 0})),
        ("policy", "poddisruptionbudgets") => Some(json!({
            "disruptionsAllowed": 0,
            "currentHealthy": 0,
            "desiredHealthy": 0,
            "expectedPods": 0,
        })),
        ("networking.k8s.io", "ingresses") => Some(json!({"loadBalancer": {}})),
        ("autoscaling", _) => Some(json!({"desiredReplicas": 0, "currentMetrics": null})),
        ("storage.k8s.io", "volumeattachments") => Some(json!({"attached": false})),
        _ if matches!(kind.origin, Origin::BuiltIn) => Some(json!({})),
        _ => None,
    };
    let Some(object) = object.as_object_mut() else { return };
    match status {
        Some(status) => {
            object.insert("status".to_owned(), status);
        }
        None => {
            object.remove("status");
        }
    }
}

const NAMESPACE_FINALIZER: &str = "kubernetes";

fn add_namespace_finalizer(object: &mut Value) {
    let spec = object_at(object, "spec");
    let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = finalizers.as_array_mut()
        && !list.iter().any(|entry| entry == NAMESPACE_FINALIZER)
    {
        list.push(Value::from(NAMESPACE_FINALIZER));
    }
}

fn object_at<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !object[field].is_object() {
        object[field] = Value::Object(Map::new());
    }
    match &mut object[field] {
        Value::Object(map) => map,
        _ => unreachable!("it was made an object above"),
    }
}

/// Prepares a changed object: keeps what this write must not touch, moves the generation on.
pub(crate) fn prepare_for_update(kind: &Kind, part: Part, old: &Value, new: &mut Value) {
    match part {
        Part::Status => keep_all_but_status(kind, old, new),
        Part::Main => {
            if kind.subresources.status {
                keep(old, new, "status");
            }
            if kind.is("", "namespaces")
                && let Some(finalizers) = old["spec"].get("finalizers")
            {
                new["spec"]["finalizers"] = finalizers.clone();
            }
            if has_generation(kind) && moves_generation(kind, old, new) {
                let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
                new["metadata"]["generation"] = Value::from(generation.saturating_add(1));
            }
        }
    }
}

fn keep(old: &Value, new: &mut Value, field: &str) {
    let Some(object) = new.as_object_mut() else { return };
    match old.get(field) {
        Some(value) => {
            object.insert(field.to_owned(), value.clone());
        }
        None => {
            object.remove(field);
        }
    }
}

fn keep_all_but_status(kind: &Kind, old: &Value, new: &mut Value) {
    let status = new.get("status").cloned();
    let mut metadata = new["metadata"].clone();
    if matches!(kind.origin, Origin::Custom(_)) {
        let managed = metadata.get("managedFields").cloned();
        metadata = old["metadata"].clone();
        if let Some(managed) = managed {
            metadata["managedFields"] = managed;
        }
    } else {
        for field in ["ownerReferences", "generation"] {
            keep(&old["metadata"], &mut metadata, field);
        }
        if matches!(&*kind.resource.group, "apps" | "batch") {
            keep(&old["metadata"], &mut metadata, "labels");
        }
    }
    *new = old.clone();
    new["metadata"] = metadata;
    if let Some(object) = new.as_object_mut() {
        match status {
            Some(status) => {
                object.insert("status".to_owned(), status);
            }
            None => {
                object.remove("status");
            }
        }
    }
}

/// Whether anything but metadata and status differs.
fn moves_generation(kind: &Kind, old: &Value, new: &Value) -> bool {
    let (Some(before), Some(after)) = (old.as_object(), new.as_object()) else { return false };
    let counts = |key: &String| {
        !matches!(key.as_str(), "metadata" | "apiVersion" | "kind")
            && !(key == "status" && kind.subresources.status)
    };
    let differs = before
        .keys()
        .chain(after.keys())
        .any(|key| counts(key) && before.get(key) != after.get(key));
    // Deployments also count changed annotations.
    differs
        || (kind.is("apps", "deployments")
            && old["metadata"]["annotations"] != new["metadata"]["annotations"])
}

/// Whether an update leaves an object that was waiting for its finalizers with none of them.
pub(crate) fn is_finished(kind: &Kind, old: &Value, new: &Value) -> bool {
    let empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    let waits = old["metadata"]["deletionTimestamp"].is_string()
        && old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
    waits
        && empty(&new["metadata"]["finalizers"])
        && (!kind.is("", "namespaces") || empty(&new["spec"]["finalizers"]))
}
