//! Decoding, admission and patches as requests use them.

use std::sync::Arc;

use http::Method;
use jiff::Timestamp;
use serde_json::Value;

use super::Call;
use super::path::Place;
use crate::admission::{self, Admitted, Operation, Request, View, quota};
use crate::decode::{self, Decoded};
use crate::kinds::{Kind, Resource};
use crate::patch::{self, FieldValidation, Patch, PatchType, Patched, Write};
use crate::server::Server;
use crate::status::{FieldError, Status};
use crate::store::{self, Store, key_of};

impl View for Store {
    fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let stored = Self::get(self, resource, &key_of(namespace, name))?;
        Some(stored.value.clone())
    }

    fn list(&self, resource: &Resource, namespace: &str) -> Vec<Arc<Value>> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let listed = Self::list(self, resource, namespace);
        listed.items.iter().map(|stored| stored.value.clone()).collect()
    }
}

fn field_validation(call: &Call) -> Result<FieldValidation, Status> {
    match call.query.text("fieldValidation") {
        "" | "Warn" => Ok(FieldValidation::Warn),
        "Ignore" => Ok(FieldValidation::Ignore),
        "Strict" => Ok(FieldValidation::Strict),
        other => {
            let error = FieldError::not_supported(
                "fieldValidation",
                &Value::from(other),
                &["Ignore", "Strict", "Warn", ""],
            );
            Err(Status::invalid("meta.k8s.io", "CreateOptions", "", &[error]))
        }
    }
}

pub(super) const MEDIA_TYPES: &str =
    "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// The body of a request as an object of a kind, with its defaults, and what to warn about.
pub(crate) fn decode(kind: &Kind, call: &Call) -> Result<(Value, Vec<String>), Status> {
    if !matches!(call.content_type(), "" | "application/json") {
        return Err(Status::unsupported_media_type(MEDIA_TYPES));
    }
    let Decoded { object, warnings } = decode::object(kind, &call.body, field_validation(call)?)?;
    Ok((object, warnings))
}

/// Admits a new object (`old` is none) or a changed one.
pub(crate) async fn admit(
    server: &Server,
    place: &Place,
    call: &Call,
    old: Option<&Value>,
    mut object: Value,
    dry_run: bool,
) -> Result<Admitted, Status> {
    let options = Value::Null;
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    let request = request(place, call, operation, old, &options, dry_run);
    let field_manager = call.field_manager();
    // A patch of the object itself has recorded its manager already.
    let records = call.method != Method::PATCH || place.subresource == "scale";
    let mut manager = records.then_some(field_manager.as_str());
    if old.is_none() && place.kind.is("", "nodes") {
        // The taint that the server adds to new nodes has no manager.
        if manager.take().is_some() {
            record(place, call, &mut object);
        }
        admission::node::taint(&mut object);
    }
    let (store, webhooks) = (&server.store, &server.webhooks);
    let now = Timestamp::now();
    let mut admitted = admission::admit(&request, object, manager, store, webhooks, now).await?;
    if place.subresource == "scale" {
        forget_times_of_scale(&mut admitted.object);
    }
    Ok(admitted)
}

/// The real server records the manager of `scale` without a time, and lists it first.
fn forget_times_of_scale(object: &mut Value) {
    let Some(entries) = object["metadata"]["managedFields"].as_array_mut() else { return };
    for entry in entries.iter_mut().filter(|entry| entry["subresource"] == "scale") {
        if let Some(entry) = entry.as_object_mut() {
            entry.remove("time");
        }
    }
    entries.sort_by_key(|entry| (entry["operation"] != "Apply", entry["time"].is_string()));
}

fn request<'a>(
    place: &'a Place,
    call: &'a Call,
    operation: Operation,
    old: Option<&'a Value>,
    options: &'a Value,
    dry_run: bool,
) -> Request<'a> {
    Request {
        kind: &place.kind,
        operation,
        namespace: &place.namespace,
        name: &place.name,
        subresource: &place.subresource,
        user: &call.user,
        dry_run,
        options,
        old,
    }
}

/// Whether an object may be deleted.
pub(crate) async fn admit_delete(
    server: &Server,
    place: &Place,
    call: &Call,
    old: &Value,
    dry_run: bool,
) -> Result<Vec<String>, Status> {
    let options = Value::Null;
    let request = request(place, call, Operation::Delete, Some(old), &options, dry_run);
    server.webhooks.validate(&request, None, &server.store).await
}

fn write<'a>(place: &'a Place, field_manager: &'a str) -> Write<'a> {
    Write {
        kind: &place.kind,
        subresource: &place.subresource,
        field_manager,
        now: Timestamp::now(),
    }
}

/// Records the sender of an object that is not stored.
pub(crate) fn record(place: &Place, call: &Call, object: &mut Value) {
    let field_manager = call.field_manager();
    patch::record(&write(place, &field_manager), None, object);
}

/// Quotas that an update or deletion releases.
pub(crate) fn released(
    server: &Server,
    kind: &Kind,
    namespace: &str,
    old: &Value,
    new: Option<&Value>,
) -> Vec<store::Operation> {
    let quotas = quota::release(kind, namespace, old, new, &server.store, Timestamp::now());
    quota_writes(quotas)
}

/// Writes of quotas that fail if the quotas have changed.
pub(crate) fn quota_writes(quotas: Vec<Value>) -> Vec<store::Operation> {
    let resource = Resource::new("", "resourcequotas");
    let writes = quotas.into_iter().filter_map(|quota| {
        let text = |field: &str| quota["metadata"][field].as_str().unwrap_or_default();
        let key = key_of(text("namespace"), text("name"));
        let revision = text("resourceVersion").parse().ok()?;
        Some(store::Operation::put(&resource, &key, store::Expected::Revision(revision), quota))
    });
    writes.collect()
}

/// Recounts the quotas of a namespace after one of them was written.
pub(crate) fn recount(server: &Server, namespace: &str) {
    let resource = Resource::new("", "resourcequotas");
    for stored in server.store.list(&resource, Some(namespace)).items {
        let counted = quota::recount(&stored.value, &server.store, Timestamp::now());
        if let Some(counted) = counted.filter(|counted| *counted != *stored.value) {
            // A concurrent writer recounts.
            let _ = server.store.transact(quota_writes(vec![counted]));
        }
    }
}

/// Applies a patch; only server-side apply creates.
pub(crate) fn patch(
    server: &Server,
    place: &Place,
    call: &Call,
    current: Option<&Value>,
) -> Result<(Value, Vec<String>), Status> {
    let patch_type = PatchType::of(call.content_type()).ok_or_else(|| {
        let message = "415: Unsupported Media Type".to_owned();
        let details = Some(Box::default());
        Status { code: 415, reason: "UnsupportedMediaType", message, details }
    })?;
    let manager = call.field_manager();
    let patch = Patch {
        kind: &place.kind,
        subresource: &place.subresource,
        patch_type,
        body: &call.body,
        field_manager: &manager,
        force: call.query.flag("force"),
        field_validation: field_validation(call)?,
        now: Timestamp::now(),
        parse_yaml: server.options.parse_yaml,
    };
    let Patched { object, warnings } = patch::apply(&patch, current)?;
    Ok((object, warnings))
}
