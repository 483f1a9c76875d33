//! What a scenario has: an API, a namespace of its own, and words for nodes, pods and waiting.
//!
//! Owns how objects look that every scenario needs. Must not know any scenario.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use berth_control::install::{self, InstallOptions};
use berth_control::kubeconfig::{Access, connect};
use berth_testbed::{Testbed, Which};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod, ResourceQuota};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// So long something may take that should happen.
const SOON: Duration = Duration::from_secs(30);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(30);

/// The resource of whole GPUs.
pub(crate) const GPU: &str = "nvidia.com/gpu";

/// Everything a scenario has.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) testbed: Arc<Mutex<Testbed>>,
    name: Arc<str>,
    /// What the API refuses to the scheduler.
    refusal: Option<Refusal>,
}

fn read<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object of the test's own")
}

/// Requests that are answered with 422 instead of reaching the API.
#[derive(Clone)]
struct Refusal {
    of: fn(&http::Request<kube::client::Body>) -> bool,
    message: &'static str,
    count: Arc<AtomicUsize>,
}

fn refusing(client: Client, refusal: Refusal) -> Client {
    let answer = move |request: http::Request<kube::client::Body>| {
        let (client, refusal) = (client.clone(), refusal.clone());
        async move {
            if !(refusal.of)(&request) {
                return client.send(request).await;
            }
            refusal.count.fetch_add(1, Ordering::Relaxed);
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422,
                "reason": "Invalid", "message": refusal.message,
            });
            let body = kube::client::Body::from(status.to_string().into_bytes());
            Ok(http::Response::builder().status(422).body(body).unwrap())
        }
    };
    Client::new(tower::service_fn(answer), "default")
}

impl World {
    /// A world in which nothing is left of scenarios before.
    pub(crate) async fn prepare(testbed: Arc<Mutex<Testbed>>, scenario: &str) -> Self {
        let client = testbed.lock().await.admin().await.unwrap();
        let name = scenario.split("::").last().unwrap_or_default().replace('_', "-");
        let name = name.get(..name.len().min(60)).unwrap_or_default().trim_end_matches('-').into();
        let world = Self { client, testbed, name, refusal: None };
        world.clean().await;
        for namespace in ["berth-system", world.name()] {
            world.ensure_namespace(namespace).await;
        }
        world.install_access().await;
        world
    }

