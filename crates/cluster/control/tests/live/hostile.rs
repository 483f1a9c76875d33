//! Objects that are wrong, or far too large.

use std::sync::atomic::Ordering;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::replica::Replica;
use crate::world::{Shape, World, condition};

pub(crate) async fn what_cannot_be_read_is_said_and_the_rest_goes_on(world: World) {
    world.node("good", 4, json!({})).await;
    // Nonsense that the API does not mind.
    world.node("bad", 4, json!({ "berth.dev/numa-nodes": "many" })).await;
    world.pod(&Shape::new("nonsense").gpus(1).label("berth.dev/gang-size", "3")).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("fine").gpus(4)).await;
    world.bound("fine").await;
    let (reason, message) = world.unscheduled("nonsense").await;
    assert_eq!(reason, "InvalidRequest");
    assert!(message.starts_with("metadata.labels[berth.dev/gang-size]: "), "{message}");
    assert_eq!(world.node_of("nonsense").await, None);
    // A pod that is put right is scheduled.
    let right = json!({ "metadata": { "labels": { "berth.dev/gang-size": null } } });
    let patch = PatchParams::default();
    world.api::<Pod>().patch("nonsense", &patch, &Patch::Merge(&right)).await.unwrap();
    world.bound("nonsense").await;
    replica.stop().await;
}

/// The annotations of an object may have 256 KiB in all. This is 14 bytes less.
fn full() -> String {
    "x".repeat((256 << 10) - 14 - "example.com/fat".len())
}

/// A Lease that was given back, with a list of pods whose bindings may be in flight.
async fn inherit(world: &World, binding: Value, time: &str) {
    let fields = json!({ "f:metadata": { "f:labels": {} } });
    let written = json!({
        "manager": "another", "operation": "Update", "apiVersion": "coordination.k8s.io/v1",
        "time": time, "fieldsType": "FieldsV1", "fieldsV1": fields,
    });
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "berth", "managedFields": [written],
                      "annotations": { "berth.dev/binding": binding.to_string() } },
        "spec": { "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": time },
    });
    let path = "/apis/coordination.k8s.io/v1/namespaces/berth-system/leases";
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request.body(lease.to_string().into_bytes()).unwrap();
    // Not typed: the times of a hostile Lease cannot be read.
    let made: Value = world.client.request(request).await.unwrap();
    assert_eq!(made.pointer("/spec/renewTime"), Some(&json!(time)));
}

async fn inherit_pod(world: &World, pod: &Pod) {
    let meta = &pod.metadata;
    let (uid, name) = (meta.uid.clone().unwrap(), meta.name.clone().unwrap());
    let binding = json!({ world.name(): { uid: name } });
    inherit(world, binding, "2026-01-01T00:00:00.000000Z").await;
}

pub(crate) async fn a_pod_that_cannot_grow_does_not_stop_a_new_leader(world: World) {
    world.node("n1", 4, json!({})).await;
    let shape = Shape::new("fat").gpus(1).annotation("example.com/fat", &full());
    let fat = world.pod(&shape).await;
    inherit_pod(&world, &fat).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("fine").gpus(1)).await;
    world.bound("fine").await;
    // It was fenced like any other, and so is scheduled like any other.
    world.bound("fat").await;
    let fenced = condition(&world.find("fat").await.unwrap(), "berth.dev/Fenced");
    assert!(
        fenced.is_some_and(|(status, reason, _)| status == "True" && reason == "LeaderChanged")
    );
    replica.stop().await;
}

pub(crate) async fn a_pod_that_cannot_be_fenced_waits_alone(world: World) {
    world.node("n1", 4, json!({})).await;
    let stuck = world.pod(&Shape::new("stuck").gpus(1)).await;
    inherit_pod(&world, &stuck).await;
    let is_fence = |request: &http::Request<kube::client::Body>| {
        request.method() == http::Method::PATCH && request.uri().path().ends_with("/stuck/status")
    };
    let (refusing, count) = world.with_refusal(is_fence, "a policy of the cluster refuses it");
    let replica = Replica::start(&refusing).await;
    world.pod(&Shape::new("fine").gpus(1)).await;
    world.bound("fine").await;
    let note = world
        .eventually("an event says so", async || {
            let events = world.events("stuck").await;
            events.into_iter().find(|(reason, _)| reason == "FencingFailed").map(|(_, note)| note)
        })
        .await;
    assert!(note.contains("a policy of the cluster refuses it"), "{note}");
    assert_eq!(replica.metric("berth_unfenced_pods", "") as u64, 1);
    let (status, text) = replica.readiness().await;
    assert_eq!(status, http::StatusCode::OK);
    assert!(
        text.contains(&format!("fencing failed: {}/stuck (see Events)", world.name())),
        "{text}"
    );
    assert_eq!(world.node_of("stuck").await, None);
    // The next leader has to look after it as well.
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "berth-system");
    let lease = leases.get("berth").await.unwrap();
    let uid = stuck.metadata.uid.unwrap();
    assert!(lease.metadata.annotations.unwrap()["berth.dev/binding"].contains(&uid));
    let attempts = count.load(Ordering::Relaxed);
    assert!((1..10).contains(&attempts), "{attempts} attempts");
    replica.stop().await;
    // One that may write it fences it, and it is scheduled.
    let replica = Replica::start(&world).await;
    world.bound("stuck").await;
    replica.stop().await;
}

