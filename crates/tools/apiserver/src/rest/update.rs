//! Replace and patch requests, for objects and their status.

use std::sync::Arc;

use http::Response;
use serde_json::Value;

use super::path::Place;
use super::respond::{self, Body};
use super::{Call, create, meta, read, rules, shape};
use crate::kinds::Origin;
use crate::server::Server;
use crate::status::{FieldError, Status};
use crate::store::{Expected, Lost, Operation, Stored, key_of};
use crate::strategy;

/// Attempts of a patch before a conflict is reported.
const ATTEMPTS: usize = 16;

pub(crate) async fn replace(
    server: &Arc<Server>,
    place: &Place,
    call: &Call,
) -> Result<Response<Body>, Status> {
    let dry_run = call.query.dry_run()?;
    let (mut sent, warnings) = rules::decode(&place.kind, call)?;
    meta::check_type(&place.kind, &mut sent)?;
    check_names(place, &sent)?;
    meta::set_namespace(place, &mut sent)?;
    let given = meta::text(&sent, "resourceVersion").to_owned();
    for _ in 0..ATTEMPTS {
        let current = match read::find(server, place) {
            Ok(current) => current,
            Err(_) if strategy::creates_on_update(&place.kind) && given.is_empty() => {
                let created = create::insert(server, place, call, sent, dry_run).await?;
                return Ok(respond::stored(201, &place.kind, &created));
            }
            Err(status) => return Err(status),
        };
        check_revision(place, &given, &current)?;
        check_uid(place, meta::text(&sent, "uid"), &current)?;
        match write(server, place, call, &current, sent.clone(), dry_run).await? {
            Some(written) => {
                let response = respond::stored(200, &place.kind, &written);
                return Ok(respond::with_warnings(response, &warnings));
            }
            None if given.is_empty() => {}
            None => return Err(Status::modified(&place.kind.resource, &place.name)),
        }
    }
    Err(Status::modified(&place.kind.resource, &place.name))
}

pub(crate) async fn patch(
    server: &Arc<Server>,
    place: &Place,
    call: &Call,
) -> Result<Response<Body>, Status> {
    let dry_run = call.query.dry_run()?;
    let applies = call.content_type() == "application/apply-patch+yaml";
    for _ in 0..ATTEMPTS {
        let current = match read::find(server, place) {
            Ok(current) => current,
            Err(_) if applies && place.subresource.is_empty() => {
                let (mut object, warnings) = rules::patch(server, place, call, None)?;
                meta::check_type(&place.kind, &mut object)?;
                check_names(place, &object)?;
                meta::set_namespace(place, &mut object)?;
                match create::insert(server, place, call, object, dry_run).await {
                    // It was created concurrently: patch that object.
                    Err(status) if status.reason == "AlreadyExists" => continue,
                    Err(status) => return Err(status),
                    Ok(created) => {
                        let response = respond::stored(201, &place.kind, &created);
                        return Ok(respond::with_warnings(response, &warnings));
                    }
                }
            }
            Err(status) => return Err(status),
        };
        let served = shape::served(&place.kind, &current.value);
        let (mut object, warnings) = rules::patch(server, place, call, Some(&served))?;
        meta::check_type(&place.kind, &mut object)?;
        check_names(place, &object)?;
        meta::set_namespace(place, &mut object)?;
        // A patch with a resourceVersion is not retried.
        check_revision(place, meta::text(&object, "resourceVersion"), &current)?;
        check_uid(place, meta::text(&object, "uid"), &current)?;
        if let Some(written) = write(server, place, call, &current, object, dry_run).await? {
            let response = respond::stored(200, &place.kind, &written);
            return Ok(respond::with_warnings(response, &warnings));
        }
    }
    Err(Status::modified(&place.kind.resource, &place.name))
}

fn check_names(place: &Place, object: &Value) -> Result<(), Status> {
    let name = meta::text(object, "name");
    if name.is_empty() || name == place.name {
        return Ok(());
    }
    Err(Status::bad_request(format!(
        "the name of the object ({name}) does not match the name on the URL ({})",
        place.name
    )))
}

fn check_revision(place: &Place, given: &str, current: &Stored) -> Result<(), Status> {
    let kind = &place.kind;
    if given.is_empty() || given == "0" {
        if strategy::updates_unconditionally(kind) {
            return Ok(());
        }
        let error = FieldError::invalid(
            "metadata.resourceVersion",
            &Value::from(0),
            "must be specified for an update",
        );
        return Err(Status::invalid(
            &kind.resource.group,
            &kind.resource.plural,
            &place.name,
            &[error],
        ));
    }
    if given == current.revision.to_string() {
        return Ok(());
    }
    Err(Status::modified(&kind.resource, &place.name))
}

fn check_uid(place: &Place, given: &str, current: &Stored) -> Result<(), Status> {
    if given.is_empty() || given == current.uid() {
        return Ok(());
    }
    let resource = &place.kind.resource;
    let directory = match &place.kind.origin {
        Origin::BuiltIn => format!("/registry/{}", resource.plural),
        Origin::Custom(_) => format!("/registry/{}/{}", resource.group, resource.plural),
    };
    let why = meta::failed_precondition(
        &directory,
        &current.key,
        &format!("UID in precondition: {given}, UID in object meta: {}", current.uid()),
    );
    Err(Status::conflict(&place.kind.resource, &place.name, why))
}

/// Writes a changed object. `None` if it has changed concurrently.
pub(crate) async fn write(
    server: &Arc<Server>,
    place: &Place,
    call: &Call,
    current: &Arc<Stored>,
    object: Value,
    dry_run: bool,
) -> Result<Option<Arc<Stored>>, Status> {
    let kind = &place.kind;
    let old = shape::served(kind, &current.value);
    let mut new = object;
    if meta::text(&new, "name").is_empty() {
        meta::of(&mut new)?.insert("name".to_owned(), Value::from(place.name.as_str()));
    }
    meta::keep_system_fields(&old, &mut new)?;
    let admitted = rules::admit(server, place, call, Some(&old), new, dry_run).await?;
    let new = shape::to_stored(kind, admitted.object);
    commit(server, place, current, new, admitted.quotas, dry_run)
}

/// Stores an updated object, or removes it if the last finalizer is gone.
pub(crate) fn commit(
    server: &Arc<Server>,
    place: &Place,
    current: &Arc<Stored>,
    mut new: Value,
    quotas: Vec<Value>,
    dry_run: bool,
) -> Result<Option<Arc<Stored>>, Status> {
    let kind = &place.kind;
    let resource = &kind.stored_as;
    let key = key_of(&place.namespace, &place.name);
    meta::of(&mut new)?
        .insert("resourceVersion".to_owned(), Value::from(current.revision.to_string()));
    if new == *current.value {
        return Ok(Some(current.clone()));
    }
    let expected = Expected::Revision(current.revision);
    if dry_run {
        return Ok(Some(Arc::new(Stored::unsaved(key, new, current.revision))));
    }
    let removes = strategy::is_finished(kind, &current.value, &new);
    let mut writes = rules::quota_writes(quotas);
    if writes.is_empty() {
        let left = Some(&new).filter(|_| !removes);
        writes = rules::released(server, kind, &place.namespace, &current.value, left);
    }
    let own = if removes {
        Operation::remove(resource, &key, expected, Some(new))
    } else {
        Operation::put(resource, &key, expected, new)
    };
    writes.insert(0, own);
    match server.store.transact(writes) {
        Ok(done) => Ok(done.into_iter().next()),
        Err((0, Lost::Missing)) => Err(Status::not_found(&kind.resource, &place.name)),
        Err(_) => Ok(None),
    }
}
