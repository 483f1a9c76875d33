//! PodDisruptionBudgets: their status, from which the API server decides about evictions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::clock::{later, until, whole_seconds};
use crate::key::{Key, controller, name, namespace};
use crate::queue::{Queue, Requeue};
use crate::views::Views;

use super::context::Context;
use super::deployment::scaled;
use super::pods::{self, is_finished, is_ready, is_terminating};

/// How long an evicted pod that stays counts as disrupted.
const DISRUPTED_FOR: Duration = Duration::from_secs(120);

const ALLOWED: &str = "DisruptionAllowed";

/// Identity and replicas of a pod's controller.
type Scale<'a> = &'a dyn Fn(&Pod) -> Result<Option<(String, i32)>, String>;

/// The status of a budget. `pods` are those it selects.
pub(super) fn status(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    scale: Scale<'_>,
    now: Timestamp,
) -> (PodDisruptionBudgetStatus, Requeue) {
    let before = budget.status.clone().unwrap_or_default();
    let alive: Vec<&Arc<Pod>> = pods.iter().filter(|pod| !is_finished(pod)).collect();
    let (disrupted, again) = disrupted(&before, &alive, now);
    let healthy = alive.iter().filter(|pod| {
        let going = disrupted.contains_key(name(&pod.metadata));
        is_ready(pod) && !is_terminating(pod) && !going
    });
    let healthy = count(healthy.count());
    let (expected, desired, failure) = match wanted(budget, &alive, scale) {
        Ok((expected, desired)) => (expected, desired, None),
        Err(problem) => {
            let before = (before.expected_pods, before.desired_healthy);
            (before.0.unwrap_or(0), before.1.unwrap_or(0), Some(problem))
        }
    };
    let allowed = if expected > 0 && failure.is_none() { (healthy - desired).max(0) } else { 0 };
    let status = PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        disrupted_pods: Some(disrupted).filter(|list| !list.is_empty()),
        observed_generation: budget.metadata.generation,
        conditions: Some(conditions(budget, &before, allowed, failure, now)),
    };
    (status, again)
}

fn count(many: usize) -> i32 {
    i32::try_from(many).unwrap_or(i32::MAX)
}

/// Evicted pods that still exist and are expected to terminate.
fn disrupted(
    before: &PodDisruptionBudgetStatus,
    alive: &[&Arc<Pod>],
    now: Timestamp,
) -> (BTreeMap<String, Time>, Requeue) {
    let mut kept = BTreeMap::new();
    let mut again: Requeue = None;
    for (pod, since) in before.disrupted_pods.iter().flatten() {
        let found = alive.iter().find(|one| name(&one.metadata) == pod);
        if found.is_none_or(|found| is_terminating(found)) {
            continue;
        }
        let left = until(now, later(since.0, DISRUPTED_FOR));
        if !left.is_zero() {
            again = Some(again.map_or(left, |again| again.min(left)));
            kept.insert(pod.clone(), since.clone());
        }
    }
    (kept, again)
}

/// Expected pods, and how many of them must be healthy.
fn wanted(
    budget: &PodDisruptionBudget,
    alive: &[&Arc<Pod>],
    scale: Scale<'_>,
) -> Result<(i32, i32), String> {
    let spec = budget.spec.as_ref();
    let by_controllers = || -> Result<i32, String> {
        let mut scales = BTreeMap::new();
        for pod in alive {
            scales.extend(scale(pod)?);
        }
        Ok(scales.values().copied().fold(0, i32::saturating_add))
    };
    if let Some(unavailable) = spec.and_then(|spec| spec.max_unavailable.as_ref()) {
        let expected = by_controllers()?;
        return Ok((expected, (expected - scaled(unavailable, expected, true)).max(0)));
    }
    match spec.and_then(|spec| spec.min_available.as_ref()) {
        Some(IntOrString::Int(least)) => Ok((count(alive.len()), *least)),
        Some(part) => {
            let expected = by_controllers()?;
            Ok((expected, scaled(part, expected, true)))
        }
        None => Ok((count(alive.len()), 1)),
    }
}

fn conditions(
    budget: &PodDisruptionBudget,
    before: &PodDisruptionBudgetStatus,
    allowed: i32,
    failure: Option<String>,
    now: Timestamp,
) -> Vec<Condition> {
    let (status, reason) = match (&failure, allowed > 0) {
        (Some(_), _) => ("False", "SyncFailed"),
        (None, true) => ("True", "SufficientPods"),
        (None, false) => ("False", "InsufficientPods"),
    };
    let mut list = before.conditions.clone().unwrap_or_default();
    let said = list.iter().find(|one| one.type_ == ALLOWED && one.status == status);
    let since = said.map(|said| said.last_transition_time.clone());
    list.retain(|one| one.type_ != ALLOWED);
    list.push(Condition {
        type_: ALLOWED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: failure.unwrap_or_default(),
        observed_generation: budget.metadata.generation,
        last_transition_time: since.unwrap_or_else(|| Time(whole_seconds(now))),
    });
    list
}

fn scale_of(views: &Views, pod: &Pod) -> Result<Option<(String, i32)>, String> {
    let here = namespace(&pod.metadata);
    let Some(owner) = controller(&pod.metadata) else { return Ok(None) };
    let key = Key::new(here, &*owner.name);
    let none = || format!("{} {} cannot be found", owner.kind, owner.name);
    match owner.kind.as_str() {
        "ReplicaSet" => {
            let set = views.replica_sets.get(&key).ok_or_else(none)?;
            let above = controller(&set.metadata).filter(|above| above.kind == "Deployment");
            if let Some(above) = above {
                let deployment = views.deployments.get(&Key::new(here, &*above.name));
                let deployment = deployment.ok_or_else(none)?;
                let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas);
                return Ok(Some((above.uid.clone(), wanted.unwrap_or(1))));
            }
            let wanted = set.spec.as_ref().and_then(|spec| spec.replicas);
            Ok(Some((owner.uid.clone(), wanted.unwrap_or(1))))
        }
        "StatefulSet" => {
            let set = views.stateful_sets.get(&key).ok_or_else(none)?;
            let wanted = set.spec.as_ref().and_then(|spec| spec.replicas);
            Ok(Some((owner.uid.clone(), wanted.unwrap_or(1))))
        }
        kind => Err(format!("{kind} does not implement the scale subresource")),
    }
}

