//! ResourceQuotas: recounts `status.used`. The API server only adds to it, at admission.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::Lower as _;
use berth_model::pod::{PodLevelResources, QosClass};
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceName;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota, ResourceQuotaStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::clock::{later, seconds};
use crate::key::Key;
use crate::queue::{Queue, Requeue};

use super::context::Context;
use super::kinds::Kinds;
use super::pods::is_finished;

/// Interval of full recounts, as in Kubernetes.
const ANEW_EVERY: Duration = Duration::from_secs(300);

/// After this time the watches have brought everything that was admitted before.
const SETTLES_IN: Duration = Duration::from_secs(2);

const POD_LEVEL: PodLevelResources = PodLevelResources::HonouredIfEmptyToo;

/// Objects that quotas also count under a plain name, besides `count/…`.
const NAMED: [(&str, &str); 8] = [
    ("configmaps", ""),
    ("persistentvolumeclaims", ""),
    ("replicationcontrollers", ""),
    ("resourcequotas", ""),
    ("secrets", ""),
    ("services", ""),
    ("resourceclaims", "resource.k8s.io"),
    ("jobs", "batch"),
];

/// Whether a pod counts: until it is finished or long past its deletion grace period.
fn counts(pod: &Pod, now: Timestamp) -> bool {
    let meta = &pod.metadata;
    let overdue = meta.deletion_timestamp.as_ref().zip(meta.deletion_grace_period_seconds);
    let overdue = overdue.is_some_and(|(at, grace)| later(at.0, seconds(grace)) < now);
    !is_finished(pod) && !overdue
}

fn is_about(quota: &ResourceQuota, pod: &Pod) -> bool {
    let Some(spec) = &quota.spec else { return true };
    let Some(pod_spec) = &pod.spec else { return false };
    let best_effort =
        || pod.lower().is_ok_and(|pod| pod.spec.pod.qos(POD_LEVEL) == QosClass::BestEffort);
    let priority = pod_spec.priority_class_name.as_deref().unwrap_or_default();
    let holds = |scope: &str, operator: &str, values: &[String]| match scope {
        "Terminating" => pod_spec.active_deadline_seconds.is_some(),
        "NotTerminating" => pod_spec.active_deadline_seconds.is_none(),
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => match operator {
            "In" => values.iter().any(|one| one == priority),
            "NotIn" => !values.iter().any(|one| one == priority),
            "DoesNotExist" => priority.is_empty(),
            _ => !priority.is_empty(),
        },
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        // Unknown scopes match nothing.
        _ => false,
    };
    let plain = spec.scopes.iter().flatten();
    let chosen = spec.scope_selector.iter().flat_map(|one| one.match_expressions.iter().flatten());
    plain.into_iter().all(|scope| holds(scope, "Exists", &[]))
        && chosen.into_iter().all(|one| {
            holds(&one.scope_name, &one.operator, one.values.as_deref().unwrap_or_default())
        })
}

fn crosses_namespaces(pod: &Pod) -> bool {
    let Ok(pod) = pod.lower() else { return false };
    let own = [pod.spec.namespace.clone()];
    let affinity = &pod.spec.pod_affinity;
    let hard = affinity.required.iter().chain(&affinity.anti_required);
    let soft = affinity.preferred.iter().chain(&affinity.anti_preferred).map(|(_, term)| term);
    hard.chain(soft).any(|term| {
        term.namespace_selector.is_some()
            || !term.namespaces.is_empty() && term.namespaces.as_slice() != own.as_slice()
    })
}

