//! The core, told what happens and asked what it wants done.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use berth_api::Lower as _;
use k8s_openapi::api::core::v1 as k8s;
use serde_json::{Value, json};

use super::*;
use crate::watch::{SchedulerNames, seen_pod};

const GPU: &str = "nvidia.com/gpu";

/// A core with one node of eight GPUs.
fn core() -> Core {
    let mut core = Core::new(Settings::default());
    let amounts = json!({ "cpu": "64", "memory": "512Gi", "pods": "110", GPU: "8" });
    let node: k8s::Node = serde_json::from_value(json!({
        "metadata": { "name": "n1" },
        "status": { "allocatable": amounts, "capacity": amounts,
                    "conditions": [{ "type": "Ready", "status": "True" }] },
    }))
    .unwrap();
    core.apply(Update::Other(Event::Node(node.lower().unwrap())), 0);
    core
}

fn pod(name: &str, version: u64, gpus: u32, more: &Value) -> SeenPod {
    let limits = json!({ "cpu": "1", "memory": "1Gi", GPU: gpus.to_string() });
    let mut pod = json!({
        "metadata": { "name": name, "namespace": "team", "uid": format!("uid-{name}"),
                      "resourceVersion": version.to_string() },
        "spec": { "schedulerName": "berth",
                  "containers": [{ "name": "c", "resources": { "limits": limits, "requests": limits } }] },
    });
    for (part, fields) in more.as_object().unwrap() {
        for (field, value) in fields.as_object().unwrap() {
            pod[part][field] = value.clone();
        }
    }
    let names: SchedulerNames = [Arc::from("berth")].into();
    seen_pod(&serde_json::from_value(pod).unwrap(), &names).unwrap()
}

fn on_node() -> Value {
    json!({ "spec": { "nodeName": "n1" } })
}

fn annotated(memory: &str) -> Value {
    json!({ "metadata": { "annotations": { "berth.dev/gpu-memory": memory } } })
}

/// A turn, and what there is to tell after it.
fn turn(core: &mut Core, now_ms: i64) -> Vec<Effect> {
    let mut effects = core.turn(now_ms);
    if core.can_explain(now_ms) {
        effects.extend(core.explain_some(now_ms));
    }
    effects
}

/// The pods that a turn announces.
fn announced(core: &mut Core, now_ms: i64) -> Vec<String> {
    let effects = turn(core, now_ms);
    let pods = effects.iter().filter_map(|effect| match effect {
        Effect::Announce(pods) => Some(pods.iter().map(|pod| pod.name.to_string())),
        _ => None,
    });
    pods.flatten().collect()
}

fn events(effects: &[Effect]) -> Vec<&EventNote> {
    let told = effects.iter().filter_map(|effect| match effect {
        Effect::WriteStatus(told) => told.event.as_ref(),
        _ => None,
    });
    told.collect()
}

#[test]
fn a_bound_pod_counts_whatever_its_annotations_say() {
    for more in [json!({}), json!({ "labels": { "berth.dev/gang-size": "many" } })] {
        let mut core = core();
        let mut bad = annotated("-1");
        bad["spec"] = json!({ "nodeName": "n1", "schedulerName": "another" });
        for (field, value) in more.as_object().unwrap() {
            bad["metadata"][field] = value.clone();
        }
        core.apply(Update::Pod(Box::new(pod("holder", 1, 8, &bad))), 0);
        core.apply(Update::Pod(Box::new(pod("next", 2, 1, &json!({})))), 0);
        let effects = turn(&mut core, 0);
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Announce(_))), "{effects:?}");
        let told = events(&effects);
        let note = told.iter().find(|event| event.reason == "InvalidRequest").unwrap();
        assert!(note.warning && note.note.contains("berth.dev/gpu-memory"), "{note:?}");
    }
}

