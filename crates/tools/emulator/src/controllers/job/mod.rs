//! Jobs: the loop, and the order of writes; [`plan`] decides.
//!
//! Pods carry the finalizer `batch.kubernetes.io/job-tracking` until they are counted. A finished pod is first
//! listed as uncounted in the status, then its finalizer is removed, then it is counted. So no pod is lost or
//! counted twice, whenever this process stops.
//!
//! Failure policies, success policies and backoff limits by index are ignored.

mod indexes;
mod plan;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::events::Note;
use crate::key::{
    Key, controller, controller_reference, delete_this, has_finalizer, name, namespace, uid,
    unless_gone,
};
use crate::queue::{Queue, Requeue};
use crate::views::{of_owner, orphans_in};

use super::context::{Context, each};
use super::pods::{self, Claims, claim, from_template};
use plan::JobActions;

const COMPONENT: &str = "job-controller";

/// Finalizer of a Job's pods until they are counted.
pub(super) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";

pub(super) fn wire(context: &Context, queue: &Queue) {
    let to = queue.clone();
    context.views.jobs.on_change(move |change| to.add(change.key.clone()));
    let (to, jobs) = (queue.clone(), Arc::clone(&context.views.jobs));
    context.views.pods.on_change(move |change| {
        for pod in change.both() {
            let here = namespace(&pod.metadata);
            match controller(&pod.metadata) {
                Some(owner) if owner.kind == "Job" => to.add(Key::new(here, &*owner.name)),
                Some(_) => {}
                None => {
                    for job in jobs.in_namespace(here) {
                        let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                        let selector = selector.and_then(pods::selector);
                        if selector.is_some_and(|one| pods::selects(&one, &pod.metadata)) {
                            to.add(Key::of(&job.metadata));
                        }
                    }
                }
            }
        }
    });
}

pub(super) async fn reconcile(
    context: &Context,
    backoff: Duration,
    key: Key,
) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(job) = views.jobs.get(&key) else {
        return release_orphans(context, &key).await.map(|()| None);
    };
    let Some(spec) = &job.spec else { return Ok(None) };
    let reference = controller_reference::<Job>(&job.metadata);
    let owned = views.pods.by(&of_owner(uid(&job.metadata)));
    let mine = match spec.selector.as_ref().and_then(pods::selector) {
        None => owned,
        Some(selector) => {
            let orphans = views.pods.by(&orphans_in(&key.namespace));
            let candidates = owned.into_iter().chain(orphans);
            let Claims { mine, adopt, release } = claim(&job.metadata, &selector, candidates);
            context.settle(&views.pods, &adopt, &release, &reference).await?;
            mine
        }
    };
    let JobActions { create, delete, kill, status, again, remove_job } =
        plan::plan(&job, spec, &mine, context.clock.now(), backoff);
    if remove_job {
        context.delete_with(&views.jobs, job.as_ref(), &delete_this(&job.metadata)).await?;
        return Ok(None);
    }
    each(&delete, |pod| forget_and_delete(context, pod)).await?;
    context.delete_pods(COMPONENT, job.as_ref(), &kill).await?;
    let counted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let pods = create.iter().map(|at| pod(&job, *at)).collect();
    let made = context.create_pods(COMPONENT, job.as_ref(), pods).await;
    if let Some(note) = end_note(&job, &status) {
        context.events.record(COMPONENT, job.as_ref(), note);
    }
    if job.status.as_ref() != Some(&status) {
        let written = Job { status: Some(status), ..(*job).clone() };
        context.write_status(&views.jobs, &written).await?;
    }
    let written = |pod: &&Arc<Pod>| {
        let id = uid(&pod.metadata).to_owned();
        let lists = [&counted.succeeded, &counted.failed];
        has_finalizer(&pod.metadata, TRACKING)
            && lists.into_iter().flatten().any(|list| list.contains(&id))
    };
    let ended: Vec<Arc<Pod>> = mine.iter().filter(written).cloned().collect();
    each(&ended, |pod| release(context, pod)).await?;
    made?;
    Ok(again)
}

