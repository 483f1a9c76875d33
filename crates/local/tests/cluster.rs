//! Controllers and virtual kubelets on a real API server.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "tests")]

mod common;

use std::time::Duration;

use berth_local::nodes::{Registration, register};
use berth_local::{Options, run};
use common::{Server, eventually, schedule_in_turns, server};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, from_value, json};
use tokio::task::JoinSet;

fn options() -> Options {
    let mut options = Options::default();
    options.kubelet.start_after = Duration::from_millis(50);
    options.kubelet.stop_after = Duration::from_millis(100);
    options.kubelet.job_run_for = Duration::from_millis(500);
    options.controllers.job_backoff = Duration::from_millis(200);
    options
}

fn node(name: &str) -> Registration {
    let node: Node = from_value(json!({
        "metadata": { "name": name },
        "status": { "capacity": { "cpu": "16", "memory": "64Gi" } },
    }))
    .unwrap();
    Registration { node, topology: None }
}

/// A cluster with these nodes, and those who run it.
async fn cluster(nodes: &[Registration], options: Options) -> Option<(Server, JoinSet<()>)> {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    let server = server().await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(run(server.client.clone(), options, std::future::pending()));
    tasks.spawn(schedule_in_turns(server.client.clone()));
    register(&server.client, nodes).await.unwrap();
    Some((server, tasks))
}

fn template(labels: Value, annotations: Value) -> Value {
    json!({
        "metadata": { "labels": labels, "annotations": annotations },
        "spec": {
            "containers": [{
                "name": "main", "image": "server:1",
                "resources": { "requests": { "cpu": "100m" } },
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_comes_up_rolls_over_and_goes() {
    let nodes: Vec<Registration> = (0..3).map(|at| node(&format!("n{at}"))).collect();
    let Some((server, _tasks)) = cluster(&nodes, options()).await else { return };
    let client = &server.client;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), "default");
    let deployment = from_value(json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 6,
            "selector": { "matchLabels": { "app": "web" } },
            "template": template(json!({ "app": "web" }), json!({})),
        },
    }));
    deployments.create(&PostParams::default(), &deployment.unwrap()).await.unwrap();
    let ready = async |image: &str| {
        eventually("the deployment", || async {
            let now = deployments.get("web").await.unwrap();
            let status = now.status.clone().unwrap_or_default();
            let conditions = status.conditions.clone().unwrap_or_default();
            let said = |kind: &str, status: &str| {
                conditions.iter().any(|one| one.type_ == kind && one.status == status)
            };
            let done = status.observed_generation == now.metadata.generation
                && status.updated_replicas == Some(6)
                && status.replicas == Some(6)
                && status.available_replicas == Some(6)
                && said("Available", "True")
                && conditions
                    .iter()
                    .any(|one| one.reason.as_deref() == Some("NewReplicaSetAvailable"));
            if done { Ok(()) } else { Err(format!("{status:?}")) }
        })
        .await;
        eventually("the pods", || async {
            let listed = pods.list(&ListParams::default()).await.unwrap().items;
            let right = listed.iter().filter(|pod| {
                pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some(image)
                    && pod.status.as_ref().unwrap().phase.as_deref() == Some("Running")
            });
            let right = right.count();
            let said = format!("{right} of {}", listed.len());
            if right == 6 && listed.len() == 6 { Ok(()) } else { Err(said) }
        })
        .await;
    };
    ready("server:1").await;

    let change = json!({ "spec": { "template": { "spec": { "containers": [
        { "name": "main", "image": "server:2" },
    ] } } } });
    let patch = Patch::Strategic(&change);
    deployments.patch("web", &PatchParams::default(), &patch).await.unwrap();
    ready("server:2").await;
    let now = deployments.get("web").await.unwrap();
    let revision = &now.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"];
    assert_eq!(revision, "2");
    let listed = sets.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(listed.len(), 2, "the old set is kept to go back to");

    let scale = json!({ "spec": { "replicas": 2 } });
    deployments.patch_scale("web", &PatchParams::default(), &Patch::Merge(&scale)).await.unwrap();
    eventually("the smaller deployment", || async {
        let count = pods.list(&ListParams::default()).await.unwrap().items.len();
        if count == 2 { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    deployments.delete("web", &DeleteParams::background()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_complete_and_fail_as_they_should() {
    let Some((server, _tasks)) = cluster(&[node("n0"), node("n1")], options()).await else {
        return;
    };
    let jobs: Api<Job> = Api::namespaced(server.client.clone(), "default");
    let job = |name: &str, spec: Value, annotations: Value| -> Job {
        let mut template = template(json!({}), annotations);
        template["spec"]["restartPolicy"] = json!("Never");
        let mut spec = spec;
        spec["template"] = template;
        from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    };
    let indexed = json!({ "parallelism": 2, "completions": 5, "completionMode": "Indexed" });
    let failing = json!({ "backoffLimit": 1, "completions": 3, "parallelism": 3 });
    for job in [
        job("plain", json!({ "completions": 3, "parallelism": 2 }), json!({})),
        job("indexed", indexed, json!({ "berth.dev/run-for": "200ms" })),
        job("failing", failing, json!({ "berth.dev/exit-code": "3" })),
        job("late", json!({ "activeDeadlineSeconds": 2 }), json!({ "berth.dev/run-for": "1h" })),
        job("short", json!({ "ttlSecondsAfterFinished": 1 }), json!({})),
    ] {
        jobs.create(&PostParams::default(), &job).await.unwrap();
    }
    let ended = async |name: &str| {
        eventually(name, || async {
            let job = jobs.get(name).await.unwrap();
            let status = job.status.unwrap_or_default();
            let conditions = status.conditions.clone().unwrap_or_default();
            let end = conditions.iter().find(|one| {
                matches!(one.type_.as_str(), "Complete" | "Failed") && one.status == "True"
            });
            match end {
                Some(end) => Ok((end.type_.clone(), end.reason.clone().unwrap(), status.clone())),
                None => Err(format!("{status:?}")),
            }
        })
        .await
    };
    let (end, _, status) = ended("plain").await;
    assert_eq!((end.as_str(), status.succeeded, status.active), ("Complete", Some(3), None));
    assert!(status.completion_time.is_some());
    let (end, _, status) = ended("indexed").await;
    assert_eq!((end.as_str(), status.completed_indexes.as_deref()), ("Complete", Some("0-4")));
    let (end, reason, status) = ended("failing").await;
    assert_eq!((end.as_str(), reason.as_str()), ("Failed", "BackoffLimitExceeded"));
    assert!(status.failed >= Some(2), "{status:?}");
    let (end, reason, _) = ended("late").await;
    assert_eq!((end.as_str(), reason.as_str()), ("Failed", "DeadlineExceeded"));
    eventually("the job that cleans up", || async {
        match jobs.get_opt("short").await.unwrap() {
            None => Ok(()),
            Some(job) => Err(format!("{:?}", job.status)),
        }
    })
    .await;
}
