//! A stored object: its value, and its JSON as bytes.
//!
//! The bytes leave out `apiVersion` and `kind`, which readers add. So one serialization serves gets, lists (whose
//! items have neither), watches, and all versions of a custom resource.

use std::sync::Arc;

use bytes::Bytes;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::{Map, Value};

/// Where an object stands among those of its resource: `namespace/name`, or `name` alone.
///
/// One text and not a pair, because that is how the objects of a list are ordered.
pub type Key = Arc<str>;

pub fn key_of(namespace: &str, name: &str) -> Key {
    if namespace.is_empty() { Arc::from(name) } else { Arc::from(format!("{namespace}/{name}")) }
}

#[derive(Debug)]
pub struct Stored {
    /// The whole object.
    pub value: Arc<Value>,
    /// Its JSON without `apiVersion` and `kind`.
    pub body: Bytes,
    /// The revision that wrote it, also in its `metadata.resourceVersion`.
    pub revision: u64,
    pub key: Key,
}

impl Stored {
    /// Takes a value that already carries the revision in its metadata.
    pub(super) fn new(key: Key, value: Value, revision: u64) -> Self {
        let body = Bytes::from(body_of(&value));
        Self { value: Arc::new(value), body, revision, key }
    }

    /// For dry runs.
    pub fn unsaved(key: Key, value: Value, revision: u64) -> Self {
        Self::new(key, value, revision)
    }

    pub fn at_revision(&self, revision: u64) -> Self {
        let mut value = Value::clone(&self.value);
        set_revision(&mut value, revision);
        Self::new(self.key.clone(), value, revision)
    }

    /// `metadata.namespace`, empty for objects outside of namespaces.
    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// `metadata.name`.
    pub fn name(&self) -> &str {
        self.key.split_once('/').map_or(&*self.key, |(_, name)| name)
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &str {
        self.value["metadata"]["uid"].as_str().unwrap_or_default()
    }
}

pub fn set_revision(value: &mut Value, revision: u64) {
    if let Some(object) = value.as_object_mut() {
        let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("resourceVersion".to_owned(), Value::from(revision.to_string()));
        }
    }
}

/// The JSON of an object without `apiVersion` and `kind`.
pub fn body_of(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    let written = match value {
        Value::Object(map) => serde_json::to_writer(&mut out, &Untyped(map)),
        other => serde_json::to_writer(&mut out, other),
    };
    // A `Value` has text keys and finite numbers, and a `Vec` takes all bytes: this cannot fail.
    debug_assert!(written.is_ok(), "a value is always serialisable");
    out
}

/// Writes `kind` and `apiVersion`, then the rest of an object whose body is given.
pub fn write_typed(out: &mut Vec<u8>, api_version: &str, kind: &str, body: &[u8]) {
    out.extend_from_slice(b"{\"kind\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"apiVersion\":\"");
    out.extend_from_slice(api_version.as_bytes());
    out.push(b'"');
    if body.len() > 2 {
        out.push(b',');
    }
    out.extend_from_slice(body.get(1..).unwrap_or(b"}"));
}

struct Untyped<'a>(&'a Map<String, Value>);

impl Serialize for Untyped<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.0 {
            if key != "apiVersion" && key != "kind" {
                map.serialize_entry(key, value)?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn typed_and_untyped_bytes_are_the_same_object() {
        let value = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, "x": 1});
        let body = body_of(&value);
        assert_eq!(String::from_utf8_lossy(&body), r#"{"metadata":{"name":"a"},"x":1}"#);
        let mut typed = Vec::new();
        write_typed(&mut typed, "v1", "Pod", &body);
        assert_eq!(serde_json::from_slice::<Value>(&typed).unwrap(), value);
        let mut empty = Vec::new();
        write_typed(&mut empty, "v1", "Pod", b"{}");
        assert_eq!(
            serde_json::from_slice::<Value>(&empty).unwrap(),
            json!({"kind": "Pod", "apiVersion": "v1"})
        );
    }
}
