//! Decodes objects without `metadata.managedFields`, which can be as large as the rest of the object and changes with
//! every write. It is skipped in the text.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor,
};
use serde::forward_to_deserialize_any;

pub(super) fn from_str<K: DeserializeOwned>(text: &str) -> serde_json::Result<K> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let object = K::deserialize(Lean { inner: &mut reader, level: Level::Object })?;
    reader.end()?;
    Ok(object)
}

/// Nesting level.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Object,
    Metadata,
}

/// Wraps a deserializer, visitor, seed or map access, and hides fields from it.
struct Lean<T> {
    inner: T,
    level: Level,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Lean<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Lean { inner: visitor, level: self.level })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_option(Lean { inner: visitor, level: self.level })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Objects and their metadata are maps or absent; anything else is an error.
impl<'de, V: Visitor<'de>> Visitor<'de> for Lean<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Entries { map, level: self.level, in_metadata: false })
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Lean { inner: deserializer, level: self.level })
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Lean<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Lean { inner: deserializer, level: self.level })
    }
}

/// Map access without hidden entries.
struct Entries<A> {
    map: A,
    level: Level,
    /// Whether the next value is the metadata of an object.
    in_metadata: bool,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Entries<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        mut seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        loop {
            let key = Key { seed, level: self.level, in_metadata: &mut self.in_metadata };
            match self.map.next_key_seed(key)? {
                None => return Ok(None),
                Some(Shown::Key(key)) => return Ok(Some(key)),
                Some(Shown::Not(unused)) => seed = unused,
            }
            self.map.next_value::<IgnoredAny>()?;
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        if self.in_metadata {
            self.map.next_value_seed(Lean { inner: seed, level: Level::Metadata })
        } else {
            self.map.next_value_seed(seed)
        }
    }
}

/// A key, unless it is hidden.
enum Shown<K, S> {
    Key(K),
    Not(S),
}

struct Key<'a, S> {
    seed: S,
    level: Level,
    in_metadata: &'a mut bool,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Key<'_, S> {
    type Value = Shown<S::Value, S>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for Key<'_, S> {
    type Value = Shown<S::Value, S>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        if self.level == Level::Metadata && key == "managedFields" {
            return Ok(Shown::Not(self.seed));
        }
        *self.in_metadata = self.level == Level::Object && key == "metadata";
        self.seed.deserialize(StrDeserializer::new(key)).map(Shown::Key)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_reads_as_if_nobody_had_noted_who_wrote_it() {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "p\u{e9}\"", "labels": { "managedFields": "kept" },
                "managedFields": [{ "manager": "x", "fieldsV1": { "f:spec": { "f:a": {} } } }],
                "uid": "1",
            },
            "spec": { "containers": [{ "name": "c", "resources": { "limits": { "cpu": "1" } } }] },
            "status": { "phase": "Pending" },
        });
        let read: Pod = from_str(&pod.to_string()).unwrap();
        pod["metadata"]["managedFields"].take();
        let expected: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(read, expected);
        assert_eq!(read.metadata.uid.as_deref(), Some("1"));
    }

    #[test]
    fn what_is_no_object_is_an_error_that_says_so() {
        for text in ["3", "[]", r#"{"metadata":"x"}"#, r#"{"metadata":{}} more"#, "{", ""] {
            let error = from_str::<Pod>(text).unwrap_err().to_string();
            let plain = serde_json::from_str::<Pod>(text).unwrap_err().to_string();
            assert_eq!(error, plain, "{text}");
        }
    }
}
