//! The next step of a Job: counting finished pods, completion and failure, pods to create. Pure.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::clock::{later, seconds, until, whole_seconds};
use crate::controllers::pods::{
    is_active, is_finished, is_ready, is_terminating, phase, restarts_max,
};
use crate::controllers::replica_set::sort_for_deletion;
use crate::key::{annotation, has_finalizer, uid};
use crate::queue::Requeue;

use super::{INDEX, TRACKING, indexes};

const PASS_MAX: usize = 500;
const LONGEST_BACKOFF: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct JobActions {
    pub(super) create: Vec<Option<i32>>,
    /// Surplus pods: not counted as failed.
    pub(super) delete: Vec<Arc<Pod>>,
    /// Pods of a finished Job: counted as failed.
    pub(super) kill: Vec<Arc<Pod>>,
    pub(super) status: JobStatus,
    pub(super) again: Requeue,
    pub(super) remove_job: bool,
}

#[derive(Debug, Default)]
struct Ends {
    succeeded: i32,
    failed: i32,
    uncounted: UncountedTerminatedPods,
    completed: BTreeSet<u32>,
}

impl Ends {
    fn uncounted_count(&self, of: fn(&UncountedTerminatedPods) -> &Option<Vec<String>>) -> i32 {
        let many = of(&self.uncounted).as_ref().map_or(0, Vec::len);
        i32::try_from(many).unwrap_or(i32::MAX)
    }

    fn all_succeeded(&self, indexed: bool) -> i32 {
        if indexed {
            i32::try_from(self.completed.len()).unwrap_or(i32::MAX)
        } else {
            self.succeeded + self.uncounted_count(|list| &list.succeeded)
        }
    }

    fn all_failed(&self) -> i32 {
        self.failed + self.uncounted_count(|list| &list.failed)
    }

    fn is_all_counted(&self) -> bool {
        self.uncounted == UncountedTerminatedPods::default()
    }
}

fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

fn index_of(pod: &Pod) -> Option<u32> {
    annotation(&pod.metadata, INDEX)?.parse().ok()
}

/// Whether a pod counts as failed. Terminating pods do, unless the replacement policy is `Failed`.
fn has_failed(pod: &Pod, spec: &JobSpec) -> bool {
    let waits = spec.pod_replacement_policy.as_deref() == Some("Failed");
    phase(pod) == "Failed" || !waits && is_terminating(pod) && phase(pod) != "Succeeded"
}

fn count_ends(job: &Job, spec: &JobSpec, pods: &[Arc<Pod>]) -> Ends {
    let before = job.status.clone().unwrap_or_default();
    let completions = u32::try_from(spec.completions.unwrap_or(0)).unwrap_or(0);
    let text = before.completed_indexes.unwrap_or_default();
    let mut ends = Ends {
        succeeded: before.succeeded.unwrap_or(0),
        failed: before.failed.unwrap_or(0),
        uncounted: UncountedTerminatedPods::default(),
        completed: indexes::read(&text, completions),
    };
    let tracked: BTreeSet<&str> = pods
        .iter()
        .filter(|pod| has_finalizer(&pod.metadata, TRACKING))
        .map(|pod| uid(&pod.metadata))
        .collect();
    let uncounted = before.uncounted_terminated_pods.unwrap_or_default();
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for id in uncounted.succeeded.into_iter().flatten() {
        if tracked.contains(id.as_str()) { good.push(id) } else { ends.succeeded += 1 }
    }
    for id in uncounted.failed.into_iter().flatten() {
        if tracked.contains(id.as_str()) { bad.push(id) } else { ends.failed += 1 }
    }
    for pod in pods.iter().filter(|pod| has_finalizer(&pod.metadata, TRACKING)) {
        let id = uid(&pod.metadata).to_owned();
        let known = good.contains(&id) || bad.contains(&id);
        let index = index_of(pod);
        if phase(pod) == "Succeeded" {
            let own = index.filter(|index| is_indexed(spec) && *index < completions);
            ends.completed.extend(own);
            if !known && (!is_indexed(spec) || own.is_some()) {
                good.push(id);
            }
        } else if !known && has_failed(pod, spec) {
            bad.push(id);
        }
    }
    let some = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
    ends.uncounted = UncountedTerminatedPods { succeeded: some(good), failed: some(bad) };
    ends
}

