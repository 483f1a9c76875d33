//! LimitRanger: default requests and limits of containers, and their bounds.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::quantity::Quantity;
use serde_json::{Map, Value};

use super::{Operation, Request, View};
use crate::kinds::Resource;
use crate::status::Status;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Larger amounts are compared in whole units.
const MAX_MILLI_UNITS: i64 = i64::MAX / 1000;

type Amounts = BTreeMap<String, Quantity>;

fn amounts(list: Option<&Value>) -> Amounts {
    let list = list.and_then(Value::as_object).into_iter().flatten();
    let read = list.filter_map(|(name, amount)| {
        let amount = match amount {
            Value::String(text) => Quantity::parse(text).ok()?,
            Value::Number(number) => Quantity::parse(&number.to_string()).ok()?,
            _ => return None,
        };
        Some((name.clone(), amount))
    });
    read.collect()
}

/// The namespace's limit ranges, if they apply to this request. Pods are checked only when created.
fn ranges(request: &Request<'_>, view: &(impl View + ?Sized)) -> Vec<Arc<Value>> {
    let pods = request.is_about("", "pods") && request.operation == Operation::Create;
    let resize = request.kind.is("", "pods") && request.subresource == "resize";
    let claims = request.is_about("", "persistentvolumeclaims")
        && matches!(request.operation, Operation::Create | Operation::Update);
    let going = request.old.is_some_and(|old| old.pointer("/metadata/deletionTimestamp").is_some());
    if going || !(pods || resize || claims) {
        return Vec::new();
    }
    view.list(&Resource::new("", "limitranges"), request.namespace)
}

fn items(range: &Value) -> impl Iterator<Item = &Value> {
    range.pointer("/spec/limits").and_then(Value::as_array).into_iter().flatten()
}

fn kind(item: &Value) -> &str {
    item.get("type").and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn mutate(
    request: &Request<'_>,
    object: &mut Value,
    view: &(impl View + ?Sized),
) -> Result<(), Status> {
    if !request.kind.is("", "pods") {
        return Ok(());
    }
    for range in ranges(request, view) {
        let (mut requests, mut limits) = (Map::new(), Map::new());
        for item in items(&range).filter(|item| kind(item) == "Container") {
            for (name, into) in [("defaultRequest", &mut requests), ("default", &mut limits)] {
                let list = item.get(name).and_then(Value::as_object).into_iter().flatten();
                into.extend(list.map(|(name, amount)| (name.clone(), amount.clone())));
            }
        }
        let mut notes = Vec::new();
        for (list, words) in [("containers", "container"), ("initContainers", "init container")] {
            let path = format!("/spec/{list}");
            let containers = object.pointer_mut(&path).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                fill(container, &requests, &limits, words, &mut notes);
            }
        }
        if !notes.is_empty() {
            let note = format!("LimitRanger plugin set: {}", notes.join("; "));
            annotate(object, note);
        }
    }
    Ok(())
}

fn annotate(object: &mut Value, note: String) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(ANNOTATION.to_owned(), Value::from(note));
    }
}

fn fill(
    container: &mut Value,
    requests: &Map<String, Value>,
    limits: &Map<String, Value>,
    words: &str,
    notes: &mut Vec<String>,
) {
    let name = container.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(container) = container.as_object_mut() else { return };
    let resources = container.entry("resources").or_insert_with(|| Value::Object(Map::new()));
    let Some(resources) = resources.as_object_mut() else { return };
    let mut set_of = |field: &str, defaults: &Map<String, Value>| -> Vec<String> {
        if defaults.is_empty() {
            return Vec::new();
        }
        let list = resources.entry(field).or_insert_with(|| Value::Object(Map::new()));
        let Some(list) = list.as_object_mut() else { return Vec::new() };
        let mut set = Vec::new();
        for (name, amount) in defaults {
            if !list.contains_key(name) {
                list.insert(name.clone(), amount.clone());
                set.push(name.clone());
            }
        }
        set
    };
    let set_limits = set_of("limits", limits);
    let set_requests = set_of("requests", requests);
    for (set, what) in [(set_requests, "request"), (set_limits, "limit")] {
        if !set.is_empty() {
            notes.push(format!("{} {what} for {words} {name}", set.join(", ")));
        }
    }
}

pub(super) fn validate(
    request: &Request<'_>,
    object: &Value,
    view: &(impl View + ?Sized),
) -> Result<(), Status> {
    for range in ranges(request, view) {
        let mut problems = Vec::new();
        for item in items(&range) {
            match kind(item) {
                "PersistentVolumeClaim" if request.kind.is("", "persistentvolumeclaims") => {
                    check_claim(item, object, &mut problems);
                }
                "Container" if request.kind.is("", "pods") => {
                    for list in ["containers", "initContainers"] {
                        let path = format!("/spec/{list}");
                        let all = object.pointer(&path).and_then(Value::as_array);
                        for container in all.into_iter().flatten() {
                            let resources = container.get("resources");
                            let of = |name: &str| amounts(resources.and_then(|r| r.get(name)));
                            check(item, &of("requests"), &of("limits"), &mut problems);
                        }
                    }
                }
                "Pod" if request.kind.is("", "pods") => {
                    let (requests, limits) = (total(object, "requests"), total(object, "limits"));
                    check(item, &requests, &limits, &mut problems);
                }
                _ => {}
            }
        }
        let mut told: Vec<String> = Vec::new();
        for problem in problems {
            if !told.contains(&problem) {
                told.push(problem);
            }
        }
        match told.as_slice() {
            [] => {}
            [one] => return Err(request.forbidden(object, one)),
            many => return Err(request.forbidden(object, format!("[{}]", many.join(", ")))),
        }
    }
    Ok(())
}

