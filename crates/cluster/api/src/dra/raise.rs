//! The way back from the model to the API, for what a scheduler writes: allocations, and the requests of claims it creates.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::affinity::NodeTerm;
use berth_model::dra::Amounts;
use berth_model::dra::claim::{
    AllocatedConfig, AllocatedDevice, Allocation, ClaimSpec, ConfigSource, Count, DeviceRequest,
    Request, RequestKind, Share,
};
use berth_model::label::Operator;
use berth_model::taint::{Effect, Toleration, TolerationOperator};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use k8s_openapi::jiff::Timestamp;
use thiserror::Error;

use crate::selector::NODE_NAME_FIELD;

/// Something that the API has no way to write.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RaiseError {
    /// A condition on nodes that never holds: it came from one that could not be read.
    #[error("a condition on nodes cannot be written: {0}")]
    Condition(String),
    /// A request of a kind that is not understood.
    #[error("request {0} asks for something that is not understood")]
    Request(Arc<str>),
    /// What a driver is to be told is not JSON.
    #[error("what driver {0} is to be told is not JSON")]
    Config(Arc<str>),
}

/// What a claim was given. `share_id` names each part of a device that others share, if it has no name
/// yet: a UUID, by the API's rules.
///
/// # Errors
///
/// When there is something that the API cannot store. Nothing that the search finds is.
pub fn allocation(
    given: &Allocation,
    mut share_id: impl FnMut() -> String,
) -> Result<resource::AllocationResult, RaiseError> {
    let results = given.devices.iter().map(|device| allocated(device, &mut share_id)).collect();
    let configs: Result<Vec<_>, _> = given.configs.iter().map(config).collect();
    let timestamp = given.allocated_at_ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    Ok(resource::AllocationResult {
        allocation_timestamp: timestamp.map(Time),
        devices: Some(resource::DeviceAllocationResult {
            config: filled(configs?),
            results: filled(results),
        }),
        node_selector: given.nodes.as_deref().map(node_selector).transpose()?,
    })
}

/// What a claim asks for that a scheduler makes: exact requests only.
///
/// # Errors
///
/// When a request is one of alternatives, or not understood.
pub fn claim_spec(spec: &ClaimSpec) -> Result<resource::ResourceClaimSpec, RaiseError> {
    let requests: Result<Vec<_>, _> = spec.requests.iter().map(request).collect();
    let devices = resource::DeviceClaim { requests: filled(requests?), ..Default::default() };
    Ok(resource::ResourceClaimSpec { devices: Some(devices) })
}

fn filled<T>(list: Vec<T>) -> Option<Vec<T>> {
    Some(list).filter(|list| !list.is_empty())
}

fn texts(list: &[Arc<str>]) -> Option<Vec<String>> {
    filled(list.iter().map(ToString::to_string).collect())
}

fn amounts(amounts: &Amounts) -> BTreeMap<String, Text> {
    amounts.iter().map(|(name, amount)| (name.to_string(), Text(amount.to_string()))).collect()
}

fn request(request: &Request) -> Result<resource::DeviceRequest, RaiseError> {
    let RequestKind::Exactly(ask) = &request.kind else {
        return Err(RaiseError::Request(request.name.clone()));
    };
    let exactly = exactly(ask).ok_or_else(|| RaiseError::Request(request.name.clone()))?;
    Ok(resource::DeviceRequest {
        name: request.name.to_string(),
        exactly: Some(exactly),
        first_available: None,
    })
}

fn exactly(ask: &DeviceRequest) -> Option<resource::ExactDeviceRequest> {
    let (mode, count) = match ask.count {
        Count::Exactly(count) => ("ExactCount", Some(count)),
        Count::All => ("All", None),
        Count::Unknown(_) => return None,
    };
    let selector = |text: &Arc<str>| resource::DeviceSelector {
        cel: Some(resource::CELDeviceSelector { expression: text.to_string() }),
    };
    let capacity = (!ask.capacity.is_empty())
        .then(|| resource::CapacityRequirements { requests: Some(amounts(&ask.capacity)) });
    Some(resource::ExactDeviceRequest {
        admin_access: ask.admin_access.then_some(true),
        allocation_mode: Some(mode.to_owned()),
        capacity,
        count,
        device_class_name: ask.class.to_string(),
        selectors: filled(ask.selectors.iter().map(selector).collect()),
        tolerations: filled(ask.tolerations.iter().filter_map(toleration).collect()),
    })
}

