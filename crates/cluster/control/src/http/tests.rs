//! What strangers, users and viewers see, against an API server that answers reviews as told.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use super::*;

/// Knows the tokens `viewer`, who may see everything in namespace `team` and the state, and `user`, who
/// may see nothing.
async fn reviews(
    request: Request<kube::client::Body>,
    asked: Arc<AtomicUsize>,
) -> Result<Response, std::convert::Infallible> {
    asked.fetch_add(1, Ordering::SeqCst);
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    if path.ends_with("/tokenreviews") {
        let token = review["spec"]["token"].as_str().unwrap().to_owned();
        review["status"] = match token.as_str() {
            "viewer" | "user" => json!({ "authenticated": true, "user": { "username": token } }),
            "broken" => {
                return Ok(status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "no"));
            }
            _ => json!({ "authenticated": false, "error": "unknown" }),
        };
    } else {
        let spec = &review["spec"];
        let of = &spec["resourceAttributes"];
        let is_seen = of["group"] == "berth.dev"
            && of["verb"] == "get"
            && (of["resource"] == "state" || of["namespace"] == "team")
            || spec["nonResourceAttributes"]["path"] == "/metrics";
        review["status"] = json!({ "allowed": is_seen && spec["user"] == "viewer" });
    }
    Ok((StatusCode::CREATED, axum::Json(review)).into_response())
}

struct Engine;

impl View for Engine {
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Value, ViewError>> {
        Box::pin(async move {
            match question {
                Question::Explanation { name, .. } if name == "gone" => {
                    Err(ViewError::NotFound("pod team/gone is not known".to_owned()))
                }
                Question::Queue => std::future::pending().await,
                other => Ok(json!({ "asked": format!("{other:?}") })),
            }
        })
    }
}

struct World {
    site: Site,
    asked: Arc<AtomicUsize>,
}

fn world() -> World {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let service = tower::service_fn(move |request| reviews(request, counter.clone()));
    let client = kube::Client::new(service, "default");
    let site = Site {
        health: Health::new(1_000),
        metrics: Metrics::new(),
        view: Arc::new(Engine),
        access: Access::new(client),
        health_for: Openness::Everybody,
        metrics_for: Openness::Token,
    };
    World { site, asked }
}

impl World {
    async fn get(&self, path: &str, token: Option<&str>) -> (u16, String) {
        let mut request = Request::get(path);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).unwrap();
        let response = router(&self.site).oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }
}

#[tokio::test]
async fn who_may_sees_and_others_learn_why_not() {
    let world = world();
    let explanation = "/api/v1/pods/team/llm/explanation";
    for (path, token, code, said) in [
        ("/api/v1/state", Some("viewer"), 200, "State"),
        ("/api/v1/state", Some("user"), 403, "\\\"user\\\" may not get state.berth.dev"),
        ("/api/v1/state", Some("stranger"), 401, "the token is not valid"),
        ("/api/v1/state", None, 401, "there is no token"),
        ("/api/v1/nodes", Some("viewer"), 403, "may not get nodes.berth.dev"),
        (explanation, Some("viewer"), 200, "llm"),
        ("/api/v1/pods/other/llm/explanation", Some("viewer"), 403, "in namespace"),
        ("/api/v1/pods/team/gone/explanation", Some("viewer"), 404, "team/gone is not known"),
        ("/metrics", Some("viewer"), 200, "berth_leader"),
        ("/metrics", Some("user"), 403, "may not get /metrics"),
        ("/healthz", None, 200, "ok"),
        ("/api/v1/state", Some("broken"), 503, "try again"),
    ] {
        let (seen, body) = world.get(path, token).await;
        assert_eq!(seen, code, "{path} {token:?}: {body}");
        assert!(body.contains(said), "{path} {token:?}: {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn answers_are_remembered_for_a_while_bad_ones_too() {
    let world = world();
    for _ in 0..5 {
        assert_eq!(world.get("/api/v1/state", Some("viewer")).await.0, 200);
        assert_eq!(world.get("/api/v1/state", Some("stranger")).await.0, 401);
    }
    assert_eq!(world.asked.load(Ordering::SeqCst), 3);
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(world.get("/api/v1/state", Some("viewer")).await.0, 200);
    assert_eq!(world.asked.load(Ordering::SeqCst), 5);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_is_forgotten_and_an_endless_one_is_not_asked_about() {
    let world = world();
    for index in 0..1_100 {
        assert_eq!(world.get("/api/v1/state", Some(&format!("t{index}"))).await.0, 401);
    }
    assert!(world.site.access.remembered() <= 1_024);
    let before = world.asked.load(Ordering::SeqCst);
    assert_eq!(world.get("/api/v1/state", Some(&"x".repeat(20_000))).await.0, 401);
    assert_eq!(world.asked.load(Ordering::SeqCst), before);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_silent_is_not_waited_for() {
    let mut world = world();
    world.site.access = Access::new(kube::Client::new(
        tower::service_fn(|request: Request<kube::client::Body>| async move {
            let is_token = request.uri().path().ends_with("/tokenreviews");
            let status = if is_token {
                json!({ "authenticated": true, "user": { "username": "u" } })
            } else {
                json!({ "allowed": true })
            };
            let answer = axum::Json(json!({ "spec": { "token": "" }, "status": status }));
            Ok::<_, std::convert::Infallible>(answer.into_response())
        }),
        "default",
    ));
    let (code, body) = world.get("/api/v1/queue", Some("u")).await;
    assert_eq!((code, body.contains("did not answer within 10000 ms")), (504, true), "{body}");
}

#[tokio::test(start_paused = true)]
async fn a_follower_is_ready_when_nothing_is_awaited_and_dead_when_it_is_silent() {
    let world = world();
    let parts = ["a certificate", "a view"];
    parts.iter().for_each(|part| world.site.health.await_part(part));
    let (code, body) = world.get("/readyz", None).await;
    assert_eq!((code, body.as_str()), (503, "waiting for: a certificate, a view\n"));
    parts.iter().for_each(|part| world.site.health.has_part(part));
    assert_eq!(world.get("/readyz", None).await.0, 200);
    tokio::time::advance(Duration::from_millis(1_500)).await;
    for path in ["/readyz", "/livez", "/healthz"] {
        let (code, body) = world.get(path, None).await;
        assert_eq!(
            (code, body.contains("not responded for 1500 ms")),
            (503, true),
            "{path}: {body}"
        );
    }
    world.site.health.beat();
    assert_eq!(world.get("/livez", None).await.0, 200);
}
