//! Objects that Kubernetes' own Go code has written, read into types.
//!
//! `vectors/protobuf.jsonl` was made with `k8s.io/api` 0.36.4: objects of every kind, empty, with all
//! pointers set to nothing, with everything filled, and by chance; each as protobuf and as the JSON that Go
//! writes after it has read that protobuf back.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_protobuf::{Envelope, MAGIC, from_message};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The messages of a kind, and the JSON of each.
fn vectors(kind: &str) -> Vec<(Vec<u8>, Value)> {
    let lines = include_str!("vectors/protobuf.jsonl").lines();
    let read = lines.map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        (STANDARD.decode(line["protobuf"].as_str().unwrap()).unwrap(), line["json"].clone())
    });
    read.filter(|(_, json)| json["kind"] == kind).collect()
}

fn message(object: &[u8]) -> &[u8] {
    Envelope::open(object.strip_prefix(MAGIC).unwrap()).unwrap().raw
}

/// What JSON leaves out or empty is the same to whoever reads it: nothing is there.
fn without_nothing(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(key, _)| key != "managedFields")
            .map(|(key, value)| (key, without_nothing(value)))
            .filter(|(_, value)| !is_nothing(value))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nothing).collect(),
        value => value,
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        // The second is no time at all.
        Value::String(text) => matches!(&**text, "" | "1970-01-01T00:00:00Z"),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

fn read_as_from_json<T: DeserializeOwned + Serialize>(kind: &str) {
    let all = vectors(kind);
    assert!(all.len() >= 3, "{kind}");
    for (object, json) in all {
        let ours: T = from_message(message(&object)).unwrap();
        let theirs: T = serde_json::from_value(json).unwrap();
        let plain = |object: &T| without_nothing(serde_json::to_value(object).unwrap());
        assert_eq!(plain(&ours), plain(&theirs), "{kind}");
    }
}

#[test]
fn messages_are_read_as_the_json_that_go_writes_of_them() {
    read_as_from_json::<Pod>("Pod");
    read_as_from_json::<Node>("Node");
    read_as_from_json::<PersistentVolumeClaim>("PersistentVolumeClaim");
}

#[test]
fn damaged_messages_are_refused_with_the_field_or_read_but_never_break_anything() {
    let (mut refused, mut named) = (0, 0);
    for (object, _) in vectors("Pod") {
        let whole = message(&object);
        for at in (0..whole.len()).step_by(1 + whole.len() / 400) {
            for damage in [0x00, 0x7f, 0xff] {
                let mut message = whole.to_vec();
                message[at] ^= damage;
                message.truncate(if damage == 0 { at } else { whole.len() });
                if let Err(error) = from_message::<Pod>(&message) {
                    refused += 1;
                    named += usize::from(error.to_string().starts_with("spec."));
                }
            }
        }
    }
    assert!(refused > 500 && named > 50, "{refused} refused, {named} of them in the spec");
}
