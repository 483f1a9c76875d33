//! Whether disruption budgets allow an eviction.
//!
//! A budget that is charged is returned, to be written with a check of its revision; if that fails, the caller asks
//! again.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::kinds::Resource;
use crate::status::Status;
use crate::validate::selects;

/// Evictions that a budget tracks at once.
const MAX_DISRUPTED_PODS: usize = 2000;
/// Retry-After while the controller has not processed a changed budget.
const UNPROCESSED_RETRY_SECONDS: u32 = 10;

#[derive(Clone, Debug, PartialEq)]
pub enum Eligibility {
    /// No budget applies.
    Free,
    /// Allowed while the pod is unready: delete it only at this revision.
    AsItIs,
    /// Allowed; this charged budget must be written first.
    Charged(Box<Value>),
}

fn number(budget: &Value, name: &str) -> i64 {
    budget.pointer(&format!("/status/{name}")).and_then(Value::as_i64).unwrap_or(0)
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| {
        text(condition, "/type") == "Ready" && text(condition, "/status") == "True"
    })
}

/// Asks the budgets of a pod's namespace.
///
/// # Errors
///
/// 429 if a budget forbids it now, 500 if several budgets mean the pod.
pub fn may_evict<'a>(
    pod: &Value,
    budgets: impl IntoIterator<Item = &'a Value>,
    now: Timestamp,
) -> Result<Eligibility, Status> {
    let phase = text(pod, "/status/phase");
    let going = pod.pointer("/metadata/deletionTimestamp").is_some();
    if going || matches!(phase, "Succeeded" | "Failed" | "Pending") {
        return Ok(Eligibility::Free);
    }
    let labels = pod.pointer("/metadata/labels");
    if labels.and_then(Value::as_object).is_none_or(Map::is_empty) {
        return Ok(Eligibility::Free);
    }
    let means = |budget: &&Value| selects(budget.pointer("/spec/selector"), labels);
    let mut concerned = budgets.into_iter().filter(means);
    let Some(budget) = concerned.next() else { return Ok(Eligibility::Free) };
    if concerned.next().is_some() {
        return Err(Status {
            code: 500,
            reason: "",
            message: "This pod has more than one PodDisruptionBudget, which the eviction \
                      subresource does not support."
                .to_owned(),
            details: None,
        });
    }
    if !is_ready(pod) {
        let always = text(budget, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow";
        let desired = number(budget, "desiredHealthy");
        if always || desired > 0 && number(budget, "currentHealthy") >= desired {
            return Ok(Eligibility::AsItIs);
        }
    }
    charge(budget, text(pod, "/metadata/name"), now)
}

fn charge(budget: &Value, pod: &str, now: Timestamp) -> Result<Eligibility, Status> {
    let name = text(budget, "/metadata/name");
    let refuse = |retry: u32, why: String| {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        Status::too_many_requests(message, retry).with_cause("DisruptionBudget", why, "")
    };
    let generation = budget.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
    if number(budget, "observedGeneration") < generation {
        let why = format!("The disruption budget {name} is still being processed by the server.");
        return Err(refuse(UNPROCESSED_RETRY_SECONDS, why));
    }
    let forbidden =
        |why: &str| Status::forbidden(&Resource::new("policy", "poddisruptionbudget"), name, why);
    let allowed = number(budget, "disruptionsAllowed");
    if allowed < 0 {
        return Err(forbidden("pdb disruptions allowed is negative"));
    }
    let disrupted = budget.pointer("/status/disruptedPods").and_then(Value::as_object);
    if disrupted.is_some_and(|pods| pods.len() > MAX_DISRUPTED_PODS) {
        return Err(forbidden(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        let why = format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            number(budget, "desiredHealthy"),
            number(budget, "currentHealthy")
        );
        return Err(refuse(0, why));
    }
    let mut charged = budget.clone();
    if let Some(status) = charged.get_mut("status").and_then(Value::as_object_mut) {
        status.insert("disruptionsAllowed".to_owned(), json!(allowed - 1));
        let pods = status.entry("disruptedPods").or_insert_with(|| json!({}));
        pods[pod] = Value::from(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        if allowed == 1 {
            exhausted(status, generation, now);
        }
    }
    Ok(Eligibility::Charged(Box::new(charged)))
}

fn exhausted(status: &mut Map<String, Value>, generation: i64, now: Timestamp) {
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else { return };
    let told = json!({
        "type": "DisruptionAllowed",
        "status": "False",
        "reason": "InsufficientPods",
        "message": "",
        "observedGeneration": generation,
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    });
    let same = |one: &&mut Value| text(one, "/type") == "DisruptionAllowed";
    match conditions.iter_mut().find(same) {
        Some(condition) if text(condition, "/status") != "False" => *condition = told,
        Some(_) => {}
        None => conditions.push(told),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(ready: &str) -> Value {
        json!({
            "metadata": {"name": "p", "labels": {"a": "b"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}
        })
    }

    fn budget(allowed: i64) -> Value {
        json!({
            "metadata": {"name": "b", "generation": 1},
            "spec": {"selector": {"matchLabels": {"a": "b"}}},
            "status": {
                "observedGeneration": 1,
                "disruptionsAllowed": allowed,
                "currentHealthy": 2,
                "desiredHealthy": 2
            }
        })
    }

    fn now() -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    #[test]
    fn a_budget_with_nothing_left_says_how_many_it_needs() {
        let refused = may_evict(&pod("True"), [&budget(0)], now()).unwrap_err();
        assert_eq!(refused.code, 429);
        let cause = &refused.details.unwrap().causes[0];
        assert_eq!(cause.reason, "DisruptionBudget");
        assert_eq!(
            cause.message,
            "The disruption budget b needs 2 healthy pods and has 2 currently"
        );
    }

    #[test]
    fn an_eviction_is_taken_from_the_budget() {
        let Ok(Eligibility::Charged(charged)) = may_evict(&pod("True"), [&budget(1)], now()) else {
            panic!("not charged")
        };
        assert_eq!(charged["status"]["disruptionsAllowed"], 0);
        assert_eq!(charged["status"]["disruptedPods"]["p"], "1970-01-01T00:00:00Z");
        assert_eq!(charged["status"]["conditions"][0]["status"], "False");
    }

    #[test]
    fn unready_pods_go_while_enough_others_are_healthy() {
        assert_eq!(may_evict(&pod("False"), [&budget(0)], now()).unwrap(), Eligibility::AsItIs);
        let mut short = budget(0);
        short["status"]["currentHealthy"] = json!(1);
        assert_eq!(may_evict(&pod("False"), [&short], now()).unwrap_err().code, 429);
        short["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
        assert_eq!(may_evict(&pod("False"), [&short], now()).unwrap(), Eligibility::AsItIs);
    }

    #[test]
    fn two_budgets_are_one_too_many() {
        let refused = may_evict(&pod("True"), [&budget(1), &budget(1)], now()).unwrap_err();
        assert_eq!(refused.code, 500);
        let mut waiting = pod("True");
        waiting["status"]["phase"] = json!("Pending");
        assert_eq!(may_evict(&waiting, [&budget(0)], now()).unwrap(), Eligibility::Free);
    }
}
