//! Health, metrics and a read-only view of the engine over HTTP.
//!
//! | path | who may |
//! |---|---|
//! | `/healthz`, `/livez`, `/readyz` | everybody or, by configuration, users who may `get` the path |
//! | `/metrics` | everybody or, by configuration, users who may `get` the path |
//! | `/api/v1/state` | users who may `get` `state` of the group `berth.dev` |
//! | `/api/v1/queue` | users who may `get` `queue` of the group `berth.dev` |
//! | `/api/v1/nodes` | users who may `get` `nodes` of the group `berth.dev` |
//! | `/api/v1/pods/NAMESPACE/NAME/explanation` | users who may `get` `explanations` of the group `berth.dev` in the namespace; pods of other namespaces are named only to users who may do so in all |
//!
//! Rights are checked for resources and not for paths, because Kubernetes lets every user `get` paths under `/api/`, and
//! because a namespaced role can then grant explanations.

mod access;
#[cfg(test)]
mod tests;

pub use access::{Access, Attributes, Denial};

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::{Instant, timeout};

use crate::metrics::{self, Metrics};

/// Timeout of an answer of the engine.
const VIEW_MS_MAX: u64 = 10_000;

/// What can be asked of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Everything in short: who leads, how many of what.
    State,
    /// Who waits, in which order and why.
    Queue,
    /// Nodes, with sockets, GPUs and slices, and who is where.
    Nodes,
    /// Why a pod is where it is, or nowhere.
    Explanation {
        /// The pod's namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Whether pods of other namespaces may be named.
        whole_cluster: bool,
    },
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ViewError {
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// Nobody can say yet.
    #[error("{0}")]
    NotReady(String),
}

pub trait View: Send + Sync {
    /// Answers as JSON.
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Value, ViewError>>;
}

/// Liveness and readiness. Clones share their state.
#[derive(Clone)]
pub struct Health(Arc<Pulse>);

struct Pulse {
    awaited: Mutex<BTreeSet<&'static str>>,
    notice: Mutex<Option<String>>,
    failure: Mutex<Option<String>>,
    started: Instant,
    beat_ms: AtomicU64,
    silence_ms_max: u64,
}

impl Health {
    /// Dead after this long without a [`beat`](Self::beat), and not ready while a part is
    /// [awaited](Self::await_part).
    pub fn new(silence_ms_max: u64) -> Self {
        Self(Arc::new(Pulse {
            awaited: Mutex::default(),
            notice: Mutex::default(),
            failure: Mutex::default(),
            started: Instant::now(),
            beat_ms: AtomicU64::new(0),
            silence_ms_max,
        }))
    }

    /// Not ready until [`has_part`](Self::has_part). Followers are ready, too.
    pub fn await_part(&self, part: &'static str) {
        self.awaited().insert(part);
    }

    pub fn has_part(&self, part: &'static str) {
        self.awaited().remove(part);
    }

    /// Adds a line to `/readyz` about something that needs attention while the process is ready.
    pub fn set_notice(&self, notice: Option<String>) {
        *self.0.notice.lock().unwrap_or_else(PoisonError::into_inner) = notice;
    }

