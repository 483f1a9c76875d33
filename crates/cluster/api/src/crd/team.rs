//! Team: who shares the cluster, and what each is entitled to.
//!
//! Owns the object and its definition. Must not know what teams have.

use std::collections::BTreeMap;

use berth_tenancy::share::{self, Dimension, Entitlement, GPU_PARTS};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Definition, object, quantity_of, quantity_schema};
use crate::error::{self, LowerError, Problem};
use crate::{Lower, meta};

/// A team, or a group of teams.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Team {
    /// `berth.dev/v1alpha1`.
    pub api_version: String,
    /// `Team`.
    pub kind: String,
    /// Its name is the team's.
    pub metadata: ObjectMeta,
    /// What it is entitled to.
    pub spec: TeamSpec,
    /// What it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<TeamStatus>,
}

object!(Team, "Team", "teams");

/// What a team is entitled to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TeamSpec {
    /// The group it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Namespaces whose pods are its own.
    pub namespaces: Vec<String>,
    /// How much of what is idle it may have, compared with others; 1 if it is not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<IntOrString>,
    /// By what there is to share.
    pub shares: Vec<Share>,
}

/// Something that teams have shares of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// GPUs, slices and shares as parts of one.
    #[default]
    Gpus,
    /// Memory of GPUs.
    GpuMemory,
    /// CPU.
    Cpu,
    /// Memory.
    Memory,
}

/// What a team may have of something.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Share {
    /// Of what.
    pub resource: Resource,
    /// Of which model of GPU; empty: of any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// What it gets whenever it has work for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guaranteed: Option<IntOrString>,
    /// How much more it may have while others leave it idle; not written: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrow_limit: Option<IntOrString>,
    /// How much of its guarantee others may have; not written: all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lend_limit: Option<IntOrString>,
}

/// What a team has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TeamStatus {
    /// By what there is to share.
    pub usage: Vec<Usage>,
    /// What is wrong with the team, if anything is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// What a team has of something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Of what.
    pub resource: Resource,
    /// Of which model of GPU; empty: of any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// What it has.
    pub used: String,
    /// What it is guaranteed.
    pub guaranteed: String,
    /// What it has beyond that.
    pub borrowed: String,
    /// How much of its guarantee others have.
    pub lent: String,
    /// Where what it borrowed comes from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub borrowed_from: Vec<Loan>,
}

/// Something borrowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Loan {
    /// The team or group that lends it; empty: nobody was guaranteed it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub team: String,
    /// How much.
    pub amount: String,
    /// Whether it is to be given back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub owed: bool,
}

impl Share {
    fn dimension(&self) -> Result<Dimension, Problem> {
        Ok(match (self.resource, self.model.as_str()) {
            (Resource::Gpus, "") => Dimension::Gpus,
            (Resource::Gpus, model) => Dimension::GpusOf(model.into()),
            (_, model) if !model.is_empty() => {
                let problem = "is for gpus only; leave it out, or write resource: gpus";
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

fn share() -> Value {
    let resource = json!({
        "type": "string", "enum": ["gpus", "gpu-memory", "cpu", "memory"],
        "description": "What is shared: gpus (whole ones, slices and shares as parts of one), \
                        gpu-memory, cpu or memory.",
    });
    let model = json!({
        "type": "string", "default": "", "maxLength": 253,
        "description": "The model of GPU, as the label nvidia.com/gpu.product names it; empty: any.",
    });
    json!({
        "type": "object",
        "required": ["resource"],
        "properties": {
            "resource": resource,
            "model": model,
            "guaranteed": quantity_schema(
                "What the team gets whenever it has work for it, if need be back from those who \
                 borrow it."),
            "borrowLimit": quantity_schema(
                "How much more it may have while others leave it idle; left out: no limit."),
            "lendLimit": quantity_schema(
                "How much of its guarantee others may have while it is idle; left out: all."),
        },
        "x-kubernetes-validations": [{
            "rule": "!has(self.model) || self.model == '' || self.resource == 'gpus'",
            "message": "model is for gpus only",
        }],
    })
}

pub(super) fn definition() -> Value {
    let spec = json!({
        "type": "object",
        "description": "What the team is entitled to.",
        "properties": {
            "parent": { "type": "string", "maxLength": 253,
                        "description": "The group it belongs to: another Team." },
            "namespaces": {
                "type": "array", "maxItems": 1000, "x-kubernetes-list-type": "set",
                "description": "Namespaces whose pods count for the team. If several teams list a namespace, the \
                                pods' label berth.dev/team decides. A team that lists none counts the pods of \
                                unlisted namespaces that carry the label.",
                "items": { "type": "string", "maxLength": 63 },
            },
            "weight": quantity_schema(
                "How much of what is idle it may have, compared with others; 1 if left out."),
            "shares": {
                "type": "array", "maxItems": 64, "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["resource", "model"],
                "description": "What is not listed is neither guaranteed nor limited.",
                "items": share(),
            },
        },
    });
    Definition {
        kind: "Team",
        plural: "teams",
        short: "bteam",
        description: "A team, or a group of teams: what it is guaranteed, may borrow and lends.",
        spec,
        status: Some(status()),
        rules: json!([{
            "rule": "!has(self.spec.parent) || self.spec.parent != self.metadata.name",
            "message": "a team is not its own parent", "fieldPath": ".spec.parent",
        }]),
        columns: json!([
            { "name": "Parent", "type": "string", "jsonPath": ".spec.parent" },
            { "name": "GPUs", "type": "string",
              "jsonPath": ".spec.shares[?(@.resource==\"gpus\")].guaranteed" },
            { "name": "Used", "type": "string",
              "jsonPath": ".status.usage[?(@.resource==\"gpus\")].used" },
            { "name": "Borrowed", "type": "string",
              "jsonPath": ".status.usage[?(@.resource==\"gpus\")].borrowed" },
        ]),
    }
    .json()
}

fn status() -> Value {
    let text = |description: &str| json!({ "type": "string", "description": description });
    let loan = json!({
        "type": "object",
        "properties": {
            "team": text("Who lends it; empty: nobody was guaranteed it."),
            "amount": text("How much."),
            "owed": { "type": "boolean", "description": "Whether it is to be given back." },
        },
    });
    let usage = json!({
        "type": "object",
        "properties": {
            "resource": text("Of what."),
            "model": text("Of which model of GPU; empty: any."),
            "used": text("What it has."),
            "guaranteed": text("What it is guaranteed."),
            "borrowed": text("What it has beyond that."),
            "lent": text("How much of its guarantee others have."),
            "borrowedFrom": { "type": "array", "items": loan,
                              "description": "Where what it borrowed comes from." },
        },
    });
    json!({
        "type": "object",
        "description": "What the team has.",
        "properties": {
            "usage": { "type": "array", "items": usage, "description": "By what there is to share." },
            "problems": { "type": "array", "items": { "type": "string" },
                          "description": "What is wrong with the team, if anything is." },
        },
    })
}
