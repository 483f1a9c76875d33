//! The `scale` subresource.

use std::sync::Arc;

use http::{Method, Response};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::path::Place;
use super::respond::{self, Body};
use super::{Call, meta, read, update};
use crate::kinds::{Kind, Origin, ScalePaths};
use crate::patch::{self, FieldValidation, Patch, PatchType};
use crate::server::Server;
use crate::status::{FieldError, Status};
use crate::store::Stored;

const ATTEMPTS: usize = 16;

pub(crate) async fn answer(
    server: &Arc<Server>,
    place: &Place,
    call: &Call,
) -> Result<Response<Body>, Status> {
    let Some(paths) = &place.kind.subresources.scale else {
        return Err(Status::no_such_path());
    };
    if call.method == Method::GET {
        let object = read::find(server, place)?;
        return Ok(respond::json(200, &scale_of(&place.kind, paths, &object)));
    }
    let dry_run = call.query.dry_run()?;
    for _ in 0..ATTEMPTS {
        let object = read::find(server, place)?;
        let current = scale_of(&place.kind, paths, &object);
        let wanted = match call.method {
            Method::PUT => call.object()?,
            Method::PATCH => patched(call, &current)?,
            _ => return Err(Status::method_not_allowed()),
        };
        check(place, &object, &wanted)?;
        let replicas = replicas(place, &wanted)?;
        let mut changed = Value::clone(&object.value);
        set(&mut changed, &paths.spec_replicas, replicas);
        let written = update::write(server, place, call, &object, changed, dry_run).await?;
        match written {
            Some(written) => {
                return Ok(respond::json(200, &scale_of(&place.kind, paths, &written)));
            }
            None if meta::text(&wanted, "resourceVersion").is_empty() => {}
            None => return Err(Status::modified(&place.kind.resource, &place.name)),
        }
    }
    Err(Status::modified(&place.kind.resource, &place.name))
}

fn check(place: &Place, object: &Stored, wanted: &Value) -> Result<(), Status> {
    let revision = meta::text(wanted, "resourceVersion");
    if !revision.is_empty() && revision != object.revision.to_string() {
        return Err(Status::modified(&place.kind.resource, &place.name));
    }
    let name = meta::text(wanted, "name");
    if !name.is_empty() && name != place.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            place.name
        )));
    }
    Ok(())
}

fn replicas(place: &Place, wanted: &Value) -> Result<i64, Status> {
    let given = &wanted["spec"]["replicas"];
    let replicas = match given {
        Value::Null => 0,
        given => given.as_i64().ok_or_else(|| {
            Status::bad_request("Scale in version \"v1\" cannot be handled as a Scale: spec.replicas is not a whole number")
        })?,
    };
    if replicas >= 0 && i32::try_from(replicas).is_ok() {
        return Ok(replicas);
    }
    let error = FieldError::invalid("spec.replicas", given, "must be greater than or equal to 0");
    Err(Status::invalid("autoscaling", "Scale", &place.name, &[error]))
}

fn patched(call: &Call, current: &Value) -> Result<Value, Status> {
    let patch_type = PatchType::of(call.content_type())
        .ok_or_else(|| Status::unsupported_media_type("application/merge-patch+json"))?;
    let kind = scale_kind();
    let manager = call.field_manager();
    let patch = Patch {
        kind: &kind,
        subresource: "scale",
        // A scale has no lists, so the two ways of merging are the same.
        patch_type: if patch_type == PatchType::Strategic { PatchType::Merge } else { patch_type },
        body: &call.body,
        field_manager: &manager,
        force: true,
        field_validation: FieldValidation::Ignore,
        now: Timestamp::now(),
        parse_yaml: None,
    };
    Ok(patch::apply(&patch, Some(current))?.object)
}

/// A row for `autoscaling/v1` scales, which have no place of their own.
fn scale_kind() -> Kind {
    let resource = crate::kinds::Resource::new("autoscaling", "scales");
    Kind {
        stored_as: resource.clone(),
        resource,
        version: Arc::from("v1"),
        kind: Arc::from("Scale"),
        list_kind: Arc::from("ScaleList"),
        singular: Arc::from("scale"),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: true,
        subresources: crate::kinds::Subresources::default(),
        stored: false,
        origin: Origin::BuiltIn,
    }
}

fn get<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(object, |at, part| &at[part])
}

fn set(object: &mut Value, path: &str, value: i64) {
    let mut at = object;
    for part in path.split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[part];
    }
    *at = Value::from(value);
}

fn scale_of(kind: &Kind, paths: &ScalePaths, object: &Stored) -> Value {
    let value = &object.value;
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(given) = value["metadata"].get(field) {
            metadata.insert(field.to_owned(), given.clone());
        }
    }
    let count = |path: &str| get(value, path).as_i64().unwrap_or(0);
    let mut status = json!({"replicas": count(&paths.status_replicas)});
    let selector = match (&paths.selector, &kind.origin) {
        (Some(path), _) => get(value, path).as_str().unwrap_or_default().to_owned(),
        (None, Origin::BuiltIn) => selector_text(&value["spec"]["selector"]),
        (None, Origin::Custom(_)) => String::new(),
    };
    if !selector.is_empty() {
        status["selector"] = Value::from(selector);
    }
    let mut spec = Map::new();
    let wanted = count(&paths.spec_replicas);
    if wanted != 0 {
        spec.insert("replicas".to_owned(), Value::from(wanted));
    }
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    })
}

/// A selector as the text of a query. Replication controllers have a plain map.
fn selector_text(selector: &Value) -> String {
    let labels = if selector["matchLabels"].is_object() || selector["matchExpressions"].is_array() {
        &selector["matchLabels"]
    } else {
        selector
    };
    let mut terms: Vec<(String, String)> = labels
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.clone(), format!("{key}={}", value.as_str().unwrap_or_default())))
        .collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let mut values: Vec<&str> = expression["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        values.sort_unstable();
        let text = match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("Exists") => key.to_owned(),
            _ => format!("!{key}"),
        };
        terms.push((key.to_owned(), text));
    }
    terms.sort();
    terms.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}
