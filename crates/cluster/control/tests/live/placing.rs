//! Who is placed where, and what is left behind.

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::replica::Replica;
use crate::world::{Shape, World};

pub(crate) async fn pods_that_name_us_are_bound_and_others_are_not_touched(world: World) {
    world.node("n1", 4, json!({})).await;
    let other = world.pod(&Shape::new("theirs").scheduler("default-scheduler")).await;
    world.pod(&Shape::new("before").gpus(1)).await;
    let replica = Replica::start(&world).await;
    assert_eq!(world.bound("before").await, "n1");
    world.pod(&Shape::new("after").gpus(1)).await;
    assert_eq!(world.bound("after").await, "n1");
    let now = world.find("theirs").await.unwrap();
    assert_eq!(now.metadata.resource_version, other.metadata.resource_version, "it was touched");
    world
        .eventually("both bindings are counted", async || {
            (replica.metric("berth_bindings_total", "bound") >= 2.0).then_some(())
        })
        .await;
    replica.stop().await;
}

pub(crate) async fn where_a_bound_pod_lies_is_written_on_it(world: World) {
    let two_sockets = json!({
        "berth.dev/numa-nodes": "2",
        "berth.dev/topology-manager-policy": "single-numa-node",
        "berth.dev/cpu-manager-policy": "static",
    });
    world.node("n1", 8, two_sockets).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("wide").gpus(4).cpus(8)).await;
    world.bound("wide").await;
    let pod = world.find("wide").await.unwrap();
    let text = &pod.metadata.annotations.unwrap()["berth.dev/placement"];
    let placement: Value = serde_json::from_str(text).unwrap();
    assert_eq!(placement["alignment"], "aligned", "{placement}");
    assert_eq!(placement["numaNodes"].as_array().unwrap().len(), 1, "{placement}");
    assert_eq!(placement["devices"][0]["count"], 4, "{placement}");
    assert!(!placement["why"].as_str().unwrap().is_empty());
    let assigned = format!("Successfully assigned {}/wide to n1", world.name());
    world
        .eventually("an event says so", async || {
            let events = world.events("wide").await;
            events.into_iter().find(|event| *event == ("Scheduled".to_owned(), assigned.clone()))
        })
        .await;
    replica.stop().await;
}

/// Binds a pod as any other scheduler does.
async fn bind(world: &World, pod: &str, node: &str) {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": { "name": pod }, "target": { "kind": "Node", "name": node },
    });
    let pods = world.api::<Pod>();
    let bound: Result<Value, _> =
        pods.create_subresource("binding", pod, &PostParams::default(), &binding).await;
    bound.unwrap();
}

pub(crate) async fn pods_of_other_schedulers_count_on_nodes(world: World) {
    world.node("n1", 4, json!({})).await;
    let others = Shape::new("theirs").scheduler("other").gpus(3);
    world.pod(&others).await;
    bind(&world, "theirs", "n1").await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("large").gpus(2)).await;
    let (reason, message) = world.unscheduled("large").await;
    assert_eq!(reason, "Unschedulable", "{message}");
    world.pod(&Shape::new("small").gpus(1)).await;
    assert_eq!(world.bound("small").await, "n1");
    // What others do while we run counts, too.
    world.delete("theirs").await;
    assert_eq!(world.bound("large").await, "n1");
    world.pod(&Shape::new("late").scheduler("other").gpus(1)).await;
    bind(&world, "late", "n1").await;
    world.pod(&Shape::new("last").gpus(1)).await;
    let (reason, message) = world.unscheduled("last").await;
    assert_eq!(reason, "Unschedulable", "{message}");
    replica.stop().await;
}

pub(crate) async fn pods_deleted_while_they_are_bound_leave_no_ghosts(world: World) {
    world.node("n1", 8, json!({})).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("warm").gpus(1)).await;
    world.bound("warm").await;
    world.delete("warm").await;
    // Some are deleted before their binding arrives, some after; names come back at once.
    for round in 0..10 {
        for number in 0..8 {
            world.pod(&Shape::new(&format!("p{number}")).gpus(1)).await;
            if number % 2 == round % 2 {
                world.delete(&format!("p{number}")).await;
            }
        }
        for number in (0..8).filter(|number| number % 2 != round % 2) {
            world.delete(&format!("p{number}")).await;
        }
    }
    // A ghost would keep one of these from its GPU.
    for number in 0..8 {
        world.pod(&Shape::new(&format!("last{number}")).gpus(1)).await;
    }
    for number in 0..8 {
        assert_eq!(world.bound(&format!("last{number}")).await, "n1");
    }
    replica.stop().await;
}

pub(crate) async fn a_restart_knows_everything_again(world: World) {
    world.node("n1", 4, json!({})).await;
    world.node("n2", 4, json!({})).await;
    let first = Replica::start(&world).await;
    for number in 0..6 {
        world.pod(&Shape::new(&format!("a{number}")).gpus(1)).await;
    }
    for number in 0..6 {
        world.bound(&format!("a{number}")).await;
    }
    first.stop().await;
    world.pod(&Shape::new("b0").gpus(1)).await;
    world.pod(&Shape::new("b1").gpus(1)).await;
    world.pod(&Shape::new("b2").gpus(1)).await;
    let second = Replica::start(&world).await;
    let (reason, _) = world
        .eventually("one too many waits", async || {
            let mut told = Vec::new();
            for name in ["b0", "b1", "b2"] {
                match world.node_of(name).await {
                    Some(_) => {}
                    None => told.push(name),
                }
            }
            match told.as_slice() {
                [one] => Some(world.unscheduled(one).await),
                _ => None,
            }
        })
        .await;
    assert_eq!(reason, "Unschedulable");
    second.stop().await;
}

pub(crate) async fn lists_come_in_pages_where_they_are_not_streamed(world: World) {
    let (world, asked) = world.without_streamed_lists();
    world.node("n1", 4, json!({})).await;
    world.pod(&Shape::new("before").gpus(1)).await;
    let replica = Replica::start(&world).await;
    world.bound("before").await;
    world.pod(&Shape::new("after").gpus(1)).await;
    world.bound("after").await;
    let asked = asked.load(std::sync::atomic::Ordering::Relaxed);
    assert!(asked > 0, "nobody asked for a streamed list");
    let failures = replica.metric("berth_watch_errors_total", "");
    assert_eq!(failures, 0.0, "{}", replica.metrics());
    replica.stop().await;
}
