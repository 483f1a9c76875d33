//! Questions about pods that controllers share, ownership by selector, and pods from templates.

use std::sync::Arc;
use std::time::Duration;

use berth_model::label::{Labels, Selector};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

use crate::clock::{later, until};
use crate::key::{is_controlled_by, labels, name, namespace};

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref();
    node.filter(|node| !node.is_empty())
}

pub(crate) fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub(crate) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_terminating(pod)
}

pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let condition = condition(pod, "Ready").filter(|condition| condition.status == "True")?;
    condition.last_transition_time.as_ref().map(|time| time.0)
}

/// Time until a ready pod is available; `None` if it is not ready.
pub(crate) fn available_in(pod: &Pod, min_ready: Duration, now: Timestamp) -> Option<Duration> {
    if !is_ready(pod) {
        return None;
    }
    match ready_since(pod) {
        _ if min_ready.is_zero() => Some(Duration::ZERO),
        Some(since) => Some(until(now, later(since, min_ready))),
        None => None,
    }
}

pub(crate) fn restarts_max(pod: &Pod) -> i32 {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    containers.into_iter().flatten().map(|one| one.restart_count).max().unwrap_or(0)
}

pub(crate) fn selector(selector: &LabelSelector) -> Option<Selector> {
    berth_api::read_selector(selector)
}

pub(crate) fn selects(selector: &Selector, meta: &ObjectMeta) -> bool {
    let pairs = labels(meta).iter().map(|(key, value)| (key.as_str(), value.as_str()));
    selector.matches(&pairs.collect::<Labels>())
}

#[derive(Debug)]
pub(crate) struct Claims<K> {
    /// Controlled by the owner, with those in `adopt`.
    pub(crate) mine: Vec<Arc<K>>,
    /// Matching objects without a controller.
    pub(crate) adopt: Vec<Arc<K>>,
    /// Controlled by the owner, but no longer matching.
    pub(crate) release: Vec<Arc<K>>,
}

pub(crate) fn claim<K>(
    owner: &ObjectMeta,
    selector: &Selector,
    candidates: impl IntoIterator<Item = Arc<K>>,
) -> Claims<K>
where
    K: kube::Resource<DynamicType = ()>,
{
    let mut claims = Claims { mine: Vec::new(), adopt: Vec::new(), release: Vec::new() };
    let stays = owner.deletion_timestamp.is_none();
    for object in candidates {
        let meta = object.meta();
        let matches = selects(selector, meta);
        if is_controlled_by(meta, owner) {
            if matches || !stays || meta.deletion_timestamp.is_some() {
                claims.mine.push(object)
            } else {
                claims.release.push(object)
            }
        } else if matches
            && stays
            && meta.deletion_timestamp.is_none()
            && crate::key::controller(meta).is_none()
            && namespace(meta) == namespace(owner)
        {
            claims.adopt.push(Arc::clone(&object));
            claims.mine.push(object);
        }
    }
    claims
}

/// A pod from a template, with a generated name.
pub(crate) fn from_template(
    template: &PodTemplateSpec,
    owner: &ObjectMeta,
    reference: OwnerReference,
) -> Pod {
    let of_template = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", name(owner))),
            namespace: owner.namespace.clone(),
            labels: of_template.labels,
            annotations: of_template.annotations,
            finalizers: of_template.finalizers,
            owner_references: Some(vec![reference]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}
