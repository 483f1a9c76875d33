//! Registration of virtual nodes with the labels, addresses, versions and capacity that other components expect.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::key::{is_already_exists, is_not_found, name};
use crate::kubelet::VIRTUAL;

const REQUESTS_AT_ONCE: usize = 32;

/// Kubelet version of nodes without one.
const KUBELET_VERSION: &str = "v1.36.4";

/// Pod capacity of nodes without one.
const PODS_MAX: &str = "110";

#[derive(Clone, Debug, Default)]
pub struct Registration {
    pub node: Node,
    /// As a NodeResourceTopology.
    pub topology: Option<Value>,
}

/// The node with all fields that other components expect.
fn complete(node: &Node) -> Node {
    let mut node = node.clone();
    let own = name(&node.metadata).to_owned();
    let labels = node.metadata.labels.get_or_insert_default();
    labels.insert(VIRTUAL.to_owned(), "true".to_owned());
    for (key, value) in [
        ("kubernetes.io/hostname", own.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
    ] {
        labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    let arch = labels.get("kubernetes.io/arch").cloned().unwrap_or_default();
    let status = node.status.get_or_insert_default();
    let mut capacity = status.capacity.clone().or(status.allocatable.clone()).unwrap_or_default();
    capacity.entry("pods".to_owned()).or_insert_with(|| Quantity(PODS_MAX.to_owned()));
    let mut allocatable = status.allocatable.clone().unwrap_or_else(|| capacity.clone());
    allocatable.entry("pods".to_owned()).or_insert_with(|| Quantity(PODS_MAX.to_owned()));
    status.capacity = Some(capacity);
    status.allocatable = Some(allocatable);
    let addresses = status.addresses.get_or_insert_default();
    if addresses.iter().all(|address| address.type_ != "Hostname") {
        addresses.push(NodeAddress { type_: "Hostname".to_owned(), address: own });
    }
    let info = status.node_info.get_or_insert_with(|| NodeSystemInfo {
        operating_system: "linux".to_owned(),
        architecture: arch,
        container_runtime_version: "virtual://1".to_owned(),
        os_image: "virtual".to_owned(),
        ..NodeSystemInfo::default()
    });
    if info.kubelet_version.is_empty() {
        info.kubelet_version = KUBELET_VERSION.to_owned();
    }
    // Their kubelets write conditions.
    status.conditions = None;
    node
}

/// Creates nodes, and updates those that exist.
///
/// # Errors
/// When the API server refuses one of them.
pub async fn register(client: &Client, nodes: &[Registration]) -> Result<(), kube::Error> {
    let all: Vec<_> = nodes.iter().map(|one| register_one(client, one)).collect();
    stream::iter(all).buffer_unordered(REQUESTS_AT_ONCE).try_collect().await
}

async fn register_one(client: &Client, one: &Registration) -> Result<(), kube::Error> {
    // Topology first: the kubelet reads it when it sees the node.
    if let Some(topology) = &one.topology {
        write_topology(client, name(&one.node.metadata), topology).await?;
    }
    let nodes: Api<Node> = Api::all(client.clone());
    let node = complete(&one.node);
    let own = name(&node.metadata);
    match nodes.create(&PostParams::default(), &node).await {
        Err(error) if is_already_exists(&error) => {
            let change = json!({
                "metadata": {
                    "labels": node.metadata.labels,
                    "annotations": node.metadata.annotations,
                },
                "spec": { "taints": node.spec.as_ref().and_then(|spec| spec.taints.as_ref()) },
            });
            let patch = Patch::Merge(&change);
            nodes.patch(own, &PatchParams::default(), &patch).await?;
        }
        answer => {
            answer.map(|_| ())?;
        }
    }
    let Some(status) = &node.status else { return Ok(()) };
    let change = json!({ "status": {
        "capacity": status.capacity,
        "allocatable": status.allocatable,
        "addresses": status.addresses,
        "nodeInfo": status.node_info,
        "images": status.images,
    }});
    let patch = Patch::Merge(&change);
    nodes.patch_status(own, &PatchParams::default(), &patch).await.map(|_| ())
}

async fn write_topology(client: &Client, node: &str, content: &Value) -> Result<(), kube::Error> {
    let kind = GroupVersionKind::gvk("topology.node.k8s.io", "v1alpha2", "NodeResourceTopology");
    let resource = ApiResource::from_gvk_with_plural(&kind, "noderesourcetopologies");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut object = content.clone();
    object["apiVersion"] = json!("topology.node.k8s.io/v1alpha2");
    object["kind"] = json!("NodeResourceTopology");
    object["metadata"]["name"] = json!(node);
    let whole: DynamicObject =
        serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &whole).await {
        Err(error) if is_already_exists(&error) => {
            let patch = Patch::Merge(&object);
            api.patch(node, &PatchParams::default(), &patch).await.map(|_| ())
        }
        // Without the CRD only the node's labels are used.
        Err(error) if is_not_found(&error) => {
            tracing::warn!(node, "there is no NodeResourceTopology in this cluster");
            Ok(())
        }
        answer => answer.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    #[test]
    fn a_node_says_all_that_a_cluster_expects_and_keeps_what_it_said() {
        let node: Node = from_value(json!({
            "metadata": { "name": "n", "labels": { "kubernetes.io/arch": "arm64" } },
            "status": { "allocatable": { "cpu": "4", "pods": "7" },
                        "conditions": [{ "type": "Ready", "status": "False" }] },
        }))
        .unwrap();
        let node = complete(&node);
        let labels = node.metadata.labels.unwrap();
        assert_eq!(
            (labels[VIRTUAL].as_str(), labels["kubernetes.io/arch"].as_str()),
            ("true", "arm64")
        );
        let status = node.status.unwrap();
        assert_eq!(status.capacity.unwrap()["pods"].0, "7");
        assert_eq!(status.node_info.unwrap().architecture, "arm64");
        assert_eq!(status.conditions, None);
    }
}
