//! Pool: which classes of work the nodes of a pool are for, and what they look like inside.
//!
//! Owns the object and its definition. Must not know which nodes there are; a node says by a label to
//! which pool it belongs.

use std::collections::BTreeMap;

use berth_model::policy;
use berth_model::workload::{CapacityType, ClassSet, PoolClasses, WorkloadClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Definition, class_schema, object};
use crate::error::{self, LowerError, Problem};
use crate::{Lower, meta};

/// Nodes that are alike, by the name that their labels give.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pool {
    /// `berth.dev/v1alpha1`.
    pub api_version: String,
    /// `Pool`.
    pub kind: String,
    /// Its name is the pool's.
    pub metadata: ObjectMeta,
    /// What it is for.
    pub spec: PoolSpec,
}

object!(Pool, "Pool", "pools");

/// What a pool is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolSpec {
    /// Classes of work that it is for; none: all alike.
    pub classes: Vec<String>,
    /// Others may not be there, even if there is room.
    pub only: bool,
    /// On which terms its nodes are had; not written: as their labels say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<Capacity>,
    /// What its nodes look like inside, where neither they nor an exporter says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<PoolTopology>,
}

/// What the nodes of a pool look like inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolTopology {
    /// How many NUMA nodes they have, all alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_nodes: Option<u32>,
    /// On how many sockets these are; not written: one each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    /// Hardware threads of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads_per_core: Option<u32>,
    /// How the kubelet is set up, in the words of its configuration file: `topologyManagerPolicy` and so on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kubelet: BTreeMap<String, String>,
}

/// On which terms nodes are had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capacity {
    /// For as long as they are wanted.
    OnDemand,
    /// Until the provider wants them back.
    Spot,
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
                    let problem = "is true for no class; list classes, or leave it out";
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

fn topology_schema() -> Value {
    let count = |most: u32, description: &str| json!({ "type": "integer", "minimum": 1, "maximum": most, "description": description });
    json!({
        "type": "object",
        "description": "What its nodes look like inside, where neither they nor an exporter says so.",
        "properties": {
            "numaNodes": count(64, "How many NUMA nodes they have, all alike."),
            "sockets": count(64, "On how many sockets these are; left out: one each."),
            "threadsPerCore": count(8, "Hardware threads of a core."),
            "kubelet": {
                "type": "object", "maxProperties": 16,
                "description": "How the kubelet is set up, in the words of its configuration file, \
                                such as topologyManagerPolicy and cpuManagerPolicy.",
                "additionalProperties": { "type": "string", "maxLength": 256 },
            },
        },
    })
}

pub(super) fn definition() -> Value {
    let spec = json!({
        "type": "object",
        "description": "What the pool is for.",
        "properties": {
            "classes": {
                "type": "array", "maxItems": 4, "x-kubernetes-list-type": "set",
                "description": "Classes of work that it is for; none: all alike. Others may use what \
                                is left, unless `only` is set.",
                "items": class_schema("A class of work."),
            },
            "only": { "type": "boolean", "default": false,
                      "description": "Other classes may not be there, even if there is room." },
            "capacityType": {
                "type": "string", "enum": ["on-demand", "spot"],
                "description": "On which terms its nodes are had; left out: as their labels say.",
            },
            "topology": topology_schema(),
        },
        "x-kubernetes-validations": [{
            "rule": "!has(self.only) || !self.only || (has(self.classes) && size(self.classes) > 0)",
            "message": "only needs classes",
        }],
    });
    Definition {
        kind: "Pool",
        plural: "pools",
        short: "bpool",
        description: "Nodes that are alike, by the name that their label berth.dev/pool, Karpenter's \
                      or the cloud's gives: which classes of work they are for.",
        spec,
        status: None,
        rules: json!([]),
        columns: json!([
            { "name": "Classes", "type": "string", "jsonPath": ".spec.classes" },
            { "name": "Only", "type": "boolean", "jsonPath": ".spec.only" },
            { "name": "Capacity", "type": "string", "jsonPath": ".spec.capacityType" },
        ]),
    }
    .json()
}
