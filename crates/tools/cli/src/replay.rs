//! The subcommand `berth replay`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use berth_engine::Profile;
use berth_scenario::traces::{openb, requests, serving};
use berth_sim::experiment::{Division, KubeletPolicy, Setup};
use berth_sim::latency::Speed;
use clap::{Args, Subcommand, ValueEnum};

use crate::sim::{Destination, run};

/// Replay public traces and compare schedulers on them
#[derive(Args)]
pub(crate) struct Replay {
    #[command(subcommand)]
    trace: Trace,
}

#[derive(Subcommand)]
enum Trace {
    /// Replay Alibaba's openb cluster trace (CSV)
    Openb(Openb),
    /// Replay requests to language models (Azure, Mooncake, ServeGen) on a serving cluster
    Requests(Requests),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// Pods arrive and stay, until they have requested --demand of the GPUs
    Fill,
    /// Pods arrive and end as in the trace
    Live,
}

#[derive(Args)]
struct Openb {
    /// CSV file of machines
    #[arg(long, value_name = "FILE")]
    nodes: PathBuf,
    /// CSV file of pods
    #[arg(long, value_name = "FILE")]
    pods: PathBuf,
    /// How to replay the pods
    #[arg(long, default_value = "fill")]
    play: Mode,
    /// With --play fill: GPUs to request, relative to the GPUs of the cluster
    #[arg(long, default_value_t = 1.3)]
    demand: f64,
    /// With --play live: number of copies of each pod
    #[arg(long, default_value_t = 1)]
    copies: u32,
    /// Use only the first N machines
    #[arg(long, value_name = "N")]
    machines: Option<usize>,
    /// Seed of the order of arrivals
    #[arg(long, default_value_t = 42)]
    seed: u64,
    #[command(flatten)]
    output: Destination,
}

#[derive(Args)]
struct Requests {
    /// Trace files; each becomes a service
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// GPUs of the cluster, eight per node
    #[arg(long, default_value_t = 64)]
    gpus: usize,
    /// Factor on the load of the traces
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Milliseconds per input token
    #[arg(long, default_value_t = 0.1)]
    input_token_ms: f64,
    /// Milliseconds per output token
    #[arg(long, default_value_t = 20.0)]
    output_token_ms: f64,
    /// Mean milliseconds per request, for traces that contain only rates
    #[arg(long, default_value_t = 4_000.0)]
    mean_ms: f64,
    /// Requests that a replica serves at the same time
    #[arg(long, default_value_t = 64)]
    slots: u32,
    /// Seed of random arrivals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Destination,
}

fn setup(name: &str, profile: Profile, kubelet: KubeletPolicy) -> Setup {
    Setup {
        name: name.to_owned(),
        profile,
        kubelet,
        division: Division::AsDescribed,
        consolidation: None,
    }
}

fn read(path: &Path) -> anyhow::Result<(String, String)> {
    let source = berth_manifest::read_file(path).map_err(|error| anyhow!("{error}"))?;
    Ok((source.name.to_string(), source.text.to_string()))
}

impl Replay {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.trace {
            Trace::Openb(openb) => openb.run(),
            Trace::Requests(requests) => requests.run(),
        }
    }
}

impl Openb {
    fn run(self) -> anyhow::Result<ExitCode> {
        let (file, text) = read(&self.nodes)?;
        let mut nodes = openb::read_nodes(&file, &text)?;
        nodes.truncate(self.machines.unwrap_or(usize::MAX));
        let (file, text) = read(&self.pods)?;
        let pods = openb::read_pods(&file, &text)?;
        let mode = match self.play {
            Mode::Fill if !(0.0..=10.0).contains(&self.demand) => {
                bail!("--demand must be between 0 and 10 (got {})", self.demand)
            }
            Mode::Fill => openb::Play::Fill { demand: self.demand, pods_max: usize::MAX },
            Mode::Live if pods.iter().all(|pod| pod.life_ms.is_none()) => {
                bail!("{file} has no columns creation_time and deletion_time; use --play fill")
            }
            Mode::Live => openb::Play::Live { copies: self.copies },
        };
        let setups = vec![
            setup("kube-scheduler", Profile::KubeScheduler, KubeletPolicy::AsDescribed),
            setup("packing", Profile::KubeSchedulerPacking, KubeletPolicy::AsDescribed),
            setup("berth", Profile::Berth, KubeletPolicy::AsDescribed),
        ];
        run(&openb::experiment(&nodes, &pods, mode, self.seed, setups), &self.output)
    }
}

impl Requests {
    fn run(self) -> anyhow::Result<ExitCode> {
        for (name, value) in [
            ("--scale", self.scale),
            ("--input-token-ms", self.input_token_ms),
            ("--output-token-ms", self.output_token_ms),
            ("--mean-ms", self.mean_ms),
        ] {
            if !(0.0..=1e9).contains(&value) {
                bail!("{name} must be between 0 and 1000000000 (got {value})");
            }
        }
        let us = |ms: f64| ms * 1000.0;
        let tokens = requests::TokenSpeed {
            input_us: us(self.input_token_ms),
            output_us: us(self.output_token_ms),
            slots: self.slots,
        };
        let mut traces = Vec::new();
        for path in &self.traces {
            let (file, text) = read(path)?;
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or("trace");
            let trace = requests::read(&file, &text, tokens, self.scale)?;
            traces.push((name.to_lowercase().replace('_', "-"), trace));
        }
        let mean_us = us(self.mean_ms) as u64;
        let serving = serving::Serving {
            gpus: self.gpus,
            speed: Speed { mean_us, p99_us: mean_us * 4, slots: self.slots },
            seed: self.seed,
            ..serving::Serving::default()
        };
        let setups = vec![
            setup("default stack", Profile::KubeScheduler, KubeletPolicy::Defaults),
            setup("kube-scheduler", Profile::KubeScheduler, KubeletPolicy::AsDescribed),
            setup("berth", Profile::Berth, KubeletPolicy::AsDescribed),
        ];
        let experiment = serving::experiment(&traces, serving, setups);
        run(&experiment.map_err(|error| anyhow!("{error}"))?, &self.output)
    }
}
