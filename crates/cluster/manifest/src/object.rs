//! The kinds of objects that Berth reads, and their versions.

use berth_api::{FieldPath, crd, gang};
use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::api::scheduling::{v1 as scheduling, v1alpha2};
use k8s_openapi::api::storage::v1 as storage;
use serde::de::DeserializeOwned;

use crate::document::{Document, Strictness};
use crate::karpenter;
use crate::problem::Problem;
use berth_api::topology::NodeResourceTopology;

macro_rules! objects {
    ($($variant:ident($type:ty) = $version:literal $kind:literal,)*) => {
        /// An object as a type.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum Object {
            $(
                #[doc = concat!("`", $version, "` ", $kind, ".")]
                $variant(Box<$type>),
            )*
            /// What Berth does not know.
            Other(Document),
        }

        /// Version and kind of what is known.
        const KNOWN: &[(&str, &str)] = &[$(($version, $kind),)*];

        /// The object as the type of its kind. Kinds that Berth does not know are
        /// [`Object::Other`]; a known kind in a version that is not read is a problem.
        pub fn object(document: &Document) -> Result<Object, Problem> {
            match (document.api_version(), document.kind()) {
                $(($version, $kind) => {
                    decode(document).map(|object| Object::$variant(Box::new(object)))
                })*
                _ => other(document),
            }
        }
    };
}

objects! {
    Pod(core::Pod) = "v1" "Pod",
    Node(core::Node) = "v1" "Node",
    Namespace(core::Namespace) = "v1" "Namespace",
    Service(core::Service) = "v1" "Service",
    ResourceQuota(core::ResourceQuota) = "v1" "ResourceQuota",
    LimitRange(core::LimitRange) = "v1" "LimitRange",
    PersistentVolume(core::PersistentVolume) = "v1" "PersistentVolume",
    PersistentVolumeClaim(core::PersistentVolumeClaim) = "v1" "PersistentVolumeClaim",
    ReplicationController(core::ReplicationController) = "v1" "ReplicationController",
    PodTemplate(core::PodTemplate) = "v1" "PodTemplate",
    Deployment(apps::Deployment) = "apps/v1" "Deployment",
    ReplicaSet(apps::ReplicaSet) = "apps/v1" "ReplicaSet",
    StatefulSet(apps::StatefulSet) = "apps/v1" "StatefulSet",
    DaemonSet(apps::DaemonSet) = "apps/v1" "DaemonSet",
    Job(batch::Job) = "batch/v1" "Job",
    CronJob(batch::CronJob) = "batch/v1" "CronJob",
    PriorityClass(scheduling::PriorityClass) = "scheduling.k8s.io/v1" "PriorityClass",
    PodDisruptionBudget(policy::PodDisruptionBudget) = "policy/v1" "PodDisruptionBudget",
    StorageClass(storage::StorageClass) = "storage.k8s.io/v1" "StorageClass",
    CSINode(storage::CSINode) = "storage.k8s.io/v1" "CSINode",
    CSIDriver(storage::CSIDriver) = "storage.k8s.io/v1" "CSIDriver",
    CSIStorageCapacity(storage::CSIStorageCapacity)
        = "storage.k8s.io/v1" "CSIStorageCapacity",
    VolumeAttachment(storage::VolumeAttachment) = "storage.k8s.io/v1" "VolumeAttachment",
    ResourceClaim(resource::ResourceClaim) = "resource.k8s.io/v1" "ResourceClaim",
    ResourceClaimTemplate(resource::ResourceClaimTemplate)
        = "resource.k8s.io/v1" "ResourceClaimTemplate",
    DeviceClass(resource::DeviceClass) = "resource.k8s.io/v1" "DeviceClass",
    ResourceSlice(resource::ResourceSlice) = "resource.k8s.io/v1" "ResourceSlice",
    PodGroup(gang::PodGroup) = "scheduling.k8s.io/v1beta1" "PodGroup",
    PodGroupAlpha(v1alpha2::PodGroup) = "scheduling.k8s.io/v1alpha2" "PodGroup",
    Workload(v1alpha2::Workload) = "scheduling.k8s.io/v1alpha2" "Workload",
    NodeResourceTopology(NodeResourceTopology)
        = "topology.node.k8s.io/v1alpha2" "NodeResourceTopology",
    Team(crd::Team) = "berth.dev/v1alpha1" "Team",
    Headroom(crd::Headroom) = "berth.dev/v1alpha1" "Headroom",
    Pool(crd::Pool) = "berth.dev/v1alpha1" "Pool",
    Accelerator(crd::Accelerator) = "berth.dev/v1alpha1" "Accelerator",
    NodePool(karpenter::NodePool) = "karpenter.sh/v1" "NodePool",
    NodeClaim(karpenter::NodeClaim) = "karpenter.sh/v1" "NodeClaim",
}

/// Versions whose types have less than the objects.
const READ_IN_PART: [&str; 2] = [karpenter::API_VERSION, "scheduling.k8s.io/v1beta1"];

fn decode<T: DeserializeOwned>(document: &Document) -> Result<T, Problem> {
    if READ_IN_PART.contains(&document.api_version()) {
        return document.clone().with_strictness(Strictness::Dump).decode();
    }
    document.decode()
}

/// Objects of no known version and kind: of somebody else, or mistaken.
fn other(document: &Document) -> Result<Object, Problem> {
    let (version, kind) = (document.api_version(), document.kind());
    let known = KNOWN.iter().find(|(_, known)| known.eq_ignore_ascii_case(kind));
    if kind.is_empty() {
        let problem =
            document.problem(FieldPath::root().key("kind"), "is required and must be a string");
        return Err(problem.with_remedy("add the kind, such as `kind: Pod`"));
    }
    let field = FieldPath::root().key("apiVersion");
    if version.is_empty() {
        let such = known.map_or("apps/v1", |(version, _)| version);
        let problem = document.problem(field, "is required and must be a string");
        return Err(problem.with_remedy(format!("add `apiVersion: {such}`")));
    }
    let Some((right, known)) = known else { return Ok(Object::Other(document.clone())) };
    let group_of =
        |version: &str| version.split_once('/').map_or("", |(group, _)| group).to_owned();
    // Other projects have kinds of these names too.
    let group = document.group();
    if !(is_of_kubernetes(group) || group_of(right) == group) {
        return Ok(Object::Other(document.clone()));
    }
    if kind != *known {
        let problem =
            document.problem(FieldPath::root().key("kind"), format!("unknown kind {kind:?}"));
        return Err(problem.with_remedy(format!("did you mean `kind: {known}`?")));
    }
    let problem = document.problem(field, format!("unsupported version {version} of {kind}"));
    Err(problem.with_remedy(format!("use {right}")))
}

/// Whether objects of a kind that Berth knows are of the whole cluster and not of a namespace.
pub fn is_cluster_wide(kind: &str) -> bool {
    matches!(
        kind,
        "Node"
            | "Namespace"
            | "PersistentVolume"
            | "PriorityClass"
            | "StorageClass"
            | "CSINode"
            | "CSIDriver"
            | "VolumeAttachment"
            | "DeviceClass"
            | "ResourceSlice"
            | "NodeResourceTopology"
            | "NodePool"
            | "NodeClaim"
            | "Team"
            | "Headroom"
            | "Pool"
            | "Accelerator"
    )
}

/// Whether a group belongs to Kubernetes itself.
fn is_of_kubernetes(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}
