//! A replica of the scheduler in this process.
//!
//! Owns its life: started, asked to stop, killed. Each has a runtime of its own, so that a killed one does
//! nothing more, as a killed process does not. Must not know what is tested.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use berth_control::core;
use berth_control::http::{Access, Health, Openness, Site, router};
use berth_control::lease;
use berth_control::metrics::Metrics;
use berth_control::serve::{Asking, Options, Scheduler};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

use crate::world::World;

/// A running replica.
pub(crate) struct Replica {
    runtime: Option<Runtime>,
    running: JoinHandle<()>,
    stop: watch::Sender<bool>,
    metrics: Metrics,
    router: Router,
}

/// As in production.
pub(crate) fn patient() -> lease::Settings {
    lease::Settings::default()
}

/// For those who wait for a takeover.
pub(crate) fn hasty() -> lease::Settings {
    lease::Settings {
        duration_ms: 3_000,
        renew_deadline_ms: 2_000,
        retry_ms: 250,
        request_ms: 1_500,
        ..patient()
    }
}

impl Replica {
    /// Starts one that leads as soon as it can.
    pub(crate) async fn start(world: &World) -> Self {
        Self::start_with(world, patient(), core::Settings::default()).await
    }

    /// Starts one with other settings.
    pub(crate) async fn start_with(
        world: &World,
        lease: lease::Settings,
        core: core::Settings,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (metrics, health) = (Metrics::new(), Health::new(60_000));
        let (asking, questions) = mpsc::channel(64);
        let (stop, shutdown) = watch::channel(false);
        let options = Options {
            scheduler_names: Arc::new(["berth".into()]),
            identity: lease::incarnation("replica").unwrap().into(),
            lease,
            core,
        };
        // What a client sets going belongs to the runtime in which it is made.
        let maker = world.clone();
        let client = runtime.spawn(async move { maker.scheduler_client().await }).await.unwrap();
        let site = Site {
            health: health.clone(),
            metrics: metrics.clone(),
            view: Arc::new(Asking::new(asking, client.clone())),
            access: Access::new(client.clone()),
            health_for: Openness::Everybody,
            metrics_for: Openness::Everybody,
        };
        let scheduler =
            Scheduler::new(client, options, (metrics.clone(), health), questions, shutdown);
        let running = runtime.spawn(async move { scheduler.run().await.unwrap() });
        Self { runtime: Some(runtime), running, stop, metrics, router: router(&site) }
    }

    /// Asks it to stop, as SIGTERM does, and waits until it has.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        let ended = tokio::time::timeout(Duration::from_secs(30), &mut self.running).await;
        ended.expect("it does not stop").expect("it panicked");
    }

    /// Ends it as `kill -9` does.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// What Prometheus would read.
    pub(crate) fn metrics(&self) -> String {
        self.metrics.encode()
    }

    /// The sum of a metric over all its labels of which one text is a part.
    pub(crate) fn metric(&self, name: &str, labels: &str) -> f64 {
        let text = self.metrics();
        let lines = text.lines().filter(|line| {
            let of = line.split(['{', ' ']).next();
            of == Some(name) && line.contains(labels)
        });
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// What readiness says.
    pub(crate) async fn readiness(&self) -> (StatusCode, String) {
        let (status, bytes) = self.answer("/readyz", None).await;
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// Asks over HTTP.
    pub(crate) async fn get(&self, path: &str, token: Option<&str>) -> (StatusCode, Value) {
        let (status, bytes) = self.answer(path, token).await;
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    async fn answer(&self, path: &str, token: Option<&str>) -> (StatusCode, Bytes) {
        let mut request = Request::get(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).unwrap();
        let router = self.router.clone();
        let runtime = self.runtime.as_ref().unwrap().handle().clone();
        let asked = runtime.spawn(async move {
            let answer = router.oneshot(request).await.unwrap();
            let status = answer.status();
            (status, answer.into_body().collect().await.unwrap().to_bytes())
        });
        asked.await.unwrap()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
