//! Controllers and virtual kubelets, on the embedded API server and on a real one.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::too_many_lines,
    reason = "tests tell one story each"
)]

mod common;

use std::time::Duration;

use berth_emulator::nodes::{Registration, register};
use berth_emulator::{Options, run};
use common::{Server, eventually, schedule_in_turns};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    Endpoints, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota,
    Service,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, EvictParams, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use serde_json::{Value, from_value, json};
use tokio::task::JoinSet;

/// Every story is told to both.
macro_rules! stories {
    ($($name:ident),* $(,)?) => {
        mod on_the_embedded_api {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::common::embedded().await).await;
            })*
        }

        mod on_a_real_api {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::common::real().await).await;
            })*
        }
    };
}

stories!(
    a_deployment_comes_up_rolls_over_and_goes,
    jobs_complete_and_fail_as_they_should,
    kubelets_admit_refuse_publish_and_remember,
    a_node_that_falls_silent_is_given_up_and_taken_back,
    sets_budgets_quotas_owners_and_namespaces_are_kept,
    claims_are_made_from_templates_and_given_back,
    volume_claims_are_provisioned_bound_and_released,
    services_get_endpoint_slices_of_their_pods,
    autoscalers_keep_replicas_in_bounds_and_say_why_no_more,
    controllers_and_kubelets_record_events,
);

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
async fn cluster(
    server: Option<Server>,
    nodes: &[Registration],
    options: Options,
) -> Option<(Server, JoinSet<()>)> {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    let server = server?;
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

async fn a_deployment_comes_up_rolls_over_and_goes(server: Option<Server>) {
    let nodes: Vec<Registration> = (0..3).map(|at| node(&format!("n{at}"))).collect();
    let Some((server, _tasks)) = cluster(server, &nodes, options()).await else { return };
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
    eventually("everything of the deployment", || async {
        let left = pods.list(&ListParams::default()).await.unwrap().items.len()
            + sets.list(&ListParams::default()).await.unwrap().items.len();
        if left == 0 { Ok(()) } else { Err(left.to_string()) }
    })
    .await;
}

async fn jobs_complete_and_fail_as_they_should(server: Option<Server>) {
    let Some((server, _tasks)) = cluster(server, &[node("n0"), node("n1")], options()).await else {
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

/// The definition of NodeResourceTopology, as far as these tests need it.
async fn define_topologies(client: &kube::Client) {
    let definition: CustomResourceDefinition = from_value(json!({
        "metadata": {
            "name": "noderesourcetopologies.topology.node.k8s.io",
            "annotations": { "api-approved.kubernetes.io": "unapproved, for tests" },
        },
        "spec": {
            "group": "topology.node.k8s.io", "scope": "Cluster",
            "names": { "kind": "NodeResourceTopology", "listKind": "NodeResourceTopologyList",
                       "plural": "noderesourcetopologies", "singular": "noderesourcetopology" },
            "versions": [{
                "name": "v1alpha2", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                } },
            }],
        },
    }))
    .unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &definition).await.unwrap();
    let topologies = topologies(client);
    eventually("the definition", || async {
        topologies.list(&ListParams::default()).await.map(|_| ()).map_err(|e| e.to_string())
    })
    .await;
}

fn topologies(client: &kube::Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("topology.node.k8s.io", "v1alpha2", "NodeResourceTopology");
    let resource = ApiResource::from_gvk_with_plural(&kind, "noderesourcetopologies");
    Api::all_with(client.clone(), &resource)
}

/// Two NUMA nodes with 8 CPUs and 2 GPUs each, and a kubelet that wants everything from one.
fn gpu_node(name: &str) -> Registration {
    let node: Node = from_value(json!({
        "metadata": { "name": name, "labels": {
            "berth.dev/numa-nodes": "2",
            "berth.dev/topology-manager-policy": "single-numa-node",
            "berth.dev/cpu-manager-policy": "static",
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        } },
        "status": {
            "capacity": { "cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "4" },
            "allocatable": { "cpu": "14", "memory": "60Gi", "nvidia.com/gpu": "4" },
        },
    }))
    .unwrap();
    Registration { node, topology: None }
}

fn gpu_pod(name: &str, gpus: u32) -> Pod {
    let limits = json!({ "cpu": "2", "memory": "1Gi", "nvidia.com/gpu": gpus.to_string() });
    from_value(json!({
        "metadata": { "name": name },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [
            { "name": "main", "image": "i", "resources": { "limits": limits } },
        ] },
    }))
    .unwrap()
}

