//! StatefulSets: ordinals, ordered creation, deletion and updates, and volume claims. Revisions are kept as
//! ControllerRevisions.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    ControllerRevision, StatefulSet, StatefulSetSpec, StatefulSetStatus,
};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::PostParams;
use serde_json::json;

use crate::clock::seconds;
use crate::key::{
    Key, controller, controller_reference, is_already_exists, label, name, namespace, uid,
};
use crate::queue::{Queue, Requeue};
use crate::views::{of_owner, orphans_in};

use super::context::Context;
use super::hash;
use super::pods::{
    self, Claims, available_in, claim, from_template, is_finished, is_ready, is_terminating, phase,
};
use super::replica_set::some;

const COMPONENT: &str = "statefulset-controller";

const REVISION: &str = "controller-revision-hash";
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

#[derive(Debug, Default, PartialEq)]
pub(super) struct StatefulSetActions {
    /// Ordinals of pods to create, and whether from the new template.
    pub(super) create: Vec<(i32, bool)>,
    pub(super) delete: Vec<Arc<Pod>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Revisions {
    pub(super) current: String,
    pub(super) update: String,
}

fn ordinal(set: &ObjectMeta, pod: &Pod) -> Option<i32> {
    let own = name(&pod.metadata).strip_prefix(name(set))?.strip_prefix('-')?;
    own.parse().ok().filter(|ordinal| *ordinal >= 0)
}

fn is_healthy(pod: &Pod) -> bool {
    phase(pod) == "Running" && is_ready(pod) && !is_terminating(pod)
}

fn revision(pod: &Pod) -> &str {
    label(&pod.metadata, REVISION).unwrap_or_default()
}

pub(super) fn plan(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    pods: &[Arc<Pod>],
    revisions: &Revisions,
    now: Timestamp,
) -> StatefulSetActions {
    let mut plan = StatefulSetActions::default();
    if set.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let in_order = spec.pod_management_policy.as_deref() != Some("Parallel");
    let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
    let end = first.saturating_add(spec.replicas.unwrap_or(1).max(0));
    let rolling = spec.update_strategy.as_ref().and_then(|one| one.rolling_update.as_ref());
    let partition = rolling.and_then(|rolling| rolling.partition).unwrap_or(0);
    let min_ready = seconds(spec.min_ready_seconds.unwrap_or(0).into());
    let is_available = |pod: &Pod| {
        is_healthy(pod) && available_in(pod, min_ready, now).is_some_and(|left| left.is_zero())
    };
    let by_ordinal: BTreeMap<i32, &Arc<Pod>> =
        pods.iter().filter_map(|pod| Some((ordinal(&set.metadata, pod)?, pod))).collect();
    for at in first..end {
        match by_ordinal.get(&at) {
            None => {
                let fresh = revisions.current == revisions.update || at >= partition.max(first);
                plan.create.push((at, fresh));
            }
            Some(pod) if is_finished(pod) && !is_terminating(pod) => {
                plan.delete.push(Arc::clone(pod));
            }
            Some(pod) if is_available(pod) => continue,
            Some(_) => {}
        }
        // With ordered management, the next pod waits for this one.
        if in_order {
            return plan;
        }
    }
    let mut beyond: Vec<(i32, &Arc<Pod>)> = by_ordinal
        .iter()
        .filter(|(at, _)| !(first..end).contains(at))
        .map(|(at, pod)| (*at, *pod))
        .collect();
    beyond.sort_by_key(|(at, _)| Reverse(*at));
    for (_, pod) in &beyond {
        if !is_terminating(pod) {
            plan.delete.push(Arc::clone(pod));
        }
        if in_order {
            return plan;
        }
    }
    if !beyond.is_empty() || !plan.create.is_empty() || !plan.delete.is_empty() {
        return plan;
    }
    let strategy = spec.update_strategy.as_ref().and_then(|one| one.type_.as_deref());
    if strategy == Some("OnDelete") {
        return plan;
    }
    let last_first = by_ordinal.iter().rev().filter(|(at, _)| **at >= partition.max(first));
    for (_, pod) in last_first {
        if revision(pod) != revisions.update && !is_terminating(pod) {
            plan.delete.push(Arc::clone(pod));
            return plan;
        }
        if !is_available(pod) {
            return plan;
        }
    }
    plan
}

pub(super) fn status(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    pods: &[Arc<Pod>],
    revisions: &Revisions,
    now: Timestamp,
) -> (StatefulSetStatus, Requeue) {
    let min_ready = seconds(spec.min_ready_seconds.unwrap_or(0).into());
    let alive: Vec<&Arc<Pod>> = pods.iter().filter(|pod| !is_terminating(pod)).collect();
    let count = |wanted: &dyn Fn(&Pod) -> bool| alive.iter().filter(|pod| wanted(pod)).count();
    let waits: Vec<_> = alive.iter().filter_map(|pod| available_in(pod, min_ready, now)).collect();
    let ready = count(&|pod| is_healthy(pod));
    let of_update = count(&|pod| revision(pod) == revisions.update);
    let of_current = count(&|pod| revision(pod) == revisions.current);
    let replicas = pods.len();
    // When all pods are updated, the update revision becomes the current one.
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    let done = of_update == wanted && ready == wanted && replicas == wanted;
    let current = if done { &revisions.update } else { &revisions.current };
    let of_current = if done { of_update } else { of_current };
    let before = set.status.as_ref();
    let status = StatefulSetStatus {
        replicas: i32::try_from(replicas).unwrap_or(i32::MAX),
        ready_replicas: some(ready),
        available_replicas: Some(
            i32::try_from(waits.iter().filter(|left| left.is_zero()).count()).unwrap_or(i32::MAX),
        ),
        current_replicas: some(of_current),
        updated_replicas: some(of_update),
        current_revision: Some(current.clone()),
        update_revision: Some(revisions.update.clone()),
        observed_generation: set.metadata.generation,
        collision_count: before.and_then(|before| before.collision_count).or(Some(0)),
        conditions: before.and_then(|before| before.conditions.clone()),
    };
    let again = waits.into_iter().filter(|left| !left.is_zero()).min();
    (status, again)
}

pub(super) fn wire(context: &Context, queue: &Queue) {
    let views = &context.views;
    let to = queue.clone();
    views.stateful_sets.on_change(move |change| to.add(change.key.clone()));
    let to = queue.clone();
    views.pods.on_change(move |change| {
        for pod in change.both() {
            let owner = controller(&pod.metadata).filter(|owner| owner.kind == "StatefulSet");
            if let Some(owner) = owner {
                to.add(Key::new(namespace(&pod.metadata), &*owner.name));
            }
        }
    });
}

pub(super) async fn reconcile(context: &Context, key: Key) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(set) = views.stateful_sets.get(&key) else { return Ok(None) };
    let Some(spec) = &set.spec else { return Ok(None) };
    let Some(selector) = pods::selector(&spec.selector) else { return Ok(None) };
    let mut candidates = views.pods.by(&of_owner(uid(&set.metadata)));
    let orphans = views.pods.by(&orphans_in(&key.namespace));
    // Only pods with a matching name are adopted.
    candidates.extend(orphans.into_iter().filter(|pod| ordinal(&set.metadata, pod).is_some()));
    let Claims { mine, adopt, release } = claim(&set.metadata, &selector, candidates);
    let reference = controller_reference::<StatefulSet>(&set.metadata);
    context.settle(&views.pods, &adopt, &release, &reference).await?;

