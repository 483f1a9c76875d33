//! Deployments: the loop. [`rollout`] decides the next steps, [`status`] computes the status.

mod rollout;
mod status;

use std::cmp::Ordering;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;

use crate::events::Note;
use crate::key::{
    Key, controller, controller_reference, is_already_exists, is_controlled_by, name, namespace,
    uid,
};
use crate::queue::{Queue, Requeue};
use crate::views::{of_owner, orphans_in};

use super::context::Context;
use super::pods::{self, Claims, claim};
pub(super) use rollout::scaled;
use rollout::{Sets, Step};

pub(super) fn wire(context: &Context, queue: &Queue) {
    let views = &context.views;
    let to = queue.clone();
    views.deployments.on_change(move |change| to.add(change.key.clone()));
    let (to, deployments) = (queue.clone(), Arc::clone(&views.deployments));
    views.replica_sets.on_change(move |change| {
        for set in change.both() {
            let here = namespace(&set.metadata);
            match controller(&set.metadata) {
                Some(owner) if owner.kind == "Deployment" => to.add(Key::new(here, &*owner.name)),
                Some(_) => {}
                None => {
                    for one in deployments.in_namespace(here) {
                        let selector = one.spec.as_ref().map(|spec| &spec.selector);
                        let selector = selector.and_then(pods::selector);
                        if selector.is_some_and(|found| pods::selects(&found, &set.metadata)) {
                            to.add(Key::of(&one.metadata));
                        }
                    }
                }
            }
        }
    });
    // A Deployment with strategy Recreate waits for the last old pod to go.
    let (to, sets) = (queue.clone(), Arc::clone(&views.replica_sets));
    views.pods.on_change(move |change| {
        if let (Some(pod), None) = (&change.old, &change.new)
            && let Some(owner) = controller(&pod.metadata)
            && owner.kind == "ReplicaSet"
        {
            let here = namespace(&pod.metadata);
            let set = sets.get(&Key::new(here, &*owner.name));
            let above = set.as_ref().and_then(|set| controller(&set.metadata));
            if let Some(above) = above.filter(|above| above.kind == "Deployment") {
                to.add(Key::new(here, &*above.name));
            }
        }
    });
}

pub(super) async fn reconcile(context: &Context, key: Key) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(deployment) = views.deployments.get(&key) else { return Ok(None) };
    let Some(spec) = &deployment.spec else { return Ok(None) };
    let Some(selector) = pods::selector(&spec.selector) else { return Ok(None) };
    let mut candidates = views.replica_sets.by(&of_owner(uid(&deployment.metadata)));
    candidates.extend(views.replica_sets.by(&orphans_in(&key.namespace)));
    let Claims { mine, adopt, release } = claim(&deployment.metadata, &selector, candidates);
    let reference = controller_reference::<Deployment>(&deployment.metadata);
    context.settle(&views.replica_sets, &adopt, &release, &reference).await?;

    let pods: Vec<Arc<Pod>> =
        mine.iter().flat_map(|set| views.pods.by(&of_owner(uid(&set.metadata)))).collect();
    let sets = Sets::of(spec, mine);
    let mut collided = None;
    if deployment.metadata.deletion_timestamp.is_none() {
        for step in rollout::steps(&deployment, spec, &sets, &pods) {
            collided = act(context, &deployment, spec, step).await?.or(collided);
        }
    }
    finish(context, &key, collided).await
}

/// Performs one step. Returns a new collision count if the set's name is taken.
async fn act(
    context: &Context,
    deployment: &Deployment,
    spec: &DeploymentSpec,
    step: Step,
) -> Result<Option<i32>, kube::Error> {
    let sets = &context.views.replica_sets;
    match step {
        Step::Create(set) => match context.create(sets, &set).await {
            Ok(set) => {
                record_scaling(context, deployment, &set, 0);
                Ok(None)
            }
            Err(error) if is_already_exists(&error) => {
                let there = sets.get(&Key::of(&set.metadata));
                let same = |there: &Arc<ReplicaSet>| {
                    is_controlled_by(&there.metadata, &deployment.metadata)
                        && rollout::is_of_template(there, &spec.template)
                };
                match there {
                    Some(there) if same(&there) => Ok(None),
                    // The name is taken: a higher collision count gives another hash.
                    Some(_) => {
                        let status = deployment.status.as_ref();
                        let before = status.and_then(|status| status.collision_count);
                        Ok(Some(before.unwrap_or(0).saturating_add(1)))
                    }
                    None => Err(error),
                }
            }
            Err(error) => Err(error),
        },
        Step::Replace(set) => {
            let before = sets.get(&Key::of(&set.metadata)).map(|set| rollout::replicas(&set));
            let written = context.replace(sets, &set).await?;
            record_scaling(context, deployment, &written, before.unwrap_or(0));
            Ok(None)
        }
        Step::Delete(set) => context.delete(sets, set.as_ref()).await.map(|()| None),
        Step::Annotate(annotations) => {
            let mut changed = deployment.clone();
            changed.metadata.annotations = Some(annotations);
            context.replace(&context.views.deployments, &changed).await.map(|_| None)
        }
    }
}

fn record_scaling(context: &Context, deployment: &Deployment, set: &ReplicaSet, before: i32) {
    let after = rollout::replicas(set);
    let direction = match after.cmp(&before) {
        Ordering::Greater => "up",
        Ordering::Less => "down",
        Ordering::Equal => return,
    };
    let set = name(&set.metadata);
    let text = format!("Scaled {direction} replica set {set} from {before} to {after}");
    let note = Note::normal("ScalingReplicaSet", text);
    context.events.record("deployment-controller", deployment, note);
}

/// Writes the status after the steps.
async fn finish(
    context: &Context,
    key: &Key,
    collisions: Option<i32>,
) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(deployment) = views.deployments.get(key) else { return Ok(None) };
    let Some(spec) = &deployment.spec else { return Ok(None) };
    let sets = Sets::of(spec, views.replica_sets.by(&of_owner(uid(&deployment.metadata))));
    let (mut status, again) = status::status(&deployment, spec, &sets, context.clock.now());
    status.collision_count = collisions.or(status.collision_count);
    if deployment.status.as_ref() != Some(&status) {
        let written = Deployment { status: Some(status), ..(*deployment).clone() };
        context.write_status(&views.deployments, &written).await?;
    }
    Ok(again)
}
