//! What the node agent costs on a node: memory, CPU at rest, and how long it takes to find everything out.
//!
//! Owns the made node (two EPYC 9654 with eight GPUs and forty pods, eight of them with a GPU), the API it
//! talks to, and the figures. The agent is a process of its own, so that its cost can be told from ours.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_agent::{GpuReading, GpuSource, NodeReport};
use berth_host::Root;
use berth_host::synthetic::{
    self, CgroupVersion, Driver, Layout, Runtime, SyntheticContainer, SyntheticPod,
    SyntheticProcess,
};
use berth_testbed::{Process, Testbed, Which, real_assets};
use serde_json::json;

const PODS: usize = 40;
const GPUS: usize = 8;
const LOOKS: usize = 20;

/// What may not be exceeded: bytes, share of a core, time.
const RESIDENT_KIB_MAX: u64 = 30 << 10;
const CPU_PERCENT_MAX: f64 = 0.1;
const DISCOVERY: Duration = Duration::from_millis(200);

/// How long, and which program.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Idle seconds measured
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Use this berth binary (default: build one)
    #[arg(long, value_name = "FILE")]
    berth: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<bool> {
    let directory = tempfile_in_memory()?;
    make(directory.path())?;
    let made = discovery("made: 2 EPYC 9654, 8 GPUs, 40 pods", directory.path());
    let here = discovery("this machine", Path::new("/"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rest = runtime.block_on(at_rest(args, directory.path()))?;
    println!(
        "agent at rest for {} s: {:.3} % of a core (at most {CPU_PERCENT_MAX})",
        args.seconds, rest.cpu_percent
    );
    println!(
        "resident: {} KiB, of which {} KiB of its own and {} KiB of files (at most {RESIDENT_KIB_MAX}); peak {} KiB",
        rest.resident_kib, rest.own_kib, rest.files_kib, rest.peak_kib
    );
    Ok(rest.cpu_percent < CPU_PERCENT_MAX
        && rest.resident_kib < RESIDENT_KIB_MAX
        && made < DISCOVERY
        && here < DISCOVERY)
}

fn tempfile_in_memory() -> anyhow::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .context("no temporary directory")
}

/// The slowest of some looks at everything.
fn discovery(name: &str, root: &Path) -> Duration {
    let here = root == Path::new("/");
    let source = if here { GpuSource::Nvml } else { GpuSource::Recorded(root.to_owned()) };
    let mut times: Vec<Duration> = (0..LOOKS)
        .map(|_| {
            let began = Instant::now();
            let report = NodeReport::read(&Root::new(root), GpuReading::read(&source));
            std::hint::black_box(report);
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    let slowest = times.last().copied().unwrap_or_default();
    println!(
        "discovery, {name}: median {:.1?}, slowest {slowest:.1?} of {LOOKS} (at most {DISCOVERY:?})",
        at(50)
    );
    slowest
}

fn uid(number: usize) -> String {
    format!("{number:08x}-52c5-4a3e-9a3e-0d4f1f7f2a11")
}

fn gpu(number: usize) -> String {
    format!("GPU-{number:08x}-1111-4a2b-8c3d-0123456789ab")
}

/// Writes the node below a directory.
fn make(directory: &Path) -> anyhow::Result<()> {
    let machine = synthetic::epyc_9654(4);
    let mut tree = machine.tree();
    let layout = Layout {
        version: CgroupVersion::V2,
        driver: Driver::Systemd,
        runtime: Runtime::Containerd,
    };
    let (cpus, mems) = ("0-383", "0-7");
    layout.add_host(&mut tree, cpus, mems);
    let (mut given, mut held) = (serde_json::Map::new(), Vec::new());
    for number in 0..PODS {
        let own = if number < GPUS {
            format!("{}-{}", number * 24 + 1, number * 24 + 4)
        } else {
            String::new()
        };
        let container = |at: usize, cpus: &str| SyntheticContainer {
            id: format!("{:064x}", number * 16 + at),
            cpus: cpus.to_owned(),
            mems: String::new(),
            processes: vec![SyntheticProcess {
                pid: (number * 16 + at + 1000) as u32,
                pages: vec![(0, 1 << 18)],
            }],
        };
        let containers = vec![container(15, ""), container(0, &own)];
        layout.add(&mut tree, &SyntheticPod { uid: uid(number), qos: "", containers }, cpus, mems);
        if number < GPUS {
            given.insert(uid(number), json!({ "server": own }));
            held.push(json!({
                "PodUID": uid(number), "ContainerName": "server", "ResourceName": "nvidia.com/gpu",
                "DeviceIDs": { "0": [gpu(number)] }, "AllocResp": "",
            }));
        }
    }
    let configuration = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
        topologyManagerPolicy: restricted\ncpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n";
    let state =
        json!({ "policyName": "static", "defaultCpuSet": cpus, "entries": given, "checksum": 0 });
    let registered: Vec<String> = (0..GPUS).map(gpu).collect();
    let devices = json!({ "Data": {
        "PodDeviceEntries": held, "RegisteredDevices": { "nvidia.com/gpu": registered },
    }, "Checksum": 0 });
    synthetic::add_kubelet(
        &mut tree,
        configuration,
        Some(&state.to_string()),
        None,
        Some(&devices.to_string()),
    );
    let gpus = machine.devices.iter().filter(|device| device.ids.0 == 0x10de).enumerate();
    let gpus = gpus.map(|(index, device)| {
        json!({
            "index": index, "uuid": gpu(index), "address": device.address(),
            "product": "NVIDIA H100 80GB HBM3",
            "memory": { "totalBytes": 81_559_u64 << 20, "usedBytes": 0, "reservedBytes": 0 },
        })
    });
    let gpus: Vec<serde_json::Value> = gpus.collect();
    tree.file("nvml.json", json!({ "driver": "580.159.04", "gpus": gpus }).to_string());
    Ok(tree.write(directory)?)
}

struct Rest {
    cpu_percent: f64,
    resident_kib: u64,
    own_kib: u64,
    files_kib: u64,
    peak_kib: u64,
}

async fn at_rest(args: &Args, root: &Path) -> anyhow::Result<Rest> {
    let program = crate::program::berth(args.berth.as_deref())?;
    // A real one has TLS, which costs memory.
    let which = if real_assets().is_some() { Which::Real } else { Which::Embedded };
    let testbed = Testbed::start(which).await?;
    println!("the API is {}", testbed.describe());
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
    testbed.apply([node, berth_api::topology::definition()]).await?;
    for number in 0..PODS {
        testbed.apply([json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("pod-{number}"), "namespace": "default",
                "annotations": { "kubernetes.io/config.hash": uid(number) },
            },
            "spec": { "nodeName": "n1", "containers": [{ "name": "server", "image": "model:1" }] },
            "status": { "phase": "Running", "startTime": "2026-01-01T00:00:00Z" },
        })]).await?;
    }
    let kubeconfig = testbed.kubeconfig(testbed.admin_token(), None)?;
    let mut command = Command::new(program);
    command.args(["agent", "--node-name", "n1", "--listen", "127.0.0.1:0", "--root"]).arg(root);
    command.arg("--kubeconfig").arg(kubeconfig);
    let mut process = Process::start("agent", &mut command, &testbed.dir().join("agent.log"))?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    ensure!(process.ended().is_none(), "the agent has ended");
    let before = cpu_time(process.id())?;
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let used = cpu_time(process.id())?.saturating_sub(before);
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id()))?;
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    Ok(Rest {
        cpu_percent: used.as_secs_f64() * 100.0 / args.seconds as f64,
        resident_kib: kib("VmRSS:"),
        own_kib: kib("RssAnon:"),
        files_kib: kib("RssFile:"),
        peak_kib: kib("VmHWM:"),
    })
}

/// Time for which a process's threads have been on a core.
fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        sum += text.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(sum))
}
