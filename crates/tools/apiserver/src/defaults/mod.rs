//! Kubernetes 1.36's defaults ([`apply`]), and what creating and updating does to an object beyond them
//! ([`prepare_create`], [`prepare_update`]).

mod cluster;
mod custom;
mod pod;
mod prepare;
mod workload;

use serde_json::{Map, Value, json};

pub use pod::qos_class;
pub use prepare::{prepare_create, prepare_update};

use crate::kinds::{Kind, Origin};

/// Writes the defaults of a kind into one of its objects.
pub fn apply(kind: &Kind, object: &mut Value) {
    if let Origin::Custom(row) = &kind.origin {
        return custom::apply(&row.schema, object);
    }
    let Some(object) = object.as_object_mut() else { return };
    let (group, plural) = (&*kind.resource.group, &*kind.resource.plural);
    match (group, plural) {
        ("", "pods") => pod::apply(object),
        ("", "podtemplates") => {
            with(object, "template", |template| with(template, "spec", pod::apply_spec));
        }
        ("apps", _) | ("batch", _) | ("", "replicationcontrollers") => {
            workload::apply(plural, object);
        }
        _ => cluster::apply(group, plural, object),
    }
}

/// Sets a field that is not there.
fn default(map: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    let slot = map.entry(name).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value.into();
    }
}

/// Sets a text that is missing or empty.
fn default_text(map: &mut Map<String, Value>, name: &str, value: &str) {
    if map.get(name).and_then(Value::as_str).is_none_or(str::is_empty) {
        map.insert(name.to_owned(), Value::from(value));
    }
}

fn with(map: &mut Map<String, Value>, name: &str, f: impl FnOnce(&mut Map<String, Value>)) {
    if let Some(inner) = map.get_mut(name).and_then(Value::as_object_mut) {
        f(inner);
    }
}

/// As [`with`], but creates the object if it is missing.
fn within(map: &mut Map<String, Value>, name: &str, f: impl FnOnce(&mut Map<String, Value>)) {
    default(map, name, json!({}));
    with(map, name, f);
}

fn each(map: &mut Map<String, Value>, name: &str, mut f: impl FnMut(&mut Map<String, Value>)) {
    let items = map.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten();
    items.filter_map(Value::as_object_mut).for_each(&mut f);
}

fn text<'a>(map: &'a Map<String, Value>, name: &str) -> &'a str {
    map.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn has(map: &Map<String, Value>, name: &str) -> bool {
    map.get(name).is_some_and(|value| !value.is_null())
}
