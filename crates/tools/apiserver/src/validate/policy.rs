//! Validation of quotas, limit ranges, budgets, priority classes, leases, autoscalers, storage classes and roles.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::pod::resources;
use super::report::{Report, has, int, list, map, object, quantity, text};
use super::workload::{amount, at_most_all};
use super::{meta, text};
use crate::kinds::Kind;

/// No class of users may have a higher value.
const MAX_PRIORITY: i64 = 1_000_000_000;

pub(super) fn check(kind: &Kind, object: &Value, spec: &Value, report: &mut Report) {
    match &*kind.resource.plural {
        "resourcequotas" => quota(spec, report),
        "limitranges" => limit_range(spec, report),
        "poddisruptionbudgets" => budget(spec, report),
        "priorityclasses" => priority_class(object, report),
        "leases" => lease(spec, report),
        "horizontalpodautoscalers" => autoscaler(spec, report),
        "storageclasses" => storage_class(object, report),
        "roles" | "clusterroles" => role(&kind.resource.plural, object, report),
        "rolebindings" | "clusterrolebindings" => binding(&kind.resource.plural, object, report),
        _ => {}
    }
}

const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

/// What is counted in whole numbers.
const WHOLE: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

fn quota(spec: &Value, report: &mut Report) {
    for (name, limit) in map(spec, "hard") {
        let path = format!("spec.hard[{name}]");
        resources::check_name(&path, name, report);
        if !name.contains('/') && !resources::is_standard(name) {
            report.invalid(&path, &json!(name), "must be a standard resource for quota");
        }
        let Some(limit) = quantity(limit) else { continue };
        let shown = json!(limit.to_string());
        if limit.sign() < 0 {
            report.invalid(&path, &shown, "must be greater than or equal to 0");
        }
        let whole = WHOLE.contains(&name.as_str()) || resources::is_extended(name);
        if whole && limit.as_i64().is_none() {
            report.invalid(&path, &shown, "must be an integer");
        }
    }
    scopes(spec, report);
    for requirement in spec
        .pointer("/scopeSelector/matchExpressions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let path = "spec.scopeSelector.matchExpressions";
        let values = list(requirement, "values");
        match text(requirement, "operator") {
            "In" | "NotIn" if values.is_empty() => report.required(
                &format!("{path}.values"),
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => report.invalid(
                &format!("{path}.values"),
                &json!(values),
                "must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let path = format!("{path}.operator");
                report.invalid(&path, &json!(other), "not a valid selector operator");
            }
        }
    }
}

fn scopes(spec: &Value, report: &mut Report) {
    let scopes: BTreeSet<&str> = list(spec, "scopes").iter().filter_map(Value::as_str).collect();
    if scopes.is_empty() {
        return;
    }
    let shown = json!(list(spec, "scopes"));
    let path = "spec.scopes";
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            report.invalid(path, &shown, "unsupported scope");
        }
    }
    let unfit = |name: &str| match name {
        "pods" | "count/pods" => false,
        _ => scopes.contains("BestEffort"),
    };
    for _ in map(spec, "hard").filter(|(name, _)| unfit(name)) {
        report.invalid(path, &shown, "unsupported scope applied to resource");
    }
    for (one, other) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if scopes.contains(one) && scopes.contains(other) {
            report.invalid(path, &shown, "conflicting scopes");
        }
    }
}

fn limit_range(spec: &Value, report: &mut Report) {
    let mut kinds = BTreeSet::new();
    for (i, limit) in list(spec, "limits").iter().enumerate() {
        let path = format!("spec.limits[{i}]");
        let kind = text(limit, "type");
        let wrong = text::qualified_name(kind);
        if wrong.is_empty()
            && !kind.contains('/')
            && !["Pod", "Container", "PersistentVolumeClaim"].contains(&kind)
        {
            let detail = "must be a standard limit type or fully qualified";
            report.invalid(&format!("{path}.type"), &json!(kind), detail);
        }
        report.text(&format!("{path}.type"), kind, wrong);
        if !kinds.insert(kind) {
            report.duplicate(&format!("{path}.type"), &json!(kind));
        }
        limit_names(&path, kind, limit, report);
        limit_amounts(&path, limit, report);
    }
}

fn limit_names(path: &str, kind: &str, limit: &Value, report: &mut Report) {
    let lists: &[&str] = match kind {
        "Pod" => {
            for name in ["default", "defaultRequest"] {
                if object(limit, name).is_some_and(|list| !list.is_empty()) {
                    let path = format!("{path}.{name}");
                    report.forbidden(&path, "may not be specified when `type` is 'Pod'");
                }
            }
            &["max", "min", "maxLimitRequestRatio"]
        }
        _ => &["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"],
    };
    for list in lists {
        for (name, _) in map(limit, list) {
            let path = format!("{path}.{list}[{name}]");
            if kind == "Container" {
                resources::check_container_name(&path, name, report);
            } else {
                resources::check_name(&path, name, report);
            }
        }
    }
    if kind == "PersistentVolumeClaim" {
        let storage =
            |list: &str| limit.get(list).is_some_and(|list| list.get("storage").is_some());
        if !storage("min") && !storage("max") {
            let detail =
                "either minimum or maximum storage value is required, but neither was provided";
            report.required(&format!("{path}.limits"), detail);
        }
    }
}