/// Phase and reason, once they are as wanted.
async fn reaches(pods: &Api<Pod>, name: &str, wanted: (&str, Option<&str>)) -> Pod {
    eventually(name, || async {
        let pod = pods.get(name).await.map_err(|error| error.to_string())?;
        let status = pod.status.clone().unwrap_or_default();
        let is = (status.phase.as_deref().unwrap_or_default(), status.reason.as_deref());
        let ready = status
            .conditions
            .iter()
            .flatten()
            .any(|one| one.type_ == "Ready" && one.status == "True");
        let there = is == wanted && (wanted.0 != "Running" || ready);
        if there { Ok(pod) } else { Err(format!("{status:?}")) }
    })
    .await
}

async fn kubelets_admit_refuse_publish_and_remember(server: Option<Server>) {
    let options = options();
    let faults = options.kubelet.faults.clone();
    let Some((server, _tasks)) = cluster(server, &[], options).await else { return };
    let client = &server.client;
    define_topologies(client).await;
    register(client, &[gpu_node("g0")]).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.create(&PostParams::default(), &gpu_pod("two", 2)).await.unwrap();
    let two = reaches(&pods, "two", ("Running", None)).await;
    let status = two.status.clone().unwrap();
    assert!(status.pod_ip.is_some() && status.host_ip.is_some() && status.start_time.is_some());
    let given = &two.metadata.annotations.as_ref().unwrap()["berth.dev/virtual-devices"];
    let given: Value = serde_json::from_str(given).unwrap();
    let devices = &given["containers"][0]["devices"]["nvidia.com/gpu"];
    assert_eq!(devices.as_array().unwrap().len(), 2, "{given}");

    pods.create(&PostParams::default(), &gpu_pod("three", 3)).await.unwrap();
    let three = reaches(&pods, "three", ("Failed", Some("TopologyAffinityError"))).await;
    let words = "Pod was rejected: Resources cannot be allocated with Topology locality";
    assert_eq!(three.status.unwrap().message.as_deref(), Some(words));
    faults.reject_next("g0");
    pods.create(&PostParams::default(), &gpu_pod("unlucky", 1)).await.unwrap();
    reaches(&pods, "unlucky", ("Failed", Some("UnexpectedAdmissionError"))).await;

    let fingerprint = berth_topology::fingerprint::of([("default", "two")]);
    let topologies = topologies(client);
    eventually("what is published", || async {
        let published = topologies.get("g0").await.map_err(|error| error.to_string())?.data;
        let free: Vec<i64> = published["zones"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|zone| zone["resources"].as_array().unwrap())
            .filter(|one| one["name"] == "nvidia.com/gpu")
            .map(|one| one["available"].as_str().unwrap().parse().unwrap())
            .collect();
        let attributes = published["attributes"].as_array().unwrap();
        let said = attributes.iter().any(|one| one["value"] == fingerprint);
        let right = said && free.iter().sum::<i64>() == 2;
        if right { Ok(()) } else { Err(published.to_string()) }
    })
    .await;

    // A kubelet that was restarted knows what it gave: only the other NUMA node is left.
    faults.restart_kubelet("g0");
    pods.create(&PostParams::default(), &gpu_pod("more", 2)).await.unwrap();
    reaches(&pods, "more", ("Running", None)).await;
    pods.create(&PostParams::default(), &gpu_pod("late", 1)).await.unwrap();
    reaches(&pods, "late", ("Failed", Some("TopologyAffinityError"))).await;
    pods.delete("two", &DeleteParams::default()).await.unwrap();
    eventually("the pod that ends", || async {
        match pods.get_opt("two").await.unwrap() {
            None => Ok(()),
            Some(pod) => Err(format!("{:?}", pod.status)),
        }
    })
    .await;
    pods.create(&PostParams::default(), &gpu_pod("next", 2)).await.unwrap();
    reaches(&pods, "next", ("Running", None)).await;
}

