//! What those are told who wait, and those who look at them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use serde_json::json;

use crate::replica::Replica;
use crate::world::{GPU, Shape, World};

fn nominated(pod: &Pod) -> Option<&str> {
    let node = pod.status.as_ref()?.nominated_node_name.as_deref()?;
    Some(node).filter(|node| !node.is_empty())
}

pub(crate) async fn a_pod_without_a_place_is_told_why_and_gets_one_when_a_node_comes(world: World) {
    world.node("small", 2, json!({})).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("large").gpus(4)).await;
    let (reason, message) = world.unscheduled("large").await;
    assert_eq!(reason, "Unschedulable");
    assert!(message.contains("nvidia.com/gpu"), "{message}");
    let pod = world.find("large").await.unwrap();
    assert_eq!(nominated(&pod), None, "an autoscaler would wait for that node");
    let note = world
        .eventually("an event says so", async || {
            let events = world.events("large").await;
            events.into_iter().find(|(reason, _)| reason == "FailedScheduling")
        })
        .await;
    assert_eq!(note.1, message);
    world.node("big", 4, json!({})).await;
    assert_eq!(world.bound("large").await, "big");
    replica.stop().await;
}

pub(crate) async fn a_pod_beyond_its_quota_is_held_and_not_unschedulable(world: World) {
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("first").gpus(1)).await;
    world.unscheduled("first").await;
    // Who came first is told by creation times, which are in whole seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    world.pod(&Shape::new("second").gpus(1)).await;
    world.unscheduled("second").await;
    // Where the API enforces quotas, only those are beyond one who were there before it.
    let hard = json!({ format!("requests.{GPU}"): "1" });
    let quota = json!({ "metadata": { "name": "gpus" }, "spec": { "hard": hard } });
    world.create::<ResourceQuota>(quota).await;
    world
        .eventually("the second is held", async || {
            let (reason, _) = world.unscheduled("second").await;
            (reason == "Held").then_some(())
        })
        .await;
    world.node("n1", 4, json!({})).await;
    assert_eq!(world.bound("first").await, "n1");
    let (reason, message) = world.unscheduled("second").await;
    assert_eq!(reason, "Held", "an autoscaler would buy a node: {message}");
    assert_eq!(world.node_of("second").await, None);
    world.delete("first").await;
    assert_eq!(world.bound("second").await, "n1");
    replica.stop().await;
}
