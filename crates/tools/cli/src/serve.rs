//! The subcommand `berth serve`: its arguments, and the threads and tasks of the process.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, anyhow, bail};
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

/// `/livez` fails if the engine's task has not reported for this long.
const SILENCE_MS_MAX: u64 = 60_000;

/// Threads that serve the ports, and as many for blocking work.
const PORT_THREADS_MAX: usize = 4;

/// Niceness of the threads that serve the ports.
#[cfg(target_os = "linux")]
const PORT_NICENESS: i32 = 10;

/// Queue length of HTTP queries to the engine's task.
const QUESTIONS_MAX: usize = 64;

/// Run the scheduler: places pods with `schedulerName: berth`
#[derive(Args)]
pub(crate) struct Serve {
    /// Kubeconfig file (default: KUBECONFIG, then the pod's service account)
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Kubeconfig context (default: the current context)
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// schedulerName of the pods to place; repeat for more
    #[arg(long, value_name = "NAME", default_value = "berth")]
    scheduler_name: Vec<String>,
    /// Namespace of the Lease for leader election
    #[arg(long, value_name = "NAME", default_value = "berth-system")]
    namespace: String,
    /// Name of the Lease
    #[arg(long, value_name = "NAME", default_value = "berth")]
    lease_name: String,
    /// How long a leader may go without renewing before another takes over
    #[arg(long, value_name = "MS", default_value_t = lease::Settings::default().duration_ms)]
    lease_duration_ms: u64,
    /// How long a leader tries to renew the Lease before it stops leading
    #[arg(long, value_name = "MS", default_value_t = lease::Settings::default().renew_deadline_ms)]
    renew_deadline_ms: u64,
    /// Interval between renewals, and between checks by the other replicas
    #[arg(long, value_name = "MS", default_value_t = lease::Settings::default().retry_ms)]
    lease_retry_ms: u64,
    /// Maximum time that a pod waits for the pods it preempted to terminate before it looks for room
    /// elsewhere; it never waits longer than their grace period and a minute
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
    /// Name of this replica in the Lease; a random number is appended
    #[arg(long, value_name = "NAME", env = "POD_NAME", default_value = "berth")]
    identity: String,
    /// Address to serve health and metrics on, and the HTTP API if it is a loopback address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9440")]
    listen: SocketAddr,
    /// Address to serve the webhook and the HTTP API on, with TLS (default: none)
    #[arg(long, value_name = "ADDRESS")]
    tls_listen: Option<SocketAddr>,
    /// Mode of the admission webhook
    #[arg(long, value_enum, default_value_t)]
    webhook: Webhook,
    /// Webhook settings: a YAML file with deny, warn, contract and mutations
    #[arg(long, value_name = "FILE")]
    webhook_settings: Option<PathBuf>,
    /// Directory with a certificate (tls.crt, tls.key) issued by someone else (default: issue one and
    /// keep it in a Secret)
    #[arg(long, value_name = "DIR")]
    certificates: Option<PathBuf>,
    /// Log format
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Webhook {
    /// Do not serve it
    #[default]
    Off,
    /// Count and log findings
    DryRun,
    /// Warn about findings, and apply the mutations that are turned on
    Warn,
    /// Also deny objects with errors
    Enforce,
}

impl Webhook {
    /// `None`: no webhook.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    /// One JSON object per line
    Json,
}

/// Logs to standard error, at RUST_LOG or else at `level`.
pub(crate) fn start_logging(format: LogFormat, level: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.with_ansi(false).init(),
        LogFormat::Json => logs.json().init(),
    }
}

