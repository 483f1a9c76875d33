//! The JSON Schema of the scenario format, generated from its types.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::file::{KIND, Scenario};

/// The JSON Schema (draft 2020-12) of a document with `kind: Scenario`, which is `$defs/Scenario`.
/// Documents of other kinds are valid, because a scenario's file may contain its manifests.
pub fn json_schema() -> Value {
    let mut schema =
        SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Scenario>();
    let mut root = std::mem::take(schema.ensure_object());
    let definitions = root.remove("$defs");
    let dialect = root.remove("$schema");
    let mut definitions = match definitions {
        Some(Value::Object(definitions)) => definitions,
        _ => Map::new(),
    };
    definitions.insert(KIND.to_owned(), Value::Object(root));
    let mut definitions = Value::Object(definitions);
    tidy(&mut definitions);
    json!({
        "$schema": dialect,
        "title": "Berth scenario",
        "if": { "required": ["kind"], "properties": { "kind": { "const": KIND } } },
        "then": { "$ref": format!("#/$defs/{KIND}") },
        "$defs": definitions,
    })
}

/// Forbids fields that the format does not know, and removes defaults that say nothing and names of
/// number formats that editors do not know.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if let Some(Value::Object(_)) = object.get("properties") {
                object.entry("additionalProperties").or_insert(Value::Bool(false));
            }
            let is_empty = |value: &Value| match value {
                Value::Null => true,
                Value::String(text) => text.is_empty(),
                Value::Array(items) => items.is_empty(),
                Value::Object(fields) => fields.is_empty(),
                Value::Number(number) => number.as_f64() == Some(0.0),
                Value::Bool(value) => !value,
            };
            if object.get("default").is_some_and(is_empty) {
                object.remove("default");
            }
            if object.get("format").is_some_and(Value::is_string) {
                object.remove("format");
            }
            object.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}