pub(crate) async fn a_lease_that_another_client_wrote_is_survived(world: World) {
    world.node("n1", 4, json!({})).await;
    world.pod(&Shape::new("fine").gpus(1)).await;
    let bogus = json!({ "../../nodes": { "u": "../n1?force=true" } });
    // The embedded API refuses this time, the real one takes it.
    let is_real = world.testbed.lock().await.describe().contains("kube-apiserver");
    let time = if is_real { "9999-12-31T23:59:59.999999Z" } else { "9999-12-30T00:00:00.000000Z" };
    inherit(&world, bogus, time).await;
    let replica = Replica::start(&world).await;
    world.bound("fine").await;
    replica.stop().await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/berth-system/leases/berth";
    let request = http::Request::delete(path).body(Vec::new()).unwrap();
    world.client.request_text(request).await.unwrap();
}

pub(crate) async fn a_bound_pod_counts_whatever_its_annotations_say(world: World) {
    const MEMORY: &str = "berth.dev/gpu-memory";
    world.node("n1", 8, json!({})).await;
    world.node("n2", 8, json!({})).await;
    let holder = Shape::new("holder").gpus(8).scheduler("another").annotation(MEMORY, "-1");
    world.pod(&holder.spec("nodeName", json!("n1"))).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("ours").gpus(8)).await;
    assert_eq!(world.bound("ours").await, "n2");
    // Rewritten by its owner once it is bound, which a policy denies where policies are enforced.
    let patch = json!({ "metadata": { "annotations": { MEMORY: "-1" } } });
    let parameters = PatchParams::default();
    let patched = world.api::<Pod>().patch("ours", &parameters, &Patch::Merge(&patch)).await;
    let with_event: &[&str] = if world.testbed.lock().await.describe().contains("kube-apiserver") {
        let denied = patched.unwrap_err().to_string();
        assert!(denied.contains("berth-bound-pods"), "{denied}");
        &["holder"]
    } else {
        patched.unwrap();
        &["holder", "ours"]
    };
    for name in with_event {
        world
            .eventually("an event says what is ignored", async || {
                let events = world.events(name).await;
                events.iter().any(|(reason, _)| reason == "InvalidRequest").then_some(())
            })
            .await;
    }
    world.pod(&Shape::new("more").gpus(1)).await;
    world.unscheduled("more").await;
    replica.stop().await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("again").gpus(1)).await;
    world.unscheduled("again").await;
    replica.stop().await;
    for name in ["more", "again"] {
        assert_eq!(world.node_of(name).await, None, "{name} was bound to a full node");
    }
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

/// A pod whose object is just small enough for etcd to write it once more.
async fn largest(world: &World, name: &str) {
    let container = json!([{
        "name": "main", "image": "registry.example/main:1",
        "env": [{ "name": "LONG", "value": "x".repeat(1_400_000) }],
        "resources": { "requests": { "cpu": "1m" } },
    }]);
    world.pod(&Shape::new(name).spec("containers", container)).await;
    let fill = async |bytes: usize| {
        let annotations = json!({ "example.com/filler": "x".repeat(bytes) });
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        world.api::<Pod>().patch(name, &PatchParams::default(), &patch).await.is_ok()
    };
    let (mut fits, mut too_large) = (0, 250_000);
    while too_large - fits > 1 {
        let bytes = (fits + too_large) / 2;
        if fill(bytes).await { fits = bytes } else { too_large = bytes }
    }
    // A deletion has to fit still.
    assert!(fill(fits - 100).await);
}

pub(crate) async fn a_pod_that_etcd_cannot_write_again_waits_alone(world: World) {
    let is_real = world.testbed.lock().await.describe().contains("kube-apiserver");
    if !is_real {
        // The embedded API has no such limit.
        return;
    }
    world.node("n1", 4, json!({})).await;
    largest(&world, "large").await;
    // There is no Lease: every pending pod has to be fenced.
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("fine").gpus(1)).await;
    world.bound("fine").await;
    let note = world
        .eventually("an event says so", async || {
            let events = world.events("large").await;
            events.into_iter().find(|(reason, _)| reason == "FencingFailed").map(|(_, note)| note)
        })
        .await;
    assert!(note.contains("etcdserver: request is too large"), "{note}");
    replica.stop().await;
}
