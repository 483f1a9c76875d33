//! DaemonSets: one pod on every matching node, and rolling updates.
//!
//! A pod is tied to its node by node affinity and bound by the scheduler, as in Kubernetes.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::Lower as _;
use berth_model::node::Node as Model;
use berth_model::spec::PodSpec;
use berth_model::taint::Effect;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PodTemplateSpec, Toleration,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::clock::seconds;
use crate::key::{Key, controller, controller_reference, label, name, namespace, uid};
use crate::queue::{Queue, Requeue};
use crate::views::{of_owner, orphans_in};

use super::context::Context;
use super::deployment::scaled;
use super::hash;
use super::pods::{
    self, Claims, available_in, claim, from_template, is_finished, is_ready, is_terminating,
    node_of,
};
use super::replica_set::some;

const COMPONENT: &str = "daemonset-controller";

const REVISION: &str = "controller-revision-hash";

/// Taints that pods of DaemonSets tolerate.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

#[derive(Debug, Default, PartialEq)]
pub(super) struct DaemonSetActions {
    pub(super) create: Vec<String>,
    pub(super) delete: Vec<Arc<Pod>>,
    pub(super) status: DaemonSetStatus,
    pub(super) again: Requeue,
}

/// The template with the tolerations of all DaemonSet pods.
fn tolerant(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    let spec = template.spec.get_or_insert_default();
    let host_network = spec.host_network == Some(true);
    let tolerations = spec.tolerations.get_or_insert_default();
    let network = ("node.kubernetes.io/network-unavailable", "NoSchedule");
    for (key, effect) in TOLERATED.into_iter().chain(host_network.then_some(network)) {
        let known = |one: &Toleration| {
            one.key.as_deref() == Some(key) && one.effect.as_deref() == Some(effect)
        };
        if !tolerations.iter().any(known) {
            tolerations.push(Toleration {
                key: Some(key.to_owned()),
                operator: Some("Exists".to_owned()),
                effect: Some(effect.to_owned()),
                ..Toleration::default()
            });
        }
    }
    template
}

fn for_node(template: &PodTemplateSpec, node: &str) -> PodTemplateSpec {
    let mut template = template.clone();
    let spec = template.spec.get_or_insert_default();
    let field = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity = spec.affinity.get_or_insert_with(Affinity::default);
    let of_nodes = affinity.node_affinity.get_or_insert_with(NodeAffinity::default);
    let required = of_nodes.required_during_scheduling_ignored_during_execution.take();
    let mut terms = required.map(|required| required.node_selector_terms).unwrap_or_default();
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in &mut terms {
        term.match_fields = Some(vec![field.clone()]);
    }
    let required = NodeSelector { node_selector_terms: terms };
    of_nodes.required_during_scheduling_ignored_during_execution = Some(required);
    template
}

/// Whether a pod should run on a node, and whether a running one may stay.
fn belongs(pod: &PodSpec, node: &Model) -> (bool, bool) {
    let terms = pod.node_affinity.required.as_ref();
    let wanted = terms.is_none_or(|terms| terms.iter().any(|term| term.matches(node)));
    if !wanted || !node.labels.contains_all(&pod.node_selector) {
        return (false, false);
    }
    let tolerated = |effect: &dyn Fn(Effect) -> bool| {
        let mut taints = node.taints.iter().filter(|taint| effect(taint.effect));
        taints.all(|taint| pod.tolerations.iter().any(|one| one.tolerates(taint)))
    };
    (tolerated(&Effect::is_hard), tolerated(&|effect| effect == Effect::NoExecute))
}

/// The node that a pod is bound to or has affinity for.
fn target(pod: &Pod) -> Option<&str> {
    if let Some(node) = node_of(pod) {
        return Some(node);
    }
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = required.node_selector_terms.first()?.match_fields.as_ref()?;
    fields.first()?.values.as_ref()?.first().map(String::as_str)
}

