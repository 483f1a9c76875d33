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
use kube::Client;
use kube::core::request::Request as Requests;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::claims::extended;
use super::{CALL, requests};
use crate::lease::PodRef;
use crate::watch::SchedulerNames;

/// Between two attempts.
const AGAIN: Duration = Duration::from_millis(250);

/// A pod that is not fenced within this time is left out. Much shorter than a term, so that few such pods
/// cannot hold up a failover.
const FENCING_MAX: Duration = Duration::from_secs(5);

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
    let of_pod = Persistence { what: format!("pod {}/{}", pod.namespace, pod.name), until };
    let found = loop {
        let attempt = timeout(CALL, fence_pod(client, pod, by)).await;
        if let Some(found) = of_pod.outcome(attempt).await? {
            break found;
        }
    };
    let Some(found) = found else { return Ok(()) };
    for name in found.claims() {
        let of_claim =
            Persistence { what: format!("ResourceClaim {}/{name}", pod.namespace), until };
        loop {
            let attempt = timeout(CALL, fence_claim(client, pod, name, by)).await;
            if of_claim.outcome(attempt).await?.is_some() {
                break;
            }
        }
    }
    while found.may_have_extended_claims() {
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
) -> Result<Option<FoundPod>, kube::Error> {
    let path = format!("/api/v1/namespaces/{}/pods", pod.namespace);
    let found = read::<FoundPod>(client, &path, &pod.name).await?;
    let is_open = |found: &FoundPod| {
        found.metadata.uid.as_deref() == Some(&*pod.uid) && found.spec.node_name.is_none()
    };
    let Some(found) = found.filter(is_open) else { return Ok(None) };
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
    let path = format!("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims", pod.namespace);
    let found = read::<FoundClaim>(client, &path, name).await?;
    if let Some(claim) = found.filter(|claim| !claim.is_allocated()) {
        let uid = claim.metadata.uid.unwrap_or_default();
        client.request_text(requests::fence_claim(&pod.namespace, name, &uid, by)).await?;
    }
    Ok(())
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
    until: Instant,
}

impl Persistence {
    /// What an attempt came to; `None`, after a pause: try again.
    async fn outcome<T>(
        &self,
        attempt: Result<Result<T, kube::Error>, Elapsed>,
    ) -> Result<Option<T>, Unfenced> {
        let what = self.what.clone();
        let message = match attempt {
            Ok(Ok(done)) => return Ok(Some(done)),
            Ok(Err(kube::Error::Api(status))) if is_final(status.code) => {
                let (code, message) = (status.code, status.message);
                return Err(Unfenced::Refused { what, code, message });
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        if Instant::now() + AGAIN >= self.until {
            return Err(Unfenced::Late { what, message });
        }
        debug!(what, message, "not fenced yet");
        sleep(AGAIN).await;
        Ok(None)
    }
}

/// Whether the same request would be answered with this code again. A conflict (409) and an object that
/// has just gone (404) are looked at again, and 401, 408 and 429 pass.
fn is_final(code: u16) -> bool {
    matches!(code, 400..=499) && !matches!(code, 401 | 404 | 408 | 409 | 429)
}

/// Reads an object, of which only what `T` names has to be readable; `None`: there is none.
async fn read<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    name: &str,
) -> Result<Option<T>, kube::Error> {
    let request = Requests::new(path).get(name, &Default::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    match client.request::<T>(request).await {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is looked at of metadata: other fields hold what tenants write.
#[derive(Debug, Default, Deserialize)]
struct FoundMeta {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
}

/// What is looked at of a pod.
#[derive(Debug, Deserialize)]
struct FoundPod {
    metadata: FoundMeta,
    #[serde(default)]
    spec: FoundSpec,
    #[serde(default)]
    status: FoundStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FoundSpec {
    node_name: Option<String>,
    resource_claims: Vec<core::PodResourceClaim>,
    containers: Vec<FoundContainer>,
    init_containers: Vec<FoundContainer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FoundStatus {
    resource_claim_statuses: Vec<core::PodResourceClaimStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FoundContainer {
    resources: core::ResourceRequirements,
}

impl FoundPod {
    fn reference(self) -> Option<PodRef> {
        let FoundMeta { namespace, name, uid } = self.metadata;
        Some(PodRef { namespace: namespace?.into(), name: name?.into(), uid: uid?.into() })
    }

    /// The names of its claims.
    fn claims(&self) -> impl Iterator<Item = &str> {
        let named = self.spec.resource_claims.iter();
        let named = named.filter_map(|claim| claim.resource_claim_name.as_deref());
        let made = self.status.resource_claim_statuses.iter();
        named.chain(made.filter_map(|claim| claim.resource_claim_name.as_deref()))
    }

    /// Whether it asks for anything that a DRA driver could serve in place of a device plugin.
    fn may_have_extended_claims(&self) -> bool {
        let containers = self.spec.containers.iter().chain(&self.spec.init_containers);
        let limits = containers.flat_map(|container| container.resources.limits.iter().flatten());
        limits.into_iter().any(|(name, _)| name.contains('/'))
    }
}

/// What is looked at of a claim.
#[derive(Debug, Deserialize)]
struct FoundClaim {
    metadata: FoundMeta,
    status: Option<FoundClaimStatus>,
}

#[derive(Debug, Deserialize)]
struct FoundClaimStatus {
    allocation: Option<serde::de::IgnoredAny>,
}

impl FoundClaim {
    fn is_allocated(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.allocation.is_some())
    }
}

/// A page of a list.
#[derive(Debug, Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default)]
    items: Vec<FoundPod>,
}

#[derive(Debug, Default, Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    next: String,
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
    let selector = format!("spec.nodeName=,spec.schedulerName={scheduler_name}");
    let first = kube::api::ListParams::default().fields(&selector).limit(PAGE);
    let (mut page, mut found) = (first.clone(), Vec::new());
    loop {
        let listed = async {
            let request = Requests::new("/api/v1/pods").list(&page);
            client.request::<Page>(request.map_err(kube::Error::BuildRequest)?).await
        };
        match listed.await {
            Ok(Page { metadata, items }) => {
                found.extend(items.into_iter().filter_map(FoundPod::reference));
                if metadata.next.is_empty() {
                    return found;
                }
                page = first.clone().continue_token(&metadata.next);
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

#[cfg(test)]
mod tests;
