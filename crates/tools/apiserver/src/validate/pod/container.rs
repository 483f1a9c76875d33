//! Validation of containers: names, images, ports, variables, mounts, probes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::resources;
use crate::validate::report::{Report, has, int, list, text};
use crate::validate::text;

pub(super) struct Context<'a> {
    pub(super) volumes: &'a BTreeSet<String>,
    pub(super) claims: &'a BTreeSet<String>,
}

pub(super) fn check_all(path: &str, spec: &Value, context: &Context<'_>, report: &mut Report) {
    let containers = list(spec, "containers");
    let at = format!("{path}.containers");
    if containers.is_empty() {
        report.required(&at, "");
    }
    let mut names = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        check(&format!("{at}[{i}]"), container, context, &mut names, report);
    }
    host_ports(&at, containers, report);
    for (i, container) in list(spec, "initContainers").iter().enumerate() {
        let path = format!("{path}.initContainers[{i}]");
        check(&path, container, context, &mut names, report);
        check_init(&path, container, report);
    }
}

fn check(
    path: &str,
    container: &Value,
    context: &Context<'_>,
    names: &mut BTreeSet<String>,
    report: &mut Report,
) {
    let at = |name: &str| format!("{path}.{name}");
    let name = text(container, "name");
    if name.is_empty() {
        report.required(&at("name"), "");
    } else {
        report.text(&at("name"), name, text::label(name));
        if !names.insert(name.to_owned()) {
            report.duplicate(&at("name"), &json!(name));
        }
    }
    let image = text(container, "image");
    if image.is_empty() {
        report.required(&at("image"), "");
    } else if image.trim() != image {
        let detail = "must not have leading or trailing whitespace";
        report.invalid(&at("image"), &json!(image), detail);
    }
    let policy = text(container, "terminationMessagePolicy");
    report.one_of(&at("terminationMessagePolicy"), policy, &["File", "FallbackToLogsOnError"]);
    lifecycle(path, container, report);
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        check_probe(&at(probe), probe, container, report);
    }
    ports(&at("ports"), container, report);
    environment(path, container, report);
    mounts(&at("volumeMounts"), container, context, report);
    let pull = text(container, "imagePullPolicy");
    report.one_of(&at("imagePullPolicy"), pull, &["Always", "IfNotPresent", "Never"]);
    let resources = container.get("resources").unwrap_or(&Value::Null);
    resources::check(&at("resources"), resources, context.claims, report);
    super::privileged(path, container, report);
}

fn check_init(path: &str, container: &Value, report: &mut Report) {
    let restart = text(container, "restartPolicy");
    if !restart.is_empty() {
        let known = ["Always", "Never", "OnFailure"];
        report.one_of(&format!("{path}.restartPolicy"), restart, &known);
    }
    if restart == "Always" {
        return;
    }
    for name in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        if has(container, name) {
            let detail = "may not be set for init containers without restartPolicy=Always";
            report.forbidden(&format!("{path}.{name}"), detail);
        }
    }
}

fn lifecycle(path: &str, container: &Value, report: &mut Report) {
    let Some(lifecycle) = container.get("lifecycle") else { return };
    for name in ["postStart", "preStop"] {
        if let Some(handler) = lifecycle.get(name) {
            check_handler(&format!("{path}.lifecycle.{name}"), handler, report);
        }
    }
}

fn check_handler(path: &str, handler: &Value, report: &mut Report) {
    let mut given = 0;
    for kind in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let Some(action) = handler.get(kind).filter(|action| action.is_object()) else { continue };
        given += 1;
        let path = format!("{path}.{kind}");
        if given > 1 {
            report.forbidden(&path, "may not specify more than 1 handler type");
            continue;
        }
        match kind {
            "exec" if list(action, "command").is_empty() => {
                report.required(&format!("{path}.command"), "");
            }
            "httpGet" => {
                if text(action, "path").is_empty() {
                    report.required(&format!("{path}.path"), "");
                }
                target_port(&format!("{path}.port"), action, report);
                let scheme = text(action, "scheme");
                report.one_of(&format!("{path}.scheme"), scheme, &["HTTP", "HTTPS"]);
            }
            "tcpSocket" => target_port(&format!("{path}.port"), action, report),
            "grpc" => report.port(&format!("{path}.port"), int(action, "port").unwrap_or(0)),
            _ => {}
        }
    }
    if given == 0 {
        report.required(path, "must specify a handler type");
    }
}

fn target_port(path: &str, action: &Value, report: &mut Report) {
    match action.get("port") {
        Some(Value::String(name)) => report.text(path, name, text::port_name(name)),
        Some(port) => report.port(path, port.as_i64().unwrap_or(0)),
        None => report.port(path, 0),
    }
}

fn check_probe(path: &str, kind: &str, container: &Value, report: &mut Report) {
    let Some(probe) = container.get(kind).filter(|probe| probe.is_object()) else { return };
    check_handler(path, probe, report);
    let fields = [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ];
    for field in fields {
        report.not_negative(&format!("{path}.{field}"), int(probe, field));
    }
    if let Some(seconds) = int(probe, "terminationGracePeriodSeconds") {
        let path = format!("{path}.terminationGracePeriodSeconds");
        if kind == "readinessProbe" {
            report.invalid(&path, &json!(seconds), "must not be set for readinessProbes");
        } else if seconds <= 0 {
            report.invalid(&path, &json!(seconds), "must be greater than 0");
        }
    }
    let threshold = int(probe, "successThreshold").unwrap_or(1);
    if kind != "readinessProbe" && threshold != 1 {
        report.invalid(&format!("{path}.successThreshold"), &json!(threshold), "must be 1");
    }
}