pub(super) fn plan(
    set: &DaemonSet,
    spec: &DaemonSetSpec,
    nodes: &[Arc<Node>],
    pods: &[Arc<Pod>],
    hash: &str,
    now: Timestamp,
) -> DaemonSetActions {
    let template = tolerant(&spec.template);
    let sample = Pod { metadata: set.metadata.clone(), spec: template.spec, status: None };
    let Ok(sample) = sample.lower() else { return DaemonSetActions::default() };
    let min_ready = seconds(spec.min_ready_seconds.unwrap_or(0).into());
    let mut by_node: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
    for pod in pods {
        by_node.entry(target(pod).unwrap_or_default()).or_default().push(pod);
    }
    let mut plan = DaemonSetActions::default();
    let (mut old, mut unavailable) = (Vec::new(), 0_usize);
    let mut updated = 0_usize;
    let mut available = 0_usize;
    let status = &mut plan.status;
    for node in nodes {
        let Ok(model) = node.lower() else { continue };
        let (should, may_stay) = belongs(&sample.spec, &model);
        let mut here = by_node.remove(name(&node.metadata)).unwrap_or_default();
        here.sort_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0));
        let (ended, alive): (Vec<_>, Vec<_>) = here.into_iter().partition(|pod| is_finished(pod));
        plan.delete.extend(ended.into_iter().filter(|pod| !is_terminating(pod)).cloned());
        let mut alive = alive.into_iter();
        let first = alive.next();
        plan.delete.extend(alive.filter(|pod| !is_terminating(pod)).cloned());
        status.desired_number_scheduled += i32::from(should);
        match first {
            None if should => {
                plan.create.push(name(&node.metadata).to_owned());
                unavailable += 1;
            }
            None => {}
            Some(pod) if should => {
                status.current_number_scheduled += 1;
                status.number_ready += i32::from(is_ready(pod));
                let wait = available_in(pod, min_ready, now).filter(|_| !is_terminating(pod));
                plan.again = plan.again.into_iter().chain(wait).filter(|one| !one.is_zero()).min();
                let is_available = wait.is_some_and(|wait| wait.is_zero());
                available += usize::from(is_available);
                unavailable += usize::from(!is_available);
                match label(&pod.metadata, REVISION) == Some(hash) {
                    true => updated += 1,
                    false if !is_terminating(pod) => old.push((is_available, pod)),
                    false => {}
                }
            }
            Some(pod) => {
                status.number_misscheduled += 1;
                if !may_stay && !is_terminating(pod) {
                    plan.delete.push(Arc::clone(pod));
                }
            }
        }
    }
    let wanted = usize::try_from(status.desired_number_scheduled).unwrap_or(0);
    status.number_available = some(available);
    status.number_unavailable = some(wanted.saturating_sub(available));
    status.updated_number_scheduled = some(updated);
    status.observed_generation = set.metadata.generation;
    let before = set.status.as_ref();
    status.collision_count = before.and_then(|before| before.collision_count);
    status.conditions = before.and_then(|before| before.conditions.clone());
    renew(&mut plan, spec, old, unavailable, wanted);
    if set.metadata.deletion_timestamp.is_some() {
        plan.create.clear();
        plan.delete.clear();
    }
    plan
}

/// Deletes old pods: unavailable ones first, others as `maxUnavailable` allows.
fn renew(
    plan: &mut DaemonSetActions,
    spec: &DaemonSetSpec,
    mut old: Vec<(bool, &Arc<Pod>)>,
    unavailable: usize,
    wanted: usize,
) {
    let strategy = spec.update_strategy.as_ref();
    if strategy.and_then(|one| one.type_.as_deref()) == Some("OnDelete") {
        return;
    }
    let rolling = strategy.and_then(|one| one.rolling_update.as_ref());
    let one = IntOrString::Int(1);
    let most = rolling.and_then(|rolling| rolling.max_unavailable.as_ref()).unwrap_or(&one);
    let most = scaled(most, i32::try_from(wanted).unwrap_or(i32::MAX), true);
    let mut room = usize::try_from(most.max(1)).unwrap_or(1).saturating_sub(unavailable);
    old.sort_by_key(|(is_available, pod)| (*is_available, name(&pod.metadata)));
    for (is_available, pod) in old {
        if is_available {
            if room == 0 {
                continue;
            }
            room -= 1;
        }
        plan.delete.push(Arc::clone(pod));
    }
}

pub(super) fn wire(context: &Context, queue: &Queue) {
    let views = &context.views;
    let to = queue.clone();
    views.daemon_sets.on_change(move |change| to.add(change.key.clone()));
    let (to, sets) = (queue.clone(), Arc::clone(&views.daemon_sets));
    views.nodes.on_change(move |change| {
        let matters = |node: &Arc<Node>| {
            let spec = node.spec.clone().unwrap_or_default();
            (node.metadata.labels.clone(), spec.taints, spec.unschedulable)
        };
        if change.old.as_ref().map(matters) != change.new.as_ref().map(matters) {
            sets.all().iter().for_each(|set| to.add(Key::of(&set.metadata)));
        }
    });
    let to = queue.clone();
    views.pods.on_change(move |change| {
        for pod in change.both() {
            let owner = controller(&pod.metadata).filter(|owner| owner.kind == "DaemonSet");
            if let Some(owner) = owner {
                to.add(Key::new(namespace(&pod.metadata), &*owner.name));
            }
        }
    });
}

