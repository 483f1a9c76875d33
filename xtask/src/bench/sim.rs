//! What simulating costs: time and memory of three experiments.
//!
//! The 90 days of the 48-GPU example, a replay of openb's 1,213 nodes with 10,000 pods, and 14 days of
//! ServeGen's load on 500 GPUs, each under the setups that are compared.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use berth_engine::Profile;
use berth_scenario::scenario::load;
use berth_scenario::traces::{openb, requests, serving};
use berth_sim::experiment::{Division, Experiment, KubeletPolicy, Setup};

const PODS: usize = 10_000;
const GPUS: usize = 500;

pub(crate) fn run(data: Option<&Path>) -> Result<()> {
    println!(
        "{:<26} {:<24} {:>9} {:>11} {:>9} {:>10} {:>9}",
        "experiment", "setup", "seconds", "decisions", "pods", "allocated", "peak MiB"
    );
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/48-gpus/scenario.yaml");
    let example = load(&example, None).map_err(|error| anyhow!("{error}"))?;
    measure("48 GPUs, 90 days", &example)?;
    let Some(data) = data else {
        println!("the replays need --data DIR: the directory that holds openb/ and servegen/");
        return Ok(());
    };
    measure("openb, 1,213 nodes", &replay(data)?)?;
    measure("servegen, 500 GPUs", &serve(data)?)?;
    Ok(())
}

fn setups(kubelet: KubeletPolicy) -> Vec<Setup> {
    [("kube-scheduler", Profile::KubeScheduler), ("berth", Profile::Berth)]
        .map(|(name, profile)| Setup {
            name: name.to_owned(),
            profile,
            kubelet,
            division: Division::AsDescribed,
            consolidation: None,
        })
        .to_vec()
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn replay(data: &Path) -> Result<Experiment> {
    let (nodes, pods) = ("openb_node_list_gpu_node.csv", "openb_pod_list_default.csv");
    let openb = data.join("openb");
    let nodes = openb::read_nodes(nodes, &read(&openb.join(nodes))?)?;
    let pods = openb::read_pods(pods, &read(&openb.join(pods))?)?;
    let play = openb::Play::Fill { demand: 1.3, pods_max: PODS };
    Ok(openb::experiment(&nodes, &pods, play, 42, setups(KubeletPolicy::AsDescribed)))
}

fn serve(data: &Path) -> Result<Experiment> {
    let mut traces = Vec::new();
    for name in ["language_m-large", "language_m-small"] {
        let file = format!("{name}_rate_10min.csv");
        let text = read(&data.join("servegen").join(&file))?;
        let trace = requests::read(&file, &text, requests::TokenSpeed::default(), 1.0)?;
        traces.push((name.to_owned(), trace));
    }
    let serving = serving::Serving { gpus: GPUS, ..serving::Serving::default() };
    serving::experiment(&traces, serving, setups(KubeletPolicy::AsDescribed))
        .map_err(|error| anyhow!("{error}"))
}

/// Runs an experiment one setup at a time.
fn measure(name: &str, experiment: &Experiment) -> Result<()> {
    for setup in &experiment.setups {
        let alone = Experiment { setups: vec![setup.clone()], ..experiment.clone() };
        let start = Instant::now();
        let report = berth_sim::run(&alone, &mut |_, _| {})?;
        let seconds = start.elapsed().as_secs_f64();
        let summary = report.runs.first().map(|run| run.summary.clone()).unwrap_or_default();
        println!(
            "{name:<26} {:<24} {seconds:>9.2} {:>11} {:>9} {:>9.2}% {:>9}",
            setup.name,
            summary.decisions,
            summary.pods,
            summary.allocated * 100.0,
            peak_mib()
        );
    }
    Ok(())
}

/// The most memory this process ever had, as Linux tells it.
fn peak_mib() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or_else(|| "?".to_owned(), |kib| (kib / 1024).to_string())
}
