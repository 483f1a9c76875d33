//! New nodes are tainted until a controller has seen that they are ready.

use serde_json::{Value, json};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Taints a new node, as the real server's `TaintNodesByCondition` does.
pub(crate) fn taint(node: &mut Value) {
    if !node["spec"].is_object() {
        node["spec"] = json!({});
    }
    let taints = &mut node["spec"]["taints"];
    if !taints.is_array() {
        *taints = json!([]);
    }
    let Some(taints) = taints.as_array_mut() else { return };
    let present =
        taints.iter().any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule");
    if !present {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}
