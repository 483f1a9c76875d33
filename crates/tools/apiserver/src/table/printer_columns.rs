//! `additionalPrinterColumns` of custom resources, and the part of JSONPath that they use.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{NAME_DESCRIPTION, age, column};
use crate::kinds::CustomRow;

/// The columns of a custom resource, after the name.
pub(super) struct Columns {
    columns: Vec<Column>,
}

struct Column {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    path: Option<Vec<Step>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    /// `[?(@.type=="Ready")]`: items in which the path has the value.
    Where(Vec<Step>, Value, bool),
}

impl Columns {
    /// The columns that a definition names; the age where it names none.
    pub(super) fn of(row: &CustomRow) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut columns: Vec<Column> = row
            .printer_columns
            .iter()
            .map(|given| Column {
                name: text(&given["name"]),
                kind: text(&given["type"]),
                format: text(&given["format"]),
                description: text(&given["description"]),
                priority: given["priority"].as_i64().unwrap_or(0),
                path: parse(given["jsonPath"].as_str().unwrap_or_default()),
            })
            .collect();
        if columns.is_empty() {
            columns.push(Column {
                name: "Age".to_owned(),
                kind: "date".to_owned(),
                format: String::new(),
                description: String::new(),
                priority: 0,
                path: parse(".metadata.creationTimestamp"),
            });
        }
        Self { columns }
    }

    /// All columns as the table defines them.
    pub(super) fn definitions(&self) -> Vec<Value> {
        let first = column("Name", "string", "name", NAME_DESCRIPTION, 0);
        let rest = self
            .columns
            .iter()
            .map(|c| column(&c.name, &c.kind, &c.format, &c.description, c.priority));
        std::iter::once(first).chain(rest).collect()
    }

    pub(super) fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let first = object["metadata"]["name"].clone();
        let rest = self.columns.iter().map(|column| column.cell(object, now));
        std::iter::once(first).chain(rest).collect()
    }
}

impl Column {
    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let Some(path) = &self.path else { return Value::Null };
        let mut found = Vec::new();
        follow(object, path, &mut found);
        let Some(first) = found.first() else { return Value::Null };
        match (self.kind.as_str(), first) {
            ("integer", Value::Number(_)) | ("number", Value::Number(_)) => (*first).clone(),
            ("boolean", Value::Bool(_)) => (*first).clone(),
            ("date", Value::String(_)) => json!(age::since(first, now)),
            ("date", _) => Value::Null,
            ("string", _) => {
                let texts: Vec<String> = found.iter().map(|value| plain(value)).collect();
                json!(texts.join(" "))
            }
            _ => Value::Null,
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// How many values one path may find: more are not read in a cell.
const FOUND_MAX: usize = 256;

fn follow<'a>(value: &'a Value, path: &[Step], found: &mut Vec<&'a Value>) {
    if found.len() >= FOUND_MAX {
        return;
    }
    let Some((step, rest)) = path.split_first() else {
        if !value.is_null() {
            found.push(value);
        }
        return;
    };
    match (step, value) {
        (Step::Field(name), Value::Object(map)) => {
            if let Some(inner) = map.get(name) {
                follow(inner, rest, found);
            }
        }
        (Step::Index(index), Value::Array(items)) => {
            let from_end = || i64::try_from(items.len()).unwrap_or(i64::MAX).checked_add(*index);
            let at = if *index < 0 { from_end() } else { Some(*index) };
            let inner = at.and_then(|at| usize::try_from(at).ok()).and_then(|at| items.get(at));
            if let Some(inner) = inner {
                follow(inner, rest, found);
            }
        }
        (Step::All, Value::Array(items)) => {
            for inner in items {
                follow(inner, rest, found);
            }
        }
        (Step::All, Value::Object(map)) => {
            for inner in map.values() {
                follow(inner, rest, found);
            }
        }
        (Step::Where(condition, wanted, equal), Value::Array(items)) => {
            for inner in items {
                let mut at = Vec::new();
                follow(inner, condition, &mut at);
                if at.contains(&wanted) == *equal {
                    follow(inner, rest, found);
                }
            }
        }
        _ => {}
    }
}

/// Reads a path; none if it uses what is not supported.
fn parse(text: &str) -> Option<Vec<Step>> {
    let text = text.trim();
    let text = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
    let text = text.strip_prefix('$').unwrap_or(text);
    let text = text.strip_prefix('@').unwrap_or(text);
    let mut steps = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        match first {
            '[' => {
                let end = closing(rest)?;
                steps.push(bracket(rest.get(1..end)?)?);
                rest = rest.get(end + 1..)?;
            }
            _ => {
                let name = rest.strip_prefix('.').unwrap_or(rest);
                let (field, after) = field(name);
                match field.as_str() {
                    "" => return if after.is_empty() { Some(steps) } else { None },
                    "*" => steps.push(Step::All),
                    _ => steps.push(Step::Field(field)),
                }
                rest = after;
            }
        }
    }
    Some(steps)
}

/// A name up to the next dot or bracket; `\.` is a dot in a name.
fn field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
            '.' | '[' => return (name, text.get(at..).unwrap_or_default()),
            c => name.push(c),
        }
    }
    (name, "")
}

/// Where the bracket that opens a text closes, not counting those in quotes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn bracket(inside: &str) -> Option<Step> {
    let inside = inside.trim();
    if inside == "*" {
        return Some(Step::All);
    }
    if let Ok(index) = inside.parse() {
        return Some(Step::Index(index));
    }
    if let Some(name) = unquote(inside) {
        return Some(Step::Field(name));
    }
    let filter = inside.strip_prefix("?(")?.strip_suffix(')')?;
    let (path, value, equal) = match filter.split_once("==") {
        Some((path, value)) => (path, value, true),
        None => {
            let (path, value) = filter.split_once("!=")?;
            (path, value, false)
        }
    };
    let value = value.trim();
    let value = match unquote(value) {
        Some(text) => Value::from(text),
        None => serde_json::from_str(value).ok()?,
    };
    Some(Step::Where(parse(path.trim())?, value, equal))
}

fn unquote(text: &str) -> Option<String> {
    ['"', '\'']
        .iter()
        .find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str) -> Vec<Value> {
        let object = json!({
            "metadata": {"labels": {"a.b/c": "x"}},
            "spec": {"items": [1, 2, 3]},
            "status": {"conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "Other", "status": "False"},
            ]},
        });
        let mut found = Vec::new();
        follow(&object, &parse(path).unwrap(), &mut found);
        found.into_iter().cloned().collect()
    }

    #[test]
    fn paths_of_columns_are_followed() {
        assert_eq!(found(".spec.items[0]"), [json!(1)]);
        assert_eq!(found(".spec.items[-1]"), [json!(3)]);
        assert_eq!(found(".spec.items[*]").len(), 3);
        assert_eq!(found(".status.conditions[?(@.type==\"Ready\")].status"), [json!("True")]);
        assert_eq!(found(".status.conditions[?(@.type!='Ready')].status"), [json!("False")]);
        assert_eq!(found(".metadata.labels.a\\.b/c"), [json!("x")]);
        assert_eq!(found(".metadata.labels['a.b/c']"), [json!("x")]);
        assert!(found(".spec.missing").is_empty());
        assert!(parse(".a[").is_none());
    }
}
