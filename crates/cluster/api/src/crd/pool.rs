//! Pool: which classes of work the nodes of a pool are for, and their topology.

use std::collections::BTreeMap;

use berth_model::policy;
use berth_model::workload::{CapacityType, ClassSet, PoolClasses, WorkloadClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Definition, object};
use crate::error::{self, LowerError, Problem};
use crate::{Lower, meta};

/// Nodes that are alike, such as a Karpenter NodePool. The name is that of the node's label berth.dev/pool, or of
/// Karpenter's or the cloud provider's label.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["spec"]))]
pub struct Pool {
    pub api_version: String,
    pub kind: String,
    #[schemars(schema_with = "super::metadata")]
    pub metadata: ObjectMeta,
    pub spec: PoolSpec,
}

object!(Pool, "Pool", "pools");

/// What the pool is for, and what its nodes are like.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.only) || !self.only || (has(self.classes) && size(self.classes) > 0)",
    "message": "only requires classes",
}]))]
pub struct PoolSpec {
    /// Classes of work that the pool is for. Other classes may use free nodes, unless only is set. Default: all.
    #[schemars(
        schema_with = "classes",
        extend("maxItems" = 4, "x-kubernetes-list-type" = "set")
    )]
    pub classes: Vec<String>,
    /// Reject other classes, even if there is room.
    #[schemars(extend("x-default" = false))]
    pub only: bool,
    /// Capacity type of the nodes. Default: according to the nodes' labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<Capacity>,
    /// Topology of the nodes, where neither the node nor an exporter states it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<PoolTopology>,
}

/// Topology of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolTopology {
    /// Number of NUMA nodes, all alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub numa_nodes: Option<u32>,
    /// Number of sockets. Default: one per NUMA node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub sockets: Option<u32>,
    /// Hardware threads per core.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 8))]
    pub threads_per_core: Option<u32>,
    /// Settings of the kubelet, named as in its configuration file, such as topologyManagerPolicy and
    /// cpuManagerPolicy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "kubelet")]
    pub kubelet: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Capacity {
    OnDemand,
    Spot,
}

fn classes(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": super::class(generator) })
}

fn kubelet(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "maxLength": 256 },
    })
}

impl Lower for Pool {
    type Model = policy::Pool;

    fn lower(&self) -> Result<policy::Pool, LowerError> {
        let lower = || -> Result<policy::Pool, Problem> {
            let known = WorkloadClass::ALL.map(WorkloadClass::as_str).join(", ");
            let classes = error::each("spec.classes", Some(&self.spec.classes), |text| {
                let unknown = || Problem::unknown("", text, &format!("one of {known}"));
                WorkloadClass::parse(text).ok_or_else(unknown)
            })?;
            let set: ClassSet = classes.iter().copied().collect();
            let classes = match (classes.is_empty(), self.spec.only) {
                (true, false) => PoolClasses::Any,
                (true, true) => {
                    let problem = "requires classes; list them, or remove the field";
                    return Err(Problem::new("spec.only", problem));
                }
                (false, true) => PoolClasses::Only(set),
                (false, false) => PoolClasses::Preferred(set),
            };
            Ok(policy::Pool {
                name: meta::name(&self.metadata)?,
                // Who makes nodes knows what they look like; this object does not.
                growth: Some(0),
                classes,
                capacity: self.spec.capacity_type.map(|capacity| match capacity {
                    Capacity::OnDemand => CapacityType::OnDemand,
                    Capacity::Spot => CapacityType::Spot,
                }),
                ..policy::Pool::default()
            })
        };
        error::of(self, lower())
    }
}

pub(super) fn definition() -> Value {
    let columns = &[
        ("Classes", "string", ".spec.classes"),
        ("Only", "boolean", ".spec.only"),
        ("Capacity", "string", ".spec.capacityType"),
    ];
    Definition { kind: "Pool", plural: "pools", short: "bpool", columns }.of::<Pool>()
}
