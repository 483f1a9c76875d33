//! Storage that waits for its pod. There is no controller of volumes: the tests do what one does.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Resource;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::replica::Replica;
use crate::world::{Shape, World};

async fn create_global<K>(world: &World, object: Value)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let api: Api<K> = Api::all(world.client.clone());
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

/// A class whose volumes wait for pods.
async fn class(world: &World, provisioner: &str) {
    let class = json!({
        "metadata": { "name": world.name() }, "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    create_global::<StorageClass>(world, class).await;
}

async fn volume(world: &World, name: &str, more: Value) {
    let mut spec = json!({
        "storageClassName": world.name(), "capacity": { "storage": "10Gi" },
        "accessModes": ["ReadWriteOnce"], "local": { "path": "/data" },
    });
    let fields = more.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(fields);
    let volume = json!({ "metadata": { "name": name }, "spec": spec });
    create_global::<PersistentVolume>(world, volume).await;
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    let free = Patch::Merge(json!({ "status": { "phase": "Available" } }));
    volumes.patch_status(name, &PatchParams::default(), &free).await.unwrap();
}

fn within(node: &str) -> Value {
    let host = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] });
    json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [host] }] } })
}

/// A claim, and a pod of the same name that needs it.
async fn storing(world: &World, name: &str) {
    let claim = json!({
        "metadata": { "name": name },
        "spec": {
            "storageClassName": world.name(), "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "10Gi" } },
        },
    });
    world.create::<PersistentVolumeClaim>(claim).await;
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": name } }]);
    world.pod(&Shape::new(name).spec("volumes", volumes)).await;
}

/// The claim has its volume, in both directions.
async fn complete(world: &World, claim: &str, volume: &str) {
    let done = json!({
        "metadata": { "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
        "spec": { "volumeName": volume },
    });
    let claims = world.api::<PersistentVolumeClaim>();
    claims.patch(claim, &PatchParams::default(), &Patch::Merge(done)).await.unwrap();
    let bound = Patch::Merge(json!({ "status": { "phase": "Bound" } }));
    claims.patch_status(claim, &PatchParams::default(), &bound).await.unwrap();
}

pub(crate) async fn a_volume_is_made_where_its_pod_goes_before_that_is_bound(world: World) {
    world.node("n1", 0, json!({})).await;
    class(&world, "disks.example.com").await;
    let replica = Replica::start(&world).await;
    storing(&world, "cache").await;
    let claims = world.api::<PersistentVolumeClaim>();
    let node = world
        .eventually("the claim names a node", async || {
            let claim = claims.get("cache").await.unwrap();
            claim.metadata.annotations?.remove("volume.kubernetes.io/selected-node")
        })
        .await;
    assert_eq!(node, "n1");
    assert_eq!(world.node_of("cache").await, None, "its volume is not there yet");
    // Others do not wait with it.
    world.pod(&Shape::new("plain")).await;
    assert_eq!(world.bound("plain").await, "n1");
    let made = format!("{}-made", world.name());
    volume(&world, &made, json!({ "nodeAffinity": within("n1") })).await;
    complete(&world, "cache", &made).await;
    assert_eq!(world.bound("cache").await, "n1");
    replica.stop().await;
}

pub(crate) async fn a_volume_that_exists_is_kept_for_the_claim_of_a_pod(world: World) {
    world.node("n1", 0, json!({})).await;
    world.node("n2", 0, json!({ "kubernetes.io/hostname": "n2" })).await;
    class(&world, "kubernetes.io/no-provisioner").await;
    let there = format!("{}-there", world.name());
    volume(&world, &there, json!({ "nodeAffinity": within("n2") })).await;
    let replica = Replica::start(&world).await;
    storing(&world, "cache").await;
    let volumes: Api<PersistentVolume> = Api::all(world.client.clone());
    let kept_for = world
        .eventually("the volume is kept for the claim", async || {
            volumes.get(&there).await.unwrap().spec?.claim_ref
        })
        .await;
    let claim = world.api::<PersistentVolumeClaim>().get("cache").await.unwrap();
    assert_eq!(kept_for.uid, claim.metadata.uid);
    assert_eq!(world.node_of("cache").await, None, "its volume is not bound yet");
    complete(&world, "cache", &there).await;
    assert_eq!(world.bound("cache").await, "n2");
    replica.stop().await;
}
