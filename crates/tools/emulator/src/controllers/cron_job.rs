//! CronJobs: when a Job is due, how many may run at once, and how many finished ones are kept.

mod schedule;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::clock::{seconds, until};
use crate::events::Note;
use crate::key::{Key, controller, controller_reference, is_already_exists, name, namespace, uid};
use crate::queue::{Queue, Requeue};
use crate::views::of_owner;

use super::context::{Context, each};
use schedule::Schedule;

const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

#[derive(Debug, Default)]
pub(super) struct CronJobActions {
    /// The time a Job is made for.
    pub(super) create: Option<Timestamp>,
    pub(super) delete: Vec<Arc<Job>>,
    pub(super) status: CronJobStatus,
    pub(super) again: Requeue,
}

fn end(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let end = conditions
        .iter()
        .find(|one| matches!(one.type_.as_str(), "Complete" | "Failed") && one.status == "True")?;
    Some(end.type_.as_str())
}

/// The next actions of a CronJob. Of several missed times only the last gets a Job.
pub(super) fn plan(
    cron: &CronJob,
    spec: &CronJobSpec,
    jobs: &[Arc<Job>],
    now: Timestamp,
) -> CronJobActions {
    let active: Vec<&Arc<Job>> = jobs.iter().filter(|job| end(job).is_none()).collect();
    let before = cron.status.clone().unwrap_or_default();
    let mut plan = CronJobActions { delete: outlived(spec, jobs), ..CronJobActions::default() };
    let completed = jobs.iter().filter(|job| end(job) == Some("Complete"));
    let completed = completed.filter_map(|job| job.status.as_ref()?.completion_time.clone()).max();
    plan.status = CronJobStatus {
        active: Some(active.iter().map(|job| reference(job)).collect::<Vec<_>>())
            .filter(|list| !list.is_empty()),
        last_schedule_time: before.last_schedule_time.clone(),
        last_successful_time: completed.max(before.last_successful_time),
    };
    let schedule = Schedule::read(&spec.schedule);
    let zone = spec.time_zone.as_deref().map_or(Ok(TimeZone::UTC), TimeZone::get);
    let (Some(schedule), Ok(zone)) = (schedule, zone) else { return plan };
    if spec.suspend == Some(true) || cron.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let created = cron.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let last = before.last_schedule_time.map_or(created, |time| time.0);
    let earliest = match spec.starting_deadline_seconds {
        Some(limit) => last.max(now.checked_sub(seconds(limit)).unwrap_or(last)),
        None => last,
    };
    let (due, next) = schedule.last_and_next(earliest, now, &zone);
    plan.again = next.map(|next| until(now, next).max(Duration::from_millis(10)));
    let Some(due) = due else { return plan };
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => return plan,
        Some("Replace") => plan.delete.extend(active.iter().map(|job| Arc::clone(job))),
        _ => {}
    }
    plan.create = Some(due);
    plan.status.last_schedule_time = Some(Time(due));
    plan
}

/// Finished Jobs beyond the history limits, oldest first.
fn outlived(spec: &CronJobSpec, jobs: &[Arc<Job>]) -> Vec<Arc<Job>> {
    let kept = [
        ("Complete", spec.successful_jobs_history_limit.unwrap_or(3)),
        ("Failed", spec.failed_jobs_history_limit.unwrap_or(1)),
    ];
    let mut gone = Vec::new();
    for (kind, limit) in kept {
        let mut ended: Vec<&Arc<Job>> = jobs.iter().filter(|job| end(job) == Some(kind)).collect();
        ended.sort_by_key(|job| {
            let start = job.status.as_ref().and_then(|status| status.start_time.clone());
            (start, name(&job.metadata))
        });
        let excess = ended.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        gone.extend(ended.into_iter().take(excess).cloned());
    }
    gone
}

fn reference(job: &Job) -> ObjectReference {
    ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("Job".to_owned()),
        name: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        resource_version: job.metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}

