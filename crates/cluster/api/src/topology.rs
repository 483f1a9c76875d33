//! What node exporters say of a node's zones: NodeResourceTopology
//! (`topology.node.k8s.io/v1alpha2`).
//!
//! Owns the object as its definition has it. Must not know what its zones mean to anybody.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, Metadata, Resource};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What a node exporter says of a node: zones, what they have, how far apart they are.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeResourceTopology {
    /// `topology.node.k8s.io/v1alpha2`.
    pub api_version: String,
    /// `NodeResourceTopology`.
    pub kind: String,
    /// Its name is the node's.
    pub metadata: ObjectMeta,
    /// Such as `SingleNUMANodeContainerLevel`. Deprecated; attributes say it now.
    pub topology_policies: Vec<String>,
    /// Of the kubelet: `topologyManagerPolicy`, `topologyManagerScope` and others.
    pub attributes: Vec<Attribute>,
    /// NUMA nodes and whatever else a node is divided into.
    pub zones: Vec<Zone>,
}

impl NodeResourceTopology {
    /// The value of an attribute.
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

/// The definition of the kind, for clusters where nobody else has brought it.
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

/// A part of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Zone {
    /// Such as `node-0`.
    pub name: String,
    /// `Node` for NUMA nodes.
    #[serde(rename = "type")]
    pub zone_type: String,
    /// The zone it is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// How far zones are.
    pub costs: Vec<Cost>,
    /// What else is known.
    pub attributes: Vec<Attribute>,
    /// What it has.
    pub resources: Vec<ZoneResource>,
}

/// How far a zone is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Cost {
    /// The other zone.
    pub name: String,
    /// As the firmware's distances: 10 is here.
    pub value: i64,
}

/// Something known under a name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Attribute {
    /// The name.
    pub name: String,
    /// What is known.
    pub value: String,
}

/// How much of a resource a zone has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ZoneResource {
    /// Such as `cpu` or `nvidia.com/gpu`.
    pub name: String,
    /// All of it.
    pub capacity: Quantity,
    /// What pods may have.
    pub allocatable: Quantity,
    /// What is free.
    pub available: Quantity,
}
