//! Reviews as the API server sends them, and as nobody should.

use axum::body::Body;
use axum::http::Request as HttpRequest;
use base64::Engine as _;
use berth_testkit::cluster::Dice;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;

fn feed() -> ContextFeed {
    let feed = ContextFeed::default();
    let node = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "pool": "gpu", "kubernetes.io/hostname": name } },
            "spec": { "taints": [{ "key": "nvidia.com/gpu", "effect": "NoSchedule" }] },
            "status": { "allocatable": { "cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8" } },
        })
    };
    for object in [
        node("n1"),
        node("n2"),
        json!({ "apiVersion": "v1", "kind": "Namespace",
                "metadata": { "name": "search", "labels": { "team": "search", "cost-center": "7" } } }),
        json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 5,
                "metadata": { "name": "ordinary" }, "globalDefault": true }),
    ] {
        feed.put(object).unwrap();
    }
    feed.refresh();
    feed
}

fn webhook(settings: Value) -> Webhook {
    let settings: Settings = serde_json::from_value(settings).unwrap();
    Webhook::new(settings, feed(), Metrics::new()).unwrap()
}

/// Asks for a GPU without a limit (BERTH-101, an error) and without a toleration (BERTH-201, a warning).
fn bad_pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "llm", "labels": { "berth.dev/class": "batch" } },
        "spec": { "restartPolicy": "Never", "activeDeadlineSeconds": 3600,
                  "schedulerName": "default-scheduler", "priorityClassName": "ordinary", "priority": 5,
                  "containers": [{ "name": "c", "image": "llm:1.2",
                    "resources": { "requests": { "nvidia.com/gpu": "1" } } }] },
    })
}

fn deployment(pod: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "llm" },
        "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "llm" } }, "template": {
            "metadata": { "labels": { "app": "llm" } }, "spec": pod["spec"] } },
    })
}

fn review(operation: &str, namespace: &str, object: &Value, old: &Value) -> Vec<u8> {
    let kind = object["kind"].as_str().unwrap_or("Pod");
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "kind": { "group": "", "version": "v1", "kind": kind },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "namespace": namespace, "operation": operation, "object": object, "oldObject": old,
            "userInfo": { "username": "jane" }, "dryRun": false,
        },
    })
    .to_string()
    .into_bytes()
}

fn create(object: &Value) -> Vec<u8> {
    review("CREATE", "search", object, &Value::Null)
}

fn validated(webhook: &Webhook, body: &[u8]) -> Value {
    webhook.validate(body).unwrap()["response"].clone()
}

#[test]
fn a_breach_is_denied_with_code_field_and_fix_or_only_warned_of() {
    let response = validated(&webhook(json!({ "mode": "enforce" })), &create(&bad_pod()));
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u-1"), &json!(false)));
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("[BERTH-101] spec.containers[0].resources.limits"), "{message}");
    assert!(message.contains("Fix: "), "{message}");
    assert_eq!(response["status"]["code"], 403);
    let warnings = response["warnings"].to_string();
    assert!(warnings.contains("BERTH-201") && !warnings.contains("BERTH-101"), "{warnings}");

    let response = validated(&webhook(json!({ "mode": "warn" })), &create(&bad_pod()));
    assert_eq!(response["allowed"], true);
    assert!(response["warnings"].to_string().contains("BERTH-101"));

    let dry = webhook(json!({ "mode": "dry-run" }));
    let response = validated(&dry, &create(&bad_pod()));
    assert_eq!(response, json!({ "uid": "u-1", "allowed": true }));
    let figures = dry.0.metrics.encode();
    assert!(figures.contains("verdict=\"would-deny\"} 1"), "{figures}");
    assert!(figures.contains("rule=\"BERTH-101\",severity=\"error\"} 1"), "{figures}");
}

