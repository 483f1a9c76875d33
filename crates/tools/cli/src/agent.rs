//! The subcommand `berth agent`.

mod mig;
mod mps;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_agent::device_service::DeviceService;
use berth_agent::mig::{MigDriver, NvmlDriver};
use berth_agent::mig_reconciler::MigReconciler;
use berth_agent::offers::Offers;
use berth_agent::run::{self, Health, Metrics, Options, PodResources, Settings, Status};
use berth_agent::{GpuReading, GpuSource, NodeReport};
use berth_control::kubeconfig::{Access, connect};
use berth_devices::DeviceConfig;
use berth_host::Root;
use clap::{Args, Subcommand, ValueEnum};
use tokio::net::TcpListener;
use tokio::runtime;

use crate::output::{self, Format};
use crate::serve::{LogFormat, start_logging, stop_signal};

/// `/healthz` fails if the agent has not reported for this long.
const SILENCE: Duration = Duration::from_secs(120);

/// Inspect this node's hardware and the NUMA alignment of its GPU pods
///
/// With --once, prints a report; Kubernetes is not needed. Otherwise runs as a service, which publishes the
/// node's NodeResourceTopology (unless another exporter does) and labels, annotates GPU pods with their
/// alignment, and reports changes as Events and metrics. Files that cannot be read are reported with a
/// remedy. Run it as root for a complete report. Exit codes: 0, or 2 if arguments or a directory are
/// invalid.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Agent {
    #[command(subcommand)]
    command: Option<Command>,

    /// Print a report and exit
    #[arg(long)]
    once: bool,

    /// Output format of the report
    #[arg(short, long, value_enum, default_value_t, requires = "once")]
    output: Shown,

    #[command(flatten)]
    from: From,

    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
struct Service {
    /// Name of this machine's Node
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,

    /// Kubeconfig file (default: KUBECONFIG, then the pod's service account)
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Kubeconfig context (default: the current context)
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Address to serve health and metrics on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9441")]
    listen: SocketAddr,

    /// Serve GPUs as a device plugin, as this file (kind DeviceOffers) lists them; NVIDIA's plugin must not
    /// offer the same resources
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,

    /// Repartition GPUs (MIG) as the Node's annotation berth.dev/mig-layout asks; if NVIDIA's mig-manager
    /// runs, it does the work
    #[arg(long)]
    mig: bool,

    /// Log format
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Subcommand)]
enum Command {
    Record(Record),
    Mig(mig::Mig),
    Mps(mps::Mps),
}

/// Record this machine as files, without private data; --root reads a recording
#[derive(Args)]
struct Record {
    /// Directory to write to; it must be empty or not exist
    #[arg(value_name = "DIR")]
    to: PathBuf,

    #[command(flatten)]
    from: From,
}

#[derive(Args)]
struct From {
    /// Directory to read as the machine's root: a recording, or a mounted file system
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,