/// Reason and message, if the Job has failed.
fn failure(
    spec: &JobSpec,
    ends: &Ends,
    active: &[&Arc<Pod>],
    started: Option<Timestamp>,
    now: Timestamp,
) -> Option<(&'static str, &'static str)> {
    const TOO_OFTEN: (&str, &str) =
        ("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    let limit = spec.backoff_limit.unwrap_or(6);
    if ends.all_failed() > limit {
        return Some(TOO_OFTEN);
    }
    let pod_spec = spec.template.spec.as_ref();
    if pod_spec.and_then(|spec| spec.restart_policy.as_deref()) == Some("OnFailure") {
        let restarts: i32 = active.iter().map(|pod| restarts_max(pod)).sum();
        let exceeded = if limit == 0 { restarts > 0 } else { restarts >= limit };
        if exceeded {
            return Some(TOO_OFTEN);
        }
    }
    let deadline = spec.active_deadline_seconds.zip(started);
    let over = deadline.is_some_and(|(limit, since)| later(since, seconds(limit)) <= now);
    over.then_some(("DeadlineExceeded", "Job was active longer than specified deadline"))
}

pub(super) fn plan(
    job: &Job,
    spec: &JobSpec,
    pods: &[Arc<Pod>],
    now: Timestamp,
    backoff: Duration,
) -> JobActions {
    let status = job.status.clone().unwrap_or_default();
    let mut conditions = Conditions { list: status.conditions.clone().unwrap_or_default(), now };
    if let Some(since) = conditions.finished_at() {
        return after_the_end(job, spec, status, since, now);
    }
    let mut plan = JobActions { status, ..JobActions::default() };
    let ends = count_ends(job, spec, pods);
    let active: Vec<&Arc<Pod>> = pods.iter().filter(|pod| is_active(pod)).collect();
    let leaving = pods.iter().filter(|pod| is_terminating(pod) && !is_finished(pod)).count();
    let suspended = spec.suspend == Some(true);
    start(&mut plan, &mut conditions, suspended, now);

    let started = plan.status.start_time.as_ref().map(|time| time.0);
    let succeeded = ends.all_succeeded(is_indexed(spec));
    if !conditions.is("FailureTarget")
        && !conditions.is("SuccessCriteriaMet")
        && let Some((reason, message)) = failure(spec, &ends, &active, started, now)
    {
        conditions.add("FailureTarget", reason, message);
    }
    let complete = match spec.completions {
        Some(completions) => succeeded >= completions,
        None => succeeded > 0 && active.is_empty(),
    };
    if complete && !conditions.is("FailureTarget") && !conditions.is("SuccessCriteriaMet") {
        let message = "Reached expected number of succeeded pods";
        conditions.add("SuccessCriteriaMet", "CompletionsReached", message);
    }

    if conditions.is("FailureTarget") || conditions.is("SuccessCriteriaMet") {
        plan.kill = active.iter().map(|pod| Arc::clone(pod)).collect();
        let left = active.len() + leaving;
        if left == 0 && ends.is_all_counted() {
            finish(&mut plan, &mut conditions);
        }
    } else if suspended {
        plan.delete = active.iter().map(|pod| Arc::clone(pod)).collect();
    } else if job.metadata.deletion_timestamp.is_none() {
        size(&mut plan, spec, pods, &ends, now, backoff);
        let deadline = spec.active_deadline_seconds.zip(started);
        let left = deadline.map(|(limit, since)| until(now, later(since, seconds(limit))));
        plan.again = plan.again.into_iter().chain(left).min();
    }
    write(&mut plan, spec, &ends, &active, leaving);
    plan.status.conditions = Some(conditions.list).filter(|list| !list.is_empty());
    plan
}

/// Sets the start time and the condition `Suspended`.
fn start(plan: &mut JobActions, conditions: &mut Conditions, suspended: bool, now: Timestamp) {
    let status = &mut plan.status;
    if suspended {
        if !conditions.is("Suspended") {
            conditions.put("Suspended", "True", "JobSuspended", "Job suspended");
            status.start_time = None;
        }
    } else {
        if conditions.is("Suspended") {
            conditions.put("Suspended", "False", "JobResumed", "Job resumed");
            status.start_time = None;
        }
        status.start_time.get_or_insert_with(|| Time(whole_seconds(now)));
    }
}

fn after_the_end(
    job: &Job,
    spec: &JobSpec,
    status: JobStatus,
    since: Timestamp,
    now: Timestamp,
) -> JobActions {
    let mut plan = JobActions { status, ..JobActions::default() };
    if let Some(ttl) = spec.ttl_seconds_after_finished
        && job.metadata.deletion_timestamp.is_none()
    {
        let left = until(now, later(since, seconds(ttl.into())));
        plan.remove_job = left.is_zero();
        plan.again = Some(left).filter(|left| !left.is_zero());
    }
    plan
}

fn finish(plan: &mut JobActions, conditions: &mut Conditions) {
    let target = |kind: &str| conditions.find(kind).filter(|one| one.status == "True").cloned();
    if let Some(why) = target("FailureTarget") {
        conditions.add(
            "Failed",
            why.reason.as_deref().unwrap_or_default(),
            why.message.as_deref().unwrap_or_default(),
        );
    } else if let Some(why) = target("SuccessCriteriaMet") {
        conditions.add(
            "Complete",
            why.reason.as_deref().unwrap_or_default(),
            why.message.as_deref().unwrap_or_default(),
        );
        plan.status.completion_time = Some(Time(whole_seconds(conditions.now)));
    }
}

/// Decides which pods to create or delete.
fn size(
    plan: &mut JobActions,
    spec: &JobSpec,
    pods: &[Arc<Pod>],
    ends: &Ends,
    now: Timestamp,
    backoff: Duration,
) {
    let succeeded = ends.all_succeeded(is_indexed(spec));
    let parallelism = spec.parallelism.unwrap_or(1).max(0);
    let waits = spec.pod_replacement_policy.as_deref() == Some("Failed");
    // With replacement policy `Failed`, terminating pods still count.
    let (mut active, mut holding): (Vec<Arc<Pod>>, Vec<Arc<Pod>>) = Default::default();
    for pod in pods {
        if is_active(pod) {
            active.push(Arc::clone(pod));
        } else if waits && is_terminating(pod) && !is_finished(pod) {
            holding.push(Arc::clone(pod));
        }
    }
    let running = i32::try_from(active.len()).unwrap_or(i32::MAX);
    let wanted = match spec.completions {
        None if succeeded > 0 => running,
        None => parallelism,
        Some(completions) => parallelism.min((completions - succeeded).max(0)),
    };
    if running > wanted {
        sort_for_deletion(&mut active, &[], now);
        let excess = usize::try_from(running - wanted).unwrap_or(0);
        plan.delete = active.into_iter().take(excess).collect();
        return;
    }
    let held = i32::try_from(holding.len()).unwrap_or(i32::MAX);
    let missing = usize::try_from(wanted - running - held).unwrap_or(0).min(PASS_MAX);
    if missing == 0 {
        return;
    }
    let wait = wait_after_failures(pods, now, backoff);
    if !wait.is_zero() {
        plan.again = Some(wait);
        return;
    }
    plan.create = if is_indexed(spec) {
        let taken: BTreeSet<u32> =
            active.iter().chain(&holding).filter_map(|pod| index_of(pod)).collect();
        let all = 0..u32::try_from(spec.completions.unwrap_or(0)).unwrap_or(0);
        let free = all.filter(|at| !taken.contains(at) && !ends.completed.contains(at));
        free.take(missing).map(|at| i32::try_from(at).ok()).collect()
    } else {
        vec![None; missing]
    };
}

/// The backoff before new pods are created; it doubles with every consecutive failure.
fn wait_after_failures(pods: &[Arc<Pod>], now: Timestamp, backoff: Duration) -> Duration {
    let mut ended: Vec<(Timestamp, bool)> = pods
        .iter()
        .filter(|pod| is_finished(pod))
        .filter_map(|pod| Some((finished_at(pod)?, phase(pod) == "Failed")))
        .collect();
    ended.sort_by_key(|(at, _)| Reverse(*at));
    let failures = ended.iter().take_while(|(_, failed)| *failed).count();
    let Some((last, _)) = ended.first().filter(|_| failures > 0) else { return Duration::ZERO };
    let doublings = u32::try_from(failures - 1).unwrap_or(31).min(31);
    let wait = backoff.saturating_mul(1_u32 << doublings).min(LONGEST_BACKOFF);
    until(now, later(*last, wait))
}

/// When the last container ended, else the last transition of `Ready`, else creation.
fn finished_at(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let ends = status.container_statuses.iter().flatten().filter_map(|container| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        ended.finished_at.as_ref().map(|time| time.0)
    });
    let ready = status.conditions.iter().flatten().filter(|one| one.type_ == "Ready");
    let ready = ready.filter_map(|one| one.last_transition_time.as_ref().map(|time| time.0));
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    ends.max().or_else(|| ready.max()).or(created)
}

