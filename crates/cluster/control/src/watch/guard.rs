//! Decodes the objects of a list or watch one by one. An object that cannot be decoded keeps its name, so that it can
//! be reported and the others are not lost.
//!
//! kube's own guard copies every object twice; this one reads the text a second time only if decoding fails.

use std::borrow::Cow;
use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, de};
use serde_json::value::RawValue;

use super::{Watched, lean};

#[derive(Clone, Debug)]
pub(super) struct Guarded<K>(pub(super) Result<K, Unreadable>);

#[derive(Clone, Debug)]
pub(super) struct Unreadable {
    pub(super) problem: String,
    pub(super) metadata: ObjectMeta,
}

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    metadata: ObjectMeta,
}

/// The fields that name an object, in case other metadata cannot be decoded.
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

impl<K: DeserializeOwned> Guarded<K> {
    /// Reads an object.
    ///
    /// # Errors
    /// When it has not even a name.
    pub(super) fn read(text: &str) -> serde_json::Result<Self> {
        let error = match lean::from_str(text) {
            Ok(object) => return Ok(Self(Ok(object))),
            Err(error) => error,
        };
        let metadata = match serde_json::from_str::<Named>(text) {
            Ok(Named { metadata }) => metadata,
            Err(_) => {
                let bare: BarelyNamed = serde_json::from_str(text)?;
                let BareMeta { name, namespace, uid, resource_version } = bare.metadata;
                ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() }
            }
        };
        Ok(Self(Err(Unreadable { problem: error.to_string(), metadata })))
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Self::read(text.get()).map_err(de::Error::custom)
    }
}

impl<K> Watched for Guarded<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    type Object = K;

    fn object(self) -> Result<K, String> {
        self.0.map_err(|Unreadable { problem, metadata }| {
            format!("{}: {problem}", metadata.name.unwrap_or_default())
        })
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

    use std::sync::Arc;

    use berth_testkit::cluster::Dice;
    use k8s_openapi::api::core::v1::Pod;
    use kube::api::WatchEvent;
    use kube::core::ObjectList;
    use serde_json::json;

    use super::super::{SchedulerNames, seen_pod};
    use super::*;
    use crate::core::SeenPod;

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

    /// A pod that uses much of what pods can say.
    fn pod(containers: usize) -> String {
        let container = |at: usize| {
            let amounts = json!({ "cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "1" });
            json!({ "name": format!("c{at}"), "image": "a:1", "ports": [{ "hostPort": at }],
                    "resources": { "requests": amounts, "limits": amounts } })
        };
        let term = json!({ "topologyKey": "zone", "labelSelector": {
            "matchExpressions": [{ "key": "a", "operator": "In", "values": ["b"] }] } });
        let affinity = json!({ "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [term] } });
        json!({
            "metadata": { "name": "p", "namespace": "n", "uid": "1", "resourceVersion": "7",
                          "labels": { "a": "b" }, "annotations": { "c": "x".repeat(200) } },
            "spec": { "containers": (0..containers).map(container).collect::<Vec<_>>(),
                      "schedulerName": "berth", "affinity": affinity, "priority": 5,
                      "tolerations": [{ "key": "k", "operator": "Exists", "tolerationSeconds": 3 }] },
            "status": { "phase": "Pending" },
        })
        .to_string()
    }

    /// Reads a text as the watch does, up to what the core is told.
    fn see(text: &[u8]) -> Option<Result<SeenPod, String>> {
        let read: Guarded<Pod> = serde_json::from_slice(text).ok()?;
        let names: SchedulerNames = Arc::new(["berth".into()]);
        Some(match read.0 {
            Ok(pod) => seen_pod(&pod, &names),
            Err(unreadable) => Err(unreadable.problem),
        })
    }

    #[test]
    fn text_that_was_tampered_with_is_read_or_refused_and_never_more() {
        let whole = pod(3).into_bytes();
        assert!(see(&whole).unwrap().is_ok());
        let mut dice = Dice::new(1);
        let (mut read, mut rejected) = (0, 0);
        for _ in 0..4_000 {
            let mut text = whole.clone();
            for _ in 0..=dice.below(3) {
                let at = dice.below(text.len());
                match dice.below(4) {
                    0 => text[at] = u8::try_from(dice.below(256)).unwrap_or_default(),
                    1 => drop(text.drain(at..(at + dice.below(40)).min(text.len()))),
                    2 => drop(text.splice(at..at, *b"99999999999999999999")),
                    _ => drop(text.splice(
                        at..at,
                        [b"[".as_slice(), b"\xff", b"-", b"null"][dice.below(4)].to_vec(),
                    )),
                }
            }
            match see(&text) {
                Some(Ok(_)) => read += 1,
                Some(Err(why)) => {
                    assert!(!why.is_empty());
                    rejected += 1;
                }
                None => rejected += 1,
            }
        }
        assert!(read > 100 && rejected > 100, "{read} read, {rejected} rejected");
    }

    #[test]
    fn a_pod_of_ten_thousand_containers_takes_memory_in_proportion() {
        let text = pod(10_000);
        let mut seen = None;
        let used = allocation_counter::measure(|| seen = see(text.as_bytes()));
        assert!(seen.is_some());
        let factor = used.bytes_max / text.len() as u64;
        assert!(factor < 50, "{} bytes for {} of text", used.bytes_max, text.len());
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
