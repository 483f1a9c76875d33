//! Defaults of custom resources, from the schema of their definition.

use serde_json::Value;

/// Applies defaults, then drops nulls that the schema does not allow.
pub(super) fn apply(schema: &Value, object: &mut Value) {
    write(schema, object);
    drop_nulls(schema, object);
}

fn write(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            for (name, property) in properties.into_iter().flatten() {
                let Some(default) = property.get("default").filter(|default| !default.is_null())
                else {
                    continue;
                };
                if fields.get(name).is_none_or(|value| is_empty(property, value)) {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields {
                match properties.and_then(|properties| properties.get(name)) {
                    Some(property) => write(property, value),
                    None => write_inner(schema.get("additionalProperties"), value),
                }
            }
        }
        Value::Array(items) => {
            items.iter_mut().for_each(|item| write_inner(schema.get("items"), item));
        }
        _ => {}
    }
}

/// Items of lists and maps are never missing, but can be null.
fn write_inner(schema: Option<&Value>, value: &mut Value) {
    let Some(schema) = schema.filter(|schema| schema.is_object()) else { return };
    if is_empty(schema, value) {
        *value = schema.get("default").cloned().unwrap_or_default();
    }
    write(schema, value);
}

/// Whether a value is null although the schema does not allow it.
fn is_empty(schema: &Value, value: &Value) -> bool {
    value.is_null() && schema.get("nullable") != Some(&Value::Bool(true))
}

fn drop_nulls(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| {
            let property = schema.get("properties").and_then(|properties| properties.get(name));
            let inner = || schema.get("additionalProperties").filter(|inner| inner.is_object());
            let Some(schema) = property.or_else(inner) else { return true };
            let stays = !is_empty(schema, value) || schema.get("default").is_some();
            drop_nulls(schema, value);
            stays
        }),
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                items.iter_mut().for_each(|item| drop_nulls(schema, item));
            }
        }
        _ => {}
    }
}
