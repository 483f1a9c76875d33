//! Defaults of kinds without a pod template.

use serde_json::{Map, Value, json};

use super::{default, default_text, each, has, pod, text, with, within};

pub(super) fn apply(group: &str, plural: &str, object: &mut Map<String, Value>) {
    match (group, plural) {
        ("", "services") => with(object, "spec", service),
        ("", "persistentvolumeclaims") => claim(object),
        ("", "persistentvolumes") => volume(object),
        ("", "namespaces") => namespace(object),
        ("", "nodes") => node(object),
        ("", "secrets") => secret(object),
        ("", "limitranges") => {
            with(object, "spec", |spec| each(spec, "limits", limit));
        }
        ("", "endpoints") => each(object, "subsets", |subset| {
            each(subset, "ports", |port| default_text(port, "protocol", "TCP"));
        }),
        ("discovery.k8s.io", "endpointslices") => each(object, "ports", |port| {
            default(port, "name", "");
            default(port, "protocol", "TCP");
        }),
        ("scheduling.k8s.io", "priorityclasses") => {
            default(object, "preemptionPolicy", "PreemptLowerPriority");
        }
        ("autoscaling", "horizontalpodautoscalers") => autoscaler(object),
        ("storage.k8s.io", "storageclasses") => {
            default(object, "reclaimPolicy", "Delete");
            default(object, "volumeBindingMode", "Immediate");
        }
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => binding(object),
        ("networking.k8s.io", "networkpolicies") => with(object, "spec", network_policy),
        ("admissionregistration.k8s.io", _) => webhooks(plural, object),
        ("resource.k8s.io", _) => devices(plural, object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => definition(object),
        _ => {}
    }
}

fn node(node: &mut Map<String, Value>) {
    with(node, "spec", |spec| {
        if let Some(range) = spec.get("podCIDR").cloned() {
            default(spec, "podCIDRs", json!([range]));
        }
    });
    with(node, "status", |status| {
        if let (false, Some(capacity)) = (has(status, "allocatable"), status.get("capacity")) {
            let capacity = capacity.clone();
            status.insert("allocatable".to_owned(), capacity);
        }
    });
}

/// Moves `stringData` to `data`.
fn secret(secret: &mut Map<String, Value>) {
    use base64::Engine;
    default_text(secret, "type", "Opaque");
    let Some(Value::Object(given)) = secret.remove("stringData") else { return };
    let engine = base64::engine::general_purpose::STANDARD;
    within(secret, "data", |data| {
        for (name, value) in given {
            let text = value.as_str().unwrap_or_default();
            data.insert(name, Value::from(engine.encode(text)));
        }
    });
}

fn service(spec: &mut Map<String, Value>) {
    default_text(spec, "sessionAffinity", "None");
    if text(spec, "sessionAffinity") == "None" {
        spec.remove("sessionAffinityConfig");
    }
    if text(spec, "sessionAffinity") == "ClientIP" {
        within(spec, "sessionAffinityConfig", |config| {
            within(config, "clientIP", |client| default(client, "timeoutSeconds", 10800));
        });
    }
    default_text(spec, "type", "ClusterIP");
    each(spec, "ports", |port| {
        default_text(port, "protocol", "TCP");
        let unset = match port.get("targetPort") {
            None | Some(Value::Null) => true,
            Some(target) => target == &json!(0) || target == &json!(""),
        };
        if let (true, Some(number)) = (unset, port.get("port").cloned()) {
            port.insert("targetPort".to_owned(), number);
        }
    });
    let kind = text(spec, "type").to_owned();
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        default_text(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer") {
        default(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
    }
}

pub(super) fn claim(claim: &mut Map<String, Value>) {
    with(claim, "spec", |spec| default(spec, "volumeMode", "Filesystem"));
    within(claim, "status", |status| default_text(status, "phase", "Pending"));
}

/// Copies `dataSource` to `dataSourceRef`, or the other way round.
pub(super) fn data_source(spec: &mut Map<String, Value>) {
    let same_namespace =
        spec.get("dataSourceRef").is_some_and(|reference| reference.get("namespace").is_none());
    if let (false, true, Some(reference)) =
        (has(spec, "dataSource"), same_namespace, spec.get("dataSourceRef").cloned())
    {
        spec.insert("dataSource".to_owned(), reference);
    } else if let (false, Some(source)) =
        (has(spec, "dataSourceRef"), spec.get("dataSource").cloned())
    {
        spec.insert("dataSourceRef".to_owned(), source);
    }
}

fn volume(volume: &mut Map<String, Value>) {
    with(volume, "spec", |spec| {
        default_text(spec, "persistentVolumeReclaimPolicy", "Retain");
        default(spec, "volumeMode", "Filesystem");
        with(spec, "hostPath", pod::host_path);
        with(spec, "iscsi", |source| default_text(source, "iscsiInterface", "default"));
    });
    within(volume, "status", |status| default_text(status, "phase", "Pending"));
}

fn namespace(namespace: &mut Map<String, Value>) {
    within(namespace, "metadata", |metadata| {
        let name = text(metadata, "name").to_owned();
        if !name.is_empty() {
            within(metadata, "labels", |labels| {
                labels.insert("kubernetes.io/metadata.name".to_owned(), Value::from(name));
            });
        }
    });
    within(namespace, "status", |status| default_text(status, "phase", "Active"));
}

/// Derives default limits and requests from `max` and `min`.
fn limit(limit: &mut Map<String, Value>) {
    if text(limit, "type") != "Container" {
        return;
    }
    let list = |limit: &Map<String, Value>, name: &str| {
        limit.get(name).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let (max, min) = (list(limit, "max"), list(limit, "min"));
    within(limit, "default", |defaults| {
        for (name, amount) in max {
            default(defaults, &name, amount);
        }
    });
    let defaults = list(limit, "default");
    within(limit, "defaultRequest", |requests| {
        for (name, amount) in defaults.into_iter().chain(min) {
            default(requests, &name, amount);
        }
    });
    for name in ["default", "defaultRequest"] {
        if list(limit, name).is_empty() {
            limit.remove(name);
        }
    }
}

fn autoscaler(object: &mut Map<String, Value>) {
    let old = text(object, "apiVersion") == "autoscaling/v1";
    with(object, "spec", |spec| {
        default(spec, "minReplicas", 1);
        if old {
            return;
        }
        let none = spec.get("metrics").and_then(Value::as_array).is_none_or(Vec::is_empty);
        if none {
            spec.insert(
                "metrics".to_owned(),
                json!([{
                    "type": "Resource",
                    "resource": {
                        "name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": 80}
                    }
                }]),
            );
        }
        with(spec, "behavior", behavior);
    });
}

fn behavior(behavior: &mut Map<String, Value>) {
    within(behavior, "scaleUp", |rules| {
        default(rules, "stabilizationWindowSeconds", 0);
        default(rules, "selectPolicy", "Max");
        let policies = json!([
            {"type": "Pods", "value": 4, "periodSeconds": 15},
            {"type": "Percent", "value": 100, "periodSeconds": 15}
        ]);
        default(rules, "policies", policies);
    });
    within(behavior, "scaleDown", |rules| {
        default(rules, "selectPolicy", "Max");
        default(rules, "policies", json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]));
    });
}

