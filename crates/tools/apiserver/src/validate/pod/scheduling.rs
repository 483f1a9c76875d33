//! Validation of affinity, tolerations, topology spread constraints and gates.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::validate::report::{Report, int, list, text};
use crate::validate::{meta, text};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn affinity(path: &str, spec: &Value, report: &mut Report) {
    let Some(affinity) = spec.get("affinity").filter(|affinity| affinity.is_object()) else {
        return;
    };
    if let Some(node) = affinity.get("nodeAffinity") {
        node_affinity(&format!("{path}.nodeAffinity"), node, report);
    }
    for name in ["podAffinity", "podAntiAffinity"] {
        let Some(pods) = affinity.get(name) else { continue };
        let path = format!("{path}.{name}");
        for (i, term) in list(pods, REQUIRED).iter().enumerate() {
            pod_term(&format!("{path}.{REQUIRED}[{i}]"), term, report);
        }
        for (i, weighted) in list(pods, PREFERRED).iter().enumerate() {
            let path = format!("{path}.{PREFERRED}[{i}]");
            weight(&path, weighted, report);
            let term = weighted.get("podAffinityTerm").unwrap_or(&Value::Null);
            pod_term(&format!("{path}.podAffinityTerm"), term, report);
        }
    }
}

fn weight(path: &str, holder: &Value, report: &mut Report) {
    let weight = int(holder, "weight").unwrap_or(0);
    if !(1..=100).contains(&weight) {
        report.invalid(&format!("{path}.weight"), &json!(weight), "must be in the range 1-100");
    }
}

fn node_affinity(path: &str, affinity: &Value, report: &mut Report) {
    if let Some(required) = affinity.get(REQUIRED).filter(|required| required.is_object()) {
        let path = format!("{path}.{REQUIRED}.nodeSelectorTerms");
        let terms = list(required, "nodeSelectorTerms");
        if terms.is_empty() {
            report.required(&path, "must have at least one node selector term");
        }
        for (i, term) in terms.iter().enumerate() {
            node_term(&format!("{path}[{i}]"), term, report);
        }
    }
    for (i, preferred) in list(affinity, PREFERRED).iter().enumerate() {
        let path = format!("{path}.{PREFERRED}[{i}]");
        weight(&path, preferred, report);
        let term = preferred.get("preference").unwrap_or(&Value::Null);
        node_term(&format!("{path}.preference"), term, report);
    }
}

fn node_term(path: &str, term: &Value, report: &mut Report) {
    for (i, requirement) in list(term, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{i}]");
        node_requirement(&path, requirement, report);
        let key = text(requirement, "key");
        report.text(&format!("{path}.key"), key, text::label_key(key));
    }
    for (i, requirement) in list(term, "matchFields").iter().enumerate() {
        let key = text(requirement, "key");
        if key != "metadata.name" {
            let path = format!("{path}.matchFields[{i}].key");
            report.invalid(&path, &json!(key), "not a valid field selector key");
        }
    }
}