/// The usage of one pod by resource name.
fn usage(pod: &Pod) -> BTreeMap<String, Quantity> {
    let mut used = BTreeMap::new();
    let one = Quantity::from_units(1, berth_model::quantity::Format::DecimalSi);
    used.insert("pods".to_owned(), one);
    let Ok(pod) = pod.lower() else { return used };
    let plain = |name: &ResourceName| {
        matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.is_hugepages()
    };
    for (name, amount) in pod.spec.pod.total_requests(POD_LEVEL) {
        if plain(&name) {
            used.insert(name.to_string(), amount);
        }
        used.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in pod.spec.pod.total_limits(POD_LEVEL) {
        if plain(&name) {
            used.insert(format!("limits.{name}"), amount);
        }
    }
    used
}

/// The usage of each resource that a quota limits. `objects` counts objects by group and plural.
pub(super) fn used(
    quota: &ResourceQuota,
    pods: &[Arc<Pod>],
    objects: impl Fn(&str, &str) -> Option<usize>,
    now: Timestamp,
) -> BTreeMap<String, Text> {
    let mut sums: BTreeMap<String, Quantity> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| counts(pod, now) && is_about(quota, pod)) {
        for (name, amount) in usage(pod) {
            let sum = sums.entry(name).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
    let scoped = quota.spec.as_ref().is_some_and(|spec| {
        spec.scopes.as_ref().is_some_and(|list| !list.is_empty()) || spec.scope_selector.is_some()
    });
    let before = quota.status.as_ref().and_then(|status| status.used.as_ref());
    let hard = quota.spec.iter().flat_map(|spec| spec.hard.iter().flatten());
    hard.map(|(name, _)| {
        let counted = match name.strip_prefix("count/") {
            Some(resource) => {
                let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
                objects(group, plural).filter(|_| !scoped).map(|count| count.to_string())
            }
            None => {
                let known = NAMED.iter().find(|(plural, _)| plural == name);
                let count = known.and_then(|(plural, group)| objects(group, plural));
                count.filter(|_| !scoped).map(|count| count.to_string())
            }
        };
        let of_pods = || sums.get(name).map(ToString::to_string);
        let told = || before.and_then(|before| before.get(name)).map(|text| text.0.clone());
        // Only the API server counts storage; keep its value.
        let storage = name.contains("storage") && !name.contains("ephemeral-storage");
        let text = counted.or_else(of_pods).or_else(|| told().filter(|_| storage));
        (name.clone(), Text(text.unwrap_or_else(|| "0".to_owned())))
    })
    .collect()
}

pub(super) fn wire(context: &Context, kinds: &Kinds, queue: &Queue) {
    let views = &context.views;
    let to = queue.clone();
    views.quotas.on_change(move |change| {
        // Usage that the API server has charged is kept until the pods are seen.
        let spec = |quota: &Arc<ResourceQuota>| quota.spec.clone();
        let known = change.old.as_ref().map(spec) == change.new.as_ref().map(spec);
        let hard = |quota: &Arc<ResourceQuota>| {
            let status = quota.status.as_ref().and_then(|status| status.hard.as_ref());
            status == quota.spec.as_ref().and_then(|spec| spec.hard.as_ref())
        };
        if !known || !change.new.as_ref().is_none_or(hard) {
            to.add(change.key.clone());
        }
    });
    let (to, quotas) = (queue.clone(), Arc::clone(&views.quotas));
    views.pods.on_change(move |change| {
        // Only decreases are written: increases are the API server's.
        let ended = |pod: &Arc<Pod>| is_finished(pod);
        let given_back =
            change.new.as_ref().is_none_or(ended) && !change.old.as_ref().is_none_or(ended);
        if given_back {
            for quota in quotas.in_namespace(&change.key.namespace) {
                to.add(Key::of(&quota.metadata));
            }
        }
    });
    let (to, quotas) = (queue.clone(), Arc::clone(&views.quotas));
    kinds.on_change(move |resource, change| {
        if change.new.is_none() && resource.plural != "pods" {
            for quota in quotas.in_namespace(&change.key.namespace) {
                to.add(Key::of(&quota.metadata));
            }
        }
    });
}

pub(super) async fn reconcile(
    context: &Context,
    kinds: &Kinds,
    key: Key,
) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(quota) = views.quotas.get(&key) else { return Ok(None) };
    let pods = views.pods.in_namespace(&key.namespace);
    let objects = |group: &str, plural: &str| kinds.count(group, plural, &key.namespace);
    let used = used(&quota, &pods, objects, context.clock.now());
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone());
    let status = ResourceQuotaStatus { hard, used: Some(used) };
    if quota.status.as_ref() != Some(&status) {
        let written = ResourceQuota { status: Some(status), ..(*quota).clone() };
        context.write_status(&views.quotas, &written).await?;
        // Objects may have been admitted that are not seen yet.
        return Ok(Some(SETTLES_IN));
    }
    Ok(Some(ANEW_EVERY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::fixtures::pod;
    use k8s_openapi::api::core::v1::ResourceRequirements;
    use serde_json::{Value, from_value, json};

    fn asking(name: &str, resources: Value) -> Pod {
        let mut pod = pod(name).plain();
        let resources: ResourceRequirements = from_value(resources).unwrap();
        pod.spec.as_mut().unwrap().containers[0].resources = Some(resources);
        pod
    }

    fn quota(spec: Value) -> ResourceQuota {
        from_value(json!({ "metadata": { "name": "q" }, "spec": spec })).unwrap()
    }

    #[test]
    fn what_pods_ask_for_is_counted_until_they_have_ended() {
        let gpus = json!({ "limits": { "cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "2" } });
        let running = asking("a", gpus.clone());
        let mut ended = asking("b", gpus);
        ended.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
        let pods = [Arc::new(running), Arc::new(ended), pod("c").arc()];
        let quota = quota(json!({ "hard": {
            "cpu": "9", "requests.nvidia.com/gpu": "9", "limits.memory": "9Gi", "pods": "9",
            "count/deployments.apps": "9", "services": "9", "requests.storage": "1Ti",
        } }));
        let objects = |group: &str, _: &str| (group == "apps").then_some(4);
        let used = used(&quota, &pods, objects, Timestamp::UNIX_EPOCH);
        let used: Vec<(&str, &str)> =
            used.iter().map(|(name, text)| (name.as_str(), text.0.as_str())).collect();
        let expected = [
            ("count/deployments.apps", "4"),
            ("cpu", "1500m"),
            ("limits.memory", "1Gi"),
            ("pods", "2"),
            ("requests.nvidia.com/gpu", "2"),
            ("requests.storage", "0"),
            ("services", "0"),
        ];
        assert_eq!(used, expected);
    }

    #[test]
    fn scopes_choose_the_pods() {
        let cpu = asking("a", json!({ "requests": { "cpu": "1" } }));
        let mut urgent = asking("b", json!({}));
        urgent.spec.as_mut().unwrap().priority_class_name = Some("high".to_owned());
        let pods = [Arc::new(cpu), Arc::new(urgent)];
        let count = |spec: Value| {
            let used = used(&quota(spec), &pods, |_, _| None, Timestamp::UNIX_EPOCH);
            used["pods"].0.clone()
        };
        let hard = json!({ "pods": "9" });
        assert_eq!(count(json!({ "hard": hard, "scopes": ["BestEffort"] })), "1");
        assert_eq!(count(json!({ "hard": hard, "scopes": ["Terminating"] })), "0");
        let of_class = json!({ "matchExpressions": [
            { "scopeName": "PriorityClass", "operator": "In", "values": ["high"] },
        ] });
        assert_eq!(count(json!({ "hard": hard, "scopeSelector": of_class })), "1");
    }
}