#[test]
fn a_bound_pod_holds_what_it_was_given_after_its_owner_rewrites_the_annotation() {
    let mut core = core();
    let share = |memory: &str| {
        let mut more = annotated(memory);
        let placement = json!({ "grant": { "resource": GPU, "gpu": 3 } });
        more["metadata"]["annotations"]["berth.dev/placement"] = json!(placement.to_string());
        more["spec"] = json!({ "nodeName": "n1" });
        more
    };
    core.apply(Update::Pod(Box::new(pod("share", 1, 0, &share("16Gi")))), 0);
    let held = core.pod("uid-share").unwrap().object.clone();
    assert_eq!(held.spec.gpu.unwrap().memory_bytes, 16 << 30);
    for (version, memory) in [(2, "-1"), (3, "1Mi")] {
        let mut rewritten = share(memory);
        rewritten["metadata"]["annotations"]["berth.dev/placement"] = json!("{}");
        core.apply(Update::Pod(Box::new(pod("share", version, 0, &rewritten))), 0);
        let now = &core.pod("uid-share").unwrap().object;
        assert_eq!((now.spec.gpu, &now.gpu_grant), (held.spec.gpu, &held.gpu_grant), "{memory}");
    }
    // First seen with it, after a restart: all of the GPU counts, as the grant can still be read.
    let mut core = self::core();
    core.apply(Update::Pod(Box::new(pod("share", 2, 0, &share("-1")))), 0);
    assert_eq!(core.pod("uid-share").unwrap().object.spec.gpu.unwrap().compute_milli, 1000);
}

#[test]
fn a_pending_pod_that_cannot_be_read_is_told_which_field_and_scheduled_once_it_can() {
    let mut core = core();
    core.apply(Update::Pod(Box::new(pod("p", 1, 1, &annotated("-1")))), 0);
    let effects = turn(&mut core, 0);
    let told = effects.iter().find_map(|effect| match effect {
        Effect::WriteStatus(told) => told.condition.clone(),
        _ => None,
    });
    let condition = told.unwrap();
    assert_eq!(&*condition.reason, INVALID);
    let field = "metadata.annotations[berth.dev/gpu-memory]: ";
    assert!(condition.message.starts_with(field), "{}", condition.message);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Announce(_))));
    core.apply(Update::Pod(Box::new(pod("p", 2, 1, &json!({})))), 1);
    assert_eq!(announced(&mut core, 1), ["p"]);
}

#[test]
fn a_pod_that_becomes_invalid_while_its_binding_is_in_flight_is_told_so() {
    let mut core = core();
    core.apply(Update::Pod(Box::new(pod("p", 1, 1, &json!({})))), 0);
    assert_eq!(announced(&mut core, 0), ["p"]);
    core.apply(Update::Pod(Box::new(pod("p", 2, 1, &annotated("-1")))), 1);
    // It is time to write conditions, but its binding may still land.
    assert!(turn(&mut core, 2_000).is_empty());
    core.settle(Completion::Announced, 2_001);
    let effects: Vec<Effect> =
        (2_001..6_000).step_by(500).flat_map(|at| turn(&mut core, at)).collect();
    let told = effects.iter().find_map(|effect| match effect {
        Effect::WriteStatus(told) => told.condition.clone(),
        _ => None,
    });
    assert_eq!(told.map(|condition| condition.reason).as_deref(), Some(INVALID), "{effects:?}");
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Bind(_))), "{effects:?}");
}

#[test]
fn a_pod_that_cannot_be_fenced_waits_alone_until_it_is() {
    let mut core = core();
    let fat = pod("fat", 1, 1, &json!({}));
    core.isolate(fat.reference(), "the API server refuses to change it", 0);
    core.apply(Update::Pod(Box::new(fat.clone())), 0);
    core.apply(Update::Pod(Box::new(pod("other", 2, 1, &json!({})))), 0);
    let effects = turn(&mut core, 0);
    let orders: Vec<&Effect> =
        effects.iter().filter(|effect| matches!(effect, Effect::Announce(_))).collect();
    let [Effect::Announce(pods)] = &orders[..] else { panic!("{effects:?}") };
    assert_eq!(pods.iter().map(|pod| &*pod.name).collect::<Vec<_>>(), ["other"]);
    // Attempts follow at longer and longer intervals, one at a time.
    let (mut attempts, mut is_told) = (Vec::new(), false);
    for now_ms in (0..200_000).step_by(500) {
        let effects = turn(&mut core, now_ms);
        is_told |= events(&effects).iter().any(|event| event.reason == "FencingFailed");
        for effect in effects {
            if let Effect::Fence(pod) = effect {
                attempts.push(now_ms);
                core.settle(Completion::Fenced(pod.uid, false), now_ms);
            }
        }
    }
    assert!(is_told && (4..10).contains(&attempts.len()), "{attempts:?}");
    core.settle(Completion::Announced, 200_000);
    core.settle(Completion::Fenced(fat.object.uid.clone(), true), 200_000);
    let effects = turn(&mut core, 200_000);
    let settled = effects
        .iter()
        .any(|effect| matches!(effect, Effect::Settle(pods) if pods.contains(&fat.reference())));
    assert!(settled, "it leaves the Lease: {effects:?}");
    assert_eq!(core.unfenced().len(), 0);
    let decided = effects
        .iter()
        .any(|effect| matches!(effect, Effect::Announce(pods) if pods.contains(&fat.reference())));
    assert!(decided, "{effects:?}");
}