    /// Not ready for this reason; `None` when it is over.
    pub fn set_failure(&self, failure: Option<String>) {
        *self.0.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    fn notice(&self) -> Option<String> {
        self.0.notice.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn awaited(&self) -> std::sync::MutexGuard<'_, BTreeSet<&'static str>> {
        self.0.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task that owns the engine is alive.
    pub fn beat(&self) {
        self.0.beat_ms.store(self.now_ms(), Ordering::Release);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn check_live(&self) -> Result<(), String> {
        let silence_ms = self.now_ms().saturating_sub(self.0.beat_ms.load(Ordering::Acquire));
        if silence_ms > self.0.silence_ms_max {
            return Err(format!("the scheduling loop has not responded for {silence_ms} ms"));
        }
        Ok(())
    }

    pub fn is_ready(&self) -> bool {
        self.check_ready().is_ok()
    }

    fn check_ready(&self) -> Result<(), String> {
        self.check_live()?;
        if let Some(failure) = self.0.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
        {
            return Err(failure);
        }
        let awaited: Vec<&str> = self.awaited().iter().copied().collect();
        if awaited.is_empty() {
            Ok(())
        } else {
            Err(format!("waiting for: {}", awaited.join(", ")))
        }
    }
}

/// Who has access to health and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Openness {
    #[default]
    Everybody,
    /// Users with a token who may `get` the path.
    Token,
}

#[derive(Clone)]
pub struct Site {
    /// Whether all is well.
    pub health: Health,
    /// Figures.
    pub metrics: Metrics,
    /// The engine.
    pub view: Arc<dyn View>,
    /// Who may see what.
    pub access: Access,
    /// Who may see health.
    pub health_for: Openness,
    /// Who may see metrics.
    pub metrics_for: Openness,
}

pub fn router(site: &Site) -> Router {
    probes(site).merge(api(site))
}

/// Health and metrics, which need no encryption.
pub fn probes(site: &Site) -> Router {
    let live = |State(site): State<Site>| async move { health(site.health.check_live(), None) };
    let ready = |State(site): State<Site>| async move {
        health(site.health.check_ready(), site.health.notice())
    };
    let figures = |State(site): State<Site>| async move {
        ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], site.metrics.encode())
    };
    let probes = Router::new()
        .route("/healthz", get(live))
        .route("/livez", get(live))
        .route("/readyz", get(ready));
    let figures = Router::new().route("/metrics", get(figures));
    guarded(probes, site, site.health_for)
        .merge(guarded(figures, site, site.metrics_for))
        .with_state(site.clone())
}

fn guarded(router: Router<Site>, site: &Site, open_for: Openness) -> Router<Site> {
    match open_for {
        Openness::Everybody => router,
        Openness::Token => router.route_layer(from_fn_with_state(site.clone(), guard_path)),
    }
}

/// The view of the engine. Requests carry tokens: serve it with TLS, or on localhost only.
pub fn api(site: &Site) -> Router {
    Router::new()
        .route("/api/v1/state", get(state))
        .route("/api/v1/queue", get(queue))
        .route("/api/v1/nodes", get(nodes))
        .route("/api/v1/pods/{namespace}/{name}/explanation", get(explanation))
        .with_state(site.clone())
}

fn health(checked: Result<(), String>, notice: Option<String>) -> Response {
    match checked {
        Ok(()) => match notice {
            Some(notice) => format!("ok\n{notice}\n").into_response(),
            None => "ok\n".into_response(),
        },
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn guard_path(State(site): State<Site>, request: Request, next: Next) -> Response {
    let attributes = Attributes::path(request.uri().path());
    match site.access.check(request.headers(), attributes).await {
        Ok(()) => next.run(request).await,
        Err(denial) => rejected(&denial),
    }
}

async fn state(State(site): State<Site>, headers: HeaderMap) -> Response {
    answer(&site, &headers, Attributes::resource("state", None, None), Question::State).await
}

async fn queue(State(site): State<Site>, headers: HeaderMap) -> Response {
    answer(&site, &headers, Attributes::resource("queue", None, None), Question::Queue).await
}

async fn nodes(State(site): State<Site>, headers: HeaderMap) -> Response {
    answer(&site, &headers, Attributes::resource("nodes", None, None), Question::Nodes).await
}

async fn explanation(
    State(site): State<Site>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let of = Attributes::resource("explanations", Some(&namespace), Some(&name));
    let in_all = Attributes::resource("explanations", None, None);
    if let Err(denial) = site.access.check(&headers, of.clone()).await {
        return rejected(&denial);
    }
    let whole_cluster = site.access.check(&headers, in_all).await.is_ok();
    let question = Question::Explanation { namespace, name, whole_cluster };
    answer(&site, &headers, of, question).await
}

async fn answer(
    site: &Site,
    headers: &HeaderMap,
    attributes: Attributes,
    question: Question,
) -> Response {
    if let Err(denial) = site.access.check(headers, attributes).await {
        return rejected(&denial);
    }
    match timeout(Duration::from_millis(VIEW_MS_MAX), site.view.ask(question)).await {
        Ok(Ok(value)) => axum::Json(value).into_response(),
        Ok(Err(ViewError::NotFound(why))) => status(StatusCode::NOT_FOUND, "NotFound", &why),
        Ok(Err(ViewError::NotReady(why))) => {
            status(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &why)
        }
        Err(_) => {
            let why = format!("the engine did not answer within {VIEW_MS_MAX} ms; try again");
            status(StatusCode::GATEWAY_TIMEOUT, "Timeout", &why)
        }
    }
}

fn rejected(denial: &Denial) -> Response {
    let why = denial.to_string();
    match denial {
        Denial::Unauthorized(_) => {
            let mut response = status(StatusCode::UNAUTHORIZED, "Unauthorized", &why);
            let challenge = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
            response
        }
        Denial::Forbidden(_) => status(StatusCode::FORBIDDEN, "Forbidden", &why),
        Denial::Unavailable(_) => {
            status(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", &why)
        }
    }
}

/// An error as a Kubernetes Status.
pub fn status(code: StatusCode, reason: &str, message: &str) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16(),
    });
    (code, axum::Json(body)).into_response()
}
