//! Objects that are wrong, or far too large.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::replica::Replica;
use crate::world::{Shape, World};

pub(crate) async fn what_cannot_be_read_is_skipped_and_the_rest_goes_on(world: World) {
    world.node("good", 4, json!({})).await;
    // Nonsense that the API does not mind.
    world.node("bad", 4, json!({ "berth.dev/numa-nodes": "many" })).await;
    world.pod(&Shape::new("nonsense").gpus(1).label("berth.dev/gang-size", "3")).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("fine").gpus(4)).await;
    world.bound("fine").await;
    world
        .eventually("the pod is counted as skipped", async || {
            let skipped = replica.metric("berth_watch_skipped_objects_total", "Pod");
            (skipped >= 1.0).then_some(())
        })
        .await;
    assert_eq!(world.node_of("nonsense").await, None);
    // An object that is put right counts.
    let right = json!({ "metadata": { "labels": { "berth.dev/gang-size": null } } });
    let patch = PatchParams::default();
    world.api::<Pod>().patch("nonsense", &patch, &Patch::Merge(&right)).await.unwrap();
    world.bound("nonsense").await;
    replica.stop().await;
}

fn with_containers(name: &str, count: usize) -> Value {
    let container = |number: usize| {
        json!({
            "name": format!("c{number}"), "image": "registry.example/main:1",
            "resources": { "requests": { "cpu": "1m" } },
        })
    };
    let containers: Vec<Value> = (0..count).map(container).collect();
    json!({
        "metadata": { "name": name },
        "spec": {
            "schedulerName": "berth", "terminationGracePeriodSeconds": 0, "containers": containers,
        },
    })
}

pub(crate) async fn what_is_huge_does_no_harm(world: World) {
    world.node("n1", 4, json!({})).await;
    let nodes: Api<Node> = Api::all(world.client.clone());
    // As much as the API allows: 256 KiB of annotations for an object.
    let long = "x".repeat(250 << 10);
    let annotated = json!({ "metadata": { "annotations": { "example.com/long": long } } });
    nodes.patch("n1", &PatchParams::default(), &Patch::Merge(&annotated)).await.unwrap();
    let labels: Value = (0..2_000)
        .map(|number| (format!("example.com/label-{number}"), json!("y".repeat(63))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let replica = Replica::start(&world).await;
    let mut labelled = Shape::new("labelled").gpus(1).annotation("berth.dev/placement", &long);
    for (key, value) in labels.as_object().unwrap() {
        labelled = labelled.label(key, value.as_str().unwrap());
    }
    world.pod(&labelled).await;
    // Whatever is made of a pod of a thousand containers or a megabyte, the others are placed.
    for (name, count) in [("many", 1_000), ("lots", 5_000)] {
        let pod = serde_json::from_value(with_containers(name, count)).unwrap();
        drop(world.api::<Pod>().create(&PostParams::default(), &pod).await);
    }
    let terms: Vec<Value> = (0..3_000)
        .map(|number| {
            let values: Vec<String> = (0..10).map(|value| format!("v{number}-{value}")).collect();
            json!({ "matchExpressions": [{ "key": "a", "operator": "NotIn", "values": values }] })
        })
        .collect();
    let affinity = json!({ "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
    }});
    world.pod(&Shape::new("picky").gpus(1).spec("affinity", affinity)).await;
    world.pod(&Shape::new("fine").gpus(1)).await;
    for name in ["labelled", "picky", "fine"] {
        assert_eq!(world.bound(name).await, "n1");
    }
    replica.stop().await;
}
