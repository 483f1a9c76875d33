//! Validation of webhook configurations.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::report::{Report, has, int, list, text};
use super::{meta, text};

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

pub(super) fn check(plural: &str, object: &Value, report: &mut Report) {
    let mut names = BTreeSet::new();
    for (i, webhook) in list(object, "webhooks").iter().enumerate() {
        let path = format!("webhooks[{i}]");
        check_webhook(&path, webhook, report);
        let name = text(webhook, "name");
        if !names.insert(name) && !name.is_empty() {
            report.duplicate(&format!("{path}.name"), &json!(name));
        }
        if plural == "mutatingwebhookconfigurations" {
            let policy = text(webhook, "reinvocationPolicy");
            report.one_of(&format!("{path}.reinvocationPolicy"), policy, &["IfNeeded", "Never"]);
        }
    }
}

fn check_webhook(path: &str, webhook: &Value, report: &mut Report) {
    let at = |name: &str| format!("{path}.{name}");
    let name = text(webhook, "name");
    if name.is_empty() {
        report.required(&at("name"), "");
    } else {
        let wrong = text::subdomain(name);
        if wrong.is_empty() && name.split('.').count() < 3 {
            let detail = "should be a domain with at least three segments separated by dots";
            report.invalid(&at("name"), &json!(name), detail);
        }
        report.text(&at("name"), name, wrong);
    }
    for (i, rule) in list(webhook, "rules").iter().enumerate() {
        check_rule(&format!("{path}.rules[{i}]"), rule, report);
    }
    let effects = text(webhook, "sideEffects");
    if effects.is_empty() {
        report.required(&at("sideEffects"), "must specify one of None, NoneOnDryRun");
    } else {
        report.one_of(&at("sideEffects"), effects, &["None", "NoneOnDryRun"]);
    }
    versions(&at("admissionReviewVersions"), webhook, report);
    report.one_of(&at("failurePolicy"), text(webhook, "failurePolicy"), &["Fail", "Ignore"]);
    report.one_of(&at("matchPolicy"), text(webhook, "matchPolicy"), &["Equivalent", "Exact"]);
    if let Some(seconds) = int(webhook, "timeoutSeconds").filter(|s| !(1..=30).contains(s)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        report.invalid(&at("timeoutSeconds"), &json!(seconds), detail);
    }
    for name in ["namespaceSelector", "objectSelector"] {
        if let Some(selector) = webhook.get(name) {
            meta::selector(&at(name), selector, report);
        }
    }
    check_client(&at("clientConfig"), webhook, report);
}

fn versions(path: &str, webhook: &Value, report: &mut Report) {
    let given = list(webhook, "admissionReviewVersions");
    if given.is_empty() {
        report.required(path, "must specify one of v1, v1beta1");
    } else if !given.iter().any(|one| matches!(one.as_str(), Some("v1" | "v1beta1"))) {
        report.invalid(path, &json!(given), "must include at least one of v1, v1beta1");
    }
}

fn check_rule(path: &str, rule: &Value, report: &mut Report) {
    let at = |name: &str| format!("{path}.{name}");
    let operations = list(rule, "operations");
    if operations.is_empty() {
        report.required(&at("operations"), "");
    }
    let any = |values: &[Value]| values.iter().any(|value| value.as_str() == Some("*"));
    if operations.len() > 1 && any(operations) {
        let detail = "if '*' is present, must not specify other operations";
        report.invalid(&at("operations"), &json!(operations), detail);
    }
    for (i, operation) in operations.iter().filter_map(Value::as_str).enumerate() {
        report.one_of(&format!("{path}.operations[{i}]"), operation, &OPERATIONS);
    }
    for (name, words) in [("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        let values = list(rule, name);
        if values.is_empty() {
            report.required(&at(name), "");
        } else if values.len() > 1 && any(values) {
            let detail = format!("if '*' is present, must not specify other {words}");
            report.invalid(&at(name), &json!(values), &detail);
        }
    }
    let resources = list(rule, "resources");
    if resources.is_empty() {
        report.required(&at("resources"), "");
    }
    let plain = resources.iter().filter_map(Value::as_str).filter(|name| !name.contains('/'));
    if plain.count() > 1 && any(resources) {
        let detail = "if '*' is present, must not specify other resources without subresources";
        report.invalid(&at("resources"), &json!(resources), detail);
    }
    report.one_of(&at("scope"), text(rule, "scope"), &["*", "Cluster", "Namespaced"]);
}

fn check_client(path: &str, webhook: &Value, report: &mut Report) {
    let config = webhook.get("clientConfig").unwrap_or(&Value::Null);
    match (has(config, "url"), has(config, "service")) {
        (true, false) => check_url(&format!("{path}.url"), text(config, "url"), report),
        (false, true) => {
            let service = &config["service"];
            for name in ["name", "namespace"] {
                if text(service, name).is_empty() {
                    report.required(&format!("{path}.service.{name}"), "");
                }
            }
            if let Some(port) = int(service, "port") {
                report.port(&format!("{path}.service.port"), port);
            }
        }
        _ => report.required(path, "exactly one of url or service is required"),
    }
}

fn check_url(path: &str, url: &str, report: &mut Report) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        report.invalid(path, &json!(scheme), &detail);
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let host = rest.split('/').next().unwrap_or_default();
    if host.is_empty() {
        report.invalid(path, &json!(host), &format!("host must be specified{FORM}"));
    }
    if let Some((user, _)) = host.split_once('@') {
        let detail = "user information is not permitted in the URL";
        report.invalid(path, &json!(user), detail);
    }
    if !fragment.is_empty() {
        report.invalid(path, &json!(fragment), "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        report.invalid(path, &json!(query), "query parameters are not permitted in the URL");
    }
}
