//! Nodes, and pods that arrive and sometimes leave again.
//!
//! Owns what is asked for and what was made of it, whatever fails meanwhile: every write is tried until
//! it is known to be done. Must not know what schedules.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::{Duration, Instant};

use berth_testkit::cluster::Dice;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::task::JoinHandle;

/// The namespace of the pods.
const PODS: &str = "load";

/// Every node has so many GPUs.
const GPUS: usize = 8;

/// One in so many pods is deleted later, and another one comes for it.
const LEAVES: usize = 20;

/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(200);

/// What is to come.
pub(crate) struct Load {
    /// The GPUs of each pod, in the order of arrival.
    pods: Vec<usize>,
    dice: Dice,
    /// Nodes there are.
    pub(crate) nodes: usize,
    /// Their GPUs.
    pub(crate) gpus: usize,
    /// What the pods want of them.
    pub(crate) wanted: usize,
}

/// What has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadSummary {
    /// Pods that were made and not deleted, with their GPUs.
    pub(crate) left: BTreeMap<String, usize>,
    /// Pods that were deleted.
    pub(crate) deleted: BTreeSet<String>,
}

impl Load {
    /// Makes the nodes: one in fifty GPUs more than the pods want.
    pub(crate) async fn prepare(
        client: &Client,
        namespace: &str,
        pods: usize,
        dice: &mut Dice,
    ) -> anyhow::Result<Self> {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        for name in [namespace, PODS] {
            let namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
            namespaces.create(&PostParams::default(), &namespace).await?;
        }
        let sizes: Vec<usize> = (0..pods)
            .map(|_| match dice.below(20) {
                0 => 4,
                1..=4 => 2,
                _ => 1,
            })
            .collect();
        let wanted: usize = sizes.iter().sum();
        let nodes = (wanted + wanted / 50).div_ceil(GPUS) + 1;
        for number in 0..nodes {
            make_node(client, &format!("node-{number:04}")).await?;
        }
        Ok(Self { pods: sizes, dice: dice.clone(), nodes, gpus: nodes * GPUS, wanted })
    }

    /// Lets them come, one every so often.
    pub(crate) fn arrive(
        &self,
        client: Client,
        pace: Duration,
    ) -> JoinHandle<anyhow::Result<LoadSummary>> {
        let (pods, mut dice) = (self.pods.clone(), self.dice.clone());
        tokio::spawn(async move {
            let api: Api<Pod> = Api::namespaced(client, PODS);
            let mut made = LoadSummary::default();
            let began = Instant::now();
            for (number, gpus) in pods.into_iter().enumerate() {
                let due = pace * u32::try_from(number).unwrap_or(u32::MAX);
                tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
                let name = format!("pod-{number:05}");
                make_pod(&api, &name, gpus).await?;
                made.left.insert(name, gpus);
                if dice.below(LEAVES) == 0 {
                    replace(&api, &mut made, &mut dice).await?;
                }
            }
            Ok(made)
        })
    }
}

/// Deletes any pod, and makes another like it.
async fn replace(api: &Api<Pod>, made: &mut LoadSummary, dice: &mut Dice) -> anyhow::Result<()> {
    let at = dice.below(made.left.len());
    let Some((name, gpus)) = made.left.iter().nth(at).map(|(name, gpus)| (name.clone(), *gpus))
    else {
        return Ok(());
    };
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    insist(404, async || api.delete(&name, &now).await.map(drop)).await?;
    made.left.remove(&name);
    let next = format!("{name}-again");
    made.deleted.insert(name);
    make_pod(api, &next, gpus).await?;
    made.left.insert(next, gpus);
    Ok(())
}

/// Tries until it is done; the code says that it was done already.
async fn insist<F>(done: u16, mut attempt: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = Result<(), kube::Error>>,
{
    loop {
        match tokio::time::timeout(Duration::from_secs(5), attempt()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(kube::Error::Api(status))) if status.code == done => return Ok(()),
            // The API server would say the same for ever.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 400 | 422) => {
                return Err(kube::Error::Api(status).into());
            }
            Ok(Err(_)) | Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

async fn make_pod(api: &Api<Pod>, name: &str, gpus: usize) -> anyhow::Result<()> {
    let amounts = json!({
        "cpu": (2 * gpus).to_string(),
        "memory": format!("{}Gi", 4 * gpus),
        "nvidia.com/gpu": gpus.to_string(),
    });
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "schedulerName": "berth",
            // No kubelet is there to wait for.
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": "registry.example/main:1",
                "resources": { "limits": amounts, "requests": amounts },
            }],
        },
    }))?;
    let made = PostParams::default();
    insist(409, async || api.create(&made, &pod).await.map(drop)).await
}

/// A node whose every resource its GPUs use up.
async fn make_node(client: &Client, name: &str) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let amounts = json!({
        "cpu": (2 * GPUS).to_string(),
        "memory": format!("{}Gi", 4 * GPUS),
        "pods": GPUS.to_string(),
        "nvidia.com/gpu": GPUS.to_string(),
    });
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let node = json!({
        "metadata": { "name": name },
        "status": { "capacity": amounts, "allocatable": amounts, "conditions": [ready] },
    });
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    // The API server gives every new node a taint that a controller would take away.
    let clear = json!({ "spec": { "taints": null } });
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(&clear)).await?;
    Ok(())
}
