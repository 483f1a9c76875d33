//! The election at work, in virtual time, against an API server in memory that can be slow, mute or
//! lossy.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, advance, sleep, timeout};

use super::*;
use crate::tolerant::tolerant_client;

/// What becomes of a write.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// It never arrives.
    Lost,
    /// It is done, and nobody hears of it.
    Mute,
    /// The server cannot do it.
    Refused,
}

#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
    writes: u64,
    /// The namespace was deleted.
    no_namespace: bool,
    /// How many requests tried to create the Lease without its namespace.
    rejected: u64,
    fates: VecDeque<Fate>,
}

type Shared = Arc<Mutex<Server>>;

fn answer(code: StatusCode, body: &Value) -> Response<Full<bytes::Bytes>> {
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(Full::from(body.to_string())).unwrap()
}

fn failure(code: StatusCode, reason: &str) -> Response<Full<bytes::Bytes>> {
    let status = json!({ "kind": "Status", "status": "Failure", "code": code.as_u16(),
                         "reason": reason, "message": reason });
    answer(code, &status)
}

async fn serve(request: Request<Body>, server: Shared) -> Response<Full<bytes::Bytes>> {
    let method = request.method().clone();
    if request.uri().query().is_some_and(|query| query.contains("watch=")) {
        return failure(StatusCode::FORBIDDEN, "Forbidden");
    }
    let body = request.into_body().collect().await.unwrap().to_bytes();
    sleep(Duration::from_millis(5)).await;
    let fate = if method == Method::GET { None } else { server.lock().unwrap().fates.pop_front() };
    match fate {
        Some(Fate::Lost) => std::future::pending().await,
        Some(Fate::Refused) => return failure(StatusCode::SERVICE_UNAVAILABLE, "Unavailable"),
        Some(Fate::Mute) | None => {}
    }
    let response = server.lock().unwrap().handle(&method, &body);
    if fate == Some(Fate::Mute) { std::future::pending().await } else { response }
}

impl Server {
    fn handle(&mut self, method: &Method, body: &[u8]) -> Response<Full<bytes::Bytes>> {
        if *method == Method::GET {
            return match &self.lease {
                Some(lease) => answer(StatusCode::OK, lease),
                None => failure(StatusCode::NOT_FOUND, "NotFound"),
            };
        }
        if self.no_namespace {
            self.rejected += 1;
            return failure(StatusCode::NOT_FOUND, "NotFound");
        }
        let mut sent: Value = serde_json::from_slice(body).unwrap();
        let now = self.lease.as_ref().map(|lease| &lease["metadata"]["resourceVersion"]);
        let conflict = failure(StatusCode::CONFLICT, "Conflict");
        match (method, now) {
            (&Method::POST, Some(_)) => return conflict,
            (&Method::PUT, None) => return failure(StatusCode::NOT_FOUND, "NotFound"),
            (&Method::PUT, Some(now)) if *now != sent["metadata"]["resourceVersion"] => {
                return conflict;
            }
            _ => {}
        }
        self.version += 1;
        self.writes += 1;
        sent["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(sent.clone());
        answer(StatusCode::OK, &sent)
    }

    fn text(&self, pointer: &str) -> String {
        let found = self.lease.as_ref().and_then(|lease| lease.pointer(pointer));
        found.and_then(Value::as_str).unwrap_or("").to_owned()
    }
}

fn elector(server: &Shared, me: &str) -> Elector {
    let shared = server.clone();
    let service = tower::service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(serve(request, shared).await) }
    });
    let client = tolerant_client(service);
    Elector::new(client, Settings::default(), me).unwrap()
}

fn pod(name: &str) -> PodRef {
    PodRef { namespace: "team".into(), name: name.into(), uid: format!("uid-{name}").into() }
}

const BINDING_POINTER: &str = "/metadata/annotations/berth.dev~1binding";

#[tokio::test(start_paused = true)]
async fn the_first_makes_the_lease_and_keeps_it_while_others_wait() {
    let server = Shared::default();
    let first = elector(&server, "a").acquire().await;
    assert_eq!(first.inherited, Inherited::NoLease);
    let second = elector(&server, "b");
    assert!(timeout(Duration::from_secs(120), second.acquire()).await.is_err());
    assert!(first.is_held());
    let writes = server.lock().unwrap().writes;
    assert!((55..70).contains(&writes), "{writes} writes in two minutes");
}

