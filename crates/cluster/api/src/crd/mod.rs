//! Berth's own objects (`berth.dev/v1alpha1`): teams, headroom, pools, accelerators.
//!
//! Owns what they look like, how they are lowered, and their definitions as the API server wants them.
//! They exist where Kubernetes has nothing of its own. Must not know who reads or writes them.

mod accelerator;
mod headroom;
mod pool;
mod team;
#[cfg(test)]
mod tests;

pub use accelerator::{Accelerator, AcceleratorSpec, MemoryLabel};
pub use headroom::{Headroom, HeadroomSpec, HeadroomStatus};
pub use pool::{Capacity, Pool, PoolSpec, PoolTopology};
pub use team::{Loan, Resource, Share, Team, TeamSpec, TeamStatus, Usage};

use berth_model::quantity::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use crate::error::Problem;

/// The group of Berth's objects.
pub const GROUP: &str = "berth.dev";
/// Their version.
pub const VERSION: &str = "v1alpha1";

/// The definitions of all of them, to be applied to a cluster.
pub fn definitions() -> Vec<Value> {
    vec![accelerator::definition(), headroom::definition(), pool::definition(), team::definition()]
}

/// What differs from one definition to the next.
struct Definition {
    kind: &'static str,
    plural: &'static str,
    short: &'static str,
    description: &'static str,
    spec: Value,
    status: Option<Value>,
    /// Rules over the whole object, in CEL.
    rules: Value,
    columns: Value,
}

impl Definition {
    fn json(self) -> Value {
        let mut properties = json!({
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "spec": self.spec,
        });
        let mut subresources = json!({});
        if let Some(status) = self.status {
            properties["status"] = status;
            subresources["status"] = json!({});
        }
        let mut columns = self.columns;
        if let Some(list) = columns.as_array_mut() {
            list.push(json!({
                "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
            }));
        }
        let mut schema = json!({
            "type": "object",
            "description": self.description,
            "required": ["spec"],
            "properties": properties,
        });
        if self.rules.as_array().is_some_and(|rules| !rules.is_empty()) {
            schema["x-kubernetes-validations"] = self.rules;
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{}.{GROUP}", self.plural) },
            "spec": {
                "group": GROUP,
                "scope": "Cluster",
                "names": {
                    "kind": self.kind, "listKind": format!("{}List", self.kind),
                    "plural": self.plural, "singular": self.kind.to_lowercase(),
                    "shortNames": [self.short], "categories": ["berth"],
                },
                "versions": [{
                    "name": VERSION, "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": schema },
                    "subresources": subresources,
                    "additionalPrinterColumns": columns,
                }],
            },
        })
    }
}

/// The schema of a quantity.
fn quantity_schema(description: &str) -> Value {
    json!({
        "description": description,
        "x-kubernetes-int-or-string": true,
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "pattern": r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$",
    })
}

/// The schema of a class of work.
fn class_schema(description: &str) -> Value {
    json!({
        "type": "string", "description": description,
        "enum": ["interactive", "embedding", "batch", "experimentation"],
    })
}

/// A quantity, which people write as a number where they can.
fn quantity_of(written: &IntOrString) -> Result<Quantity, Problem> {
    match written {
        IntOrString::Int(number) => crate::resource::quantity(&number.to_string()),
        IntOrString::String(text) => crate::resource::quantity(text),
    }
}

/// That a type is an object of ours, for all who handle objects by type.
macro_rules! object {
    ($type:ident, $kind:literal, $plural:literal) => {
        impl k8s_openapi::Resource for $type {
            const API_VERSION: &'static str = "berth.dev/v1alpha1";
            const GROUP: &'static str = crate::crd::GROUP;
            const KIND: &'static str = $kind;
            const VERSION: &'static str = crate::crd::VERSION;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = k8s_openapi::ClusterResourceScope;
        }

        impl k8s_openapi::Metadata for $type {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}

use object;
