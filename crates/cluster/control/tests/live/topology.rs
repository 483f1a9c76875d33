//! What nodes look like inside, told by somebody else.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, ObjectMeta, PostParams};
use serde_json::{Value, json};

use crate::replica::Replica;
use crate::world::{GPU, Shape, World};

const GROUP: &str = "topology.node.k8s.io";
const DEFINITION: &str = "noderesourcetopologies.topology.node.k8s.io";

pub(crate) async fn define(world: &World) {
    let schema = json!({ "openAPIV3Schema": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
    }});
    let definition = json!({
        "metadata": { "name": DEFINITION, "annotations": {
            // Names under k8s.io are reserved unless somebody has agreed.
            "api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870",
        }},
        "spec": {
            "group": GROUP, "scope": "Cluster",
            "names": {
                "kind": "NodeResourceTopology", "plural": "noderesourcetopologies",
                "singular": "noderesourcetopology", "shortNames": ["node-res-topo"],
            },
            "versions": [{ "name": "v1alpha2", "served": true, "storage": true, "schema": schema }],
        },
    });
    let definitions: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    let definition = serde_json::from_value(definition).unwrap();
    definitions.create(&PostParams::default(), &definition).await.unwrap();
    let exported = world.dynamic(GROUP, "v1alpha2", "NodeResourceTopology");
    world
        .eventually("the definition is served", async || {
            exported.list(&Default::default()).await.ok().map(drop)
        })
        .await;
}

pub(crate) async fn undefine(world: &World) {
    let definitions: Api<CustomResourceDefinition> = Api::all(world.client.clone());
    if definitions.get_opt(DEFINITION).await.unwrap().is_some() {
        definitions.delete(DEFINITION, &DeleteParams::default()).await.unwrap();
        world
            .eventually("the definition is gone", async || {
                definitions.get_opt(DEFINITION).await.unwrap().is_none().then_some(())
            })
            .await;
    }
}

/// Two NUMA nodes with half of everything each, under the strictest policy.
async fn export(world: &World, node: &str, gpus: u32) {
    let amount = |name: &str, capacity: String, available: String| json!({ "name": name, "capacity": capacity, "allocatable": available, "available": available });
    let cpus = 16 * gpus / 2;
    let zone = |id: u32| {
        json!({
            "name": format!("node-{id}"), "type": "Node",
            "costs": [
                { "name": "node-0", "value": if id == 0 { 10 } else { 21 } },
                { "name": "node-1", "value": if id == 1 { 10 } else { 21 } },
            ],
            "resources": [
                amount("cpu", cpus.to_string(), (cpus - 1).to_string()),
                amount("memory", format!("{}Gi", 32 * gpus), format!("{}Gi", 32 * gpus)),
                amount(GPU, (gpus / 2).to_string(), (gpus / 2).to_string()),
            ],
        })
    };
    let attributes: Vec<Value> = [
        ("topologyManagerPolicy", "single-numa-node"),
        ("topologyManagerScope", "container"),
        ("cpuManagerPolicy", "static"),
    ]
    .map(|(name, value)| json!({ "name": name, "value": value }))
    .to_vec();
    let exported = world.dynamic(GROUP, "v1alpha2", "NodeResourceTopology");
    let object = DynamicObject {
        types: Some(kube::api::TypeMeta {
            api_version: format!("{GROUP}/v1alpha2"),
            kind: "NodeResourceTopology".to_owned(),
        }),
        metadata: ObjectMeta { name: Some(node.to_owned()), ..ObjectMeta::default() },
        data: json!({ "zones": [zone(0), zone(1)], "attributes": attributes }),
    };
    exported.create(&PostParams::default(), &object).await.unwrap();
}

pub(crate) async fn alignment(world: &World, pod: &str) -> String {
    world.bound(pod).await;
    let pod = world.find(pod).await.unwrap();
    let text = &pod.metadata.annotations.unwrap()["berth.dev/placement"];
    let placement: Value = serde_json::from_str(text).unwrap();
    placement["alignment"].as_str().unwrap().to_owned()
}

/// Makes pods that fit everywhere until one is placed by knowledge of the node's inside.
async fn becomes_known(world: &World, node: &str) {
    let mut number = 0;
    world
        .eventually("the inside is known", async || {
            number += 1;
            let name = format!("probe-{node}-{number}");
            let there = json!({ "kubernetes.io/hostname": node });
            world.pod(&Shape::new(&name).gpus(1).cpus(2).spec("nodeSelector", there)).await;
            let found = alignment(world, &name).await;
            world.delete(&name).await;
            (found == "aligned").then_some(())
        })
        .await;
}

pub(crate) async fn insides_exported_before_and_after_we_start_are_known(world: World) {
    undefine(&world).await;
    define(&world).await;
    world.node("n1", 8, json!({ "kubernetes.io/hostname": "n1" })).await;
    export(&world, "n1", 8).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("wide").gpus(4).cpus(8)).await;
    assert_eq!(alignment(&world, "wide").await, "aligned");
    world.node("n2", 8, json!({ "kubernetes.io/hostname": "n2" })).await;
    export(&world, "n2", 8).await;
    becomes_known(&world, "n2").await;
    replica.stop().await;
    undefine(&world).await;
}

pub(crate) async fn a_pool_says_what_its_nodes_look_like_inside(world: World) {
    let definitions: Vec<Value> = berth_api::crd::definitions();
    world.testbed.lock().await.apply(definitions).await.unwrap();
    let pools = world.dynamic("berth.dev", "v1alpha1", "Pool");
    let name = world.name().to_owned();
    world.eventually("pools are served", async || pools.list(&Default::default()).await.ok()).await;
    let labels = json!({ "kubernetes.io/hostname": "n1", "berth.dev/pool": name });
    world.node("n1", 8, labels).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("early").gpus(1).cpus(2)).await;
    assert_eq!(alignment(&world, "early").await, "unknown");
    let kubelet =
        json!({ "topologyManagerPolicy": "single-numa-node", "cpuManagerPolicy": "static" });
    let topology = json!({ "numaNodes": 2, "kubelet": kubelet });
    let pool = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Pool",
        "metadata": { "name": name }, "spec": { "topology": topology },
    });
    world.testbed.lock().await.apply([pool]).await.unwrap();
    becomes_known(&world, "n1").await;
    pools.delete(&name, &DeleteParams::default()).await.unwrap();
    replica.stop().await;
}

pub(crate) async fn insides_count_when_their_definition_comes_later(world: World) {
    undefine(&world).await;
    world.node("n1", 8, json!({ "kubernetes.io/hostname": "n1" })).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("early").gpus(1).cpus(2)).await;
    assert_eq!(alignment(&world, "early").await, "unknown");
    define(&world).await;
    export(&world, "n1", 8).await;
    becomes_known(&world, "n1").await;
    replica.stop().await;
    undefine(&world).await;
}
