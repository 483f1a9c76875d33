//! The subcommand `berth agent`.
//!
//! Owns its arguments and exit codes. Must not know what is on a node.

mod mig;
mod mps;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_agent::dividing::Dividing;
use berth_agent::handing::Handing;
use berth_agent::mig::{MigDriver, NvmlDriver};
use berth_agent::offers::Offers;
use berth_agent::run::{self, Health, Metrics, Options, PodResources, Settings};
use berth_agent::{GpuReading, GpuSource, NodeReport};
use berth_control::kubeconfig::{Access, connect};
use berth_devices::DeviceConfig;
use berth_host::Root;
use clap::{Args, Subcommand, ValueEnum};
use tokio::net::TcpListener;
use tokio::runtime;

use crate::output::{self, Format};
use crate::serve::{LogFormat, log, told_to_stop};

/// The agent is taken for dead after so long without a sign of life.
const SILENCE: Duration = Duration::from_secs(120);

/// Tell what is really on this machine, and whether each pod with a GPU is really aligned.
///
/// With --once it is printed, and no Kubernetes is needed. Otherwise it runs as a service: it publishes the
/// node's NodeResourceTopology (unless somebody else does) and labels, writes on each pod with a GPU how it
/// lies, and tells of changes in events and metrics. What cannot be read is said, with what to do about it,
/// and the rest is told. To see all, run it as root: the kubelet's files, pods' memory and others' GPU
/// processes are not for everybody. Exit codes: 0, or 2 if the arguments or a directory cannot be used.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Agent {
    #[command(subcommand)]
    command: Option<Command>,

    /// Look once, and print what was found.
    #[arg(long)]
    once: bool,

    /// How it is shown.
    #[arg(short, long, value_enum, default_value_t, requires = "once")]
    output: Shown,

    #[command(flatten)]
    from: From,

    #[command(flatten)]
    service: Service,
}

/// How it runs as a service.
#[derive(Args)]
struct Service {
    /// The Node that this machine is.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,

    /// The kubeconfig to use; without one what KUBECONFIG says, or the pod's service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Where health and metrics are served.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9441")]
    listen: SocketAddr,

    /// Hand out GPUs as this file says (kind DeviceOffers), as a device plugin of the kubelet; NVIDIA's must
    /// not offer the same resources.
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,

    /// Divide GPUs (MIG) as the Node's annotation berth.dev/mig-layout says; where NVIDIA's mig-manager runs,
    /// it is asked instead.
    #[arg(long)]
    mig: bool,

    /// How logs look.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Subcommand)]
enum Command {
    Record(Record),
    Mig(mig::Mig),
    Mps(mps::Mps),
}

/// Record this machine into a directory, with nothing private in it; `--root` reads it again.
#[derive(Args)]
struct Record {
    /// Where to: a directory that is empty or not there yet.
    #[arg(value_name = "DIR")]
    to: PathBuf,

    #[command(flatten)]
    from: From,
}

/// Which machine.
#[derive(Args)]
struct From {
    /// Read this directory as if it were the machine's `/`: a recording, or a mounted root.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,

    /// Ask this machine's driver, though --root is elsewhere: a container that has the machine's files
    /// mounted there.
    #[arg(long)]
    nvml: bool,
}

/// How a node is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// For people.
    #[default]
    Table,
    /// As JSON.
    Json,
    /// As YAML.
    Yaml,
}

