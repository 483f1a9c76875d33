//! The nodes, the pods, and what kubelets would have said.
//!
//! Owns the mix. Must not know who schedules.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, anyhow, bail};
use berth_api::Lower as _;
use berth_kubelet::PodDemand;
use berth_testkit::cluster::Dice;
use futures::{StreamExt as _, TryStreamExt as _};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1 as core;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{Body, Bound, json_body};

pub(super) const NAMESPACE: &str = "default";

const SIZES: [u32; 7] = [1, 1, 1, 1, 2, 2, 4];

/// So many requests at a time.
const AT_ONCE: usize = 64;

/// Two sockets of 64 CPUs and 1 TiB, 4 GPUs each; what the kubelet keeps is on the first.
pub(super) fn nodes(count: usize) -> Vec<Value> {
    (0..count)
        .map(|number| {
            let name = format!("node-{number:04}");
            let amounts = |cpu: &str, memory: &str| {
                json!({ "cpu": cpu, "memory": memory, "pods": "250", "nvidia.com/gpu": "8" })
            };
            json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {
                        "kubernetes.io/hostname": name,
                        "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
                        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
                        "nvidia.com/gpu.memory": "81559",
                        "berth.dev/numa-nodes": "2",
                        "berth.dev/topology-manager-policy": "single-numa-node",
                        "berth.dev/cpu-manager-policy": "static",
                    },
                },
                "status": {
                    "capacity": amounts("128", "2048Gi"),
                    "allocatable": amounts("126", "2040Gi"),
                    "conditions": [{ "type": "Ready", "status": "True" }],
                    "nodeInfo": {
                        "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "",
                        "osImage": "", "containerRuntimeVersion": "", "kubeletVersion": "v1.36.4",
                        "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
                    },
                },
            })
        })
        .collect()
}

/// Posts one; answers come in the form in which it was sent. What is there already is no error: a binding that was
/// refused shows as a pod that is not bound.
pub(super) async fn post(
    client: &Client,
    path: &str,
    Body { media_type, bytes }: Body,
) -> Result<()> {
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, media_type)
        .header(http::header::ACCEPT, media_type)
        .body(kube::client::Body::from(bytes))?;
    let answer = client.send(request).await.with_context(|| format!("POST {path}"))?;
    let status = answer.status();
    answer.into_body().collect().await?;
    if !status.is_success() && status != http::StatusCode::CONFLICT {
        bail!("POST {path}: {status}");
    }
    Ok(())
}

async fn post_each(
    client: &Client,
    all: impl Iterator<Item = (String, Body)> + Send,
) -> Result<()> {
    futures::stream::iter(all)
        .map(|(path, body)| {
            let client = client.clone();
            async move { post(&client, &path, body).await }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

pub(super) async fn create_nodes(client: &Client, nodes: &[Value]) -> Result<()> {
    let all = nodes.iter().map(|node| (String::from("/api/v1/nodes"), json_body(node)));
    post_each(client, all).await?;
    // The API server taints nodes that nobody has said to be ready.
    let api: Api<core::Node> = Api::all(client.clone());
    let untainted = Patch::Merge(json!({ "spec": { "taints": null } }));
    for node in nodes {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        api.patch(name, &PatchParams::default(), &untainted).await?;
    }
    Ok(())
}

/// The pods, one after the other, so that their order is the same for all who schedule them.
pub(super) async fn create_pods(
    client: &Client,
    count: usize,
    seed: u64,
    scheduler: &str,
    spread: bool,
) -> Result<()> {
    let mut dice = Dice::new(seed);
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let pods = (0..count).map(|number| {
        let gpus = SIZES[dice.below(SIZES.len())];
        (path.clone(), json_body(&pod(number, gpus, scheduler, spread)))
    });
    post_each(client, pods).await
}

fn pod(number: usize, gpus: u32, scheduler: &str, spread: bool) -> Value {
    let amounts = json!({
        "cpu": (gpus * 8).to_string(),
        "memory": format!("{}Gi", gpus * 64),
        "nvidia.com/gpu": gpus.to_string(),
    });
    let mut spec = json!({
        "schedulerName": scheduler,
        "containers": [{
            "name": "model",
            "image": "registry.example/model:1",
            "resources": { "requests": amounts, "limits": amounts },
        }],
    });
    if spread {
        spec["topologySpreadConstraints"] = json!([{
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "model" } },
        }]);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": format!("pod-{number:05}"), "labels": { "app": "model", "size": gpus.to_string() } },
        "spec": spec,
    })
}

/// Posts bindings that somebody else has decided.
pub(super) async fn post_all(
    client: Client,
    decided: Vec<Bound>,
    body: fn(&Bound) -> Body,
) -> Result<()> {
    let all = decided.into_iter().map(|bound| {
        (format!("/api/v1/namespaces/{NAMESPACE}/pods/{}/binding", bound.pod), body(&bound))
    });
    post_each(&client, all).await
}

/// How many of the pods their kubelets would have turned down.
pub(super) async fn rejected(client: &Client, bound: &[Bound]) -> Result<usize> {
    let nodes: Api<core::Node> = Api::all(client.clone());
    let pods: Api<core::Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let mut kubelets = BTreeMap::new();
    for node in nodes.list(&ListParams::default()).await?.items {
        let lowered = node.lower()?;
        let inside = berth_topology::read(&node, &lowered, None, None)?;
        let topology = inside.topology().map_err(|error| anyhow!(error))?;
        let topology = topology.context("the nodes tell of their inside")?;
        kubelets.insert(lowered.name.to_string(), topology.empty_kubelet().clone());
    }
    let mut by_name = BTreeMap::new();
    for pod in pods.list(&ListParams::default()).await?.items {
        by_name.insert(pod.metadata.name.clone().unwrap_or_default(), pod.lower()?);
    }
    let mut rejected = 0;
    for Bound { pod, node, .. } in bound {
        let (Some(kubelet), Some(pod)) = (kubelets.get_mut(node), by_name.get(pod)) else {
            continue;
        };
        let demand = PodDemand::new(&pod.spec.pod, kubelet.config().version)?;
        rejected += usize::from(kubelet.admit(&pod.uid, &demand).is_err());
    }
    Ok(rejected)
}
