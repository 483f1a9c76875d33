//! Lowers ResourceSlices to the model.

use std::sync::Arc;

use berth_model::dra::slice::{
    Attribute, Capacity, CounterSet, Device, NodeScope, RequestPolicy, ResourceSlice, SlicePool,
    ValidRequests,
};
use berth_model::taint::Taint;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1 as resource;

use super::{counters, effect, node_terms, quantity, texts};
use crate::Lower;
use crate::error::{self, LowerError, Problem, each};
use crate::meta;

impl Lower for resource::ResourceSlice {
    type Model = ResourceSlice;

    fn lower(&self) -> Result<ResourceSlice, LowerError> {
        error::of(self, slice(self))
    }
}

fn slice(slice: &resource::ResourceSlice) -> Result<ResourceSlice, Problem> {
    let spec = &slice.spec;
    let in_spec = |problem: Problem| problem.under("spec");
    let own = scope(spec.node_name.as_ref(), spec.all_nodes, spec.node_selector.as_ref());
    let per_device = spec.per_device_node_selection == Some(true);
    let shared_counters = each("spec.sharedCounters", spec.shared_counters.as_ref(), |set| {
        Ok(CounterSet { name: set.name.as_str().into(), counters: counters(&set.counters)? })
    })?;
    Ok(ResourceSlice {
        name: meta::name(&slice.metadata)?,
        driver: spec.driver.as_str().into(),
        pool: SlicePool {
            name: spec.pool.name.as_str().into(),
            generation: spec.pool.generation,
            slice_count: spec.pool.resource_slice_count,
        },
        scope: match own.map_err(in_spec)? {
            NodeScope::Nowhere if per_device => NodeScope::PerDevice,
            scope => scope,
        },
        devices: each("spec.devices", spec.devices.as_ref(), device)?,
        shared_counters,
    })
}

fn scope(
    node: Option<&String>,
    all: Option<bool>,
    selector: Option<&NodeSelector>,
) -> Result<NodeScope, Problem> {
    Ok(match (meta::filled(node), all, selector) {
        (Some(node), _, _) => NodeScope::Node(node),
        (None, Some(true), _) => NodeScope::AllNodes,
        (None, _, Some(selector)) => {
            let terms = node_terms(selector).map_err(|problem| problem.under("nodeSelector"))?;
            NodeScope::Nodes(terms)
        }
        (None, _, None) => NodeScope::Nowhere,
    })
}

fn device(device: &resource::Device) -> Result<Device, Problem> {
    let attributes = device.attributes.iter().flatten();
    let capacity = device.capacity.iter().flatten().map(|(name, given)| {
        let lowered = self::capacity(given);
        let lowered = lowered.map_err(|problem| problem.under(format!("capacity[{name}]")));
        Ok((Arc::from(name.as_str()), lowered?))
    });
    let consumes = each("consumesCounters", device.consumes_counters.as_ref(), |set| {
        Ok(CounterSet { name: set.counter_set.as_str().into(), counters: counters(&set.counters)? })
    })?;
    Ok(Device {
        name: device.name.as_str().into(),
        attributes: attributes
            .map(|(name, given)| (Arc::from(name.as_str()), attribute(given)))
            .collect(),
        capacity: capacity.collect::<Result<_, Problem>>()?,
        consumes,
        scope: scope(device.node_name.as_ref(), device.all_nodes, device.node_selector.as_ref())?,
        taints: device.taints.iter().flatten().filter_map(taint).collect(),
        shareable: device.allow_multiple_allocations == Some(true),
        binds_to_node: device.binds_to_node == Some(true),
        binding_conditions: texts(device.binding_conditions.as_ref()),
        binding_failure_conditions: texts(device.binding_failure_conditions.as_ref()),
    })
}

fn attribute(given: &resource::DeviceAttribute) -> Attribute {
    match given {
        resource::DeviceAttribute { int: Some(int), .. } => Attribute::Int(*int),
        resource::DeviceAttribute { bool: Some(bool), .. } => Attribute::Bool(*bool),
        resource::DeviceAttribute { string: Some(text), .. } => {
            Attribute::Text(text.as_str().into())
        }
        resource::DeviceAttribute { version: Some(text), .. } => {
            Attribute::Version(text.as_str().into())
        }
        _ => Attribute::Unsupported,
    }
}

fn capacity(given: &resource::DeviceCapacity) -> Result<Capacity, Problem> {
    let value = quantity(&given.value).map_err(|problem| problem.under("value"))?;
    let policy = given.request_policy.as_ref().map(policy).transpose();
    Ok(Capacity { value, policy: policy.map_err(|problem| problem.under("requestPolicy"))? })
}

fn policy(given: &resource::CapacityRequestPolicy) -> Result<RequestPolicy, Problem> {
    let optional = |field: &'static str, text: Option<&_>| {
        text.map(quantity).transpose().map_err(|problem: Problem| problem.under(field))
    };
    let valid = match (&given.valid_range, &given.valid_values) {
        (Some(range), _) => ValidRequests::Range {
            min: quantity(&range.min).map_err(|problem| problem.under("validRange.min"))?,
            max: optional("validRange.max", range.max.as_ref())?,
            step: optional("validRange.step", range.step.as_ref())?,
        },
        (None, Some(values)) if !values.is_empty() => {
            ValidRequests::Values(each("validValues", Some(values), quantity)?)
        }
        _ => ValidRequests::Any,
    };
    Ok(RequestPolicy { default: optional("default", given.default.as_ref())?, valid })
}

fn taint(taint: &resource::DeviceTaint) -> Option<Taint> {
    Some(Taint {
        key: taint.key.as_str().into(),
        value: meta::text(taint.value.as_ref()),
        effect: effect(&taint.effect)?,
    })
}
