//! Mirrors of all kinds that controllers and kubelets read, each watched once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota,
    Service,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::runtime::watcher;

use crate::key::{controller, namespace};
use crate::mirror::{Kind, Mirror, by_name_only};

/// Namespace of node leases.
pub(crate) const LEASES_OF_NODES: &str = "kube-node-lease";

pub(crate) type Watch = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) struct Views {
    pub(crate) pods: Arc<Mirror<Pod>>,
    pub(crate) nodes: Arc<Mirror<Node>>,
    pub(crate) leases: Arc<Mirror<Lease>>,
    pub(crate) namespaces: Arc<Mirror<Namespace>>,
    pub(crate) deployments: Arc<Mirror<Deployment>>,
    pub(crate) replica_sets: Arc<Mirror<ReplicaSet>>,
    pub(crate) stateful_sets: Arc<Mirror<StatefulSet>>,
    pub(crate) daemon_sets: Arc<Mirror<DaemonSet>>,
    pub(crate) jobs: Arc<Mirror<Job>>,
    pub(crate) cron_jobs: Arc<Mirror<CronJob>>,
    pub(crate) budgets: Arc<Mirror<PodDisruptionBudget>>,
    pub(crate) quotas: Arc<Mirror<ResourceQuota>>,
    pub(crate) claims: Arc<Mirror<ResourceClaim>>,
    pub(crate) volume_claims: Arc<Mirror<PersistentVolumeClaim>>,
    pub(crate) volumes: Arc<Mirror<PersistentVolume>>,
    pub(crate) classes: Arc<Mirror<StorageClass>>,
    pub(crate) services: Arc<Mirror<Service>>,
    pub(crate) endpoint_slices: Arc<Mirror<EndpointSlice>>,
    pub(crate) endpoints: Arc<Mirror<Endpoints>>,
    pub(crate) autoscalers: Arc<Mirror<HorizontalPodAutoscaler>>,
    controllers_watch: AtomicBool,
    shared_watch: AtomicBool,
}

pub(crate) fn of_owner(uid: &str) -> String {
    format!("owner/{uid}")
}

/// Index of objects without a controller.
pub(crate) fn orphans_in(namespace: &str) -> String {
    format!("orphan/{namespace}")
}

pub(crate) fn on_node(node: &str) -> String {
    format!("node/{node}")
}

fn by_owner(meta: &ObjectMeta) -> String {
    match controller(meta) {
        Some(owner) => of_owner(&owner.uid),
        None => orphans_in(namespace(meta)),
    }
}

fn pod_index(pod: &Pod) -> Vec<String> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let mut index = vec![by_owner(&pod.metadata)];
    index.extend(node.filter(|node| !node.is_empty()).map(on_node));
    index
}

impl Views {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            pods: Mirror::new(pod_index),
            nodes: Mirror::new(by_name_only),
            leases: Mirror::new(by_name_only),
            namespaces: Mirror::new(by_name_only),
            deployments: Mirror::new(by_name_only),
            replica_sets: Mirror::new(|set| vec![by_owner(&set.metadata)]),
            stateful_sets: Mirror::new(by_name_only),
            daemon_sets: Mirror::new(by_name_only),
            jobs: Mirror::new(|job| vec![by_owner(&job.metadata)]),
            cron_jobs: Mirror::new(by_name_only),
            budgets: Mirror::new(by_name_only),
            quotas: Mirror::new(by_name_only),
            claims: Mirror::new(by_name_only),
            volume_claims: Mirror::new(by_name_only),
            volumes: Mirror::new(by_name_only),
            classes: Mirror::new(by_name_only),
            services: Mirror::new(by_name_only),
            endpoint_slices: Mirror::new(by_name_only),
            endpoints: Mirror::new(by_name_only),
            autoscalers: Mirror::new(by_name_only),
            controllers_watch: AtomicBool::new(false),
            shared_watch: AtomicBool::new(false),
        })
    }

    /// The watches that controllers need and that are not started yet.
    pub(crate) fn for_controllers(&self, client: &Client) -> Vec<Watch> {
        let mut watches = self.shared(client);
        if !self.controllers_watch.swap(true, Ordering::Relaxed) {
            watches.extend([
                of(&self.leases, client),
                of(&self.namespaces, client),
                of(&self.deployments, client),
                of(&self.replica_sets, client),
                of(&self.stateful_sets, client),
                of(&self.daemon_sets, client),
                of(&self.jobs, client),
                of(&self.cron_jobs, client),
                of(&self.budgets, client),
                of(&self.quotas, client),
                of(&self.volume_claims, client),
                of(&self.volumes, client),
                of(&self.classes, client),
                of(&self.services, client),
                of(&self.endpoint_slices, client),
                of(&self.endpoints, client),
                of(&self.autoscalers, client),
            ]);
        }
        watches
    }

    /// The watches that kubelets need and that are not started yet.
    pub(crate) fn for_kubelets(&self, client: &Client) -> Vec<Watch> {
        self.shared(client)
    }

    fn shared(&self, client: &Client) -> Vec<Watch> {
        if self.shared_watch.swap(true, Ordering::Relaxed) {
            return Vec::new();
        }
        vec![of(&self.pods, client), of(&self.nodes, client), of(&self.claims, client)]
    }

    /// Waits for the first lists of all kinds that controllers read.
    pub(crate) async fn filled_for_controllers(&self) {
        self.filled_for_kubelets().await;
        self.leases.filled().await;
        self.namespaces.filled().await;
        self.deployments.filled().await;
        self.replica_sets.filled().await;
        self.stateful_sets.filled().await;
        self.daemon_sets.filled().await;
        self.jobs.filled().await;
        self.cron_jobs.filled().await;
        self.budgets.filled().await;
        self.quotas.filled().await;
        self.volume_claims.filled().await;
        self.volumes.filled().await;
        self.classes.filled().await;
        self.services.filled().await;
        self.endpoint_slices.filled().await;
        self.endpoints.filled().await;
        self.autoscalers.filled().await;
    }

    /// Waits for the first lists of all kinds that kubelets read.
    pub(crate) async fn filled_for_kubelets(&self) {
        self.pods.filled().await;
        self.nodes.filled().await;
        self.claims.filled().await;
    }
}

fn of<K>(mirror: &Arc<Mirror<K>>, client: &Client) -> Watch
where
    K: Kind + kube::Resource<DynamicType = ()>,
{
    Box::pin(Arc::clone(mirror).watch(client.clone(), watcher::Config::default()))
}
