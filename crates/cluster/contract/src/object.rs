//! Objects as JSON and, for the kinds that rules know, as types.

use std::sync::Arc;

use berth_api::FieldPath;
use berth_api::workload::{Workload, WorkloadKind};
use berth_model::quantity::Quantity;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::finding::ObjectRef;

#[derive(Clone, Debug)]
pub struct Object {
    pub reference: ObjectRef,
    pub json: Value,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Workload(Arc<Workload>),
    PriorityClass(Arc<PriorityClass>),
    LimitRange(Arc<core::LimitRange>),
    Quota(Arc<core::ResourceQuota>),
    Budget(Arc<PodDisruptionBudget>),
    Namespace(Arc<core::Namespace>),
    Node(Arc<core::Node>),
    Service(Arc<core::Service>),
    Other,
}

/// An object that is not valid for its kind.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{object}: {field}: {problem}")]
pub struct ObjectError {
    /// Its kind, namespace and name.
    pub object: String,
    pub field: FieldPath,
    pub problem: String,
}

impl Object {
    /// Other kinds, and documents that are not objects at all, are accepted: they may contain queries.
    pub fn new(json: Value) -> Result<Self, ObjectError> {
        let text = |pointer: &str| json.pointer(pointer).and_then(Value::as_str);
        let reference = ObjectRef {
            api_version: text("/apiVersion").unwrap_or_default().to_owned(),
            kind: text("/kind").unwrap_or_default().to_owned(),
            namespace: text("/metadata/namespace").map(str::to_owned),
            name: text("/metadata/name").unwrap_or_default().to_owned(),
        };
        let what = typed(&reference, &json)
            .and_then(|what| match quantities(&json, &what) {
                Some(error) => Err(error),
                None => Ok(what),
            })
            .map_err(|(field, problem)| ObjectError {
                object: reference.to_string(),
                field,
                problem,
            })?;
        Ok(Self { reference, json, what })
    }

    /// `default` if it has none.
    pub(crate) fn namespace(&self) -> &str {
        self.reference.namespace.as_deref().unwrap_or("default")
    }

    /// In any version.
    pub(crate) fn is(&self, group: &str, kind: &str) -> bool {
        let version = &self.reference.api_version;
        let in_group = version.split_once('/').map_or("", |(of, _)| of) == group;
        in_group && self.reference.kind == kind
    }
}

/// A field, and what is wrong with it.
type FieldError = (FieldPath, String);

fn typed(reference: &ObjectRef, json: &Value) -> Result<What, FieldError> {
    let (version, kind) = (reference.api_version.as_str(), reference.kind.as_str());
    if let Some(kind) = WorkloadKind::of(version, kind) {
        let mut track = serde_path_to_error::Track::new();
        let workload =
            Workload::read(kind, serde_path_to_error::Deserializer::new(json, &mut track));
        let workload = workload.map_err(|error| (at(&track.path()), error.to_string()))?;
        return Ok(What::Workload(Arc::new(workload)));
    }
    Ok(match (version, kind) {
        ("scheduling.k8s.io/v1", "PriorityClass") => What::PriorityClass(read(json)?),
        ("v1", "LimitRange") => What::LimitRange(read(json)?),
        ("v1", "ResourceQuota") => What::Quota(read(json)?),
        ("policy/v1", "PodDisruptionBudget") => What::Budget(read(json)?),
        ("v1", "Namespace") => What::Namespace(read(json)?),
        ("v1", "Node") => What::Node(read(json)?),
        ("v1", "Service") => What::Service(read(json)?),
        _ => What::Other,
    })
}

fn read<T: DeserializeOwned>(json: &Value) -> Result<Arc<T>, FieldError> {
    let read = serde_path_to_error::deserialize(json);
    read.map(Arc::new).map_err(|error| (at(error.path()), error.inner().to_string()))
}

/// Fields that are maps of quantities.
const QUANTITIES: [&str; 10] = [
    "requests",
    "limits",
    "overhead",
    "hard",
    "capacity",
    "allocatable",
    "min",
    "max",
    "default",
    "defaultRequest",
];

/// The first invalid quantity. The types have quantities as strings.
fn quantities(json: &Value, what: &What) -> Option<FieldError> {
    let counted =
        matches!(what, What::Workload(_) | What::LimitRange(_) | What::Quota(_) | What::Node(_));
    counted.then(|| invalid_quantity(json, &FieldPath::root())).flatten()
}

fn invalid_quantity(value: &Value, path: &FieldPath) -> Option<FieldError> {
    match value {
        Value::Array(list) => {
            let mut items = list.iter().enumerate();
            items.find_map(|(index, item)| invalid_quantity(item, &path.clone().at(index)))
        }
        Value::Object(map) => map.iter().find_map(|(key, inside)| {
            let path = path.clone().key(key.as_str());
            match inside.as_object().filter(|_| QUANTITIES.contains(&key.as_str())) {
                Some(list) => list.iter().find_map(|(name, text)| {
                    let problem = Quantity::parse(text.as_str()?).err()?;
                    Some((path.clone().key(name.as_str()), problem.to_string()))
                }),
                None => invalid_quantity(inside, &path),
            }
        }),
        _ => None,
    }
}

fn at(path: &serde_path_to_error::Path) -> FieldPath {
    use serde_path_to_error::Segment;
    path.iter().fold(FieldPath::root(), |path, segment| match segment {
        Segment::Seq { index } => path.at(*index),
        Segment::Map { key } | Segment::Enum { variant: key } => path.key(key.as_str()),
        Segment::Unknown => path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_name_the_field() {
        let error = Object::new(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "namespace": "team" },
            "spec": { "replicas": "two", "selector": {}, "template": {} },
        }))
        .unwrap_err();
        assert_eq!(error.field.to_string(), "spec.replicas");
        assert!(error.to_string().starts_with("Deployment team/web: spec.replicas: "), "{error}");
    }

    #[test]
    fn invalid_quantities_are_errors() {
        for (json, field) in [
            (
                json!({ "apiVersion": "v1", "kind": "Pod", "spec": { "containers": [
                    { "name": "c", "resources": { "limits": { "cpu": 1, "memory": "1Gib" } } }] } }),
                "spec.containers[0].resources.limits.memory",
            ),
            (
                json!({ "apiVersion": "v1", "kind": "ResourceQuota",
                        "spec": { "hard": { "requests.nvidia.com/gpu": "four" } } }),
                "spec.hard[requests.nvidia.com/gpu]",
            ),
            (
                json!({ "apiVersion": "v1", "kind": "LimitRange",
                        "spec": { "limits": [{ "type": "Pod", "max": { "cpu": "1x" } }] } }),
                "spec.limits[0].max.cpu",
            ),
        ] {
            let error = Object::new(json).unwrap_err();
            assert_eq!(error.field.to_string(), field);
            assert!(error.problem.starts_with("quantity "), "{error}");
        }
    }

    #[test]
    fn other_documents_are_accepted() {
        for json in [json!(null), json!([1]), json!({ "groups": [] }), json!({ "kind": "Pod" })] {
            let object = Object::new(json.clone()).unwrap();
            assert!(matches!(object.what, What::Other), "{json}");
        }
    }
}
