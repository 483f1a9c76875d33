//! Pods: identity, phase and owner. Parts of the spec are in the submodules.

mod affinity;
mod class;
mod containers;
mod devices;
mod gpu;
mod priority;
mod volumes;

use std::sync::Arc;

use berth_model::spec::{Controller, Deletion, Phase, PodObject, PodSpec, PreemptionPolicy};
use berth_model::taint::{Toleration, TolerationOperator, whole_number};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::Lower;
use crate::error::{self, LowerError, Problem, each};
use crate::gang;
use crate::keys;
use crate::meta;

pub use devices::device_needs;
pub(crate) use gpu::compute_milli;
pub use priority::resolve_priority;

impl Lower for core::Pod {
    type Model = PodObject;

    /// The pod as the scheduler counts it. A pod without a UID, as in a manifest, is known by its
    /// namespace and name. The node of a bound pod is in [`PodObject::node`] alone, so that replicas
    /// on different nodes have equal specs.
    fn lower(&self) -> Result<PodObject, LowerError> {
        let Observed { pod, invalid } = observe(self)?;
        invalid.map_or(Ok(pod), Err)
    }
}

/// A pod of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The pod. Requests that cannot be read are left out.
    pub pod: PodObject,
    /// The first request that cannot be read.
    pub invalid: Option<LowerError>,
}

/// The pod as a cluster shows it. The API server does not look at Berth's own labels and annotations, so
/// whatever stands there, the pod exists and holds what it holds.
///
/// # Errors
/// When the API server would have refused the pod.
pub fn observe(pod: &core::Pod) -> Result<Observed, LowerError> {
    let mut invalid = None;
    let lowered = error::of(pod, object(pod, &mut invalid))?;
    let invalid = invalid.map(|problem| error::about(pod, problem));
    Ok(Observed { pod: lowered, invalid })
}

/// Keeps the first of the requests that cannot be read.
fn valid<T>(request: Result<Option<T>, Problem>, invalid: &mut Option<Problem>) -> Option<T> {
    request.unwrap_or_else(|problem| {
        invalid.get_or_insert(problem);
        None
    })
}

fn object(pod: &core::Pod, invalid: &mut Option<Problem>) -> Result<PodObject, Problem> {
    let Some(spec) = &pod.spec else {
        return Err(Problem::new("spec", "is missing; a pod has at least one container"));
    };
    let status = pod.status.as_ref();
    let node = meta::filled(spec.node_name.as_ref());
    let name = meta::name(&pod.metadata)?;
    let uid = meta::filled(pod.metadata.uid.as_ref())
        .unwrap_or_else(|| format!("{}/{name}", meta::namespace(&pod.metadata)).into());
    // What is written on a pod without a node was not given to it.
    let gpu_grant = node.as_ref().and_then(|_| gpu::granted(&pod.metadata));
    let gang = gang::membership(&pod.metadata, spec.scheduling_group.as_ref());
    let spec = PodSpec {
        gpu: valid(gpu::need(&pod.metadata), invalid)
            .or_else(|| invalid.as_ref().and(gpu_grant.as_ref()).map(|_| gpu::WHOLE)),
        gang: valid(gang, invalid),
        ..self::spec(pod, spec, &name)?
    };
    Ok(PodObject {
        uid,
        spec: Arc::new(spec),
        name,
        created_at_ms: meta::unix_ms(pod.metadata.creation_timestamp.as_ref()).unwrap_or(0),
        started_at_ms: meta::unix_ms(status.and_then(|status| status.start_time.as_ref())),
        nominated: meta::filled(status.and_then(|status| status.nominated_node_name.as_ref())),
        phase: phase(pod),
        deletion: deletion(&pod.metadata),
        gpu_grant,
        node,
        claims: devices::claims(pod),
    })
}

