//! The agent against an API: what it writes, when, and what it leaves alone.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use berth_agent::GpuSource;
use berth_agent::run::{
    self, AlignmentAnnotation, Checkpoint, Health, Metrics, Options, Settings, Status,
};
use berth_api::topology::{self, NodeResourceTopology};
use berth_host::Root;
use berth_host::synthetic;
use berth_testbed::{Testbed, Which};
use k8s_openapi::api::core::v1::{Event, Node as ApiNode, Pod as ApiPod};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

mod support;
use support::{Node, Pod, gpu_uuid, until};

/// Short intervals, so that one second shows whether the agent is idle.
const HASTY: Settings = Settings {
    poll: Duration::from_millis(200),
    audit: Duration::from_millis(300),
    memory: Duration::from_millis(300),
    verify: Duration::from_millis(400),
    settle: Duration::from_millis(20),
    gap: Duration::from_millis(50),
    unknown: Duration::from_millis(300),
};

struct World {
    testbed: Testbed,
    client: Client,
}

struct Agent {
    metrics: Metrics,
    health: Health,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl World {
    async fn new() -> Self {
        let testbed = Testbed::start(Which::Embedded).await.unwrap();
        let client = testbed.admin().await.unwrap();
        let world = Self { testbed, client };
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
        world.testbed.apply([node]).await.unwrap();
        world
    }

    async fn define(&self) {
        self.testbed.apply([topology::definition()]).await.unwrap();
        until("the kind is served", async || {
            self.topologies().list(&Default::default()).await.ok()
        })
        .await;
    }

    fn topologies(&self) -> Api<NodeResourceTopology> {
        Api::all(self.client.clone())
    }

    fn pods(&self) -> Api<ApiPod> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn nodes(&self) -> Api<ApiNode> {
        Api::all(self.client.clone())
    }

    /// Creates a running pod on the node; returns its UID.
    async fn pod(&self, name: &str) -> String {
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": "n1", "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "server", "image": "model:1" }],
            },
        });
        let pod = serde_json::from_value(pod).unwrap();
        let made = self.pods().create(&PostParams::default(), &pod).await.unwrap();
        let status = json!({ "status": {
                "phase": "Running", "startTime": "2026-01-01T00:00:00Z",
                "containerStatuses": [{
                    "name": "server", "containerID": "containerd://c1", "image": "model:1",
                    "imageID": "", "ready": true, "restartCount": 0,
                }],
            } });
        let how = PatchParams::default();
        self.pods().patch_status(name, &how, &Patch::Merge(&status)).await.unwrap();
        made.metadata.uid.unwrap()
    }

    fn start(&self, root: &Path) -> Agent {
        self.start_with(root, HASTY)
    }

    fn start_with(&self, root: &Path, settings: Settings) -> Agent {
        let (metrics, health) = (Metrics::new(), Health::new(Duration::from_secs(60)));
        let options = Options {
            node: "n1".to_owned(),
            root: Root::new(root),
            gpus: GpuSource::Recorded(root.to_owned()),
            settings,
        };
        let (stop, stopped) = oneshot::channel();
        let status = Status { metrics: metrics.clone(), health: health.clone() };
        let stopped = async move { drop(stopped.await) };
        let running = tokio::spawn(run::run(
            self.client.clone(),
            options,
            Box::new(Checkpoint),
            status,
            stopped,
        ));
        Agent { metrics, health, stop, running }
    }

    async fn published(&self) -> NodeResourceTopology {
        until("it is published", async || self.topologies().get_opt("n1").await.unwrap()).await
    }

    /// Waits until the Node has, or no longer has, annotations of the kubelet configuration.
    async fn annotated(&self, is: bool) {
        until(&format!("the Node is annotated: {is}"), async || {
            let annotations = self.nodes().get("n1").await.unwrap().metadata.annotations;
            let has =
                annotations.is_some_and(|all| all.contains_key("berth.dev/cpu-manager-policy"));
            (has == is).then_some(())
        })
        .await;
    }

    async fn alignment(&self, pod: &str) -> Option<AlignmentAnnotation> {
        let pod = self.pods().get(pod).await.unwrap();
        let text = pod.metadata.annotations?.remove("berth.dev/alignment")?;
        Some(serde_json::from_str(&text).unwrap())
    }

    async fn becomes(&self, pod: &str, verdict: &str) -> AlignmentAnnotation {
        until(&format!("{pod} is {verdict}"), async || {
            self.alignment(pod).await.filter(|said| said.alignment.as_str() == verdict)
        })
        .await
    }

    async fn reasons(&self, pod: &str) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let about = |event: &Event| event.involved_object.name.as_deref() == Some(pod);
        let mut reasons: Vec<String> =
            all.into_iter().filter(about).filter_map(|event| event.reason).collect();
        reasons.sort_unstable();
        reasons
    }
}

