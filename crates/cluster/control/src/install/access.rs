//! The scheduler's service account, roles and bindings.
//!
//! A right is granted only if a feature that is on needs it; `tests/rights.rs` names the code that needs each. Fields
//! are restricted by [`policies`](super::policies).

use serde_json::{Value, json};

use super::{CERTIFICATES_SECRET, InstallOptions, NAME, WebhookMode, meta, meta_in};

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
        role("ClusterRole", meta(NAME), &cluster_rules(options)),
        bind("ClusterRoleBinding", "ClusterRole", meta(NAME)),
        role("Role", meta_in(options, NAME), &own_rules(options)),
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

fn cluster_rules(options: &InstallOptions) -> Value {
    let mut rules = vec![
        rule(
            "",
            &[
                "namespaces",
                "nodes",
                "persistentvolumeclaims",
                "persistentvolumes",
                "pods",
                "replicationcontrollers",
                "resourcequotas",
                "services",
            ],
            WATCH,
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
            WATCH,
        ),
        rule("resource.k8s.io", &["deviceclasses", "resourceclaims", "resourceslices"], WATCH),
        rule("topology.node.k8s.io", &["noderesourcetopologies"], WATCH),
        rule("berth.dev", &["accelerators", "headrooms", "pools", "teams"], WATCH),
        // Pods are bound, evicted, and told why they are pending.
        rule("", &["pods"], &["get"]),
        rule("", &["pods/binding", "pods/eviction"], &["create"]),
        rule("", &["pods/status"], &["patch"]),
        // Claims are allocated. Claims for extended resources are created and deleted, too.
        rule(
            "resource.k8s.io",
            &["resourceclaims"],
            &["get", "create", "patch", "update", "delete"],
        ),
        rule("resource.k8s.io", &["resourceclaims/status"], &["patch", "update"]),
        // Since Kubernetes 1.36 a writer of allocations needs this as well.
        rule("resource.k8s.io", &["resourceclaims/binding"], &["patch", "update"]),
        // Volumes are bound, or provisioned on the node of their pod.
        rule("", &["persistentvolumeclaims", "persistentvolumes"], &["get", "patch"]),
        rule("events.k8s.io", &["events"], &["create"]),
        rule("berth.dev", &["headrooms/status", "teams/status"], &["patch"]),
        // Users of the HTTP API are authenticated and authorized.
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ];
    if options.webhook != WebhookMode::Off {
        // The webhook's rules need to know these, the scheduler does not.
        rules.push(rule("", &["limitranges"], WATCH));
        rules.push(rule("karpenter.sh", &["nodepools"], WATCH));
    }
    if options.publishes_authorities() {
        let configurations = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
        let group = "admissionregistration.k8s.io";
        rules.push(named(rule(group, &configurations, &["get", "patch"]), NAME));
    }
    Value::Array(rules)
}

/// Rights in its own namespace. A right to create cannot be limited to a name.
fn own_rules(options: &InstallOptions) -> Value {
    let lease = rule("coordination.k8s.io", &["leases"], &["get", "update", "watch"]);
    let mut rules = vec![rule("coordination.k8s.io", &["leases"], &["create"]), named(lease, NAME)];
    if options.makes_certificates() {
        rules.push(named(rule("", &["secrets"], &["get", "update"]), CERTIFICATES_SECRET));
    }
    Value::Array(rules)
}

/// The rule for the object of this name only.
fn named(mut rule: Value, name: &str) -> Value {
    rule["resourceNames"] = json!([name]);
    rule
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
