//! Dynamic Resource Allocation (`resource.k8s.io/v1`): what slices, classes and claims have in common.

mod claim;
pub mod raise;
mod slice;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::affinity::NodeTerm;
use berth_model::dra::{Amounts, Config, DeviceClass};
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceName;
use berth_model::taint::Effect;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use crate::Lower;
use crate::error::{self, LowerError, Problem, each};
use crate::meta;
use crate::selector::{NodeNames, node_term};

impl Lower for resource::DeviceClass {
    type Model = DeviceClass;

    fn lower(&self) -> Result<DeviceClass, LowerError> {
        error::of(self, class(self))
    }
}

fn class(class: &resource::DeviceClass) -> Result<DeviceClass, Problem> {
    let spec = &class.spec;
    let extended_resource = meta::filled(spec.extended_resource_name.as_ref());
    let configs = each("spec.config", spec.config.as_ref(), |one| config(one.opaque.as_ref()))?;
    Ok(DeviceClass {
        name: meta::name(&class.metadata)?,
        created_at_ms: meta::unix_ms(class.metadata.creation_timestamp.as_ref()).unwrap_or(0),
        selectors: each("spec.selectors", spec.selectors.as_ref(), selector)?,
        extended_resource: extended_resource.map(ResourceName::new),
        configs,
    })
}

fn selector(selector: &resource::DeviceSelector) -> Result<Arc<str>, Problem> {
    match &selector.cel {
        Some(cel) => Ok(cel.expression.as_str().into()),
        None => Err(Problem::new("cel", "is missing; a selector is a CEL expression")),
    }
}

fn config(opaque: Option<&resource::OpaqueDeviceConfiguration>) -> Result<Config, Problem> {
    let Some(opaque) = opaque else {
        return Err(Problem::new("opaque", "is missing; no other kind of configuration is known"));
    };
    Ok(Config {
        driver: opaque.driver.as_str().into(),
        parameters: opaque.parameters.0.to_string().into(),
    })
}

fn texts(list: Option<&Vec<String>>) -> Vec<Arc<str>> {
    list.into_iter().flatten().map(|text| text.as_str().into()).collect()
}

/// A quantity of a device, which may even be negative: the API server takes any.
fn quantity(text: &Text) -> Result<Quantity, Problem> {
    Quantity::parse(&text.0).map_err(|error| Problem::new("", error))
}

fn amounts<'a>(list: impl IntoIterator<Item = (&'a String, &'a Text)>) -> Result<Amounts, Problem> {
    let lower = |(name, text): (&String, &Text)| {
        let quantity = quantity(text).map_err(|problem| problem.under(format!("[{name}]")));
        Ok((Arc::from(name.as_str()), quantity?))
    };
    list.into_iter().map(lower).collect()
}

fn counters(counters: &BTreeMap<String, resource::Counter>) -> Result<Amounts, Problem> {
    amounts(counters.iter().map(|(name, counter)| (name, &counter.value)))
        .map_err(|problem| problem.under("counters"))
}

fn node_terms(selector: &NodeSelector) -> Result<Vec<NodeTerm>, Problem> {
    let terms = Some(&selector.node_selector_terms);
    each("nodeSelectorTerms", terms, |term| node_term(term, NodeNames::Matched))
}

/// What a taint does to claims; `None` if nothing, which is what effects unknown to kube-scheduler
/// 1.36 do as well.
fn effect(effect: &str) -> Option<Effect> {
    match effect {
        "NoSchedule" => Some(Effect::NoSchedule),
        "NoExecute" => Some(Effect::NoExecute),
        _ => None,
    }
}
