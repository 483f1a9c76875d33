//! ResourceClaims: their defaults and status.

use std::sync::Arc;

use berth_model::dra::claim::{
    AllocatedConfig, AllocatedDevice, Allocation, Claim, ClaimConfig, ClaimSpec, ConfigSource,
    Constraint, ConstraintRule, Count, DeviceConditions, DeviceRequest, Request, RequestKind,
    Share,
};
use berth_model::dra::{Amounts, DeviceId};
use berth_model::taint::{Toleration, TolerationOperator};
use k8s_openapi::api::resource::v1 as resource;

use super::{amounts, config, effect, node_terms, selector, texts};
use crate::Lower;
use crate::error::{self, LowerError, Problem, each};
use crate::meta;

/// Marks claims that a scheduler made for a pod's extended resources.
const FOR_EXTENDED_RESOURCES: &str = "resource.kubernetes.io/extended-resource-claim";

impl Lower for resource::ResourceClaim {
    type Model = Claim;

    /// The claim; one without a UID, as in a manifest, is known by its namespace and name.
    fn lower(&self) -> Result<Claim, LowerError> {
        error::of(self, claim(self))
    }
}

fn claim(claim: &resource::ResourceClaim) -> Result<Claim, Problem> {
    let (name, namespace) = (meta::name(&claim.metadata)?, meta::namespace(&claim.metadata));
    let status = claim.status.as_ref();
    let allocation = status.and_then(|status| status.allocation.as_ref()).map(allocation);
    let users = status.and_then(|status| status.reserved_for.as_deref()).into_iter().flatten();
    let said = status.and_then(|status| status.devices.as_deref()).into_iter().flatten();
    let controller = meta::controller(&claim.metadata);
    let marked = meta::annotation(&claim.metadata, FOR_EXTENDED_RESOURCES);
    Ok(Claim {
        uid: meta::filled(claim.metadata.uid.as_ref())
            .unwrap_or_else(|| format!("{namespace}/{name}").into()),
        deleting: claim.metadata.deletion_timestamp.is_some(),
        controller_uid: controller.map(|owner| owner.uid.as_str().into()),
        for_extended_resources: marked == Some("true"),
        spec: match &claim.spec.devices {
            Some(devices) => spec(devices).map_err(|problem| problem.under("spec.devices"))?,
            None => ClaimSpec::default(),
        },
        allocation: allocation.transpose().map_err(|problem| problem.under("status.allocation"))?,
        reserved_for: users.map(|user| user.uid.as_str().into()).collect(),
        device_conditions: said.map(device_conditions).collect(),
        namespace,
        name,
    })
}

fn spec(devices: &resource::DeviceClaim) -> Result<ClaimSpec, Problem> {
    Ok(ClaimSpec {
        requests: each("requests", devices.requests.as_ref(), request)?,
        constraints: each("constraints", devices.constraints.as_ref(), |one| Ok(constraint(one)))?,
        configs: each("config", devices.config.as_ref(), |one| {
            let requests = texts(one.requests.as_ref());
            Ok(ClaimConfig { requests, config: config(one.opaque.as_ref())? })
        })?,
    })
}

fn request(request: &resource::DeviceRequest) -> Result<Request, Problem> {
    let alternatives = request.first_available.as_ref().filter(|list| !list.is_empty());
    let kind = match (&request.exactly, alternatives) {
        (Some(exactly), _) => RequestKind::Exactly(DeviceRequest {
            class: exactly.device_class_name.as_str().into(),
            selectors: each("exactly.selectors", exactly.selectors.as_ref(), selector)?,
            count: count(exactly.allocation_mode.as_deref(), exactly.count),
            admin_access: exactly.admin_access == Some(true),
            tolerations: tolerations(exactly.tolerations.as_ref()),
            capacity: capacity(exactly.capacity.as_ref())
                .map_err(|problem| problem.under("exactly"))?,
        }),
        (None, Some(_)) => RequestKind::FirstOf(each("firstAvailable", alternatives, alternative)?),
        (None, None) => RequestKind::Unknown,
    };
    Ok(Request { name: request.name.as_str().into(), kind })
}

fn alternative(one: &resource::DeviceSubRequest) -> Result<(Arc<str>, DeviceRequest), Problem> {
    let ask = DeviceRequest {
        class: one.device_class_name.as_str().into(),
        selectors: each("selectors", one.selectors.as_ref(), selector)?,
        count: count(one.allocation_mode.as_deref(), one.count),
        admin_access: false,
        tolerations: tolerations(one.tolerations.as_ref()),
        capacity: capacity(one.capacity.as_ref())?,
    };
    Ok((one.name.as_str().into(), ask))
}

