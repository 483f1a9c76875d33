//! Immutable fields, and updates that are not allowed.

use serde_json::{Value, json};

use super::report::{Report, flag, int, list, text};
use crate::kinds::Kind;

const IMMUTABLE: &str = "field is immutable";

pub(super) fn check(kind: &Kind, old: &Value, new: &Value, report: &mut Report) {
    // The real server validates metadata twice and reports errors twice.
    metadata(old, new, report);
    metadata(old, new, report);
    let none = Value::Null;
    let (before, after) = (old.get("spec").unwrap_or(&none), new.get("spec").unwrap_or(&none));
    if kind.is("apps", "daemonsets") {
        fixed("spec.selector", before, after, "selector", report);
    }
    super::check(kind, new, report);
    match (&*kind.resource.group, &*kind.resource.plural) {
        ("", "pods") => pod(before, after, report),
        ("apps", "deployments" | "replicasets") => {
            fixed("spec.selector", before, after, "selector", report);
        }
        ("apps", "statefulsets") => stateful_set(before, after, report),
        ("batch", "jobs") => job(before, after, report),
        ("", "services") => service(before, after, report),
        ("", "configmaps") => frozen(old, new, &["data", "binaryData"], report),
        ("", "secrets") => {
            fixed("type", old, new, "type", report);
            frozen(old, new, &["data"], report);
        }
        ("", "persistentvolumeclaims") => claim(before, after, report),
        ("scheduling.k8s.io", "priorityclasses") => {
            if old.get("value") != new.get("value") {
                report.forbidden("value", "may not be changed in an update.");
            }
            fixed("preemptionPolicy", old, new, "preemptionPolicy", report);
        }
        ("storage.k8s.io", "storageclasses") => {
            for name in ["parameters", "provisioner", "reclaimPolicy"] {
                if old.get(name) != new.get(name) {
                    report.forbidden(name, &format!("updates to {name} are forbidden."));
                }
            }
            fixed("volumeBindingMode", old, new, "volumeBindingMode", report);
        }
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            role_ref(old, new, report);
        }
        ("resource.k8s.io", "resourceclaims") => {
            fixed("spec", old, new, "spec", report);
        }
        _ => {}
    }
}

fn metadata(old: &Value, new: &Value, report: &mut Report) {
    let none = Value::Null;
    let of = |object: &Value, name: &str| {
        object.get("metadata").and_then(|metadata| metadata.get(name)).cloned()
    };
    for name in ["name", "namespace", "uid"] {
        let (before, after) = (of(old, name), of(new, name));
        if after.is_some() && before != after {
            let after = after.unwrap_or(none.clone());
            report.invalid(&format!("metadata.{name}"), &after, IMMUTABLE);
        }
    }
    if of(old, "deletionTimestamp").is_none() {
        return;
    }
    let names = |object: &Value| -> Vec<String> {
        let list = of(object, "finalizers").unwrap_or(Value::Null);
        let list = list.as_array().cloned().unwrap_or_default();
        list.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let before = names(old);
    let added: Vec<String> = names(new).into_iter().filter(|name| !before.contains(name)).collect();
    if !added.is_empty() {
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers \
             []string{{{}}}",
            added.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
        );
        report.forbidden("metadata.finalizers", &detail);
    }
}

fn fixed(path: &str, before: &Value, after: &Value, name: &str, report: &mut Report) {
    if before.get(name) != after.get(name) {
        let value = after.get(name).cloned().unwrap_or(Value::Null);
        report.invalid(path, &value, IMMUTABLE);
    }
}

fn frozen(old: &Value, new: &Value, fields: &[&str], report: &mut Report) {
    if !flag(old, "immutable") {
        return;
    }
    let detail = "field is immutable when `immutable` is set";
    if !flag(new, "immutable") {
        report.forbidden("immutable", detail);
    }
    for name in fields {
        if old.get(name) != new.get(name) {
            report.forbidden(name, detail);
        }
    }
}