    /// Use this machine's NVIDIA driver although --root is not /, for a container with the host's files
    /// mounted
    #[arg(long)]
    nvml: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Shown {
    #[default]
    Table,
    Json,
    Yaml,
}

pub(crate) const EXAMPLES: &[(&str, &str)] = &[
    ("Print this machine's hardware and the alignment of its pods", "agent --once"),
    ("Run as a service", "agent --node-name gpu-1"),
    ("Record a machine, to inspect it elsewhere", "agent record node-a/"),
    ("Inspect a recording", "agent --once --root node-a/"),
    (
        "Show what repartitioning a GPU would change",
        "agent mig --layout 4g.71gb,3g.71gb --gpu 0 --dry-run",
    ),
    ("Repartition all GPUs into as many 1g.18gb slices as fit", "agent mig --layout all-1g.18gb"),
    ("Run the MPS daemons that shares need", "agent mps --devices offers.yaml"),
];

impl Agent {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Some(Command::Record(record)) => return record.run(),
            Some(Command::Mig(mig)) => return mig.run(),
            Some(Command::Mps(mps)) => return mps.run(),
            None => {}
        }
        if !self.once {
            return self.service.run(&self.from);
        }
        let (root, gpus) = self.from.read()?;
        let report = NodeReport::read(&root, gpus);
        let text = match self.output {
            Shown::Table => berth_agent::table::render(&report),
            Shown::Json => output::data(&report, Format::Json)?,
            Shown::Yaml => output::data(&report, Format::Yaml)?,
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Record {
    fn run(self) -> anyhow::Result<ExitCode> {
        let (root, gpus) = self.from.read()?;
        let recording = berth_agent::record::record(&root, &gpus, &self.to)?;
        for diagnosis in gpus.diagnoses.iter().chain(&recording.diagnoses) {
            output::print_error(&format!("note: {diagnosis}\n"));
        }
        output::print(&format!(
            "{} entries, {} KiB in {}\n",
            recording.entries,
            recording.bytes.div_ceil(1024),
            self.to.display()
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Service {
    /// Runs until SIGTERM or an interrupt, on one thread: it is idle most of the time.
    fn run(self, from: &From) -> anyhow::Result<ExitCode> {
        let Some(node) = self.node_name.clone().filter(|name| !name.is_empty()) else {
            bail!("--node-name is required (or --once, to inspect this machine without a cluster)");
        };
        let (root, gpus) = from.source()?;
        let devices = match &self.devices {
            None => None,
            Some(file) => {
                let config = DeviceConfig::read(&berth_manifest::read_file(file)?)?;
                let offers = Offers::of_file(file.clone(), config.offers.clone());
                let (node, root, gpus) = (node.clone(), root.clone(), gpus.clone());
                Some(DeviceService { node, root, gpus, config, offers })
            }
        };
        start_logging(self.log_format, "info");
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let options = Options { node, root, gpus, settings: Settings::default() };
        runtime.block_on(self.serve(options, devices))?;
        output::print_error("stopped\n");
        Ok(ExitCode::SUCCESS)
    }

    async fn serve(self, options: Options, devices: Option<DeviceService>) -> anyhow::Result<()> {
        let access = Access {
            kubeconfig: self.kubeconfig,
            context: self.context,
            schedules: true,
            ..Access::default()
        };
        let client = connect(&access).await?.client;
        let status = Status { metrics: Metrics::new(), health: Health::new(SILENCE) };
        let listener = TcpListener::bind(self.listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {}", self.listen))?;
        let router = run::router(status.clone());
        let serving = tokio::spawn(run::serve(listener, router));
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let shutdown = || {
            let mut stopped = stopped.clone();
            async move { drop(stopped.wait_for(|stop| *stop).await) }
        };
        let mut beside = tokio::task::JoinSet::new();
        if let Some(devices) = devices {
            beside.spawn(devices.run(client.clone(), shutdown()));
        }
        if self.mig {
            beside.spawn(mig_reconciler(&options).run(client.clone(), shutdown()));
        }
        let socket = options.root.base().join("var/lib/kubelet/pod-resources/kubelet.sock");
        let source = Box::new(PodResources::new(socket));
        run::run(client, options, source, status, stop_signal()).await;
        stop.send_replace(true);
        // Pods keep their devices; the kubelet sees the sockets close. A repartition in progress is finished.
        while beside.join_next().await.is_some() {}
        serving.abort();
        Ok(())
    }
}

fn mig_reconciler(options: &Options) -> MigReconciler {
    MigReconciler {
        node: options.node.clone(),
        root: options.root.clone(),
        gpus: options.gpus.clone(),
        driver: Arc::new(|| {
            NvmlDriver::open().map(|driver| Box::new(driver) as Box<dyn MigDriver>)
        }),
        journal: options.root.base().join(berth_agent::mig::journal::PLACE),
    }
}

impl From {
    fn read(&self) -> anyhow::Result<(Root, GpuReading)> {
        let (root, source) = self.source()?;
        Ok((root, GpuReading::read(&source)))
    }

    /// NVML is used only if the root is this machine's.
    fn source(&self) -> anyhow::Result<(Root, GpuSource)> {
        if !self.root.is_dir() {
            bail!("--root {} is not a directory", self.root.display());
        }
        let here = self.nvml || self.root == Path::new("/");
        let source = if here { GpuSource::Nvml } else { GpuSource::Recorded(self.root.clone()) };
        Ok((Root::new(&self.root), source))
    }
}
