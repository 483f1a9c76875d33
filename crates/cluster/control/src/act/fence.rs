//! In-flight bindings of previous leaders.
//!
//! Owns making sure that such a binding has landed or never will. A binding insists on the version of its
//! pod, and an allocation on the version of its claim, so it is enough to change that version. Every attempt
//! is bounded: a pod that cannot be fenced is reported, and others are scheduled without it.
//!
//! A fence must not depend on how large its object has grown, which a tenant controls: a pod gets a
//! condition and a claim gets a label, since all annotations of an object together are limited.

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

/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(250);

/// Timeout of one attempt.
const ATTEMPT: Duration = Duration::from_secs(2);

/// A pod that is not fenced within this time is isolated. Longer than a leader keeps the Lease without
/// renewing it: if no pod can be fenced because the API server does not answer, the term ends before.
const FENCING_MAX: Duration = Duration::from_secs(15);

/// Pods per page of a list.
const PAGE: u32 = 500;

/// Why a pod is not fenced.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unfenced {
    /// The API server refuses the change, and would refuse it again.
    #[error("the API server refuses to change {what}: {message} (code {code})")]
    Refused { what: String, code: u16, message: String },
    /// It could not be done in time.
    #[error("{what} could not be changed within {} s: {message}", FENCING_MAX.as_secs())]
    Late { what: String, message: String },
}

/// Changes a pod, and its claims that are not allocated, unless the pod has a node or is gone. Afterwards
/// no binding that was posted before can land.
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

/// Changes a pod; gives it, unless no binding of it can land anyway.
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

/// The names of a pod's claims.
fn claims(pod: &core::Pod) -> impl Iterator<Item = &str> {
    let named = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let named = named.filter_map(|claim| claim.resource_claim_name.as_deref());
    let status = pod.status.iter();
    let made = status.flat_map(|status| status.resource_claim_statuses.iter().flatten());
    named.chain(made.filter_map(|claim| claim.resource_claim_name.as_deref()))
}

/// Whether a pod asks for anything that a DRA driver could serve in place of a device plugin.
fn may_have_extended_claims(pod: &core::Pod) -> bool {
    let containers = pod
        .spec
        .iter()
        .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let resources = containers.filter_map(|container| container.resources.as_ref());
    let limits = resources.flat_map(|resources| resources.limits.iter().flatten());
    limits.into_iter().any(|(name, _)| name.contains('/'))
}

/// Discards the claims that were made for a pod's extended resources: the pod was fenced before, so none of
/// them can come to be used.
async fn discard_extended(client: &Client, pod: &PodRef) -> Result<(), kube::Error> {
    let claims = match extended::claims_of(client, pod).await {
        // This API server has no claims.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        claims => claims?,
    };
    for claim in claims {
        extended::discard(client, pod, claim).await;
    }
    Ok(())
}

/// How long something is attempted.
struct Persistence {
    what: String,
    attempts: Attempts,
}

impl Persistence {
    /// What an attempt came to; `None`, after a pause: try again.
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
        debug!(what, message, "not fenced yet");
        if self.attempts.again().await { Ok(None) } else { Err(Unfenced::Late { what, message }) }
    }
}

/// Every pod of ours that has no node.
pub(crate) async fn pending(client: &Client, names: &SchedulerNames) -> Vec<PodRef> {
    let mut found = Vec::new();
    for name in names.iter() {
        found.append(&mut pending_for(client, name).await);
    }
    found
}

/// Without such a list nothing can be scheduled safely, so it is asked for until the term ends.
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
                warn!(%error, "pending pods could not be listed; trying again");
                // From the beginning: what the token stood for may have expired.
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
