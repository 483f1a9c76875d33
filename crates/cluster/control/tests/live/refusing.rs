//! Kubelets that do not take what they are sent.

use std::time::Duration;

use berth_emulator::kubelet::{self, Faults, VIRTUAL};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::replica::Replica;
use crate::world::{Shape, World};

/// Kubelets of all virtual nodes, until this is dropped.
struct Kubelets {
    faults: Faults,
    running: JoinHandle<()>,
}

impl Kubelets {
    fn start(world: &World) -> Self {
        let faults = Faults::default();
        let options = kubelet::Options {
            faults: faults.clone(),
            start_after: Duration::from_millis(50),
            stop_after: Duration::from_millis(50),
            ..kubelet::Options::default()
        };
        let running =
            tokio::spawn(kubelet::run(world.client.clone(), options, std::future::pending()));
        Self { faults, running }
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

async fn until(world: &World, name: &str, wanted: &str) -> Pod {
    world
        .eventually(&format!("{name} is {wanted}"), async || {
            world.find(name).await.filter(|pod| phase(pod) == wanted)
        })
        .await
}

pub(crate) async fn what_a_kubelet_refuses_is_not_sent_there_again(world: World) {
    let here = json!({
        VIRTUAL: "true",
        "berth.dev/numa-nodes": "2",
        "berth.dev/topology-manager-policy": "single-numa-node",
        "berth.dev/cpu-manager-policy": "static",
    });
    world.node("n1", 8, here.clone()).await;
    let kubelets = Kubelets::start(&world);
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("other").gpus(1).cpus(3)).await;
    until(&world, "other", "Running").await;

    // Something is wrong with the node of which nobody has told.
    kubelets.faults.reject_next("n1");
    world.pod(&Shape::new("first").gpus(2).cpus(4)).await;
    let refused = until(&world, "first", "Failed").await;
    assert_eq!(refused.spec.unwrap().node_name.as_deref(), Some("n1"));
    world
        .eventually("the refusal is counted", async || {
            let foreseen = "predicted=\"true\"";
            (replica.metric("berth_kubelet_rejections_total", foreseen) >= 1.0).then_some(())
        })
        .await;

    // What a controller would make in its place, from the same template.
    world.pod(&Shape::new("second").gpus(2).cpus(4)).await;
    let (reason, message) = world.unscheduled("second").await;
    assert_eq!(reason, "Unschedulable");
    assert!(message.contains("n1") && message.contains("rejected"), "{message}");
    assert_eq!(world.node_of("second").await, None, "it was sent there again");

    world.node("n2", 8, here).await;
    assert_eq!(world.bound("second").await, "n2");
    until(&world, "second", "Running").await;

    drop(kubelets);
    replica.stop().await;
}
