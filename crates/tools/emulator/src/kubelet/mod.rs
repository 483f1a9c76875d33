//! Virtual kubelets: nodes that exist only in the API and treat pods as real ones would.
//!
//! One task decides for all nodes (`host`); writers send the results, with a bounded number of concurrent requests.

mod faults;
mod fit;
mod heartbeat;
mod host;
mod hosts;
pub mod script;
mod status;
mod topology;
mod write;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::events::{self, Recorder};
use crate::key::{annotation, label};
use crate::views::Views;

pub use faults::Faults;

pub use berth_api::keys::VIRTUAL;

#[derive(Clone, Debug)]
pub struct Options {
    pub clock: Clock,
    /// Start time of containers without `berth.dev/start-after`.
    pub start_after: Duration,
    /// Stop time of containers without `berth.dev/stop-after`.
    pub stop_after: Duration,
    /// Run time of pods of Jobs without `berth.dev/run-for`.
    pub job_run_for: Duration,
    /// Delay of the second restart; later delays double up to `restart_backoff_max`.
    pub restart_backoff: Duration,
    pub restart_backoff_max: Duration,
    /// Minimum delay of every restart.
    pub restart_pause: Duration,
    pub lease_every: Duration,
    /// Minimum time between two NodeResourceTopologies of one node.
    pub topology_every: Duration,
    /// Publish NodeResourceTopologies, if the cluster has their CRD.
    pub publish_topology: bool,
    pub requests_at_once: usize,
    pub faults: Faults,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Clock::default(),
            start_after: Duration::from_millis(500),
            stop_after: Duration::from_secs(1),
            job_run_for: Duration::from_secs(10),
            restart_backoff: Duration::from_secs(10),
            restart_backoff_max: Duration::from_secs(300),
            restart_pause: Duration::from_secs(1),
            lease_every: Duration::from_secs(10),
            topology_every: Duration::from_secs(1),
            publish_topology: true,
            requests_at_once: 64,
            faults: Faults::default(),
        }
    }
}

pub(crate) fn is_virtual(node: &Node) -> bool {
    let meta = &node.metadata;
    label(meta, VIRTUAL).or_else(|| annotation(meta, VIRTUAL)) == Some("true")
}

/// Runs the kubelets of all virtual nodes until `shutdown`.
pub async fn run(client: Client, options: Options, shutdown: impl Future<Output = ()>) {
    let views = Views::new();
    let mut tasks = JoinSet::new();
    let events = events::spawn(&mut tasks, client.clone(), options.clock);
    spawn(&mut tasks, client, options, views, events);
    shutdown.await;
}

/// Starts the kubelets of all virtual nodes on these views.
pub(crate) fn spawn(
    tasks: &mut JoinSet<()>,
    client: Client,
    options: Options,
    views: Arc<Views>,
    events: Recorder,
) {
    let (sender, host_events) = hosts::subscribe(&views);
    let write::Writers { write_queue, work } =
        write::writers(&client, &options, &views, sender.clone());
    work.into_iter().for_each(|work| {
        tasks.spawn(work);
    });
    for watch in views.for_kubelets(&client) {
        tasks.spawn(watch);
    }
    tasks.spawn(async move {
        let _sender = sender;
        views.filled_for_kubelets().await;
        hosts::run(&views, options, write_queue, events, host_events).await;
    });
}