async fn a_node_that_falls_silent_is_given_up_and_taken_back(server: Option<Server>) {
    let mut options = options();
    options.kubelet.lease_every = Duration::from_millis(500);
    options.controllers.node_grace = Duration::from_secs(3);
    let faults = options.kubelet.faults.clone();
    let Some((server, _tasks)) = cluster(server, &[gpu_node("g0")], options).await else { return };
    let client = &server.client;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let nodes: Api<Node> = Api::all(client.clone());
    let ready = async |wanted: &str, taints: usize| {
        eventually("the node", || async {
            let node = nodes.get("g0").await.unwrap();
            let conditions = node.status.clone().unwrap_or_default().conditions;
            let found = conditions.iter().flatten().find(|one| one.type_ == "Ready").cloned();
            let tainted = node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
            let is = found.as_ref().is_some_and(|one| one.status == wanted);
            let right = is && tainted.len() == taints;
            if right { Ok(()) } else { Err(format!("{found:?} {tainted:?}")) }
        })
        .await;
    };
    ready("True", 0).await;
    let mut impatient = gpu_pod("impatient", 1);
    impatient.spec.as_mut().unwrap().tolerations = Some(
        from_value(json!([{ "key": "node.kubernetes.io/unreachable", "operator": "Exists",
                            "effect": "NoExecute", "tolerationSeconds": 1 }]))
        .unwrap(),
    );
    pods.create(&PostParams::default(), &impatient).await.unwrap();
    pods.create(&PostParams::default(), &gpu_pod("patient", 1)).await.unwrap();
    reaches(&pods, "impatient", ("Running", None)).await;
    reaches(&pods, "patient", ("Running", None)).await;

    faults.stop("g0");
    ready("Unknown", 2).await;
    eventually("the pod that must go", || async {
        let pod = pods.get("impatient").await.unwrap();
        let status = pod.status.unwrap();
        let why = status.conditions.iter().flatten().find(|one| one.type_ == "DisruptionTarget");
        let why = why.and_then(|one| one.reason.clone());
        let right = pod.metadata.deletion_timestamp.is_some()
            && why.as_deref() == Some("DeletionByTaintManager");
        if right { Ok(()) } else { Err(format!("{why:?}")) }
    })
    .await;
    assert!(pods.get("patient").await.unwrap().metadata.deletion_timestamp.is_none());

    faults.start("g0");
    ready("True", 0).await;
    reaches(&pods, "patient", ("Running", None)).await;
    eventually("the pod that went", || async {
        match pods.get_opt("impatient").await.unwrap() {
            None => Ok(()),
            Some(pod) => Err(format!("{:?}", pod.status)),
        }
    })
    .await;

    nodes.delete("g0", &DeleteParams::default()).await.unwrap();
    eventually("the pod of a node that is gone", || async {
        match pods.get_opt("patient").await.unwrap() {
            None => Ok(()),
            Some(pod) => Err(format!("{:?}", pod.status)),
        }
    })
    .await;
}

