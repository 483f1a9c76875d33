//! Developer commands: conformance runs, benchmarks and layout checks.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to people"
)]

mod bench;
mod chaos;
mod chart;
mod conformance;
mod program;
mod sweep;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Developer commands of the Berth workspace")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Compare a model with recorded verdicts of Kubernetes
    Conformance {
        #[command(subcommand)]
        of: Conformance,
    },
    /// Measure speed (release build)
    Bench {
        #[command(subcommand)]
        of: Bench,
    },
    /// Check invariants in many random worlds
    Sweep {
        #[command(subcommand)]
        of: Sweep,
    },
    /// Inject faults into replicas and a real API server while pods arrive, then check etcd's history
    Chaos(chaos::Options),
    /// Check dependency direction, purity, file length and other layout rules
    Tidy,
    /// Regenerate the Helm chart from the output of `berth manifests`
    Chart,
}

#[derive(Subcommand)]
enum Conformance {
    /// The kubelet's admission
    Kubelet(Recorded),
    /// kube-scheduler's decisions
    Scheduler(Recorded),
    /// kube-scheduler's device allocations
    Dra(Recorded),
    /// Device selectors, as evaluated by Kubernetes' CEL
    Cel(Recorded),
}

#[derive(Args)]
struct Recorded {
    /// JSON Lines files, plain or gzipped
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Explain the case with this id instead of counting
    #[arg(long, value_name = "ID")]
    show: Option<String>,
}

#[derive(Subcommand)]
enum Sweep {
    /// The engine: laws of decisions, order of events, rollback
    Engine {
        /// Number of worlds
        #[arg(long, default_value_t = 2_000)]
        seeds: u64,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        first: u64,
    },
    /// The live scheduler in virtual time, with lost calls and dying replicas
    Live {
        /// Number of worlds
        #[arg(long, default_value_t = 2_000)]
        seeds: u64,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        first: u64,
        /// Run each world twice and compare
        #[arg(long)]
        twice: bool,
    },
    /// Competing gangs: none partly placed, deadlocked or starved
    Gangs {
        /// Number of contests
        #[arg(long, default_value_t = 2_000)]
        seeds: u64,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        first: u64,
    },
}

#[derive(Args)]
struct Openb {
    /// Directory of openb's CSV files, or its parent
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Range of seeds, inclusive
    #[arg(long, default_value = "42..51", value_name = "A..B")]
    seeds: String,
    /// Pod lists by name, e.g. `default,multigpu20` (default: all)
    #[arg(long, value_delimiter = ',')]
    lists: Vec<String>,
}

impl Openb {
    fn select(&self) -> anyhow::Result<bench::packing::Selection> {
        bench::packing::Selection::new(&self.data, &self.seeds, &self.lists)
    }
}

#[derive(Subcommand)]
enum Bench {
    /// The node agent: memory, idle CPU, time of a full inspection
    Agent(bench::agent::Args),
    /// `would_admit` and `admit` on 1, 2, 4 and 8 NUMA nodes
    Kubelet,
    /// The engine: decisions on 100 to 100,000 nodes at 95 % full, preemption, a flood, stranded GPUs
    Engine {
        /// Skip larger clusters
        #[arg(long, default_value_t = 100_000)]
        nodes_max: usize,
    },
    /// Calibration of start-time forecasts on a replayed trace with departures
    Eta {
        /// Directory of the openb trace
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// Seeds of the replays; each runs with all loads
        #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
        seeds: Vec<u64>,
    },
    /// Schedulers on one API server: pods bound per second, CPU, memory, stranded, rejected
    Live(bench::live::Args),
    /// Parse 10,000 YAML documents and a dump of 50 MB
    Manifest,
    /// Stranded GPUs of three profiles on 1,000 nodes
    Stranding,
    /// MIG slices: acceptance and stranded units of four mixes, compared with four baselines
    Mig(bench::mig::Options),
    /// Fill Alibaba's openb cluster with Random, `BestFit`, FGD and Berth
    Packing(Openb),
    /// The openb mix with departures at 95 % load, without moves and with few
    Churn(Openb),
    /// The simulation: 90 days of 48 GPUs, openb's cluster, two weeks of requests
    Sim {
        /// Directory that contains openb/ and servegen/
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
    },
    /// A month of four teams, one greedy: guarantees, evictions, utilisation
    Shares {
        /// Nodes of 8 GPUs
        #[arg(long, default_value_t = 64)]
        nodes: usize,
        /// Days
        #[arg(long, default_value_t = 30)]
        days: i64,
        /// Seed of the workload
        #[arg(long, default_value_t = 42)]
        seed: u64,
    },
    /// The admission webhook over TLS: requests per second, latency, CPU per request
    Webhook(bench::webhook::Args),
    /// Instructions per decision, compared with the recorded counts (needs valgrind)
    Instructions {
        /// Record the counts instead
        #[arg(long)]
        write: bool,
    },
    /// One cluster size of `bench engine`; a process of its own
    #[command(hide = true)]
    Rung {
        /// Nodes
        nodes: usize,
    },
    #[command(hide = true)]
    Counted {
        /// Which
        name: String,
    },
}

