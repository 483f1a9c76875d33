//! The port with TLS: the webhook, and the engine's view beside it.
//!
//! Owns what runs for it: certificates kept fresh, watches that tell the webhook of the cluster, the
//! server. Every replica has one, whether it leads or not. Must not know what is answered.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use jiff::Timestamp;
use tokio::task::JoinSet;

use crate::certificates::{Files, Keeper, Managed, Source};
use crate::http::Health;
use crate::install::{CERTIFICATES_SECRET, NAME, service_names};
use crate::metrics::Metrics;
use crate::port::{Limits, Port, listen};
use crate::webhook::{ContextFeed, Settings, SettingsError, Webhook, follow};

/// What is awaited before the process is ready.
const CERTIFICATE: &str = "the serving certificate";
const CONTEXT: &str = "the webhook's caches to sync";

/// How the port with TLS is served.
#[derive(Clone, Debug)]
pub struct Front {
    /// Where.
    pub listen: SocketAddr,
    /// The namespace that Berth runs in. The webhook leaves it alone.
    pub namespace: String,
    /// The directory of a certificate that somebody else makes; without one it is made here.
    pub certificates: Option<PathBuf>,
    /// How the webhook is set up; `None`: there is none.
    pub webhook: Option<Settings>,
}

impl Front {
    /// Serves until `shutdown`, with `beside` under its own paths. Before `health` says that it is ready, it can
    /// be asked.
    ///
    /// # Errors
    /// When the settings mean nothing, or the address cannot be listened on.
    pub async fn run(
        self,
        client: kube::Client,
        (metrics, health): (Metrics, Health),
        beside: Router,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let mut tasks = JoinSet::new();
        let mut router = beside;
        health.await_part(CERTIFICATE);
        if let Some(settings) = self.webhook.clone() {
            let feed = ContextFeed::default();
            let webhook = self.webhook(settings, feed.clone(), metrics.clone());
            router = router.merge(webhook.map_err(io::Error::other)?.router());
            health.await_part(CONTEXT);
            let listed = {
                let health = health.clone();
                move || health.has_part(CONTEXT)
            };
            tasks.spawn(follow(client.clone(), feed, listed));
        }
        let listener = listen(self.listen)?;
        let keeper = Keeper::start(self.source(client)).await;
        let tls = keeper.tls();
        health.has_part(CERTIFICATE);
        tasks.spawn(keeper.run());
        let port = Port { name: "https", limits: Limits::TLS, metrics };
        port.serve_tls(listener, tls, router, shutdown).await
    }

    fn webhook(
        &self,
        mut settings: Settings,
        feed: ContextFeed,
        metrics: Metrics,
    ) -> Result<Webhook, SettingsError> {
        settings.exempt_namespaces.insert(self.namespace.clone());
        Webhook::new(settings, feed, metrics)
    }

    fn source(&self, client: kube::Client) -> Source {
        match &self.certificates {
            Some(directory) => Source::Files(Files { directory: directory.clone() }),
            None => Source::Managed(Managed {
                client,
                namespace: self.namespace.clone(),
                secret: CERTIFICATES_SECRET.to_owned(),
                names: service_names(&self.namespace),
                // Without a webhook there is no right to read its configurations either.
                configurations: self.webhook.iter().map(|_| NAME.to_owned()).collect(),
                wall: Arc::new(Timestamp::now),
            }),
        }
    }
}