/// The pods that effects of one kind are about.
fn fences(effects: &[Effect]) -> Vec<&str> {
    let pods = effects.iter().filter_map(|effect| match effect {
        Effect::Fence(pod) => Some(&*pod.name),
        _ => None,
    });
    pods.collect()
}

fn settles(effects: &[Effect], pod: &SeenPod) -> bool {
    let pod = pod.reference();
    effects.iter().any(|effect| matches!(effect, Effect::Settle(pods) if pods.contains(&pod)))
}

/// A pod whose binding is posted at this time.
fn posted(core: &mut Core, name: &str, now_ms: i64) -> SeenPod {
    let seen = pod(name, 1, 1, &json!({}));
    core.apply(Update::Pod(Box::new(seen.clone())), now_ms);
    assert_eq!(announced(core, now_ms), [name]);
    core.settle(Completion::Announced, now_ms);
    assert!(turn(core, now_ms).iter().any(|effect| matches!(effect, Effect::Bind(_))));
    seen
}

#[test]
fn a_pod_that_waits_for_its_volume_is_fenced_if_an_earlier_binding_is_in_doubt() {
    let mut core = core();
    let seen = posted(&mut core, "p", 0);
    let uid = &seen.object.uid;
    core.settle(Completion::Bound(uid.clone(), BindOutcome::Unknown), 0);
    let look_at_ms = core.next_turn_ms(0).unwrap();
    let effects = turn(&mut core, look_at_ms);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::ReadPod(_))), "{effects:?}");
    core.apply(Update::Pod(Box::new(seen.clone())), look_at_ms);
    turn(&mut core, look_at_ms);
    core.settle(Completion::Bound(uid.clone(), BindOutcome::NotReady), look_at_ms);
    let effects = turn(&mut core, look_at_ms);
    assert_eq!(fences(&effects), ["p"]);
    assert_eq!(core.unsettled(), 1, "an earlier binding may still land");
    assert!(!settles(&effects, &seen));
    // Then it waits like any other, and keeps its place.
    core.settle(Completion::Fenced(uid.clone(), true), look_at_ms);
    let effects = turn(&mut core, look_at_ms);
    assert_eq!(core.unsettled(), 0);
    assert!(settles(&effects, &seen), "{effects:?}");
    core.apply(Update::Pod(Box::new(pod("p", 2, 1, &json!({})))), look_at_ms);
    let again_ms = look_at_ms + 5_000;
    assert_eq!(announced(&mut core, again_ms), ["p"]);
}

#[test]
fn a_pod_whose_claims_cannot_be_written_or_fenced_waits_alone() {
    let mut core = core();
    let seen = posted(&mut core, "p", 0);
    let uid = &seen.object.uid;
    core.settle(Completion::Bound(uid.clone(), BindOutcome::Unprepared), 0);
    assert_eq!(fences(&turn(&mut core, 0)), ["p"]);
    core.settle(Completion::Fenced(uid.clone(), false), 0);
    let effects = turn(&mut core, 0);
    assert!(events(&effects).iter().any(|event| event.reason == "FencingFailed"), "{effects:?}");
    assert!(!settles(&effects, &seen), "the Lease names it until it is fenced");
    assert_eq!((core.unsettled(), core.unfenced().len()), (0, 1));
    // Others have its place, and it is tried again until it can be fenced.
    core.apply(Update::Pod(Box::new(pod("large", 3, 8, &json!({})))), 1);
    assert_eq!(announced(&mut core, 1), ["large"]);
    core.settle(Completion::Announced, 1);
    core.apply(Update::PodGone("uid-large".into()), 2);
    let again_ms = 60_000;
    assert_eq!(fences(&turn(&mut core, again_ms)), ["p"]);
    core.settle(Completion::Fenced(uid.clone(), true), again_ms);
    let effects = turn(&mut core, again_ms);
    assert!(settles(&effects, &seen), "{effects:?}");
    assert_eq!(core.unfenced().len(), 0);
}

