//! Headroom: room that is kept free for a class of work.
//!
//! Owns the object and its definition. Must not know where the room is.

use berth_model::workload::{self, WorkloadClass};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Definition, class_schema, object};
use crate::error::{self, LowerError, Problem};
use crate::{Lower, meta};

/// Room that is kept free for a class, so that its next pods need not wait.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Headroom {
    /// `berth.dev/v1alpha1`.
    pub api_version: String,
    /// `Headroom`.
    pub kind: String,
    /// Its name and labels.
    pub metadata: ObjectMeta,
    /// What is kept.
    pub spec: HeadroomSpec,
    /// What there is of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<HeadroomStatus>,
}

object!(Headroom, "Headroom", "headrooms");

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeadroomSpec {
    /// How many times the template is to fit.
    pub count: u32,
    /// For which class.
    pub class: String,
    /// The namespace that the template's pods would be in; `default` if it is not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What must fit each time, as a pod would ask for it.
    pub template: core::PodTemplateSpec,
}

/// What there is of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeadroomStatus {
    /// How many times the template fits.
    pub kept: u32,
    /// Nodes where it does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Why it is less than asked for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
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
    let template = json!({
        "type": "object",
        "description": "What must fit each time, as a pod would ask for it: metadata (labels and \
                        annotations) and spec, as in a Deployment's template.",
        "required": ["spec"],
        "properties": {
            "metadata": {
                "type": "object",
                "properties": {
                    "labels": { "type": "object",
                                "additionalProperties": { "type": "string" } },
                    "annotations": { "type": "object",
                                     "additionalProperties": { "type": "string" } },
                },
            },
            "spec": { "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                      "description": "The spec of such a pod." },
        },
    });
    let spec = json!({
        "type": "object",
        "description": "What is kept.",
        "required": ["count", "class", "template"],
        "properties": {
            "count": { "type": "integer", "format": "int32", "minimum": 0, "maximum": 100_000,
                       "description": "How many times the template is to fit." },
            "class": class_schema(
                "For which class it is kept. Pods of that class and of those with a stronger claim \
                 may use it."),
            "namespace": { "type": "string", "maxLength": 63,
                           "description": "The namespace that such pods would be in." },
            "template": template,
        },
    });
    let status = json!({
        "type": "object",
        "description": "What there is of it.",
        "properties": {
            "kept": { "type": "integer", "format": "int32",
                      "description": "How many times the template fits." },
            "nodes": { "type": "array", "items": { "type": "string" },
                       "description": "Nodes where it does." },
            "message": { "type": "string", "description": "Why it is less than asked for." },
        },
    });
    Definition {
        kind: "Headroom",
        plural: "headrooms",
        short: "bhr",
        description: "Room that is kept free for a class of work, so that its next pods need not \
                      wait.",
        spec,
        status: Some(status),
        rules: json!([]),
        columns: json!([
            { "name": "Class", "type": "string", "jsonPath": ".spec.class" },
            { "name": "Count", "type": "integer", "jsonPath": ".spec.count" },
            { "name": "Kept", "type": "integer", "jsonPath": ".status.kept" },
        ]),
    }
    .json()
}
