//! `berth replay`: plays public traces under several schedulers.
//!
//! Owns the arguments. What traces say is theirs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use berth_engine::Profile;
use berth_scenario::traces::{openb, requests, serving};
use berth_sim::experiment::{Division, KubeletPolicy, Setup};
use berth_sim::latency::Speed;
use clap::{Args, Subcommand, ValueEnum};

use crate::sim::{Destination, play};

/// Replay public traces, policies side by side
#[derive(Args)]
pub(crate) struct Replay {
    #[command(subcommand)]
    of: Of,
}

#[derive(Subcommand)]
enum Of {
    /// Alibaba's openb cluster: machines and pods, as CSV
    Openb(Openb),
    /// Requests to language models (Azure, Mooncake, ServeGen) on a serving cluster
    Requests(Requests),
}

/// How pods are played.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Play {
    /// They come and stay, until they ask for more GPUs than there are
    Fill,
    /// They come and go as they did
    Live,
}

#[derive(Args)]
struct Openb {
    /// The list of machines
    #[arg(long, value_name = "FILE")]
    nodes: PathBuf,
    /// The list of pods
    #[arg(long, value_name = "FILE")]
    pods: PathBuf,
    /// How they are played
    #[arg(long, default_value = "fill")]
    play: Play,
    /// Fill: how much they ask for, as a part of all GPUs
    #[arg(long, default_value_t = 1.3)]
    demand: f64,
    /// Live: how often each pod comes
    #[arg(long, default_value_t = 1)]
    copies: u32,
    /// Use the first so many machines only
    #[arg(long)]
    machines: Option<usize>,
    /// The same seed gives the same order
    #[arg(long, default_value_t = 42)]
    seed: u64,
    #[command(flatten)]
    into: Destination,
}

#[derive(Args)]
struct Requests {
    /// Traces; each is a service of its own
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// GPUs of the cluster, eight on a node
    #[arg(long, default_value_t = 64)]
    gpus: usize,
    /// How many times the load of the traces
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Milliseconds for a token that is read
    #[arg(long, default_value_t = 0.1)]
    input_token_ms: f64,
    /// Milliseconds for a token that is written
    #[arg(long, default_value_t = 20.0)]
    output_token_ms: f64,
    /// Mean milliseconds of a request, where the trace has rates only
    #[arg(long, default_value_t = 4_000.0)]
    mean_ms: f64,
    /// Requests that a replica serves at a time
    #[arg(long, default_value_t = 64)]
    slots: u32,
    /// The same seed gives the same course of things
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    into: Destination,
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
        match self.of {
            Of::Openb(openb) => openb.run(),
            Of::Requests(requests) => requests.run(),
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
        let play_as = match self.play {
            Play::Fill if !(0.0..=10.0).contains(&self.demand) => {
                bail!("--demand {} is out of range; write a part of all GPUs up to 10", self.demand)
            }
            Play::Fill => openb::Play::Fill { demand: self.demand, pods_max: usize::MAX },
            Play::Live if pods.iter().all(|pod| pod.life_ms.is_none()) => {
                bail!("{file}: has no creation_time and deletion_time; play it with --play fill")
            }
            Play::Live => openb::Play::Live { copies: self.copies },
        };
        let setups = vec![
            setup("kube-scheduler", Profile::KubeScheduler, KubeletPolicy::AsDescribed),
            setup("packing", Profile::KubeSchedulerPacking, KubeletPolicy::AsDescribed),
            setup("berth", Profile::Berth, KubeletPolicy::AsDescribed),
        ];
        play(&openb::experiment(&nodes, &pods, play_as, self.seed, setups), &self.into)
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
                bail!("{name} {value} is out of range; write a number from 0 to 1000000000");
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
        play(&experiment.map_err(|error| anyhow!("{error}"))?, &self.into)
    }
}