#[test]
fn what_counts_as_grave_is_a_setting() {
    let strict = webhook(json!({ "mode": "enforce", "deny": "warning" }));
    let message = validated(&strict, &create(&bad_pod()))["status"]["message"].to_string();
    assert!(message.contains("BERTH-201"), "{message}");
    let off = json!({ "mode": "enforce", "contract": { "disabled": ["BERTH-101"] } });
    assert_eq!(validated(&webhook(off), &create(&bad_pod()))["allowed"], true);
    let unknown: Settings =
        serde_json::from_value(json!({ "contract": { "disabled": ["BERTH-999"] } })).unwrap();
    assert!(Webhook::new(unknown, feed(), Metrics::new()).is_err());
    assert!(serde_json::from_value::<Settings>(json!({ "mod": "warn" })).is_err());
}

#[test]
fn a_pod_that_is_being_created_is_not_one_that_runs() {
    let mut pod = bad_pod();
    pod["metadata"]["uid"] = json!("given-by-the-api-server");
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": "n1" });
    let response = validated(&webhook(json!({ "mode": "warn" })), &create(&pod));
    assert!(response["warnings"].to_string().contains("BERTH-206"), "{response}");
}

#[test]
fn exempt_namespaces_deletions_and_subresources_are_left_alone() {
    let webhook = webhook(json!({ "mode": "enforce", "exemptNamespaces": ["sandbox"] }));
    let bare = json!({ "uid": "u-1", "allowed": true });
    for namespace in ["kube-system", "sandbox"] {
        let body = review("CREATE", namespace, &bad_pod(), &Value::Null);
        assert_eq!(validated(&webhook, &body), bare, "{namespace}");
    }
    assert_eq!(validated(&webhook, &review("DELETE", "search", &Value::Null, &bad_pod())), bare);
    assert_eq!(validated(&webhook, &review("UPDATE", "search", &bad_pod(), &bad_pod())), bare);
    let mut leaving = deployment(&bad_pod());
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(validated(&webhook, &create(&leaving)), bare);
}

