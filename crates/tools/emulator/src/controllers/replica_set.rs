//! ReplicaSets: creating and deleting pods, in Kubernetes' order, and their status.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::clock::seconds;
use crate::key::{
    Key, annotation, controller, controller_reference, error_message, labels, namespace, uid,
};
use crate::queue::{Queue, Requeue};
use crate::views::{of_owner, orphans_in};

use super::context::Context;
use super::pods::{
    self, Claims, available_in, claim, is_active, is_ready, is_terminating, node_of, phase,
    ready_since, restarts_max,
};

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

const COMPONENT: &str = "replicaset-controller";

const PASS_MAX: usize = 500;

#[derive(Debug, PartialEq)]
pub(crate) struct ReplicaSetActions {
    pub(crate) create: usize,
    pub(crate) delete: Vec<Arc<Pod>>,
}

/// Pods to create or delete. `related` are the pods of all sets of the same owner.
pub(crate) fn plan(
    set: &ReplicaSet,
    mine: &[Arc<Pod>],
    related: &[Arc<Pod>],
    now: Timestamp,
) -> ReplicaSetActions {
    let none = ReplicaSetActions { create: 0, delete: Vec::new() };
    if set.metadata.deletion_timestamp.is_some() {
        return none;
    }
    let wanted = wanted(set);
    let mut active: Vec<Arc<Pod>> = mine.iter().filter(|pod| is_active(pod)).cloned().collect();
    match active.len().cmp(&wanted) {
        Ordering::Equal => none,
        Ordering::Less => {
            ReplicaSetActions { create: (wanted - active.len()).min(PASS_MAX), ..none }
        }
        Ordering::Greater => {
            let excess = (active.len() - wanted).min(PASS_MAX);
            sort_for_deletion(&mut active, related, now);
            active.truncate(excess);
            ReplicaSetActions { delete: active, ..none }
        }
    }
}

fn wanted(set: &ReplicaSet) -> usize {
    let replicas = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    usize::try_from(replicas).unwrap_or(0)
}

/// Sorts by Kubernetes' order of deletion.
pub(crate) fn sort_for_deletion(pods: &mut [Arc<Pod>], related: &[Arc<Pod>], now: Timestamp) {
    let mut on_node: HashMap<&str, usize> = HashMap::new();
    for pod in related.iter().filter(|pod| is_active(pod)) {
        *on_node.entry(node_of(pod).unwrap_or_default()).or_default() += 1;
    }
    let rank = |pod: &Pod| on_node.get(node_of(pod).unwrap_or_default()).copied().unwrap_or(0);
    let phase_rank = |pod: &Pod| match phase(pod) {
        "Running" => 2,
        "Unknown" => 1,
        _ => 0,
    };
    pods.sort_by(|one, other| {
        let assigned = node_of(one).is_some().cmp(&node_of(other).is_some());
        assigned
            .then_with(|| phase_rank(one).cmp(&phase_rank(other)))
            .then_with(|| is_ready(one).cmp(&is_ready(other)))
            .then_with(|| cost(one).cmp(&cost(other)))
            .then_with(|| rank(other).cmp(&rank(one)))
            .then_with(|| by_age(ready_since(one), ready_since(other), now, one, other))
            .then_with(|| restarts_max(other).cmp(&restarts_max(one)))
            .then_with(|| by_age(created(one), created(other), now, one, other))
    });
}