fn limit_amounts(path: &str, limit: &Value, report: &mut Report) {
    let lists = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
    let names: BTreeSet<&String> =
        lists.iter().flat_map(|list| map(limit, list)).map(|(name, _)| name).collect();
    for name in names {
        let of = |list: &str| limit.get(list).and_then(|list| list.get(name)).and_then(quantity);
        let at = |list: &str| format!("{path}.{list}[{name}]");
        let [max, min, default, request, ratio] = lists.map(of);
        let mut say = |list: &str, value: String, detail: String| {
            report.invalid(&at(list), &json!(value), &detail);
        };
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            say("min", min.to_string(), format!("min value {min} is greater than max value {max}"));
        }
        if let (Some(request), Some(min)) = (request, min)
            && min > request
        {
            let detail = format!("min value {min} is greater than default request value {request}");
            say("defaultRequest", request.to_string(), detail);
        }
        if let (Some(request), Some(max)) = (request, max)
            && request > max
        {
            let detail = format!("default request value {request} is greater than max value {max}");
            say("defaultRequest", request.to_string(), detail);
        }
        if let (Some(request), Some(default)) = (request, default)
            && request > default
        {
            let detail = format!(
                "default request value {request} is greater than default limit value {default}"
            );
            say("defaultRequest", request.to_string(), detail);
        }
        if let (Some(default), Some(min)) = (default, min)
            && min > default
        {
            let detail = format!("min value {min} is greater than default value {default}");
            say("default", min.to_string(), detail);
        }
        if let (Some(default), Some(max)) = (default, max)
            && default > max
        {
            let detail = format!("default value {default} is greater than max value {max}");
            say("default", max.to_string(), detail);
        }
        if let Some(ratio) = ratio.filter(|ratio| ratio.milli_value() < 1000) {
            let detail = format!("ratio {ratio} is less than 1");
            say("maxLimitRequestRatio", ratio.to_string(), detail);
        }
    }
}

fn budget(spec: &Value, report: &mut Report) {
    let [least, most] = ["minAvailable", "maxUnavailable"].map(|name| spec.get(name));
    let policy = text(spec, "unhealthyPodEvictionPolicy");
    if let (Some(least), Some(most)) = (least, most) {
        let policy = spec.get("unhealthyPodEvictionPolicy").unwrap_or(&Value::Null);
        let selector = spec.get("selector").unwrap_or(&Value::Null);
        let shown = format!(
            "{{\"MinAvailable\":{least},\"Selector\":{selector},\"MaxUnavailable\":{most},\
             \"UnhealthyPodEvictionPolicy\":{policy}}}"
        );
        let detail = "minAvailable and maxUnavailable cannot be both set";
        report.invalid_as("spec", shown, detail);
    }
    for (name, value) in [("minAvailable", least), ("maxUnavailable", most)] {
        amount(&format!("spec.{name}"), value, report);
        at_most_all(&format!("spec.{name}"), value, report);
    }
    if let Some(selector) = spec.get("selector").filter(|selector| selector.is_object()) {
        meta::selector("spec.selector", selector, report);
    }
    if !policy.is_empty() {
        let known = ["AlwaysAllow", "IfHealthyBudget"];
        report.one_of("spec.unhealthyPodEvictionPolicy", policy, &known);
    }
}

fn priority_class(object: &Value, report: &mut Report) {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let value = int(object, "value").unwrap_or(0);
    let system =
        [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];
    if name.starts_with("system-") {
        let why = match system.iter().find(|(known, _)| *known == name) {
            None => Some(format!("{name} is not a known system priority class")),
            Some((_, wanted)) if *wanted != value => {
                Some(format!("value of {name} PriorityClass must be {wanted}"))
            }
            Some(_) => None,
        };
        if let Some(why) = why {
            let detail = format!(
                "priority class names with 'system-' prefix are reserved for system use only. \
                 error: {why}"
            );
            report.forbidden("metadata.name", &detail);
        }
    } else if value > MAX_PRIORITY {
        let detail = format!("maximum allowed value of a user defined priority is {MAX_PRIORITY}");
        report.forbidden("value", &detail);
    }
    let policy = text(object, "preemptionPolicy");
    if !policy.is_empty() {
        report.one_of("preemptionPolicy", policy, &["PreemptLowerPriority", "Never"]);
    }
}

