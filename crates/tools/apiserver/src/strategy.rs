//! How a kind may be written: requirements of replacing, and when a deleted object is removed. Pure.

use serde_json::Value;

use crate::kinds::{Kind, Origin};

/// Whether replacing an object that is not there creates it.
pub(crate) fn creates_on_update(kind: &Kind) -> bool {
    let plural = &*kind.resource.plural;
    match &*kind.resource.group {
        "" => matches!(plural, "endpoints" | "events" | "limitranges" | "services"),
        "rbac.authorization.k8s.io" | "coordination.k8s.io" | "events.k8s.io" | "node.k8s.io" => {
            true
        }
        _ => false,
    }
}

/// Whether objects can be replaced without saying which revision is replaced.
pub(crate) fn updates_unconditionally(kind: &Kind) -> bool {
    if matches!(kind.origin, Origin::Custom(_)) {
        return false;
    }
    !matches!(
        (&*kind.resource.group, &*kind.resource.plural),
        ("policy", _)
            | ("coordination.k8s.io", _)
            | ("apiextensions.k8s.io", _)
            | ("admissionregistration.k8s.io", _)
            | ("node.k8s.io", _)
            | (
                "storage.k8s.io",
                "csidrivers" | "csinodes" | "csistoragecapacities" | "volumeattachments"
            )
    )
}

/// Whether an update leaves an object that was waiting for its finalizers with none of them.
pub(crate) fn is_finished(kind: &Kind, old: &Value, new: &Value) -> bool {
    let empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    let waits = old["metadata"]["deletionTimestamp"].is_string()
        && old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
    waits
        && empty(&new["metadata"]["finalizers"])
        && (!kind.is("", "namespaces") || empty(&new["spec"]["finalizers"]))
}
