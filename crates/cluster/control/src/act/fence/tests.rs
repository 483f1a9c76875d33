//! Fencing against an API server that refuses, is silent, or holds what tenants wrote.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::tolerant::tolerant_client;

/// The answers to `METHOD PATH`; `None`: there is none. What is not named is not found.
type Answers = BTreeMap<&'static str, Option<(StatusCode, Value)>>;

/// The requests that were sent: method and path, and body.
type Sent = Arc<Mutex<Vec<(String, Value)>>>;

/// A client of a server with these answers, and what it sends.
fn client(answers: Answers) -> (Client, Sent) {
    let sent = Sent::default();
    let seen = sent.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (answers, seen) = (answers.clone(), seen.clone());
        async move {
            let call = format!("{} {}", request.method(), request.uri().path());
            let is_read = request.method() == Method::GET;
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let body = if is_read { Value::Null } else { serde_json::from_slice(&body).unwrap() };
            seen.lock().unwrap().push((call.clone(), body));
            let missing = Some((StatusCode::NOT_FOUND, failure(404)));
            let Some((code, body)) = answers.get(&*call).cloned().unwrap_or(missing) else {
                return std::future::pending().await;
            };
            let body = Full::from(body.to_string());
            Ok::<Response<Full<bytes::Bytes>>, Infallible>(
                Response::builder()
                    .status(code)
                    .header("content-type", "application/json")
                    .body(body)
                    .unwrap(),
            )
        }
    });
    (tolerant_client(service), sent)
}

fn failure(code: u16) -> Value {
    let reason = if code == 404 { "NotFound" } else { "Invalid" };
    json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason,
            "message": "metadata.annotations: Too long" })
}

const READ: &str = "GET /api/v1/namespaces/team/pods/p";
const WRITE: &str = "PATCH /api/v1/namespaces/team/pods/p/status";

fn pod() -> PodRef {
    PodRef { namespace: "team".into(), name: "p".into(), uid: "u".into() }
}

/// A pod as only a hostile owner writes one: it cannot be read as a Pod.
fn stored() -> Value {
    json!({
        "metadata": { "name": "p", "namespace": "team", "uid": "u",
                      "managedFields": [{ "manager": "x", "time": "9999-12-31T23:59:59Z" }],
                      "deletionTimestamp": "9999-12-31T23:59:59Z" },
        "spec": { "containers": [{ "name": "c" }] },
    })
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_fenced_by_a_condition_that_does_not_grow_and_always_differs() {
    let ok = Some((StatusCode::OK, stored()));
    let (client, sent) = client([(READ, ok.clone()), (WRITE, ok)].into());
    for _ in 0..3 {
        fence(&client, &pod(), "replica-1").await.unwrap();
    }
    let sent = sent.lock().unwrap();
    let writes: Vec<&Value> =
        sent.iter().filter(|(call, _)| call == WRITE).map(|(_, body)| body).collect();
    let messages: Vec<&str> = writes
        .iter()
        .map(|body| body.pointer("/status/conditions/0/message").and_then(Value::as_str).unwrap())
        .collect();
    assert_eq!(messages.len(), 3);
    assert!(messages[0] != messages[1] && messages[1] != messages[2], "{messages:?}");
    assert!(messages.iter().all(|message| message.len() == messages[0].len()), "{messages:?}");
    assert!(writes[0].pointer("/metadata/annotations").is_none());
    assert_eq!(writes[0].pointer("/metadata/uid"), Some(&json!("u")));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final_at_once_and_silence_after_a_few_seconds() {
    let found = Some((StatusCode::OK, stored()));
    let rejection = Some((StatusCode::UNPROCESSABLE_ENTITY, failure(422)));
    let (client, _) = self::client([(READ, found.clone()), (WRITE, rejection)].into());
    let began = Instant::now();
    let rejected = fence(&client, &pod(), "me").await.unwrap_err();
    assert!(matches!(rejected, Unfenced::Refused { code: 422, .. }), "{rejected:?}");
    assert!(began.elapsed() < Duration::from_millis(100));
    let text =
        "the API server rejects changes of pod team/p: metadata.annotations: Too long (code 422)";
    assert_eq!(rejected.to_string(), text);
    for answer in [None, Some((StatusCode::INTERNAL_SERVER_ERROR, failure(500)))] {
        let (client, sent) = self::client([(READ, found.clone()), (WRITE, answer)].into());
        let began = Instant::now();
        let late = fence(&client, &pod(), "me").await.unwrap_err();
        assert!(matches!(late, Unfenced::Late { .. }), "{late:?}");
        assert!(began.elapsed() <= CALL + FENCING_MAX, "{:?}", began.elapsed());
        assert!(sent.lock().unwrap().len() <= 2 * 60, "{}", sent.lock().unwrap().len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_bound_or_another_needs_no_fence() {
    let mut bound = stored();
    bound["spec"]["nodeName"] = json!("n1");
    let mut other = stored();
    other["metadata"]["uid"] = json!("another");
    for found in [None, Some(bound), Some(other)] {
        let answers = found.map(|found| (READ, Some((StatusCode::OK, found))));
        let (client, sent) = client(answers.into_iter().collect());
        fence(&client, &pod(), "me").await.unwrap();
        assert_eq!(sent.lock().unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn one_pod_that_cannot_be_read_does_not_spoil_the_list_of_pending_pods() {
    let mut second = stored();
    second["metadata"] = json!({ "name": "q", "namespace": "team", "uid": "v" });
    let kind = "PartialObjectMetadata";
    let types = json!({ "apiVersion": "meta.k8s.io/v1", "kind": kind });
    let items = [stored(), second].map(|mut item| {
        item["apiVersion"] = types["apiVersion"].clone();
        item["kind"] = types["kind"].clone();
        item
    });
    let list = json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                       "metadata": {}, "items": items });
    let (client, _) = client([("GET /api/v1/pods", Some((StatusCode::OK, list)))].into());
    let names: SchedulerNames = [Arc::from("berth")].into();
    let found = pending(&client, &names).await;
    assert_eq!(found.iter().map(|pod| &*pod.name).collect::<Vec<_>>(), ["p", "q"]);
}
