//! From files of machines to verdicts on pods, with everything between: an agent on each node publishes what
//! its machine is, the scheduler places by that, kubelets admit and pin, and the agents judge what came of it.
//!
//! Kubelets are virtual, and so are their machines' files; a task does on disk what each kubelet decided. What is
//! true of a pod is worked out here from the CPUs and GPUs it was given, apart from the audit.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_agent::GpuSource;
use berth_agent::run::{
    self, AlignmentAnnotation, Checkpoint, Health, Metrics, Options, Settings, Status,
};
use berth_api::keys::VIRTUAL_DEVICES;
use berth_api::topology::{self, NodeResourceTopology};
use berth_control::http::Health as SchedulerHealth;
use berth_control::metrics::Metrics as SchedulerMetrics;
use berth_control::serve::{self, Scheduler};
use berth_control::{core, lease};
use berth_emulator::{kubelet, nodes};
use berth_host::Root;
use berth_host::synthetic::{self, SyntheticMachine};
use berth_model::idset::CpuSet;
use berth_testbed::{Testbed, Which};
use berth_topology::assignment::Assignment;
use k8s_openapi::api::core::v1::Pod as ApiPod;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};

mod support;
use support::{Node, Pod, gpu_uuid, until};

const HASTY: Settings = Settings {
    poll: Duration::from_millis(500),
    audit: Duration::from_millis(500),
    memory: Duration::from_millis(500),
    verify: Duration::from_secs(5),
    settle: Duration::from_millis(20),
    gap: Duration::from_millis(50),
    unknown: Duration::from_millis(500),
};

const ONE_NODE: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
     topologyManagerPolicy: single-numa-node\ncpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n";
const ANYWHERE: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
     topologyManagerPolicy: none\ncpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n";
const UNPINNED: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
     topologyManagerPolicy: none\ncpuManagerPolicy: none\nreservedSystemCPUs: \"0\"\n";

/// A node with its files.
struct Host {
    name: String,
    node: Node,
    directory: TempDir,
}

impl Host {
    fn new(name: &str, machine: SyntheticMachine, configuration: &'static str) -> Self {
        let mut node = Node::new(machine);
        node.configuration = configuration;
        let (_, directory) = node.written();
        let gpus = serde_json::to_string(&node.gpus).unwrap();
        std::fs::write(directory.path().join("nvml.json"), gpus).unwrap();
        Self { name: name.to_owned(), node, directory }
    }

    /// The NUMA nodes of the GPUs, by their numbers.
    fn gpus(&self) -> Vec<u32> {
        let gpus = self.node.machine.devices.iter().filter(|one| one.ids.0 == 0x10de);
        gpus.map(|one| u32::try_from(one.numa).unwrap()).collect()
    }

    fn object(&self) -> Value {
        let gpus = self.gpus().len();
        let cpus = self.node.cpus().len();
        let amounts = |cpus: usize| {
            json!({ "cpu": cpus.to_string(), "memory": "1400Gi", "pods": "110",
                    "nvidia.com/gpu": gpus.to_string() })
        };
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": self.name },
            "status": { "capacity": amounts(cpus), "allocatable": amounts(cpus - 1) },
        })
    }

    fn start(&self, client: &Client) -> tokio::task::JoinHandle<()> {
        let root = self.directory.path();
        let options = Options {
            node: self.name.clone(),
            root: Root::new(root),
            gpus: GpuSource::Recorded(root.to_owned()),
            settings: HASTY,
        };
        let status =
            Status { metrics: Metrics::new(), health: Health::new(Duration::from_secs(60)) };
        let forever = std::future::pending();
        tokio::spawn(run::run(client.clone(), options, Box::new(Checkpoint), status, forever))
    }

    /// The NUMA nodes of CPUs.
    fn numa_of(&self, cpus: &CpuSet) -> BTreeSet<u32> {
        let machine = &self.node.machine;
        let here = |(at, _): &(usize, &u32)| !(machine.cpus_of_node(*at) & *cpus).is_empty();
        machine.numa_ids.iter().enumerate().filter(here).map(|(_, id)| *id).collect()
    }

    /// Writes a pod's assignment to disk, and returns its true alignment.
    fn take(&mut self, uid: &str, given: &Assignment) -> &'static str {
        assert_eq!(given.containers.len(), 1, "{given:?}");
        let one = &given.containers[0];
        let gpus = self.gpus();
        // The API tells how many GPUs are where, not which; they are numbered in this order on both sides.
        let numbers: Vec<usize> = one.devices["nvidia.com/gpu"]
            .iter()
            .map(|id| id.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap())
            .collect();
        let home: BTreeSet<u32> = numbers.iter().map(|number| gpus[*number]).collect();
        let device =
            |number: &usize| ("server", "nvidia.com/gpu", gpu_uuid(*number), Some(gpus[*number]));
        self.node.pods.push(Pod {
            uid: uid.to_owned(),
            qos: "",
            containers: vec![(
                "server",
                one.cpus.clone().unwrap_or_default(),
                String::new(),
                Vec::new(),
            )],
            devices: numbers.iter().map(device).collect(),
            stale: false,
        });
        self.node.tree().write_over(self.directory.path()).unwrap();
        match &one.cpus {
            None => "floating",
            Some(cpus) if self.numa_of(&cpus.parse().unwrap()) == home => "aligned",
            Some(_) => "misaligned",
        }
    }
}

/// A pod for a node.
fn pod(name: &str, node: &str, cpus: usize, gpus: usize) -> ApiPod {
    let amounts = json!({ "cpu": cpus.to_string(), "memory": "8Gi",
                          "nvidia.com/gpu": gpus.to_string() });
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "schedulerName": "berth",
            "nodeSelector": { "kubernetes.io/hostname": node },
            "containers": [{ "name": "server", "image": "model:1",
                             "resources": { "requests": amounts, "limits": amounts } }],
        },
    }))
    .unwrap()
}

