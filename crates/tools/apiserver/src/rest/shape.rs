//! How a stored object is written for the kind it was asked for as.
//!
//! Events are stored in their core shape and served in two. Versions of custom resources differ in
//! their `apiVersion` only.

use serde_json::{Map, Value};

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

fn is_new_event(kind: &Kind) -> bool {
    kind.is("events.k8s.io", "events")
}

/// An object with its type.
pub(crate) fn write_object(out: &mut Vec<u8>, kind: &Kind, object: &Stored) {
    if is_new_event(kind) {
        let body = body_of(&served(kind, &object.value));
        write_typed(out, &kind.api_version(), &kind.kind, &body);
    } else {
        write_typed(out, &kind.api_version(), &kind.kind, &object.body);
    }
}

/// An object without its type.
pub(crate) fn write_body(out: &mut Vec<u8>, kind: &Kind, object: &Stored) {
    if is_new_event(kind) {
        out.extend_from_slice(&body_of(&served(kind, &object.value)));
    } else {
        out.extend_from_slice(&object.body);
    }
}

/// An object as the kind it is served as.
pub(crate) fn served(kind: &Kind, stored: &Value) -> Value {
    let mut value = stored.clone();
    if is_new_event(kind) {
        rename(&mut value, EVENT_NAMES.iter().copied());
        drop_empty(&mut value, &["reportingController", "reportingInstance"]);
    }
    set_type(kind, &mut value);
    value
}

/// What a client sent, in the shape in which it is stored.
pub(crate) fn to_stored(kind: &Kind, mut sent: Value) -> Value {
    if is_new_event(kind) {
        rename(&mut sent, EVENT_NAMES.iter().map(|(core, new)| (*new, *core)));
        if let Some(object) = sent.as_object_mut() {
            object.insert("apiVersion".to_owned(), Value::from("v1"));
        }
    }
    sent
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
