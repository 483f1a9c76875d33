//! Accelerator: what one unit of another vendor's device resource is.

use berth_model::policy::{self, AcceleratorMemory};
use berth_model::resource::ResourceName;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Definition, object, quantity_of};
use crate::Lower;
use crate::error::{self, LowerError, Problem};
use crate::pod::compute_milli;

/// Describes one unit of a device resource of a vendor other than NVIDIA, whose nodes describe themselves.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["spec"]))]
pub struct Accelerator {
    pub api_version: String,
    pub kind: String,
    #[schemars(schema_with = "super::metadata")]
    pub metadata: ObjectMeta,
    pub spec: AcceleratorSpec,
}

object!(Accelerator, "Accelerator", "accelerators");

/// One unit of the resource.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend(
    "required" = ["resource"],
    "x-kubernetes-validations" = [{
        "rule": "has(self.memory) != has(self.memoryLabel)",
        "message": "set exactly one of memory and memoryLabel",
    }],
))]
pub struct AcceleratorSpec {
    /// Extended resource, such as amd.com/gpu.
    #[schemars(length(max = 317), regex(pattern = "^[^/]+/[^/]+$"))]
    pub resource: String,
    /// Memory of one unit, if it is the same on every node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::quantity")]
    pub memory: Option<IntOrString>,
    /// Node label that states the memory of one unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_label: Option<MemoryLabel>,
    /// Part of the whole device's compute that one unit has, such as 50%. Default: 100%.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]{1,3}(\.[0-9])?%$"))]
    pub compute: Option<String>,
}

/// A node label that states the memory of one unit.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["key"]))]
pub struct MemoryLabel {
    /// Key of the label, such as amd.com/gpu.vram.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Unit of a value without a suffix, such as 1Mi. Default: bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::quantity")]
    pub unit: Option<IntOrString>,
}

impl Lower for Accelerator {
    type Model = policy::Accelerator;

    fn lower(&self) -> Result<policy::Accelerator, LowerError> {
        let lower = || -> Result<policy::Accelerator, Problem> {
            if !self.spec.resource.contains('/') {
                let problem = "must be an extended resource, such as amd.com/gpu";
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
            _ => Err(Problem::new("memory", "set exactly one of memory and memoryLabel")),
        }
    }
}

pub(super) fn definition() -> Value {
    let columns = &[
        ("Resource", "string", ".spec.resource"),
        ("Memory", "string", ".spec.memory"),
        ("Compute", "string", ".spec.compute"),
    ];
    Definition { kind: "Accelerator", plural: "accelerators", short: "bacc", columns }
        .of::<Accelerator>()
}