fn main() -> ExitCode {
    // RUST_LOG shows what the replicas of a sweep did; without it only results are shown.
    let silent = tracing_subscriber::filter::LevelFilter::OFF.into();
    let filter = tracing_subscriber::EnvFilter::builder().with_default_directive(silent);
    let filter = filter.from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(Arguments::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every check passed.
fn run(task: Task) -> anyhow::Result<bool> {
    match task {
        Task::Conformance { of: Conformance::Kubelet(Recorded { files, show }) } => {
            conformance::kubelet(&files, show.as_deref())
        }
        Task::Conformance { of: Conformance::Scheduler(Recorded { files, show }) } => {
            conformance::scheduler(&files, show.as_deref())
        }
        Task::Conformance { of: Conformance::Dra(Recorded { files, show }) } => {
            conformance::dra(&files, show.as_deref())
        }
        Task::Conformance { of: Conformance::Cel(Recorded { files, show }) } => {
            conformance::cel(&files, show.as_deref())
        }
        Task::Bench { of: Bench::Agent(args) } => bench::agent::run(&args),
        Task::Bench { of: Bench::Kubelet } => bench::kubelet::run().map(|()| true),
        Task::Bench { of: Bench::Engine { nodes_max } } => {
            bench::engine::run(nodes_max)?;
            bench::stranding::run().map(|()| true)
        }
        Task::Bench { of: Bench::Eta { data, seeds } } => {
            bench::eta::run(&data, &seeds).map(|()| true)
        }
        Task::Bench { of: Bench::Live(args) } => bench::live::run(&args).map(|()| true),
        Task::Bench { of: Bench::Manifest } => bench::manifest::run(),
        Task::Bench { of: Bench::Stranding } => bench::stranding::run().map(|()| true),
        Task::Bench { of: Bench::Mig(options) } => bench::mig::run(&options),
        Task::Bench { of: Bench::Packing(openb) } => {
            bench::packing::run(&openb.select()?).map(|()| true)
        }
        Task::Bench { of: Bench::Churn(openb) } => {
            bench::packing::run_churn(&openb.select()?).map(|()| true)
        }
        Task::Bench { of: Bench::Sim { data } } => bench::sim::run(data.as_deref()).map(|()| true),
        Task::Bench { of: Bench::Shares { nodes, days, seed } } => {
            bench::shares::run(nodes, days, seed)
        }
        Task::Bench { of: Bench::Webhook(args) } => bench::webhook::run(&args).map(|()| true),
        Task::Bench { of: Bench::Instructions { write } } => bench::instructions::run(write),
        Task::Bench { of: Bench::Rung { nodes } } => bench::engine::rung(nodes).map(|()| true),
        Task::Bench { of: Bench::Counted { name } } => {
            bench::instructions::counted(&name).map(|()| true)
        }
        Task::Sweep { of: Sweep::Engine { seeds, first } } => sweep::engine(first, seeds),
        Task::Sweep { of: Sweep::Live { seeds, first, twice } } => sweep::live(first, seeds, twice),
        Task::Sweep { of: Sweep::Gangs { seeds, first } } => sweep::gangs(first, seeds),
        Task::Chaos(options) => chaos::run(&options),
        Task::Chart => {
            chart::write(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).map(|()| true)
        }
        Task::Tidy => {
            let problems = tidy::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))?;
            problems.iter().for_each(|problem| println!("{problem}"));
            Ok(problems.is_empty())
        }
    }
}
