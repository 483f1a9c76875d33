//! Defaults of pods and pod templates.

use std::collections::BTreeMap;

use berth_model::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::{default, default_text, each, has, text, with, within};

const MODE_0644: i64 = 420;

const CONTAINER_LISTS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// Defaults of a pod, including those that templates do not get.
pub(super) fn apply(pod: &mut Map<String, Value>) {
    with(pod, "spec", |spec| {
        for list in ["containers", "initContainers"] {
            each(spec, list, requests_from_limits);
        }
        default(spec, "enableServiceLinks", true);
        if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
            for list in ["containers", "initContainers"] {
                each(spec, list, |container| each(container, "ports", host_port));
            }
        }
        pod_level_requests(spec);
        apply_spec(spec);
    });
    default(pod, "status", json!({}));
}

fn requests_from_limits(container: &mut Map<String, Value>) {
    with(container, "resources", |resources| {
        let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else {
            return;
        };
        within(resources, "requests", |requests| {
            for (name, amount) in limits {
                default(requests, &name, amount);
            }
        });
    });
}

fn host_port(port: &mut Map<String, Value>) {
    if let Some(number) = port.get("containerPort").cloned() {
        default(port, "hostPort", number);
    }
}

/// Pod-level requests default to the sum of the containers', else to the limit.
fn pod_level_requests(spec: &mut Map<String, Value>) {
    let Some(resources) = spec.get("resources").and_then(Value::as_object) else { return };
    if !has(resources, "limits") && !has(resources, "requests") {
        return;
    }
    let mut wanted: BTreeMap<String, Quantity> = BTreeMap::new();
    for container in spec.get("containers").and_then(Value::as_array).into_iter().flatten() {
        let requests = container.pointer("/resources/requests").and_then(Value::as_object);
        for (name, amount) in requests.into_iter().flatten() {
            let amount = amount.as_str().and_then(|text| Quantity::parse(text).ok());
            let sum = wanted.entry(name.clone()).or_insert(Quantity::ZERO);
            *sum = sum.saturating_add(amount.unwrap_or(Quantity::ZERO));
        }
    }
    let limits = resources.get("limits").and_then(Value::as_object).cloned().unwrap_or_default();
    with(spec, "resources", |resources| {
        within(resources, "requests", |requests| {
            for (name, amount) in wanted {
                let whole_pod = matches!(name.as_str(), "cpu" | "memory")
                    || name.starts_with("hugepages-") && limits.contains_key(&name);
                if whole_pod {
                    default(requests, &name, amount.to_string());
                }
            }
            for (name, amount) in limits {
                default(requests, &name, amount);
            }
        });
    });
}

pub(super) fn apply_spec(spec: &mut Map<String, Value>) {
    default_text(spec, "dnsPolicy", "ClusterFirst");
    default_text(spec, "restartPolicy", "Always");
    default(spec, "securityContext", json!({}));
    default(spec, "terminationGracePeriodSeconds", 30);
    default_text(spec, "schedulerName", "default-scheduler");
    mirror_service_account(spec);
    for list in CONTAINER_LISTS {
        each(spec, list, container);
    }
    each(spec, "volumes", volume);
}

/// Keeps `serviceAccount` and `serviceAccountName` equal.
fn mirror_service_account(spec: &mut Map<String, Value>) {
    let name = match text(spec, "serviceAccountName") {
        "" => text(spec, "serviceAccount").to_owned(),
        name => name.to_owned(),
    };
    if !name.is_empty() {
        spec.insert("serviceAccountName".to_owned(), Value::from(name.as_str()));
        spec.insert("serviceAccount".to_owned(), Value::from(name));
    }
}

fn container(container: &mut Map<String, Value>) {
    let policy = pull_policy(text(container, "image"));
    default_text(container, "imagePullPolicy", policy);
    default_text(container, "terminationMessagePath", "/dev/termination-log");
    default_text(container, "terminationMessagePolicy", "File");
    each(container, "ports", |port| default_text(port, "protocol", "TCP"));
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        with(container, name, probe);
    }
    with(container, "lifecycle", |lifecycle| {
        for name in ["postStart", "preStop"] {
            with(lifecycle, name, |handler| with(handler, "httpGet", http_get));
        }
    });
    each(container, "env", |variable| {
        with(variable, "valueFrom", |from| with(from, "fieldRef", field_ref));
    });
}

