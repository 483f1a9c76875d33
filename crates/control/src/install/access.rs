//! Who Berth is, and what it may do: as little as it can do with.
//!
//! Owns the service account, roles and bindings. Whatever the code asks of the API server is listed here,
//! and nothing else; tests run with these roles alone.

use serde_json::{Value, json};

use super::{CERTIFICATES_SECRET, InstallOptions, NAME, meta, meta_in};

pub(super) const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) fn objects(options: &InstallOptions) -> Vec<Value> {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta_in(options, NAME),
    });
    let subjects = json!([
        { "kind": "ServiceAccount", "name": NAME, "namespace": options.namespace },
    ]);
    let bind = |kind: &str, role: &str, metadata: Value| {
        json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": metadata,
            "roleRef": { "apiGroup": RBAC, "kind": role, "name": NAME }, "subjects": subjects,
        })
    };
    vec![
        account,
        role("ClusterRole", meta(NAME), &cluster_rules()),
        bind("ClusterRoleBinding", "ClusterRole", meta(NAME)),
        role("Role", meta_in(options, NAME), &own_rules()),
        bind("RoleBinding", "Role", meta_in(options, NAME)),
        viewer(),
        explanations(),
    ]
}

pub(super) fn role(kind: &str, metadata: Value, rules: &Value) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": metadata, "rules": rules,
    })
}

pub(super) fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

const WATCH: &[&str] = &["list", "watch"];

fn cluster_rules() -> Value {
    let named = |resources: &[&str], verbs: &[&str]| {
        let mut rule = rule("admissionregistration.k8s.io", resources, verbs);
        rule["resourceNames"] = json!([NAME]);
        rule
    };
    json!([
        // What is watched.
        rule(
            "",
            &[
                "limitranges",
                "namespaces",
                "nodes",
                "persistentvolumeclaims",
                "persistentvolumes",
                "replicationcontrollers",
                "resourcequotas",
                "services",
            ],
            WATCH
        ),
        rule("apps", &["replicasets", "statefulsets"], WATCH),
        rule("policy", &["poddisruptionbudgets"], WATCH),
        rule("scheduling.k8s.io", &["podgroups", "priorityclasses"], WATCH),
        rule(
            "storage.k8s.io",
            &[
                "csidrivers",
                "csinodes",
                "csistoragecapacities",
                "storageclasses",
                "volumeattachments",
            ],
            WATCH
        ),
        rule("resource.k8s.io", &["deviceclasses", "resourceslices"], WATCH),
        rule("topology.node.k8s.io", &["noderesourcetopologies"], WATCH),
        rule("karpenter.sh", &["nodepools"], WATCH),
        rule("berth.dev", &["accelerators", "headrooms", "pools", "teams"], WATCH),
        // Pods: placed, told why not, marked, evicted.
        rule("", &["pods"], &["get", "list", "watch", "patch"]),
        rule("", &["pods/binding", "pods/eviction"], &["create"]),
        rule("", &["pods/status"], &["patch"]),
        // Devices that pods claim. Claims for extended resources are made and discarded by us.
        rule(
            "resource.k8s.io",
            &["resourceclaims"],
            &["get", "list", "watch", "create", "patch", "update", "delete"],
        ),
        rule("resource.k8s.io", &["resourceclaims/status"], &["patch", "update"]),
        // Since 1.36 whoever writes allocations needs this as well.
        rule("resource.k8s.io", &["resourceclaims/binding"], &["patch", "update"]),
        // Volumes that are bound or made where a pod goes.
        rule("", &["persistentvolumeclaims", "persistentvolumes"], &["get", "patch"]),
        // What people see.
        rule("events.k8s.io", &["events"], &["create"]),
        rule("berth.dev", &["headrooms/status", "teams/status"], &["patch"]),
        // Who may see what over HTTP.
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        // The webhook's authority, in our own configurations only.
        named(
            &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            &["get", "patch"],
        ),
    ])
}

/// In its own namespace. What is created has no name yet that a rule could speak of.
fn own_rules() -> Value {
    let mut lease = rule("coordination.k8s.io", &["leases"], &["get", "update", "watch"]);
    lease["resourceNames"] = json!([NAME]);
    let mut secret = rule("", &["secrets"], &["get", "update"]);
    secret["resourceNames"] = json!([CERTIFICATES_SECRET]);
    json!([
        rule("coordination.k8s.io", &["leases"], &["create"]),
        lease,
        rule("", &["secrets"], &["create"]),
        secret,
    ])
}

/// For people: the engine's view of the whole cluster.
fn viewer() -> Value {
    let rules = json!([rule("berth.dev", &["explanations", "nodes", "queue", "state"], &["get"])]);
    role("ClusterRole", meta("berth-viewer"), &rules)
}

/// Whoever may view a namespace may ask why its pods are where they are, and see Berth's own objects if
/// the cluster lets them.
fn explanations() -> Value {
    let mut metadata = meta("berth-explanations");
    metadata["labels"][format!("{RBAC}/aggregate-to-view")] = json!("true");
    role("ClusterRole", metadata, &json!([rule("berth.dev", &["explanations"], &["get"])]))
}
