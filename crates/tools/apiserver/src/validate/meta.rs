//! Validation of metadata (names, labels, annotations, owners) and of selectors.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::report::{Report, flag, has, list, map, object, text};
use super::text;
use crate::kinds::{Kind, Origin};

/// Annotations of an object may not be larger, all together.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

fn name_rule(kind: &Kind) -> fn(&str) -> Vec<String> {
    if matches!(kind.origin, Origin::Custom(_)) {
        return text::subdomain;
    }
    match (&*kind.resource.group, &*kind.resource.plural) {
        ("", "namespaces") | ("apps", "statefulsets") => text::label,
        ("", "services") => service_name,
        ("rbac.authorization.k8s.io", _) => text::path_segment,
        _ => text::subdomain,
    }
}

fn service_name(name: &str) -> Vec<String> {
    let dotted = name.contains('.') && text::subdomain(name).is_empty();
    if dotted { vec!["must not contain dots".to_owned()] } else { text::label(name) }
}

/// A `generateName` prefix without its trailing dash, for validation.
fn mask_trailing_dash(name: &str) -> String {
    match name.strip_suffix('-') {
        Some(head) if !head.is_empty() => format!("{}a", &name[..name.len() - 1]),
        _ => name.to_owned(),
    }
}

pub(super) fn check(kind: &Kind, object: &Value, report: &mut Report) {
    let metadata = object.get("metadata").unwrap_or(&Value::Null);
    let rule = name_rule(kind);
    let prefix = text(metadata, "generateName");
    if !prefix.is_empty() {
        report.text("metadata.generateName", prefix, rule(&mask_trailing_dash(prefix)));
    }
    let name = text(metadata, "name");
    if name.is_empty() {
        report.required("metadata.name", "name or generateName is required");
    } else {
        report.text("metadata.name", name, rule(name));
    }
    // Labels that a Job has from its template are reported once, with the template.
    let template = object.pointer("/spec/template/metadata/labels");
    if !kind.is("batch", "jobs") || metadata.get("labels") != template {
        labels("metadata.labels", metadata, "labels", report);
    }
    annotations("metadata.annotations", metadata, report);
    owners(metadata, report);
    finalizers(kind, metadata, report);
}

pub(super) fn labels(path: &str, holder: &Value, field: &str, report: &mut Report) {
    for (key, value) in map(holder, field) {
        report.text(path, key, text::label_key(key));
        let value = value.as_str().unwrap_or_default();
        report.text(path, value, text::label_value(value));
    }
}

pub(super) fn annotations(path: &str, metadata: &Value, report: &mut Report) {
    let mut bytes = 0_usize;
    for (key, value) in map(metadata, "annotations") {
        let lower = key.to_lowercase();
        report.text(path, key, text::label_key(&lower));
        bytes = bytes.saturating_add(key.len() + value.as_str().map_or(0, str::len));
    }
    if bytes > MAX_ANNOTATION_BYTES {
        report.too_long(path, MAX_ANNOTATION_BYTES);
    }
}

fn owners(metadata: &Value, report: &mut Report) {
    let path = "metadata.ownerReferences";
    let mut controller: Option<String> = None;
    for owner in list(metadata, "ownerReferences") {
        if text(owner, "apiVersion").rsplit('/').next().unwrap_or_default().is_empty() {
            let path = format!("{path}.apiVersion");
            report.invalid(&path, &json!(text(owner, "apiVersion")), "version must not be empty");
        }
        for field in ["kind", "name", "uid"] {
            if text(owner, field).is_empty() {
                report.invalid(&format!("{path}.{field}"), &json!(""), "must not be empty");
            }
        }
        if !flag(owner, "controller") {
            continue;
        }
        let this = format!("{}/{}", text(owner, "kind"), text(owner, "name"));
        match &controller {
            Some(other) => {
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in \
                     references for {other} and {this}"
                );
                let all: Vec<String> =
                    list(metadata, "ownerReferences").iter().map(owner_as_go).collect();
                report.invalid_as(path, format!("[{}]", all.join(",")), &detail);
            }
            None => controller = Some(this),
        }
    }
}

/// An owner with its fields in the order in which Go writes them.
fn owner_as_go(owner: &Value) -> String {
    let fields = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let given = fields.into_iter().filter(|field| has(owner, field));
    let given: Vec<String> = given.map(|field| format!("\"{field}\":{}", owner[field])).collect();
    format!("{{{}}}", given.join(","))
}

/// Groups whose finalizers need no prefix: what deletes definitions of kinds has none.
const PLAIN_FINALIZERS: [&str; 5] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "policy",
];

fn finalizers(kind: &Kind, metadata: &Value, report: &mut Report) {
    let all = list(metadata, "finalizers");
    let names = || all.iter().filter_map(Value::as_str);
    for name in names() {
        report.text("metadata.finalizers", name, text::label_key(name));
    }
    let is_custom = matches!(kind.origin, Origin::Custom(_));
    if is_custom || PLAIN_FINALIZERS.contains(&&*kind.resource.group) {
        return;
    }
    for (at, name) in names().enumerate() {
        if !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            report.invalid(&format!("metadata.finalizers[{at}]"), &json!(name), NOT_A_FINALIZER);
        }
    }
}

pub(super) const NOT_A_FINALIZER: &str =
    "name is neither a standard finalizer name nor is it fully qualified";

/// Validates a label selector. Returns whether it is valid.
pub(super) fn selector(path: &str, selector: &Value, report: &mut Report) -> bool {
    let before = report.errors.len();
    labels(&format!("{path}.matchLabels"), selector, "matchLabels", report);
    for (at, requirement) in list(selector, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{at}]");
        let values = list(requirement, "values");
        match text(requirement, "operator") {
            "In" | "NotIn" if values.is_empty() => report.required(
                &format!("{path}.values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => report.forbidden(
                &format!("{path}.values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let path = format!("{path}.operator");
                report.invalid(&path, &json!(other), "not a valid selector operator");
            }
        }
        let key = text(requirement, "key");
        report.text(&format!("{path}.key"), key, text::label_key(key));
        for (at, value) in values.iter().filter_map(Value::as_str).enumerate() {
            report.text(&format!("{path}.values[{at}]"), value, text::label_value(value));
        }
    }
    report.errors.len() == before
}

/// Whether a selector matches labels. An empty selector matches all, a missing one nothing.
pub(crate) fn selects(selector: Option<&Value>, labels: Option<&Value>) -> bool {
    let Some(selector) = selector.filter(|selector| selector.is_object()) else { return false };
    let labels: BTreeMap<&str, &str> = labels
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
        .collect();
    let exact = map(selector, "matchLabels")
        .all(|(key, value)| labels.get(key.as_str()).copied() == value.as_str());
    exact
        && list(selector, "matchExpressions").iter().all(|requirement| {
            let value = labels.get(text(requirement, "key"));
            let listed = value.is_some_and(|value| {
                list(requirement, "values").iter().any(|one| one.as_str() == Some(value))
            });
            match text(requirement, "operator") {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// Whether a selector names no condition at all.
pub(super) fn selects_everything(selector: &Value) -> bool {
    object(selector, "matchLabels").is_none_or(|labels| labels.is_empty())
        && list(selector, "matchExpressions").is_empty()
}
