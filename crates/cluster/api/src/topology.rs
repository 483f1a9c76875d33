//! NodeResourceTopology (`topology.node.k8s.io/v1alpha2`), as exporters publish it.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, Metadata, Resource};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The zones of a node, their resources, and the distances between them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeResourceTopology {
    pub api_version: String,
    pub kind: String,
    /// The name is that of the node.
    pub metadata: ObjectMeta,
    /// Such as `SingleNUMANodeContainerLevel`. Deprecated in favour of attributes.
    pub topology_policies: Vec<String>,
    /// Of the kubelet: `topologyManagerPolicy`, `topologyManagerScope` and others.
    pub attributes: Vec<Attribute>,
    /// NUMA nodes and other parts of the node.
    pub zones: Vec<Zone>,
}

impl NodeResourceTopology {
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|attribute| attribute.name == name)?;
        Some(&found.value)
    }
}

impl Resource for NodeResourceTopology {
    const API_VERSION: &'static str = "topology.node.k8s.io/v1alpha2";
    const GROUP: &'static str = "topology.node.k8s.io";
    const KIND: &'static str = "NodeResourceTopology";
    const VERSION: &'static str = "v1alpha2";
    const URL_PATH_SEGMENT: &'static str = "noderesourcetopologies";
    type Scope = ClusterResourceScope;
}

impl Metadata for NodeResourceTopology {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The CustomResourceDefinition, for clusters without another installation of it.
pub fn definition() -> Value {
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let list = json!({ "type": "array", "items": open });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "noderesourcetopologies.topology.node.k8s.io",
            // The group belongs to Kubernetes; this says who agreed to it.
            "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870",
            },
        },
        "spec": {
            "group": "topology.node.k8s.io",
            "names": {
                "kind": "NodeResourceTopology",
                "listKind": "NodeResourceTopologyList",
                "plural": "noderesourcetopologies",
                "shortNames": ["node-res-topo"],
                "singular": "noderesourcetopology",
            },
            "scope": "Cluster",
            "versions": [{
                "name": "v1alpha2",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "required": ["zones"],
                    "properties": {
                        "topologyPolicies": { "type": "array", "items": { "type": "string" } },
                        "attributes": list,
                        "zones": list,
                    },
                }},
            }],
        },
    })
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Zone {
    /// Such as `node-0`.
    pub name: String,
    /// `Node` for NUMA nodes.
    #[serde(rename = "type")]
    pub zone_type: String,
    /// The enclosing zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    pub costs: Vec<Cost>,
    pub attributes: Vec<Attribute>,
    pub resources: Vec<ZoneResource>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Cost {
    pub name: String,
    /// Distance as in firmware tables: 10 is local.
    pub value: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Attribute {
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ZoneResource {
    /// Such as `cpu` or `nvidia.com/gpu`.
    pub name: String,
    /// Total.
    pub capacity: Quantity,
    /// Available to pods.
    pub allocatable: Quantity,
    /// Free.
    pub available: Quantity,
}
