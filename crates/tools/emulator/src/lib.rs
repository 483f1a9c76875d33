//! The rest of a cluster in one process: controllers and virtual kubelets.
//!
//! What a kube-controller-manager and kubelets do, as far as scheduling sees it, against any API
//! server: the embedded one, or a real one. Everything goes through a [`kube::Client`]. Each kind
//! has a pure `reconcile`; one loop runs them all. Kubelets admit pods with the model of
//! `berth-kubelet` and break on demand. No scheduling, containers, networking or cloud.

mod clock;
pub mod controllers;
mod key;
pub mod kubelet;
mod mirror;
pub mod nodes;
mod queue;
mod views;

use std::future::Future;

use kube::Client;
use tokio::task::JoinSet;

pub use clock::Clock;

/// How the rest of a cluster behaves.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The controllers.
    pub controllers: controllers::Options,
    /// The virtual kubelets.
    pub kubelet: kubelet::Options,
}

/// Runs controllers and virtual kubelets on the same watches until `shutdown`.
pub async fn run(client: Client, options: Options, shutdown: impl Future<Output = ()>) {
    let views = views::Views::new();
    let mut tasks = JoinSet::new();
    let kubelet = options.kubelet;
    kubelet::spawn(&mut tasks, client.clone(), kubelet, std::sync::Arc::clone(&views));
    controllers::spawn(&mut tasks, client, options.controllers, views);
    shutdown.await;
}