/// How many, with the defaults of the API server.
fn count(mode: Option<&str>, count: Option<i64>) -> Count {
    match mode {
        None | Some("" | "ExactCount") => {
            Count::Exactly(count.filter(|count| *count != 0).unwrap_or(1))
        }
        Some("All") => Count::All,
        Some(other) => Count::Unknown(other.into()),
    }
}

fn capacity(capacity: Option<&resource::CapacityRequirements>) -> Result<Amounts, Problem> {
    let requests = capacity.and_then(|capacity| capacity.requests.as_ref()).into_iter().flatten();
    amounts(requests).map_err(|problem| problem.under("capacity.requests"))
}

/// Those that can have an effect: others name effects or operators that do nothing.
fn tolerations(list: Option<&Vec<resource::DeviceToleration>>) -> Vec<Toleration> {
    let lower = |one: &resource::DeviceToleration| {
        let operator = match one.operator.as_deref() {
            None | Some("" | "Equal") => TolerationOperator::Equal(meta::text(one.value.as_ref())),
            Some("Exists") => TolerationOperator::Exists,
            Some(_) => return None,
        };
        let effect = match one.effect.as_deref() {
            None | Some("") => None,
            Some(named) => Some(effect(named)?),
        };
        Some(Toleration { key: meta::text(one.key.as_ref()), operator, effect })
    };
    list.into_iter().flatten().filter_map(lower).collect()
}

fn constraint(one: &resource::DeviceConstraint) -> Constraint {
    let rule = match (&one.match_attribute, &one.distinct_attribute) {
        (Some(name), _) => ConstraintRule::Match(name.as_str().into()),
        (None, Some(name)) => ConstraintRule::Distinct(name.as_str().into()),
        (None, None) => ConstraintRule::Unknown,
    };
    Constraint { requests: texts(one.requests.as_ref()), rule }
}

fn allocation(given: &resource::AllocationResult) -> Result<Allocation, Problem> {
    let devices = given.devices.as_ref();
    let results = devices.and_then(|devices| devices.results.as_ref());
    let configs = devices.and_then(|devices| devices.config.as_ref());
    let nodes = given.node_selector.as_ref().map(node_terms).transpose();
    Ok(Allocation {
        devices: each("devices.results", results, allocated)?,
        configs: each("devices.config", configs, allocated_config)?,
        nodes: nodes.map_err(|problem| problem.under("nodeSelector"))?,
        allocated_at_ms: meta::unix_ms(given.allocation_timestamp.as_ref()),
    })
}

fn allocated(given: &resource::DeviceRequestAllocationResult) -> Result<AllocatedDevice, Problem> {
    let consumed = amounts(given.consumed_capacity.iter().flatten())
        .map_err(|problem| problem.under("consumedCapacity"))?;
    Ok(AllocatedDevice {
        request: given.request.as_str().into(),
        id: id(&given.driver, &given.pool, &given.device),
        admin_access: given.admin_access == Some(true),
        share: match given.share_id.as_deref() {
            Some(share_id) => Share::Part { share_id: Some(share_id.into()), consumed },
            None => Share::Whole,
        },
        tolerations: tolerations(given.tolerations.as_ref()),
        binding_conditions: texts(given.binding_conditions.as_ref()),
        binding_failure_conditions: texts(given.binding_failure_conditions.as_ref()),
    })
}

fn allocated_config(
    given: &resource::DeviceAllocationConfiguration,
) -> Result<AllocatedConfig, Problem> {
    let source = match given.source.as_str() {
        "FromClass" => ConfigSource::Class,
        "FromClaim" => ConfigSource::Claim,
        other => return Err(Problem::unknown("source", other, "FromClass or FromClaim")),
    };
    let requests = texts(given.requests.as_ref());
    Ok(AllocatedConfig { source, requests, config: config(given.opaque.as_ref())? })
}

fn device_conditions(given: &resource::AllocatedDeviceStatus) -> DeviceConditions {
    let conditions = given.conditions.iter().flatten();
    DeviceConditions {
        id: id(&given.driver, &given.pool, &given.device),
        true_conditions: conditions
            .filter(|condition| condition.status == "True")
            .map(|condition| condition.type_.as_str().into())
            .collect(),
    }
}

fn id(driver: &str, pool: &str, device: &str) -> DeviceId {
    DeviceId { driver: driver.into(), pool: pool.into(), device: device.into() }
}
