//! Delete requests, for one object and for collections.

use std::sync::Arc;

use http::Response;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::path::Place;
use super::respond::{self, Body, ListMeta};
use super::{Call, meta, namespaces, read, rules};
use crate::clock;
use crate::kinds::{Kind, Resource};
use crate::server::Server;
use crate::status::{FieldError, Status};
use crate::store::{Expected, Lost, Operation, Stored, key_of};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
const ATTEMPTS: usize = 16;

#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_seconds: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) revision: Option<String>,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

impl Propagation {
    fn parse(text: &str) -> Result<Self, Status> {
        match text {
            "Background" => Ok(Self::Background),
            "Foreground" => Ok(Self::Foreground),
            "Orphan" => Ok(Self::Orphan),
            other => {
                let error = FieldError::not_one_of(
                    "propagationPolicy",
                    &Value::from(other),
                    &["Foreground", "Background", "Orphan", "nil"],
                );
                Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", &[error]))
            }
        }
    }
}

impl DeleteOptions {
    /// From the body of a request, or from its query where there is no body.
    pub(crate) fn of(call: &Call) -> Result<Self, Status> {
        if call.body.is_empty() {
            return Self::from_query(call);
        }
        let value: Value = serde_json::from_slice(&call.body)
            .map_err(|error| Status::bad_request(format!("the body is not JSON: {error}")))?;
        let mut options = Self::from_json(&value)?;
        options.dry_run |= call.query.dry_run()?;
        Ok(options)
    }

    /// From a `DeleteOptions` object, such as that of an eviction.
    pub(crate) fn from_json(value: &Value) -> Result<Self, Status> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let orphans = value["orphanDependents"].as_bool();
        let policy = value["propagationPolicy"].as_str();
        if orphans.is_some() && policy.is_some() {
            let error = FieldError::invalid(
                "propagationPolicy",
                &value["propagationPolicy"],
                "orphanDependents and deletionPropagation cannot be both set",
            );
            return Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", &[error]));
        }
        let dry_run = value["dryRun"].as_array().is_some_and(|list| !list.is_empty());
        Ok(Self {
            grace_seconds: value["gracePeriodSeconds"].as_i64(),
            uid: text(&value["preconditions"]["uid"]),
            revision: text(&value["preconditions"]["resourceVersion"]),
            propagation: propagation(policy, orphans)?,
            dry_run,
        })
    }

    fn from_query(call: &Call) -> Result<Self, Status> {
        let query = &call.query;
        let policy = Some(query.text("propagationPolicy")).filter(|text| !text.is_empty());
        let orphans = query.has("orphanDependents").then(|| query.flag("orphanDependents"));
        Ok(Self {
            grace_seconds: query.number("gracePeriodSeconds")?,
            propagation: propagation(policy, orphans)?,
            dry_run: query.dry_run()?,
            ..Self::default()
        })
    }
}

fn propagation(policy: Option<&str>, orphans: Option<bool>) -> Result<Option<Propagation>, Status> {
    match (policy, orphans) {
        (Some(policy), _) => Propagation::parse(policy).map(Some),
        (None, Some(true)) => Ok(Some(Propagation::Orphan)),
        (None, Some(false)) => Ok(Some(Propagation::Background)),
        (None, None) => Ok(None),
    }
}

pub(crate) enum Deleted {
    Gone(Arc<Stored>),
    Waits(Arc<Stored>),
}

pub(crate) async fn delete(
    server: &Arc<Server>,
    place: &Place,
    call: &Call,
) -> Result<Response<Body>, Status> {
    let options = DeleteOptions::of(call)?;
    let current = read::find(server, place)?;
    rules::admit_delete(server, place, call, &current.value, options.dry_run).await?;
    match remove(server, &place.kind, &place.namespace, &place.name, &options)? {
        Deleted::Waits(object) => {
            if place.kind.is("", "namespaces") && !options.dry_run {
                namespaces::empty_later(server, &place.name);
            }
            Ok(respond::stored(200, &place.kind, &object))
        }
        Deleted::Gone(object) if returns_object(&place.kind) => {
            Ok(respond::stored(200, &place.kind, &object))
        }
        Deleted::Gone(object) => Ok(respond::json(200, &success(&place.kind, &object))),
    }
}

/// Kinds that answer a deletion with the object and not with a status.
fn returns_object(kind: &Kind) -> bool {
    match (&*kind.resource.group, &*kind.resource.plural) {
        ("resource.k8s.io", _) => true,
        ("storage.k8s.io", plural) => plural != "csistoragecapacities",
        ("", plural) => matches!(
            plural,
            "resourcequotas"
                | "persistentvolumes"
                | "persistentvolumeclaims"
                | "serviceaccounts"
                | "namespaces"
                | "pods"
                | "services"
                | "podtemplates"
        ),
        _ => false,
    }
}

