//! Quantities by resource.

use std::collections::BTreeMap;

use berth_model::pod::Resources;
use berth_model::quantity::Quantity;
use berth_model::resource::{ResourceList, ResourceName};
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::error::Problem;

pub(crate) fn resource_list(
    field: &str,
    list: Option<&BTreeMap<String, Text>>,
) -> Result<ResourceList, Problem> {
    let lower = |(name, Text(text)): (&String, &Text)| {
        let quantity = quantity(text).map_err(|problem| problem.under(format!("{field}[{name}]")));
        Ok((ResourceName::new(name.as_str()), quantity?))
    };
    list.into_iter().flatten().map(lower).collect()
}

pub(crate) fn quantity(text: &str) -> Result<Quantity, Problem> {
    let parsed = Quantity::parse(text).and_then(Quantity::non_negative);
    parsed.map_err(|error| Problem::new("", error))
}

pub(crate) fn resources(given: &ResourceRequirements) -> Result<Resources, Problem> {
    Ok(Resources {
        requests: resource_list("requests", given.requests.as_ref())?,
        limits: resource_list("limits", given.limits.as_ref())?,
    })
}