fn cost(pod: &Pod) -> i32 {
    annotation(&pod.metadata, DELETION_COST).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Younger first. Ages of the same power of two are equal, then UIDs decide.
fn by_age(
    one: Option<Timestamp>,
    other: Option<Timestamp>,
    now: Timestamp,
    first: &Pod,
    second: &Pod,
) -> Ordering {
    if one == other {
        return Ordering::Equal;
    }
    let magnitude = |at: Option<Timestamp>| {
        let age = at.map(|at| now.duration_since(at).as_nanos());
        age.map(|age| u128::try_from(age).ok().and_then(u128::checked_ilog2))
    };
    let by_uid = || uid(&first.metadata).cmp(uid(&second.metadata));
    magnitude(one).cmp(&magnitude(other)).then_with(by_uid)
}

/// The status. `failure`: reason and message of a failed creation or deletion.
pub(crate) fn status(
    set: &ReplicaSet,
    mine: &[Arc<Pod>],
    failure: Option<(&str, String)>,
    now: Timestamp,
) -> (ReplicaSetStatus, Requeue) {
    let spec = set.spec.as_ref();
    let template = spec.and_then(|spec| spec.template.as_ref());
    let min_ready = seconds(spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0).into());
    let wanted_labels = template.and_then(|template| template.metadata.as_ref()).map(labels);
    let active: Vec<&Arc<Pod>> = mine.iter().filter(|pod| is_active(pod)).collect();
    let labelled = active.iter().filter(|pod| {
        let has = labels(&pod.metadata);
        wanted_labels.into_iter().flatten().all(|(key, value)| has.get(key) == Some(value))
    });
    let availability: Vec<Duration> =
        active.iter().filter_map(|pod| available_in(pod, min_ready, now)).collect();
    let available = availability.iter().filter(|left| left.is_zero()).count();
    let again = availability.iter().filter(|left| !left.is_zero()).min().copied();
    let terminating = mine.iter().filter(|pod| is_terminating(pod) && !pods::is_finished(pod));
    let before = set.status.as_ref();
    let status = ReplicaSetStatus {
        replicas: count(active.len()),
        fully_labeled_replicas: some(labelled.count()),
        ready_replicas: some(active.iter().filter(|pod| is_ready(pod)).count()),
        available_replicas: some(available),
        terminating_replicas: Some(count(terminating.count())),
        observed_generation: set.metadata.generation,
        conditions: conditions(
            before.and_then(|before| before.conditions.as_deref()),
            failure,
            now,
        ),
    };
    (status, again)
}

fn conditions(
    before: Option<&[ReplicaSetCondition]>,
    failure: Option<(&str, String)>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    const FAILURE: &str = "ReplicaFailure";
    let mut conditions: Vec<ReplicaSetCondition> = before.unwrap_or_default().to_vec();
    let known = conditions.iter().any(|condition| condition.type_ == FAILURE);
    match failure {
        None => conditions.retain(|condition| condition.type_ != FAILURE),
        Some(_) if known => {}
        Some((reason, message)) => conditions.push(ReplicaSetCondition {
            type_: FAILURE.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(Time(crate::clock::whole_seconds(now))),
        }),
    }
    Some(conditions).filter(|conditions| !conditions.is_empty())
}

fn count(many: usize) -> i32 {
    i32::try_from(many).unwrap_or(i32::MAX)
}

/// `None` for zero, which the API omits.
pub(super) fn some(many: usize) -> Option<i32> {
    Some(count(many)).filter(|count| *count > 0)
}

pub(super) fn wire(context: &Context, queue: &Queue) {
    let views = &context.views;
    let to = queue.clone();
    views.replica_sets.on_change(move |change| to.add(change.key.clone()));
    let (to, sets) = (queue.clone(), Arc::clone(&views.replica_sets));
    views.pods.on_change(move |change| {
        for pod in change.both() {
            let here = namespace(&pod.metadata);
            match controller(&pod.metadata) {
                Some(owner) if owner.kind == "ReplicaSet" => to.add(Key::new(here, &*owner.name)),
                Some(_) => {}
                None if is_active(pod) => {
                    for set in sets.in_namespace(here) {
                        let selector = set.spec.as_ref().map(|spec| &spec.selector);
                        let selector = selector.and_then(pods::selector);
                        if selector.is_some_and(|one| pods::selects(&one, &pod.metadata)) {
                            to.add(Key::of(&set.metadata));
                        }
                    }
                }
                None => {}
            }
        }
    });
}

