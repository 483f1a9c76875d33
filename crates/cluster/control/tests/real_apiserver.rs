//! What is installed, on a real kube-apiserver with RBAC on: definitions and manifests are accepted, and the
//! lease, certificates, reviews of tokens and the webhook work with the printed roles and no others.
//!
//! Runs where kube-apiserver and etcd are: `KUBEBUILDER_ASSETS`, or `/usr/local/kubebuilder/bin`.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a helper of a test fails the test"
)]

mod support;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue, header};
use berth_control::certificates::{Keeper, Managed, Source};
use berth_control::http::{Access, Attributes, Denial};
use berth_control::install::{
    AgentOptions, CERTIFICATES_SECRET, InstallOptions, NAME, WebhookMode, manifests,
};
use berth_control::lease::{Elector, Inherited, PodRef, Settings};
use berth_control::metrics::Metrics;
use berth_control::port::{Limits, Port};
use berth_control::webhook::{ContextFeed, Webhook, follow};
use berth_testbed::{Testbed, Which, real_assets};
use k8s_openapi::api::core::v1 as core;
use kube::Client;
use kube::api::Api;
use serde_json::{Value, json};
use support::{api_of, apply, create, until};

const NAMESPACE: &str = "berth-system";

#[tokio::test(flavor = "multi_thread")]
async fn a_real_api_server_takes_what_is_printed_and_what_is_printed_is_enough() {
    if real_assets().is_none() {
        eprintln!("skipped: no kube-apiserver and etcd; set KUBEBUILDER_ASSETS");
        return;
    }
    let testbed = Testbed::start(Which::Real).await.unwrap();
    let admin = testbed.admin().await.unwrap();
    let options = InstallOptions {
        webhook: WebhookMode::Enforce,
        priority_classes: true,
        agent: Some(AgentOptions {
            runtime_class: None,
            memory: true,
            offers: Some("{}".to_owned()),
            shares: true,
            mig: true,
        }),
        topology_definition: true,
        ..InstallOptions::default()
    };
    for object in manifests(&options) {
        if object["kind"].as_str().unwrap().ends_with("WebhookConfiguration") {
            continue; // Later, when somebody answers.
        }
        let applied = apply(&admin, &object).await;
        assert!(applied.is_ok(), "{} {}: {applied:?}", object["kind"], object["metadata"]["name"]);
    }
    check_definitions(&admin).await;
    let berth = testbed.client_as(NAMESPACE, NAME).await.unwrap();
    check_limits(&berth).await;
    check_lease(&berth).await;
    check_access(&testbed, &admin, &berth).await;
    check_webhook(&admin, &berth, &options).await;
}

fn ours(kind: &str, name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": { "name": name },
            "spec": spec })
}

