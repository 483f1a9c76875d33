//! A Kubernetes client that nobody here wrote, against the embedded API in the same process.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use berth_apiserver::{ApiServer, Options};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Binding, Node, Pod};
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

fn client() -> Client {
    let server = ApiServer::new(Options::default()).unwrap();
    Client::new(server.service(), "default")
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(name: &str) -> Pod {
    object(json!({
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }))
}

fn node(name: &str) -> Node {
    object(json!({"metadata": {"name": name}, "status": {"capacity": {"cpu": "4"}}}))
}

fn binding(pod: &Pod, node: &str) -> Binding {
    object(json!({
        "metadata": {
            "name": pod.metadata.name,
            "uid": pod.metadata.uid,
            "resourceVersion": pod.metadata.resource_version,
            "annotations": {"why": "test"},
        },
        "target": {"kind": "Node", "name": node},
    }))
}

#[tokio::test]
async fn a_pod_is_created_bound_and_deleted_while_watched() {
    let client = client();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let nodes: Api<Node> = Api::all(client);
    nodes.create(&PostParams::default(), &node("n1")).await.unwrap();

    let mut events =
        pods.watch(&WatchParams::default().fields("spec.nodeName="), "0").await.unwrap().boxed();
    let created = pods.create(&PostParams::default(), &pod("p")).await.unwrap();
    assert!(matches!(events.try_next().await.unwrap().unwrap(), WatchEvent::Added(_)));

    let params = PostParams::default();
    let first = binding(&created, "n1");
    let answer: Value = pods.create_subresource("binding", "p", &params, &first).await.unwrap();
    assert_eq!(answer["status"], "Success");
    // It no longer is a pod without a node.
    assert!(matches!(events.try_next().await.unwrap().unwrap(), WatchEvent::Deleted(_)));

    let bound = pods.get("p").await.unwrap();
    assert_eq!(bound.spec.unwrap().node_name.as_deref(), Some("n1"));
    assert_eq!(bound.metadata.annotations.unwrap()["why"], "test");
    let scheduled = &bound.status.unwrap().conditions.unwrap()[0];
    assert_eq!((scheduled.type_.as_str(), scheduled.status.as_str()), ("PodScheduled", "True"));

    let again = pods.create_subresource::<_, Value>("binding", "p", &params, &first).await;
    let stale = again.unwrap_err();
    assert!(stale.to_string().contains("Precondition failed"), "{stale}");

    let grace = DeleteParams { grace_period_seconds: Some(30), ..DeleteParams::default() };
    let waits = pods.delete("p", &grace).await.unwrap().left().unwrap();
    assert!(waits.metadata.deletion_timestamp.is_some());
    assert_eq!(pods.list(&ListParams::default()).await.unwrap().items.len(), 1);
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(pods.list(&ListParams::default()).await.unwrap().items.len(), 0);
}
