//! What a new cluster starts with.

use serde_json::{Value, json};

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
    // Whoever was faster has stored the same.
    let _ = store.put(resource, &key, Expected::Absent, object);
    Ok(())
}
