//! Devices that pods claim.

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use crate::replica::Replica;
use crate::world::{Shape, World};

const DRIVER: &str = "gpu.example.com";

/// A class, and a node with so many devices of it.
async fn offer(world: &World, node: &str, devices: usize) {
    let classes: Api<DeviceClass> = Api::all(world.client.clone());
    if classes.get_opt(DRIVER).await.unwrap().is_none() {
        let expression = format!("device.driver == '{DRIVER}'");
        let class = json!({
            "metadata": { "name": DRIVER },
            "spec": { "selectors": [{ "cel": { "expression": expression } }] },
        });
        let class = serde_json::from_value(class).unwrap();
        classes.create(&PostParams::default(), &class).await.unwrap();
    }
    let slices: Api<ResourceSlice> = Api::all(world.client.clone());
    slices.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    let devices: Vec<Value> =
        (0..devices).map(|number| json!({ "name": format!("gpu-{number}") })).collect();
    let slice = json!({
        "metadata": { "name": format!("{node}-slice") },
        "spec": {
            "driver": DRIVER, "nodeName": node, "devices": devices,
            "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
        },
    });
    let slice = serde_json::from_value(slice).unwrap();
    slices.create(&PostParams::default(), &slice).await.unwrap();
}

async fn claiming(world: &World, name: &str) {
    let request = json!({ "name": "gpu", "exactly": { "deviceClassName": DRIVER } });
    let claim = json!({
        "metadata": { "name": name }, "spec": { "devices": { "requests": [request] } },
    });
    world.create::<ResourceClaim>(claim).await;
    let claims = json!([{ "name": "gpu", "resourceClaimName": name }]);
    world.pod(&Shape::new(name).spec("resourceClaims", claims)).await;
}

pub(crate) async fn claims_are_allocated_and_reserved_before_a_pod_is_bound(world: World) {
    world.node("n1", 0, json!({})).await;
    offer(&world, "n1", 2).await;
    let replica = Replica::start(&world).await;
    let mut given = Vec::new();
    for name in ["a", "b"] {
        claiming(&world, name).await;
        assert_eq!(world.bound(name).await, "n1");
        let pod = world.find(name).await.unwrap();
        let claim = world.api::<ResourceClaim>().get(name).await.unwrap();
        let status = claim.status.expect("it was bound without its devices");
        let users = status.reserved_for.unwrap_or_default();
        assert_eq!(users.first().map(|user| &user.uid), pod.metadata.uid.as_ref());
        let results = status.allocation.unwrap().devices.unwrap().results.unwrap();
        given.push(results[0].device.clone());
    }
    given.sort();
    assert_eq!(given, ["gpu-0", "gpu-1"]);
    claiming(&world, "c").await;
    let (reason, message) = world.unscheduled("c").await;
    assert_eq!(reason, "Unschedulable", "{message}");
    replica.stop().await;
}
