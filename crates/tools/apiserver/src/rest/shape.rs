//! How a stored object is written for the kind it was asked for as.
//!
//! Events are stored in their core shape and HorizontalPodAutoscalers as `autoscaling/v2`; both are served in two
//! shapes. Versions of custom resources differ in their `apiVersion` only.

use serde_json::{Map, Value, json};

use crate::kinds::Kind;
use crate::store::{Stored, body_of, write_typed};

/// Core name, and the name that `events.k8s.io` gives to the same.
const EVENT_NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Kinds that are stored in another shape than they are served in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reshaped {
    NewEvent,
    OldAutoscaler,
}

fn reshaped(kind: &Kind) -> Option<Reshaped> {
    if kind.is("events.k8s.io", "events") {
        Some(Reshaped::NewEvent)
    } else if kind.is("autoscaling", "horizontalpodautoscalers") && &*kind.version == "v1" {
        Some(Reshaped::OldAutoscaler)
    } else {
        None
    }
}

pub(crate) fn write_object(out: &mut Vec<u8>, kind: &Kind, object: &Stored) {
    if reshaped(kind).is_some() {
        let body = body_of(&served(kind, &object.value));
        write_typed(out, &kind.api_version(), &kind.kind, &body);
    } else {
        write_typed(out, &kind.api_version(), &kind.kind, &object.body);
    }
}

/// An object without its type.
pub(crate) fn write_body(out: &mut Vec<u8>, kind: &Kind, object: &Stored) {
    if reshaped(kind).is_some() {
        out.extend_from_slice(&body_of(&served(kind, &object.value)));
    } else {
        out.extend_from_slice(&object.body);
    }
}

/// An object as the kind it is served as.
pub(crate) fn served(kind: &Kind, stored: &Value) -> Value {
    let mut value = stored.clone();
    match reshaped(kind) {
        Some(Reshaped::NewEvent) => {
            rename(&mut value, EVENT_NAMES.iter().copied());
            drop_empty(&mut value, &["reportingController", "reportingInstance"]);
        }
        Some(Reshaped::OldAutoscaler) => older_autoscaler(&mut value),
        None => {}
    }
    set_type(kind, &mut value);
    value
}

/// What a client sent, in the shape in which it is stored.
pub(crate) fn to_stored(kind: &Kind, mut sent: Value) -> Value {
    let version = match reshaped(kind) {
        Some(Reshaped::NewEvent) => {
            rename(&mut sent, EVENT_NAMES.iter().map(|(core, new)| (*new, *core)));
            "v1"
        }
        Some(Reshaped::OldAutoscaler) => {
            newer_autoscaler(&mut sent);
            "autoscaling/v2"
        }
        None => return sent,
    };
    if let Some(object) = sent.as_object_mut() {
        object.insert("apiVersion".to_owned(), Value::from(version));
    }
    sent
}

const CPU_TARGET: &str = "targetCPUUtilizationPercentage";

/// From `autoscaling/v1` to `v2`: the only metric of `v1` is CPU utilization.
fn newer_autoscaler(value: &mut Value) {
    let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(target) = spec.remove(CPU_TARGET) {
        let target = json!({"type": "Utilization", "averageUtilization": target});
        let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        spec.insert("metrics".to_owned(), json!([metric]));
    }
}

/// From `autoscaling/v2` to `v1`, which has neither other metrics nor conditions.
fn older_autoscaler(value: &mut Value) {
    if let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) {
        let metrics = spec.remove("metrics").unwrap_or_default();
        let mut metrics = metrics.as_array().into_iter().flatten();
        let cpu = metrics.find(|metric| metric.pointer("/resource/name") == Some(&json!("cpu")));
        let target = cpu.and_then(|cpu| cpu.pointer("/resource/target/averageUtilization"));
        if let Some(target) = target {
            spec.insert(CPU_TARGET.to_owned(), target.clone());
        }
        spec.remove("behavior");
    }
    if let Some(status) = value.get_mut("status").and_then(Value::as_object_mut) {
        status.retain(|field, _| !matches!(field.as_str(), "conditions" | "currentMetrics"));
    }
}

/// Writes the type of a kind into an object.
pub(crate) fn set_type(kind: &Kind, value: &mut Value) {
    if let Some(object) = value.as_object_mut() {
        object.insert("apiVersion".to_owned(), Value::from(kind.api_version()));
        object.insert("kind".to_owned(), Value::from(&*kind.kind));
    }
}

fn drop_empty(value: &mut Value, fields: &[&str]) {
    let Some(object) = value.as_object_mut() else { return };
    object.retain(|key, field| !(fields.contains(&key.as_str()) && field == ""));
}

fn rename<'a>(value: &mut Value, names: impl Iterator<Item = (&'a str, &'a str)>) {
    let Some(object) = value.as_object_mut() else { return };
    let mut moved = Map::new();
    for (from, to) in names {
        if let Some(field) = object.remove(from) {
            moved.insert(to.to_owned(), field);
        }
    }
    object.append(&mut moved);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Kinds;

    #[test]
    fn an_autoscaler_of_v1_is_stored_as_v2_and_served_as_both() {
        let table = Kinds::default().table();
        let kind =
            |version| table.find("autoscaling", version, "horizontalpodautoscalers").unwrap();
        let sent = json!({
            "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50},
        });
        let mut stored = to_stored(kind("v1"), sent.clone());
        assert_eq!(stored["apiVersion"], "autoscaling/v2");
        let target = "/spec/metrics/0/resource/target/averageUtilization";
        assert_eq!(stored.pointer(target), Some(&json!(50)));
        assert_eq!(served(kind("v1"), &stored), sent);
        stored["status"] = json!({"desiredReplicas": 2, "conditions": []});
        assert_eq!(served(kind("v1"), &stored)["status"], json!({"desiredReplicas": 2}));
        assert_eq!(served(kind("v2"), &stored)["status"]["conditions"], json!([]));
    }
}
