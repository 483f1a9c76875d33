//! Schedulers against the same kind of API server, one after the other: ours, kube-scheduler, and, as the
//! limit, a client that only posts the bindings that ours has posted: as JSON, as most clients do, and in protobuf, as
//! ours does, which costs the server less. Each begins with a server that has just started: what a server
//! remembers of rows before makes it slower by chance, whenever it collects its garbage.
//!
//! 1,000 nodes of 8 GPUs on two sockets under `single-numa-node`; 4,000 pods of 1, 1, 1, 1, 2, 2 and 4 GPUs
//! drawn at random, with 8 CPUs and 64 GiB per GPU, all there before the scheduler starts. Plain, and with a
//! spread constraint over three zones. What kubelets would have turned down follows from Berth's model of
//! them, fed with the pods in the order in which they were bound.
//!
//! kube-scheduler gets no limit on its requests (`clientConnection.qps`), and no leader election. Ours has
//! led before: the first leader ever touches all pods that wait, as somebody may have deleted the Lease of
//! another, and that is not what is compared. Beside the CPU of a scheduler stands what it made the API
//! server and etcd do, from the first binding to the last: on a machine with few cores that is the limit.

mod flood;
mod process;
mod watched;
mod work;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use berth_api::keys::PLACEMENT;
use berth_protobuf::Written;
use berth_testbed::{Testbed, Which, real_assets};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, DeleteParams, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use self::process::{Process, Usage};
use self::watched::{SILENCE, Watch, Watched};
use crate::program;

/// What is asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Use this empty cluster without a scheduler (default: start a kube-apiserver and etcd for each row)
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Path of kube-scheduler (default: beside kube-apiserver; if missing, only Berth and the limit are measured)
    #[arg(long, value_name = "FILE")]
    kube_scheduler: Option<PathBuf>,
    /// Use this berth binary (default: build one with the image's profile)
    #[arg(long, value_name = "FILE")]
    berth: Option<PathBuf>,
    #[arg(long, default_value_t = 1_000)]
    nodes: usize,
    #[arg(long, default_value_t = 4_000)]
    pods: usize,
    #[arg(long, default_value_t = 86)]
    seed: u64,
    /// Rounds in which Berth and the limit are measured in turn
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Measure only rows whose name contains this text
    #[arg(long)]
    only: Option<String>,
    /// Measure the latency of normal pods beside this many unschedulable pods of distinct shapes
    #[arg(long, value_name = "PODS")]
    flood: Option<usize>,
    /// Unschedulable pods created per second
    #[arg(long, default_value_t = 200, requires = "flood")]
    flood_rate: u32,
}

/// How long the last calls may take before the process is measured.
const SETTLE: Duration = Duration::from_secs(1);

/// Who is measured.
struct Contest<'a> {
    args: &'a Args,
    kube_scheduler: Option<PathBuf>,
    berth: PathBuf,
}

/// Where.
struct Cluster {
    client: Client,
    kubeconfig: PathBuf,
    /// The processes of the API, if they were started here.
    servers: Vec<u32>,
    /// Ends with it.
    _testbed: Option<Testbed>,
}

impl Cluster {
    /// The one that was named, or a new one, with the nodes.
    async fn get(args: &Args) -> Result<Self> {
        let cluster = match &args.kubeconfig {
            Some(named) => Self {
                client: client(named).await?,
                kubeconfig: named.clone(),
                servers: Vec::new(),
                _testbed: None,
            },
            None => {
                let mut testbed = Testbed::start(Which::Real).await?;
                let kubeconfig = testbed.kubeconfig(testbed.admin_token(), None)?;
                let servers = testbed.real().map(|real| real.processes().collect());
                Self {
                    client: client(&kubeconfig).await?,
                    kubeconfig,
                    servers: servers.unwrap_or_default(),
                    _testbed: Some(testbed),
                }
            }
        };
        work::create_nodes(&cluster.client, &work::nodes(args.nodes)).await?;
        Ok(cluster)
    }
}

/// Who binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    KubeScheduler,
    MostAllocated,
    Berth,
    Limit,
    LimitInProtobuf,
}

impl Row {
    fn name(self) -> &'static str {
        match self {
            Self::KubeScheduler => "kube-scheduler",
            Self::MostAllocated => "kube-scheduler, MostAllocated",
            Self::Berth => "berth",
            Self::Limit => "bindings only (the limit)",
            Self::LimitInProtobuf => "bindings only, in protobuf",
        }
    }
}

/// A pod that was given a node.
#[derive(Clone)]
struct Bound {
    pod: String,
    node: String,
    /// What was written on it about its place.
    placement: Option<String>,
}