impl Serve {
    /// Runs until SIGTERM or an interrupt.
    ///
    /// Scheduling has its own thread and connections: it is a chain of small steps, and passing each of
    /// them between threads would cost more than the step. The ports are served by a few other threads of
    /// lower CPU priority, so requests are answered during a long decision and do not slow it down.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        start_logging(self.log_format, "info");
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
        // As a task, because waking the future that a runtime blocks on takes a system call, waking a task none.
        let running = scheduling.spawn(scheduler.run(open));
        scheduling.block_on(running)??;
        output::print_error("stopped\n");
        Ok(ExitCode::SUCCESS)
    }

    /// The TLS port, if one is configured.
    fn front(&self) -> anyhow::Result<Option<Front>> {
        let mut webhook = self.webhook.settings(self.webhook_settings.as_deref())?;
        if let Some(settings) = &mut webhook {
            settings.contract.workload_classes.extend(self.workload_class.iter().cloned());
        }
        let Some(listen) = self.tls_listen else {
            if webhook.is_some() {
                bail!("--tls-listen is required with --webhook");
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

    /// Starts to serve the ports, and returns what remains to be run.
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
        let (site, questions) = site(&client);
        let (metrics, health) = (site.metrics.clone(), site.health.clone());
        let (stop, shutdown) = watch::channel(false);
        open(self.listen, &site)?;
        let fronting = front.map(|front| {
            let mut shutdown = shutdown.clone();
            let stopped = async move { drop(shutdown.wait_for(|stop| *stop).await) };
            let state = (metrics.clone(), health.clone());
            tokio::spawn(front.run(client, state, api(&site), stopped))
        });
        tokio::spawn(async move {
            stop_signal().await;
            tracing::info!("stopping after calls in flight have finished");
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

/// The HTTP site of a scheduler, and the queries that it sends to the engine's task.
pub(crate) fn site(client: &kube::Client) -> (Site, mpsc::Receiver<Asked>) {
    let (asking, questions) = mpsc::channel(QUESTIONS_MAX);
    let site = Site {
        health: Health::new(SILENCE_MS_MAX),
        metrics: Metrics::new(),
        view: Arc::new(Asking::new(asking, client.clone())),
        access: http::Access::new(client.clone()),
        health_for: Openness::Everybody,
        metrics_for: Openness::Everybody,
    };
    (site, questions)
}

/// Serves health, metrics and, on a loopback address, the HTTP API. Elsewhere the API needs TLS, because
/// requests contain tokens.
pub(crate) fn open(address: SocketAddr, site: &Site) -> anyhow::Result<()> {
    let listener = listen(address).with_context(|| format!("cannot listen on {address}"))?;
    let open = if address.ip().is_loopback() { router(site) } else { probes(site) };
    let same_site = move |request, next| require_same_site(address.ip(), request, next);
    let open = open.layer(from_fn(same_site));
    let port = Port { name: "http", limits: Limits::PLAIN, metrics: site.metrics.clone() };
    tokio::spawn(port.serve(listener, open, std::future::pending()));
    Ok(())
}

/// Gives scheduling precedence on the CPU. Only Linux has a niceness per thread.
fn yield_to_scheduling() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, PORT_NICENESS) {
        tracing::warn!(%error, "could not lower the CPU priority of the HTTP threads");
    }
}

/// Rejects cross-site requests of browsers.
async fn require_same_site(local: IpAddr, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match origin::check(&head, local) {
        Ok(()) => next.run(Request::from_parts(head, body)).await,
        Err(error) => http::status(StatusCode::FORBIDDEN, "Forbidden", &error.to_string()),
    }
}

/// The task that serves the TLS port, if there is one.
struct Ports(Option<JoinHandle<io::Result<()>>>);

/// A scheduler that is not connected yet.
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
                // Requests to the webhook in flight are answered.
                fronting.await??;
            }
            closed = &mut fronting => {
                // An error ends the process, because the webhook is unreachable without the port.
                closed??;
                running.await?;
            }
        }
        Ok(())
    }
}

fn workload_class(text: &str) -> anyhow::Result<(Arc<str>, WorkloadClass)> {
    let (name, class) = text.split_once('=').context("expected PRIORITYCLASS=CLASS")?;
    let class = WorkloadClass::parse(class).ok_or_else(|| {
        let known = WorkloadClass::ALL.map(WorkloadClass::as_str).join(", ");
        anyhow!("unknown workload class {class:?}; use one of {known}")
    })?;
    Ok((name.into(), class))
}

fn webhook_settings(path: &Path) -> anyhow::Result<Settings> {
    let mut documents = read(&read_file(path)?)?;
    match (documents.pop(), documents.is_empty()) {
        (None, _) => Ok(Settings::default()),
        (Some(document), true) => Ok(document.decode()?),
        (Some(_), false) => bail!("{} must contain a single YAML document", path.display()),
    }
}

/// Waits for SIGTERM or an interrupt.
pub(crate) async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}