async fn sets_budgets_quotas_owners_and_namespaces_are_kept(server: Option<Server>) {
    let nodes: Vec<Registration> = (0..3).map(|at| node(&format!("n{at}"))).collect();
    let Some((server, _tasks)) = cluster(server, &nodes, options()).await else { return };
    let client = &server.client;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let space = from_value(json!({ "metadata": { "name": "team" } })).unwrap();
    namespaces.create(&PostParams::default(), &space).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "team");
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "team");
    let quota = json!({ "metadata": { "name": "all" }, "spec": { "hard": { "pods": "20" } } });
    quotas.create(&PostParams::default(), &from_value(quota).unwrap()).await.unwrap();
    let used = async |wanted: &str| {
        eventually("the quota", || async {
            let used = quotas.get("all").await.unwrap().status.unwrap_or_default().used;
            let used = used.unwrap_or_default().remove("pods").map(|text| text.0);
            if used.as_deref() == Some(wanted) { Ok(()) } else { Err(format!("{used:?}")) }
        })
        .await;
    };
    used("0").await;

    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), "team");
    let set = json!({
        "metadata": { "name": "db" },
        "spec": {
            "replicas": 3, "serviceName": "db",
            "selector": { "matchLabels": { "app": "db" } },
            "template": template(json!({ "app": "db" }), json!({})),
        },
    });
    sets.create(&PostParams::default(), &from_value(set).unwrap()).await.unwrap();
    let daemons: Api<DaemonSet> = Api::namespaced(client.clone(), "team");
    let set = json!({
        "metadata": { "name": "agent" },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "template": template(json!({ "app": "agent" }), json!({})),
        },
    });
    daemons.create(&PostParams::default(), &from_value(set).unwrap()).await.unwrap();
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), "team");
    let budget = json!({
        "metadata": { "name": "db" },
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": "db" } } },
    });
    budgets.create(&PostParams::default(), &from_value(budget).unwrap()).await.unwrap();
    eventually("the sets", || async {
        let ordered = sets.get("db").await.unwrap().status.unwrap_or_default();
        let everywhere = daemons.get("agent").await.unwrap().status.unwrap_or_default();
        let budget = budgets.get("db").await.unwrap().status.unwrap_or_default();
        let right = ordered.ready_replicas == Some(3)
            && ordered.current_revision == ordered.update_revision
            && everywhere.number_ready == 3
            && (budget.current_healthy, budget.disruptions_allowed) == (Some(3), Some(1));
        if right { Ok(()) } else { Err(format!("{ordered:?} {everywhere:?} {budget:?}")) }
    })
    .await;
    used("6").await;

    // One eviction is allowed; the set makes the pod again, under the same name.
    let evicted = pods.get("db-1").await.unwrap().metadata.uid;
    pods.evict("db-1", &EvictParams::default()).await.unwrap();
    let second = pods.evict("db-2", &EvictParams::default()).await;
    assert!(matches!(&second, Err(kube::Error::Api(status)) if status.code == 429), "{second:?}");
    eventually("the pod that comes back", || async {
        let pod = pods.get_opt("db-1").await.unwrap();
        let back = pod.is_some_and(|pod| pod.metadata.uid != evicted);
        let budget = budgets.get("db").await.unwrap().status.unwrap_or_default();
        let right = back && budget.disruptions_allowed == Some(1);
        if right { Ok(()) } else { Err(format!("{budget:?}")) }
    })
    .await;
    let change = json!({ "spec": { "template": { "metadata": { "labels": { "v": "2" } } } } });
    let patch = Patch::Merge(&change);
    sets.patch("db", &PatchParams::default(), &patch).await.unwrap();
    daemons.patch("agent", &PatchParams::default(), &patch).await.unwrap();
    eventually("the renewed sets", || async {
        let listed = pods.list(&ListParams::default().labels("v=2")).await.unwrap().items;
        let ready = listed
            .iter()
            .filter(|pod| pod.status.as_ref().unwrap().phase.as_deref() == Some("Running"));
        let ready = ready.count();
        if ready == 6 { Ok(()) } else { Err(ready.to_string()) }
    })
    .await;

    // Owners take what they own with them, in the foreground before they go themselves.
    sets.delete("db", &DeleteParams::foreground()).await.unwrap();
    eventually("the owner", || async {
        let owner = sets.get_opt("db").await.unwrap();
        let owned = pods.list(&ListParams::default().labels("app=db")).await.unwrap().items;
        match owner {
            None => {
                assert!(owned.is_empty(), "the owner went before what it owns");
                Ok(())
            }
            Some(_) => Err(owned.len().to_string()),
        }
    })
    .await;
    used("3").await;
    namespaces.delete("team", &DeleteParams::default()).await.unwrap();
    eventually("the namespace", || async {
        match namespaces.get_opt("team").await.unwrap() {
            None => Ok(()),
            Some(left) => Err(format!("{:?}", left.status)),
        }
    })
    .await;
}

