//! Values as Go's `%v` prints them, for messages.

use serde_json::Value;

/// A value as `%v` prints what Go decodes from this JSON.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(plain).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(map) => {
            let entries: Vec<String> =
                map.iter().map(|(key, value)| format!("{key}:{}", plain(value))).collect();
            format!("map[{}]", entries.join(" "))
        }
        other => other.to_string(),
    }
}

/// What Go calls the type of a value that it decodes from this JSON.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