/// The Event for a Job that has ended with this status.
fn end_note(job: &Job, status: &JobStatus) -> Option<Note> {
    let ended = |status: &JobStatus| {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let ends = |one: &&JobCondition| {
            matches!(one.type_.as_str(), "Complete" | "Failed") && one.status == "True"
        };
        conditions.iter().find(ends).cloned()
    };
    if job.status.as_ref().and_then(ended).is_some() {
        return None;
    }
    let end = ended(status)?;
    if end.type_ == "Complete" {
        return Some(Note::normal("Completed", "Job completed"));
    }
    let reason = match end.reason.as_deref() {
        Some("DeadlineExceeded") => "DeadlineExceeded",
        _ => "BackoffLimitExceeded",
    };
    Some(Note::warning(reason, end.message.unwrap_or_default()))
}

/// Removes the finalizer from pods of a deleted Job.
async fn release_orphans(context: &Context, key: &Key) -> Result<(), kube::Error> {
    let left: Vec<Arc<Pod>> = context.views.pods.in_namespace(&key.namespace);
    let of_job = |pod: &Arc<Pod>| {
        has_finalizer(&pod.metadata, TRACKING)
            && controller(&pod.metadata)
                .is_some_and(|owner| owner.kind == "Job" && owner.name == key.name)
    };
    let left: Vec<Arc<Pod>> = left.into_iter().filter(of_job).collect();
    each(&left, |pod| release(context, pod)).await
}

/// Deletes a surplus pod, without counting it as failed.
async fn forget_and_delete(context: &Context, pod: &Arc<Pod>) -> Result<(), kube::Error> {
    release(context, pod).await?;
    context.delete(&context.views.pods, pod.as_ref()).await
}

async fn release(context: &Context, pod: &Arc<Pod>) -> Result<(), kube::Error> {
    let meta = &pod.metadata;
    if !has_finalizer(meta, TRACKING) {
        return Ok(());
    }
    let left: Vec<&String> =
        meta.finalizers.iter().flatten().filter(|one| *one != TRACKING).collect();
    let change = json!({ "metadata": {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "finalizers": left,
    }});
    let api = context.api::<Pod>(namespace(meta));
    match api.patch(name(meta), &PatchParams::default(), &Patch::Merge(&change)).await {
        Ok(patched) => {
            context.views.pods.observe(patched);
            Ok(())
        }
        // A changed pod is reconciled again; a deleted one needs nothing.
        Err(error) if crate::key::is_conflict(&error) => Err(error),
        Err(error) => unless_gone(Err(error)).map(|_: Option<()>| ()),
    }
}

/// A pod of the Job, with a completion index if the Job is indexed.
fn pod(job: &Job, index: Option<i32>) -> Pod {
    let template = job.spec.as_ref().map(|spec| &spec.template);
    let empty = Default::default();
    let reference = controller_reference::<Job>(&job.metadata);
    let mut pod = from_template(template.unwrap_or(&empty), &job.metadata, reference);
    pod.metadata.finalizers.get_or_insert_default().push(TRACKING.to_owned());
    let Some(index) = index else { return pod };
    let own_name = name(&job.metadata);
    pod.metadata.generate_name = Some(format!("{own_name}-{index}-"));
    for map in [&mut pod.metadata.labels, &mut pod.metadata.annotations] {
        map.get_or_insert_default().insert(INDEX.to_owned(), index.to_string());
    }
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(format!("{own_name}-{index}"));
        let containers = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
        for container in containers {
            let env = container.env.get_or_insert_default();
            if env.iter().all(|variable| variable.name != "JOB_COMPLETION_INDEX") {
                env.push(index_variable());
            }
        }
    }
    pod
}

fn index_variable() -> EnvVar {
    let field = ObjectFieldSelector {
        api_version: None,
        field_path: format!("metadata.labels['{INDEX}']"),
    };
    EnvVar {
        name: "JOB_COMPLETION_INDEX".to_owned(),
        value: None,
        value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
    }
}
