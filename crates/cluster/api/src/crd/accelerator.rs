//! Accelerator: what one unit of another vendor's device resource is.
//!
//! Owns the object and its definition. Must not know which nodes have any.

use berth_model::policy::{self, AcceleratorMemory};
use berth_model::resource::ResourceName;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Definition, object, quantity_of, quantity_schema};
use crate::Lower;
use crate::error::{self, LowerError, Problem};
use crate::pod::compute_milli;

/// What one unit of a device resource is, for vendors whose nodes do not say it as NVIDIA's do.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Accelerator {
    /// `berth.dev/v1alpha1`.
    pub api_version: String,
    /// `Accelerator`.
    pub kind: String,
    /// Its name, which is of no importance.
    pub metadata: ObjectMeta,
    /// What it is.
    pub spec: AcceleratorSpec,
}

object!(Accelerator, "Accelerator", "accelerators");

/// What one unit is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AcceleratorSpec {
    /// The extended resource, such as `amd.com/gpu`.
    pub resource: String,
    /// The memory that one of it comes with, on every node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<IntOrString>,
    /// Or the label of nodes that says how much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_label: Option<MemoryLabel>,
    /// Its part of the whole device's compute, in percent; all of it if it is not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
}

/// A label of nodes that says how much memory a device has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryLabel {
    /// Its key, such as `amd.com/gpu.vram`.
    pub key: String,
    /// What a number without a unit is a number of; bytes if it is not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<IntOrString>,
}

impl Lower for Accelerator {
    type Model = policy::Accelerator;

    fn lower(&self) -> Result<policy::Accelerator, LowerError> {
        let lower = || -> Result<policy::Accelerator, Problem> {
            if !self.spec.resource.contains('/') {
                let problem = "is no extended resource; write one such as amd.com/gpu";
                return Err(Problem::new("resource", problem));
            }
            let compute = self.spec.compute.as_deref().map(compute_milli).transpose();
            Ok(policy::Accelerator {
                resource: ResourceName::new(self.spec.resource.as_str()),
                memory: self.spec.memory()?,
                compute_milli: compute
                    .map_err(|problem| problem.under("compute"))?
                    .unwrap_or(1_000),
            })
        };
        error::of(self, lower().map_err(|problem| problem.under("spec")))
    }
}

impl AcceleratorSpec {
    fn memory(&self) -> Result<AcceleratorMemory, Problem> {
        let bytes = |field: &str, written: &IntOrString| {
            let quantity = quantity_of(written).map_err(|problem| problem.under(field))?;
            Ok(u64::try_from(quantity.value()).unwrap_or(0))
        };
        match (&self.memory, &self.memory_label) {
            (Some(memory), None) => Ok(AcceleratorMemory::Bytes(bytes("memory", memory)?)),
            (None, Some(label)) if !label.key.is_empty() => {
                let unit = label.unit.as_ref().map(|unit| bytes("memoryLabel.unit", unit));
                Ok(AcceleratorMemory::Label {
                    key: label.key.as_str().into(),
                    unit_bytes: unit.transpose()?.unwrap_or(1),
                })
            }
            _ => Err(Problem::new("memory", "write exactly one of memory and memoryLabel")),
        }
    }
}

pub(super) fn definition() -> Value {
    let label = json!({
        "type": "object",
        "required": ["key"],
        "description": "The label of nodes that says how much memory one has.",
        "properties": {
            "key": { "type": "string", "minLength": 1, "maxLength": 317,
                     "description": "Its key, such as amd.com/gpu.vram." },
            "unit": quantity_schema(
                "What a number without a unit is a number of, such as 1Mi; bytes if left out."),
        },
    });
    let spec = json!({
        "type": "object",
        "description": "What one unit is.",
        "required": ["resource"],
        "properties": {
            "resource": { "type": "string", "maxLength": 317, "pattern": "^[^/]+/[^/]+$",
                          "description": "The extended resource, such as amd.com/gpu." },
            "memory": quantity_schema("The memory that one of it comes with, on every node."),
            "memoryLabel": label,
            "compute": { "type": "string", "pattern": r"^[0-9]{1,3}(\.[0-9])?%$",
                         "description": "Its part of the whole device's compute, such as 50%; all \
                                         of it if left out." },
        },
        "x-kubernetes-validations": [{
            "rule": "has(self.memory) != has(self.memoryLabel)",
            "message": "write exactly one of memory and memoryLabel",
        }],
    });
    Definition {
        kind: "Accelerator",
        plural: "accelerators",
        short: "bacc",
        description: "What one unit of a device resource is, for vendors whose nodes do not say it \
                      as NVIDIA's do.",
        spec,
        status: None,
        rules: json!([]),
        columns: json!([
            { "name": "Resource", "type": "string", "jsonPath": ".spec.resource" },
            { "name": "Memory", "type": "string", "jsonPath": ".spec.memory" },
            { "name": "Compute", "type": "string", "jsonPath": ".spec.compute" },
        ]),
    }
    .json()
}
