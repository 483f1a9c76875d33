//! Keys, owner references and the meaning of API errors.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Preconditions};

/// Namespace and name; the namespace is empty for cluster-scoped objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        Self::new(meta.namespace.as_deref().unwrap_or_default(), name(meta))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

pub(crate) fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

pub(crate) fn namespace(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or_default()
}

pub(crate) fn uid(meta: &ObjectMeta) -> &str {
    meta.uid.as_deref().unwrap_or_default()
}

/// The resource version as a number; it only grows.
pub(crate) fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub(crate) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn labels(meta: &ObjectMeta) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    meta.labels.as_ref().unwrap_or(&NONE)
}

pub(crate) fn has_finalizer(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|one| one == finalizer)
}

pub(crate) fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

pub(crate) fn is_controlled_by(meta: &ObjectMeta, owner: &ObjectMeta) -> bool {
    controller(meta).is_some_and(|one| one.uid == uid(owner))
}

pub(crate) fn controller_reference<K>(owner: &ObjectMeta) -> OwnerReference
where
    K: kube::Resource<DynamicType = ()>,
{
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: name(owner).to_owned(),
        uid: uid(owner).to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Deletes by UID, not a new object with the same name.
pub(crate) fn delete_this(meta: &ObjectMeta) -> DeleteParams {
    let preconditions = Preconditions { uid: meta.uid.clone(), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() }
}

pub(crate) fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    is_code(error, 404)
}

/// A conflict of resource versions or UIDs.
pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    is_code(error, 409) && !is_already_exists(error)
}

pub(crate) fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == "AlreadyExists")
}

/// The API server's message, or the client's error.
pub(crate) fn error_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// `None` if the object is gone or was replaced.
pub(crate) fn unless_gone<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