fn binding(object: &mut Map<String, Value>) {
    const RBAC: &str = "rbac.authorization.k8s.io";
    with(object, "roleRef", |role| default_text(role, "apiGroup", RBAC));
    each(object, "subjects", |subject| {
        if matches!(text(subject, "kind"), "User" | "Group") {
            default_text(subject, "apiGroup", RBAC);
        }
    });
}

fn network_policy(spec: &mut Map<String, Value>) {
    for direction in ["ingress", "egress"] {
        each(spec, direction, |rule| {
            each(rule, "ports", |port| default(port, "protocol", "TCP"));
        });
    }
    let egress = spec.get("egress").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
    default(spec, "policyTypes", types);
}

fn webhooks(plural: &str, object: &mut Map<String, Value>) {
    each(object, "webhooks", |webhook| {
        default(webhook, "failurePolicy", "Fail");
        default(webhook, "matchPolicy", "Equivalent");
        default(webhook, "namespaceSelector", json!({}));
        default(webhook, "objectSelector", json!({}));
        default(webhook, "timeoutSeconds", 10);
        if plural == "mutatingwebhookconfigurations" {
            default(webhook, "reinvocationPolicy", "Never");
        }
        each(webhook, "rules", |rule| default(rule, "scope", "*"));
        with(webhook, "clientConfig", |config| {
            with(config, "service", |service| default(service, "port", 443));
        });
    });
}

fn devices(plural: &str, object: &mut Map<String, Value>) {
    let requests = |spec: &mut Map<String, Value>| {
        with(spec, "devices", |devices| {
            each(devices, "requests", |request| {
                with(request, "exactly", device_request);
                each(request, "firstAvailable", device_request);
            });
        });
    };
    match plural {
        "resourceclaims" => with(object, "spec", requests),
        "resourceclaimtemplates" => {
            with(object, "spec", |spec| with(spec, "spec", requests));
        }
        "resourceslices" => with(object, "spec", |spec| {
            each(spec, "devices", |device| {
                each(device, "taints", |_| {});
            });
        }),
        _ => {}
    }
}

fn device_request(request: &mut Map<String, Value>) {
    default_text(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" {
        default(request, "count", 1);
    }
    each(request, "tolerations", |toleration| default_text(toleration, "operator", "Equal"));
}

fn definition(object: &mut Map<String, Value>) {
    with(object, "spec", |spec| {
        with(spec, "names", |names| {
            let kind = text(names, "kind").to_owned();
            default_text(names, "singular", &kind.to_lowercase());
            if !kind.is_empty() {
                default_text(names, "listKind", &format!("{kind}List"));
            }
        });
        within(spec, "conversion", |conversion| default_text(conversion, "strategy", "None"));
    });
}
