//! Values as text: quotes and indentation.

use serde_json::Value;

use crate::scalar::{self, Scalar};

#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// Whether nothing but JSON will do.
    pub(super) json: bool,
    /// Spaces from a map to one inside of it.
    pub(super) indent: usize,
    /// Spaces from a key to the dashes of its list.
    pub(super) list_indent: usize,
    pub(super) newline: &'static str,
}

/// A value on one line.
pub(super) fn flow(value: &Value, style: Style) -> String {
    if style.json {
        return value.to_string();
    }
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| flow(item, style)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| {
                format!("{}: {}", scalar_text(key), flow(value, style))
            };
            let fields: Vec<String> = fields.iter().map(field).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::String(text) => scalar_text(text),
        other => other.to_string(),
    }
}

/// Whether a value is written as lines of its own.
pub(super) fn is_block(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    }
}

/// What follows `key:` when the key is indented by `indent`.
pub(super) fn after_key(value: &Value, indent: usize, style: Style) -> String {
    let inner = match value {
        Value::Array(_) => indent + style.list_indent,
        _ => indent + style.indent,
    };
    if is_block(value) {
        format!("{}{}{}", style.newline, " ".repeat(inner), block(value, inner, style))
    } else {
        format!(" {}", flow(value, style))
    }
}

/// `key: value`.
pub(super) fn field(key: &str, value: &Value, indent: usize, style: Style) -> String {
    format!("{}:{}", scalar_text(key), after_key(value, indent, style))
}

/// Lines at this indentation; the first is without it.
pub(super) fn block(value: &Value, indent: usize, style: Style) -> String {
    let lines: Vec<String> = match value {
        Value::Array(items) if !items.is_empty() => {
            let item = |item: &Value| format!("- {}", block(item, indent + 2, style));
            items.iter().map(item).collect()
        }
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().map(|(key, value)| field(key, value, indent, style)).collect()
        }
        other => return flow(other, style),
    };
    lines.join(&format!("{}{}", style.newline, " ".repeat(indent)))
}

/// Text with quotes if it needs them, here or in older or newer versions of YAML.
pub(super) fn scalar_text(text: &str) -> String {
    let plain = |one: char| one.is_ascii_alphanumeric() || "_./-+@".contains(one);
    let first = |one: char| one.is_ascii_alphabetic() || "_/".contains(one) || one.is_ascii_digit();
    let colon = text.contains(':') && !text.ends_with(':');
    let safe = text.starts_with(first)
        && text.chars().all(|one| plain(one) || (one == ':' && colon))
        && matches!(scalar::resolve(text), Scalar::Text)
        && !looks_like_a_time(text);
    if safe { text.to_owned() } else { quoted(text) }
}

/// `12:30` and `2026-01-01` are text to kubectl, but not to everybody.
fn looks_like_a_time(text: &str) -> bool {
    text.bytes().all(|one| one.is_ascii_digit() || b"-:.TZ+".contains(&one))
}

/// JSON's quotes are also YAML's.
pub(super) fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// The same in single quotes, where that can be.
pub(super) fn single_quoted(text: &str) -> Option<String> {
    let simple = text.chars().all(|one| !one.is_control() && one != '\'');
    simple.then(|| format!("'{text}'"))
}