fn ports(path: &str, container: &Value, report: &mut Report) {
    let mut names = BTreeSet::new();
    for (i, port) in list(container, "ports").iter().enumerate() {
        let path = format!("{path}[{i}]");
        let name = text(port, "name");
        if !name.is_empty() {
            let wrong = text::port_name(name);
            if !wrong.is_empty() {
                report.text(&format!("{path}.name"), name, wrong);
            } else if !names.insert(name) {
                report.duplicate(&format!("{path}.name"), &json!(name));
            }
        }
        match int(port, "containerPort").unwrap_or(0) {
            0 => report.required(&format!("{path}.containerPort"), ""),
            number => report.port(&format!("{path}.containerPort"), number),
        }
        if let Some(number) = int(port, "hostPort").filter(|number| *number != 0) {
            report.port(&format!("{path}.hostPort"), number);
        }
        let protocol = text(port, "protocol");
        report.one_of(&format!("{path}.protocol"), protocol, &["SCTP", "TCP", "UDP"]);
    }
}

fn host_ports(path: &str, containers: &[Value], report: &mut Report) {
    let mut taken = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        for (j, port) in list(container, "ports").iter().enumerate() {
            let number = int(port, "hostPort").unwrap_or(0);
            let place = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
            if number != 0 && !taken.insert(place.clone()) {
                report.duplicate(&format!("{path}[{i}].ports[{j}].hostPort"), &json!(place));
            }
        }
    }
}

fn environment(path: &str, container: &Value, report: &mut Report) {
    for (i, variable) in list(container, "env").iter().enumerate() {
        let path = format!("{path}.env[{i}]");
        let name = text(variable, "name");
        if name.is_empty() {
            report.required(&format!("{path}.name"), "");
        } else {
            report.text(&format!("{path}.name"), name, text::variable_name(name));
        }
        if let Some(from) = variable.get("valueFrom").filter(|from| from.is_object()) {
            value_from(&format!("{path}.valueFrom"), variable, from, report);
        }
    }
    for (i, from) in list(container, "envFrom").iter().enumerate() {
        let sources = ["configMapRef", "secretRef"];
        let given: Vec<&str> = sources.into_iter().filter(|source| has(from, source)).collect();
        let detail = match given.len() {
            0 => "must specify one of: `configMapRef` or `secretRef`",
            1 => "",
            _ => "may not have more than one field specified at a time",
        };
        if !detail.is_empty() {
            report.invalid(&format!("{path}.envFrom"), &json!(""), detail);
        }
        for source in given {
            if text(&from[source], "name").is_empty() {
                report.required(&format!("{path}.envFrom[{i}].{source}.name"), "");
            }
        }
    }
}

const FIELD_PATHS: [&str; 8] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
];

const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

fn value_from(path: &str, variable: &Value, from: &Value, report: &mut Report) {
    let sources = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    let given: Vec<&str> = sources.into_iter().filter(|source| has(from, source)).collect();
    for source in &given {
        let reference = &from[*source];
        let at = |name: &str| format!("{path}.{source}.{name}");
        match *source {
            "fieldRef" => field_path(&at("fieldPath"), text(reference, "fieldPath"), report),
            "resourceFieldRef" => {
                let resource = text(reference, "resource");
                let huge = resource.contains(".hugepages-");
                if resource.is_empty() {
                    report.required(&at("resource"), "");
                } else if !huge {
                    report.one_of(&at("resource"), resource, &RESOURCE_FIELDS);
                }
            }
            "configMapKeyRef" | "secretKeyRef" => {
                let name = text(reference, "name");
                report.text(&at("name"), name, text::subdomain(name));
                let key = text(reference, "key");
                if key.is_empty() {
                    report.required(&at("key"), "");
                } else {
                    report.text(&at("key"), key, text::config_key(key));
                }
            }
            _ => {}
        }
    }
    let empty = json!("");
    if given.is_empty() {
        let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, \
                      `secretKeyRef` or `fileKeyRef`";
        report.invalid(path, &empty, detail);
    } else if !text(variable, "value").is_empty() {
        report.invalid(path, &empty, "may not be specified when `value` is not empty");
    } else if given.len() > 1 {
        report.invalid(path, &empty, "may not have more than one field specified at a time");
    }
}

fn field_path(path: &str, field: &str, report: &mut Report) {
    let known = FIELD_PATHS.contains(&field)
        || field == "status.podIPs"
        || field.starts_with("metadata.labels['")
        || field.starts_with("metadata.annotations['");
    if field.is_empty() {
        report.required(path, "");
    } else if !known {
        let detail = format!("error converting fieldPath: field label not supported: {field}");
        report.invalid(path, &json!(field), &detail);
    }
}

fn mounts(path: &str, container: &Value, context: &Context<'_>, report: &mut Report) {
    let mut taken = BTreeSet::new();
    for (i, mount) in list(container, "volumeMounts").iter().enumerate() {
        let at = format!("{path}[{i}]");
        let name = text(mount, "name");
        if name.is_empty() {
            report.required(&format!("{at}.name"), "");
        }
        if !context.volumes.contains(name) {
            report.not_found(&format!("{at}.name"), &json!(name), "");
        }
        let place = text(mount, "mountPath");
        if place.is_empty() {
            report.required(&format!("{at}.mountPath"), "");
        } else if !taken.insert(place) {
            report.invalid(&format!("{at}.mountPath"), &json!(place), "must be unique");
        }
        let inner = text(mount, "subPath");
        super::volume::relative(&format!("{path}.subPath"), inner, report);
    }
}
