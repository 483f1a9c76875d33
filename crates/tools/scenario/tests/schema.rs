//! The JSON Schema says what the format is: every example is valid, and typical mistakes are not.
#![allow(
    clippy::panic,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "tests fail by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};

use berth_manifest::{Source, read};
use berth_scenario::json_schema;
use regex::Regex;
use serde_json::{Value, json};

/// What is invalid about a value, by the keywords that the schema uses. Any other keyword is an error,
/// so that nothing passes unchecked.
fn problems(root: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    let valid = |schema: &Value| problems(root, schema, value, at).is_empty();
    let schema = match schema {
        Value::Bool(true) => return found,
        Value::Bool(false) => return vec![format!("{at} is unknown")],
        schema => schema.as_object().unwrap(),
    };
    for (keyword, rule) in schema {
        let holds = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" | "$defs" | "then" => true,
            "$ref" => {
                let target = root.pointer(&rule.as_str().unwrap()[1..]).unwrap();
                found.extend(problems(root, target, value, at));
                true
            }
            "if" => {
                if valid(rule) {
                    found.extend(problems(root, &schema["then"], value, at));
                }
                true
            }
            "type" => {
                let types = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                types.iter().any(|one| match one.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    "number" => value.is_number(),
                    "integer" => value.is_u64() || value.is_i64(),
                    other => panic!("type {other}"),
                })
            }
            "const" => value == rule,
            "enum" => rule.as_array().unwrap().contains(value),
            "anyOf" => rule.as_array().unwrap().iter().any(valid),
            "oneOf" => rule.as_array().unwrap().iter().filter(|one| valid(one)).count() == 1,
            "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
            "pattern" => {
                let pattern = Regex::new(rule.as_str().unwrap()).unwrap();
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "required" => value.as_object().is_none_or(|fields| {
                rule.as_array()
                    .unwrap()
                    .iter()
                    .all(|name| fields.contains_key(name.as_str().unwrap()))
            }),
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    found.extend(problems(root, rule, item, &format!("{at}[{index}]")));
                }
                true
            }
            "properties" | "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                for (name, field) in value.as_object().into_iter().flatten() {
                    let rule = match (keyword.as_str(), known.and_then(|known| known.get(name))) {
                        ("properties", Some(of_field)) => of_field,
                        ("additionalProperties", None) => rule,
                        _ => continue,
                    };
                    found.extend(problems(root, rule, field, &format!("{at}.{name}")));
                }
                true
            }
            other => panic!("keyword {other}"),
        };
        if !holds {
            found.push(format!("{at}: {keyword} {rule}: {value}"));
        }
    }
    found
}

fn invalid(value: &Value) -> Vec<String> {
    let schema = json_schema();
    problems(&schema, &schema, value, "")
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
}

#[test]
fn every_example_is_valid() {
    let mut paths = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples"), &mut paths);
    let mut scenarios = 0;
    for path in paths {
        let source = Source::new(path.display().to_string(), fs::read_to_string(&path).unwrap());
        for document in read(&source).unwrap() {
            let value = document.value();
            scenarios += usize::from(value["kind"] == "Scenario");
            assert_eq!(invalid(&value), [""; 0], "{}", path.display());
        }
    }
    assert!(scenarios >= 8, "{scenarios} scenarios");
}

#[test]
fn mistakes_are_invalid() {
    let scenario = |spec: Value| {
        json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Scenario",
            "metadata": { "name": "test" }, "spec": spec,
        })
    };
    assert_eq!(invalid(&scenario(json!({ "duration": "1h30m" }))), [""; 0]);
    for spec in [
        json!({ "durations": "1h" }),
        json!({ "duration": "1 fortnight" }),
        json!({ "duration": 3600 }),
        json!({ "cluster": { "pools": [{ "count": 1 }] } }),
        json!({ "cluster": { "pools": [{ "name": "a", "count": -1 }] } }),
        json!({ "failures": [{ "at": "1h" }] }),
        json!({ "failures": [{ "at": "1h", "fault": { "nodeLost": "a" } }] }),
        json!({ "failures": [{ "at": "1h", "fault": { "nodeLoss": "a", "zoneLoss": "b" } }] }),
        json!({ "compare": [{ "scheduler": "slurm" }] }),
    ] {
        assert!(!invalid(&scenario(spec.clone())).is_empty(), "{spec}");
    }
}

/// The reference page is generated from these.
#[test]
fn every_field_that_needs_words_has_them() {
    let schema = json_schema();
    let mut missing = Vec::new();
    for (name, definition) in schema["$defs"].as_object().unwrap() {
        for (field, property) in definition["properties"].as_object().into_iter().flatten() {
            let reference = property.get("$ref").or_else(|| property.pointer("/anyOf/0/$ref"));
            let target =
                reference.and_then(Value::as_str).and_then(|path| schema.pointer(&path[1..]));
            let is_described = |one: &Value| one["description"].is_string();
            if !is_described(property) && !target.is_some_and(is_described) {
                missing.push(format!("{name}.{field}"));
            }
        }
    }
    // These say all in their name and type.
    let plain = [
        "Autoscale.max",
        "Autoscale.min",
        "Gpus.count",
        "Machine.coresPerNuma",
        "Machine.numaPerSocket",
        "Machine.sockets",
        "Machine.threadsPerCore",
        "Scenario.metadata",
        "Setup.name",
        "Slowdown.mean",
        "Slowdown.p99",
    ];
    assert_eq!(missing, plain);
}
