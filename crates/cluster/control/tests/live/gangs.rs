//! Pods that start together.

use serde_json::json;

use crate::replica::Replica;
use crate::world::{Shape, World};

fn member(number: u32) -> Shape {
    Shape::new(&format!("member{number}"))
        .gpus(4)
        .label("berth.dev/gang", "train")
        .label("berth.dev/gang-size", "3")
}

pub(crate) async fn a_gang_starts_together_or_not_at_all(world: World) {
    world.node("n1", 4, json!({})).await;
    world.node("n2", 4, json!({})).await;
    let replica = Replica::start(&world).await;
    world.pod(&member(0)).await;
    world.pod(&member(1)).await;
    let (reason, message) = world.unscheduled("member0").await;
    assert_eq!(reason, "Held", "a member is missing, not a node: {message}");
    world.pod(&member(2)).await;
    // Two nodes would take two of the three.
    world
        .eventually("a node is missing now", async || {
            let (reason, _) = world.unscheduled("member0").await;
            (reason == "Unschedulable").then_some(())
        })
        .await;
    for number in 0..3 {
        assert_eq!(world.node_of(&format!("member{number}")).await, None);
    }
    world.node("n3", 4, json!({})).await;
    let mut nodes = Vec::new();
    for number in 0..3 {
        nodes.push(world.bound(&format!("member{number}")).await);
    }
    nodes.sort();
    assert_eq!(nodes, ["n1", "n2", "n3"]);
    replica.stop().await;
}