/// What the help shows.
pub(crate) const EXAMPLES: &[(&str, &str)] = &[
    ("What is on this machine, and how its pods lie", "agent --once"),
    ("Run as a service, for the Node of this name", "agent --node-name gpu-1"),
    ("The same for programs", "agent --once -o json"),
    ("Record a machine, to look at it elsewhere", "agent record node-a/"),
    ("Look at a recording", "agent --once --root node-a/"),
    (
        "Say what dividing a GPU would change",
        "agent mig --layout 4g.71gb,3g.71gb --gpu 0 --dry-run",
    ),
    ("Divide all GPUs into as many small slices as fit", "agent mig --layout all-1g.18gb"),
    ("Keep the MPS daemons that shares need", "agent mps --devices offers.yaml"),
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
        output::say(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Record {
    fn run(self) -> anyhow::Result<ExitCode> {
        let (root, gpus) = self.from.read()?;
        let recording = berth_agent::record::record(&root, &gpus, &self.to)?;
        for diagnosis in gpus.diagnoses.iter().chain(&recording.diagnoses) {
            output::complain(&format!("note: {diagnosis}\n"));
        }
        output::say(&format!(
            "{} entries, {} KiB in {}\n",
            recording.entries,
            recording.bytes.div_ceil(1024),
            self.to.display()
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Service {
    /// Runs until it is told to stop, on one thread: it waits more than it works.
    fn run(self, from: &From) -> anyhow::Result<ExitCode> {
        let Some(node) = self.node_name.clone().filter(|name| !name.is_empty()) else {
            bail!(
                "which Node this machine is has to be said with --node-name or NODE_NAME; add --once to \
                 look without a cluster"
            );
        };
        let (root, gpus) = from.source()?;
        let handing = match &self.devices {
            None => None,
            Some(file) => {
                let config = DeviceConfig::read(&berth_manifest::read_file(file)?)?;
                let offers = Offers::of_file(file.clone(), config.offers.clone());
                let (node, root, gpus) = (node.clone(), root.clone(), gpus.clone());
                Some(Handing { node, root, gpus, config, offers })
            }
        };
        log(self.log_format, "info");
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let options = Options { node, root, gpus, settings: Settings::default() };
        runtime.block_on(self.serve(options, handing))?;
        output::complain("stopped\n");
        Ok(ExitCode::SUCCESS)
    }

    async fn serve(self, options: Options, handing: Option<Handing>) -> anyhow::Result<()> {
        let access = Access {
            kubeconfig: self.kubeconfig,
            context: self.context,
            schedules: true,
            ..Access::default()
        };
        let client = connect(&access).await?.client;
        let (metrics, health) = (Metrics::new(), Health::new(SILENCE));
        let listener = TcpListener::bind(self.listen).await;
        let listener =
            listener.with_context(|| format!("{} cannot be listened on", self.listen))?;
        let shown = run::router(health.clone(), metrics.clone());
        let serving = tokio::spawn(run::serve(listener, shown));
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let told = || {
            let mut stopped = stopped.clone();
            async move { drop(stopped.wait_for(|stop| *stop).await) }
        };
        let mut beside = tokio::task::JoinSet::new();
        if let Some(handing) = handing {
            beside.spawn(handing.run(client.clone(), told()));
        }
        if self.mig {
            beside.spawn(dividing(&options).run(client.clone(), told()));
        }
        let socket = options.root.base().join("var/lib/kubelet/pod-resources/kubelet.sock");
        let holdings = Box::new(PodResources::new(socket));
        run::run(client, options, holdings, (metrics, health), told_to_stop()).await;
        stop.send_replace(true);
        // What was given stays given; the kubelet sees the sockets go. A division under way is finished.
        while beside.join_next().await.is_some() {}
        serving.abort();
        Ok(())
    }
}

/// What divides the GPUs of the node.
fn dividing(options: &Options) -> Dividing {
    Dividing {
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

    /// The driver of this machine is asked for this machine only.
    fn source(&self) -> anyhow::Result<(Root, GpuSource)> {
        if !self.root.is_dir() {
            bail!(
                "{}: is no directory; give --root the directory of a recording",
                self.root.display()
            );
        }
        let here = self.nvml || self.root == Path::new("/");
        let source = if here { GpuSource::Nvml } else { GpuSource::Recorded(self.root.clone()) };
        Ok((Root::new(&self.root), source))
    }
}