#[test]
fn pods_that_cannot_be_fenced_leave_room_in_the_lease() {
    let mut core = core();
    for number in 0..=UNFENCED_LISTED_MAX {
        let seen = posted(&mut core, &format!("p{number}"), 0);
        core.settle(Completion::Bound(seen.object.uid.clone(), BindOutcome::Unprepared), 0);
        turn(&mut core, 0);
        core.settle(Completion::Fenced(seen.object.uid.clone(), false), 0);
        assert_eq!(settles(&turn(&mut core, 0), &seen), number == UNFENCED_LISTED_MAX, "{number}");
    }
    assert_eq!((core.unsettled(), core.unfenced().len()), (0, UNFENCED_LISTED_MAX + 1));
}

#[test]
fn a_pod_whose_claims_cannot_be_written_is_decided_again_in_the_end() {
    let mut core = core();
    let seen = posted(&mut core, "p", 0);
    let uid = &seen.object.uid;
    let (mut now_ms, mut attempts, mut version) = (0, 0, 1);
    loop {
        attempts += 1;
        core.settle(Completion::Bound(uid.clone(), BindOutcome::Unprepared), now_ms);
        turn(&mut core, now_ms);
        core.settle(Completion::Fenced(uid.clone(), true), now_ms);
        version += 1;
        core.apply(Update::Pod(Box::new(pod("p", version, 1, &json!({})))), now_ms);
        assert_eq!(core.unsettled(), 0);
        now_ms += 30_000;
        let effects = turn(&mut core, now_ms);
        core.settle(Completion::Announced, now_ms);
        let effects = [effects, turn(&mut core, now_ms)].concat();
        let binding = effects.iter().find_map(|effect| match effect {
            Effect::Bind(order) => Some(order.clone()),
            _ => None,
        });
        if binding.unwrap().attempts == 0 {
            break;
        }
        assert!(attempts < 100);
    }
    assert!(now_ms >= Settings::default().prepare_max_ms, "{now_ms}");
}

#[test]
fn an_unfenced_pod_that_turns_out_to_be_bound_counts_on_its_node() {
    let mut core = core();
    let fat = pod("fat", 1, 8, &json!({}));
    core.isolate(fat.reference(), "it was late", 0);
    core.apply(Update::Pod(Box::new(fat)), 0);
    core.apply(Update::Pod(Box::new(pod("fat", 2, 8, &on_node()))), 0);
    core.apply(Update::Pod(Box::new(pod("other", 3, 1, &json!({})))), 0);
    assert_eq!(core.unfenced().len(), 0);
    assert_eq!(announced(&mut core, 0), [""; 0]);
}

#[test]
fn a_condition_names_no_pods_of_other_namespaces() {
    let mut core = core();
    let mut victim = on_node();
    victim["metadata"] = json!({ "namespace": "secret", "name": "hidden-name" });
    victim["spec"]["priority"] = json!(0);
    core.apply(Update::Pod(Box::new(pod("victim", 1, 8, &victim))), 0);
    let asking = json!({ "spec": { "priority": 0, "preemptionPolicy": "Never" } });
    core.apply(Update::Pod(Box::new(pod("asks", 2, 8, &asking))), 0);
    let effects = turn(&mut core, 0);
    let told = effects.iter().find_map(|effect| match effect {
        Effect::WriteStatus(told) => told.condition.clone(),
        _ => None,
    });
    let message = told.unwrap().message;
    assert!(!message.contains("hidden-name") && !message.contains("secret"), "{message}");
    assert!(message.contains("1 pod in another namespace left n1"), "{message}");
}

/// A pod with four GPUs on the node, whose label `app` is its name.
fn running(name: &str, version: u64, priority: i32) -> Update {
    let more = json!({ "metadata": { "labels": { "app": name } },
                       "spec": { "nodeName": "n1", "priority": priority } });
    Update::Pod(Box::new(pod(name, version, 4, &more)))
}