fn allocated(
    device: &AllocatedDevice,
    share_id: &mut impl FnMut() -> String,
) -> resource::DeviceRequestAllocationResult {
    let (share_id, consumed) = match &device.share {
        Share::Whole => (None, None),
        Share::Part { share_id: known, consumed } => {
            let id = known.as_ref().map_or_else(share_id, ToString::to_string);
            (Some(id), Some(amounts(consumed)).filter(|amounts| !amounts.is_empty()))
        }
    };
    resource::DeviceRequestAllocationResult {
        admin_access: device.admin_access.then_some(true),
        binding_conditions: texts(&device.binding_conditions),
        binding_failure_conditions: texts(&device.binding_failure_conditions),
        consumed_capacity: consumed,
        device: device.id.device.to_string(),
        driver: device.id.driver.to_string(),
        pool: device.id.pool.to_string(),
        request: device.request.to_string(),
        share_id,
        tolerations: filled(device.tolerations.iter().filter_map(toleration).collect()),
    }
}

/// `None` for what devices' tolerations do not know: lowering gives no such one.
fn toleration(one: &Toleration) -> Option<resource::DeviceToleration> {
    let (operator, value) = match &one.operator {
        TolerationOperator::Equal(value) => ("Equal", Some(value.to_string())),
        TolerationOperator::Exists => ("Exists", None),
        TolerationOperator::Lt(_) | TolerationOperator::Gt(_) => return None,
    };
    let effect = match one.effect {
        None => None,
        Some(Effect::NoSchedule) => Some("NoSchedule".to_owned()),
        Some(Effect::NoExecute) => Some("NoExecute".to_owned()),
        Some(Effect::PreferNoSchedule) => return None,
    };
    Some(resource::DeviceToleration {
        effect,
        key: Some(one.key.to_string()).filter(|key| !key.is_empty()),
        operator: Some(operator.to_owned()),
        toleration_seconds: None,
        value: value.filter(|value| !value.is_empty()),
    })
}

fn config(given: &AllocatedConfig) -> Result<resource::DeviceAllocationConfiguration, RaiseError> {
    let driver = &given.config.driver;
    let parameters = serde_json::from_str(&given.config.parameters);
    let parameters = parameters.map_err(|_| RaiseError::Config(driver.clone()))?;
    Ok(resource::DeviceAllocationConfiguration {
        opaque: Some(resource::OpaqueDeviceConfiguration {
            driver: driver.to_string(),
            parameters: RawExtension(parameters),
        }),
        requests: texts(&given.requests),
        source: match given.source {
            ConfigSource::Class => "FromClass".to_owned(),
            ConfigSource::Claim => "FromClaim".to_owned(),
        },
    })
}

fn node_selector(terms: &[NodeTerm]) -> Result<NodeSelector, RaiseError> {
    let term = |term: &NodeTerm| {
        let labels = term.labels.iter().map(|one| requirement(&one.key, &one.operator));
        let names = term.name.iter().map(|one| requirement(NODE_NAME_FIELD, one));
        Ok(NodeSelectorTerm {
            match_expressions: filled(labels.collect::<Result<_, _>>()?),
            match_fields: filled(names.collect::<Result<_, _>>()?),
        })
    };
    let terms: Result<Vec<_>, _> = terms.iter().map(term).collect();
    Ok(NodeSelector { node_selector_terms: terms? })
}

fn requirement(key: &str, operator: &Operator) -> Result<NodeSelectorRequirement, RaiseError> {
    let (operator, values) = match operator {
        Operator::In(values) => ("In", texts(values)),
        Operator::NotIn(values) => ("NotIn", texts(values)),
        Operator::Exists => ("Exists", None),
        Operator::DoesNotExist => ("DoesNotExist", None),
        Operator::Gt(bound) => ("Gt", Some(vec![bound.to_string()])),
        Operator::Lt(bound) => ("Lt", Some(vec![bound.to_string()])),
        Operator::Never => return Err(RaiseError::Condition(key.to_owned())),
    };
    Ok(NodeSelectorRequirement { key: key.to_owned(), operator: operator.to_owned(), values })
}