/// `Always` for mutable tags.
fn pull_policy(image: &str) -> &'static str {
    if image.is_empty() || image.contains('@') {
        return "IfNotPresent";
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    match name.split_once(':') {
        None => "Always",
        Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

fn probe(probe: &mut Map<String, Value>) {
    default(probe, "timeoutSeconds", 1);
    default(probe, "periodSeconds", 10);
    default(probe, "successThreshold", 1);
    default(probe, "failureThreshold", 3);
    with(probe, "httpGet", http_get);
    with(probe, "grpc", |grpc| default(grpc, "service", ""));
}

fn http_get(action: &mut Map<String, Value>) {
    default_text(action, "path", "/");
    default_text(action, "scheme", "HTTP");
}

fn field_ref(reference: &mut Map<String, Value>) {
    default_text(reference, "apiVersion", "v1");
}

fn volume(volume: &mut Map<String, Value>) {
    if !volume.iter().any(|(name, value)| name != "name" && !value.is_null()) {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for name in ["secret", "configMap"] {
        with(volume, name, |source| default(source, "defaultMode", MODE_0644));
    }
    with(volume, "downwardAPI", |source| {
        default(source, "defaultMode", MODE_0644);
        each(source, "items", |item| with(item, "fieldRef", field_ref));
    });
    with(volume, "projected", |projected| {
        default(projected, "defaultMode", MODE_0644);
        each(projected, "sources", |source| {
            with(source, "serviceAccountToken", |token| default(token, "expirationSeconds", 3600));
            with(source, "downwardAPI", |api| {
                each(api, "items", |item| with(item, "fieldRef", field_ref));
            });
        });
    });
    with(volume, "hostPath", host_path);
    with(volume, "iscsi", |source| default_text(source, "iscsiInterface", "default"));
    with(volume, "image", |image| {
        let policy = pull_policy(text(image, "reference"));
        default_text(image, "pullPolicy", policy);
    });
    with(volume, "ephemeral", |ephemeral| {
        with(ephemeral, "volumeClaimTemplate", |template| {
            with(template, "spec", |spec| default(spec, "volumeMode", "Filesystem"));
        });
    });
}

pub(super) fn host_path(source: &mut Map<String, Value>) {
    default(source, "type", "");
}

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub fn qos_class(spec: &Map<String, Value>) -> &'static str {
    let positive = |list: Option<&Value>| -> BTreeMap<String, Quantity> {
        let list = list.and_then(Value::as_object).into_iter().flatten();
        let known = list.filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory"));
        let amounts = known.filter_map(|(name, amount)| {
            let amount = Quantity::parse(amount.as_str()?).ok()?;
            (amount.sign() > 0).then(|| (name.clone(), amount))
        });
        amounts.collect()
    };
    let whole = spec.get("resources").filter(|resources| {
        resources.get("limits").is_some() || resources.get("requests").is_some()
    });
    let parts: Vec<&Value> = match whole {
        Some(resources) => vec![resources],
        None => {
            let lists = ["containers", "initContainers"].into_iter().filter_map(|n| spec.get(n));
            let containers = lists.filter_map(Value::as_array).flatten();
            containers.map(|one| one.get("resources").unwrap_or(&Value::Null)).collect()
        }
    };
    let (mut any, mut guaranteed) = (false, !parts.is_empty());
    let (mut requests_sum, mut limits_sum) = (BTreeMap::new(), BTreeMap::new());
    for part in parts {
        let (requests, limits) = (positive(part.get("requests")), positive(part.get("limits")));
        any |= !requests.is_empty() || !limits.is_empty();
        guaranteed &= limits.len() == 2;
        for (sums, list) in [(&mut requests_sum, requests), (&mut limits_sum, limits)] {
            for (name, amount) in list {
                let sum = sums.entry(name).or_insert(Quantity::ZERO);
                *sum = sum.saturating_add(amount);
            }
        }
    }
    match (any, guaranteed && requests_sum == limits_sum) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
