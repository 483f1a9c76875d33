//! Types as OpenAPI schemas: what `kubectl explain` shows, and how kubectl merges lists in its patches. The table
//! has no descriptions.

use serde_json::{Map, Value, json};

use super::{ListKind, Node, Shape, Struct, StructRef};

/// The schema of a value. Structures that it refers to are added to `components`.
pub(crate) fn of_node(node: &Node, components: &mut Map<String, Value>) -> Value {
    let mut schema = match &node.shape {
        Shape::Text | Shape::Quantity => json!({"type": "string"}),
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Int32 => json!({"type": "integer", "format": "int32"}),
        Shape::Int64 => json!({"type": "integer", "format": "int64"}),
        Shape::Number => json!({"type": "number", "format": "double"}),
        Shape::IntOrText => json!({"type": "string", "format": "int-or-string"}),
        Shape::Time | Shape::MicroTime => json!({"type": "string", "format": "date-time"}),
        Shape::Bytes => json!({"type": "string", "format": "byte"}),
        Shape::Any => json!({"type": "object"}),
        Shape::Map(inner) => {
            json!({"type": "object", "additionalProperties": of_node(inner, components)})
        }
        Shape::List(inner) => json!({"type": "array", "items": of_node(inner, components)}),
        Shape::Struct(StructRef::Own(own)) => of_struct(own, components),
        Shape::Struct(StructRef::BuiltIn(_)) => {
            let reference = json!({"$ref": reference(node, components)});
            // `$ref` must have no siblings.
            if node.strategy.retain_keys { json!({"allOf": [reference]}) } else { reference }
        }
    };
    let is_list = matches!(node.shape, Shape::List(_));
    match &node.list {
        ListKind::Atomic if is_list => schema["x-kubernetes-list-type"] = json!("atomic"),
        ListKind::Atomic => {}
        ListKind::Set => schema["x-kubernetes-list-type"] = json!("set"),
        ListKind::Map(keys) => {
            schema["x-kubernetes-list-type"] = json!("map");
            schema["x-kubernetes-list-map-keys"] = json!(keys);
        }
    }
    if node.atomic && matches!(node.shape, Shape::Map(_)) {
        schema["x-kubernetes-map-type"] = json!("atomic");
    }
    let strategy = &node.strategy;
    let words = [("merge", strategy.merge), ("retainKeys", strategy.retain_keys)];
    let words: Vec<&str> = words.into_iter().filter(|(_, on)| *on).map(|(word, _)| word).collect();
    if !words.is_empty() {
        schema["x-kubernetes-patch-strategy"] = json!(words.join(","));
    }
    if !strategy.merge_key.is_empty() {
        schema["x-kubernetes-patch-merge-key"] = json!(strategy.merge_key);
    }
    schema
}

/// Where the schema of a structure of the table is; adds it if it is not there.
fn reference(node: &Node, components: &mut Map<String, Value>) -> String {
    let Some(structure) = node.structure() else { return String::new() };
    let name = format!("io.k8s.{}", structure.table_name);
    if !components.contains_key(&name) {
        // A placeholder first: some types contain themselves.
        components.insert(name.clone(), Value::Null);
        let schema = of_struct(structure, components);
        components.insert(name.clone(), schema);
    }
    format!("#/components/schemas/{name}")
}

/// The schema of a structure itself, not a reference to it.
pub(crate) fn of_struct(structure: &Struct, components: &mut Map<String, Value>) -> Value {
    let fields = structure.fields.iter();
    let properties: Map<String, Value> =
        fields.map(|(name, node)| (name.clone(), of_node(node, components))).collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if structure.atomic {
        schema["x-kubernetes-map-type"] = json!("atomic");
    }
    schema
}