pub(super) async fn reconcile(context: &Context, key: Key) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(set) = views.daemon_sets.get(&key) else { return Ok(None) };
    let Some(spec) = &set.spec else { return Ok(None) };
    let Some(selector) = pods::selector(&spec.selector) else { return Ok(None) };
    let mut candidates = views.pods.by(&of_owner(uid(&set.metadata)));
    candidates.extend(views.pods.by(&orphans_in(&key.namespace)));
    let Claims { mine, adopt, release } = claim(&set.metadata, &selector, candidates);
    let reference = controller_reference::<DaemonSet>(&set.metadata);
    context.settle(&views.pods, &adopt, &release, &reference).await?;
    let hash = hash::of(&spec.template, 0);
    let plan = plan(&set, spec, &views.nodes.all(), &mine, &hash, context.clock.now());
    let template = tolerant(&spec.template);
    let pod = |node: &String| {
        let template = for_node(&template, node);
        let mut pod = from_template(&template, &set.metadata, reference.clone());
        pod.metadata.labels.get_or_insert_default().insert(REVISION.to_owned(), hash.clone());
        pod
    };
    let pods = plan.create.iter().map(pod).collect();
    let made = context.create_pods(COMPONENT, set.as_ref(), pods).await;
    context.delete_pods(COMPONENT, set.as_ref(), &plan.delete).await?;
    if set.status.as_ref() != Some(&plan.status) {
        let written = DaemonSet { status: Some(plan.status), ..(*set).clone() };
        context.write_status(&views.daemon_sets, &written).await?;
    }
    made?;
    Ok(plan.again)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::fixtures::pod;
    use serde_json::{Value, from_value, json};

    fn set(more: Value) -> DaemonSet {
        from_value(json!({
            "metadata": { "name": "agent", "namespace": "default", "uid": "agent-uid" },
            "spec": {
                "selector": {}, "updateStrategy": more,
                "template": { "spec": {
                    "nodeSelector": { "gpu": "yes" },
                    "containers": [{ "name": "c", "image": "i" }],
                } },
            },
        }))
        .unwrap()
    }

    fn node(name: &str, taints: Value) -> Arc<Node> {
        let meta = json!({ "name": name, "labels": { "gpu": "yes" } });
        Arc::new(from_value(json!({ "metadata": meta, "spec": { "taints": taints } })).unwrap())
    }

    fn next(set: &DaemonSet, nodes: &[Arc<Node>], pods: &[Arc<Pod>]) -> DaemonSetActions {
        let now = Timestamp::from_second(100).unwrap();
        plan(set, set.spec.as_ref().unwrap(), nodes, pods, "new", now)
    }

    #[test]
    fn every_node_that_is_meant_gets_one_pod() {
        let silent = json!([{ "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" }]);
        let kept = json!([{ "key": "other", "effect": "NoSchedule" }]);
        let nodes = [node("a", json!([])), node("b", silent), node("c", kept)];
        let plan = next(&set(json!({})), &nodes, &[]);
        assert_eq!(
            (plan.create, plan.status.desired_number_scheduled),
            (vec!["a".into(), "b".into()], 2)
        );
        let template = for_node(&tolerant(&set(json!({})).spec.unwrap().template), "a");
        let there = Pod { spec: template.spec, ..Pod::default() };
        assert_eq!(target(&there), Some("a"));
    }

    #[test]
    fn old_pods_go_a_few_at_a_time() {
        let nodes: Vec<_> = ["a", "b", "c"].map(|name| node(name, json!([]))).into();
        let on = |node: &str| pod(node).on(node).ready_at(1).labelled(REVISION, "old").arc();
        let pods = [on("a"), on("b"), on("c")];
        assert_eq!(next(&set(json!({})), &nodes, &pods).delete.len(), 1);
        let two = json!({ "rollingUpdate": { "maxUnavailable": 2 } });
        assert_eq!(next(&set(two), &nodes, &pods).delete.len(), 2);
        assert!(next(&set(json!({ "type": "OnDelete" })), &nodes, &pods).delete.is_empty());
        let new = pod("a").on("a").phase("Pending").labelled(REVISION, "new").arc();
        let waiting = next(&set(json!({})), &nodes, &[new, on("b"), on("c")]);
        assert!(waiting.delete.is_empty(), "one is missing already");
        assert_eq!(waiting.status.updated_number_scheduled, Some(1));
    }
}
