//! Handles create requests.

use std::sync::Arc;

use http::Response;
use serde_json::Value;

use super::path::Place;
use super::respond::{self, Body};
use super::{Call, meta, rules, shape};
use crate::kinds::Resource;
use crate::server::Server;
use crate::status::Status;
use crate::store::{Expected, Operation, Stored, key_of};

/// Attempts to generate a free name.
const GENERATE_ATTEMPTS: usize = 8;

pub(crate) async fn create(
    server: &Arc<Server>,
    place: &Place,
    call: &Call,
) -> Result<Response<Body>, Status> {
    let dry_run = call.query.dry_run()?;
    let (mut object, warnings) = rules::decode(&place.kind, call)?;
    meta::check_type(&place.kind, &mut object)?;
    if place.kind.namespaced && place.namespace.is_empty() {
        return Err(Status::method_not_allowed());
    }
    meta::set_namespace(place, &mut object)?;
    let generates = meta::text(&object, "name").is_empty();
    let mut attempt = 0;
    loop {
        attempt += 1;
        match insert(server, place, call, object.clone(), dry_run).await {
            Err(status)
                if generates && status.reason == "AlreadyExists" && attempt < GENERATE_ATTEMPTS => {
            }
            Err(status) => return Err(status),
            Ok(created) => {
                let response = respond::stored(201, &place.kind, &created);
                return Ok(respond::with_warnings(response, &warnings));
            }
        }
    }
}

/// Attempts of a write whose quotas change concurrently.
const QUOTA_ATTEMPTS: usize = 64;

/// Admits and stores a new object.
pub(crate) async fn insert(
    server: &Arc<Server>,
    place: &Place,
    call: &Call,
    mut object: Value,
    dry_run: bool,
) -> Result<Arc<Stored>, Status> {
    let kind = &place.kind;
    namespace_takes_objects(server, place, meta::text(&object, "name"))?;
    meta::initialize(kind, &mut object)?;
    for _ in 0..QUOTA_ATTEMPTS {
        let admitted = rules::admit(server, place, call, None, object.clone(), dry_run).await?;
        let name = meta::text(&admitted.object, "name").to_owned();
        let key = key_of(&place.namespace, &name);
        let new = shape::to_stored(kind, admitted.object);
        if dry_run {
            if server.store.get(&kind.stored_as, &key).is_some() {
                return Err(Status::already_exists(&kind.resource, &name));
            }
            return Ok(Arc::new(Stored::unsaved(key, new, 0)));
        }
        let mut writes = vec![Operation::put(&kind.stored_as, &key, Expected::Absent, new)];
        writes.extend(rules::quota_writes(admitted.quotas));
        match server.store.transact(writes) {
            Ok(done) => {
                let created = done.into_iter().next();
                return created.ok_or_else(|| Status::internal("nothing was stored"));
            }
            Err((0, _)) => return Err(Status::already_exists(&kind.resource, &name)),
            Err(_) => {}
        }
    }
    Err(Status::conflict(&kind.resource, &place.name, "its quotas change too fast"))
}

/// Refuses namespaces that are missing or being deleted.
fn namespace_takes_objects(server: &Server, place: &Place, name: &str) -> Result<(), Status> {
    if !place.kind.namespaced {
        return Ok(());
    }
    let namespaces = Resource::new("", "namespaces");
    let namespace = server
        .store
        .get(&namespaces, &place.namespace)
        .ok_or_else(|| Status::not_found(&namespaces, &place.namespace))?;
    if !meta::is_deleting(&namespace.value) {
        return Ok(());
    }
    let why = format!(
        "unable to create new content in namespace {} because it is being terminated",
        place.namespace
    );
    Err(Status::forbidden(&place.kind.resource, name, &why).with_cause(
        "NamespaceTerminating",
        format!("namespace {} is being terminated", place.namespace),
        "metadata.namespace",
    ))
}
