//! `berth serve`: the scheduler on a cluster.
//!
//! Owns its arguments and what runs beside each other in the process. Must not know how pods are placed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, bail};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use berth_apiserver::origin;
use berth_control::core;
use berth_control::front::Front;
use berth_control::http::{self, Health, Openness, Site, api, probes, router};
use berth_control::kubeconfig::{Access, connect};
use berth_control::lease;
use berth_control::metrics::Metrics;
use berth_control::port::{Limits, Port, listen};
use berth_control::serve::{Asked, Asking, Options, Scheduler};
use berth_control::webhook::{Mode, Settings};
use berth_engine::Config;
use berth_engine::config::ReservationBudget;
use berth_manifest::{read, read_file};
use berth_model::workload::{ClassRules, WorkloadClass};
use clap::{Args, ValueEnum};
use tokio::runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::output;

/// The engine's task is taken for dead after so long without a sign of life.
const SILENCE_MS_MAX: u64 = 60_000;

/// Threads that serve ports, and as many for what takes longer.
const PORT_THREADS_MAX: usize = 4;

/// How nice threads that serve ports are.
#[cfg(target_os = "linux")]
const PORT_NICENESS: i32 = 10;

/// So many questions may wait for the engine's task.
const QUESTIONS_MAX: usize = 64;

/// Schedule a cluster: pods that say `schedulerName: berth`
#[derive(Args)]
pub(crate) struct Serve {
    /// The kubeconfig to use; without one what KUBECONFIG says, or the pod's service account
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Pods with this schedulerName are placed; can be given several times
    #[arg(long, value_name = "NAME", default_value = "berth")]
    scheduler_name: Vec<String>,
    /// The namespace of the Lease by which replicas agree on who leads
    #[arg(long, value_name = "NAME", default_value = "berth-system")]
    namespace: String,
    /// The name of that Lease
    #[arg(long, value_name = "NAME", default_value = "berth")]
    lease_name: String,
    /// So long after its last sign of life a leader is taken for dead
    #[arg(long, value_name = "MS", default_value_t = lease::Settings::default().duration_ms)]
    lease_duration_ms: u64,
    /// A leader that cannot renew the Lease for so long stops by itself
    #[arg(long, value_name = "MS", default_value_t = lease::Settings::default().renew_deadline_ms)]
    renew_deadline_ms: u64,
    /// How often the Lease is renewed, and looked at
    #[arg(long, value_name = "MS", default_value_t = lease::Settings::default().retry_ms)]
    lease_retry_ms: u64,
    /// Maximum time that a pod waits for the pods it preempted to terminate; then it looks for room
    /// elsewhere. It waits for their own grace period and one minute more, if that is shorter
    #[arg(long, value_name = "MS", default_value_t = Config::default().eviction_max_wait_ms,
          value_parser = clap::value_parser!(i64).range(1..))]
    eviction_max_wait_ms: i64,
    /// Maximum duration of a gang's node reservation; berth.dev/gang-timeout can only shorten it
    #[arg(long, value_name = "MS", default_value_t = ReservationBudget::default().max_ms,
          value_parser = clap::value_parser!(i64).range(1..))]
    reservation_max_ms: i64,
    /// Maximum percentage of the GPUs of each model that may be reserved for a gang (nodes without
    /// GPUs: of those nodes); 0 disables reservations
    #[arg(long, value_name = "PERCENT", default_value_t = ReservationBudget::default().share_percent,
          value_parser = clap::value_parser!(u8).range(..=100))]
    reservation_share: u8,
    /// Maximum percentage of time that nodes may be reserved for gangs of one team (or of one
    /// namespace without a team)
    #[arg(long, value_name = "PERCENT", default_value_t = ReservationBudget::default().time_percent,
          value_parser = clap::value_parser!(u8).range(1..=100))]
    reservation_time: u8,
    /// Workload class of pods with a PriorityClass and without the label berth.dev/class (default: by
    /// the words and the value of the PriorityClass); repeat for more
    #[arg(long, value_name = "PRIORITYCLASS=CLASS", value_parser = workload_class)]
    workload_class: Vec<(Arc<str>, WorkloadClass)>,
    /// What others know this replica by; a random number is added
    #[arg(long, value_name = "NAME", env = "POD_NAME", default_value = "berth")]
    identity: String,
    /// Where health and metrics are served, and on this machine the engine's view as well
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9440")]
    listen: SocketAddr,
    /// Where the webhook and the engine's view are served with TLS; nowhere if it is not given
    #[arg(long, value_name = "ADDRESS")]
    tls_listen: Option<SocketAddr>,
    /// What the admission webhook does
    #[arg(long, value_enum, default_value_t)]
    webhook: Webhook,
    /// More settings of the webhook: a YAML file with deny, warn, contract and mutations
    #[arg(long, value_name = "FILE")]
    webhook_settings: Option<PathBuf>,
    /// The directory of a certificate that somebody else makes, as tls.crt and tls.key; otherwise it is
    /// made here, and kept in a Secret
    #[arg(long, value_name = "DIR")]
    certificates: Option<PathBuf>,
    /// How logs look
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// What the webhook does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Webhook {
    /// There is none.
    #[default]
    Off,
    /// It counts and logs.
    DryRun,
    /// It warns, and changes what is turned on.
    Warn,
    /// It denies.
    Enforce,
}