fn success(kind: &Kind, object: &Stored) -> Value {
    let mut details = json!({
        "name": object.name(),
        "kind": &*kind.resource.plural,
        "uid": object.uid(),
    });
    if !kind.resource.group.is_empty() {
        details["group"] = Value::from(&*kind.resource.group);
    }
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    })
}

pub(crate) fn delete_all(
    server: &Server,
    place: &Place,
    call: &Call,
) -> Result<Response<Body>, Status> {
    if (place.kind.namespaced && place.namespace.is_empty()) || place.kind.is("", "namespaces") {
        return Err(Status::method_not_allowed());
    }
    let mut options = DeleteOptions::of(call)?;
    let (meta, items) = read::page(server, place, call)?;
    let mut deleted = Vec::with_capacity(items.len());
    for item in items {
        // Preconditions make no sense for several objects.
        options.uid = None;
        options.revision = None;
        match remove(server, &place.kind, item.namespace(), item.name(), &options) {
            // The answer lists them as they were found.
            Ok(_) => deleted.push(item),
            Err(status) if status.reason == "NotFound" => {}
            Err(status) => return Err(status),
        }
    }
    let meta = ListMeta { continues: None, remaining: None, ..meta };
    Ok(respond::list(place.kind.clone(), &meta, deleted))
}

/// Deletes an object, at once or by marking it.
pub(crate) fn remove(
    server: &Server,
    kind: &Kind,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<Deleted, Status> {
    let key = key_of(namespace, name);
    for _ in 0..ATTEMPTS {
        let current = server
            .store
            .get(&kind.stored_as, &key)
            .ok_or_else(|| Status::not_found(&kind.resource, name))?;
        check_preconditions(kind, options, &current)?;
        let plan = plan(kind, &current.value, options);
        if options.dry_run {
            let value = plan.marked.unwrap_or_else(|| Value::clone(&current.value));
            let stored = Arc::new(Stored::unsaved(key, value, current.revision));
            return Ok(if plan.removes { Deleted::Gone(stored) } else { Deleted::Waits(stored) });
        }
        match carry_out(server, kind, &current, plan) {
            Ok(deleted) => return Ok(deleted),
            Err(Lost::Missing) => return Err(Status::not_found(&kind.resource, name)),
            Err(Lost::Changed | Lost::Exists) => {}
        }
    }
    Err(Status::modified(&kind.resource, name))
}

fn carry_out(
    server: &Server,
    kind: &Kind,
    current: &Arc<Stored>,
    plan: DeletionSteps,
) -> Result<Deleted, Lost> {
    let (resource, key) = (&kind.stored_as, &current.key);
    let mut latest = current.clone();
    if let Some(marked) = plan.marked
        && marked != *current.value
    {
        latest = server.store.put(resource, key, Expected::Revision(latest.revision), marked)?;
    }
    if !plan.removes {
        return Ok(Deleted::Waits(latest));
    }
    let removal = Operation::remove(resource, key, Expected::Revision(latest.revision), None);
    let mut writes = vec![removal];
    writes.extend(rules::released(server, kind, latest.namespace(), &latest.value, None));
    server.store.transact(writes).map_err(|(_, lost)| lost)?;
    Ok(Deleted::Gone(latest))
}

pub(crate) fn check_preconditions(
    kind: &Kind,
    options: &DeleteOptions,
    current: &Stored,
) -> Result<(), Status> {
    // The real server names the kind here, not the resource.
    let named = Resource::new(&kind.resource.group, &kind.kind);
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != current.uid()) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            current.uid()
        );
        return Err(Status::conflict(&named, current.name(), why));
    }
    let revision = current.revision.to_string();
    if let Some(given) = options.revision.as_deref().filter(|given| *given != revision) {
        let why = format!(
            "the ResourceVersion in the precondition ({given}) does not match the ResourceVersion in record ({revision}). The object might have been modified"
        );
        return Err(Status::conflict(&named, current.name(), why));
    }
    Ok(())
}

struct DeletionSteps {
    marked: Option<Value>,
    removes: bool,
}

fn plan(kind: &Kind, current: &Value, options: &DeleteOptions) -> DeletionSteps {
    if kind.is("", "pods") {
        return plan_pod(current, options);
    }
    let finalizers = finalizers_after(kind, current, options);
    let mut marked = current.clone();
    let deleting = meta::is_deleting(current);
    set_finalizers(&mut marked, &finalizers);
    if kind.is("", "namespaces") {
        return plan_namespace(current, marked, &finalizers);
    }
    if finalizers.is_empty() {
        return DeletionSteps { marked: None, removes: true };
    }
    if !deleting {
        mark(&mut marked, 0);
    }
    DeletionSteps { marked: Some(marked), removes: false }
}

