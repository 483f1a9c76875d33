//! Objects that may not be what they should be.
//!
//! Owns reading one object of a list or of a watch without losing the others: what cannot be read keeps
//! its name, so that it can be told of. kube has a guard of its own, which copies every object twice;
//! this one looks at the text a second time only if the first look fails. Must not know any kind.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, de};
use serde_json::value::RawValue;

use super::lean;

/// An object, or what is wrong with it.
#[derive(Clone, Debug)]
pub(super) struct Guarded<K>(pub(super) Result<K, Unreadable>);

/// An object that cannot be read.
#[derive(Clone, Debug)]
pub(super) struct Unreadable {
    pub(super) problem: String,
    pub(super) metadata: ObjectMeta,
}

/// What every object has.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    metadata: ObjectMeta,
}

/// As much of it as names an object, if even its other metadata cannot be read.
#[derive(Deserialize)]
struct BarelyNamed {
    metadata: BareMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BareMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let error = match lean::from_str(text.get()) {
            Ok(object) => return Ok(Self(Ok(object))),
            Err(error) => error,
        };
        let metadata = match serde_json::from_str::<Named>(text.get()) {
            Ok(Named { metadata }) => metadata,
            Err(_) => {
                let bare: BarelyNamed =
                    serde_json::from_str(text.get()).map_err(de::Error::custom)?;
                let BareMeta { name, namespace, uid, resource_version } = bare.metadata;
                ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() }
            }
        };
        Ok(Self(Err(Unreadable { problem: error.to_string(), metadata })))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(unreadable) => &unreadable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(unreadable) => &mut unreadable.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use k8s_openapi::api::core::v1::Pod;
    use kube::api::WatchEvent;
    use kube::core::ObjectList;

    use super::*;

    #[test]
    fn one_bad_object_does_not_spoil_a_list() {
        let text = r#"{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"7"},"items":[
            {"metadata":{"name":"good"},"spec":{"containers":[]}},
            {"metadata":{"name":"bad","namespace":"a"},"spec":{"containers":3}},
            {"metadata":{"name":"worse","labels":3},"spec":{"containers":[]}}]}"#;
        let list: ObjectList<Guarded<Pod>> = serde_json::from_str(text).unwrap();
        let [good, bad, worse] = &list.items[..] else { panic!("{list:?}") };
        assert!(good.0.is_ok());
        assert_eq!(bad.meta().namespace.as_deref(), Some("a"));
        assert!(bad.0.as_ref().unwrap_err().problem.contains("invalid type"));
        assert_eq!(worse.meta().name.as_deref(), Some("worse"));
    }

    #[test]
    fn an_event_of_a_watch_is_read_without_a_copy() {
        let pod = r#"{"metadata":{"name":"p","uid":"1"},"spec":{"containers":[]}}"#;
        let text = format!(r#"{{"type":"ADDED","object":{pod}}}"#);
        let WatchEvent::Added(read) =
            serde_json::from_str::<WatchEvent<Guarded<Pod>>>(&text).unwrap()
        else {
            panic!("{text}")
        };
        assert!(read.0.is_ok());
    }
}