impl Webhook {
    /// Its settings; `None`: there is none.
    pub(crate) fn settings(self, file: Option<&Path>) -> anyhow::Result<Option<Settings>> {
        let mode = match self {
            Self::Off => return Ok(None),
            Self::DryRun => Mode::DryRun,
            Self::Warn => Mode::Warn,
            Self::Enforce => Mode::Enforce,
        };
        let settings = file.map(webhook_settings).transpose()?.unwrap_or_default();
        Ok(Some(Settings { mode, ..settings }))
    }
}

/// How logs look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For machines, an object a line.
    Json,
}

/// Logs go to standard error; RUST_LOG says how much, or else `level`.
pub(crate) fn log(format: LogFormat, level: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.with_ansi(false).init(),
        LogFormat::Json => logs.json().init(),
    }
}

impl Serve {
    /// Serves until it is told to stop.
    ///
    /// Scheduling has a thread of its own, with its own connections: what it does is one chain of small
    /// steps, and handing each from thread to thread costs more than the step. Whoever asks the ports is
    /// answered by others, however long a decision takes; those are few, and wait for the CPU when scheduling
    /// needs it.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        log(self.log_format, "info");
        let ports = runtime::Builder::new_multi_thread()
            .worker_threads(
                thread::available_parallelism().map_or(1, usize::from).min(PORT_THREADS_MAX),
            )
            .max_blocking_threads(PORT_THREADS_MAX)
            .on_thread_start(yield_to_scheduling)
            .enable_all()
            .build()?;
        let scheduling = runtime::Builder::new_current_thread().enable_all().build()?;
        let (open, scheduler) = ports.block_on(self.open_ports())?;
        // As a task: to wake what a runtime blocks on takes a system call, to queue a task takes none.
        let running = scheduling.spawn(scheduler.run(open));
        scheduling.block_on(running)??;
        output::complain("stopped\n");
        Ok(ExitCode::SUCCESS)
    }

    /// The port with TLS, if there is to be one.
    fn front(&self) -> anyhow::Result<Option<Front>> {
        let mut webhook = self.webhook.settings(self.webhook_settings.as_deref())?;
        if let Some(settings) = &mut webhook {
            settings.contract.workload_classes.extend(self.workload_class.iter().cloned());
        }
        let Some(listen) = self.tls_listen else {
            if webhook.is_some() {
                bail!("the webhook needs TLS: say with --tls-listen where it is to listen");
            }
            return Ok(None);
        };
        Ok(Some(Front {
            listen,
            namespace: self.namespace.clone(),
            certificates: self.certificates.clone(),
            webhook,
        }))
    }

    /// Serves what can be asked; gives what is left to be run.
    async fn open_ports(self) -> anyhow::Result<(Ports, Scheduling)> {
        let front = self.front()?;
        let access = Access {
            kubeconfig: self.kubeconfig,
            context: self.context,
            schedules: true,
            ..Access::default()
        };
        let client = connect(&access).await?.client;
        let identity = lease::incarnation(&self.identity)?;
        let (site, questions) = shown(&client);
        let (metrics, health) = (site.metrics.clone(), site.health.clone());
        let (stop, shutdown) = watch::channel(false);
        open(self.listen, &site)?;
        let fronting = front.map(|front| {
            let mut shutdown = shutdown.clone();
            let stopped = async move { drop(shutdown.wait_for(|stop| *stop).await) };
            let shown = (metrics.clone(), health.clone());
            tokio::spawn(front.run(client, shown, api(&site), stopped))
        });
        tokio::spawn(async move {
            told_to_stop().await;
            tracing::info!("stopping: what is under way is finished first");
            stop.send_replace(true);
        });
        let by_priority_class = self.workload_class.into_iter().collect();
        let reservations = ReservationBudget {
            max_ms: self.reservation_max_ms,
            share_percent: self.reservation_share,
            time_percent: self.reservation_time,
        };
        let options = Options {
            scheduler_names: self.scheduler_name.into_iter().map(Into::into).collect(),
            identity: identity.into(),
            lease: lease::Settings {
                namespace: self.namespace,
                name: self.lease_name,
                duration_ms: self.lease_duration_ms,
                renew_deadline_ms: self.renew_deadline_ms,
                retry_ms: self.lease_retry_ms,
                request_ms: lease::Settings::default().request_ms.min(self.renew_deadline_ms / 2),
            },
            core: core::Settings {
                engine: Config {
                    eviction_max_wait_ms: self.eviction_max_wait_ms,
                    reservations,
                    ..Config::default()
                },
                classes: ClassRules { by_priority_class, ..ClassRules::default() },
                ..core::Settings::default()
            },
        };
        let scheduling = Scheduling { access, options, metrics, health, questions, shutdown };
        Ok((Ports(fronting), scheduling))
    }
}