/// What came of a row.
struct Outcome {
    bound: Vec<Bound>,
    /// From the first binding to the last.
    seconds: f64,
    /// From the start of the process to the first binding.
    first_s: f64,
    usage: Usage,
    /// CPU of the API meanwhile, if it can be seen.
    server_ms: Option<f64>,
    rejected: usize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let berth = program::berth(args.berth.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let beside = real_assets().map(|assets| assets.dir.join("kube-scheduler"));
        let beside = beside.filter(|program| program.is_file());
        let kube_scheduler = args.kube_scheduler.clone().or(beside);
        let contest = Contest { args, kube_scheduler, berth };
        match args.flood {
            Some(pods) => flood::measure(&contest, pods).await,
            None => measure(&contest).await,
        }
    })
}

async fn client(kubeconfig: &Path) -> Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("{} cannot be read", kubeconfig.display()))?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

async fn measure(contest: &Contest<'_>) -> Result<()> {
    let args = contest.args;
    println!("{} nodes, {} pods, seed {}", args.nodes, args.pods, args.seed);
    println!(
        "{:<38} {:>8} {:>8} {:>10} {:>10} {:>9} {:>6} {:>9} {:>9}",
        "",
        "pods/s",
        "first s",
        "ms CPU/pod",
        "API ms/pod",
        "peak MiB",
        "bound",
        "stranded",
        "rejected"
    );
    for spread in [false, true] {
        let mut decided = Vec::new();
        let mut outcomes: BTreeMap<Row, Vec<Outcome>> = BTreeMap::new();
        // A shared machine is not as fast at one time as at another: ours and the limit take turns.
        let turns = [Row::Berth, Row::Limit, Row::LimitInProtobuf].repeat(args.rounds);
        for row in [Row::KubeScheduler, Row::MostAllocated].into_iter().chain(turns) {
            let name = format!("{}{}", row.name(), if spread { ", zone spread" } else { "" });
            let skipped = args.only.as_ref().is_some_and(|only| !name.contains(only.as_str()));
            let lacking = match row {
                Row::KubeScheduler | Row::MostAllocated => contest.kube_scheduler.is_none(),
                Row::Limit | Row::LimitInProtobuf => decided.is_empty(),
                Row::Berth => false,
            };
            if skipped || lacking {
                continue;
            }
            let outcome = one(contest, row, spread, &decided).await?;
            report(&name, args, &outcome);
            if row == Row::Berth {
                decided.clone_from(&outcome.bound);
            }
            outcomes.entry(row).or_default().push(outcome);
        }
        compare(&outcomes);
    }
    Ok(())
}

/// What it comes to.
fn compare(outcomes: &BTreeMap<Row, Vec<Outcome>>) {
    let median = |row: Row, of: fn(&Outcome) -> f64| {
        let mut all: Vec<f64> = outcomes.get(&row)?.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    };
    let Some((rate, cpu_ms)) =
        median(Row::Berth, Outcome::rate).zip(median(Row::Berth, Outcome::cpu_ms))
    else {
        return;
    };
    for (row, name) in [(Row::Limit, "the limit"), (Row::LimitInProtobuf, "it in protobuf")] {
        if let Some((limit, shares)) = median(row, Outcome::rate).zip(shares(outcomes, row)) {
            println!(
                "berth: {:.0} % of {name} (medians); {shares} turn by turn",
                100.0 * rate / limit,
            );
        }
    }
    let theirs = median(Row::KubeScheduler, Outcome::rate);
    if let Some((theirs, their_ms)) = theirs.zip(median(Row::KubeScheduler, Outcome::cpu_ms)) {
        println!(
            "berth: {:.1} times kube-scheduler's pods per second, 1/{:.1} of its CPU per pod",
            rate / theirs,
            their_ms / cpu_ms,
        );
    }
}

/// What ours comes to of a limit in the turn it was measured in, as the machine was at that time: the median
/// of all turns, and between what half of them lie.
fn shares(outcomes: &BTreeMap<Row, Vec<Outcome>>, limit: Row) -> Option<String> {
    let turns = outcomes.get(&Row::Berth)?.iter().zip(outcomes.get(&limit)?);
    let mut all: Vec<f64> = turns.map(|(ours, limit)| 100.0 * ours.rate() / limit.rate()).collect();
    all.sort_by(f64::total_cmp);
    let last = all.len().checked_sub(1)?;
    let at = |quarter: usize| all.get(last * quarter / 4).copied();
    Some(format!("{:.0} % ({:.0}–{:.0})", at(2)?, at(1)?, at(3)?))
}

impl Outcome {
    /// Pods bound per second.
    fn rate(&self) -> f64 {
        self.bound.len().saturating_sub(1) as f64 / self.seconds.max(1e-9)
    }

    /// CPU per pod.
    fn cpu_ms(&self) -> f64 {
        self.usage.cpu_ms / self.bound.len().max(1) as f64
    }
}

