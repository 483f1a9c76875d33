//! Schemas of custom resources: lists, maps and unknown fields.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::{ListKind, Node, Shape, Struct, StructRef, named};

/// Nesting limit; anything below is accepted.
const MAX_DEPTH: usize = 64;

/// The schema of a custom resource's kind: its own, with what every object has.
pub fn of_custom_resource(schema: &Value, preserve_unknown: bool) -> Node {
    let mut own = structure(schema, 0);
    for key in ["apiVersion", "kind"] {
        own.fields.insert(key.to_owned(), Node::plain(Shape::Text));
    }
    own.fields.insert("metadata".to_owned(), named("ObjectMeta"));
    if preserve_unknown || schema.is_null() {
        own.rest = Some(Box::new(Node::plain(Shape::Any)));
    }
    Node::plain(Shape::Struct(StructRef::Own(Arc::new(own))))
}

fn structure(schema: &Value, depth: usize) -> Struct {
    let mut fields = BTreeMap::new();
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (name, property) in properties {
            fields.insert(name.clone(), node(property, depth + 1));
        }
    }
    let open = flag(schema, "x-kubernetes-preserve-unknown-fields");
    let rest = open.then(|| Box::new(Node::plain(Shape::Any)));
    Struct { fields, rest, atomic: is_atomic_map(schema), ..Struct::default() }
}

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn is_atomic_map(schema: &Value) -> bool {
    schema.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic")
}

fn node(schema: &Value, depth: usize) -> Node {
    if depth > MAX_DEPTH {
        return Node::plain(Shape::Any);
    }
    let mut node = Node::plain(shape(schema, depth));
    node.atomic = is_atomic_map(schema);
    node.key_default = schema.get("default").cloned();
    node.list = match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("set") => ListKind::Set,
        Some("map") => {
            let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
            let keys = keys.into_iter().flatten().filter_map(Value::as_str);
            ListKind::Map(keys.map(str::to_owned).collect())
        }
        _ => ListKind::Atomic,
    };
    node
}

fn shape(schema: &Value, depth: usize) -> Shape {
    if flag(schema, "x-kubernetes-int-or-string") {
        return Shape::IntOrText;
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => Shape::Text,
        Some("boolean") => Shape::Bool,
        Some("integer") => Shape::Int64,
        Some("number") => Shape::Number,
        Some("array") => {
            let items = schema.get("items").map(|items| node(items, depth + 1));
            Shape::List(Box::new(items.unwrap_or_else(|| Node::plain(Shape::Any))))
        }
        Some("object") => object(schema, depth),
        _ => Shape::Any,
    }
}

fn object(schema: &Value, depth: usize) -> Shape {
    let has_properties = schema.get("properties").is_some();
    match schema.get("additionalProperties") {
        Some(inner @ Value::Object(_)) if !has_properties => {
            Shape::Map(Box::new(node(inner, depth + 1)))
        }
        Some(Value::Bool(true)) if !has_properties => Shape::Map(Box::new(Node::plain(Shape::Any))),
        _ if !has_properties && flag(schema, "x-kubernetes-preserve-unknown-fields") => Shape::Any,
        _ => {
            let mut own = structure(schema, depth);
            if flag(schema, "x-kubernetes-embedded-resource") {
                own.fields.insert("metadata".to_owned(), named("ObjectMeta"));
                for key in ["apiVersion", "kind"] {
                    own.fields.insert(key.to_owned(), Node::plain(Shape::Text));
                }
            }
            Shape::Struct(StructRef::Own(Arc::new(own)))
        }
    }
}
