//! Kubernetes' own kinds, as the discovery of a 1.36 server lists them.

use std::sync::Arc;

use super::{Kind, Origin, Resource, ScalePaths, Subresources};

const NAMESPACED: u8 = 1;
const STATUS: u8 = 2;
const SCALE: u8 = 4;
/// Only posted, never stored.
const POSTED: u8 = 8;

/// Group, version, plural, kind, flags, short names, categories. The singular is the kind in lower
/// case.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    u8,
    &'static [&'static str],
    &'static [&'static str],
);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("", "v1", "bindings", "Binding", NAMESPACED | POSTED, &[], &[]),
    ("", "v1", "configmaps", "ConfigMap", NAMESPACED, &["cm"], &[]),
    ("", "v1", "endpoints", "Endpoints", NAMESPACED, &["ep"], &[]),
    ("", "v1", "events", "Event", NAMESPACED, &["ev"], &[]),
    ("", "v1", "limitranges", "LimitRange", NAMESPACED, &["limits"], &[]),
    ("", "v1", "namespaces", "Namespace", STATUS, &["ns"], &[]),
    ("", "v1", "nodes", "Node", STATUS, &["no"], &[]),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", NAMESPACED | STATUS, &["pvc"], &[]),
    ("", "v1", "persistentvolumes", "PersistentVolume", STATUS, &["pv"], &[]),
    ("", "v1", "pods", "Pod", NAMESPACED | STATUS, &["po"], &["all"]),
    ("", "v1", "podtemplates", "PodTemplate", NAMESPACED, &[], &[]),
    ("", "v1", "replicationcontrollers", "ReplicationController", NAMESPACED | STATUS | SCALE, &["rc"], &["all"]),
    ("", "v1", "resourcequotas", "ResourceQuota", NAMESPACED | STATUS, &["quota"], &[]),
    ("", "v1", "secrets", "Secret", NAMESPACED, &[], &[]),
    ("", "v1", "serviceaccounts", "ServiceAccount", NAMESPACED, &["sa"], &[]),
    ("", "v1", "services", "Service", NAMESPACED | STATUS, &["svc"], &["all"]),
    ("apps", "v1", "controllerrevisions", "ControllerRevision", NAMESPACED, &[], &[]),
    ("apps", "v1", "daemonsets", "DaemonSet", NAMESPACED | STATUS, &["ds"], &["all"]),
    ("apps", "v1", "deployments", "Deployment", NAMESPACED | STATUS | SCALE, &["deploy"], &["all"]),
    ("apps", "v1", "replicasets", "ReplicaSet", NAMESPACED | STATUS | SCALE, &["rs"], &["all"]),
    ("apps", "v1", "statefulsets", "StatefulSet", NAMESPACED | STATUS | SCALE, &["sts"], &["all"]),
    ("events.k8s.io", "v1", "events", "Event", NAMESPACED, &["ev"], &[]),
    ("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", POSTED, &[], &[]),
    ("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", POSTED, &[], &[]),
    ("authorization.k8s.io", "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", NAMESPACED | POSTED, &[], &[]),
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", POSTED, &[], &[]),
    ("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", POSTED, &[], &[]),
    ("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", POSTED, &[], &[]),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", NAMESPACED | STATUS, &["hpa"], &["all"]),
    ("autoscaling", "v1", "horizontalpodautoscalers", "HorizontalPodAutoscaler", NAMESPACED | STATUS, &["hpa"], &["all"]),
    ("batch", "v1", "cronjobs", "CronJob", NAMESPACED | STATUS, &["cj"], &["all"]),
    ("batch", "v1", "jobs", "Job", NAMESPACED | STATUS, &[], &["all"]),
    ("networking.k8s.io", "v1", "ingressclasses", "IngressClass", 0, &[], &[]),
    ("networking.k8s.io", "v1", "ingresses", "Ingress", NAMESPACED | STATUS, &["ing"], &[]),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", NAMESPACED, &["netpol"], &[]),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", NAMESPACED | STATUS, &["pdb"], &[]),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", 0, &[], &[]),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", 0, &[], &[]),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", NAMESPACED, &[], &[]),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role", NAMESPACED, &[], &[]),
    ("storage.k8s.io", "v1", "csidrivers", "CSIDriver", 0, &[], &[]),
    ("storage.k8s.io", "v1", "csinodes", "CSINode", 0, &[], &[]),
    ("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity", NAMESPACED, &[], &[]),
    ("storage.k8s.io", "v1", "storageclasses", "StorageClass", 0, &["sc"], &[]),
    ("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", STATUS, &[], &[]),
    ("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", 0, &[], &["api-extensions"]),
    ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", STATUS, &[], &["api-extensions"]),
    ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", 0, &[], &["api-extensions"]),
    ("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", 0, &[], &["api-extensions"]),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", STATUS, &["crd", "crds"], &["api-extensions"]),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", 0, &["pc"], &[]),
    ("coordination.k8s.io", "v1", "leases", "Lease", NAMESPACED, &[], &[]),
    ("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", 0, &[], &[]),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", NAMESPACED, &[], &[]),
    ("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", 0, &[], &[]),
    ("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", NAMESPACED | STATUS, &[], &[]),
    ("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", NAMESPACED, &[], &[]),
    ("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", 0, &[], &[]),
];

pub(super) fn rows() -> Vec<Arc<Kind>> {
    ROWS.iter().map(|row| Arc::new(kind(row))).collect()
}

fn kind((group, version, plural, kind, flags, short_names, categories): &Row) -> Kind {
    let resource = Resource::new(group, plural);
    // Events are served by two groups and stored once.
    let stored_as =
        if *group == "events.k8s.io" { Resource::new("", plural) } else { resource.clone() };
    let texts = |list: &[&str]| list.iter().map(|text| Arc::from(*text)).collect();
    Kind {
        resource,
        version: Arc::from(*version),
        kind: Arc::from(*kind),
        list_kind: Arc::from(format!("{kind}List")),
        singular: Arc::from(kind.to_lowercase()),
        short_names: texts(short_names),
        categories: texts(categories),
        namespaced: flags & NAMESPACED != 0,
        subresources: Subresources {
            status: flags & STATUS != 0,
            scale: (flags & SCALE != 0).then(|| ScalePaths {
                spec_replicas: Arc::from("spec.replicas"),
                status_replicas: Arc::from("status.replicas"),
                selector: None,
            }),
        },
        stored_as,
        stored: flags & POSTED == 0,
        origin: Origin::BuiltIn,
    }
}