fn report(name: &str, args: &Args, outcome: &Outcome) {
    let bound = outcome.bound.len();
    let server = outcome.server_ms.map(|ms| format!("{:.3}", ms / bound.max(1) as f64));
    let server = server.unwrap_or_else(|| "-".to_owned());
    println!(
        "{name:<38} {:>8.0} {:>8.2} {:>10.3} {server:>10} {:>9.0} {bound:>6} {:>9} {:>9}",
        outcome.rate(),
        outcome.first_s,
        outcome.cpu_ms(),
        outcome.usage.peak_mib,
        args.pods - bound,
        outcome.rejected,
    );
}

/// Has ours lead with nothing to do, until it says that it leads.
async fn lead_once(berth: &Path, cluster: &Cluster) -> Result<()> {
    let directory = cluster.kubeconfig.parent().unwrap_or(Path::new("."));
    let mut process = Process::berth(berth, directory, &cluster.kubeconfig)?;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), work::NAMESPACE);
    let began = Instant::now();
    while leases.get_opt("berth").await?.is_none() {
        if began.elapsed() > SILENCE {
            bail!(
                "berth does not lead after {} s; see berth.log in {}",
                SILENCE.as_secs(),
                directory.display()
            );
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    process.stop()?;
    Ok(())
}

async fn one(contest: &Contest<'_>, row: Row, spread: bool, decided: &[Bound]) -> Result<Outcome> {
    let Contest { args, kube_scheduler, berth } = contest;
    let cluster = Cluster::get(args).await?;
    let Cluster { client, kubeconfig, servers, .. } = &cluster;
    if row == Row::Berth {
        lead_once(berth, &cluster).await?;
    }
    let scheduler = if row == Row::Berth { "berth" } else { "default-scheduler" };
    work::create_pods(client, args.pods, args.seed, scheduler, spread).await?;
    let pods: Api<core::Pod> = Api::namespaced(client.clone(), work::NAMESPACE);
    let watch = Watch::start(client).await?;
    let started = Instant::now();
    let directory = kubeconfig.parent().unwrap_or(Path::new("."));
    let theirs =
        |pack| Process::kube_scheduler(kube_scheduler.as_deref(), directory, kubeconfig, pack);
    let mut process = match row {
        Row::KubeScheduler => Some(theirs(false)?),
        Row::MostAllocated => Some(theirs(true)?),
        Row::Berth => Some(Process::berth(berth, directory, kubeconfig)?),
        Row::Limit | Row::LimitInProtobuf => None,
    };
    let before = Usage::own();
    let bodies: Option<fn(&Bound) -> Body> = match row {
        Row::Limit => Some(Bound::in_json),
        Row::LimitInProtobuf => Some(Bound::in_protobuf),
        _ => None,
    };
    // It begins as schedulers do, without a connection.
    let posting = match bodies {
        Some(body) => {
            let all = work::post_all(self::client(kubeconfig).await?, decided.to_vec(), body);
            Some(tokio::spawn(all))
        }
        None => None,
    };
    let Watched { bound, first, last, server_ms } = watch.bindings(args.pods, servers).await?;
    tokio::time::sleep(SETTLE).await;
    let usage = match &mut process {
        Some(process) => process.stop()?,
        None => Usage::own().since(&before),
    };
    if let Some(posting) = posting {
        posting.await??;
    }
    let rejected = work::rejected(client, &bound).await?;
    delete_pods(&pods).await?;
    Ok(Outcome {
        seconds: last.duration_since(first).as_secs_f64(),
        first_s: first.duration_since(started).as_secs_f64(),
        bound,
        usage,
        server_ms,
        rejected,
    })
}

async fn delete_pods(pods: &Api<core::Pod>) -> Result<()> {
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete_collection(&at_once, &ListParams::default()).await?;
    while !pods.list(&ListParams::default().limit(1)).await?.items.is_empty() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// What is sent.
struct Body {
    media_type: &'static str,
    bytes: Vec<u8>,
}

/// Whatever is sent as JSON.
fn json_body(value: &serde_json::Value) -> Body {
    Body { media_type: "application/json", bytes: value.to_string().into_bytes() }
}

impl Bound {
    /// The binding that made it so.
    fn in_json(&self) -> Body {
        let annotations = self.placement.as_ref().map(|text| json!({ PLACEMENT: text }));
        json_body(&json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": self.pod, "namespace": work::NAMESPACE, "annotations": annotations,
            },
            "target": { "apiVersion": "v1", "kind": "Node", "name": self.node },
        }))
    }

    /// The same, by the numbers of the fields of Binding, ObjectMeta and ObjectReference.
    fn in_protobuf(&self) -> Body {
        let meta = Written::new().text(1, &self.pod).text(3, work::NAMESPACE);
        let meta = match &self.placement {
            Some(text) => meta.entry(12, PLACEMENT, text),
            None => meta,
        };
        let target = Written::new().text(1, "Node").text(3, &self.node).text(5, "v1");
        let binding = Written::new().message(1, meta).message(2, target);
        let bytes = binding.into_object("v1", "Binding");
        Body { media_type: berth_protobuf::MEDIA_TYPE, bytes }
    }
}