/// What is shown of a scheduler, and the questions to it.
pub(crate) fn shown(client: &kube::Client) -> (Site, mpsc::Receiver<Asked>) {
    let (asking, questions) = mpsc::channel(QUESTIONS_MAX);
    let site = Site {
        health: Health::new(SILENCE_MS_MAX),
        metrics: Metrics::new(),
        view: Arc::new(Asking::new(asking)),
        access: http::Access::new(client.clone()),
        health_for: Openness::Everybody,
        metrics_for: Openness::Everybody,
    };
    (site, questions)
}

/// Shows it at an address. Tokens are secrets: beyond this machine they travel with TLS only.
pub(crate) fn open(address: SocketAddr, site: &Site) -> anyhow::Result<()> {
    let listener = listen(address).with_context(|| format!("cannot listen on {address}"))?;
    let open = if address.ip().is_loopback() { router(site) } else { probes(site) };
    let own_only = move |request, next| refuse_foreign(address.ip(), request, next);
    let open = open.layer(from_fn(own_only));
    let port = Port { name: "http", limits: Limits::PLAIN, metrics: site.metrics.clone() };
    tokio::spawn(port.serve(listener, open, std::future::pending()));
    Ok(())
}

/// Lets scheduling go first on the CPU. Where niceness is one of the process there is nothing to do.
fn yield_to_scheduling() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, PORT_NICENESS) {
        tracing::warn!(%error, "could not lower the CPU priority of the HTTP threads");
    }
}

/// Refuses what a browser sends for a page of another site.
async fn refuse_foreign(local: IpAddr, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match origin::check(&head, local) {
        Ok(()) => next.run(Request::from_parts(head, body)).await,
        Err(foreign) => http::status(StatusCode::FORBIDDEN, "Forbidden", &foreign.to_string()),
    }
}

/// The port with TLS, if there is one.
struct Ports(Option<JoinHandle<io::Result<()>>>);

/// What schedules, before it is connected.
struct Scheduling {
    access: Access,
    options: Options,
    metrics: Metrics,
    health: Health,
    questions: mpsc::Receiver<Asked>,
    shutdown: watch::Receiver<bool>,
}

impl Scheduling {
    async fn run(self, ports: Ports) -> anyhow::Result<()> {
        let Self { access, options, metrics, health, questions, shutdown } = self;
        let client = connect(&access).await?.client;
        let scheduler = Scheduler::new(client, options, (metrics, health), questions, shutdown);
        let Ports(Some(mut fronting)) = ports else {
            return Ok(scheduler.run().await?);
        };
        let mut running = Box::pin(scheduler.run());
        tokio::select! {
            ended = &mut running => {
                ended?;
                // Whoever has asked the webhook gets an answer.
                fronting.await??;
            }
            closed = &mut fronting => {
                // An error: without that port nobody can ask the webhook, and a new start is due.
                closed??;
                running.await?;
            }
        }
        Ok(())
    }
}

fn workload_class(text: &str) -> Result<(Arc<str>, WorkloadClass), String> {
    let (name, class) = text.split_once('=').ok_or("write PRIORITYCLASS=CLASS")?;
    let class = WorkloadClass::parse(class).ok_or_else(|| {
        let known = WorkloadClass::ALL.map(WorkloadClass::as_str).join(", ");
        format!("unknown workload class {class:?}; write one of {known}")
    })?;
    Ok((name.into(), class))
}

/// The webhook's settings, as a file has them.
fn webhook_settings(path: &Path) -> anyhow::Result<Settings> {
    let mut documents = read(&read_file(path)?)?;
    match (documents.pop(), documents.is_empty()) {
        (None, _) => Ok(Settings::default()),
        (Some(document), true) => Ok(document.decode()?),
        (Some(_), false) => bail!("{} holds several documents; write one", path.display()),
    }
}

/// Waits for SIGTERM or an interrupt.
pub(crate) async fn told_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}