#[test]
fn what_was_wrong_before_does_not_block_other_changes() {
    let webhook = webhook(json!({ "mode": "enforce" }));
    let old = deployment(&bad_pod());
    assert_eq!(validated(&webhook, &create(&old))["allowed"], false);
    let mut scaled = old.clone();
    scaled["spec"]["replicas"] = json!(1);
    let response = validated(&webhook, &review("UPDATE", "search", &scaled, &old));
    assert_eq!(response["allowed"], true, "{response}");
    assert!(response["warnings"].to_string().contains("BERTH-101"));
    let mut good = old.clone();
    good["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({ "limits": { "nvidia.com/gpu": "1" } });
    let response = validated(&webhook, &review("UPDATE", "search", &old, &good));
    assert_eq!(response["allowed"], false, "{response}");
}

fn patched(webhook: &Webhook, object: &Value) -> Option<Value> {
    let response = webhook.mutate(&create(object)).unwrap()["response"].clone();
    assert_eq!(response["allowed"], true);
    let patch = response["patch"].as_str()?;
    let patch = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    let mut object = object.clone();
    // As the API server applies it: to the object as it was sent.
    json_patch::patch(&mut object, &patch).unwrap();
    Some(object)
}

#[test]
fn only_what_is_turned_on_is_changed_and_only_for_gpus() {
    assert_eq!(patched(&webhook(json!({})), &bad_pod()), None);
    let all = webhook(json!({ "mutations": {
        "toleration": true, "schedulerName": "berth", "copyLabels": ["team", "cost-center", "x"],
        "priorityClasses": { "batch": "low" }, "defaultShares": { "batch": "30%" },
    } }));
    let pod = patched(&all, &bad_pod()).unwrap();
    let spec = &pod["spec"];
    assert_eq!(spec["schedulerName"], "berth");
    assert_eq!((&spec["priorityClassName"], spec.get("priority")), (&json!("low"), None));
    assert_eq!(spec["tolerations"][0]["key"], "nvidia.com/gpu");
    let labels = json!({ "berth.dev/class": "batch", "team": "search", "cost-center": "7" });
    assert_eq!(pod["metadata"]["labels"], labels);
    assert!(pod["metadata"].get("annotations").is_none());
    // Once is enough.
    assert_eq!(patched(&all, &pod), None);

    let mut web = bad_pod();
    web["spec"]["containers"][0]["resources"] = json!({});
    assert_eq!(patched(&all, &web), None);

    let mut share = web.clone();
    share["metadata"]["annotations"] = json!({ "berth.dev/gpu-memory": "16Gi" });
    let share = patched(&all, &share).unwrap();
    assert_eq!(share["metadata"]["annotations"]["berth.dev/gpu-compute"], "30%");

    let made = patched(&all, &deployment(&bad_pod())).unwrap();
    let template = &made["spec"]["template"];
    assert_eq!(template["spec"]["schedulerName"], "berth");
    assert_eq!(template["metadata"]["labels"]["team"], "search");
    assert_eq!(made["spec"].get("schedulerName"), None);
}

#[test]
fn what_a_pod_says_itself_stays() {
    let all = webhook(json!({ "mutations": {
        "schedulerName": "berth", "copyLabels": ["team"], "priorityClasses": { "batch": "low" },
    } }));
    let mut pod = bad_pod();
    pod["spec"]["schedulerName"] = json!("volcano");
    pod["spec"]["priorityClassName"] = json!("high");
    pod["metadata"]["labels"]["team"] = json!("own");
    assert_eq!(patched(&all, &pod), None);
    let dry = webhook(json!({ "mode": "dry-run", "mutations": { "schedulerName": "berth" } }));
    assert_eq!(patched(&dry, &bad_pod()), None);
}

#[test]
fn whatever_is_no_review_is_an_error_with_a_reason() {
    let webhook = webhook(json!({ "mode": "enforce" }));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep = format!(r#"{{"request":{{"uid":"u","kind":{{"kind":"Pod"}},"object":{deep}}}}}"#);
    let cases: Vec<(&[u8], &str)> = vec![
        (b"", "not an AdmissionReview"),
        (b"\xff\xfe{", "not an AdmissionReview"),
        (b"{\"apiVersion\":\"v1\",\"kind\":\"Pod\"}", "send an AdmissionReview"),
        (b"{\"apiVersion\":\"admission.k8s.io/v1\",\"kind\":\"AdmissionReview\"}", "no request"),
        (b"{\"apiVersion\":\"admission.k8s.io/v1beta1\",\"kind\":\"AdmissionReview\"}", "v1"),
        (deep.as_bytes(), "recursion limit"),
        (
            br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",
                 "request":{"uid":"","kind":{"kind":"Pod"}}}"#,
            "no uid",
        ),
    ];
    for (body, said) in cases {
        let error = webhook.validate(body).unwrap_err();
        assert!(error.contains(said), "{error}");
        assert!(webhook.mutate(body).is_err());
    }
}

#[test]
fn a_review_that_was_tampered_with_is_answered_or_an_error() {
    let all = json!({ "schedulerName": "berth", "copyLabels": ["team"], "toleration": true });
    let webhook = webhook(json!({ "mode": "enforce", "mutations": all }));
    let whole = create(&deployment(&bad_pod()));
    let mut dice = Dice::new(2);
    let (mut answered, mut rejected) = (0, 0);
    for _ in 0..1_000 {
        let mut text = whole.clone();
        let at = dice.below(text.len());
        let piece: &[u8] =
            [b"[".as_slice(), b"\xff", b"-", b"null", b"{}", b"1e999"][dice.below(6)];
        text.splice(at..(at + dice.below(12)).min(text.len()), piece.iter().copied());
        for answer in [webhook.validate(&text), webhook.mutate(&text)] {
            match answer {
                Ok(_) => answered += 1,
                Err(why) => {
                    assert!(!why.is_empty());
                    rejected += 1;
                }
            }
        }
    }
    assert!(answered > 50 && rejected > 50, "{answered} answered, {rejected} rejected");
}

#[test]
fn objects_of_the_wrong_shape_are_let_through_with_a_warning() {
    let webhook = webhook(json!({ "mode": "enforce" }));
    for object in [
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x" }, "spec": 7 }),
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x" },
                "spec": { "containers": [{ "name": "c",
                    "resources": { "limits": { "cpu": "x".repeat(5_000) } } }] } }),
    ] {
        let response = validated(&webhook, &create(&object));
        assert_eq!(response["allowed"], true, "{response}");
        let warning = response["warnings"][0].as_str().unwrap();
        assert!(warning.contains("cannot read") && warning.len() <= 300, "{warning}");
    }
    for object in [Value::Null, json!([]), json!("x"), json!({ "kind": "Widget" })] {
        assert_eq!(validated(&webhook, &create(&object))["allowed"], true, "{object}");
    }
}