/// A namespace waits until its own finalizers, those in its spec, are gone too.
fn plan_namespace(current: &Value, mut marked: Value, finalizers: &[String]) -> DeletionSteps {
    let waits = current["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
    if !waits && finalizers.is_empty() {
        return DeletionSteps { marked: None, removes: true };
    }
    if !meta::is_deleting(current) {
        mark(&mut marked, 0);
        if let Some(metadata) = marked["metadata"].as_object_mut() {
            metadata.remove("deletionGracePeriodSeconds");
        }
        marked["status"]["phase"] = Value::from("Terminating");
    }
    DeletionSteps { marked: Some(marked), removes: false }
}

fn mark(object: &mut Value, grace_seconds: i64) {
    object["metadata"]["deletionTimestamp"] = Value::from(clock::in_seconds(grace_seconds));
    object["metadata"]["deletionGracePeriodSeconds"] = Value::from(grace_seconds);
    meta::bump_generation(object);
}

fn set_finalizers(object: &mut Value, finalizers: &[String]) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        if finalizers.is_empty() {
            metadata.remove("finalizers");
        } else {
            metadata.insert("finalizers".to_owned(), Value::from(finalizers));
        }
    }
}

/// The finalizers, with `orphan` or `foregroundDeletion` as requested.
fn finalizers_after(kind: &Kind, current: &Value, options: &DeleteOptions) -> Vec<String> {
    let present = meta::finalizers(current);
    let mut after: Vec<String> = present
        .iter()
        .filter(|name| **name != ORPHAN && **name != FOREGROUND)
        .map(|name| (*name).to_owned())
        .collect();
    // Events never own objects.
    if &*kind.resource.plural == "events" {
        return after;
    }
    let fate = options.propagation.unwrap_or_else(|| {
        let last = present.iter().find(|name| **name == ORPHAN || **name == FOREGROUND);
        match last {
            Some(&ORPHAN) => Propagation::Orphan,
            Some(_) => Propagation::Foreground,
            None if kind.is("", "replicationcontrollers") => Propagation::Orphan,
            None => Propagation::Background,
        }
    });
    match fate {
        Propagation::Orphan => after.push(ORPHAN.to_owned()),
        Propagation::Foreground => after.push(FOREGROUND.to_owned()),
        Propagation::Background => {}
    }
    after
}

/// Pods on a node wait for the kubelet, which deletes them with grace period 0.
fn plan_pod(current: &Value, options: &DeleteOptions) -> DeletionSteps {
    let finalizers = finalizers_after_pod(current, options);
    let mut marked = current.clone();
    if !meta::is_deleting(current) {
        let grace = grace_of(current, options);
        set_finalizers(&mut marked, &finalizers);
        mark(&mut marked, grace);
        return DeletionSteps {
            marked: Some(marked),
            removes: grace == 0 && finalizers.is_empty(),
        };
    }
    let pending = current["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    if pending == 0 {
        let removes = finalizers.is_empty();
        set_finalizers(&mut marked, &finalizers);
        return DeletionSteps { marked: Some(marked), removes };
    }
    let asked = options.grace_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
    match asked {
        Some(grace) if grace < pending => {
            shorten(&mut marked, pending, grace);
            set_finalizers(&mut marked, &finalizers);
            let removes = grace == 0 && finalizers.is_empty();
            DeletionSteps { marked: Some(marked), removes }
        }
        _ => DeletionSteps { marked: None, removes: false },
    }
}

fn finalizers_after_pod(current: &Value, options: &DeleteOptions) -> Vec<String> {
    crate::kinds::built_in("", "pods")
        .map(|kind| finalizers_after(&kind, current, options))
        .unwrap_or_default()
}

fn grace_of(pod: &Value, options: &DeleteOptions) -> i64 {
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    let finished = matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    if node.is_empty() || finished {
        return 0;
    }
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64();
    let grace = options.grace_seconds.or(own).unwrap_or(0);
    if grace < 0 { 1 } else { grace }
}

/// Shortens the grace period.
fn shorten(pod: &mut Value, pending: i64, grace: i64) {
    let now = Timestamp::now();
    let moved = clock::parse(&pod["metadata"]["deletionTimestamp"]).and_then(|time| {
        let back = pending.saturating_sub(grace);
        time.checked_sub(SignedDuration::from_secs(back)).ok()
    });
    let (time, grace) = match moved {
        Some(moved) if moved >= now => (moved, grace),
        _ => (now, if grace == 0 { 0 } else { 1 }),
    };
    pod["metadata"]["deletionTimestamp"] = Value::from(clock::format(time));
    pod["metadata"]["deletionGracePeriodSeconds"] = Value::from(grace);
}
