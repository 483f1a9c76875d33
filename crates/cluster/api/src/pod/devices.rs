//! ResourceClaims of pods, and where generated names are found.

use std::sync::Arc;

use berth_model::dra::pod::{ClaimSource, DeviceNeeds, PodClaim};
use k8s_openapi::api::core::v1 as core;

use super::containers;
use crate::error::{self, LowerError, Problem};
use crate::meta;

/// What `pod` needs in devices: its claims, and containers that may ask for extended resources.
///
/// # Errors
///
/// When the pod's containers cannot be counted.
pub fn device_needs(pod: &core::Pod) -> Result<DeviceNeeds, LowerError> {
    error::of(pod, needs(pod))
}

fn needs(pod: &core::Pod) -> Result<DeviceNeeds, Problem> {
    let Some(spec) = &pod.spec else {
        return Err(Problem::new("spec", "is missing; a pod has at least one container"));
    };
    let status = pod.status.as_ref();
    let (name, namespace) = (meta::name(&pod.metadata)?, meta::namespace(&pod.metadata));
    Ok(DeviceNeeds {
        uid: meta::filled(pod.metadata.uid.as_ref())
            .unwrap_or_else(|| format!("{namespace}/{name}").into()),
        claims: claims(pod).to_vec(),
        pod: containers::pod(spec, status)?,
        namespace,
        name,
    })
}

/// The claims that a pod refers to.
pub(super) fn claims(pod: &core::Pod) -> Arc<[PodClaim]> {
    let claims = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let lowered = |claim: &core::PodResourceClaim| PodClaim {
        name: claim.name.as_str().into(),
        source: source(claim, pod.status.as_ref()),
    };
    claims.map(lowered).collect()
}

fn source(claim: &core::PodResourceClaim, status: Option<&core::PodStatus>) -> ClaimSource {
    if let Some(name) = &claim.resource_claim_name {
        return ClaimSource::Named(name.as_str().into());
    }
    if claim.resource_claim_template_name.is_none() {
        return ClaimSource::Unknown;
    }
    let made = status.and_then(|status| status.resource_claim_statuses.as_deref());
    let made = made.into_iter().flatten().find(|made| made.name == claim.name);
    match made.map(|made| made.resource_claim_name.as_deref()) {
        Some(Some(name)) => ClaimSource::Generated(name.into()),
        Some(None) => ClaimSource::NotNeeded,
        None => ClaimSource::ToBeGenerated,
    }
}
