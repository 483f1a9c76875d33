//! What is shown over HTTP.

use std::io::Write as _;
use std::process::{Command, Stdio};

use http::StatusCode;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::replica::Replica;
use crate::world::{Shape, World};

/// Lets a service account see what a role says.
async fn grant(world: &World, account: &str) {
    let name = format!("{}-{account}", world.name());
    let role = json!({
        "metadata": { "name": name },
        "rules": [{
            "apiGroups": ["berth.dev"],
            "resources": ["state", "queue", "nodes", "explanations"],
            "verbs": ["get"],
        }],
    });
    let binding = json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": world.name() }],
    });
    let made = PostParams::default();
    let roles: Api<ClusterRole> = Api::all(world.client.clone());
    roles.create(&made, &serde_json::from_value(role).unwrap()).await.unwrap();
    let bindings: Api<ClusterRoleBinding> = Api::all(world.client.clone());
    bindings.create(&made, &serde_json::from_value(binding).unwrap()).await.unwrap();
}

pub(crate) async fn the_view_needs_a_token_with_rights(world: World) {
    world.node("n1", 4, json!({})).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("large").gpus(5)).await;
    world.unscheduled("large").await;
    let testbed = world.testbed.lock().await;
    let may = testbed.token_of(world.name(), "may").await.unwrap();
    let may_not = testbed.token_of(world.name(), "may-not").await.unwrap();
    drop(testbed);
    grant(&world, "may").await;
    let (status, _) = replica.get("/api/v1/queue", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let (status, _) = replica.get("/api/v1/queue", Some("nonsense")).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let (status, said) = replica.get("/api/v1/queue", Some(&may_not)).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{said}");
    world
        .eventually("rights are known everywhere", async || {
            let (status, _) = replica.get("/api/v1/state", Some(&may)).await;
            (status == StatusCode::OK).then_some(())
        })
        .await;
    let explanation = format!("/api/v1/pods/{}/large/explanation", world.name());
    world.pod(&Shape::new("small").gpus(1)).await;
    world.bound("small").await;
    let on_node = async || {
        let (_, said) = replica.get("/api/v1/nodes", Some(&may)).await;
        (said["nodes"][0]["pods"][0]["place"]["pod"]["name"] == "small").then_some(())
    };
    world.eventually("who is on the node is told", on_node).await;
    let (_, said) = replica.get("/api/v1/queue", Some(&may)).await;
    assert_eq!(said["pods"][0]["position"], 1, "{said}");
    for path in ["/api/v1/queue", "/api/v1/nodes", &explanation] {
        let (status, said) = replica.get(path, Some(&may)).await;
        assert_eq!(status, StatusCode::OK, "{path}: {said}");
        let what = if path.ends_with("nodes") { "n1" } else { "large" };
        assert!(said.to_string().contains(what), "{path}: {said}");
    }
    let missing = format!("/api/v1/pods/{}/nobody/explanation", world.name());
    let (status, _) = replica.get(&missing, Some(&may)).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    replica.stop().await;
}

pub(crate) async fn who_does_not_lead_says_who_does(world: World) {
    let leader = Replica::start(&world).await;
    let leads = async || (leader.metric("berth_leader", "") > 0.0).then_some(());
    world.eventually("the first leads", leads).await;
    let follower = Replica::start(&world).await;
    let token = world.testbed.lock().await.token_of(world.name(), "may").await.unwrap();
    grant(&world, "may").await;
    world
        .eventually("the follower names the leader", async || {
            let (status, said) = follower.get("/api/v1/state", Some(&token)).await;
            let names = said["message"].as_str().is_some_and(|text| text.contains("ask replica_"));
            (status == StatusCode::SERVICE_UNAVAILABLE && names).then_some(())
        })
        .await;
    let (status, said) = follower.get("/readyz", None).await;
    assert_eq!(status, StatusCode::OK, "{said}");
    follower.stop().await;
    leader.stop().await;
}

pub(crate) async fn metrics_are_what_prometheus_reads(world: World) {
    world.node("n1", 4, json!({})).await;
    let replica = Replica::start(&world).await;
    world.pod(&Shape::new("a").gpus(1)).await;
    world.bound("a").await;
    world.pod(&Shape::new("b").gpus(9)).await;
    world.unscheduled("b").await;
    let (status, _) = replica.get("/metrics", None).await;
    assert_eq!(status, StatusCode::OK);
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(replica.get(path, None).await.0, StatusCode::OK, "{path}");
    }
    let text = replica.metrics();
    assert!(text.contains("berth_leader 1"), "{text}");
    assert!(replica.metric("berth_queue_pods", "parked") >= 1.0, "{text}");
    let checker = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    // Where there is no promtool, every line has to be a comment or a sample.
    let Ok(mut checker) = checker else {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok() && name.starts_with("berth_"), "{line}");
        }
        return replica.stop().await;
    };
    checker.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = checker.wait_with_output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    replica.stop().await;
}