impl Agent {
    fn writes(&self) -> [u64; 4] {
        ["topology", "node", "alignment", "event"].map(|what| self.metrics.writes(what))
    }

    async fn ready(&self) {
        until("it is ready", async || self.health.ready().ok()).await;
    }

    async fn stop(self) {
        drop(self.stop);
        tokio::time::timeout(Duration::from_secs(2), self.running).await.unwrap().unwrap();
    }
}

fn holding(uid: String, cpus: &str, gpu: usize) -> Pod {
    Pod {
        uid,
        containers: vec![("server", cpus.to_owned(), String::new(), Vec::new())],
        devices: vec![("server", "nvidia.com/gpu", gpu_uuid(gpu), Some((gpu / 4) as u32))],
        ..Pod::default()
    }
}

/// Writes the node's files, with the driver's report.
fn written(node: &Node) -> TempDir {
    let (_, directory) = node.written();
    let gpus = serde_json::to_string(&node.gpus).unwrap();
    std::fs::write(directory.path().join("nvml.json"), gpus).unwrap();
    directory
}

/// Updates the node's files as its kubelet would.
fn rewrite(directory: &Path, node: &Node) {
    node.tree().write_over(directory).unwrap();
}

fn available(topology: &NodeResourceTopology, zone: usize, resource: &str) -> Option<String> {
    let found = topology.zones.get(zone)?.resources.iter().find(|one| one.name == resource)?;
    Some(found.available.0.clone())
}

async fn is_quiet(agent: &Agent) {
    let before = agent.writes();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(agent.writes(), before, "topology, node, alignment, event");
}

