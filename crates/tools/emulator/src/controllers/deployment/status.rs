//! The status of a Deployment: counts and conditions. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus, ReplicaSet, ReplicaSetStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::clock::{later, seconds, until, whole_seconds};
use crate::key::name;
use crate::queue::Requeue;

use super::rollout::{Sets, replicas, slack, wanted};

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const FAILING: &str = "ReplicaFailure";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const COMPLETE: &str = "NewReplicaSetAvailable";

/// The value that old API servers store for "no deadline".
const NO_DEADLINE: i32 = i32::MAX;

fn sum<'a>(
    sets: impl Iterator<Item = &'a std::sync::Arc<ReplicaSet>>,
    of: impl Fn(&ReplicaSetStatus) -> Option<i32>,
) -> i32 {
    let each = sets.filter_map(|set| set.status.as_ref().and_then(&of));
    each.fold(0, i32::saturating_add)
}

/// Whether all pods are of the current template and available.
pub(super) fn is_complete(spec: &DeploymentSpec, sets: &Sets, deployment: &Deployment) -> bool {
    let numbers = numbers(deployment, sets);
    complete(spec, deployment, &numbers)
}

fn complete(spec: &DeploymentSpec, deployment: &Deployment, numbers: &DeploymentStatus) -> bool {
    let wanted = wanted(spec);
    let is = |count: Option<i32>| count.unwrap_or(0) == wanted;
    is(numbers.updated_replicas)
        && is(numbers.replicas)
        && is(numbers.available_replicas)
        && numbers.observed_generation >= deployment.metadata.generation
}

fn numbers(deployment: &Deployment, sets: &Sets) -> DeploymentStatus {
    let some = |count: i32| Some(count).filter(|count| *count > 0);
    let available = sum(sets.all(), |status| status.available_replicas);
    let size: i32 = sets.all().map(|set| replicas(set)).sum();
    let before = deployment.status.as_ref();
    let terminating = sum(sets.all(), |status| status.terminating_replicas);
    let said_before = before.is_some_and(|before| before.terminating_replicas.is_some());
    DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: some(sum(sets.all(), |status| Some(status.replicas))),
        updated_replicas: some(sum(sets.new.iter(), |status| Some(status.replicas))),
        ready_replicas: some(sum(sets.all(), |status| status.ready_replicas)),
        available_replicas: some(available),
        unavailable_replicas: some((size - available).max(0)),
        terminating_replicas: Some(terminating).filter(|count| *count > 0 || said_before),
        collision_count: before.and_then(|before| before.collision_count),
        conditions: before.and_then(|before| before.conditions.clone()),
    }
}

/// The status, and when it may change by time alone.
pub(super) fn status(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    sets: &Sets,
    now: Timestamp,
) -> (DeploymentStatus, Requeue) {
    let mut status = numbers(deployment, sets);
    let before = deployment.status.clone().unwrap_or_default();
    let mut conditions = Conditions { list: status.conditions.take().unwrap_or_default(), now };
    let enough = wanted(spec) - slack(spec).unavailable;
    if status.available_replicas.unwrap_or(0) >= enough {
        conditions.set(
            AVAILABLE,
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.".to_owned(),
        )
    } else {
        conditions.set(
            AVAILABLE,
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.".to_owned(),
        )
    }
    let again = progress(deployment, spec, sets, (&before, &status), &mut conditions);
    let failure = sets.all().find_map(|set| {
        let list = set.status.as_ref()?.conditions.as_ref()?;
        list.iter().find(|one| one.type_ == FAILING && one.status == "True")
    });
    match failure {
        Some(failure) => conditions.set(
            FAILING,
            "True",
            failure.reason.as_deref().unwrap_or_default(),
            failure.message.clone().unwrap_or_default(),
        ),
        None => conditions.list.retain(|condition| condition.type_ != FAILING),
    }
    status.conditions = Some(conditions.list).filter(|list| !list.is_empty());
    (status, again)
}

/// Sets the condition `Progressing`. Returns the time until the deadline.
fn progress(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    sets: &Sets,
    (before, after): (&DeploymentStatus, &DeploymentStatus),
    conditions: &mut Conditions,
) -> Requeue {
    let deadline = spec.progress_deadline_seconds.filter(|seconds| *seconds != NO_DEADLINE)?;
    let said = conditions.find(PROGRESSING).cloned();
    let reason = said.as_ref().and_then(|said| said.reason.clone()).unwrap_or_default();
    let new = sets.new.as_ref().map(|set| name(&set.metadata).to_owned());
    let subject = match &new {
        Some(set) => format!("ReplicaSet \"{set}\""),
        None => format!("Deployment \"{}\"", name(&deployment.metadata)),
    };
    if spec.paused == Some(true) {
        if !matches!(reason.as_str(), "DeploymentPaused" | TIMED_OUT) {
            let message = "Deployment is paused".to_owned();
            conditions.set(PROGRESSING, "Unknown", "DeploymentPaused", message);
        }
        return None;
    }
    if complete(spec, deployment, after) {
        let message = format!("{subject} has successfully progressed.");
        conditions.set(PROGRESSING, "True", COMPLETE, message);
        return None;
    }
    let moved = after.updated_replicas > before.updated_replicas
        || after.ready_replicas > before.ready_replicas
        || after.available_replicas > before.available_replicas
        || old(after) < old(before);
    let started = before.observed_generation < deployment.metadata.generation;
    if said.is_none() || moved || started || (reason == COMPLETE && new.is_some()) {
        let (reason, message) = match (&said, &new) {
            (None, Some(set)) => {
                ("NewReplicaSetCreated", format!("Created new replica set \"{set}\""))
            }
            _ => ("ReplicaSetUpdated", format!("{subject} is progressing.")),
        };
        conditions.renew(PROGRESSING, "True", reason, message);
        return Some(seconds(deadline.into()) + Duration::from_secs(1));
    }
    if reason == TIMED_OUT {
        return None;
    }
    let since = said.and_then(|said| said.last_update_time).map_or(conditions.now, |time| time.0);
    let left = until(conditions.now, later(since, seconds(deadline.into())));
    if left.is_zero() {
        let message = format!("{subject} has timed out progressing.");
        conditions.set(PROGRESSING, "False", TIMED_OUT, message);
        return None;
    }
    Some(left + Duration::from_secs(1))
}

fn old(status: &DeploymentStatus) -> i32 {
    status.replicas.unwrap_or(0) - status.updated_replicas.unwrap_or(0)
}

struct Conditions {
    list: Vec<DeploymentCondition>,
    now: Timestamp,
}

impl Conditions {
    fn find(&self, kind: &str) -> Option<&DeploymentCondition> {
        self.list.iter().find(|condition| condition.type_ == kind)
    }

    /// Sets a condition unless it is set to the same.
    fn set(&mut self, kind: &str, status: &str, reason: &str, message: String) {
        let same = self
            .find(kind)
            .is_some_and(|said| said.status == status && said.reason.as_deref() == Some(reason));
        if !same {
            self.renew(kind, status, reason, message);
        }
    }

    fn renew(&mut self, kind: &str, status: &str, reason: &str, message: String) {
        let now = Time(whole_seconds(self.now));
        let unchanged = self.find(kind).filter(|said| said.status == status);
        let since = unchanged.and_then(|said| said.last_transition_time.clone());
        self.list.retain(|condition| condition.type_ != kind);
        self.list.push(DeploymentCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_update_time: Some(now.clone()),
            last_transition_time: since.or(Some(now)),
        });
    }
}
