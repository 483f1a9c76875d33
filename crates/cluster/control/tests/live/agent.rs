//! The node agent beside the scheduler: what the one finds is what the other plans with.

use std::time::Duration;

use berth_agent::GpuSource;
use berth_agent::run::{
    AlignmentAnnotation, Checkpoint, Health, Metrics, Options, Settings, Status, run,
};
use berth_control::install::{self, AgentOptions, InstallOptions};
use berth_host::{Root, synthetic};
use berth_testbed::Which;
use kube::Client;
use serde_json::json;
use tokio::sync::oneshot;

use crate::replica::Replica;
use crate::support::agent_on;
use crate::synthetic_node::{Node, Pod, gpu_uuid};
use crate::topology::{alignment, define, undefine};
use crate::world::{Shape, World};

const STRICT: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
    topologyManagerPolicy: single-numa-node\ncpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n";

/// The agent's account with a token of its pod on `n1`, with the role and the policies that are printed for it.
async fn client(world: &World) -> Client {
    let (options, agent) = (InstallOptions::default(), AgentOptions::default());
    let testbed = world.testbed.lock().await;
    let namespace = install::agent_namespace(&options);
    let home =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
    testbed.apply([home]).await.unwrap();
    testbed.apply(install::agent_access(&options, &agent)).await.unwrap();
    if testbed.which() == Which::Real {
        testbed.apply(install::agent_policies(&options, &agent)).await.unwrap();
    }
    agent_on(&testbed, &world.client, &namespace, "n1").await
}

pub(crate) async fn what_the_agent_finds_is_what_the_scheduler_plans_with(world: World) {
    undefine(&world).await;
    define(&world).await;
    world.node("n1", 8, json!({ "kubernetes.io/hostname": "n1" })).await;
    let mut node = Node::new(synthetic::epyc_9654(1));
    node.configuration = STRICT;
    let (_, directory) = node.written();
    let root = directory.path().to_owned();
    std::fs::write(root.join("nvml.json"), serde_json::to_string(&node.gpus).unwrap()).unwrap();
    let options = Options {
        node: "n1".to_owned(),
        root: Root::new(&root),
        gpus: GpuSource::Recorded(root.clone()),
        settings: Settings { audit: Duration::from_millis(200), ..Settings::default() },
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let status = Status { metrics: Metrics::new(), health: Health::new(Duration::from_secs(60)) };
    let health = status.health.clone();
    let stopped = async move { drop(stopped.await) };
    let agent =
        tokio::spawn(run(client(&world).await, options, Box::new(Checkpoint), status, stopped));
    world.eventually("the node is published", async || health.ready().ok()).await;
    let replica = Replica::start(&world).await;
    // Four GPUs are on each NUMA node: what is known of the inside is what the agent found.
    world.pod(&Shape::new("too-wide").gpus(5).cpus(8)).await;
    world.unscheduled("too-wide").await;
    world.delete("too-wide").await;
    world.pod(&Shape::new("wide").gpus(4).cpus(8)).await;
    assert_eq!(alignment(&world, "wide").await, "aligned");
    // Its kubelet does otherwise, and that is found.
    world.run("wide").await;
    let uid = world.find("wide").await.unwrap().metadata.uid.unwrap();
    node.pods.push(Pod {
        uid,
        containers: vec![("main", "100-107".to_owned(), String::new(), Vec::new())],
        devices: vec![("main", "nvidia.com/gpu", gpu_uuid(0), Some(0))],
        ..Pod::default()
    });
    node.tree().write_over(&root).unwrap();
    let alignment = world
        .eventually("the pod is annotated with its alignment", async || {
            let annotations = world.find("wide").await?.metadata.annotations?;
            serde_json::from_str::<AlignmentAnnotation>(annotations.get("berth.dev/alignment")?)
                .ok()
        })
        .await;
    assert_eq!((alignment.alignment.as_str(), alignment.distance), ("misaligned", Some(32)));
    world
        .eventually("an Event reports it", async || {
            let events = world.events("wide").await;
            events.into_iter().find(|(reason, _)| reason == "GpuMisaligned")
        })
        .await;
    drop(stop);
    agent.await.unwrap();
    replica.stop().await;
    undefine(&world).await;
}
