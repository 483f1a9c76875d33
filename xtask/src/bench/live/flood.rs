//! A normal pod beside a flood of pods of distinct shapes that no node can take.
//!
//! Owns the flood, and when normal pods are created and bound: one every 50 ms in another namespace,
//! before the flood, while it arrives, and after. Each is deleted when it is bound, so that nodes change
//! all the time. Must not know how pods are scheduled.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kube::Client;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::process::{Process, Usage};
use super::watched::Watch;
use super::{Cluster, Contest, Row, core, json_body, lead_once, work};

/// The namespace of the flood.
const NAMESPACE: &str = "flood";

/// A normal pod is created this often.
const EVERY: Duration = Duration::from_millis(50);

/// How long normal pods are created before the flood, and after it.
const BEFORE: Duration = Duration::from_secs(5);
const AFTER: Duration = Duration::from_secs(20);

/// How long is waited for the last pods to be bound, and for the first.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many pods of the flood are being created at a time.
const AT_ONCE: usize = 32;

/// When a normal pod was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Before,
    Arriving,
    After,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Before => "before the flood",
            Self::Arriving => "while it arrives",
            Self::After => "after",
        }
    }
}

/// What happened to a normal pod.
enum Event {
    Created(String, Phase, Instant),
    Bound(String, Instant),
    FloodHasArrived(Result<()>),
}

/// From creation to binding, by phase; of those that were not bound, nothing.
type Waits = BTreeMap<Phase, Vec<Option<Duration>>>;

pub(super) async fn measure(contest: &Contest<'_>, pods: usize) -> Result<()> {
    let args = contest.args;
    println!(
        "{} nodes, {pods} pods of distinct shapes, {} per second",
        args.nodes, args.flood_rate
    );
    println!(
        "{:<34} {:>6} {:>9} {:>9} {:>9} {:>8}",
        "from creation to binding, ms", "pods", "p50", "p99", "max", "unbound"
    );
    for row in [Row::KubeScheduler, Row::Berth] {
        let skipped = args.only.as_ref().is_some_and(|only| !row.name().contains(only.as_str()));
        let lacking = row == Row::KubeScheduler && contest.kube_scheduler.is_none();
        if skipped || lacking {
            continue;
        }
        let (waits, usage, seconds) = one(contest, row, pods).await?;
        for (phase, waits) in waits {
            let mut bound: Vec<Duration> = waits.iter().copied().flatten().collect();
            bound.sort_unstable();
            let at = |share: f64| {
                let place = ((bound.len() as f64 * share) as usize).min(bound.len().max(1) - 1);
                bound.get(place).map_or(f64::NAN, |wait| wait.as_secs_f64() * 1e3)
            };
            println!(
                "{:<34} {:>6} {:>9.1} {:>9.1} {:>9.1} {:>8}",
                format!("{}, {}", row.name(), phase.name()),
                waits.len(),
                at(0.5),
                at(0.99),
                at(1.0),
                waits.len() - bound.len()
            );
        }
        println!(
            "{}: {:.1} s CPU in {seconds:.0} s, {:.0} MiB at most",
            row.name(),
            usage.cpu_ms / 1e3,
            usage.peak_mib
        );
    }
    Ok(())
}

async fn one(contest: &Contest<'_>, row: Row, pods: usize) -> Result<(Waits, Usage, f64)> {
    let Contest { args, kube_scheduler, berth } = contest;
    let cluster = Cluster::get(args).await?;
    let Cluster { client, kubeconfig, .. } = &cluster;
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
    });
    work::post(client, "/api/v1/namespaces", json_body(&namespace)).await?;
    let directory = kubeconfig.parent().unwrap_or(Path::new("."));
    let (scheduler, mut process) = if row == Row::Berth {
        lead_once(berth, &cluster).await?;
        ("berth", Process::berth(berth, directory, kubeconfig)?)
    } else {
        let program = kube_scheduler.as_deref();
        ("default-scheduler", Process::kube_scheduler(program, directory, kubeconfig, false)?)
    };
    let (tell, mut events) = mpsc::unbounded_channel();
    let watch = Watch::start(client).await?;
    let watching = tokio::spawn(watch_bindings(watch, tell.clone()));
    create(client, scheduler, "first".to_owned(), Phase::Before, &tell).await?;
    let first = async {
        while let Some(event) = events.recv().await {
            if matches!(event, Event::Bound(..)) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, first).await.context("the first pod is not bound")?;
    let started = Instant::now();
    let waits = follow(client, scheduler, (pods, args.flood_rate), &tell, &mut events).await?;
    let seconds = started.elapsed().as_secs_f64();
    watching.abort();
    Ok((waits, process.stop()?, seconds))
}