fn write(plan: &mut JobActions, spec: &JobSpec, ends: &Ends, active: &[&Arc<Pod>], leaving: usize) {
    let count = |many: usize| i32::try_from(many).unwrap_or(i32::MAX);
    let some = |many: i32| Some(many).filter(|many| *many > 0);
    let gone = plan.delete.len() + plan.kill.len();
    let still = active.len() - gone.min(active.len());
    let status = &mut plan.status;
    status.active = some(count(still + plan.create.len()));
    status.ready = Some(match gone {
        0 => count(active.iter().filter(|pod| is_ready(pod)).count()),
        _ => 0,
    });
    status.terminating = Some(count(leaving));
    status.failed = some(ends.failed);
    status.succeeded =
        some(if is_indexed(spec) { ends.all_succeeded(true) } else { ends.succeeded });
    status.completed_indexes =
        Some(indexes::write(&ends.completed)).filter(|text| !text.is_empty());
    // Always present, even empty: it marks the Job as tracked.
    status.uncounted_terminated_pods = Some(ends.uncounted.clone());
}

struct Conditions {
    list: Vec<JobCondition>,
    now: Timestamp,
}

impl Conditions {
    fn find(&self, kind: &str) -> Option<&JobCondition> {
        self.list.iter().find(|condition| condition.type_ == kind)
    }

    fn is(&self, kind: &str) -> bool {
        self.find(kind).is_some_and(|condition| condition.status == "True")
    }

    fn finished_at(&self) -> Option<Timestamp> {
        let end = ["Complete", "Failed"].iter().find(|kind| self.is(kind))?;
        let since = self.find(end)?.last_transition_time.as_ref();
        Some(since.map_or(self.now, |time| time.0))
    }

    fn add(&mut self, kind: &str, reason: &str, message: &str) {
        self.put(kind, "True", reason, message);
    }

    fn put(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let now = Time(whole_seconds(self.now));
        self.list.retain(|condition| condition.type_ != kind);
        self.list.push(JobCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_probe_time: Some(now.clone()),
            last_transition_time: Some(now),
        });
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