const POD_RULE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
     `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
     additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set \
     to 1 if it was previously negative)";

fn pod(before: &Value, after: &Value, report: &mut Report) {
    for name in ["containers", "initContainers"] {
        if list(before, name).len() != list(after, name).len() {
            let detail = "pod updates may not add or remove containers";
            report.forbidden(&format!("spec.{name}"), detail);
            return;
        }
    }
    for name in ["containers", "initContainers"] {
        for (i, container) in list(after, name).iter().enumerate() {
            if text(container, "image").is_empty() {
                report.required(&format!("spec.{name}[{i}].image"), "");
            }
        }
    }
    if !pod_deadline(before, after, report) {
        return;
    }
    pod_additions(before, after, report);
    let mut munged = after.clone();
    let gated = !list(before, "schedulingGates").is_empty();
    let mut restore = |name: &str| {
        if let Some(map) = munged.as_object_mut() {
            match before.get(name) {
                Some(value) => map.insert(name.to_owned(), value.clone()),
                None => map.remove(name),
            };
        }
    };
    for name in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        restore(name);
    }
    let grace = |spec: &Value| int(spec, "terminationGracePeriodSeconds");
    if grace(before).is_some_and(|seconds| seconds < 0) && grace(after) == Some(1) {
        restore("terminationGracePeriodSeconds");
    }
    if gated {
        gated_pod(before, after, report);
        restore("nodeSelector");
        restore("affinity");
    }
    for name in ["containers", "initContainers"] {
        let old = list(before, name);
        let all = munged.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, old) in all.zip(old) {
            container["image"] = old["image"].clone();
        }
    }
    if munged != *before {
        report.forbidden("spec", POD_RULE);
    }
}

/// Returns whether validation continues.
fn pod_deadline(before: &Value, after: &Value, report: &mut Report) -> bool {
    let path = "spec.activeDeadlineSeconds";
    match (int(before, "activeDeadlineSeconds"), int(after, "activeDeadlineSeconds")) {
        (Some(old), Some(new)) if new > old => {
            report.invalid(path, &json!(new), "must be less than or equal to previous value");
            false
        }
        (Some(_), None) => {
            let detail = "must not update from a positive integer to nil value";
            report.invalid(path, &Value::Null, detail);
            true
        }
        _ => true,
    }
}

/// Tolerations are only added, gates only removed.
fn pod_additions(before: &Value, after: &Value, report: &mut Report) {
    let bare = |toleration: &Value| {
        let mut bare = toleration.clone();
        if let Some(map) = bare.as_object_mut() {
            map.remove("tolerationSeconds");
        }
        bare
    };
    let kept: Vec<Value> = list(after, "tolerations").iter().map(bare).collect();
    if list(before, "tolerations").iter().any(|old| !kept.contains(&bare(old))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        report.forbidden("spec.tolerations", detail);
    }
    let gates = list(before, "schedulingGates");
    for (i, gate) in list(after, "schedulingGates").iter().enumerate() {
        if !gates.contains(gate) {
            let detail = "only deletion is allowed, but found new scheduling gate";
            let name = text(gate, "name");
            let path = format!("spec.schedulingGates[{i}].name");
            report.forbidden(&path, &format!("{detail} '{name}'"));
        }
    }
}

/// Scheduling constraints of a gated pod may only be tightened.
fn gated_pod(before: &Value, after: &Value, report: &mut Report) {
    let old = before.get("nodeSelector").and_then(Value::as_object);
    for (key, value) in old.into_iter().flatten() {
        let kept = after.get("nodeSelector").and_then(|selector| selector.get(key));
        if kept != Some(value) {
            let shown = after.get("nodeSelector").cloned().unwrap_or(Value::Null);
            let detail = format!("only additions are allowed, but {key:?} was changed or removed");
            report.invalid("spec.nodeSelector", &shown, &detail);
        }
    }
}

fn stateful_set(before: &Value, after: &Value, report: &mut Report) {
    const MUTABLE: [&str; 8] = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
        "status",
    ];
    let rest = |spec: &Value| -> Vec<(String, Value)> {
        let fields = spec.as_object().into_iter().flatten();
        let fields = fields.filter(|(name, _)| !MUTABLE.contains(&name.as_str()));
        fields.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    if rest(before) != rest(after) {
        report.forbidden(
            "spec",
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', \
             'template', 'updateStrategy', 'revisionHistoryLimit', \
             'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        );
    }
}

fn job(before: &Value, after: &Value, report: &mut Report) {
    super::workload::job(after, report);
    let indexed = text(after, "completionMode") == "Indexed";
    let elastic = indexed && int(after, "completions") == int(after, "parallelism");
    if !elastic {
        fixed("spec.completions", before, after, "completions", report);
    }
    fixed("spec.selector", before, after, "selector", report);
    // Scheduling fields of a suspended Job may change.
    let suspended = flag(before, "suspend");
    let mut template = after.get("template").cloned().unwrap_or(Value::Null);
    let old = before.get("template").cloned().unwrap_or(Value::Null);
    if suspended {
        for path in ["nodeSelector", "tolerations", "affinity", "schedulingGates"] {
            if let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) {
                match old.get("spec").and_then(|spec| spec.get(path)) {
                    Some(value) => spec.insert(path.to_owned(), value.clone()),
                    None => spec.remove(path),
                };
            }
        }
        if template.is_object() {
            template["metadata"] = old["metadata"].clone();
        }
    }
    if template != old {
        let shown = after.get("template").cloned().unwrap_or(Value::Null);
        report.invalid("spec.template", &shown, IMMUTABLE);
    }
    for name in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy"] {
        fixed(&format!("spec.{name}"), before, after, name, report);
    }
}

fn service(before: &Value, after: &Value, report: &mut Report) {
    let external = |spec: &Value| text(spec, "type") == "ExternalName";
    if external(before) || external(after) {
        return;
    }
    let (old, new) = (text(before, "clusterIP"), text(after, "clusterIP"));
    if !old.is_empty() && old != new {
        let shown = json!([new]);
        let detail = "may not change once set";
        report.invalid("spec.clusterIPs[0]", &shown, detail);
    }
}

fn claim(before: &Value, after: &Value, report: &mut Report) {
    let bound = text(before, "volumeName");
    let may_change = |name: &str| match name {
        "volumeName" => true,
        "resources" | "volumeAttributesClassName" => !bound.is_empty(),
        "storageClassName" => before.get(name).is_none(),
        _ => false,
    };
    let rest = |spec: &Value| -> Vec<(String, Value)> {
        let fields = spec.as_object().into_iter().flatten();
        let fields = fields.filter(|(name, _)| !may_change(name));
        fields.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let moved = !bound.is_empty() && bound != text(after, "volumeName");
    if rest(before) != rest(after) || moved {
        report.forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and \
             volumeAttributesClassName for bound claims",
        );
    }
}

fn role_ref(old: &Value, new: &Value, report: &mut Report) {
    if old.get("roleRef") != new.get("roleRef") {
        let of =
            |name: &str| new.pointer(&format!("/roleRef/{name}")).cloned().unwrap_or(Value::Null);
        let shown = format!(
            "{{\"APIGroup\":{},\"Kind\":{},\"Name\":{}}}",
            of("apiGroup"),
            of("kind"),
            of("name")
        );
        report.invalid_as("roleRef", shown, "cannot change roleRef");
    }
}
