//! Metadata that every object has.

use std::sync::Arc;

use berth_model::label::Labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};

use crate::error::Problem;

const DEFAULT_NAMESPACE: &str = "default";

pub(crate) fn name(meta: &ObjectMeta) -> Result<Arc<str>, Problem> {
    let name = meta.name.as_deref().filter(|name| !name.is_empty());
    name.map(Arc::from).ok_or_else(|| Problem::new("metadata.name", "is required"))
}

pub(crate) fn namespace(meta: &ObjectMeta) -> Arc<str> {
    meta.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE).into()
}

pub(crate) fn labels(meta: &ObjectMeta) -> Labels {
    meta.labels.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

pub(crate) fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

pub(crate) fn unix_ms(time: Option<&Time>) -> Option<i64> {
    time.map(|time| time.0.as_millisecond())
}

/// `None` if the text is absent or empty.
pub(crate) fn filled(text: Option<&String>) -> Option<Arc<str>> {
    text.filter(|text| !text.is_empty()).map(|text| text.as_str().into())
}

/// Empty if the text is absent.
pub(crate) fn text(text: Option<&String>) -> Arc<str> {
    text.map_or("", String::as_str).into()
}

/// Empty if the list is absent.
pub(crate) fn shared(list: Option<&Vec<String>>) -> Vec<Arc<str>> {
    list.into_iter().flatten().map(|one| one.as_str().into()).collect()
}
