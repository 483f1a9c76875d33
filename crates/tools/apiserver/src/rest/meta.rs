//! Object metadata: what the server sets, and what clients cannot change.

use serde_json::{Map, Value};

use super::path::Place;
use crate::kinds::Kind;
use crate::status::{FieldError, Status};
use crate::{clock, random};

/// Text of a metadata field; empty if it is not there.
pub(crate) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// Metadata to write into; made where it is missing.
pub(crate) fn of(object: &mut Value) -> Result<&mut Map<String, Value>, Status> {
    let malformed = || Status::bad_request("metadata is not an object");
    let object = object.as_object_mut().ok_or_else(malformed)?;
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if metadata.is_null() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().ok_or_else(malformed)
}

/// Checks that an object is of the kind of the URL, and says so in it.
pub(crate) fn check_type(kind: &Kind, object: &mut Value) -> Result<(), Status> {
    let expected = kind.api_version();
    match object["apiVersion"].as_str() {
        None | Some("") => {}
        Some(given) if given == expected => {}
        Some(given) => {
            return Err(Status::bad_request(format!(
                "the API version in the data ({given}) does not match the expected API version ({expected})"
            )));
        }
    }
    match object["kind"].as_str() {
        None | Some("") => {}
        Some(given) if given == &*kind.kind => {}
        Some(given) => {
            return Err(Status::bad_request(format!(
                "{given} in version \"{}\" cannot be handled as a {}: the kind in the data does not match the expected kind",
                kind.version, kind.kind
            )));
        }
    }
    super::shape::set_type(kind, object);
    Ok(())
}

/// Puts the namespace of the URL into an object, or refuses another one.
pub(crate) fn set_namespace(place: &Place, object: &mut Value) -> Result<(), Status> {
    let metadata = of(object)?;
    let given = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if !given.is_empty() && given != place.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if place.namespace.is_empty() {
        metadata.remove("namespace");
    } else {
        metadata.insert("namespace".to_owned(), Value::from(place.namespace.as_str()));
    }
    Ok(())
}

/// Fills in what a new object gets: a name where one is to be generated, a uid, a time.
pub(crate) fn initialize(kind: &Kind, object: &mut Value) -> Result<(), Status> {
    if !text(object, "resourceVersion").is_empty() {
        return Err(Status::unknown("resourceVersion should not be set on objects to be created"));
    }
    let ending = random::name_ending()?;
    let metadata = of(object)?;
    for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"]
    {
        metadata.remove(field);
    }
    metadata.remove("generation");
    metadata.insert("uid".to_owned(), Value::from(random::uid()?));
    metadata.insert("creationTimestamp".to_owned(), Value::from(clock::now()));
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    let prefix = metadata.get("generateName").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        if prefix.is_empty() {
            let error = FieldError::required("metadata.name", "name or generateName is required");
            return Err(Status::invalid(&kind.resource.group, &kind.kind, "", &[error]));
        }
        // Names have at most 63 characters, so the prefix is shortened.
        let prefix: String = prefix.chars().take(58).collect();
        metadata.insert("name".to_owned(), Value::from(format!("{prefix}{ending}")));
    }
    Ok(())
}

/// Restores metadata that clients cannot change.
pub(crate) fn keep_system_fields(old: &Value, new: &mut Value) -> Result<(), Status> {
    let old = &old["metadata"];
    let new = of(new)?;
    let kept = [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "namespace",
        "generateName",
    ];
    for field in kept {
        match old.get(field) {
            Some(value) => {
                new.insert(field.to_owned(), value.clone());
            }
            None => {
                new.remove(field);
            }
        }
    }
    new.remove("selfLink");
    Ok(())
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    let list = object["metadata"]["finalizers"].as_array();
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub(crate) fn bump_generation(object: &mut Value) {
    if let Some(generation) = object["metadata"]["generation"].as_i64() {
        object["metadata"]["generation"] = Value::from(generation.saturating_add(1));
    }
}

/// The real storage's message for a failed precondition.
pub(crate) fn failed_precondition(directory: &str, key: &str, why: &str) -> String {
    format!(
        "StorageError: invalid object, Code: 4, Key: {directory}/{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {why}"
    )
}