#[tokio::test]
async fn changes_are_published_within_a_second_and_nothing_else_is_written() {
    let world = World::new().await;
    world.define().await;
    let mut node = Node::new(synthetic::epyc_9654(1));
    node.pods.push(holding(world.pod("a").await, "4-7", 0));
    let directory = written(&node);
    // Long intervals: only notifications can reveal the change.
    let seldom = Duration::from_secs(600);
    let settings = Settings { poll: seldom, audit: seldom, verify: seldom, ..Settings::default() };
    let agent = world.start_with(directory.path(), settings);
    agent.ready().await;
    let first = world.published().await;
    assert_eq!(available(&first, 0, "cpu").as_deref(), Some("187"));
    assert_eq!(available(&first, 0, "nvidia.com/gpu").as_deref(), Some("3"));
    let labels = world.nodes().get("n1").await.unwrap().metadata.labels.unwrap();
    assert_eq!(labels["nvidia.com/gpu.product"], "NVIDIA-H100-80GB-HBM3");
    assert_eq!(labels["berth.dev/numa-nodes"], "2");
    assert_eq!(world.becomes("a", "aligned").await.gpu_numa_nodes, [0]);
    is_quiet(&agent).await;
    assert_eq!(agent.writes(), [1, 1, 1, 1]);
    node.pods[0].containers[0].1 = "4-9".to_owned();
    let began = Instant::now();
    rewrite(directory.path(), &node);
    until("the change is published", async || {
        let now = world.topologies().get("n1").await.unwrap();
        (available(&now, 0, "cpu").as_deref() == Some("185")).then_some(())
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    agent.stop().await;
    // A restarted agent finds everything up to date.
    let again = world.start(directory.path());
    again.ready().await;
    is_quiet(&again).await;
    assert_eq!(again.writes(), [0, 0, 0, 0]);
    again.stop().await;
}

#[tokio::test]
async fn another_exporter_is_left_alone() {
    let world = World::new().await;
    world.define().await;
    let mut theirs = NodeResourceTopology::default();
    theirs.metadata.name = Some("n1".to_owned());
    theirs.zones = vec![topology::Zone { name: "node-0".to_owned(), ..Default::default() }];
    let as_nfd = PostParams {
        field_manager: Some("nfd-topology-updater".to_owned()),
        ..PostParams::default()
    };
    let theirs = world.topologies().create(&as_nfd, &theirs).await.unwrap();
    let node = Node::new(synthetic::epyc_9654(1));
    let directory = written(&node);
    let agent = world.start(directory.path());
    agent.ready().await;
    is_quiet(&agent).await;
    let now = world.topologies().get("n1").await.unwrap();
    assert_eq!(now.metadata.resource_version, theirs.metadata.resource_version);
    assert!(agent.metrics.encode().contains("berth_agent_topology_foreign 1"));
    // What it lacks is in annotations of the Node.
    let meta = world.nodes().get("n1").await.unwrap().metadata;
    assert_eq!(meta.annotations.unwrap()["berth.dev/cpu-manager-policy"], "static");
    assert_eq!(meta.labels.unwrap()["berth.dev/sockets"], "2");
    // After its deletion, the agent publishes, and removes the annotations.
    world.topologies().delete("n1", &DeleteParams::default()).await.unwrap();
    let mut ours = world.published().await;
    assert_eq!(ours.zones.len(), 2);
    world.annotated(false).await;
    // When the exporter writes it again, the agent stops.
    ours.zones.truncate(1);
    world.topologies().replace("n1", &as_nfd, &ours).await.unwrap();
    until("the topology is left alone", async || {
        agent.metrics.encode().contains("berth_agent_topology_foreign 1").then_some(())
    })
    .await;
    world.annotated(true).await;
    world.pod("another").await;
    is_quiet(&agent).await;
    assert_eq!(world.topologies().get("n1").await.unwrap().zones.len(), 1);
    agent.stop().await;
}

#[tokio::test]
async fn labels_of_feature_discovery_stay_and_the_rest_is_added() {
    let world = World::new().await;
    world.define().await;
    let label = json!({ "metadata": { "labels": { "nvidia.com/gpu.product": "H100-SHARED" } } });
    let as_nfd =
        PatchParams { field_manager: Some("nfd-master".to_owned()), ..PatchParams::default() };
    world.nodes().patch("n1", &as_nfd, &Patch::Merge(&label)).await.unwrap();
    let directory = written(&Node::new(synthetic::epyc_9654(1)));
    let agent = world.start(directory.path());
    agent.ready().await;
    let labels = world.nodes().get("n1").await.unwrap().metadata.labels.unwrap();
    assert_eq!(labels["nvidia.com/gpu.product"], "H100-SHARED");
    assert_eq!(labels["nvidia.com/gpu.memory"], "81559");
    // A label that is set later is also left alone.
    let label = json!({ "metadata": { "labels": { "nvidia.com/gpu.memory": "40000" } } });
    world.nodes().patch("n1", &as_nfd, &Patch::Merge(&label)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let labels = world.nodes().get("n1").await.unwrap().metadata.labels.unwrap();
    assert_eq!(labels["nvidia.com/gpu.memory"], "40000");
    is_quiet(&agent).await;
    agent.stop().await;
}

#[tokio::test]
async fn alignment_of_a_pod_is_written_when_it_changes() {
    let world = World::new().await;
    world.define().await;
    let mut node = Node::new(synthetic::epyc_9654(1));
    node.pods.push(holding(world.pod("far").await, "100-103", 0));
    node.pods.push(Pod { qos: "burstable", ..holding(world.pod("floats").await, "", 1) });
    // It has devices, but no container yet.
    let mut starting = holding(world.pod("starts").await, "8-9", 2);
    starting.stale = true;
    node.pods.push(starting);
    let directory = written(&node);
    let agent = world.start(directory.path());
    let far = world.becomes("far", "misaligned").await;
    assert_eq!((far.cpu_numa_nodes, far.gpu_numa_nodes), (vec![1], vec![0]));
    assert_eq!(far.distance, Some(32));
    assert!(far.remedy[0].contains("topologyManagerPolicy: restricted"), "{:?}", far.remedy);
    world.becomes("floats", "floating").await;
    world.becomes("starts", "unknown").await;
    agent.ready().await;
    is_quiet(&agent).await;
    let text = agent.metrics.encode();
    for series in [
        r#"berth_alignment{namespace="default",pod="far",verdict="misaligned"} 1"#,
        r#"berth_alignment{namespace="default",pod="floats",verdict="floating"} 1"#,
        r#"berth_alignment_distance{namespace="default",pod="far"} 32"#,
    ] {
        assert!(text.contains(series), "{series} is not in\n{text}");
    }
    assert_eq!(world.reasons("far").await, ["GpuMisaligned"]);
    node.pods[0].containers[0].1 = "4-7".to_owned();
    node.pods[2].stale = false;
    rewrite(directory.path(), &node);
    world.becomes("far", "aligned").await;
    world.becomes("starts", "aligned").await;
    assert_eq!(world.reasons("far").await, ["GpuAligned", "GpuMisaligned"]);
    world.pods().delete("floats", &DeleteParams::default()).await.unwrap();
    until("its figures are gone", async || {
        (!agent.metrics.encode().contains("floats")).then_some(())
    })
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn without_the_crd_everything_else_is_written() {
    let world = World::new().await;
    let mut node = Node::new(synthetic::xeon_8480_snc2());
    node.pods.push(holding(world.pod("a").await, "4-7", 0));
    let directory = written(&node);
    let agent = world.start(directory.path());
    agent.ready().await;
    world.becomes("a", "aligned").await;
    let labels = world.nodes().get("n1").await.unwrap().metadata.labels.unwrap();
    assert_eq!(labels["berth.dev/numa-nodes"], "4");
    world.define().await;
    assert_eq!(world.published().await.zones.len(), 4);
    agent.stop().await;
}

#[tokio::test]
async fn changed_hardware_is_read_again() {
    let world = World::new().await;
    world.define().await;
    let directory = written(&Node::new(synthetic::epyc_9654(2)));
    let agent = world.start(directory.path());
    agent.ready().await;
    assert_eq!(available(&world.published().await, 0, "cpu").as_deref(), Some("95"));
    let (_, other) = Node::new(synthetic::with_holes()).written();
    for part in ["sys/devices/system", "proc/meminfo"] {
        let (from, to) = (other.path().join(part), directory.path().join(part));
        if from.is_dir() {
            std::fs::remove_dir_all(&to).unwrap();
            std::fs::rename(from, to).unwrap();
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
    until("it is another machine", async || {
        let names: Vec<String> =
            world.published().await.zones.into_iter().map(|zone| zone.name).collect();
        (names == ["node-0", "node-2", "node-4", "node-5"]).then_some(())
    })
    .await;
    agent.stop().await;
}

async fn asked(router: &axum::Router, path: &str) -> (u16, String) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(axum::serve(listener, router.clone()).into_future());
    let path = path.to_owned();
    let answer = tokio::task::spawn_blocking(move || {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let mut request = String::new();
        write!(request, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    let text = answer.await.unwrap();
    serving.abort();
    (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
}

#[tokio::test]
async fn health_and_metrics_are_served() {
    let health = Health::new(Duration::from_secs(60));
    let router = run::router(Status { metrics: Metrics::new(), health });
    assert_eq!(asked(&router, "/healthz").await.0, 200);
    let (code, text) = asked(&router, "/readyz").await;
    assert!(code == 503 && text.contains("has not been read yet"), "{text}");
    let (code, text) = asked(&router, "/metrics").await;
    assert!(
        code == 200 && text.contains("openmetrics-text") && text.ends_with("# EOF\n"),
        "{text}"
    );
    assert_eq!(asked(&router, "/secret").await.0, 404);
    let dead = {
        let health = Health::new(Duration::ZERO);
        run::router(Status { metrics: Metrics::new(), health })
    };
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(asked(&dead, "/healthz").await.0, 503);
}

#[tokio::test]
async fn refused_writes_are_retried() {
    let world = World::new().await;
    world.define().await;
    world.nodes().delete("n1", &DeleteParams::default()).await.unwrap();
    let directory = written(&Node::new(synthetic::no_gpu()));
    let agent = world.start(directory.path());
    until("it says what is missing", async || {
        agent
            .health
            .ready()
            .err()
            .filter(|why| why.to_string().contains("not found in the cluster"))
    })
    .await;
    assert!(world.nodes().get_opt("n1").await.unwrap().is_none(), "no Node is made by us");
    let node: Value = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
    world.testbed.apply([node]).await.unwrap();
    agent.ready().await;
    world.published().await;
    agent.stop().await;
}
