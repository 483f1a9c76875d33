//! What is shown over HTTP: whether the agent lives, whether it is ready, and its figures.
//!
//! Owns paths, and what counts as alive. Must not know what the figures mean.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use super::metrics::{CONTENT_TYPE, Metrics};

/// Signs of life. Cloning gives another handle on the same.
#[derive(Clone, Debug)]
pub struct Health {
    silence_max: Duration,
    state: Arc<Mutex<Signs>>,
}

#[derive(Debug)]
struct Signs {
    last: Instant,
    ready: Result<(), String>,
}

impl Health {
    /// Not ready yet; taken for dead after so long without a sign.
    pub fn new(silence_max: Duration) -> Self {
        let ready = Err("the node has not been looked at yet".to_owned());
        Self { silence_max, state: Arc::new(Mutex::new(Signs { last: Instant::now(), ready })) }
    }

    /// A sign of life, and whether all is published that is to be.
    pub(super) fn sign(&self, ready: Result<(), String>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = Signs { last: Instant::now(), ready };
    }

    fn alive(&self) -> Result<(), String> {
        let silence = self.state.lock().unwrap_or_else(PoisonError::into_inner).last.elapsed();
        if silence <= self.silence_max {
            return Ok(());
        }
        Err(format!("nothing has happened for {} s", silence.as_secs()))
    }

    /// Why it is not ready, if so.
    pub fn ready(&self) -> Result<(), String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ready.clone()
    }
}

/// `/healthz`, `/readyz` and `/metrics`.
pub fn router(health: Health, metrics: Metrics) -> Router {
    Router::new()
        .route(
            "/healthz",
            get(|State(health): State<Health>| async move { answer(health.alive()) }),
        )
        .route("/readyz", get(|State(health): State<Health>| async move { answer(health.ready()) }))
        .with_state(health)
        .route("/metrics", get(move || async move { shown(&metrics) }))
}

fn answer(checked: Result<(), String>) -> Response {
    match checked {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

fn shown(metrics: &Metrics) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.encode()).into_response()
}