/// The pods that are evicted, and for which pod.
fn evictions(effects: &[Effect]) -> Vec<(&str, &str)> {
    let orders = effects.iter().filter_map(|effect| match effect {
        Effect::Evict(order) => Some((&*order.pod.name, order.waiting.as_deref().unwrap_or(""))),
        _ => None,
    });
    orders.collect()
}

#[test]
fn a_pod_that_counts_on_the_eviction_of_another_does_not_wait_for_it_once_it_is_blocked() {
    let mut core = core();
    core.apply(running("kept", 1, 0), 0);
    core.apply(running("firm", 2, 1_000), 0);
    let asks = |name: &str, version: u64, priority: i32| {
        let more = json!({ "spec": { "priority": priority } });
        Update::Pod(Box::new(pod(name, version, 4, &more)))
    };
    core.apply(asks("first", 3, 10), 0);
    assert_eq!(evictions(&turn(&mut core, 0)), [("kept", "uid-first")]);
    core.apply(asks("second", 4, 100), 1);
    assert_eq!(evictions(&turn(&mut core, 1)), []);
    core.settle(Completion::Evicted("uid-kept".into(), EvictOutcome::Blocked), 2);
    let mut asked = BTreeSet::new();
    for now_ms in (2..60_000).step_by(500) {
        let effects = turn(&mut core, now_ms);
        for (victim, waiting) in evictions(&effects) {
            asked.insert(waiting.to_owned());
            let victim = format!("uid-{victim}").into();
            core.settle(Completion::Evicted(victim, EvictOutcome::Blocked), now_ms);
        }
    }
    assert!(asked.contains("uid-second"), "{asked:?}");
}

#[test]
fn nobody_is_evicted_in_vain_beside_a_pod_that_a_budget_keeps() {
    let mut core = core();
    let budget: k8s_openapi::api::policy::v1::PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": { "name": "b", "namespace": "team" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "kept" } } },
        "status": { "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1,
                    "expectedPods": 1 },
    }))
    .unwrap();
    core.apply(Update::Other(Event::Budget(budget.lower().unwrap())), 0);
    core.apply(running("kept", 1, 0), 0);
    core.apply(running("free", 2, 0), 0);
    let important = json!({ "spec": { "priority": 1000 } });
    core.apply(Update::Pod(Box::new(pod("asks", 3, 8, &important))), 0);
    assert_eq!(evictions(&turn(&mut core, 0)), [("kept", "uid-asks")]);
    core.settle(Completion::Evicted("uid-kept".into(), EvictOutcome::Blocked), 1);
    assert_eq!(evictions(&turn(&mut core, 1)), []);
    // Later it is tried again, and this time the budget allows it.
    let again =
        (0..60_000).step_by(500).find(|now_ms| !evictions(&turn(&mut core, *now_ms)).is_empty());
    let now_ms = again.unwrap();
    core.settle(Completion::Evicted("uid-kept".into(), EvictOutcome::Going), now_ms);
    assert_eq!(evictions(&turn(&mut core, now_ms)), [("free", "uid-asks")]);
}

/// How many of 500 pods that fit nowhere are explained in ten seconds, if a write takes `write_ms`.
fn explained(write_ms: i64) -> usize {
    let mut core = core();
    for number in 0..500 {
        core.apply(Update::Pod(Box::new(pod(&format!("p{number}"), 1, 16, &json!({})))), 0);
    }
    let mut writing: Vec<(i64, Arc<str>)> = Vec::new();
    let mut count = 0;
    for now_ms in (0..10_000).step_by(10) {
        for (_, uid) in writing.extract_if(.., |(done_ms, _)| *done_ms <= now_ms) {
            core.settle(Completion::StatusWritten(uid, true), now_ms);
        }
        for effect in turn(&mut core, now_ms) {
            if let Effect::WriteStatus(told) = effect {
                writing.push((now_ms + write_ms, told.pod.uid));
                count += 1;
            }
        }
        assert!(writing.len() <= Settings::default().status_writes_max);
    }
    count
}

#[test]
fn explanations_leave_a_slow_api_server_most_of_its_time() {
    assert_eq!(explained(10), 500, "a fast one takes all");
    // Eight writes of 100 ms at a time, then 300 ms of which nothing is written.
    assert!((190..=210).contains(&explained(100)), "{}", explained(100));
}
