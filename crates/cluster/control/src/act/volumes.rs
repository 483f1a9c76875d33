//! PersistentVolumeClaims with delayed binding, prepared before their pod is bound.
//!
//! Kubernetes' own controllers bind and provision. An existing volume is reserved for the claim; for one to be
//! provisioned the claim names the node. Whether that has happened is checked with the next attempt, because it can
//! take minutes.
//!
//! Nothing here needs a fence: a volume goes to one claim only, by compare-and-swap, and a claim for which a deposed
//! leader selected a node only narrows where its pod can go.

use berth_engine::decision::DelayedVolume;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tracing::{debug, warn};

use super::{Actor, CALL};
use crate::core::{BindOrder, BindOutcome};

/// The node for which to provision a claim's volume.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Marks a claim whose binding is complete in both directions.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// Marks a volume that a controller may give to another claim when this one goes.
pub(crate) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// `Ok` once all claims of the pod are bound.
pub(super) async fn prepare(actor: &Actor, order: &BindOrder) -> Result<(), BindOutcome> {
    let mut is_ready = true;
    for late in &order.volumes {
        is_ready &= prepare_claim(actor, order, late).await?;
    }
    if is_ready {
        return Ok(());
    }
    if order.is_last_attempt {
        debug!(pod = %order.pod.name, node = %order.binding.node, "volumes not bound in time");
        return Err(BindOutcome::Stale);
    }
    Err(BindOutcome::NotReady)
}

/// Whether a claim is bound; if not, writes what is needed.
async fn prepare_claim(
    actor: &Actor,
    order: &BindOrder,
    late: &DelayedVolume,
) -> Result<bool, BindOutcome> {
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(actor.client.clone(), &order.pod.namespace);
    let claim = answered(tokio::time::timeout(CALL, claims.get(&late.claim)).await)?;
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(BindOutcome::Stale);
    }
    let annotation = |name: &str| claim.metadata.annotations.as_ref()?.get(name);
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let has_volume = volume.is_some_and(|name| !name.is_empty());
    if has_volume && annotation(BIND_COMPLETED).is_some() {
        return Ok(true);
    }
    match &late.volume {
        Some(volume) => reserve_volume(actor, &claim, volume).await?,
        None => match annotation(SELECTED_NODE) {
            Some(node) if **node == *order.binding.node => {}
            // The provisioner removes the node if it cannot provision there.
            None if order.attempts > 0 => return Err(BindOutcome::Stale),
            Some(_) => return Err(BindOutcome::Stale),
            None => {
                let annotations = json!({ SELECTED_NODE: order.binding.node });
                let patch = json!({ "metadata": {
                    "resourceVersion": claim.metadata.resource_version, "annotations": annotations,
                } });
                patched(&claims, &late.claim, patch).await?;
            }
        },
    }
    Ok(false)
}

/// Reserves a volume for a claim, unless it has been bound meanwhile.
async fn reserve_volume(
    actor: &Actor,
    claim: &PersistentVolumeClaim,
    name: &str,
) -> Result<(), BindOutcome> {
    let volumes: Api<PersistentVolume> = Api::all(actor.client.clone());
    let volume = answered(tokio::time::timeout(CALL, volumes.get(name)).await)?;
    let kept_for = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let meta = &claim.metadata;
    let is_named = |kept_for: &ObjectReference| {
        (&kept_for.namespace, &kept_for.name) == (&meta.namespace, &meta.name)
    };
    let by_us = match kept_for {
        Some(kept_for) if kept_for.uid.is_some() && kept_for.uid == meta.uid => return Ok(()),
        // An administrator has reserved it for a claim of this name.
        Some(kept_for) if kept_for.uid.is_none() && is_named(kept_for) => false,
        Some(_) => return Err(BindOutcome::Stale),
        None => true,
    };
    let mut patch = json!({
        "metadata": { "resourceVersion": volume.metadata.resource_version },
        "spec": { "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": meta.namespace, "name": meta.name, "uid": meta.uid,
        } },
    });
    if by_us && let Some(meta) = patch.get_mut("metadata") {
        meta["annotations"] = json!({ BOUND_BY_CONTROLLER: "yes" });
    }
    patched(&volumes, name, patch).await
}

async fn patched<K>(api: &Api<K>, name: &str, patch: Value) -> Result<(), BindOutcome>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
    let written = tokio::time::timeout(CALL, api.patch(name, &parameters, &patch)).await;
    answered(written).map(drop)
}

/// What an answer means for the binding. The pod itself was not written.
fn answered<T>(
    answer: Result<Result<T, kube::Error>, tokio::time::error::Elapsed>,
) -> Result<T, BindOutcome> {
    match answer {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(kube::Error::Api(status))) => match status.code {
            404 => Err(BindOutcome::Stale),
            409 | 429 | 500.. => Err(BindOutcome::Busy),
            code => {
                warn!(code, message = status.message, "could not bind volume");
                Err(BindOutcome::Refused)
            }
        },
        Ok(Err(_)) | Err(_) => Err(BindOutcome::Busy),
    }
}