fn job(cron: &CronJob, spec: &CronJobSpec, due: Timestamp) -> Job {
    let template = &spec.job_template;
    let of_template = template.metadata.clone().unwrap_or_default();
    let mut annotations = of_template.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED_AT.to_owned(), due.to_string());
    // The name contains the time, so no Job is created twice.
    let own = format!("{}-{}", name(&cron.metadata), due.as_second() / 60);
    Job {
        metadata: ObjectMeta {
            name: Some(own),
            namespace: cron.metadata.namespace.clone(),
            labels: of_template.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference::<CronJob>(&cron.metadata)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

pub(super) fn wire(context: &Context, queue: &Queue) {
    let views = &context.views;
    let to = queue.clone();
    views.cron_jobs.on_change(move |change| to.add(change.key.clone()));
    let to = queue.clone();
    views.jobs.on_change(move |change| {
        for job in change.both() {
            let owner = controller(&job.metadata).filter(|owner| owner.kind == "CronJob");
            if let Some(owner) = owner {
                to.add(Key::new(namespace(&job.metadata), &*owner.name));
            }
        }
    });
}

pub(super) async fn reconcile(context: &Context, key: Key) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(cron) = views.cron_jobs.get(&key) else { return Ok(None) };
    let spec = &cron.spec;
    let jobs = views.jobs.by(&of_owner(uid(&cron.metadata)));
    let mut plan = plan(&cron, spec, &jobs, context.clock.now());
    each(&plan.delete, |job| context.delete(&views.jobs, job.as_ref())).await?;
    if let Some(due) = plan.create {
        match context.create(&views.jobs, &job(&cron, spec, due)).await {
            Ok(made) => {
                let text = format!("Created job {}", name(&made.metadata));
                let note = Note::normal("SuccessfulCreate", text);
                context.events.record("cronjob-controller", cron.as_ref(), note);
                plan.status.active.get_or_insert_default().push(reference(&made));
            }
            Err(error) if is_already_exists(&error) => {}
            Err(error) => return Err(error),
        }
    }
    if cron.status.as_ref() != Some(&plan.status) {
        let written = CronJob { status: Some(plan.status), ..(*cron).clone() };
        context.write_status(&views.cron_jobs, &written).await?;
    }
    Ok(plan.again)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn cron(more: Value, last: Option<&str>) -> CronJob {
        let mut spec = json!({ "schedule": "*/10 * * * *", "jobTemplate": {} });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let created = "2026-01-01T00:00:00Z";
        from_value(json!({
            "metadata": { "name": "c", "creationTimestamp": created },
            "spec": spec, "status": { "lastScheduleTime": last },
        }))
        .unwrap()
    }

    fn next(cron: &CronJob, jobs: &[Arc<Job>], now: &str) -> CronJobActions {
        plan(cron, &cron.spec, jobs, now.parse().unwrap())
    }

    fn made(name: &str, end: Option<&str>) -> Arc<Job> {
        let end: Vec<Value> =
            end.map(|end| json!({ "type": end, "status": "True" })).into_iter().collect();
        Arc::new(
            from_value(json!({ "metadata": { "name": name }, "status": { "conditions": end } }))
                .unwrap(),
        )
    }

    #[test]
    fn a_job_is_made_when_it_is_due_and_not_again() {
        let fresh = cron(json!({}), None);
        let early = next(&fresh, &[], "2026-01-01T00:09:00Z");
        assert_eq!((early.create, early.again), (None, Some(Duration::from_secs(60))));
        let due = next(&fresh, &[], "2026-01-01T00:35:00Z");
        let expected: Timestamp = "2026-01-01T00:30:00Z".parse().unwrap();
        assert_eq!((due.create, due.again), (Some(expected), Some(Duration::from_secs(300))));
        let done = cron(json!({}), Some("2026-01-01T00:30:00Z"));
        assert_eq!(next(&done, &[], "2026-01-01T00:35:00Z").create, None);
        let late = cron(json!({ "startingDeadlineSeconds": 60 }), None);
        assert_eq!(next(&late, &[], "2026-01-01T00:35:00Z").create, None);
    }

    #[test]
    fn policies_say_what_becomes_of_jobs_that_still_run() {
        let jobs = [made("running", None)];
        let at = "2026-01-01T00:10:00Z";
        let forbids = next(&cron(json!({ "concurrencyPolicy": "Forbid" }), None), &jobs, at);
        assert_eq!((forbids.create, forbids.delete.len()), (None, 0));
        let replaces = next(&cron(json!({ "concurrencyPolicy": "Replace" }), None), &jobs, at);
        assert!(replaces.create.is_some() && replaces.delete.len() == 1);
        let jobs: Vec<_> = (0..5).map(|at| made(&at.to_string(), Some("Complete"))).collect();
        let kept = next(&cron(json!({ "suspend": true }), None), &jobs, at);
        assert_eq!((kept.create, kept.delete.len()), (None, 2));
    }
}