/// Creates normal pods all the time, and the flood among them.
async fn follow(
    client: &Client,
    scheduler: &'static str,
    (pods, rate): (usize, u32),
    tell: &mpsc::UnboundedSender<Event>,
    events: &mut mpsc::UnboundedReceiver<Event>,
) -> Result<Waits> {
    let mut created: BTreeMap<String, (Phase, Instant)> = BTreeMap::new();
    let mut bound: BTreeMap<String, Instant> = BTreeMap::new();
    let mut phase = Phase::Before;
    let mut until = Instant::now() + BEFORE;
    let mut last = None;
    let mut tick = tokio::time::interval(EVERY);
    let mut creating: JoinSet<Result<()>> = JoinSet::new();
    let mut number = 0;
    loop {
        tokio::select! {
            _ = tick.tick() => {
                let over = Instant::now() >= until;
                if over && phase == Phase::Before {
                    phase = Phase::Arriving;
                    let (client, tell) = (client.clone(), tell.clone());
                    tokio::spawn(async move {
                        let arrived = flood(&client, scheduler, pods, rate).await;
                        drop(tell.send(Event::FloodHasArrived(arrived)));
                    });
                } else if over && phase == Phase::After {
                    let waited = last.get_or_insert_with(Instant::now).elapsed();
                    if creating.is_empty() && bound.len() >= created.len() || waited > PATIENCE {
                        break;
                    }
                }
                if last.is_none() {
                    let name = format!("normal-{number:05}");
                    number += 1;
                    let (client, tell) = (client.clone(), tell.clone());
                    creating.spawn(async move {
                        create(&client, scheduler, name, phase, &tell).await
                    });
                }
                while let Some(done) = creating.try_join_next() {
                    done??;
                }
            }
            event = events.recv() => match event.context("the watch of bindings has ended")? {
                Event::Created(name, phase, at) => {
                    created.insert(name, (phase, at));
                }
                Event::Bound(name, at) => {
                    bound.insert(name.clone(), at);
                    let client = client.clone();
                    tokio::spawn(async move {
                        let pods: Api<core::Pod> = Api::namespaced(client, work::NAMESPACE);
                        drop(pods.delete(&name, &DeleteParams::default().grace_period(0)).await);
                    });
                }
                Event::FloodHasArrived(arrived) => {
                    arrived?;
                    phase = Phase::After;
                    until = Instant::now() + AFTER;
                }
            }
        }
    }
    let mut waits = Waits::new();
    for (name, (phase, at)) in created {
        let wait = bound.get(&name).map(|bound| bound.saturating_duration_since(at));
        waits.entry(phase).or_default().push(wait);
    }
    Ok(waits)
}

async fn watch_bindings(mut watch: Watch, tell: mpsc::UnboundedSender<Event>) -> Result<()> {
    loop {
        for pod in watch.bound().await? {
            drop(tell.send(Event::Bound(pod.pod, Instant::now())));
        }
    }
}

/// Creates a normal pod, which asks for one GPU.
async fn create(
    client: &Client,
    scheduler: &str,
    name: String,
    phase: Phase,
    tell: &mpsc::UnboundedSender<Event>,
) -> Result<()> {
    let amounts = json!({ "cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1" });
    let spec = json!({
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 0,
        "containers": [container(&amounts)],
    });
    let path = format!("/api/v1/namespaces/{}/pods", work::NAMESPACE);
    work::post(client, &path, json_body(&pod(&name, &spec))).await?;
    drop(tell.send(Event::Created(name, phase, Instant::now())));
    Ok(())
}

/// Creates the flood, at an even rate.
async fn flood(client: &Client, scheduler: &str, pods: usize, rate: u32) -> Result<()> {
    if rate == 0 {
        bail!("--flood-rate must be at least 1");
    }
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let mut tick = tokio::time::interval(Duration::from_secs(1) / rate);
    let mut creating: JoinSet<Result<()>> = JoinSet::new();
    for number in 0..pods {
        tick.tick().await;
        if creating.len() >= AT_ONCE
            && let Some(done) = creating.join_next().await
        {
            done??;
        }
        let body = json_body(&shape(number, scheduler));
        let (client, path) = (client.clone(), path.clone());
        creating.spawn(async move { work::post(&client, &path, body).await });
    }
    while let Some(done) = creating.join_next().await {
        done??;
    }
    Ok(())
}

/// A pod that no node can take: for want of CPUs or GPUs, of a label, or of a pod to be near.
fn shape(number: usize, scheduler: &str) -> Value {
    let (mut cpu, mut gpus) = ("1", "1");
    let mut spec = json!({ "schedulerName": scheduler });
    match number % 4 {
        0 => cpu = "400",
        1 => gpus = "9",
        2 => spec["nodeSelector"] = json!({ "number": number.to_string() }),
        _ => {
            let labels = json!({ "number": number.to_string(), "kind": "nothing" });
            spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([{
                "topologyKey": "topology.kubernetes.io/zone",
                "labelSelector": { "matchLabels": labels },
            }]);
        }
    }
    let memory = format!("{}Mi", number + 1);
    let amounts = json!({ "cpu": cpu, "memory": memory, "nvidia.com/gpu": gpus });
    spec["containers"] = json!([container(&amounts)]);
    pod(&format!("shape-{number:05}"), &spec)
}

fn container(amounts: &Value) -> Value {
    json!({
        "name": "model",
        "image": "registry.example/model:1",
        "resources": { "requests": amounts, "limits": amounts },
    })
}

fn pod(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
}