#[tokio::test(start_paused = true)]
async fn announced_pods_are_written_before_the_caller_goes_on_and_settled_ones_go() {
    let server = Shared::default();
    let leading = elector(&server, "a").acquire().await;
    let before = server.lock().unwrap().writes;
    let (one, two) =
        tokio::join!(leading.announce(vec![pod("x")]), leading.announce(vec![pod("y")]));
    one.unwrap();
    two.unwrap();
    let text = server.lock().unwrap().text(BINDING_POINTER);
    assert_eq!(text, r#"{"team":{"uid-x":"x","uid-y":"y"}}"#);
    assert_eq!(server.lock().unwrap().writes, before + 1, "they share a write");
    assert_eq!(leading.room(), IN_FLIGHT_MAX - 2);
    leading.settle(vec![pod("x")]);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(server.lock().unwrap().text(BINDING_POINTER), r#"{"team":{"uid-y":"y"}}"#);
    let many = (0..IN_FLIGHT_MAX).map(|index| pod(&format!("p{index}"))).collect();
    let full = leading.announce(many).await.unwrap_err();
    assert_eq!(full, AnnounceError::Full { asked: IN_FLIGHT_MAX, room: IN_FLIGHT_MAX - 1 });
}

#[tokio::test(start_paused = true)]
async fn who_takes_over_from_the_dead_inherits_the_list_and_the_dead_cannot_announce() {
    let server = Shared::default();
    let first = elector(&server, "a").acquire().await;
    first.announce(vec![pod("x")]).await.unwrap();
    // The first does not get through any more, and does not know it yet.
    let started = Instant::now();
    server.lock().unwrap().fates.extend([Fate::Lost; 4]);
    let late = tokio::spawn(async move { (first.announce(vec![pod("y")]).await, first) });
    let second = {
        // Only the first one's writes are lost: the other comes when those are used up.
        sleep(Duration::from_millis(14_000)).await;
        server.lock().unwrap().fates.clear();
        elector(&server, "b").acquire().await
    };
    let waited = started.elapsed();
    assert!(waited > Duration::from_secs(15) && waited < Duration::from_secs(32), "{waited:?}");
    assert_eq!(second.inherited, Inherited::Pods(vec![pod("x")]));
    let (announced, first) = late.await.unwrap();
    assert!(matches!(announced, Err(AnnounceError::Lost(Lost::Expired { .. }))), "{announced:?}");
    assert!(!first.is_held());
    // Inherited pods stay on the list until they are settled, whatever happens to the heir.
    sleep(Duration::from_secs(5)).await;
    assert_eq!(server.lock().unwrap().text(BINDING_POINTER), r#"{"team":{"uid-x":"x"}}"#);
    second.settle(vec![pod("x")]);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(server.lock().unwrap().text(BINDING_POINTER), "");
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_is_lost_does_not_cost_the_lease() {
    let server = Shared::default();
    let leading = elector(&server, "a").acquire().await;
    server.lock().unwrap().fates.extend([Fate::Mute, Fate::Refused]);
    leading.announce(vec![pod("x")]).await.unwrap();
    assert_eq!(server.lock().unwrap().text(BINDING_POINTER), r#"{"team":{"uid-x":"x"}}"#);
    assert!(leading.is_held());
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_whose_answer_is_lost_is_found_out() {
    let server = Shared::default();
    drop(elector(&server, "a").acquire().await.release().await);
    server.lock().unwrap().fates.push_back(Fate::Mute);
    let second = elector(&server, "b").acquire().await;
    assert_eq!(second.inherited, Inherited::Pods(vec![]));
    assert_eq!(server.lock().unwrap().text("/spec/holderIdentity"), "b");
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_had_at_once_with_what_was_not_settled() {
    let server = Shared::default();
    let first = elector(&server, "a").acquire().await;
    first.announce(vec![pod("x"), pod("y")]).await.unwrap();
    first.settle(vec![pod("y")]);
    assert_eq!(first.release().await, Lost::Released);
    assert!(first.announce(vec![pod("z")]).await.is_err());
    let started = Instant::now();
    let second = elector(&server, "b").acquire().await;
    assert!(started.elapsed() < Duration::from_millis(100));
    assert_eq!(second.inherited, Inherited::Pods(vec![pod("x")]));
    let spec = server.lock().unwrap().lease.as_ref().unwrap()["spec"].clone();
    assert_eq!((&spec["leaseTransitions"], &spec["leaseDurationSeconds"]), (&json!(1), &json!(15)));
}

#[tokio::test(start_paused = true)]
async fn who_was_robbed_or_lost_the_lease_stops_and_says_why() {
    let server = Shared::default();
    let first = elector(&server, "a").acquire().await;
    {
        let mut server = server.lock().unwrap();
        let mut lease = server.lease.clone().unwrap();
        lease["spec"]["holderIdentity"] = json!("thief");
        server.handle(&Method::PUT, lease.to_string().as_bytes());
    }
    assert_eq!(first.lost().await, Lost::Taken { by: "thief".to_owned() });
    advance(Duration::from_secs(1)).await;
    server.lock().unwrap().lease = None;
    let second = elector(&server, "b").acquire().await;
    server.lock().unwrap().lease = None;
    assert_eq!(second.lost().await, Lost::Deleted);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_namespace_is_reported_until_it_is_back() {
    let server = Shared::default();
    let elector = elector(&server, "a");
    let problems = elector.problems();
    let first = elector.acquire().await;
    assert!(problems.borrow().is_none());
    {
        let mut server = server.lock().unwrap();
        (server.lease, server.no_namespace) = (None, true);
    }
    assert_eq!(first.lost().await, Lost::Deleted);
    let again = tokio::spawn({
        let elector = elector.clone();
        async move { elector.acquire().await }
    });
    sleep(Duration::from_secs(60)).await;
    let problem = problems.borrow().clone().unwrap();
    assert_eq!(problem.reason(), "namespace_not_found");
    assert!(problem.to_string().starts_with("namespace \"berth-system\" of the Lease does not"));
    let rejected = server.lock().unwrap().rejected;
    assert!((20..=40).contains(&rejected), "{rejected} requests in a minute");
    server.lock().unwrap().no_namespace = false;
    let second = timeout(Duration::from_secs(5), again).await.unwrap().unwrap();
    assert!(second.is_held() && problems.borrow().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_list_that_nobody_can_read_is_said_to_be_one() {
    let server = Shared::default();
    drop(elector(&server, "a").acquire().await.release().await);
    server.lock().unwrap().lease.as_mut().unwrap()["metadata"]["annotations"] =
        json!({ "berth.dev/binding": "[1" });
    let second = elector(&server, "b").acquire().await;
    assert!(matches!(second.inherited, Inherited::Unreadable(_)), "{:?}", second.inherited);
}

#[test]
fn settings_that_cannot_work_are_refused() {
    assert_eq!(Settings::default().check(), Ok(()));
    for wrong in [
        Settings { duration_ms: 10_000, ..Settings::default() },
        Settings { request_ms: 10_000, ..Settings::default() },
        Settings { retry_ms: 10_000, ..Settings::default() },
        Settings { retry_ms: 0, ..Settings::default() },
    ] {
        assert!(wrong.check().is_err(), "{wrong:?}");
    }
    let names: std::collections::BTreeSet<String> =
        (0..100).map(|_| incarnation("host").unwrap()).collect();
    assert_eq!(names.len(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_lease_with_times_that_cannot_be_read_is_taken_over() {
    let server = Shared::default();
    drop(elector(&server, "a").acquire().await.release().await);
    let end = json!("9999-12-31T23:59:59.999999Z");
    server.lock().unwrap().lease.as_mut().unwrap()["spec"]["renewTime"] = end;
    let second = timeout(Duration::from_secs(60), elector(&server, "b").acquire()).await.unwrap();
    assert!(second.is_held());
    sleep(Duration::from_secs(5)).await;
    assert!(second.is_held() && server.lock().unwrap().text("/spec/renewTime").as_str() < "9999");
}

#[tokio::test(start_paused = true)]
async fn a_list_with_names_that_no_pod_can_have_is_not_followed() {
    for bogus in [
        json!({ "../../nodes": { "u": "p" } }),
        json!({ "team": { "u": "../../../nodes/n1?force=true" } }),
        json!({ "team": { "u": "" } }),
        json!({ "team": { "a b": "p" } }),
        json!({ "": { "u": "p" } }),
        json!({ "team": { "u": "x".repeat(254) } }),
    ] {
        let server = Shared::default();
        drop(elector(&server, "a").acquire().await.release().await);
        server.lock().unwrap().lease.as_mut().unwrap()["metadata"]["annotations"] =
            json!({ "berth.dev/binding": bogus.to_string() });
        let second = elector(&server, "b").acquire().await;
        let Inherited::Unreadable(why) = &second.inherited else { panic!("{bogus}") };
        assert!(why.contains("invalid pod reference"), "{why}");
    }
}
