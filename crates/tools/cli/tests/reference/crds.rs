//! The page of the custom resources, from their schemas in the chart and from `examples/objects`.

use std::fmt::Write as _;
use std::path::Path;

use berth_manifest::{Source, Strictness, load};
use berth_scenario::cluster::Objects;
use serde_json::Value;

use crate::markdown::{anchor, code, table};

const NAMES: &[&str] = &["team", "headroom", "pool", "accelerator"];

const HEAD: &str = "\
# Custom resources

All of them are cluster-scoped, of the API version `berth.dev/v1alpha1`, and optional. `kubectl explain` shows
the same descriptions.

";

/// What `x-kubernetes-int-or-string` with the pattern of quantities means to a reader.
const QUANTITY: &str = "quantity";

pub(crate) fn page(root: &Path) -> String {
    let crds: Vec<Value> = NAMES.iter().map(|name| crd(root, name)).collect();
    let mut text = HEAD.to_owned();
    let rows: Vec<Vec<String>> = crds
        .iter()
        .map(|crd| {
            let kind = string(&crd["spec"]["names"]["kind"]);
            vec![
                format!("[{kind}](#{})", anchor(kind)),
                string(&schema(crd)["description"]).to_owned(),
            ]
        })
        .collect();
    text += &table(&["kind", ""], &rows);
    for (name, crd) in NAMES.iter().zip(&crds) {
        let names = &crd["spec"]["names"];
        let _ = write!(
            text,
            "\n## {}\n\n{} `kubectl get {}` (short: `{}`).\n",
            string(&names["kind"]),
            string(&schema(crd)["description"]),
            string(&names["plural"]),
            string(&names["shortNames"][0]),
        );
        let path = format!("examples/objects/{name}.yaml");
        let example = std::fs::read_to_string(root.join(&path)).unwrap();
        let _ = write!(text, "\n[{path}](../../{path}):\n\n```yaml\n{example}```\n");
        for part in ["spec", "status"] {
            let schema = &schema(crd)["properties"][part];
            if schema.is_null() {
                continue;
            }
            let mut rows = Vec::new();
            fields(schema, part, &mut rows);
            let _ = write!(text, "\n{}", table(&["field", "type", "description"], &rows));
            rules(schema, &mut text);
        }
    }
    text
}

fn crd(root: &Path, name: &str) -> Value {
    let path = root.join(format!("chart/crds/{name}s.yaml"));
    let text = std::fs::read_to_string(&path).unwrap();
    let documents = berth_manifest::read(&Source::new("crd", text.as_str())).unwrap();
    documents[0].value()
}

fn schema(crd: &Value) -> &Value {
    &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string"))
}

/// Adds a row for each field below `schema`.
fn fields(schema: &Value, path: &str, rows: &mut Vec<Vec<String>>) {
    let required = schema["required"].as_array();
    let is_required = |name: &str| {
        required.is_some_and(|names| names.iter().any(|required| required.as_str() == Some(name)))
    };
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let is_list = field["type"] == "array";
        let shown = if is_list { format!("{path}[]") } else { path };
        rows.push(vec![code(&shown), type_of(field), description(field, is_required(name))]);
        fields(if is_list { &field["items"] } else { field }, &shown, rows);
    }
}

fn type_of(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return QUANTITY.to_owned();
    }
    match string(&field["type"]) {
        "array" => format!("list of {}", plural(&type_of(&field["items"]))),
        "object" if field["additionalProperties"].is_object() => {
            format!("map of strings to {}", plural(&type_of(&field["additionalProperties"])))
        }
        one => one.to_owned(),
    }
}

fn plural(noun: &str) -> String {
    match noun.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{noun}s"),
    }
}

fn description(field: &Value, is_required: bool) -> String {
    let mut text = field["description"].as_str().unwrap_or_default().to_owned();
    let mut add = |sentence: String| {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&sentence);
    };
    if is_required {
        add("Required.".to_owned());
    }
    let values = field["enum"].as_array().or(field["items"]["enum"].as_array());
    if let Some(values) = values {
        let values: Vec<String> = values.iter().map(|value| code(string(value))).collect();
        add(format!("One of {}.", values.join(", ")));
    }
    match (field["minimum"].as_i64(), field["maximum"].as_i64()) {
        (Some(least), Some(most)) => add(format!("From {least} to {most}.")),
        (Some(least), None) => add(format!("At least {least}.")),
        (None, Some(most)) => add(format!("At most {most}.")),
        (None, None) => {}
    }
    if let Some(most) = field["maxItems"].as_i64() {
        add(format!("At most {most} items."));
    }
    match &field["default"] {
        Value::Null => {}
        Value::String(empty) if empty.is_empty() => {}
        default => add(format!("Default: {}.", code(&default.to_string().replace('"', "")))),
    }
    text
}

/// The validation rules of a schema and below, as sentences.
fn rules(schema: &Value, text: &mut String) {
    let mut messages = Vec::new();
    collect(schema, &mut messages);
    if !messages.is_empty() {
        let _ = write!(text, "\nThe API server also checks: {}.\n", messages.join("; "));
    }
}

fn collect(schema: &Value, messages: &mut Vec<String>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        messages.push(string(&rule["message"]).to_owned());
    }
    for field in schema["properties"].as_object().into_iter().flatten().map(|(_, field)| field) {
        collect(field, messages);
    }
    if schema["items"].is_object() {
        collect(&schema["items"], messages);
    }
}

#[test]
fn example_objects_are_read_without_complaint() {
    let directory = crate::root().join("examples/objects");
    let documents = load(&[directory], &mut std::io::empty(), Strictness::Manifest).unwrap();
    assert_eq!(documents.len(), NAMES.len());
    let objects = Objects::new(documents).unwrap();
    berth_scenario::cluster::read(&objects).unwrap();
}
