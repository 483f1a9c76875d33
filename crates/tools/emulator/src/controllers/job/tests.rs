//! Jobs, played through without an API server.

use super::*;
use crate::controllers::fixtures::{PodBuilder, pod};
use serde_json::{Value, from_value, json};

const BACKOFF: Duration = Duration::from_secs(10);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn job(spec: Value) -> Job {
    let mut spec = spec;
    spec["template"] = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    from_value(json!({ "metadata": { "name": "j", "uid": "j-uid" }, "spec": spec })).unwrap()
}

fn tracked(name: &str) -> PodBuilder {
    pod(name).finalized_by(TRACKING)
}

fn next(job: &Job, pods: &[Arc<Pod>], second: i64) -> JobActions {
    plan(job, job.spec.as_ref().unwrap(), pods, at(second), BACKOFF)
}

fn written(job: &Job, plan: &JobActions) -> Job {
    Job { status: Some(plan.status.clone()), ..job.clone() }
}

fn reasons(plan: &JobActions) -> Vec<&str> {
    let list = plan.status.conditions.iter().flatten();
    list.filter(|one| one.status == "True").map(|one| one.type_.as_str()).collect()
}

#[test]
fn an_end_is_counted_once_its_finalizer_is_gone_and_never_twice() {
    let job = job(json!({ "completions": 2, "parallelism": 1 }));
    let ended = tracked("a").phase("Succeeded").arc();
    let first = next(&job, std::slice::from_ref(&ended), 100);
    let uncounted = first.status.uncounted_terminated_pods.clone().unwrap();
    assert_eq!(uncounted.succeeded, Some(vec!["a-uid".to_owned()]));
    assert_eq!((first.status.succeeded, first.create.len()), (None, 1));
    // Nothing has happened since: the same is said.
    let job = written(&job, &first);
    let second = next(&job, &[ended, tracked("b").arc()], 101);
    assert_eq!(second.status.uncounted_terminated_pods, first.status.uncounted_terminated_pods);
    // The finalizer is gone, or even the pod.
    let job = written(&job, &second);
    let third = next(&job, &[tracked("b").arc()], 102);
    assert_eq!(third.status.succeeded, Some(1));
    assert_eq!(third.status.uncounted_terminated_pods, Some(UncountedTerminatedPods::default()));
    assert!(third.create.is_empty());
}

#[test]
fn a_job_ends_when_all_is_counted_and_nobody_is_left() {
    let mut job = job(json!({ "completions": 1 }));
    job.status = Some(JobStatus { succeeded: Some(1), ..JobStatus::default() });
    let late = tracked("late").phase("Running").arc();
    let first = next(&job, std::slice::from_ref(&late), 100);
    assert_eq!((reasons(&first), first.kill.len()), (vec!["SuccessCriteriaMet"], 1));
    let job = written(&job, &first);
    let last = next(&job, &[], 101);
    assert_eq!(reasons(&last), ["SuccessCriteriaMet", "Complete"]);
    assert!(last.status.completion_time.is_some());
    let mut job = written(&job, &last);
    assert!(!next(&job, &[], 102).remove_job);
    job.spec.as_mut().unwrap().ttl_seconds_after_finished = Some(30);
    assert_eq!(next(&job, &[], 111).again, Some(Duration::from_secs(20)));
    assert!(next(&job, &[], 131).remove_job);
}

#[test]
fn failures_delay_and_then_fail_a_job() {
    let job = job(json!({ "backoffLimit": 1, "parallelism": 1, "completions": 1 }));
    let failed = |name: &str| tracked(name).phase("Failed").ready_was(95).arc();
    let first = next(&job, &[failed("a")], 100);
    assert_eq!((first.create.len(), first.again), (0, Some(Duration::from_secs(5))));
    let again = next(&job, &[failed("a")], 105);
    assert_eq!(again.create, [None]);
    let over = next(&job, &[failed("a"), failed("b")], 120);
    assert_eq!(reasons(&over), ["FailureTarget"]);
    let job = written(&job, &over);
    let end = next(&job, &[], 121);
    assert_eq!((reasons(&end), end.status.failed), (vec!["FailureTarget", "Failed"], Some(2)));
}

#[test]
fn every_index_is_done_once() {
    let job = job(json!({ "completionMode": "Indexed", "completions": 4, "parallelism": 3 }));
    let of = |name: &str, index: &str| tracked(name).annotated(INDEX, index);
    let pods = [
        of("a", "0").phase("Succeeded").arc(),
        of("b", "1").phase("Running").arc(),
        of("c", "2").terminating().phase("Running").arc(),
    ];
    let plan = next(&job, &pods, 1000);
    assert_eq!(plan.create, [Some(2), Some(3)]);
    assert_eq!(plan.status.completed_indexes.as_deref(), Some("0"));
    assert_eq!(plan.status.succeeded, Some(1));
}

#[test]
fn a_suspended_job_has_no_pods_and_starts_anew_when_it_goes_on() {
    let mut job = job(json!({ "suspend": true, "activeDeadlineSeconds": 50 }));
    let pods = [tracked("a").phase("Running").arc()];
    let stopped = next(&job, &pods, 100);
    assert_eq!((reasons(&stopped), stopped.delete.len()), (vec!["Suspended"], 1));
    assert_eq!(stopped.status.start_time, None);
    job = written(&job, &stopped);
    job.spec.as_mut().unwrap().suspend = Some(false);
    let going = next(&job, &[], 200);
    assert_eq!((reasons(&going), going.create.len()), (vec![], 1));
    assert_eq!(
        (going.status.start_time.clone(), going.again),
        (Some(Time(at(200))), Some(Duration::from_secs(50)))
    );
    job = written(&job, &going);
    assert_eq!(reasons(&next(&job, &pods, 250)), ["FailureTarget"]);
}

#[test]
fn too_many_pods_go_and_are_not_counted() {
    let job = job(json!({ "completions": 5, "parallelism": 1 }));
    let pods = [tracked("a").on("n").ready_at(1).arc(), tracked("b").phase("Pending").arc()];
    let plan = next(&job, &pods, 100);
    assert_eq!(plan.delete.len(), 1);
    assert_eq!(plan.delete[0].metadata.name.as_deref(), Some("b"));
    assert!(plan.kill.is_empty());
}
