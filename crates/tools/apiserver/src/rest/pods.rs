//! Subresources of pods: binding, eviction, log.

use http::Response;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::delete::{self, DeleteOptions};
use super::path::Place;
use super::respond::{self, Body};
use super::{Call, meta, read};
use crate::clock;
use crate::disruption::{self, Eligibility};
use crate::kinds::Resource;
use crate::server::Server;
use crate::status::{FieldError, Status};
use crate::store::{Expected, Lost, Operation, key_of};

/// Attempts of a binding without preconditions.
const ATTEMPTS: usize = 16;

pub(crate) fn bind(server: &Server, place: &Place, call: &Call) -> Result<Response<Body>, Status> {
    let binding = call.object()?;
    let dry_run = call.query.dry_run()?;
    let given = meta::text(&binding, "name");
    let name = if place.name.is_empty() { given } else { place.name.as_str() };
    if given != name {
        return Err(Status::bad_request("name in URL does not match name in Binding object"));
    }
    let namespace = meta::text(&binding, "namespace");
    if !namespace.is_empty() && namespace != place.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let node = target(&binding)?;
    let pods = Resource::new("", "pods");
    let key = key_of(&place.namespace, name);
    for _ in 0..ATTEMPTS {
        let pod = server.store.get(&pods, &key).ok_or_else(|| Status::not_found(&pods, name))?;
        check_preconditions(&binding, name, &key, pod.uid(), pod.revision)?;
        let bound = bound(&pod.value, &binding, node, name)?;
        if dry_run {
            return Ok(success());
        }
        match server.store.put(&pods, &key, Expected::Revision(pod.revision), bound) {
            Ok(_) => return Ok(success()),
            Err(Lost::Missing) => return Err(Status::not_found(&pods, name)),
            Err(Lost::Changed | Lost::Exists) => {}
        }
    }
    Err(Status::modified(&pods, name))
}

/// Deletes a pod if the disruption budgets of its namespace allow it.
pub(crate) fn evict(server: &Server, place: &Place, call: &Call) -> Result<Response<Body>, Status> {
    let eviction = call.object()?;
    if meta::text(&eviction, "name") != place.name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut options = DeleteOptions::from_json(&eviction["deleteOptions"])?;
    options.dry_run |= call.query.dry_run()?;
    let budgets = Resource::new("policy", "poddisruptionbudgets");
    for _ in 0..ATTEMPTS {
        let pod = read::find(server, place)?;
        delete::check_preconditions(&place.kind, &options, &pod)?;
        let listed = server.store.list(&budgets, Some(&place.namespace)).items;
        let values = listed.iter().map(|budget| &*budget.value);
        let verdict = disruption::may_evict(&pod.value, values, Timestamp::now())?;
        if options.dry_run {
            return Ok(success());
        }
        let mut writes = Vec::new();
        if let Eligibility::Charged(budget) = verdict {
            let revision = meta::text(&budget, "resourceVersion").parse().unwrap_or(0);
            let key = key_of(&place.namespace, meta::text(&budget, "name"));
            writes.push(Operation::put(&budgets, &key, Expected::Revision(revision), *budget));
        }
        let mut marked = Value::clone(&pod.value);
        set_condition(&mut marked, disrupted());
        let expected = Expected::Revision(pod.revision);
        writes.push(Operation::put(&place.kind.stored_as, &pod.key, expected, marked));
        // One transaction charges the budget and marks the pod, so a lost race changes neither.
        if server.store.transact(writes).is_err() {
            continue;
        }
        let options = DeleteOptions { revision: None, ..options.clone() };
        delete::remove(server, &place.kind, &place.namespace, &place.name, &options)?;
        return Ok(success());
    }
    Err(Status::modified(&place.kind.resource, &place.name))
}

fn disrupted() -> Value {
    json!({
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": null,
        "lastTransitionTime": clock::now(),
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    })
}

/// Answers with one line that says why there is no log.
pub(crate) fn log(server: &Server, place: &Place, _call: &Call) -> Result<Response<Body>, Status> {
    let pod = read::find(server, place)?;
    let node = pod.value["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        let why = format!("pod {} does not have a host assigned", place.name);
        return Err(Status::bad_request(why));
    }
    let text = format!(
        "pod {} is on the virtual node {node}, which runs no containers: there are no logs\n",
        place.name
    );
    Ok(respond::text(200, text))
}

fn success() -> Response<Body> {
    respond::json(
        201,
        &json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "code": 201,
        }),
    )
}

fn target(binding: &Value) -> Result<&str, Status> {
    let target = &binding["target"];
    let kind = target["kind"].as_str().unwrap_or_default();
    let node = target["name"].as_str().unwrap_or_default();
    let mut errors = Vec::new();
    if !matches!(kind, "" | "Node") {
        let kinds = &["Node", "<empty>"];
        errors.push(FieldError::not_one_of("target.kind", &Value::from(kind), kinds));
    }
    if node.is_empty() {
        errors.push(FieldError::required("target.name", ""));
    }
    if errors.is_empty() {
        return Ok(node);
    }
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Err(Status::unknown(match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }))
}

fn check_preconditions(
    binding: &Value,
    name: &str,
    key: &str,
    uid: &str,
    revision: u64,
) -> Result<(), Status> {
    let pods = Resource::new("", "pods");
    let wanted = meta::text(binding, "uid");
    if !wanted.is_empty() && wanted != uid {
        let why = meta::failed_precondition(
            "/registry/pods",
            key,
            &format!("UID in precondition: {wanted}, UID in object meta: {uid}"),
        );
        return Err(Status::conflict(&pods, name, why));
    }
    let wanted = meta::text(binding, "resourceVersion");
    if !wanted.is_empty() && wanted != revision.to_string() {
        let why = meta::failed_precondition(
            "/registry/pods",
            key,
            &format!(
                "ResourceVersion in precondition: {wanted}, ResourceVersion in object meta: {revision}"
            ),
        );
        return Err(Status::conflict(&pods, name, why));
    }
    Ok(())
}

/// The pod with its node, or why it cannot have one.
fn bound(pod: &Value, binding: &Value, node: &str, name: &str) -> Result<Value, Status> {
    let conflict =
        |why: String| Err(Status::conflict(&Resource::new("", "pods/binding"), name, why));
    if meta::is_deleting(pod) {
        return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let present = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if !present.is_empty() {
        return conflict(format!("pod {name} is already assigned to node \"{present}\""));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut pod = pod.clone();
    pod["spec"]["nodeName"] = Value::from(node);
    for field in ["annotations", "labels"] {
        if let Some(given) = binding["metadata"][field].as_object().filter(|map| !map.is_empty()) {
            let own = &mut pod["metadata"][field];
            if !own.is_object() {
                *own = json!({});
            }
            for (key, value) in given {
                own[key] = value.clone();
            }
        }
    }
    if let Some(status) = pod["status"].as_object_mut() {
        status.remove("nominatedNodeName");
    }
    let scheduled = json!({
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": null,
        "lastTransitionTime": clock::now(),
    });
    set_condition(&mut pod, scheduled);
    Ok(pod)
}

/// Sets a condition, and keeps `lastTransitionTime` if the status is the same.
fn set_condition(pod: &mut Value, mut condition: Value) {
    let conditions = &mut pod["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    match conditions.iter_mut().find(|present| present["type"] == condition["type"]) {
        Some(present) => {
            if present["status"] == condition["status"] {
                condition["lastTransitionTime"] = present["lastTransitionTime"].clone();
            }
            *present = condition;
        }
        None => conditions.push(condition),
    }
}
