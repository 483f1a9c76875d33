//! The admission webhook under load, over TLS: requests a second, latency, CPU per request.
//!
//! Owns the cluster that the webhook knows, the reviews that are sent, and the clock. The server is
//! another process, so that its CPU can be told from the client's. Requests are sent when their time has
//! come, whether earlier ones are answered or not, and their latency counts from that time.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_control::certificates::{Generation, server_config};
use berth_control::metrics::Metrics;
use berth_control::port::{Limits, Port, listen};
use berth_control::webhook::{ContextFeed, Settings, Webhook};
use berth_testbed::Target;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// So many nodes are known, of this many shapes.
const NODES: usize = 1_000;
const SHAPES: usize = 20;
const NAMESPACES: usize = 200;
/// An API server keeps few connections to a webhook.
const CONNECTIONS: usize = 2;
/// The attacks.
const SLOW_BODIES: usize = 900;
const SLOW_BODY_BYTES: usize = 3 << 20;
const IDLE_CONNECTIONS: usize = 10_000;

/// How hard and how long.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Requests per second
    #[arg(long, default_value_t = 1_000)]
    rate: u32,
    /// Seconds measured, after one to warm up
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Attack the server at the same time: slow bodies, then idle connections
    #[arg(long)]
    attack: bool,
    /// Run the server (started by the bench)
    #[arg(long, hide = true)]
    serve: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let many = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if args.serve {
        return many.block_on(be_server());
    }
    // Attackers have threads of their own, so that they do not delay what is measured.
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    one.block_on(measure(args, many.handle()))
}

fn cluster() -> anyhow::Result<ContextFeed> {
    let feed = ContextFeed::default();
    for index in 0..NODES {
        let name = format!("node-{index}");
        feed.put(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": {
                "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("z{}", index % 4),
                "berth.dev/pool": format!("pool-{}", index % SHAPES),
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559",
            } },
            "spec": { "taints": [{ "key": "nvidia.com/gpu", "effect": "NoSchedule" }] },
            "status": { "allocatable": { "cpu": "192", "memory": "2048Gi", "nvidia.com/gpu": "8" } },
        }))?;
        let zone = |id: u32| {
            json!({ "name": format!("node-{id}"), "type": "Node", "resources": [
                { "name": "cpu", "capacity": "96", "allocatable": "95" },
                { "name": "nvidia.com/gpu", "capacity": "4", "allocatable": "4" },
            ] })
        };
        feed.put(json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": { "name": name },
            "attributes": [{ "name": "topologyManagerPolicy", "value": "single-numa-node" }],
            "zones": [zone(0), zone(1)],
        }))?;
    }
    for index in 0..NAMESPACES {
        feed.put(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": format!("team-{index}"), "labels": { "team": format!("t{index}") } },
        }))?;
    }
    feed.refresh();
    Ok(feed)
}

async fn be_server() -> anyhow::Result<()> {
    let settings: Settings = serde_json::from_value(json!({
        "mode": "enforce",
        "mutations": { "toleration": true, "schedulerName": "berth", "copyLabels": ["team"] },
    }))?;
    let metrics = Metrics::new();
    let webhook = Webhook::new(settings, cluster()?, metrics.clone())?;
    let made = Generation::make(&["localhost".to_owned()], jiff::Timestamp::now())?;
    let config = server_config(made.certificate.as_bytes(), made.key.as_bytes())?;
    let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    println!("{}", json!({ "address": listener.local_addr()?, "ca": made.ca }));
    std::io::stdout().flush()?;
    // Whoever started us ends us by closing the other end.
    let ended = tokio::task::spawn_blocking(|| drop(std::io::stdin().read(&mut [0])));
    let tls = axum_server::tls_rustls::RustlsConfig::from_config(config);
    let port = Port { name: "https", limits: Limits::TLS, metrics };
    port.serve_tls(listener, tls, webhook.router(), async { drop(ended.await) }).await?;
    Ok(())
}

