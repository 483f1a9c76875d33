//! Defaults of all pods: tolerations of unready nodes for five minutes, and the overhead of their runtime class.

use serde_json::{Value, json};

use super::{Operation, Request, View};
use crate::kinds::Resource;
use crate::status::Status;

const SECONDS: i64 = 300;
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

pub(super) fn mutate(request: &Request<'_>, pod: &mut Value) {
    let concerned = matches!(request.operation, Operation::Create | Operation::Update);
    if !concerned || !request.is_about("", "pods") {
        return;
    }
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let given = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    let tolerates = |key: &str| {
        given.iter().any(|toleration| {
            let text =
                |name: &str| toleration.get(name).and_then(Value::as_str).unwrap_or_default();
            let this_key = matches!(text("key"), "") || text("key") == key;
            this_key && matches!(text("effect"), "" | "NoExecute")
        })
    };
    let missing = [NOT_READY, UNREACHABLE].into_iter().filter(|key| !tolerates(key));
    let added: Vec<Value> = missing
        .map(|key| {
            json!({
                "key": key,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": SECONDS
            })
        })
        .collect();
    if !added.is_empty() {
        let all: Vec<Value> = given.into_iter().chain(added).collect();
        spec.insert("tolerations".to_owned(), Value::Array(all));
    }
}

/// Sets the overhead of the pod's runtime class, and refuses another one.
pub(super) fn set_overhead(
    request: &Request<'_>,
    pod: &mut Value,
    view: &(impl View + ?Sized),
) -> Result<(), Status> {
    if request.operation != Operation::Create || !request.is_about("", "pods") {
        return Ok(());
    }
    let text = |path: &str| pod.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let name = text("/spec/runtimeClassName").to_owned();
    let class = match name.as_str() {
        "" => None,
        name => {
            let found = view.get(&Resource::new("node.k8s.io", "runtimeclasses"), "", name);
            let missing =
                || request.forbidden(pod, format!("pod rejected: RuntimeClass {name:?} not found"));
            Some(found.ok_or_else(missing)?)
        }
    };
    let overhead = class.as_ref().and_then(|class| class.pointer("/overhead/podFixed")).cloned();
    let given = pod.pointer("/spec/overhead").cloned();
    match (overhead, given) {
        (None, Some(_)) => Err(request.forbidden(
            pod,
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        )),
        (Some(wanted), Some(given)) if wanted != given => Err(request.forbidden(
            pod,
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        )),
        (Some(wanted), _) => {
            pod["spec"]["overhead"] = wanted;
            Ok(())
        }
        (None, None) => Ok(()),
    }
}
