//! The controllers of a cluster that has no controller-manager.
//!
//! Owns which there are and how they run: each is a module with pure decisions and a thin loop that
//! looks at one object at a time. Must not know kubelets, nor what schedules.

mod context;
mod deployment;
mod hash;
mod job;
pub(crate) mod pods;
mod replica_set;

#[cfg(test)]
pub(crate) mod fixtures;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::queue::{drive, queue};
use crate::views::Views;
use context::Context;

/// Objects of one kind that are looked at at a time.
const WIDTH: usize = 16;

/// How controllers behave.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where times come from.
    pub clock: Clock,
    /// How long a Job waits after the first of its pods has failed; twice as long after each other.
    pub job_backoff: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { clock: Clock::default(), job_backoff: Duration::from_secs(10) }
    }
}

/// Runs all controllers until `shutdown`.
pub async fn run(client: Client, options: Options, shutdown: impl Future<Output = ()>) {
    let views = Views::new();
    let mut tasks = JoinSet::new();
    spawn(&mut tasks, client, options, views);
    shutdown.await;
}

/// Starts all controllers on these views.
pub(crate) fn spawn(tasks: &mut JoinSet<()>, client: Client, options: Options, views: Arc<Views>) {
    let context = Context { client: client.clone(), clock: options.clock, views };
    let backoff = options.job_backoff;

    macro_rules! controller {
        ($name:literal, $module:ident, $reconcile:expr) => {{
            let (to, waiting) = queue();
            $module::wire(&context, &to);
            let context = context.clone();
            tasks.spawn(async move {
                let _to = to;
                context.views.filled_for_controllers().await;
                drive($name, waiting, WIDTH, |key| $reconcile(&context, key)).await;
            });
        }};
    }
    controller!("deployment", deployment, deployment::reconcile);
    controller!("replicaset", replica_set, replica_set::reconcile);
    controller!("job", job, |context, key| job::reconcile(context, backoff, key));

    for watch in context.views.for_controllers(&client) {
        tasks.spawn(watch);
    }
}