/// Pods as Deployments make them, a Deployment now and then, some of them wrong.
fn reviews() -> Vec<(&'static str, Bytes)> {
    let pod = |index: usize| {
        let gpus = [1, 2, 4, 8][index % 4];
        let resources = match index % 10 {
            0 => json!({ "requests": { "nvidia.com/gpu": gpus } }),
            _ => json!({ "limits": { "cpu": 8 * gpus, "memory": "64Gi", "nvidia.com/gpu": gpus } }),
        };
        let environment: Vec<Value> = (0..20)
            .map(|at| json!({ "name": format!("VARIABLE_{at}"), "value": "some value or other" }))
            .collect();
        json!({
            "metadata": { "name": format!("llm-{index}"), "generateName": "llm-",
                          "labels": { "app": "llm", "berth.dev/class": "interactive" } },
            "spec": {
                "nodeSelector": { "berth.dev/pool": format!("pool-{}", index % SHAPES) },
                "containers": [{
                    "name": "server", "image": "registry.example/llm:1.2.3", "env": environment,
                    "ports": [{ "containerPort": 8000 }], "resources": resources,
                    "readinessProbe": { "httpGet": { "path": "/health", "port": 8000 } },
                }],
            },
        })
    };
    let review = |index: usize| {
        let template = pod(index);
        let (path, object) = match index % 5 {
            0 => ("/mutate", true),
            1 => ("/validate", false),
            _ => ("/validate", true),
        };
        let mut object = if object {
            let mut object = template;
            object["apiVersion"] = json!("v1");
            object["kind"] = json!("Pod");
            object
        } else {
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "llm" },
                "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "llm" } },
                          "template": template },
            })
        };
        let namespace = format!("team-{}", index % NAMESPACES);
        object["metadata"]["namespace"] = json!(namespace);
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": format!("uid-{index}"), "namespace": namespace, "operation": "CREATE",
                "kind": { "group": "", "version": "v1", "kind": object["kind"] },
                "userInfo": { "username": "system:serviceaccount:kube-system:replicaset-controller" },
                "object": object, "oldObject": null,
            },
        });
        (path, Bytes::from(review.to_string()))
    };
    (0..200).map(review).collect()
}

/// The server, ended when this goes.
struct Server {
    child: Child,
    address: SocketAddr,
    ca: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        drop(self.child.wait());
    }
}

fn start() -> anyhow::Result<Server> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["bench", "webhook", "--serve"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let out = child.stdout.take().context("the server has no output")?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    let said: Value = serde_json::from_str(&line).context("the server did not start")?;
    let text = |field: &str| said[field].as_str().unwrap_or_default().to_owned();
    Ok(Server { child, address: text("address").parse()?, ca: text("ca") })
}

async fn connect(target: &Target) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = target.connect(IpAddr::V4(Ipv4Addr::LOCALHOST), "h2").await?;
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn ask(
    mut sender: SendRequest<Full<Bytes>>,
    path: &str,
    body: Bytes,
) -> anyhow::Result<bool> {
    let request = hyper::Request::post(format!("https://localhost{path}"))
        .header("content-type", "application/json")
        .body(Full::new(body))?;
    let response = sender.send_request(request).await?;
    let is_ok = response.status() == 200;
    let body = response.into_body().collect().await?.to_bytes();
    Ok(is_ok && body.starts_with(b"{"))
}

/// Ticks of CPU that a process has used.
fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit_once(')').context("no stat")?.1;
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
    // User and system time, in hundredths of a second.
    Ok((ticks(11).context("no utime")? + ticks(12).context("no stime")?) / 100.0)
}