fn check_claim(item: &Value, claim: &Value, problems: &mut Vec<String>) {
    let requests = amounts(claim.pointer("/spec/resources/requests"));
    let kind = kind(item);
    for (name, least) in amounts(item.get("min")) {
        problems.extend(too_little(kind, &name, least, &requests, &Amounts::new()));
    }
    for (name, most) in amounts(item.get("max")) {
        let words = format!("maximum {name} usage per {kind} is {most}");
        match requests.get(&name) {
            None => problems.push(format!("{words}.  No request is specified")),
            Some(asked) if value_of(*asked, [*asked, most]) > value_of(most, [*asked, most]) => {
                problems.push(format!("{words}, but request is {asked}"));
            }
            Some(_) => {}
        }
    }
}

/// An amount for comparison: in thousandths, unless one of the amounts is too large for that.
fn value_of(amount: Quantity, all: impl IntoIterator<Item = Quantity>) -> i64 {
    let fits = all.into_iter().all(|one| one.value() <= MAX_MILLI_UNITS);
    if fits { amount.milli_value() } else { amount.value() }
}

fn check(item: &Value, requests: &Amounts, limits: &Amounts, problems: &mut Vec<String>) {
    let kind = kind(item);
    for (name, least) in amounts(item.get("min")) {
        problems.extend(too_little(kind, &name, least, requests, limits));
    }
    for (name, most) in amounts(item.get("max")) {
        problems.extend(too_much(kind, &name, most, requests, limits));
    }
    for (name, most) in amounts(item.get("maxLimitRequestRatio")) {
        problems.extend(too_far_apart(kind, &name, most, requests, limits));
    }
}

fn too_little(
    kind: &str,
    name: &str,
    least: Quantity,
    requests: &Amounts,
    limits: &Amounts,
) -> Option<String> {
    let words = format!("minimum {name} usage per {kind} is {least}");
    let (request, limit) = (requests.get(name).copied(), limits.get(name).copied());
    let all = || [request.unwrap_or_default(), limit.unwrap_or_default(), least];
    let below = |amount: Quantity| value_of(amount, all()) < value_of(least, all());
    match (request, limit) {
        (None, _) => Some(format!("{words}.  No request is specified")),
        (Some(request), _) if below(request) => Some(format!("{words}, but request is {request}")),
        (_, Some(limit)) if below(limit) => Some(format!("{words}, but limit is {limit}")),
        _ => None,
    }
}

fn too_much(
    kind: &str,
    name: &str,
    most: Quantity,
    requests: &Amounts,
    limits: &Amounts,
) -> Option<String> {
    let words = format!("maximum {name} usage per {kind} is {most}");
    let (request, limit) = (requests.get(name).copied(), limits.get(name).copied());
    let all = || [request.unwrap_or_default(), limit.unwrap_or_default(), most];
    let above = |amount: Quantity| value_of(amount, all()) > value_of(most, all());
    match (request, limit) {
        (_, None) => Some(format!("{words}.  No limit is specified")),
        (_, Some(limit)) if above(limit) => Some(format!("{words}, but limit is {limit}")),
        (Some(request), _) if above(request) => Some(format!("{words}, but request is {request}")),
        _ => None,
    }
}

fn too_far_apart(
    kind: &str,
    name: &str,
    most: Quantity,
    requests: &Amounts,
    limits: &Amounts,
) -> Option<String> {
    let words = format!("{name} max limit to request ratio per {kind} is {most}");
    let given = |list: &Amounts| list.get(name).copied().filter(|amount| !amount.is_zero());
    let Some(request) = given(requests) else {
        return Some(format!("{words}, but no request is specified or request is 0"));
    };
    let Some(limit) = given(limits) else {
        return Some(format!("{words}, but no limit is specified or limit is 0"));
    };
    let all = [request, limit, most];
    let ratio = value_of(limit, all) as f64 / value_of(request, all) as f64;
    let above = if most.value() <= MAX_MILLI_UNITS {
        ratio * 1000.0 > most.milli_value() as f64
    } else {
        ratio > most.value() as f64
    };
    above.then(|| format!("{words}, but provided ratio is {ratio:.6}"))
}

/// The total of a pod: containers and sidecars together, or the largest init container if that is more.
fn total(pod: &Value, field: &str) -> Amounts {
    let list = |name: &str| {
        let path = format!("/spec/{name}");
        pod.pointer(&path).and_then(Value::as_array).into_iter().flatten()
    };
    let of = |container: &Value| amounts(container.pointer(&format!("/resources/{field}")));
    let mut sum = Amounts::new();
    for container in list("containers") {
        add(&mut sum, &of(container));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in list("initContainers") {
        let mut own = of(container);
        if container.get("restartPolicy").and_then(Value::as_str) == Some("Always") {
            add(&mut sum, &own);
            add(&mut sidecars, &own);
            own = sidecars.clone();
        } else {
            add(&mut own, &sidecars);
        }
        largest(&mut peak, &own);
    }
    largest(&mut sum, &peak);
    for (name, amount) in amounts(pod.pointer(&format!("/spec/resources/{field}"))) {
        sum.insert(name, amount);
    }
    sum
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let slot = sum.entry(name.clone()).or_insert(Quantity::ZERO);
        *slot = slot.saturating_add(*amount);
    }
}

fn largest(sum: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        match sum.get(name) {
            Some(own) if own >= amount => {}
            _ => {
                sum.insert(name.clone(), *amount);
            }
        }
    }
}