pub(super) async fn reconcile(context: &Context, key: Key) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(set) = views.replica_sets.get(&key) else { return Ok(None) };
    let Some(spec) = &set.spec else { return Ok(None) };
    let Some(selector) = pods::selector(&spec.selector) else { return Ok(None) };
    let mut candidates = views.pods.by(&of_owner(uid(&set.metadata)));
    candidates.extend(views.pods.by(&orphans_in(&key.namespace)));
    let Claims { mine, adopt, release } = claim(&set.metadata, &selector, candidates);
    let reference = controller_reference::<ReplicaSet>(&set.metadata);
    context.settle(&views.pods, &adopt, &release, &reference).await?;

    let related: Vec<Arc<Pod>> = match controller(&set.metadata) {
        None => mine.clone(),
        Some(owner) => {
            let sets = views.replica_sets.by(&of_owner(&owner.uid));
            sets.iter().flat_map(|set| views.pods.by(&of_owner(uid(&set.metadata)))).collect()
        }
    };
    let plan = plan(&set, &mine, &related, context.clock.now());
    let empty = PodTemplateSpec::default();
    let template = spec.template.as_ref().unwrap_or(&empty);
    let pod = || pods::from_template(template, &set.metadata, reference.clone());
    let pods = (0..plan.create).map(|_| pod()).collect();
    let made = context.create_pods(COMPONENT, set.as_ref(), pods).await;
    let deleted = context.delete_pods(COMPONENT, set.as_ref(), &plan.delete).await;
    let failure = match (&made, &deleted) {
        (Err(error), _) => Some(("FailedCreate", error_message(error))),
        (_, Err(error)) => Some(("FailedDelete", error_message(error))),
        _ => None,
    };

    let mut candidates = views.pods.by(&of_owner(uid(&set.metadata)));
    candidates.retain(|pod| pods::selects(&selector, &pod.metadata) || is_terminating(pod));
    let (mut status, again) = status(&set, &candidates, failure, context.clock.now());
    let before = set.status.clone().unwrap_or_default();
    if before.terminating_replicas.is_none() && status.terminating_replicas == Some(0) {
        // API servers without this field would drop it, and it would be written again and again.
        status.terminating_replicas = None;
    }
    if before != status {
        let written = ReplicaSet { status: Some(status), ..(*set).clone() };
        context.write_status(&views.replica_sets, &written).await?;
    }
    made.and(deleted)?;
    Ok(again)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::fixtures::{pod, set};

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|pod| crate::key::name(&pod.metadata)).collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn pods_that_are_missing_are_made_and_pods_on_their_way_out_do_not_count() {
        let set = set("web", 3);
        let leaving = pod("leaving").owned_by(&set.metadata).terminating();
        let failed = pod("failed").owned_by(&set.metadata).phase("Failed");
        let running = pod("running").owned_by(&set.metadata).on("n").ready_at(10);
        let mine = [leaving.arc(), failed.arc(), running.arc()];
        let plan = plan(&set, &mine, &mine, at(100));
        assert_eq!((plan.create, plan.delete.len()), (2, 0));
        let (status, _) = status(&set, &mine, None, at(100));
        assert_eq!((status.replicas, status.ready_replicas), (1, Some(1)));
        assert_eq!((status.available_replicas, status.terminating_replicas), (Some(1), Some(1)));
    }

    #[test]
    fn those_that_are_missed_least_go_first() {
        let set = set("web", 0);
        let owned = |name: &str| pod(name).owned_by(&set.metadata);
        let mut pods = [
            owned("old").on("a").ready_at(10),
            owned("cheap").on("d").ready_at(10).annotated(DELETION_COST, "-5"),
            owned("young").on("b").ready_at(990),
            owned("doubled-1").on("c").ready_at(10),
            owned("doubled-2").on("c").ready_at(990),
            owned("unready").on("b").phase("Running"),
            owned("pending").on("b").phase("Pending"),
            owned("unassigned").phase("Pending"),
        ]
        .map(|pod| pod.arc());
        let related = pods.to_vec();
        sort_for_deletion(&mut pods, &related, at(1000));
        let expected =
            ["unassigned", "pending", "unready", "cheap", "young", "doubled-2", "doubled-1", "old"];
        // On b there are three, on c two, on a and d one.
        assert_eq!(names(&pods), expected);
    }

    #[test]
    fn a_pod_is_available_once_it_has_been_ready_long_enough() {
        let mut set = set("web", 2);
        set.spec.as_mut().unwrap().min_ready_seconds = Some(30);
        let mine = [
            pod("one").owned_by(&set.metadata).on("n").ready_at(10).arc(),
            pod("two").owned_by(&set.metadata).on("n").ready_at(90).arc(),
        ];
        let (status, again) = status(&set, &mine, None, at(100));
        assert_eq!((status.ready_replicas, status.available_replicas), (Some(2), Some(1)));
        assert_eq!(again, Some(Duration::from_secs(20)));
    }

    #[test]
    fn a_failure_is_said_until_it_is_over() {
        let mut set = set("web", 2);
        let full = || Some(("FailedCreate", "exceeded quota".to_owned()));
        let (first, _) = status(&set, &[], full(), at(100));
        let condition = &first.conditions.as_ref().unwrap()[0];
        assert_eq!(condition.reason.as_deref(), Some("FailedCreate"));
        set.status = Some(first.clone());
        assert_eq!(status(&set, &[], full(), at(200)).0, first);
        assert_eq!(status(&set, &[], None, at(300)).0.conditions, None);
    }
}
