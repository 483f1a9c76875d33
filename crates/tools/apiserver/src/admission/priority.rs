//! Priorities of pods, from their PriorityClass.

use serde_json::{Value, json};

use super::{Operation, Request, View};
use crate::kinds::Resource;
use crate::status::Status;

/// Classes that exist without an object.
const SYSTEM: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

struct Class {
    name: String,
    value: i64,
    policy: Option<String>,
}

fn classes() -> Resource {
    Resource::new("scheduling.k8s.io", "priorityclasses")
}

fn read(object: &Value) -> Class {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).map(str::to_owned);
    Class {
        name: text("/metadata/name").unwrap_or_default(),
        value: object.get("value").and_then(Value::as_i64).unwrap_or(0),
        policy: text("/preemptionPolicy"),
    }
}

fn named(view: &(impl View + ?Sized), name: &str) -> Option<Class> {
    if let Some(object) = view.get(&classes(), "", name) {
        return Some(read(&object));
    }
    let (name, value) = SYSTEM.into_iter().find(|(system, _)| *system == name)?;
    let policy = Some("PreemptLowerPriority".to_owned());
    Some(Class { name: name.to_owned(), value, policy })
}

/// The class of pods that name none; of several global defaults the one with the lowest value.
fn global_default(view: &(impl View + ?Sized)) -> Option<Class> {
    let all = view.list(&classes(), "");
    let defaults = all.iter().filter(|class| class.get("globalDefault") == Some(&json!(true)));
    defaults.map(|class| read(class)).min_by_key(|class| class.value)
}

pub(super) fn mutate(
    request: &Request<'_>,
    pod: &mut Value,
    view: &(impl View + ?Sized),
) -> Result<(), Status> {
    if !request.is_about("", "pods") {
        return Ok(());
    }
    match request.operation {
        Operation::Create => establish(request, pod, view),
        Operation::Update => {
            keep(request, pod);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn keep(request: &Request<'_>, pod: &mut Value) {
    let Some(before) = request.old.and_then(|old| old.get("spec")) else { return };
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for name in ["priority", "preemptionPolicy"] {
        if let (false, Some(value)) = (spec.contains_key(name), before.get(name)) {
            spec.insert(name.to_owned(), value.clone());
        }
    }
}

fn establish(
    request: &Request<'_>,
    pod: &mut Value,
    view: &(impl View + ?Sized),
) -> Result<(), Status> {
    let Some(spec) = pod.get("spec").and_then(Value::as_object) else { return Ok(()) };
    let wanted = spec.get("priorityClassName").and_then(Value::as_str).unwrap_or_default();
    let class = if wanted.is_empty() {
        global_default(view).unwrap_or_else(|| Class {
            name: String::new(),
            value: 0,
            policy: Some("PreemptLowerPriority".to_owned()),
        })
    } else {
        named(view, wanted).ok_or_else(|| {
            request.forbidden(pod, format!("no PriorityClass with name {wanted} was found"))
        })?
    };
    if let Some(given) = spec.get("priority").and_then(Value::as_i64)
        && given != class.value
    {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority \
             admission controller computed {} from the given PriorityClass name",
            class.value
        );
        return Err(request.forbidden(pod, why));
    }
    let given = spec.get("preemptionPolicy").and_then(Value::as_str);
    if let (Some(given), Some(policy)) = (given, class.policy.as_deref())
        && given != policy
    {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; \
             priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(request.forbidden(pod, why));
    }
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    if !class.name.is_empty() {
        spec.insert("priorityClassName".to_owned(), Value::from(class.name));
    }
    spec.insert("priority".to_owned(), Value::from(class.value));
    if let Some(policy) = class.policy {
        spec.insert("preemptionPolicy".to_owned(), Value::from(policy));
    }
    Ok(())
}

/// Refuses a second global default.
pub(super) fn validate(
    request: &Request<'_>,
    class: &Value,
    view: &(impl View + ?Sized),
) -> Result<(), Status> {
    let written = matches!(request.operation, Operation::Create | Operation::Update);
    let wants = class.get("globalDefault") == Some(&json!(true));
    if !written || !wants || !request.is_about("scheduling.k8s.io", "priorityclasses") {
        return Ok(());
    }
    let name = class.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    match global_default(view) {
        Some(other) if request.operation == Operation::Create || other.name != name => {
            let why = format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                other.name
            );
            Err(request.forbidden(class, why))
        }
        _ => Ok(()),
    }
}
