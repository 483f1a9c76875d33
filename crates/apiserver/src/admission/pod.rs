//! Tolerations that every pod gets: of nodes that fall silent, for five minutes.
//!
//! Knows no node.

use serde_json::{Value, json};

use super::{Operation, Request};

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
