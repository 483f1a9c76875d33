//! The same meaning as to kubectl: answers recorded from sigs.k8s.io/yaml 1.6.0, which it reads
//! with.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use berth_manifest::{Source, read};
use serde_json::Value;

/// Records of a file of JSON Lines.
fn records(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What is read, if it is one object.
fn value(yaml: &str) -> Result<Value, String> {
    match read(&Source::new("f", yaml)) {
        Ok(documents) if documents.len() == 1 => Ok(documents[0].value()),
        Ok(documents) => Err(format!("{} objects", documents.len())),
        Err(problem) => Err(problem.to_string()),
    }
}

/// Floats that are whole come as integers from one and as floats from the other.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || one.as_f64() == other.as_f64()
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, one)| other.get(key).is_some_and(|other| same(one, other)))
        }
        _ => one == other,
    }
}

#[test]
fn scalars_mean_what_they_mean_to_kubectl() {
    let mut wrong = Vec::new();
    for record in records(include_str!("vectors/scalars.jsonl")) {
        let scalar = record["scalar"].as_str().unwrap();
        let found = value(&format!("k: {scalar}\n"));
        let right = match record["value"].as_str() {
            Some(wanted) => {
                // serde_json is not exact in the last digit of floats.
                let float = wanted.parse::<f64>().ok();
                let wanted: Value = serde_json::from_str(wanted).unwrap();
                found.as_ref().is_ok_and(|found| {
                    same(&found["k"], &wanted) || float.is_some() && found["k"].as_f64() == float
                })
            }
            None => found.is_err(),
        };
        if !right {
            wrong.push(format!("{scalar}: {found:?}, not {}", record["value"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn keys_mean_what_they_mean_to_kubectl() {
    let mut wrong = Vec::new();
    for record in records(include_str!("vectors/scalars.jsonl")) {
        let scalar = record["scalar"].as_str().unwrap();
        let found = value(&format!("{scalar}: 1\n"));
        let right = match (record["key"].as_str(), &found) {
            (Some(wanted), Ok(found)) => found.as_object().unwrap().contains_key(wanted),
            // Not a number: refused as a key as well, with a reason.
            (Some(wanted), Err(_)) => wanted.contains("inf") || wanted.contains("nan"),
            (None, found) => found.is_err(),
        };
        if !right {
            wrong.push(format!("{scalar}: {found:?}, not {}", record["key"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What we refuse although kubectl takes it.
const REFUSED_HERE_ONLY: &[&str] = &[
    // The same key twice: kubectl lets the later one win.
    "on: 1\nyes: 2\n",
    "&a a: &b b\n*a : c\n",
    // A tab after a colon: saphyr-parser does not take it.
    "a:\t1\nb: x\ty\n",
    "a: !!binary aGk=\n",
];

/// What we take although kubectl refuses it.
const TAKEN_HERE_ONLY: &[&str] = &[
    // An escape of YAML 1.2.
    "a: 'it''s'\nb: \"\\t\\u00e9\\x41\\n\\/\"\n",
    // A tab before the first key.
    "\ta: 1\n",
];

#[test]
fn documents_mean_what_they_mean_to_kubectl() {
    let (mut wrong, mut refused, mut taken) = (Vec::new(), Vec::new(), Vec::new());
    for record in records(include_str!("vectors/documents.jsonl")) {
        let yaml = record["yaml"].as_str().unwrap();
        let wanted = record["json"].as_str().map(|json| serde_json::from_str(json).unwrap());
        match (wanted, value(yaml)) {
            (Some(wanted), Ok(found)) if same(&wanted, &found) => {}
            (Some(wanted), Ok(found)) => wrong.push(format!("{yaml:?}: {found}, not {wanted}")),
            // Only objects are read here.
            (Some(wanted), Err(_)) if !wanted.is_object() => {}
            (Some(_), Err(why)) if !REFUSED_HERE_ONLY.contains(&yaml) => {
                refused.push(format!("{yaml:?}: {why}"));
            }
            (None, Ok(found)) if !TAKEN_HERE_ONLY.contains(&yaml) => {
                taken.push(format!("{yaml:?}: {found}"));
            }
            _ => {}
        }
    }
    let wrong = [wrong.join("\n"), refused.join("\n"), taken.join("\n")];
    assert_eq!(wrong, ["", "", ""], "wrong, refused, taken:\n{}", wrong.join("\n--\n"));
}