    async fn ensure_namespace(&self, name: &str) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        if namespaces.get_opt(name).await.unwrap().is_none() {
            let namespace = read(json!({ "metadata": { "name": name } }));
            namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        }
    }

    async fn clean(&self) {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let all = ListParams::default();
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        for namespace in namespaces.list(&all).await.unwrap() {
            let name = namespace.metadata.name.unwrap_or_default();
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &name);
            if !pods.list(&all.clone().limit(1)).await.unwrap().items.is_empty() {
                pods.delete_collection(&now, &all).await.unwrap();
            }
            let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &name);
            if !budgets.list(&all.clone().limit(1)).await.unwrap().items.is_empty() {
                budgets.delete_collection(&now, &all).await.unwrap();
            }
            let quotas: Api<ResourceQuota> = Api::namespaced(self.client.clone(), &name);
            if !quotas.list(&all.clone().limit(1)).await.unwrap().items.is_empty() {
                quotas.delete_collection(&now, &all).await.unwrap();
            }
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.delete_collection(&now, &all).await.unwrap();
        // A replica that was killed in the scenario before would be waited for.
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "berth-system");
        leases.delete_collection(&now, &all).await.unwrap();
    }

    /// The scenario's name, which its namespace has too.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The scheduler's account, roles and admission policies, as `berth manifests` prints them.
    async fn install_access(&self) {
        let options = InstallOptions::default();
        let testbed = self.testbed.lock().await;
        testbed.apply(install::access(&options)).await.unwrap();
        // The embedded API does not have these kinds.
        if testbed.which() == Which::Real {
            testbed.apply(install::policies(&options)).await.unwrap();
        }
    }

    /// Whom the scheduler is to the API: its service account, with the roles that are printed for it.
    pub(crate) async fn scheduler_client(&self) -> Client {
        let testbed = self.testbed.lock().await;
        let token = testbed.token_of("berth-system", install::NAME).await.unwrap();
        let kubeconfig = testbed.kubeconfig(&token, None).unwrap();
        let access = Access { kubeconfig: Some(kubeconfig), schedules: true, ..Access::default() };
        let client = connect(&access).await.unwrap().client;
        match &self.refusal {
            Some(refusal) => refusing(client, refusal.clone()),
            None => client,
        }
    }

    /// The same with an API that does not stream lists to the scheduler, and how often it was asked to.
    pub(crate) fn without_streamed_lists(&self) -> (Self, Arc<AtomicUsize>) {
        let streams = |request: &http::Request<kube::client::Body>| {
            request.uri().query().unwrap_or_default().contains("sendInitialEvents=true")
        };
        let message =
            "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
        self.with_refusal(streams, message)
    }

    /// The same with an API that refuses some requests of the scheduler, and how many it refused.
    pub(crate) fn with_refusal(
        &self,
        of: fn(&http::Request<kube::client::Body>) -> bool,
        message: &'static str,
    ) -> (Self, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let refusal = Refusal { of, message, count: count.clone() };
        (Self { refusal: Some(refusal), ..self.clone() }, count)
    }

    /// Objects of the scenario's namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Objects of a kind that is only known by name.
    pub(crate) fn dynamic(&self, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::all_with(self.client.clone(), &resource)
    }

    /// Makes an object of the scenario's namespace.
    pub(crate) async fn create<K>(&self, value: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + serde::Serialize
            + Debug,
    {
        self.api::<K>().create(&PostParams::default(), &read(value)).await.unwrap()
    }

    /// A node that is ready, with so many GPUs, 16 CPUs and 64 GiB for each.
    pub(crate) async fn node(&self, name: &str, gpus: u32, labels: Value) -> Node {
        let shown = json!({
            "cpu": (16 * gpus.max(1)).to_string(),
            "memory": format!("{}Gi", 64 * gpus.max(1)),
            "pods": "200",
            GPU: gpus.to_string(),
        });
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node: Node = read(json!({ "metadata": { "name": name, "labels": labels } }));
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = json!({ "status": {
            "capacity": shown, "allocatable": shown, "conditions": [ready],
        }});
        let patch = PatchParams::default();
        nodes.patch_status(name, &patch, &Patch::Strategic(&status)).await.unwrap();
        // A real API server lets no node begin without this taint, which a controller takes away.
        let clear = json!({ "spec": { "taints": null } });
        nodes.patch(name, &patch, &Patch::Merge(&clear)).await.unwrap()
    }

    /// Makes a pod as described.
    pub(crate) async fn pod(&self, shape: &Shape) -> Pod {
        self.create(shape.json()).await
    }

    /// The pod of a name, if there is one.
    pub(crate) async fn find(&self, name: &str) -> Option<Pod> {
        self.api::<Pod>().get_opt(name).await.unwrap()
    }

    /// The node of a pod, if it has one.
    pub(crate) async fn node_of(&self, name: &str) -> Option<String> {
        self.find(name).await?.spec?.node_name
    }

    /// Waits until a pod has a node.
    pub(crate) async fn bound(&self, name: &str) -> String {
        self.eventually(&format!("{name} has a node"), async || self.node_of(name).await).await
    }

    /// Waits until a pod's condition `PodScheduled` is false, and gives its reason and message.
    pub(crate) async fn unscheduled(&self, name: &str) -> (String, String) {
        self.eventually(&format!("{name} is told why it waits"), async || {
            let (status, reason, message) = condition(&self.find(name).await?, "PodScheduled")?;
            (status == "False" && !reason.is_empty()).then_some((reason, message))
        })
        .await
    }

    /// Events about an object, each with its reason and note.
    pub(crate) async fn events(&self, name: &str) -> Vec<(String, String)> {
        let events = self.api::<Event>().list(&ListParams::default()).await.unwrap();
        let about = events
            .items
            .into_iter()
            .filter(|event| event.involved_object.name.as_deref() == Some(name));
        about
            .map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default()))
            .collect()
    }

    /// Waits for something that should happen.
    pub(crate) async fn eventually<T>(
        &self,
        what: &str,
        mut look: impl AsyncFnMut() -> Option<T>,
    ) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(began.elapsed() < SOON, "{}: not within {SOON:?}: {what}", self.name);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Writes a pod's status as a kubelet would that runs it.
    pub(crate) async fn run(&self, name: &str) {
        let status = json!({ "status": {
            "phase": "Running",
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{ "type": "Ready", "status": "True" }],
            "containerStatuses": [{
                "name": "main", "containerID": "containerd://1", "image": "model:1", "imageID": "",
                "ready": true, "restartCount": 0,
            }],
        }});
        let patch = PatchParams::default();
        self.api::<Pod>().patch_status(name, &patch, &Patch::Strategic(&status)).await.unwrap();
    }

    /// Deletes a pod without waiting for anybody.
    pub(crate) async fn delete(&self, name: &str) {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.api::<Pod>().delete(name, &now).await.unwrap();
    }
}

/// A condition of a pod: status, reason and message.
pub(crate) fn condition(pod: &Pod, of: &str) -> Option<(String, String, String)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == of)?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Some((found.status.clone(), text(&found.reason), text(&found.message)))
}

/// A pod to be made: ours, with requests that are limits.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    name: String,
    gpus: u32,
    cpus: u32,
    scheduler: &'static str,
    labels: Value,
    annotations: Value,
    more: Value,
}

impl Shape {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            gpus: 0,
            cpus: 1,
            scheduler: "berth",
            labels: json!({}),
            annotations: json!({}),
            more: json!({}),
        }
    }

    pub(crate) fn gpus(mut self, gpus: u32) -> Self {
        self.gpus = gpus;
        self
    }

    pub(crate) fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    pub(crate) fn scheduler(mut self, scheduler: &'static str) -> Self {
        self.scheduler = scheduler;
        self
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.labels[key] = json!(value);
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations[key] = json!(value);
        self
    }

    /// A field of the spec.
    pub(crate) fn spec(mut self, key: &str, value: Value) -> Self {
        self.more[key] = value;
        self
    }

    fn json(&self) -> Value {
        let mut limits = json!({ "cpu": self.cpus.to_string(), "memory": "1Gi" });
        if self.gpus > 0 {
            limits[GPU] = json!(self.gpus.to_string());
        }
        let mut pod = json!({
            "metadata": {
                "name": self.name, "labels": self.labels, "annotations": self.annotations,
            },
            "spec": {
                "schedulerName": self.scheduler,
                // Nobody is there to wait for.
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "image": "registry.example/main:1",
                    "resources": { "limits": limits, "requests": limits },
                }],
            },
        });
        for (key, value) in self.more.as_object().into_iter().flatten() {
            pod["spec"][key] = value.clone();
        }
        pod
    }
}