pub(super) fn wire(context: &Context, queue: &Queue) {
    let views = &context.views;
    let to = queue.clone();
    views.budgets.on_change(move |change| to.add(change.key.clone()));
    let (to, budgets) = (queue.clone(), Arc::clone(&views.budgets));
    views.pods.on_change(move |change| {
        for pod in change.both() {
            for budget in budgets.in_namespace(namespace(&pod.metadata)) {
                if selects(&budget, pod) {
                    to.add(Key::of(&budget.metadata));
                }
            }
        }
    });
    // The budget depends on the replicas of the pods' owners.
    let (to, budgets) = (queue.clone(), Arc::clone(&views.budgets));
    let all_in = move |namespace: &str| {
        for budget in budgets.in_namespace(namespace) {
            to.add(Key::of(&budget.metadata));
        }
    };
    let resized = all_in.clone();
    views.deployments.on_change(move |change| {
        let size = |one: &k8s_openapi::api::apps::v1::Deployment| {
            one.spec.as_ref().and_then(|spec| spec.replicas)
        };
        if change.old.as_deref().map(size) != change.new.as_deref().map(size) {
            resized(&change.key.namespace);
        }
    });
    views.stateful_sets.on_change(move |change| {
        let size = |one: &k8s_openapi::api::apps::v1::StatefulSet| {
            one.spec.as_ref().and_then(|spec| spec.replicas)
        };
        if change.old.as_deref().map(size) != change.new.as_deref().map(size) {
            all_in(&change.key.namespace);
        }
    });
}

fn selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = selector.and_then(pods::selector);
    selector.is_some_and(|selector| pods::selects(&selector, &pod.metadata))
}

pub(super) async fn reconcile(context: &Context, key: Key) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(budget) = views.budgets.get(&key) else { return Ok(None) };
    let mut pods = views.pods.in_namespace(&key.namespace);
    pods.retain(|pod| selects(&budget, pod));
    let scale = |pod: &Pod| scale_of(views, pod);
    let (status, again) = status(&budget, &pods, &scale, context.clock.now());
    if budget.status.as_ref() != Some(&status) {
        let written = PodDisruptionBudget { status: Some(status), ..(*budget).clone() };
        context.write_status(&views.budgets, &written).await?;
    }
    Ok(again)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::fixtures::{pod, time};
    use serde_json::{Value, from_value, json};

    fn budget(spec: Value) -> PodDisruptionBudget {
        from_value(json!({ "metadata": { "name": "b", "generation": 3 }, "spec": spec })).unwrap()
    }

    fn ready(names: &[&str]) -> Vec<Arc<Pod>> {
        names.iter().map(|name| pod(name).on("n").ready_at(1).arc()).collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn numbers(status: &PodDisruptionBudgetStatus) -> [i32; 4] {
        let all = [
            status.expected_pods,
            status.current_healthy,
            status.desired_healthy,
            status.disruptions_allowed,
        ];
        all.map(Option::unwrap)
    }

    #[test]
    fn budgets_count_what_is_there_or_what_controllers_want() {
        let mut pods = ready(&["a", "b", "c"]);
        pods.push(pod("d").phase("Pending").arc());
        let scale = |_: &Pod| Ok(Some(("owner".to_owned(), 10)));
        let of = |spec: Value| numbers(&status(&budget(spec), &pods, &scale, at(9)).0);
        assert_eq!(of(json!({ "minAvailable": 2 })), [4, 3, 2, 1]);
        assert_eq!(of(json!({ "minAvailable": "25%" })), [10, 3, 3, 0]);
        assert_eq!(of(json!({ "maxUnavailable": 9 })), [10, 3, 1, 2]);
        assert_eq!(of(json!({ "maxUnavailable": "75%" })), [10, 3, 2, 1]);
        let unknown = |_: &Pod| Err("Job does not implement the scale subresource".to_owned());
        let failed = status(&budget(json!({ "maxUnavailable": 1 })), &pods, &unknown, at(9)).0;
        assert_eq!(numbers(&failed)[3], 0);
        assert_eq!(failed.conditions.unwrap()[0].reason, "SyncFailed");
    }

    #[test]
    fn a_pod_that_was_evicted_and_stays_counts_again_after_a_while() {
        let mut budget = budget(json!({ "minAvailable": 1 }));
        let before: BTreeMap<String, Time> = [("a".to_owned(), time(100))].into();
        budget.status = Some(PodDisruptionBudgetStatus {
            disrupted_pods: Some(before),
            ..PodDisruptionBudgetStatus::default()
        });
        let pods = ready(&["a", "b"]);
        let scale = |_: &Pod| Ok(None);
        let (soon, again) = status(&budget, &pods, &scale, at(130));
        assert_eq!(numbers(&soon), [2, 1, 1, 0]);
        assert_eq!(again, Some(Duration::from_secs(90)));
        let (late, again) = status(&budget, &pods, &scale, at(220));
        assert_eq!((numbers(&late), again), ([2, 2, 1, 1], None));
        assert_eq!(late.disrupted_pods, None);
    }
}
