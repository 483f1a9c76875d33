//! How much a thousand virtual nodes cost. Run with
//! `cargo test --release -p berth-emulator --test scale -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "tests")]

mod common;

use std::time::Duration;

use berth_emulator::nodes::{Registration, register};
use berth_emulator::{Options, run};
use common::{bind, embedded};
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{from_value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

const NODES: usize = 1000;
const PODS: usize = 5000;

async fn schedule(client: Client) {
    let pods: Api<Pod> = Api::all(client.clone());
    let unbound = watcher::Config::default().fields("spec.nodeName=");
    let events = watcher(pods, unbound).filter_map(|event| async move {
        match event {
            Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => Some(pod),
            _ => None,
        }
    });
    let bound = events.enumerate().map(|(at, pod)| {
        let client = client.clone();
        async move { bind(&client, &pod, &format!("n{}", at % NODES)).await }
    });
    bound.buffer_unordered(32).for_each(|_| async {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute; for measuring"]
async fn a_thousand_nodes_run_five_thousand_pods() {
    let server = embedded().await.unwrap();
    let client = server.client.clone();
    let nodes: Vec<Registration> = (0..NODES)
        .map(|at| {
            let node: Node = from_value(json!({
                "metadata": { "name": format!("n{at}"), "labels": { "berth.dev/numa-nodes": "2" } },
                "status": { "capacity": { "cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8" } },
            }))
            .unwrap();
            Registration { node, topology: None }
        })
        .collect();
    let mut tasks = JoinSet::new();
    tasks.spawn(run(client.clone(), Options::default(), std::future::pending()));
    tasks.spawn(schedule(client.clone()));
    let begin = Instant::now();
    register(&client, &nodes).await.unwrap();
    let registered = begin.elapsed();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let deployment = from_value(json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": PODS,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "image": "i", "resources": {
                    "limits": { "cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1" },
                } }] },
            },
        },
    }));
    let begin = Instant::now();
    deployments.create(&PostParams::default(), &deployment.unwrap()).await.unwrap();
    loop {
        let status = deployments.get("web").await.unwrap().status.unwrap_or_default();
        if status.available_replicas == i32::try_from(PODS).ok() {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(600), "{status:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let running = begin.elapsed();
    let before = cpu_seconds();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let idle = (cpu_seconds() - before) / 30.0;
    eprintln!("{NODES} nodes registered in {registered:?}, {PODS} pods available in {running:?}");
    eprintln!("afterwards {:.1} % of a core in heartbeats", idle * 100.0);
}

/// CPU time of this process so far.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = after.split_whitespace().skip(11).take(2).filter_map(|one| one.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}