    let update = format!("{}-{}", key.name, hash::of(&spec.template, 0));
    keep_revision(context, &set, spec, &update).await?;
    let before = set.status.as_ref().and_then(|status| status.current_revision.clone());
    let current = before.filter(|name| !name.is_empty()).unwrap_or_else(|| update.clone());
    let revisions = Revisions { current, update };
    let plan = plan(&set, spec, &mine, &revisions, context.clock.now());
    for (at, fresh) in &plan.create {
        let template = if *fresh {
            spec.template.clone()
        } else {
            old_template(context, &set, spec, &revisions.current).await?
        };
        let revision = if *fresh { &revisions.update } else { &revisions.current };
        create(context, &set, spec, &template, *at, revision).await?;
    }
    context.delete_pods(COMPONENT, set.as_ref(), &plan.delete).await?;
    let now_there = views.pods.by(&of_owner(uid(&set.metadata)));
    let (status, again) = status(&set, spec, &now_there, &revisions, context.clock.now());
    if set.status.as_ref() != Some(&status) {
        let written = StatefulSet { status: Some(status), ..(*set).clone() };
        context.write_status(&views.stateful_sets, &written).await?;
    }
    Ok(again)
}

async fn create(
    context: &Context,
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    template: &PodTemplateSpec,
    at: i32,
    revision: &str,
) -> Result<(), kube::Error> {
    let own = format!("{}-{at}", name(&set.metadata));
    let mut pod =
        from_template(template, &set.metadata, controller_reference::<StatefulSet>(&set.metadata));
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(own.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), own.clone());
    labels.insert(POD_INDEX.to_owned(), at.to_string());
    labels.insert(REVISION.to_owned(), revision.to_owned());
    if let Some(pod_spec) = &mut pod.spec {
        pod_spec.hostname = Some(own.clone());
        pod_spec.subdomain = spec.service_name.clone().filter(|name| !name.is_empty());
    }
    for wanted in spec.volume_claim_templates.iter().flatten() {
        let volume = name(&wanted.metadata).to_owned();
        let claim_name = format!("{volume}-{own}");
        let mut claim = wanted.clone();
        claim.metadata.name = Some(claim_name.clone());
        claim.metadata.namespace = set.metadata.namespace.clone();
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.extend(spec.selector.match_labels.clone().unwrap_or_default());
        claim.status = None;
        let claims = context.api::<PersistentVolumeClaim>(namespace(&set.metadata));
        match claims.create(&PostParams::default(), &claim).await {
            Err(error) if !is_already_exists(&error) => return Err(error),
            _ => {}
        }
        let volumes = pod.spec.get_or_insert_default().volumes.get_or_insert_default();
        volumes.retain(|one| one.name != volume);
        let source = PersistentVolumeClaimVolumeSource { claim_name, read_only: None };
        volumes.push(Volume {
            name: volume,
            persistent_volume_claim: Some(source),
            ..Volume::default()
        });
    }
    match context.create(&context.views.pods, &pod).await {
        Err(error) if is_already_exists(&error) => Ok(()),
        created => context.created(COMPONENT, set, created),
    }
}