fn start_scheduler(client: &Client) -> (tokio::task::JoinHandle<()>, watch::Sender<bool>) {
    let options = serve::Options {
        scheduler_names: Arc::new(["berth".into()]),
        identity: lease::incarnation("end-to-end").unwrap().into(),
        lease: lease::Settings::default(),
        core: core::Settings::default(),
    };
    let shown = (SchedulerMetrics::new(), SchedulerHealth::new(60_000));
    let (asking, questions) = mpsc::channel(1);
    let (stop, stopped) = watch::channel(false);
    let scheduler = Scheduler::new(client.clone(), options, shown, questions, stopped);
    let running = tokio::spawn(async move {
        let _asking = asking;
        scheduler.run().await.unwrap();
    });
    (running, stop)
}

/// The assignment of each pod, once all have one.
async fn given(pods: &Api<ApiPod>, count: usize) -> Vec<(String, String, String, Assignment)> {
    until("every pod is admitted", async || {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        let one = |pod: ApiPod| {
            let status = pod.status.unwrap_or_default();
            assert_ne!(status.phase.as_deref(), Some("Failed"), "{status:?}");
            let text = pod.metadata.annotations?.remove(VIRTUAL_DEVICES)?;
            let node = pod.spec?.node_name?;
            let given = serde_json::from_str(&text).unwrap();
            Some((pod.metadata.name?, pod.metadata.uid?, node, given))
        };
        let found: Vec<_> = all.into_iter().filter_map(one).collect();
        (found.len() == count).then_some(found)
    })
    .await
}

/// The annotations of all pods, once they are correct.
async fn judged(
    pods: &Api<ApiPod>,
    truths: &BTreeMap<String, &'static str>,
) -> BTreeMap<String, AlignmentAnnotation> {
    until("every pod is judged as it is", async || {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        let said: BTreeMap<String, AlignmentAnnotation> = all
            .into_iter()
            .filter_map(|pod| {
                let text = pod.metadata.annotations?.remove("berth.dev/alignment")?;
                Some((pod.metadata.name?, serde_json::from_str(&text).unwrap()))
            })
            .collect();
        let same = truths.iter().all(|(pod, truth)| {
            said.get(pod).is_some_and(|said| said.alignment.as_str() == *truth)
        });
        (same && said.len() == truths.len()).then_some(said)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_report_exactly_the_misaligned_pods() {
    let testbed = Testbed::start(Which::Embedded).await.unwrap();
    let client = testbed.admin().await.unwrap();
    let system = json!({ "apiVersion": "v1", "kind": "Namespace",
                         "metadata": { "name": "berth-system" } });
    testbed.apply([system, topology::definition()]).await.unwrap();
    let topologies: Api<NodeResourceTopology> = Api::all(client.clone());
    until("the kind is served", async || topologies.list(&Default::default()).await.ok()).await;
    let mut hosts = vec![
        Host::new("strict", synthetic::epyc_9654(2), ONE_NODE),
        Host::new("careless", synthetic::epyc_9654(1), ANYWHERE),
        Host::new("snc", synthetic::xeon_8480_snc2(), ANYWHERE),
        Host::new("unpinned", synthetic::epyc_7763(4), UNPINNED),
    ];
    testbed.apply(hosts.iter().map(Host::object)).await.unwrap();
    let agents: Vec<_> = hosts.iter().map(|host| host.start(&client)).collect();
    for host in &hosts {
        until("its inside is published", async || topologies.get_opt(&host.name).await.unwrap())
            .await;
    }
    // The kubelets join when their machines are known, and publish nothing themselves.
    let registered: Vec<_> = hosts
        .iter()
        .map(|host| nodes::Registration {
            node: serde_json::from_value(host.object()).unwrap(),
            topology: None,
        })
        .collect();
    nodes::register(&client, &registered).await.unwrap();
    let kubelets = kubelet::Options {
        start_after: Duration::from_millis(5),
        publish_topology: false,
        ..kubelet::Options::default()
    };
    let kubelets = tokio::spawn(kubelet::run(client.clone(), kubelets, std::future::pending()));
    let (scheduler, stop) = start_scheduler(&client);

    // With many CPUs each, so that those near to a GPU run out before the GPUs do.
    let pods: Api<ApiPod> = Api::namespaced(client.clone(), "default");
    let mut count = 0;
    for (node, cpus, gpus, pods_of_it) in [
        ("strict", 40, 1, 6),
        ("careless", 66, 1, 5),
        ("careless", 8, 2, 1),
        ("snc", 30, 1, 4),
        ("unpinned", 8, 1, 3),
    ] {
        for number in 0..pods_of_it {
            let name = format!("{node}-{cpus}-{number}");
            pods.create(&PostParams::default(), &pod(&name, node, cpus, gpus)).await.unwrap();
            count += 1;
        }
    }
    let mut truths = BTreeMap::new();
    for (name, uid, node, given) in given(&pods, count).await {
        let host = hosts.iter_mut().find(|host| host.name == node).unwrap();
        truths.insert(name, host.take(&uid, &given));
    }
    let found = judged(&pods, &truths).await;
    let count_of = |truth: &str| truths.values().filter(|one| **one == truth).count();
    assert_eq!(count_of("floating"), 3, "{truths:?}");
    assert!(count_of("misaligned") >= 2, "{truths:?}");
    assert!(truths.iter().all(|(pod, truth)| !pod.starts_with("strict") || *truth == "aligned"));
    assert_eq!(found.len(), count);
    drop(stop);
    scheduler.abort();
    kubelets.abort();
    agents.iter().for_each(tokio::task::JoinHandle::abort);
}