fn node_requirement(path: &str, requirement: &Value, report: &mut Report) {
    let values = list(requirement, "values");
    let at = format!("{path}.values");
    match text(requirement, "operator") {
        "In" | "NotIn" if values.is_empty() => {
            report.required(&at, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            report.forbidden(&at, detail);
        }
        "Gt" | "Lt" if values.len() != 1 => {
            let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            report.required(&at, detail);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => {
            let path = format!("{path}.operator");
            report.invalid(&path, &json!(other), "not a valid selector operator");
        }
    }
}

fn pod_term(path: &str, term: &Value, report: &mut Report) {
    for name in ["labelSelector", "namespaceSelector"] {
        if let Some(selector) = term.get(name).filter(|selector| selector.is_object()) {
            meta::selector(&format!("{path}.{name}"), selector, report);
        }
    }
    for name in list(term, "namespaces").iter().filter_map(Value::as_str) {
        report.text(&format!("{path}.namespace"), name, text::label(name));
    }
    let key = text(term, "topologyKey");
    let path = format!("{path}.topologyKey");
    if key.is_empty() {
        report.required(&path, "can not be empty");
    }
    report.text(&path, key, text::label_key(key));
}

pub(super) fn gates(path: &str, spec: &Value, report: &mut Report) {
    let mut names = BTreeSet::new();
    for (i, gate) in list(spec, "schedulingGates").iter().enumerate() {
        let name = text(gate, "name");
        let path = format!("{path}[{i}]");
        report.text(&path, name, text::qualified_name(name));
        if !names.insert(name) {
            report.duplicate(&path, &json!(name));
        }
    }
}

pub(super) fn spread(path: &str, spec: &Value, report: &mut Report) {
    let constraints = list(spec, "topologySpreadConstraints");
    for (i, constraint) in constraints.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let at = |name: &str| format!("{path}.{name}");
        let skew = int(constraint, "maxSkew").unwrap_or(0);
        if skew <= 0 {
            report.invalid(&at("maxSkew"), &json!(skew), "must be greater than zero");
        }
        let key = text(constraint, "topologyKey");
        if key.is_empty() {
            report.required(&at("topologyKey"), "can not be empty");
        } else {
            report.text(&at("topologyKey"), key, text::label_key(key));
        }
        let otherwise = text(constraint, "whenUnsatisfiable");
        report.one_of(&at("whenUnsatisfiable"), otherwise, &["DoNotSchedule", "ScheduleAnyway"]);
        spread_limits(&path, constraint, otherwise, report);
        let again = |one: &Value| {
            text(one, "topologyKey") == key && text(one, "whenUnsatisfiable") == otherwise
        };
        if constraints.get(i + 1..).unwrap_or_default().iter().any(again) {
            let path = format!("{path}.{{topologyKey, whenUnsatisfiable}}");
            report.duplicate(&path, &json!(format!("{{{key}, {otherwise}}}")));
        }
        if let Some(selector) = constraint.get("labelSelector") {
            meta::selector(&at("labelSelector"), selector, report);
        }
    }
}

fn spread_limits(path: &str, constraint: &Value, otherwise: &str, report: &mut Report) {
    if let Some(domains) = int(constraint, "minDomains") {
        let path = format!("{path}.minDomains");
        if domains <= 0 {
            report.invalid(&path, &json!(domains), "must be greater than zero");
        } else if otherwise != "DoNotSchedule" {
            let detail = format!(
                "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {otherwise}"
            );
            report.invalid(&path, &json!(domains), &detail);
        }
    }
    for name in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
        let policy = text(constraint, name);
        if !policy.is_empty() {
            report.one_of(&format!("{path}.{name}"), policy, &["Honor", "Ignore"]);
        }
    }
    for (i, key) in list(constraint, "matchLabelKeys").iter().filter_map(Value::as_str).enumerate()
    {
        report.text(&format!("{path}.matchLabelKeys[{i}]"), key, text::label_key(key));
    }
}

pub(super) fn tolerations(path: &str, spec: &Value, report: &mut Report) {
    for (i, toleration) in list(spec, "tolerations").iter().enumerate() {
        let path = format!("{path}[{i}]");
        let [key, operator, value, effect] =
            ["key", "operator", "value", "effect"].map(|name| text(toleration, name));
        if !key.is_empty() {
            report.text(&format!("{path}.key"), key, text::label_key(key));
        }
        let at = format!("{path}.operator");
        if key.is_empty() && operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all \
                          values and all keys\"";
            report.invalid(&at, &json!(operator), detail);
        }
        if int(toleration, "tolerationSeconds").is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            report.invalid(&format!("{path}.effect"), &json!(effect), detail);
        }
        match operator {
            "" | "Equal" => report.text(&at, value, text::label_value(value)),
            "Exists" if !value.is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                report.invalid(&at, &json!(value), detail);
            }
            "Exists" => {}
            other => report.unsupported(&at, other, &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            report.one_of(&format!("{path}.effect"), effect, &EFFECTS);
        }
    }
}

pub(in crate::validate) fn taints(path: &str, spec: &Value, report: &mut Report) {
    let mut seen = BTreeSet::new();
    for (i, taint) in list(spec, "taints").iter().enumerate() {
        let path = format!("{path}[{i}]");
        let [key, value, effect] = ["key", "value", "effect"].map(|name| text(taint, name));
        report.text(&format!("{path}.key"), key, text::label_key(key));
        report.text(&format!("{path}.value"), value, text::label_value(value));
        if effect.is_empty() {
            report.required(&format!("{path}.effect"), "");
        } else {
            report.one_of(&format!("{path}.effect"), effect, &EFFECTS);
        }
        if !seen.insert((key, effect)) {
            let shown = format!(
                "{{\"Key\":{},\"Value\":{},\"Effect\":{},\"TimeAdded\":null}}",
                json!(key),
                json!(value),
                json!(effect)
            );
            report.duplicate_as(&path, shown, "taints must be unique by key and effect pair");
        }
    }
}
