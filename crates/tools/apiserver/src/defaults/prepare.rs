//! What creating and updating does to an object beyond defaults: ignored parts of a write (a status sent with the
//! rest), generations, and generated values.

use serde_json::{Map, Value, json};

use super::{default, default_text, has, pod, text, with, within};
use crate::kinds::{Kind, Origin};

/// Kinds whose status is kept on creation.
const KEEPS_STATUS: [(&str, &str); 3] = [
    ("", "nodes"),
    ("", "persistentvolumes"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
];

/// Kinds without a generation.
const NO_GENERATION: [(&str, &str); 10] = [
    ("", "namespaces"),
    ("", "nodes"),
    ("", "persistentvolumeclaims"),
    ("", "persistentvolumes"),
    ("", "resourcequotas"),
    ("", "services"),
    ("autoscaling", "horizontalpodautoscalers"),
    ("apiregistration.k8s.io", "apiservices"),
    ("certificates.k8s.io", "certificatesigningrequests"),
    ("resource.k8s.io", "resourceclaims"),
];

/// Kinds with a generation but no status.
const COUNTED: [(&str, &str); 10] = [
    ("", "podtemplates"),
    ("scheduling.k8s.io", "priorityclasses"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("networking.k8s.io", "networkpolicies"),
    ("networking.k8s.io", "ingressclasses"),
    ("resource.k8s.io", "deviceclasses"),
    ("resource.k8s.io", "resourceslices"),
    ("discovery.k8s.io", "endpointslices"),
];

fn id(kind: &Kind) -> (&str, &str) {
    (&*kind.resource.group, &*kind.resource.plural)
}

fn has_generation(kind: &Kind) -> bool {
    let custom = matches!(kind.origin, Origin::Custom(_));
    let counted = kind.subresources.status && !NO_GENERATION.contains(&id(kind));
    custom || counted || COUNTED.contains(&id(kind))
}

/// Prepares a new object for the store, after mutating admission and after its uid and creation time are set.
pub fn prepare_create(kind: &Kind, object: &mut Value) {
    let Some(object) = object.as_object_mut() else { return };
    if kind.subresources.status && !KEEPS_STATUS.contains(&id(kind)) {
        match kind.origin {
            Origin::Custom(_) => {
                object.remove("status");
            }
            Origin::BuiltIn => {
                let empty = empty_status(kind);
                object.insert("status".to_owned(), empty);
            }
        }
    }
    match id(kind) {
        ("", "pods") => create_pod(object),
        ("", "namespaces") => create_namespace(object),
        ("", "services") => create_service(object),
        ("apps", "daemonsets") => count_templates(object, 1),
        ("", "persistentvolumeclaims") => {
            object.insert("status".to_owned(), json!({"phase": "Pending"}));
            with(object, "spec", super::cluster::data_source);
        }
        ("", "persistentvolumes") => {
            let created = object.get("metadata").and_then(|m| m.get("creationTimestamp"));
            let status = json!({"phase": "Pending", "lastPhaseTransitionTime": created});
            object.insert("status".to_owned(), status);
        }
        ("batch", "jobs") => create_job(object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => create_definition(object),
        _ => {}
    }
    within(object, "metadata", |metadata| {
        metadata.remove("generation");
        if has_generation(kind) {
            metadata.insert("generation".to_owned(), Value::from(1));
        }
    });
}

/// The empty status, as Go writes it.
fn empty_status(kind: &Kind) -> Value {
    let node = crate::schema::of(kind);
    match node.child("status") {
        Some(status) => crate::schema::empty(status),
        None => json!({}),
    }
}

/// Counts changes of a DaemonSet's template.
fn count_templates(object: &mut Map<String, Value>, count: i64) {
    within(object, "metadata", |metadata| {
        within(metadata, "annotations", |all| {
            let name = super::workload::TEMPLATE_GENERATION.to_owned();
            all.insert(name, Value::from(count.to_string()));
        });
    });
}

/// Assigns cluster IPs. Nothing routes to them, so they only have to be unique.
fn create_service(service: &mut Map<String, Value>) {
    let uid = service.get("metadata").and_then(|m| m.get("uid")).and_then(Value::as_str);
    let address = address_of(uid.unwrap_or_default());
    with(service, "spec", |spec| {
        if text(spec, "type") == "ExternalName" {
            return;
        }
        default_text(spec, "clusterIP", &address);
        let address = spec.get("clusterIP").cloned().unwrap_or(Value::Null);
        let headless = address == "None";
        default(spec, "clusterIPs", json!([address]));
        let selects =
            spec.get("selector").and_then(Value::as_object).is_some_and(|s| !s.is_empty());
        let families = if headless && !selects { json!(["IPv4", "IPv6"]) } else { json!(["IPv4"]) };
        let policy = if headless && !selects { "RequireDualStack" } else { "SingleStack" };
        default(spec, "ipFamilies", families);
        default(spec, "ipFamilyPolicy", policy);
    });
}

/// An address in 10.96.0.0/12, derived from a uid.
fn address_of(uid: &str) -> String {
    let hash = uid
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let [_, b, c, d] = hash.to_be_bytes();
    format!("10.{}.{c}.{}", 96 + b % 16, d.clamp(1, 254))
}

fn create_pod(pod: &mut Map<String, Value>) {
    let created = pod.get("metadata").and_then(|m| m.get("creationTimestamp")).cloned();
    with(pod, "spec", |spec| {
        let grace = spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64);
        if grace.is_some_and(|seconds| seconds < 0) {
            spec.insert("terminationGracePeriodSeconds".to_owned(), Value::from(1));
        }
    });
    let Some(spec) = pod.get("spec").and_then(Value::as_object) else { return };
    let mut status = Map::new();
    status.insert("phase".to_owned(), Value::from("Pending"));
    status.insert("qosClass".to_owned(), Value::from(pod::qos_class(spec)));
    let gates = spec.get("schedulingGates").and_then(Value::as_array);
    if gates.is_some_and(|gates| !gates.is_empty()) {
        status.insert(
            "conditions".to_owned(),
            json!([{
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": null,
                "lastTransitionTime": created,
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates"
            }]),
        );
    }
    pod.insert("status".to_owned(), Value::Object(status));
}

fn create_namespace(namespace: &mut Map<String, Value>) {
    namespace.insert("status".to_owned(), json!({"phase": "Active"}));
    within(namespace, "spec", |spec| {
        let kept = spec.get("finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
        if !kept.contains(&json!("kubernetes")) {
            let all: Vec<Value> = kept.into_iter().chain([json!("kubernetes")]).collect();
            spec.insert("finalizers".to_owned(), Value::Array(all));
        }
    });
}

/// Initializes `storedVersions`.
fn create_definition(definition: &mut Map<String, Value>) {
    let versions = definition.get("spec").and_then(|spec| spec.get("versions"));
    let stored = versions.and_then(Value::as_array).into_iter().flatten();
    let names: Vec<Value> = stored
        .filter(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .collect();
    within(definition, "status", |status| {
        status.insert("storedVersions".to_owned(), Value::from(names));
    });
}

/// Generates a Job's selector and labels.
fn create_job(job: &mut Map<String, Value>) {
    let metadata = job.get("metadata").and_then(Value::as_object);
    let name = metadata.map(|m| text(m, "name").to_owned()).unwrap_or_default();
    let uid = metadata.map(|m| text(m, "uid").to_owned()).unwrap_or_default();
    let given = job.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels"));
    let own = metadata.and_then(|m| m.get("labels"));
    let shared = own.is_none() || own == given;
    with(job, "spec", |spec| {
        if spec.get("manualSelector") == Some(&Value::Bool(true)) {
            return;
        }
        within(spec, "template", |template| {
            within(template, "metadata", |metadata| {
                within(metadata, "labels", |labels| {
                    default(labels, "controller-uid", uid.as_str());
                    default(labels, "job-name", name.as_str());
                    default(labels, "batch.kubernetes.io/controller-uid", uid.as_str());
                    default(labels, "batch.kubernetes.io/job-name", name.as_str());
                });
            });
        });
        within(spec, "selector", |selector| {
            within(selector, "matchLabels", |labels| {
                default(labels, "batch.kubernetes.io/controller-uid", uid.as_str());
            });
        });
    });
    // A Job without labels gets those of its pods.
    let labels = job.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels"));
    if let (true, Some(labels)) = (shared, labels.cloned()) {
        within(job, "metadata", |metadata| {
            metadata.insert("labels".to_owned(), labels);
        });
    }
}

/// Prepares a changed object for the store, after mutating admission. `subresource` is empty for the object
/// itself.
pub fn prepare_update(kind: &Kind, subresource: &str, old: &Value, new: &mut Value) {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object_mut()) else { return };
    match subresource {
        "status" => keep_all_but_status(kind, old, new),
        "" if kind.subresources.status => keep(old, new, "status"),
        _ => {}
    }
    if subresource.is_empty() {
        update_object(kind, old, new);
    }
    let generation = old.get("metadata").and_then(|m| m.get("generation")).cloned();
    let counts = has_generation(kind) && subresource != "status" && differs(kind, old, new);
    within(new, "metadata", |metadata| match generation {
        Some(before) => {
            let before = before.as_i64().unwrap_or(0);
            metadata.insert("generation".to_owned(), Value::from(before + i64::from(counts)));
        }
        None => {
            metadata.remove("generation");
        }
    });
}

fn keep(old: &Map<String, Value>, new: &mut Map<String, Value>, name: &str) {
    match old.get(name) {
        Some(value) => new.insert(name.to_owned(), value.clone()),
        None => new.remove(name),
    };
}

fn keep_all_but_status(kind: &Kind, old: &Map<String, Value>, new: &mut Map<String, Value>) {
    let names: Vec<String> = old.keys().chain(new.keys()).cloned().collect();
    for name in names {
        if !matches!(name.as_str(), "status" | "metadata" | "apiVersion" | "kind") {
            keep(old, new, &name);
        }
    }
    if id(kind) == ("", "pods")
        && let Some(class) = old.get("status").and_then(|status| status.get("qosClass")).cloned()
    {
        within(new, "status", |status| default(status, "qosClass", class));
    }
    let managed = new.get("metadata").and_then(|m| m.get("managedFields")).cloned();
    if matches!(kind.origin, Origin::Custom(_)) {
        keep(old, new, "metadata");
        if let Some(managed) = managed {
            within(new, "metadata", |m| {
                m.insert("managedFields".to_owned(), managed);
            });
        }
    }
}

fn differs(kind: &Kind, old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    let custom = matches!(kind.origin, Origin::Custom(_));
    if kind.is("scheduling.k8s.io", "priorityclasses") {
        return false;
    }
    let annotations =
        |map: &Map<String, Value>| map.get("metadata").and_then(|m| m.get("annotations")).cloned();
    if kind.is("apps", "deployments") && annotations(old) != annotations(new) {
        return true;
    }
    let whole = custom || COUNTED.contains(&id(kind));
    if whole {
        let skipped = |name: &str| {
            name == "metadata" || name == "status" && (kind.subresources.status || !custom)
        };
        let rest = |map: &Map<String, Value>| -> Vec<(String, Value)> {
            let rest = map.iter().filter(|(name, _)| !skipped(name));
            rest.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        return rest(old) != rest(new);
    }
    let deleting = |map: &Map<String, Value>| {
        map.get("metadata").is_some_and(|m| m.get("deletionTimestamp").is_some())
    };
    old.get("spec") != new.get("spec") || deleting(old) != deleting(new)
}

fn update_object(kind: &Kind, old: &Map<String, Value>, new: &mut Map<String, Value>) {
    match id(kind) {
        ("", "namespaces") => {
            if let Some(finalizers) = old.get("spec").and_then(|s| s.get("finalizers")).cloned() {
                within(new, "spec", |spec| {
                    spec.insert("finalizers".to_owned(), finalizers);
                });
            }
        }
        ("", "services") => keep_addresses(old, new),
        ("apps", "daemonsets") => {
            let template = |map: &Map<String, Value>| {
                map.get("spec").and_then(|spec| spec.get("template")).cloned()
            };
            let counted = old
                .get("metadata")
                .and_then(|m| m.get("annotations"))
                .map(|all| text_of(all, super::workload::TEMPLATE_GENERATION))
                .and_then(|text| text.parse::<i64>().ok())
                .unwrap_or(1);
            count_templates(new, counted + i64::from(template(old) != template(new)));
        }
        ("batch", "jobs") => {
            let before = old.get("spec").and_then(|spec| spec.get("selector")).cloned();
            with(new, "spec", |spec| {
                if let (false, Some(selector)) = (has(spec, "selector"), before) {
                    spec.insert("selector".to_owned(), selector);
                }
            });
        }
        _ => {}
    }
}

fn text_of(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A service keeps its addresses unless its type changes.
fn keep_addresses(old: &Map<String, Value>, new: &mut Map<String, Value>) {
    let Some(before) = old.get("spec").and_then(Value::as_object) else { return };
    with(new, "spec", |spec| {
        if text(spec, "type") == "ExternalName" || text(before, "type") == "ExternalName" {
            return;
        }
        for name in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if let Some(value) = before.get(name) {
                default(spec, name, value.clone());
            }
        }
        if let Some(address) = before.get("clusterIP").and_then(Value::as_str) {
            default_text(spec, "clusterIP", address);
        }
    });
}