/// Stores a template as a ControllerRevision.
async fn keep_revision(
    context: &Context,
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    revision: &str,
) -> Result<(), kube::Error> {
    let status = set.status.as_ref();
    if status.and_then(|status| status.update_revision.as_deref()) == Some(revision) {
        return Ok(());
    }
    let kept = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(revision.to_owned()),
            namespace: set.metadata.namespace.clone(),
            labels: spec.selector.match_labels.clone(),
            owner_references: Some(vec![controller_reference::<StatefulSet>(&set.metadata)]),
            ..ObjectMeta::default()
        },
        revision: set.metadata.generation.unwrap_or(1),
        data: Some(RawExtension(json!({ "spec": { "template": spec.template } }))),
    };
    let revisions = context.api::<ControllerRevision>(namespace(&set.metadata));
    match revisions.create(&PostParams::default(), &kept).await {
        Err(error) if !is_already_exists(&error) => Err(error),
        _ => Ok(()),
    }
}

/// The template of an earlier revision; the set's own if it is not stored.
async fn old_template(
    context: &Context,
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    revision: &str,
) -> Result<PodTemplateSpec, kube::Error> {
    let revisions = context.api::<ControllerRevision>(namespace(&set.metadata));
    let kept = revisions.get_opt(revision).await?;
    let data = kept.and_then(|kept| kept.data);
    let template = data.and_then(|RawExtension(data)| {
        serde_json::from_value(data.get("spec")?.get("template")?.clone()).ok()
    });
    Ok(template.unwrap_or_else(|| spec.template.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::fixtures::{PodBuilder, pod};
    use serde_json::{Value, from_value};

    fn set(replicas: i32, more: Value) -> StatefulSet {
        let mut spec = json!({
            "replicas": replicas, "selector": {}, "serviceName": "db",
            "template": { "spec": { "containers": [{ "name": "c", "image": "i" }] } },
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let meta = json!({ "name": "db", "namespace": "default", "uid": "db-uid" });
        from_value(json!({ "metadata": meta, "spec": spec })).unwrap()
    }

    fn ready(at: i32, revision: &str) -> PodBuilder {
        pod(&format!("db-{at}")).on("n").ready_at(1).labelled(REVISION, revision)
    }

    fn next(set: &StatefulSet, pods: &[Arc<Pod>]) -> (Vec<i32>, Vec<String>) {
        let revisions = Revisions { current: "old".to_owned(), update: "new".to_owned() };
        let now = Timestamp::from_second(100).unwrap();
        let plan = plan(set, set.spec.as_ref().unwrap(), pods, &revisions, now);
        let deleted = plan.delete.iter().map(|pod| name(&pod.metadata).to_owned());
        (plan.create.into_iter().map(|(at, _)| at).collect(), deleted.collect())
    }

    #[test]
    fn pods_come_one_after_the_other_unless_told_otherwise() {
        let ordered = set(3, json!({}));
        assert_eq!(next(&ordered, &[]), (vec![0], vec![]));
        let starting = pod("db-0").on("n").phase("Pending").arc();
        assert_eq!(next(&ordered, &[starting]), (vec![], vec![]));
        assert_eq!(next(&ordered, &[ready(0, "new").arc()]), (vec![1], vec![]));
        let parallel = set(3, json!({ "podManagementPolicy": "Parallel" }));
        assert_eq!(next(&parallel, &[]), (vec![0, 1, 2], vec![]));
        let shifted = set(2, json!({ "ordinals": { "start": 5 } }));
        assert_eq!(next(&shifted, &[]), (vec![5], vec![]));
    }

    #[test]
    fn the_last_goes_first_and_a_failed_one_is_replaced() {
        let pods: Vec<_> = (0..4).map(|at| ready(at, "new").arc()).collect();
        assert_eq!(next(&set(2, json!({})), &pods), (vec![], vec!["db-3".to_owned()]));
        let failed = [pod("db-0").phase("Failed").arc()];
        assert_eq!(next(&set(2, json!({})), &failed), (vec![], vec!["db-0".to_owned()]));
    }

    #[test]
    fn pods_are_renewed_from_the_last_down_to_the_partition() {
        let mut pods: Vec<_> = (0..3).map(|at| ready(at, "old").arc()).collect();
        let all = set(3, json!({}));
        assert_eq!(next(&all, &pods).1, ["db-2"]);
        pods[2] = pod("db-2").on("n").phase("Pending").labelled(REVISION, "new").arc();
        assert!(next(&all, &pods).1.is_empty(), "the new one has to be well first");
        pods[2] = ready(2, "new").arc();
        assert_eq!(next(&all, &pods).1, ["db-1"]);
        let part = set(3, json!({ "updateStrategy": { "rollingUpdate": { "partition": 2 } } }));
        assert!(next(&part, &pods).1.is_empty());
        let by_hand = set(3, json!({ "updateStrategy": { "type": "OnDelete" } }));
        assert!(next(&by_hand, &pods).1.is_empty());
    }
}