async fn measure(args: &Args, attackers: &Handle) -> anyhow::Result<()> {
    let server = start()?;
    let target = Target::new(server.address, &server.ca)?;
    let mut senders = Vec::new();
    for _ in 0..CONNECTIONS {
        senders.push(connect(&target).await?);
    }
    let reviews = reviews();
    let gap = Duration::from_secs(1) / args.rate.max(1);
    drop(load(&senders, &reviews, gap, args.rate as usize).await?);
    let count = args.rate as usize * args.seconds as usize;
    println!("requests      {count} of {} bytes on average, {NODES} nodes known", mean(&reviews));
    let process = server.child.id();
    let resident_before = resident_mib(process)?;
    let (cpu_before, began) = (cpu_seconds(process)?, Instant::now());
    let latencies = load(&senders, &reviews, gap, count).await?;
    let took = began.elapsed().as_secs_f64();
    let cpu = cpu_seconds(process)? - cpu_before;
    if latencies.len() < count {
        bail!("a review was not answered");
    }
    println!("rate          {:.0} a second (asked for {})", count as f64 / took, args.rate);
    show(latencies, count);
    println!("server's CPU  {:.0} µs a request", cpu / count as f64 * 1e6);
    if !args.attack {
        return Ok(());
    }
    let addresses: Vec<IpAddr> =
        (2..6).map(|last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))).collect();
    for attack in ["slow bodies", "idle connections"] {
        let entered = attackers.enter();
        let attack = match attack {
            "slow bodies" => {
                println!(
                    "attack        {SLOW_BODIES} bodies of {SLOW_BODY_BYTES} bytes that do not end"
                );
                target.slow_bodies(&addresses, SLOW_BODIES, SLOW_BODY_BYTES)
            }
            _ => {
                println!("attack        {IDLE_CONNECTIONS} idle connections");
                target.idle(&addresses, IDLE_CONNECTIONS)
            }
        };
        drop(entered);
        let sampling = tokio::spawn(resident_mib_max(process));
        let latencies = load(&senders, &reviews, gap, count).await?;
        sampling.abort();
        show(latencies, count);
        println!(
            "attackers     sent {} MiB, were ended {} times",
            attack.sent_bytes() >> 20,
            attack.ended()
        );
        let peak = PEAK_MIB.swap(0, Ordering::Relaxed);
        println!("memory        {resident_before} MiB before, {peak} MiB at most");
    }
    Ok(())
}

/// The most that was seen of [`resident_mib`].
static PEAK_MIB: AtomicU64 = AtomicU64::new(0);

async fn resident_mib_max(process: u32) {
    while let Ok(resident) = resident_mib(process) {
        PEAK_MIB.fetch_max(resident, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Memory of a process.
fn resident_mib(process: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? >> 10)
}

fn show(mut latencies: Vec<Duration>, count: usize) {
    latencies.sort();
    let at = |part: f64| {
        let position = (latencies.len().saturating_sub(1) as f64 * part) as usize;
        latencies.get(position).map_or(f64::NAN, |one| one.as_secs_f64() * 1_000.0)
    };
    println!(
        "latency       p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, most {:.2} ms; {} of {count} answered",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
        latencies.len()
    );
}

fn mean(reviews: &[(&str, Bytes)]) -> usize {
    reviews.iter().map(|(_, body)| body.len()).sum::<usize>() / reviews.len().max(1)
}

/// Sends reviews; returns the latencies of those that were answered.
async fn load(
    senders: &[SendRequest<Full<Bytes>>],
    reviews: &[(&'static str, Bytes)],
    gap: Duration,
    count: usize,
) -> anyhow::Result<Vec<Duration>> {
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..count {
        let due = began + gap * u32::try_from(index)?;
        tokio::time::sleep_until(due).await;
        let sender = senders[index % senders.len()].clone();
        let (path, body) = reviews[index % reviews.len()].clone();
        tasks.spawn(async move { ask(sender, path, body).await.map(|ok| (ok, due.elapsed())) });
    }
    let mut latencies = Vec::with_capacity(count);
    while let Some(done) = tasks.join_next().await {
        if let Ok((true, latency)) = done? {
            latencies.push(latency);
        }
    }
    Ok(latencies)
}
