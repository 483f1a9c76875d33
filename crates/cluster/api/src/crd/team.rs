//! Team: a set of namespaces with a part of the cluster.

use std::collections::BTreeMap;

use berth_tenancy::share::{self, Dimension, Entitlement, GPU_PARTS};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Definition, object, quantity_of};
use crate::error::{self, LowerError, Problem};
use crate::{Lower, meta};

/// A set of namespaces with a part of the cluster: what it is guaranteed, may borrow and lends.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend(
    "required" = ["spec"],
    "x-kubernetes-validations" = [{
        "rule": "!has(self.spec.parent) || self.spec.parent != self.metadata.name",
        "message": "a team cannot be its own parent",
        "fieldPath": ".spec.parent",
    }],
))]
pub struct Team {
    pub api_version: String,
    pub kind: String,
    #[schemars(schema_with = "super::metadata")]
    pub metadata: ObjectMeta,
    pub spec: TeamSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<TeamStatus>,
}

object!(Team, "Team", "teams");

/// What the team is entitled to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TeamSpec {
    /// Team that this team is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub parent: Option<String>,
    /// Namespaces whose pods count for the team. If several teams list a namespace, the label berth.dev/team of the
    /// pod decides. A team that lists none counts the pods with its label in namespaces that no team lists.
    #[schemars(
        length(max = 1000),
        inner(length(max = 63)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub namespaces: Vec<String>,
    /// Weight when teams compete for idle capacity. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::quantity")]
    pub weight: Option<IntOrString>,
    /// Shares by resource. A resource that is not listed is neither guaranteed nor limited.
    #[schemars(
        length(max = 64),
        extend(
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["resource", "model"]
        )
    )]
    pub shares: Vec<Share>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    #[default]
    Gpus,
    GpuMemory,
    Cpu,
    Memory,
}

/// Share of one resource.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend(
    "required" = ["resource"],
    "x-kubernetes-validations" = [{
        "rule": "!has(self.model) || self.model == '' || self.resource == 'gpus'",
        "message": "model is for gpus only",
    }],
))]
pub struct Share {
    /// Resource: gpus (slices and shares count as parts of one), gpu-memory, cpu or memory.
    pub resource: Resource,
    /// GPU model, as in the node label nvidia.com/gpu.product. Default: any.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253), extend("x-default" = ""))]
    pub model: String,
    /// Amount that the team gets whenever it has work for it; reclaimed from borrowers if needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::quantity")]
    pub guaranteed: Option<IntOrString>,
    /// Amount beyond the guarantee that the team may use while it is idle. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::quantity")]
    pub borrow_limit: Option<IntOrString>,
    /// Part of the guarantee that others may use while it is idle. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::quantity")]
    pub lend_limit: Option<IntOrString>,
}

/// What the team uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TeamStatus {
    /// Usage by resource.
    pub usage: Vec<Usage>,
    /// Conditions of the team. Valid is False if its parent does not exist, or if guarantees exceed those of the
    /// parent or the capacity of the cluster.
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["type"]
    ))]
    pub conditions: Vec<StatusCondition>,
}

/// Condition of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["type", "status"]))]
pub struct StatusCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub condition_type: String,
    /// True, False or Unknown.
    pub status: String,
    /// Reason in one word.
    pub reason: String,
    /// Details, with the fields to change.
    pub message: String,
}

/// Usage of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Resource: gpus, gpu-memory, cpu or memory.
    pub resource: Resource,
    /// GPU model; empty: any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Amount in use.
    pub used: String,
    /// Guaranteed amount.
    pub guaranteed: String,
    /// Amount in use beyond the guarantee.
    pub borrowed: String,
    /// Part of the guarantee that others use.
    pub lent: String,
    /// Where the borrowed amount comes from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub borrowed_from: Vec<Loan>,
}

/// A borrowed amount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Loan {
    /// Team that lends it; empty if it is guaranteed to nobody.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub team: String,
    /// Amount.
    pub amount: String,
    /// Whether it goes back to the next team that claims its guarantee.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub owed: bool,
}

impl Share {
    fn dimension(&self) -> Result<Dimension, Problem> {
        Ok(match (self.resource, self.model.as_str()) {
            (Resource::Gpus, "") => Dimension::Gpus,
            (Resource::Gpus, model) => Dimension::GpusOf(model.into()),
            (_, model) if !model.is_empty() => {
                let problem = "is for gpus only; remove it, or set resource: gpus";
                return Err(Problem::new("model", problem));
            }
            (Resource::GpuMemory, _) => Dimension::GpuMemory,
            (Resource::Cpu, _) => Dimension::Cpu,
            (Resource::Memory, _) => Dimension::Memory,
        })
    }

    fn lower(&self) -> Result<(Dimension, Entitlement), Problem> {
        let amount = |field: &str, written: Option<&IntOrString>| {
            let amount = written.map(|written| self.amount(written)).transpose();
            amount.map_err(|problem| problem.under(field))
        };
        let entitlement = Entitlement {
            guaranteed: amount("guaranteed", self.guaranteed.as_ref())?.unwrap_or(0),
            borrow_max: amount("borrowLimit", self.borrow_limit.as_ref())?,
            lend_max: amount("lendLimit", self.lend_limit.as_ref())?,
        };
        Ok((self.dimension()?, entitlement))
    }

    fn amount(&self, written: &IntOrString) -> Result<i64, Problem> {
        let quantity = quantity_of(written)?;
        Ok(match self.resource {
            Resource::Gpus => quantity.milli_value().saturating_mul(GPU_PARTS / 1_000),
            Resource::Cpu => quantity.milli_value(),
            Resource::GpuMemory | Resource::Memory => quantity.value(),
        }
        .min(share::AMOUNT_MAX))
    }
}

impl Lower for Team {
    type Model = share::Team;

    fn lower(&self) -> Result<share::Team, LowerError> {
        let lower = || -> Result<share::Team, Problem> {
            let shares = error::each("spec.shares", Some(&self.spec.shares), Share::lower)?;
            let mut entitlements = BTreeMap::new();
            for (index, (dimension, entitlement)) in shares.into_iter().enumerate() {
                if entitlements.insert(dimension.clone(), entitlement).is_some() {
                    let problem = format!("{dimension} is listed twice; write it once");
                    return Err(Problem::new(format!("spec.shares[{index}]"), problem));
                }
            }
            let weight = self.spec.weight.as_ref().map(quantity_of).transpose();
            let weight = weight.map_err(|problem| problem.under("spec.weight"))?;
            let weight_milli = weight.map_or(1_000, |weight| weight.milli_value());
            Ok(share::Team {
                name: meta::name(&self.metadata)?,
                parent: meta::filled(self.spec.parent.as_ref()),
                namespaces: meta::shared(Some(&self.spec.namespaces)).into_iter().collect(),
                weight_milli: u32::try_from(weight_milli).unwrap_or(u32::MAX),
                entitlements,
            })
        };
        error::of(self, lower())
    }
}

pub(super) fn definition() -> Value {
    let columns = &[
        ("Parent", "string", ".spec.parent"),
        ("GPUs", "string", ".spec.shares[?(@.resource==\"gpus\")].guaranteed"),
        ("Used", "string", ".status.usage[?(@.resource==\"gpus\")].used"),
        ("Borrowed", "string", ".status.usage[?(@.resource==\"gpus\")].borrowed"),
        ("Valid", "string", ".status.conditions[?(@.type==\"Valid\")].status"),
    ];
    Definition { kind: "Team", plural: "teams", short: "bteam", columns }.of::<Team>()
}