async fn claims_are_made_from_templates_and_given_back(server: Option<Server>) {
    let Some((server, _tasks)) = cluster(server, &[node("n0")], options()).await else { return };
    let client = &server.client;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), "default");
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), "default");
    let template = json!({
        "metadata": { "name": "one" },
        "spec": { "spec": { "devices": { "requests": [
            { "name": "gpu", "exactly": { "deviceClassName": "gpu" } },
        ] } } },
    });
    templates.create(&PostParams::default(), &from_value(template).unwrap()).await.unwrap();
    let pod = json!({
        "metadata": { "name": "p", "annotations": { "berth.dev/run-for": "1s" } },
        "spec": {
            "restartPolicy": "Never",
            "resourceClaims": [{ "name": "gpu", "resourceClaimTemplateName": "one" }],
            "containers": [{ "name": "c", "image": "i",
                             "resources": { "claims": [{ "name": "gpu" }] } }],
        },
    });
    pods.create(&PostParams::default(), &from_value(pod).unwrap()).await.unwrap();
    let made = eventually("the claim", || async {
        let pod = pods.get("p").await.unwrap();
        let made = pod.status.and_then(|status| status.resource_claim_statuses);
        let made = made.and_then(|made| made.into_iter().next()?.resource_claim_name);
        made.ok_or_else(|| "none yet".to_owned())
    })
    .await;
    let waiting = pods.get("p").await.unwrap();
    assert_ne!(waiting.status.unwrap().phase.as_deref(), Some("Running"), "it has no devices yet");

    let uid = waiting.metadata.uid.unwrap();
    let allocated = json!({ "status": {
        "allocation": { "devices": { "results": [
            { "request": "gpu", "driver": "gpu.example.com", "pool": "n0", "device": "gpu-0" },
        ] } },
        "reservedFor": [{ "resource": "pods", "name": "p", "uid": uid }],
    } });
    let patch = Patch::Merge(&allocated);
    claims.patch_status(&made, &PatchParams::default(), &patch).await.unwrap();
    reaches(&pods, "p", ("Succeeded", None)).await;
    eventually("the claim that is not needed any more", || async {
        match claims.get_opt(&made).await.unwrap() {
            None => Ok(()),
            Some(claim) => Err(format!("{:?}", claim.status)),
        }
    })
    .await;
}

fn deployment(name: &str, replicas: i32) -> Deployment {
    let mut template = template(json!({ "app": name }), json!({}));
    template["spec"]["containers"][0]["ports"] = json!([{ "name": "http", "containerPort": 8080 }]);
    let selector = json!({ "matchLabels": { "app": name } });
    from_value(json!({
        "metadata": { "name": name },
        "spec": { "replicas": replicas, "selector": selector, "template": template },
    }))
    .unwrap()
}

async fn volume_claims_are_provisioned_bound_and_released(server: Option<Server>) {
    let Some((server, _tasks)) = cluster(server, &[node("n0")], options()).await else { return };
    let client = &server.client;
    berth_emulator::controllers::volumes::register_classes(client).await.unwrap();
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), "default");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let mut template = template(json!({ "app": "db" }), json!({}));
    let mount = json!([{ "name": "data", "mountPath": "/data" }]);
    template["spec"]["containers"][0]["volumeMounts"] = mount;
    let set = from_value(json!({
        "metadata": { "name": "db" },
        "spec": {
            "replicas": 1, "serviceName": "db", "template": template,
            "selector": { "matchLabels": { "app": "db" } },
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": { "requests": { "storage": "10Gi" } },
                },
            }],
        },
    }));
    sets.create(&PostParams::default(), &set.unwrap()).await.unwrap();
    let phase = async |wanted: &str, class: &str| {
        eventually("the claim", || async {
            let claim = claims.get("data-db-0").await.map_err(|error| error.to_string())?;
            let found = claim.status.clone().unwrap_or_default().phase;
            let own = claim.spec.clone().unwrap_or_default().storage_class_name;
            let right = found.as_deref() == Some(wanted) && own.as_deref() == Some(class);
            if right { Ok(claim) } else { Err(format!("{claim:?}")) }
        })
        .await
    };
    // The default class waits for the scheduler, which selects a node.
    let waiting = phase("Pending", "standard").await;
    assert!(waiting.spec.unwrap().volume_name.is_none());
    let selected = json!({ "metadata": { "annotations": {
        "volume.kubernetes.io/selected-node": "n0",
    } } });
    let patch = Patch::Merge(&selected);
    claims.patch("data-db-0", &PatchParams::default(), &patch).await.unwrap();
    let bound = phase("Bound", "standard").await;
    let made = bound.spec.unwrap().volume_name.unwrap();
    assert_eq!(bound.status.unwrap().capacity.unwrap()["storage"].0, "10Gi");
    eventually("the volume", || async {
        let volume = volumes.get(&made).await.unwrap();
        let phase = volume.status.clone().unwrap_or_default().phase;
        if phase.as_deref() == Some("Bound") { Ok(()) } else { Err(format!("{volume:?}")) }
    })
    .await;
    reaches(&Api::namespaced(client.clone(), "default"), "db-0", ("Running", None)).await;

    // A volume that is there already is taken if it is large enough.
    for (name, size) in [("small", "1Gi"), ("large", "100Gi"), ("fitting", "6Gi")] {
        let volume = from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": size }, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "manual", "hostPath": { "path": "/data" },
            },
        }));
        volumes.create(&PostParams::default(), &volume.unwrap()).await.unwrap();
    }
    let claim = |name: &str, class: &str| {
        let claim = from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "5Gi" } },
            },
        }));
        claim.unwrap()
    };
    for name in ["small", "large", "fitting"] {
        eventually("the volume", || async {
            let volume = volumes.get(name).await.unwrap();
            let phase = volume.status.unwrap_or_default().phase;
            if phase.as_deref() == Some("Available") { Ok(()) } else { Err(format!("{phase:?}")) }
        })
        .await;
    }
    claims.create(&PostParams::default(), &claim("manual", "manual")).await.unwrap();
    claims.create(&PostParams::default(), &claim("now", "standard-immediate")).await.unwrap();
    let volume_of = async |name: &str| {
        eventually("the volume of a claim", || async {
            let claim = claims.get(name).await.unwrap();
            let phase = claim.status.clone().unwrap_or_default().phase;
            let volume = claim.spec.clone().unwrap_or_default().volume_name;
            let bound = phase.as_deref() == Some("Bound");
            volume.filter(|_| bound).ok_or_else(|| format!("{claim:?}"))
        })
        .await
    };
    assert_eq!(volume_of("manual").await, "fitting");
    let provisioned = volume_of("now").await;

    // The class says that its volumes go with their claims; the other is kept.
    for name in ["manual", "now"] {
        let change = json!({ "metadata": { "finalizers": null } });
        claims.patch(name, &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
        claims.delete(name, &DeleteParams::default()).await.unwrap();
    }
    eventually("the released volumes", || async {
        let kept = volumes.get("fitting").await.unwrap().status.unwrap_or_default().phase;
        let gone = volumes.get_opt(&provisioned).await.unwrap();
        let gone = gone.is_none_or(|volume| volume.metadata.deletion_timestamp.is_some());
        let right = gone && kept.as_deref() == Some("Released");
        if right { Ok(()) } else { Err(format!("{kept:?} {gone}")) }
    })
    .await;
}

