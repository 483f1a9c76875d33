//! The controllers of kube-controller-manager, as far as scheduling depends on them. Each is a module with pure
//! decisions and a thin reconcile loop.

mod autoscaler;
mod budgets;
mod claims;
mod context;
mod cron_job;
mod daemon_set;
mod deployment;
mod endpoints;
mod garbage;
mod hash;
mod job;
mod kinds;
mod namespaces;
mod node_life;
pub(crate) mod pods;
mod quotas;
mod replica_set;
mod stateful_set;
pub mod volumes;

#[cfg(test)]
pub(crate) mod fixtures;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::events::{self, Recorder};
use crate::key::Key;
use crate::queue::{Queue, QueueReceiver, Requeue, drive, queue};
use crate::views::Views;
use context::Context;
use garbage::Garbage;
use kinds::Kinds;
use node_life::Heartbeats;

/// Objects of one kind that are reconciled concurrently.
const WIDTH: usize = 16;

#[derive(Clone, Debug)]
pub struct Options {
    pub clock: Clock,
    /// Backoff of a Job after the first failed pod; it doubles with each further one.
    pub job_backoff: Duration,
    /// How long a node may miss heartbeats before it becomes unreachable.
    pub node_grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Clock::default(),
            job_backoff: Duration::from_secs(10),
            node_grace: Duration::from_secs(50),
        }
    }
}

/// Runs all controllers until `shutdown`.
pub async fn run(client: Client, options: Options, shutdown: impl Future<Output = ()>) {
    let views = Views::new();
    let mut tasks = JoinSet::new();
    let events = events::spawn(&mut tasks, client.clone(), options.clock);
    spawn(&mut tasks, client, options, views, events);
    shutdown.await;
}

struct Start<'a> {
    tasks: &'a mut JoinSet<()>,
    context: Context,
}

impl Start<'_> {
    /// Reconciles the keys of a queue, once all mirrors are filled.
    fn drive<Work, Done>(
        &mut self,
        name: &'static str,
        (to, waiting): (Queue, QueueReceiver),
        work: Work,
    ) where
        Work: Fn(Context, Key) -> Done + Send + Sync + 'static,
        Done: Future<Output = Result<Requeue, kube::Error>> + Send,
    {
        let context = self.context.clone();
        self.tasks.spawn(async move {
            // The loop ends when the last sender is dropped.
            let _to = to;
            context.views.filled_for_controllers().await;
            drive(name, waiting, WIDTH, |key| work(context.clone(), key)).await;
        });
    }
}

/// Starts all controllers on these views.
pub(crate) fn spawn(
    tasks: &mut JoinSet<()>,
    client: Client,
    options: Options,
    views: Arc<Views>,
    events: Recorder,
) {
    let kinds = Kinds::new(client.clone());
    let context = Context { client: client.clone(), clock: options.clock, views, events };
    let mut start = Start { tasks, context: context.clone() };
    let backoff = options.job_backoff;

    macro_rules! controller {
        ($name:literal, $module:ident) => {{
            let (to, waiting) = queue();
            $module::wire(&context, &to);
            let work =
                |context: Context, key| async move { $module::reconcile(&context, key).await };
            start.drive($name, (to, waiting), work);
        }};
    }
    controller!("deployment", deployment);
    controller!("replicaset", replica_set);
    controller!("statefulset", stateful_set);
    controller!("daemonset", daemon_set);
    controller!("cronjob", cron_job);
    controller!("poddisruptionbudget", budgets);
    controller!("service", endpoints);

    let (to, waiting) = queue();
    job::wire(&context, &to);
    let work =
        move |context: Context, key| async move { job::reconcile(&context, backoff, key).await };
    start.drive("job", (to, waiting), work);

    start_over_kinds(&mut start, &kinds);
    start_nodes(&mut start, options.node_grace);
    start_claims(&mut start);

    start.tasks.spawn(kinds.run());
    for watch in context.views.for_controllers(&client) {
        start.tasks.spawn(watch);
    }
}

/// Controllers that look at objects of all kinds.
fn start_over_kinds(start: &mut Start<'_>, kinds: &Arc<Kinds>) {
    let context = start.context.clone();
    let (to, waiting) = queue();
    let garbage = Garbage::wire(kinds, &to);
    let work = move |_: Context, key| {
        let garbage = garbage.clone();
        async move { garbage.reconcile(key).await }
    };
    start.drive("garbage collection of", (to, waiting), work);

    let (to, waiting) = queue();
    namespaces::wire(&context, &to);
    let all = Arc::clone(kinds);
    let work = move |context: Context, key| {
        let all = Arc::clone(&all);
        async move { namespaces::reconcile(&context, &all, key).await }
    };
    start.drive("namespace", (to, waiting), work);

    let (to, waiting) = queue();
    quotas::wire(&context, kinds, &to);
    let all = Arc::clone(kinds);
    let work = move |context: Context, key| {
        let all = Arc::clone(&all);
        async move { quotas::reconcile(&context, &all, key).await }
    };
    start.drive("resourcequota", (to, waiting), work);

    let (to, waiting) = queue();
    autoscaler::wire(&context, &to);
    let all = Arc::clone(kinds);
    let work = move |context: Context, key| {
        let all = Arc::clone(&all);
        async move { autoscaler::reconcile(&context, &all, key).await }
    };
    start.drive("horizontalpodautoscaler", (to, waiting), work);
}

fn start_nodes(start: &mut Start<'_>, grace: Duration) {
    let context = start.context.clone();
    let heartbeats = Heartbeats::default();
    let (nodes, nodes_waiting) = queue();
    let (pods, pods_waiting) = queue();
    node_life::wire(&context, &heartbeats, &nodes, &pods);
    let work = move |context: Context, key| {
        let heartbeats = heartbeats.clone();
        async move { node_life::reconcile_node(&context, &heartbeats, grace, key).await }
    };
    start.drive("node", (nodes, nodes_waiting), work);
    let work = |context: Context, key| async move { node_life::reconcile_pod(&context, key).await };
    start.drive("pod", (pods, pods_waiting), work);
}

fn start_claims(start: &mut Start<'_>) {
    let context = start.context.clone();
    let (pods, pods_waiting) = queue();
    let (claims, claims_waiting) = queue();
    claims::wire(&context, &pods, &claims);
    let work = |context: Context, key| async move { claims::reconcile_pod(&context, key).await };
    start.drive("resourceclaims of pod", (pods, pods_waiting), work);
    let work = |context: Context, key| async move { claims::reconcile_claim(&context, key).await };
    start.drive("resourceclaim", (claims, claims_waiting), work);

    let (claims, claims_waiting) = queue();
    let (volumes, volumes_waiting) = queue();
    volumes::wire(&context, &claims, &volumes);
    let work = |context: Context, key| async move { volumes::reconcile_claim(&context, key).await };
    start.drive("persistentvolumeclaim", (claims, claims_waiting), work);
    let work =
        |context: Context, key| async move { volumes::reconcile_volume(&context, key).await };
    start.drive("persistentvolume", (volumes, volumes_waiting), work);
}