async fn check_definitions(admin: &Client) {
    let pod = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let good = [
        ours(
            "Team",
            "search",
            json!({ "parent": "ml", "namespaces": ["search"], "weight": "1.5",
            "shares": [{ "resource": "gpus", "guaranteed": 4, "borrowLimit": "2.5" },
                       { "resource": "gpus", "model": "NVIDIA-H100", "guaranteed": "1" }] }),
        ),
        ours("Headroom", "warm", json!({ "count": 2, "class": "interactive", "template": pod })),
        ours("Pool", "spot", json!({ "classes": ["batch"], "only": true, "capacityType": "spot" })),
        ours(
            "Accelerator",
            "mi300",
            json!({ "resource": "amd.com/gpu", "memory": "192G",
                                             "compute": "100%" }),
        ),
    ];
    for object in &good {
        until("the definition is served", async || apply(admin, object).await.ok()).await;
    }
    let team = |spec: Value| ours("Team", "wrong", spec);
    let bad = [
        (team(json!({ "parent": "wrong" })), "a team cannot be its own parent"),
        (
            team(json!({ "shares": [{ "resource": "cpu", "model": "x" }] })),
            "model is for gpus only",
        ),
        (team(json!({ "shares": [{ "resource": "tpus" }] })), "Unsupported value"),
        (team(json!({ "shares": [{ "resource": "cpu", "guaranteed": "-1" }] })), "should match"),
        (team(json!({ "weigth": 1 })), "weigth"),
        (ours("Pool", "p", json!({ "only": true })), "only requires classes"),
        (ours("Accelerator", "a", json!({ "resource": "a.b/c" })), "exactly one of memory"),
        (ours("Headroom", "h", json!({ "count": -1, "class": "batch", "template": pod })), "count"),
    ];
    for (object, said) in &bad {
        let error = apply(admin, object).await.expect_err(said).to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}

/// What it may not do.
async fn check_limits(berth: &Client) {
    let forbidden = |answer: Result<(), kube::Error>, what: &str| match answer {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "{what}: {status}"),
        other => panic!("{what}: {other:?}"),
    };
    let secrets: Api<core::Secret> = Api::namespaced(berth.clone(), NAMESPACE);
    forbidden(secrets.list(&Default::default()).await.map(drop), "list secrets");
    forbidden(secrets.get("other").await.map(drop), "get another secret");
    let pod = json!({ "apiVersion": "v1", "kind": "Pod",
                      "metadata": { "name": "p", "namespace": "default" },
                      "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    forbidden(create(berth, &pod).await.map(drop), "create pods");
    let nodes: Api<core::Node> = Api::all(berth.clone());
    forbidden(nodes.delete("n", &Default::default()).await.map(drop), "delete nodes");
    let teams = ours("Team", "mine", json!({}));
    forbidden(create(berth, &teams).await.map(drop), "create teams");
    // And some of what it may.
    assert!(nodes.list(&Default::default()).await.is_ok());
}

async fn check_lease(berth: &Client) {
    let elector = |me: &str| Elector::new(berth.clone(), Settings::default(), me).unwrap();
    let pod = PodRef { namespace: "n".into(), name: "p".into(), uid: "u".into() };
    let first = elector("first").acquire().await;
    assert_eq!(first.inherited, Inherited::NoLease);
    first.announce(vec![pod.clone()]).await.unwrap();
    let second = tokio::spawn({
        let second = elector("second");
        async move { second.acquire().await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let released = Instant::now();
    first.release().await;
    let second = second.await.unwrap();
    // By its watch it knows at once; by looking now and then it would take two seconds.
    assert!(released.elapsed() < Duration::from_millis(1_500), "{:?}", released.elapsed());
    assert_eq!(second.inherited, Inherited::Pods(vec![pod]));
    assert!(first.announce(vec![]).await.is_err());
    second.release().await;
}

async fn check_access(testbed: &Testbed, admin: &Client, berth: &Client) {
    let bind = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "viewer" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                     "name": "berth-viewer" },
        "subjects": [{ "kind": "ServiceAccount", "name": "viewer", "namespace": "default" }],
    });
    create(admin, &bind).await.unwrap();
    let access = Access::new(berth.clone());
    let headers = |token: &str| {
        let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        HeaderMap::from_iter([(header::AUTHORIZATION, value)])
    };
    let state = || Attributes::resource("state", None, None);
    let viewer = headers(&testbed.token_of("default", "viewer").await.unwrap());
    until("the role is known", async || access.check(&viewer, state()).await.ok()).await;
    let stranger = headers(&testbed.token_of("default", "stranger").await.unwrap());
    let denied = access.check(&stranger, state()).await;
    assert!(matches!(denied, Err(Denial::Forbidden(_))), "{denied:?}");
    let denied = access.check(&headers("nonsense"), state()).await;
    assert!(matches!(denied, Err(Denial::Unauthorized(_))), "{denied:?}");
    // Every user may get paths under /api/: asking about paths would let everybody in.
    assert_eq!(access.check(&stranger, Attributes::path("/api/v1/state")).await, Ok(()));
}

async fn check_webhook(admin: &Client, berth: &Client, options: &InstallOptions) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for mut object in manifests(options) {
        if object["kind"].as_str().unwrap().ends_with("WebhookConfiguration") {
            // First as printed, then pointed at this process.
            apply(admin, &object).await.unwrap();
            let client = object["webhooks"][0]["clientConfig"].take();
            let path = client["service"]["path"].as_str().unwrap();
            object["webhooks"][0]["clientConfig"] =
                json!({ "url": format!("https://127.0.0.1:{port}{path}") });
            object["webhooks"][0]["failurePolicy"] = json!("Fail");
            api_of(admin, &object).delete(NAME, &Default::default()).await.unwrap();
            apply(admin, &object).await.unwrap();
        }
    }
    let settings = serde_json::from_value(json!({
        "mode": "enforce", "contract": { "severity": { "BERTH-206": "error" } },
        "mutations": { "schedulerName": "berth", "copyLabels": ["team"], "toleration": true,
                       "priorityClasses": { "batch": "berth-batch" } },
    }));
    let feed = ContextFeed::default();
    let webhook = Webhook::new(settings.unwrap(), feed.clone(), Metrics::new()).unwrap();
    let (known, all_known) = tokio::sync::oneshot::channel();
    tokio::spawn(follow(berth.clone(), feed, || known.send(()).unwrap()));
    all_known.await.unwrap();
    let keeper = Keeper::start(Source::Managed(Managed {
        client: berth.clone(),
        namespace: NAMESPACE.to_owned(),
        secret: CERTIFICATES_SECRET.to_owned(),
        names: vec!["127.0.0.1".to_owned()],
        configurations: vec![NAME.to_owned()],
        wall: Arc::new(jiff::Timestamp::now),
    }))
    .await;
    let port = Port { name: "https", limits: Limits::TLS, metrics: Metrics::new() };
    tokio::spawn(port.serve_tls(listener, keeper.tls(), webhook.router(), std::future::pending()));
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace",
                            "metadata": { "name": "search", "labels": { "team": "search" } } });
    create(admin, &namespace).await.unwrap();
    let pod = |name: &str, selector: Value| {
        let gpu = json!({ "limits": { "nvidia.com/gpu": "1" } });
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "search",
                          "labels": { "berth.dev/class": "batch" } },
            "spec": { "activeDeadlineSeconds": 60, "restartPolicy": "Never", "nodeSelector": selector,
                      "containers": [{ "name": "c", "image": "llm:1.2", "resources": gpu }] },
        })
    };
    let pinned = json!({ "kubernetes.io/hostname": "n1" });
    let denied = create(admin, &pod("bad", pinned)).await.unwrap_err().to_string();
    for said in ["contract.berth.dev", "[BERTH-206] spec.nodeSelector", "Fix: "] {
        assert!(denied.contains(said), "{said}: {denied}");
    }
    let mut number = 0;
    let made = until("the namespace is known", async || {
        number += 1;
        let made = create(admin, &pod(&format!("good-{number}"), json!({}))).await;
        let made = made.unwrap();
        (made["metadata"]["labels"]["team"] == "search").then_some(made)
    })
    .await;
    let spec = &made["spec"];
    assert_eq!((&spec["schedulerName"], &spec["priority"]), (&json!("berth"), &json!(1_000)));
    assert_eq!(spec["priorityClassName"], "berth-batch");
    assert_eq!(spec["preemptionPolicy"], "Never");
    let tolerations = spec["tolerations"].to_string();
    assert!(tolerations.contains("nvidia.com/gpu"), "{tolerations}");
}