async fn services_get_endpoint_slices_of_their_pods(server: Option<Server>) {
    let Some((server, _tasks)) = cluster(server, &[node("n0")], options()).await else { return };
    let client = &server.client;
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let endpoints: Api<Endpoints> = Api::namespaced(client.clone(), "default");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let service = from_value(json!({
        "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": "http" }] },
    }));
    services.create(&PostParams::default(), &service.unwrap()).await.unwrap();
    deployments.create(&PostParams::default(), &deployment("web", 3)).await.unwrap();
    let ready = async |wanted: usize| {
        eventually("the slices", || async {
            let of_web = ListParams::default().labels("kubernetes.io/service-name=web");
            let all = slices.list(&of_web).await.unwrap().items;
            let inside = all.iter().flat_map(|slice| slice.endpoints.iter().flatten());
            let ready = inside.filter(|one| one.conditions.as_ref().unwrap().ready == Some(true));
            let ready = ready.count();
            let ports = all.iter().flat_map(|slice| slice.ports.iter().flatten());
            let named = wanted == 0 || ports.map(|port| port.port).eq([Some(8080)]);
            let subsets = endpoints.get("web").await.map_err(|error| error.to_string())?.subsets;
            let addresses = subsets.iter().flatten().flat_map(|one| one.addresses.iter().flatten());
            let same = addresses.count() == wanted;
            let right = ready == wanted && named && same && all.len() == 1;
            if right { Ok(()) } else { Err(format!("{all:?} {subsets:?}")) }
        })
        .await;
    };
    ready(3).await;
    let scale = json!({ "spec": { "replicas": 1 } });
    deployments.patch_scale("web", &PatchParams::default(), &Patch::Merge(&scale)).await.unwrap();
    ready(1).await;
    deployments.delete("web", &DeleteParams::background()).await.unwrap();
    ready(0).await;
    services.delete("web", &DeleteParams::background()).await.unwrap();
    eventually("what is left of the service", || async {
        let of_web = ListParams::default().labels("kubernetes.io/service-name=web");
        let left = slices.list(&of_web).await.unwrap().items.len();
        let also = endpoints.get_opt("web").await.unwrap().is_some();
        if left == 0 && !also { Ok(()) } else { Err(format!("{left} {also}")) }
    })
    .await;
}