/// The spec without the requests in Berth's own labels and annotations.
fn spec(pod: &core::Pod, spec: &core::PodSpec, name: &str) -> Result<PodSpec, Problem> {
    let in_spec = |problem: Problem| problem.under("spec");
    let affinity = spec.affinity.as_ref();
    let gates = spec.scheduling_gates.iter().flatten();
    let node_selector = spec.node_selector.iter().flatten();
    Ok(PodSpec {
        namespace: meta::namespace(&pod.metadata),
        labels: meta::labels(&pod.metadata),
        pod: containers::pod(spec, pod.status.as_ref())?,
        node_name: None,
        node_selector: node_selector.map(|(key, value)| (key.as_str(), value.as_str())).collect(),
        node_affinity: affinity::node_affinity(affinity).map_err(in_spec)?,
        tolerations: each("spec.tolerations", spec.tolerations.as_ref(), toleration)?,
        pod_affinity: affinity::pod_affinity(affinity).map_err(in_spec)?,
        spread: each(
            "spec.topologySpreadConstraints",
            spec.topology_spread_constraints.as_ref(),
            affinity::spread_constraint,
        )?,
        host_ports: containers::host_ports(spec).map_err(in_spec)?,
        images: containers::images(spec),
        volumes: spec.volumes.iter().flatten().filter_map(|v| volumes::volume(v, name)).collect(),
        priority: spec.priority.unwrap_or(0),
        priority_class: meta::filled(spec.priority_class_name.as_ref()),
        deadline_ms: spec.active_deadline_seconds.map(|s| s.saturating_mul(1000)),
        preemption: preemption_policy(spec.preemption_policy.as_deref()).map_err(in_spec)?,
        gates: gates.map(|gate| gate.name.as_str().into()).collect(),
        controller: meta::controller(&pod.metadata).map(controller),
        stays: stays(&pod.metadata),
        class: class::class(&pod.metadata),
        model: class::model(&pod.metadata),
        ..PodSpec::default()
    })
}

/// Annotations by which pods ask not to be moved, and what each has to say: Berth's, Karpenter's and
/// that of the Cluster Autoscaler.
const STAYING: [(&str, &str); 3] = [
    (keys::MOVABLE, "false"),
    ("karpenter.sh/do-not-disrupt", "true"),
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
];

fn stays(metadata: &ObjectMeta) -> bool {
    STAYING.iter().any(|(name, value)| meta::annotation(metadata, name) == Some(*value))
}

/// The owner that controls it. Spread defaults follow Kubernetes' own controllers only, so those of
/// other groups, or of versions it no longer serves, must not pass for them.
fn controller(owner: &OwnerReference) -> Controller {
    let served_in = match owner.kind.as_str() {
        "ReplicaSet" | "StatefulSet" => Some("apps/v1"),
        "ReplicationController" => Some("v1"),
        _ => None,
    };
    let kind = match served_in {
        Some(own) if own != owner.api_version => format!("{}.{}", owner.kind, owner.api_version),
        _ => owner.kind.clone(),
    };
    Controller { kind: kind.into(), name: owner.name.as_str().into() }
}

/// The deletion timestamp is when the grace period ends.
fn deletion(meta: &ObjectMeta) -> Option<Deletion> {
    let ends_at_ms = meta::unix_ms(meta.deletion_timestamp.as_ref())?;
    let grace_ms = meta.deletion_grace_period_seconds?.saturating_mul(1000);
    Some(Deletion { requested_at_ms: ends_at_ms.saturating_sub(grace_ms), grace_ms })
}

fn phase(pod: &core::Pod) -> Phase {
    let ObjectMeta { deletion_timestamp, .. } = &pod.metadata;
    let status = pod.status.as_ref();
    match status.and_then(|status| status.phase.as_deref()) {
        Some("Succeeded" | "Failed") => Phase::Finished,
        _ if deletion_timestamp.is_none() => Phase::Alive,
        _ => {
            let conditions = status.and_then(|status| status.conditions.as_deref());
            let target = conditions
                .into_iter()
                .flatten()
                .find(|condition| condition.type_ == "DisruptionTarget");
            let by_preemption = target.is_some_and(|condition| {
                condition.status == "True"
                    && condition.reason.as_deref() == Some("PreemptionByScheduler")
            });
            Phase::Terminating { by_preemption }
        }
    }
}

fn toleration(toleration: &core::Toleration) -> Result<Toleration, Problem> {
    let value = meta::text(toleration.value.as_ref());
    let operator = match toleration.operator.as_deref() {
        None | Some("" | "Equal") => TolerationOperator::Equal(value),
        Some("Exists") => TolerationOperator::Exists,
        Some("Lt") => TolerationOperator::Lt(whole_number(&value)),
        Some("Gt") => TolerationOperator::Gt(whole_number(&value)),
        Some(other) => {
            return Err(Problem::unknown("operator", other, "Equal, Exists, Lt or Gt"));
        }
    };
    let effect = toleration.effect.as_deref().filter(|effect| !effect.is_empty());
    Ok(Toleration {
        key: meta::text(toleration.key.as_ref()),
        operator,
        effect: effect.map(crate::node::effect).transpose()?,
    })
}

pub(crate) fn preemption_policy(policy: Option<&str>) -> Result<PreemptionPolicy, Problem> {
    match policy {
        None | Some("" | "PreemptLowerPriority") => Ok(PreemptionPolicy::LowerPriority),
        Some("Never") => Ok(PreemptionPolicy::Never),
        Some(other) => {
            Err(Problem::unknown("preemptionPolicy", other, "PreemptLowerPriority or Never"))
        }
    }
}

#[cfg(test)]
mod tests;
