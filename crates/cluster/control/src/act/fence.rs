//! Fences in-flight bindings of previous leaders.
//!
//! A binding requires a version of its pod, and an allocation one of its claim, so changing that version is
//! enough. Every attempt is bounded: a pod that cannot be fenced is reported, and others are scheduled without it.
//!
//! A fence must not depend on the size of its object, which a tenant controls: a pod gets a condition and a claim
//! a label, because all annotations of an object together are limited.

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, ListParams};
use thiserror::Error;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::answer::is_final;
use super::attempts::Attempts;
use super::claims::extended;
use super::{CALL, requests};
use crate::lease::PodRef;
use crate::watch::SchedulerNames;

const AGAIN: Duration = Duration::from_millis(250);

/// Timeout of one attempt.
const ATTEMPT: Duration = Duration::from_secs(2);

/// A pod that is not fenced within this time is isolated. Longer than the renew deadline of the Lease: if the API
/// server does not answer at all, the term ends first.
const FENCING_MAX: Duration = Duration::from_secs(15);

/// Pods per page of a list.
const PAGE: u32 = 500;

/// Why a pod is not fenced.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unfenced {
    /// A repeated request would be rejected again.
    #[error("the API server rejects changes of {what}: {message} (code {code})")]
    Refused { what: String, code: u16, message: String },
    #[error("could not change {what} within {} s: {message}", FENCING_MAX.as_secs())]
    Late { what: String, message: String },
}

/// Changes a pod and its unallocated claims, unless the pod is bound or gone. Afterwards every binding that was
/// posted before fails.
pub(crate) async fn fence(client: &Client, pod: &PodRef, by: &str) -> Result<(), Unfenced> {
    let until = Instant::now() + FENCING_MAX;
    let what = format!("pod {}/{}", pod.namespace, pod.name);
    let mut of_pod = Persistence { what, attempts: Attempts::until(until, AGAIN) };
    let found = loop {
        let attempt = timeout(ATTEMPT, fence_pod(client, pod, by)).await;
        if let Some(found) = of_pod.outcome(attempt).await? {
            break found;
        }
    };
    let Some(found) = found else { return Ok(()) };
    for name in claims(&found) {
        let what = format!("ResourceClaim {}/{name}", pod.namespace);
        let mut of_claim = Persistence { what, attempts: Attempts::until(until, AGAIN) };
        loop {
            let attempt = timeout(ATTEMPT, fence_claim(client, pod, name, by)).await;
            if of_claim.outcome(attempt).await?.is_some() {
                break;
            }
        }
    }
    while may_have_extended_claims(&found) {
        let attempt = timeout(CALL, discard_extended(client, pod)).await;
        if of_pod.outcome(attempt).await?.is_some() {
            break;
        }
    }
    Ok(())
}

/// Changes a pod; `None` if it is bound or gone.
async fn fence_pod(
    client: &Client,
    pod: &PodRef,
    by: &str,
) -> Result<Option<core::Pod>, kube::Error> {
    let api: Api<core::Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let is_open = |found: &core::Pod| {
        found.metadata.uid.as_deref() == Some(&*pod.uid)
            && found.spec.as_ref().is_none_or(|spec| spec.node_name.is_none())
    };
    let Some(found) = api.get_opt(&pod.name).await?.filter(is_open) else { return Ok(None) };
    client.request_text(requests::fence(pod, by)).await?;
    Ok(Some(found))
}

/// Changes a claim, unless it is allocated or gone.
async fn fence_claim(
    client: &Client,
    pod: &PodRef,
    name: &str,
    by: &str,
) -> Result<(), kube::Error> {
    let api: Api<resource::ResourceClaim> = Api::namespaced(client.clone(), &pod.namespace);
    let is_open = |claim: &resource::ResourceClaim| {
        claim.status.as_ref().is_none_or(|status| status.allocation.is_none())
    };
    if let Some(claim) = api.get_opt(name).await?.filter(is_open) {
        let uid = claim.metadata.uid.unwrap_or_default();
        client.request_text(requests::fence_claim(&pod.namespace, name, &uid, by)).await?;
    }
    Ok(())
}

fn claims(pod: &core::Pod) -> impl Iterator<Item = &str> {
    let named = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let named = named.filter_map(|claim| claim.resource_claim_name.as_deref());
    let status = pod.status.iter();
    let made = status.flat_map(|status| status.resource_claim_statuses.iter().flatten());
    named.chain(made.filter_map(|claim| claim.resource_claim_name.as_deref()))
}

/// Whether a pod requests anything that a DRA driver could serve in place of a device plugin.
fn may_have_extended_claims(pod: &core::Pod) -> bool {
    let containers = pod
        .spec
        .iter()
        .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let resources = containers.filter_map(|container| container.resources.as_ref());
    let limits = resources.flat_map(|resources| resources.limits.iter().flatten());
    limits.into_iter().any(|(name, _)| name.contains('/'))
}

/// Deletes the claims for a pod's extended resources: the pod has been fenced, so they cannot be used any more.
async fn discard_extended(client: &Client, pod: &PodRef) -> Result<(), kube::Error> {
    let claims = match extended::claims_of(client, pod).await {
        // The API server does not serve ResourceClaims.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        claims => claims?,
    };
    for claim in claims {
        extended::discard(client, pod, claim).await;
    }
    Ok(())
}

struct Persistence {
    what: String,
    attempts: Attempts,
}

impl Persistence {
    /// The outcome of an attempt; `None`, after a pause, to try again.
    async fn outcome<T>(
        &mut self,
        attempt: Result<Result<T, kube::Error>, Elapsed>,
    ) -> Result<Option<T>, Unfenced> {
        let what = self.what.clone();
        let message = match attempt {
            Ok(Ok(done)) => return Ok(Some(done)),
            Ok(Err(kube::Error::Api(status))) if is_final(status.code, &status.message) => {
                let (code, message) = (status.code, status.message);
                return Err(Unfenced::Refused { what, code, message });
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        debug!(what, message, "fencing failed; trying again");
        if self.attempts.again().await { Ok(None) } else { Err(Unfenced::Late { what, message }) }
    }
}

/// Every pending pod that Berth schedules.
pub(crate) async fn pending(client: &Client, names: &SchedulerNames) -> Vec<PodRef> {
    let mut found = Vec::new();
    for name in names.iter() {
        found.append(&mut pending_for(client, name).await);
    }
    found
}

/// Without this list nothing can be scheduled safely, so it is requested until the term ends.
async fn pending_for(client: &Client, scheduler_name: &str) -> Vec<PodRef> {
    let api: Api<core::Pod> = Api::all(client.clone());
    let selector = format!("spec.nodeName=,spec.schedulerName={scheduler_name}");
    let first = ListParams::default().fields(&selector).limit(PAGE);
    let (mut page, mut found) = (first.clone(), Vec::new());
    loop {
        match api.list_metadata(&page).await {
            Ok(list) => {
                found.extend(list.items.into_iter().filter_map(|pod| reference(pod.metadata)));
                match list.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => page = first.clone().continue_token(&token),
                    None => return found,
                }
            }
            Err(error) => {
                warn!(%error, "cannot list pending pods; trying again");
                // From the beginning: the continue token may have expired.
                found.clear();
                page = first.clone();
                sleep(AGAIN).await;
            }
        }
    }
}

fn reference(meta: ObjectMeta) -> Option<PodRef> {
    let [namespace, name, uid] = [meta.namespace?, meta.name?, meta.uid?].map(Into::into);
    Some(PodRef { namespace, name, uid })
}

#[cfg(test)]
mod tests;