#[test]
fn ten_thousand_containers_and_huge_labels_are_answered_in_time() {
    let webhook = webhook(json!({ "mode": "enforce" }));
    let container = |index: usize| {
        json!({ "name": format!("c{index}"), "image": "a:1",
                "resources": { "requests": { "nvidia.com/gpu": "1" } } })
    };
    let mut pod = bad_pod();
    pod["spec"]["containers"] = (0..10_000).map(container).collect();
    pod["metadata"]["annotations"] = json!({ "a": "x".repeat(1 << 20) });
    let started = Instant::now();
    let response = validated(&webhook, &create(&pod));
    assert_eq!(response["allowed"], false);
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.len() < 8_000 && message.contains("more"), "{} bytes", message.len());
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
}

#[tokio::test]
async fn over_http_errors_are_answers_too() {
    let router = webhook(json!({ "mode": "enforce" })).router();
    let send = async |path: &str, body: Vec<u8>| {
        let request = HttpRequest::post(path).body(Body::from(body)).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice::<Value>(&body).unwrap_or_default())
    };
    let (code, answer) = send("/validate", create(&bad_pod())).await;
    assert_eq!((code, &answer["response"]["allowed"]), (200, &json!(false)));
    let (code, answer) = send("/mutate", b"{}".to_vec()).await;
    assert_eq!((code, &answer["reason"]), (400, &json!("BadRequest")));
    let (code, answer) = send("/validate", vec![b' '; BODY_BYTES_MAX + 1]).await;
    assert_eq!((code, &answer["kind"]), (413, &json!("Status")), "{answer}");
    let mut large = bad_pod();
    large["metadata"]["annotations"] = json!({ "a": "x".repeat(LARGE_BYTES) });
    assert_eq!(send("/validate", create(&large)).await.0, 200);
    assert_eq!(send("/nowhere", vec![]).await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn news_reach_requests_within_seconds_and_heartbeats_change_nothing() {
    let webhook = webhook(json!({ "mutations": { "copyLabels": ["team"] } }));
    let feed = webhook.0.feed.clone();
    let keeping = tokio::spawn({
        let feed = feed.clone();
        async move { feed.keep_fresh().await }
    });
    let before = feed.current();
    feed.put(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n1", "resourceVersion": "9",
                      "labels": { "pool": "gpu", "kubernetes.io/hostname": "n1" } },
        "spec": { "taints": [{ "key": "nvidia.com/gpu", "effect": "NoSchedule" }], "podCIDR": "x" },
        "status": { "conditions": [1], "allocatable": { "cpu": "64", "memory": "512Gi",
                                                        "nvidia.com/gpu": "8" } },
    }))
    .unwrap();
    // The first notice is of what the test has put in; after that nothing has changed.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let settled = feed.current();
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert!(Arc::ptr_eq(&settled, &feed.current()));
    drop(before);
    feed.put(json!({ "apiVersion": "v1", "kind": "Namespace",
                     "metadata": { "name": "search", "labels": { "team": "other" } } }))
        .unwrap();
    for _ in 0..100 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        std::thread::yield_now();
    }
    let pod = patched(&webhook, &bad_pod()).unwrap();
    assert_eq!(pod["metadata"]["labels"]["team"], "other");
    feed.replace("Namespace", vec![]);
    feed.refresh();
    assert_eq!(patched(&webhook, &bad_pod()), None);
    keeping.abort();
}
