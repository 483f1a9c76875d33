//! Validation of pods and pod templates.

mod container;
pub(super) mod resources;
mod scheduling;
mod volume;

use std::collections::BTreeSet;

use serde_json::{Value, json};

pub(super) use scheduling::taints;
pub(super) use volume::host_path;

use super::report::{Report, flag, has, int, list, text};
use super::{meta, text};

const MAX_INT32: i64 = i32::MAX as i64;

/// A pod's spec. `claimed` are volumes that its controller adds.
pub(super) fn check(path: &str, spec: &Value, claimed: &[&str], report: &mut Report) {
    let at = |name: &str| format!("{path}.{name}");
    let mut volumes = volume::check(&at("volumes"), spec, report);
    volumes.extend(claimed.iter().map(|name| (*name).to_owned()));
    let claims = resource_claims(&at("resourceClaims"), spec, report);
    let context = container::Context { volumes: &volumes, claims: &claims };
    container::check_all(path, spec, &context, report);
    resources::check_pod_level(&at("resources"), spec, report);
    policies(path, spec, report);
    meta::labels(&at("nodeSelector"), spec, "nodeSelector", report);
    security(&at("securityContext"), spec, report);
    scheduling::affinity(&at("affinity"), spec, report);
    for (i, gate) in list(spec, "readinessGates").iter().enumerate() {
        let kind = text(gate, "conditionType");
        let path = format!("{}[{i}].conditionType", at("readinessGates"));
        report.text(&path, kind, text::qualified_name(kind));
    }
    scheduling::gates(&at("schedulingGates"), spec, report);
    scheduling::spread(&at("topologySpreadConstraints"), spec, report);
    names(path, spec, report);
    scheduling::tolerations(&at("tolerations"), spec, report);
    addresses(path, spec, report);
    if let Some(os) = spec.get("os").filter(|os| os.is_object()) {
        let name = text(os, "name");
        match name {
            "" => report.required(&format!("{}.name", at("os")), "cannot be empty"),
            _ => report.one_of(&at("os"), name, &["linux", "windows"]),
        }
    }
}

fn policies(path: &str, spec: &Value, report: &mut Report) {
    let restart = text(spec, "restartPolicy");
    report.one_of(&format!("{path}.restartPolicy"), restart, &["Always", "OnFailure", "Never"]);
    let dns = text(spec, "dnsPolicy");
    let known = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    report.one_of(&format!("{path}.dnsPolicy"), dns, &known);
    if let Some(seconds) = int(spec, "activeDeadlineSeconds")
        && !(1..=MAX_INT32).contains(&seconds)
    {
        let path = format!("{path}.activeDeadlineSeconds");
        report.invalid(&path, &json!(seconds), "must be between 1 and 2147483647, inclusive");
    }
}

fn security(path: &str, spec: &Value, report: &mut Report) {
    let Some(context) = spec.get("securityContext") else { return };
    for name in ["fsGroup", "runAsUser", "runAsGroup"] {
        identity(&format!("{path}.{name}"), int(context, name), report);
    }
    for (i, group) in list(context, "supplementalGroups").iter().enumerate() {
        identity(&format!("{path}.supplementalGroups[{i}]"), group.as_i64(), report);
    }
}

fn identity(path: &str, id: Option<i64>, report: &mut Report) {
    if let Some(id) = id.filter(|id| !(0..=MAX_INT32).contains(id)) {
        report.invalid(path, &json!(id), "must be between 0 and 2147483647, inclusive");
    }
}

fn names(path: &str, spec: &Value, report: &mut Report) {
    type Rule = fn(&str) -> Vec<String>;
    let rules: [(&str, Rule); 6] = [
        ("serviceAccountName", text::subdomain),
        ("nodeName", text::subdomain),
        ("hostname", text::label),
        ("subdomain", text::label),
        ("priorityClassName", text::subdomain),
        ("runtimeClassName", text::subdomain),
    ];
    for (name, rule) in rules {
        let value = text(spec, name);
        if !value.is_empty() {
            report.text(&format!("{path}.{name}"), value, rule(value));
        }
    }
}

/// Rules for new pods only.
pub(super) fn check_new(spec: &Value, report: &mut Report) {
    let gated = !list(spec, "schedulingGates").is_empty();
    if gated && !text(spec, "nodeName").is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        report.forbidden("spec.nodeName", detail);
    }
    if !list(spec, "ephemeralContainers").is_empty() {
        report.forbidden("spec.ephemeralContainers", "cannot be set on create");
    }
}

fn addresses(path: &str, spec: &Value, report: &mut Report) {
    for (i, alias) in list(spec, "hostAliases").iter().enumerate() {
        let ip = text(alias, "ip");
        report.text(&format!("{path}.hostAliases[{i}].ip"), ip, text::address(ip));
        for (j, name) in list(alias, "hostnames").iter().filter_map(Value::as_str).enumerate() {
            let path = format!("{path}.hostAliases[{i}].hostnames[{j}]");
            report.text(&path, name, text::subdomain(name));
        }
    }
    let path = format!("{path}.dnsConfig");
    let config = spec.get("dnsConfig").unwrap_or(&Value::Null);
    let servers = list(config, "nameservers");
    if text(spec, "dnsPolicy") == "None" {
        if !config.is_object() {
            report.required(&path, "must provide `dnsConfig` when `dnsPolicy` is None");
        } else if servers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            report.required(&format!("{path}.nameservers"), detail);
        }
    }
    for (i, server) in servers.iter().filter_map(Value::as_str).enumerate() {
        report.text(&format!("{path}.nameservers[{i}]"), server, text::address(server));
    }
}

/// Validates resource claims. Returns their names.
fn resource_claims(path: &str, spec: &Value, report: &mut Report) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (i, claim) in list(spec, "resourceClaims").iter().enumerate() {
        let path = format!("{path}[{i}]");
        let name = text(claim, "name");
        if name.is_empty() {
            report.required(&format!("{path}.name"), "");
        } else if !names.insert(name.to_owned()) {
            report.duplicate(&format!("{path}.name"), &json!(name));
        } else {
            report.text(&format!("{path}.name"), name, text::label(name));
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        let given = sources.iter().filter(|source| has(claim, source)).count();
        let detail = match given {
            0 => "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            2 => {
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            }
            _ => continue,
        };
        let of = |field: &str| claim.get(field).unwrap_or(&Value::Null).to_string();
        let shown = format!(
            "{{\"Name\":{},\"ResourceClaimName\":{},\"ResourceClaimTemplateName\":{}}}",
            json!(name),
            of("resourceClaimName"),
            of("resourceClaimTemplateName")
        );
        report.invalid_as(&path, shown, detail);
    }
    names
}

/// Validates privilege escalation.
fn privileged(path: &str, container: &Value, report: &mut Report) {
    let Some(context) = container.get("securityContext") else { return };
    let path = format!("{path}.securityContext");
    for name in ["runAsUser", "runAsGroup"] {
        identity(&format!("{path}.{name}"), int(context, name), report);
    }
    let forbids = context.get("allowPrivilegeEscalation") == Some(&Value::Bool(false));
    if forbids && flag(context, "privileged") {
        let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        report.invalid_as(&path, context.to_string(), detail);
    }
}
