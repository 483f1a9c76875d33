//! Headroom: capacity that is kept free for a class of work.

use berth_model::workload::{self, WorkloadClass};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Definition, object};
use crate::error::{self, LowerError, Problem};
use crate::{Lower, meta};

/// Capacity kept free for a class of work, so that its next pods start at once.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["spec"]))]
pub struct Headroom {
    pub api_version: String,
    pub kind: String,
    #[schemars(schema_with = "super::metadata")]
    pub metadata: ObjectMeta,
    pub spec: HeadroomSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<HeadroomStatus>,
}

object!(Headroom, "Headroom", "headrooms");

/// What to keep free.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["count", "class", "template"]))]
pub struct HeadroomSpec {
    /// How many pods of the template must fit.
    #[schemars(range(max = 100_000))]
    pub count: u32,
    /// Class of work. Pods of this class and of stronger classes may use the headroom.
    #[schemars(schema_with = "super::class")]
    pub class: String,
    /// Namespace of the pods. Default: default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
    /// Pod to keep room for: metadata (labels and annotations) and spec, as in a Deployment's template.
    #[schemars(schema_with = "template")]
    pub template: core::PodTemplateSpec,
}

/// Headroom that is available.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HeadroomStatus {
    /// How many pods of the template fit.
    pub kept: u32,
    /// Nodes where they fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Why fewer pods fit than requested.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Of a pod template only what scheduling reads is checked, when the object is read.
fn template(_: &mut SchemaGenerator) -> Schema {
    let texts = json!({ "type": "object", "additionalProperties": { "type": "string" } });
    json_schema!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "metadata": {
                "type": "object",
                "properties": { "labels": texts, "annotations": texts },
            },
            "spec": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": true,
                "description": "Spec of the pod.",
            },
        },
    })
}

impl Lower for Headroom {
    type Model = workload::Headroom;

    fn lower(&self) -> Result<workload::Headroom, LowerError> {
        let lower = || -> Result<workload::Headroom, Problem> {
            let text = self.spec.class.as_str();
            let class = WorkloadClass::parse(text).ok_or_else(|| {
                let known = WorkloadClass::ALL.map(WorkloadClass::as_str).join(", ");
                Problem::unknown("spec.class", text, &format!("one of {known}"))
            })?;
            let of_template = self.spec.template.metadata.clone().unwrap_or_default();
            let pod = core::Pod {
                metadata: ObjectMeta {
                    name: self.metadata.name.clone(),
                    namespace: self.spec.namespace.clone(),
                    ..of_template
                },
                spec: self.spec.template.spec.clone(),
                status: None,
            };
            let pod = pod
                .lower()
                .map_err(|error| Problem::new(error.field, error.problem).under("spec.template"))?;
            Ok(workload::Headroom {
                name: meta::name(&self.metadata)?,
                template: pod.spec,
                count: self.spec.count,
                class,
            })
        };
        error::of(self, lower())
    }
}

pub(super) fn definition() -> Value {
    let columns = &[
        ("Class", "string", ".spec.class"),
        ("Count", "integer", ".spec.count"),
        ("Kept", "integer", ".status.kept"),
    ];
    Definition { kind: "Headroom", plural: "headrooms", short: "bhr", columns }.of::<Headroom>()
}
