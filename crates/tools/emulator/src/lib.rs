//! Controllers and virtual kubelets for `berth up` and tests: what kube-controller-manager and kubelets do, as far
//! as scheduling depends on it.
//!
//! They work against any API server through a [`kube::Client`]. Kubelets admit pods with the model of
//! `berth-kubelet` and fail on demand. There is no scheduler, no containers, no network and no cloud here.

mod clock;
pub mod controllers;
mod events;
mod key;
pub mod kubelet;
mod mirror;
pub mod nodes;
mod queue;
mod views;

use std::future::Future;
use std::sync::Arc;

use kube::Client;
use tokio::task::JoinSet;

pub use clock::Clock;

#[derive(Clone, Debug, Default)]
pub struct Options {
    pub controllers: controllers::Options,
    pub kubelet: kubelet::Options,
}

/// Runs controllers and virtual kubelets on shared watches until `shutdown`.
pub async fn run(client: Client, options: Options, shutdown: impl Future<Output = ()>) {
    let views = views::Views::new();
    let mut tasks = JoinSet::new();
    let Options { controllers, kubelet } = options;
    let recorder = events::spawn(&mut tasks, client.clone(), controllers.clock);
    kubelet::spawn(&mut tasks, client.clone(), kubelet, Arc::clone(&views), recorder.clone());
    controllers::spawn(&mut tasks, client, controllers, views, recorder);
    shutdown.await;
}
