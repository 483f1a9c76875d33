//! The objects of a new cluster.

use serde_json::{Value, json};

use crate::identity::{AUTHENTICATED, MASTERS};
use crate::kinds::Resource;
use crate::status::Status;
use crate::store::{Expected, Store, key_of};
use crate::{clock, random};

const NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];

/// Name, value, description.
const PRIORITY_CLASSES: &[(&str, i64, &str)] = &[
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];

/// API groups and resources that the role `view` reads; `edit` and `admin` write them too.
const VIEWED: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "bindings",
            "configmaps",
            "endpoints",
            "events",
            "limitranges",
            "namespaces",
            "persistentvolumeclaims",
            "pods",
            "pods/log",
            "pods/status",
            "replicationcontrollers",
            "resourcequotas",
            "serviceaccounts",
            "services",
        ],
    ),
    (
        "apps",
        &[
            "controllerrevisions",
            "daemonsets",
            "deployments",
            "deployments/scale",
            "replicasets",
            "replicasets/scale",
            "statefulsets",
            "statefulsets/scale",
        ],
    ),
    ("autoscaling", &["horizontalpodautoscalers"]),
    ("batch", &["cronjobs", "jobs"]),
    ("discovery.k8s.io", &["endpointslices"]),
    ("networking.k8s.io", &["ingresses", "networkpolicies"]),
    ("policy", &["poddisruptionbudgets"]),
    ("resource.k8s.io", &["resourceclaims", "resourceclaimtemplates"]),
];

const RBAC: &str = "rbac.authorization.k8s.io";

/// Names and rules of the roles that a cluster starts with.
fn cluster_roles() -> Vec<(&'static str, Vec<Value>)> {
    let viewed = |verbs: &[&str]| -> Vec<Value> {
        let rule = |(group, resources): &(&str, &[&str])| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
        VIEWED.iter().map(rule).collect()
    };
    let mut edit = viewed(&["*"]);
    edit.push(json!({
        "apiGroups": [""],
        "resources": ["secrets", "pods/eviction", "pods/exec", "pods/attach", "pods/portforward",
                      "serviceaccounts/token"],
        "verbs": ["*"],
    }));
    let mut admin = edit.clone();
    admin.push(json!({
        "apiGroups": [RBAC], "resources": ["roles", "rolebindings"], "verbs": ["*"],
    }));
    let discovery = json!({
        "nonResourceURLs": ["/", "/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"],
        "verbs": ["get"],
    });
    let reviews = json!({
        "apiGroups": ["authorization.k8s.io", "authentication.k8s.io"],
        "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"],
        "verbs": ["create"],
    });
    let everything = vec![
        json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}),
        json!({"nonResourceURLs": ["*"], "verbs": ["*"]}),
    ];
    vec![
        ("admin", admin),
        ("cluster-admin", everything),
        ("edit", edit),
        ("system:basic-user", vec![reviews]),
        ("system:discovery", vec![discovery]),
        ("view", viewed(&["get", "list", "watch"])),
    ]
}

/// Roles and the groups that have them from the start.
const ROLE_GROUPS: &[(&str, &str)] = &[
    ("cluster-admin", MASTERS),
    ("system:basic-user", AUTHENTICATED),
    ("system:discovery", AUTHENTICATED),
];

/// Stores what is not there yet.
pub(crate) fn plant(store: &Store) -> Result<(), Status> {
    for name in NAMESPACES {
        add(
            store,
            &Resource::new("", "namespaces"),
            "",
            name,
            json!({
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"labels": {"kubernetes.io/metadata.name": name}},
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            }),
        )?;
        add(
            store,
            &Resource::new("", "serviceaccounts"),
            name,
            "default",
            json!({
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {},
            }),
        )?;
    }
    for (name, value, description) in PRIORITY_CLASSES {
        add(
            store,
            &Resource::new("scheduling.k8s.io", "priorityclasses"),
            "",
            name,
            json!({
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"generation": 1},
                "value": value,
                "description": description,
                "preemptionPolicy": "PreemptLowerPriority",
            }),
        )?;
    }
    for (name, rules) in cluster_roles() {
        let role = json!({
            "apiVersion": format!("{RBAC}/v1"),
            "kind": "ClusterRole",
            "metadata": {"labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
            "rules": rules,
        });
        add(store, &Resource::new(RBAC, "clusterroles"), "", name, role)?;
    }
    for (name, group) in ROLE_GROUPS {
        let binding = json!({
            "apiVersion": format!("{RBAC}/v1"),
            "kind": "ClusterRoleBinding",
            "metadata": {"labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
        });
        add(store, &Resource::new(RBAC, "clusterrolebindings"), "", name, binding)?;
    }
    Ok(())
}

fn add(
    store: &Store,
    resource: &Resource,
    namespace: &str,
    name: &str,
    mut object: Value,
) -> Result<(), Status> {
    let key = key_of(namespace, name);
    if store.get(resource, &key).is_some() {
        return Ok(());
    }
    object["metadata"]["name"] = Value::from(name);
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = Value::from(namespace);
    }
    object["metadata"]["uid"] = Value::from(random::uid()?);
    object["metadata"]["creationTimestamp"] = Value::from(clock::now());
    // A concurrent writer has stored the same.
    let _ = store.put(resource, &key, Expected::Absent, object);
    Ok(())
}