async fn autoscalers_keep_replicas_in_bounds_and_say_why_no_more(server: Option<Server>) {
    let Some((server, _tasks)) = cluster(server, &[node("n0")], options()).await else { return };
    let client = &server.client;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let scalers: Api<HorizontalPodAutoscaler> = Api::namespaced(client.clone(), "default");
    deployments.create(&PostParams::default(), &deployment("web", 1)).await.unwrap();
    let scaler = |name: &str, target: &str| {
        let scaler = from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "minReplicas": 3, "maxReplicas": 5,
                "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": target },
            },
        }));
        scaler.unwrap()
    };
    scalers.create(&PostParams::default(), &scaler("web", "web")).await.unwrap();
    scalers.create(&PostParams::default(), &scaler("lost", "lost")).await.unwrap();
    let condition = async |name: &str, kind: &str, reason: &str| {
        eventually("the condition", || async {
            let status = scalers.get(name).await.unwrap().status.unwrap_or_default();
            let found = status.conditions.clone().unwrap_or_default();
            let found = found.into_iter().find(|one| one.type_ == kind);
            let found = found.filter(|one| one.reason.as_deref() == Some(reason));
            found.ok_or_else(|| format!("{status:?}"))
        })
        .await
    };
    eventually("the replicas", || async {
        let now = deployments.get("web").await.unwrap().spec.unwrap().replicas;
        if now == Some(3) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    let active = condition("web", "ScalingActive", "FailedGetResourceMetric").await;
    assert_eq!(active.status, "False");
    assert!(active.message.unwrap().contains("measure no load"));
    let able = condition("lost", "AbleToScale", "FailedGetScale").await;
    assert!(able.message.unwrap().contains("\"lost\" not found"));
}

async fn controllers_and_kubelets_record_events(server: Option<Server>) {
    let Some((server, _tasks)) = cluster(server, &[node("n0")], options()).await else { return };
    let client = &server.client;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "default");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let quota = json!({ "metadata": { "name": "two" }, "spec": { "hard": { "pods": "2" } } });
    quotas.create(&PostParams::default(), &from_value(quota).unwrap()).await.unwrap();
    // A real API server learns of quotas by a watch.
    eventually("the quota", || async {
        let known = quotas.get("two").await.unwrap().status.unwrap_or_default().used;
        if known.is_some() { Ok(()) } else { Err("no status".to_owned()) }
    })
    .await;
    deployments.create(&PostParams::default(), &deployment("web", 3)).await.unwrap();
    let recorded = async |kind: &str, reason: &str, words: &str| {
        eventually(reason, || async {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            let found = all.iter().find(|event| {
                event.involved_object.kind.as_deref() == Some(kind)
                    && event.reason.as_deref() == Some(reason)
                    && event.message.as_deref().is_some_and(|text| text.contains(words))
            });
            let shown = |event: &Event| format!("{:?}: {:?}", event.reason, event.message);
            let all: Vec<String> = all.iter().map(shown).collect();
            found.cloned().ok_or_else(|| format!("{all:?}"))
        })
        .await
    };
    recorded("Deployment", "ScalingReplicaSet", "Scaled up replica set web-").await;
    recorded("ReplicaSet", "SuccessfulCreate", "Created pod: web-").await;
    let failed = recorded("ReplicaSet", "FailedCreate", "exceeded quota: two").await;
    assert_eq!(failed.type_.as_deref(), Some("Warning"));
    recorded("Pod", "Pulled", "Container image \"server:1\" already present").await;
    let started = recorded("Pod", "Started", "Started container main").await;
    assert_eq!(started.source.unwrap().host.as_deref(), Some("n0"));
    let running = started.involved_object.name.unwrap();
    let ready = reaches(&pods, &running, ("Running", None)).await;
    // A condition that has become true has no reason from before.
    let of_pod = eventually("the pod that is ready", || async {
        let pod = pods.get(&running).await.unwrap();
        let conditions = pod.status.unwrap_or_default().conditions.unwrap_or_default();
        let ready = conditions.into_iter().find(|one| one.type_ == "Ready");
        ready.filter(|ready| ready.status == "True").ok_or_else(|| "not ready".to_owned())
    })
    .await;
    assert_eq!((of_pod.reason, of_pod.message), (None, None), "{:?}", ready.metadata.name);
    pods.delete(&running, &DeleteParams::default()).await.unwrap();
    recorded("Pod", "Killing", "Stopping container main").await;
}
