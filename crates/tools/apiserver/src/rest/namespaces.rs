//! Namespace deletion: contents first.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::Response;
use serde_json::Value;

use super::delete::{self, DeleteOptions};
use super::path::Place;
use super::respond::{self, Body};
use super::{Call, meta, read, update};
use crate::kinds::{Kind, Resource, built_in};
use crate::server::Server;
use crate::status::Status;
use crate::store::{Expected, key_of};

const ATTEMPTS: usize = 16;
/// How long to wait for pods and finalizers before looking again.
const WAIT: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Replaces the finalizers in the spec of a namespace; without any it goes, if it was deleted.
pub(crate) async fn finalize(
    server: &Arc<Server>,
    place: &Place,
    call: &Call,
) -> Result<Response<Body>, Status> {
    let sent = call.object()?;
    let given = meta::text(&sent, "resourceVersion").to_owned();
    for _ in 0..ATTEMPTS {
        let current = read::find(server, place)?;
        if !given.is_empty() && given != current.revision.to_string() {
            return Err(Status::modified(&place.kind.resource, &place.name));
        }
        let mut new = Value::clone(&current.value);
        set_finalizers(&mut new, &sent["spec"]["finalizers"]);
        let whole = Place { subresource: String::new(), ..place.clone() };
        let dry_run = call.query.dry_run()?;
        if let Some(written) = update::commit(server, &whole, &current, new, Vec::new(), dry_run)? {
            return Ok(respond::stored(200, &place.kind, &written));
        }
    }
    Err(Status::modified(&place.kind.resource, &place.name))
}

fn set_finalizers(namespace: &mut Value, finalizers: &Value) {
    let Some(spec) = namespace["spec"].as_object_mut() else { return };
    if finalizers.as_array().is_some_and(|list| !list.is_empty()) {
        spec.insert("finalizers".to_owned(), finalizers.clone());
    } else {
        spec.remove("finalizers");
    }
}

/// Resumes deletions that were in progress when the server stopped.
pub(crate) fn resume(server: &Arc<Server>) {
    for namespace in server.store.list(&Resource::new("", "namespaces"), None).items {
        if meta::is_deleting(&namespace.value) {
            empty_later(server, namespace.name());
        }
    }
}

/// Deletes the contents of a namespace, then the namespace. Pods wait for their kubelets, objects for their
/// finalizers.
pub(crate) fn empty_later(server: &Arc<Server>, name: &str) {
    if !server.options.empty_namespaces {
        return;
    }
    let server = Arc::downgrade(server);
    let name = name.to_owned();
    tokio::spawn(async move {
        let mut wait = WAIT;
        while !empty(&server, &name) {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
        }
    });
}

/// One pass; true if nothing is left.
fn empty(server: &Weak<Server>, name: &str) -> bool {
    let Some(server) = server.upgrade() else { return true };
    let namespaces = Resource::new("", "namespaces");
    let Some(namespace) = server.store.get(&namespaces, name) else { return true };
    if !meta::is_deleting(&namespace.value) {
        return true;
    }
    let mut left = 0;
    for kind in stored_kinds(&server) {
        for object in server.store.list(&kind.stored_as, Some(name)).items {
            left += 1;
            if !meta::is_deleting(&object.value) {
                let options = DeleteOptions::default();
                let _ = delete::remove(&server, &kind, name, object.name(), &options);
            }
        }
    }
    // Check again after deletions, for objects created meanwhile.
    if left > 0 {
        return false;
    }
    let mut new = Value::clone(&namespace.value);
    set_finalizers(&mut new, &Value::Null);
    let expected = Expected::Revision(namespace.revision);
    let key = key_of("", name);
    if meta::finalizers(&new).is_empty() {
        server.store.remove_as(&namespaces, &key, expected, new).is_ok()
    } else {
        let _ = server.store.put(&namespaces, &key, expected, new);
        false
    }
}

/// Each kind that lives in namespaces, once for all its versions.
fn stored_kinds(server: &Server) -> Vec<Arc<Kind>> {
    let mut seen = BTreeSet::new();
    let mut kinds: Vec<Arc<Kind>> = server
        .kinds
        .table()
        .rows()
        .iter()
        .filter(|row| row.namespaced && row.stored && seen.insert(row.stored_as.clone()))
        .cloned()
        .collect();
    // Owners before dependents, so that controllers do not recreate dependents.
    let pods = built_in("", "pods").map(|kind| kind.stored_as.clone());
    kinds.sort_by_key(|kind| Some(&kind.stored_as) == pods.as_ref());
    kinds
}