fn lease(spec: &Value, report: &mut Report) {
    if let Some(seconds) = int(spec, "leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        report.invalid("spec.leaseDurationSeconds", &json!(seconds), "must be greater than 0");
    }
    report.not_negative("spec.leaseTransitions", int(spec, "leaseTransitions"));
}

fn autoscaler(spec: &Value, report: &mut Report) {
    let least = int(spec, "minReplicas").unwrap_or(1);
    let most = int(spec, "maxReplicas").unwrap_or(0);
    if least < 1 {
        let detail = "must be greater than or equal to 1";
        report.invalid("spec.minReplicas", &json!(least), detail);
    }
    if most < 1 {
        report.required("spec.maxReplicas", "must be set and greater than 0");
    }
    if most < least {
        let detail = "must be greater than or equal to `minReplicas`";
        report.invalid("spec.maxReplicas", &json!(most), detail);
    }
    let target = spec.get("scaleTargetRef").unwrap_or(&Value::Null);
    for name in ["kind", "name"] {
        let value = text(target, name);
        let path = format!("spec.scaleTargetRef.{name}");
        if value.is_empty() {
            report.required(&path, "");
        } else {
            report.text(&path, value, text::path_segment(value));
        }
    }
    if !text(target, "apiVersion").contains('/') {
        let value = json!(text(target, "apiVersion"));
        let detail = "apiVersion must specify API group";
        report.invalid("spec.scaleTargetRef.apiVersion", &value, detail);
    }
    let known = ["ContainerResource", "External", "Object", "Pods", "Resource"];
    let metrics = list(spec, "metrics");
    for (i, metric) in metrics.iter().enumerate() {
        report.one_of(&format!("spec.metrics[{i}].type"), text(metric, "type"), &known);
    }
    let outside = metrics.iter().any(|one| matches!(text(one, "type"), "Object" | "External"));
    if least == 0 && !outside {
        let detail = "must specify at least one Object or External metric to support scaling to \
                      zero replicas";
        report.forbidden("spec.metrics", detail);
    }
}

fn storage_class(object: &Value, report: &mut Report) {
    let provisioner = text(object, "provisioner");
    if provisioner.is_empty() {
        report.required("provisioner", "");
    } else {
        let lower = provisioner.to_lowercase();
        report.text("provisioner", provisioner, text::qualified_name(&lower));
    }
    report.one_of("reclaimPolicy", text(object, "reclaimPolicy"), &["Delete", "Retain"]);
    let mode = text(object, "volumeBindingMode");
    report.one_of("volumeBindingMode", mode, &["Immediate", "WaitForFirstConsumer"]);
}

fn role(plural: &str, object: &Value, report: &mut Report) {
    for (i, rule) in list(object, "rules").iter().enumerate() {
        let at = |name: &str| format!("rules[{i}].{name}");
        if list(rule, "verbs").is_empty() {
            report.required(&at("verbs"), "verbs must contain at least one value");
        }
        if !list(rule, "nonResourceURLs").is_empty() {
            if plural == "roles" {
                let detail = "namespaced rules cannot apply to non-resource URLs";
                report.invalid(&at("nonResourceURLs"), &rule["nonResourceURLs"], detail);
            }
            continue;
        }
        if list(rule, "apiGroups").is_empty() {
            report.required(&at("apiGroups"), "resource rules must supply at least one api group");
        }
        if list(rule, "resources").is_empty() {
            report.required(&at("resources"), "resource rules must supply at least one resource");
        }
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";

fn binding(plural: &str, object: &Value, report: &mut Report) {
    let role = object.get("roleRef").unwrap_or(&Value::Null);
    let group = text(role, "apiGroup");
    if group != RBAC {
        report.unsupported("roleRef.apiGroup", group, &[RBAC]);
    }
    let kinds: &[&str] =
        if plural == "rolebindings" { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    report.one_of("roleRef.kind", text(role, "kind"), kinds);
    if text(role, "name").is_empty() {
        report.required("roleRef.name", "");
    }
    for (i, subject) in list(object, "subjects").iter().enumerate() {
        let at = |name: &str| format!("subjects[{i}].{name}");
        if text(subject, "name").is_empty() {
            report.required(&at("name"), "");
        }
        match text(subject, "kind") {
            "ServiceAccount" if plural == "clusterrolebindings" && !has(subject, "namespace") => {
                report.required(&at("namespace"), "");
            }
            "ServiceAccount" => {}
            "User" | "Group" => {
                if text(subject, "apiGroup") != RBAC {
                    report.unsupported(&at("apiGroup"), text(subject, "apiGroup"), &[RBAC]);
                }
            }
            other => {
                report.unsupported(&at("kind"), other, &["ServiceAccount", "User", "Group"]);
            }
        }
    }
}
