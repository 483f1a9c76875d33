//! The ResourceClaim that the scheduler creates for a pod's extended resources, where DRA drivers serve them.
//!
//! Order matters: the claim is created, the pod's status refers to it, and only then it is allocated. The pod is
//! written at the version that was announced. So once a later leader has fenced the pod, claims that its status
//! does not mention come to nothing, and those it mentions can be found.

use std::sync::Arc;

use berth_api::{Lower as _, raise};
use berth_dra::Placement;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;
use tracing::warn;

use super::super::{Actor, CALL};
use super::{FINALIZER, Needed, Written, answer, api, attempts, read, retry, tell, write};
use crate::core::{BindOrder, BindOutcome};
use crate::lease::PodRef;

/// Annotation of such claims.
pub(crate) const EXTENDED_RESOURCE_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";

/// Creates the claim, or finds that of an earlier attempt, and allocates it. Returns it with the version of the
/// pod that refers to it.
pub(super) async fn prepare(
    actor: &Actor,
    order: &BindOrder,
    placed: &Placement,
) -> Result<(resource::ResourceClaim, u64), BindOutcome> {
    let (Some(made), Some((_, given))) = (&placed.extended, placed.allocations.last()) else {
        return Err(BindOutcome::Refused);
    };
    let pod = read_pod(actor, order).await?;
    let earlier = match mentioned(&pod) {
        Some(name) => read(actor, &api(actor, order), &name).await?,
        None => None,
    };
    let (claim, version) = match earlier.filter(|claim| is_of(claim, &order.pod)) {
        Some(claim) if claim.lower().is_ok_and(|lowered| lowered.spec == made.spec) => {
            (claim, order.version)
        }
        // Created for another node: discarded, and the next attempt creates another.
        Some(_) => return Err(BindOutcome::Stale),
        None => {
            let spec = raise::claim_spec(&made.spec).map_err(|problem| {
                warn!(pod = %order.pod.name, %problem, "cannot write claim");
                BindOutcome::Refused
            })?;
            let claim = create(actor, order, spec).await?;
            let version = mention(actor, order, &claim, placed).await?;
            (claim, version)
        }
    };
    let name: Arc<str> = claim.metadata.name.as_deref().unwrap_or_default().into();
    let uid = claim.metadata.uid.as_deref().map(Arc::from);
    let claim = write(actor, order, &Needed { name, uid, given: Some(given) }).await?;
    Ok((claim, version))
}

/// Deletes claims for the pod's extended resources, unless the pod runs.
pub(super) async fn discard_all(actor: &Actor, order: &BindOrder) {
    let mut attempts = attempts();
    loop {
        match tokio::time::timeout(CALL, claims_of(&actor.client, &order.pod)).await {
            Ok(Ok(claims)) => {
                for claim in claims {
                    discard(&actor.client, &order.pod, claim).await;
                }
                return;
            }
            Ok(Err(_)) | Err(_) if retry(actor, &mut attempts).await => {}
            // The pod owns them, so they are deleted with it at the latest.
            Ok(Err(_)) | Err(_) => {
                return warn!(pod = %order.pod.name, "could not delete unused claims");
            }
        }
    }
}

pub(in crate::act) async fn claims_of(
    client: &Client,
    pod: &PodRef,
) -> Result<Vec<resource::ResourceClaim>, kube::Error> {
    let api: Api<resource::ResourceClaim> = Api::namespaced(client.clone(), &pod.namespace);
    let all = api.list(&ListParams::default()).await?;
    Ok(all.items.into_iter().filter(|claim| is_of(claim, pod)).collect())
}

fn is_of(claim: &resource::ResourceClaim, pod: &PodRef) -> bool {
    let marks = claim.metadata.annotations.iter().flatten();
    let mut owners = claim.metadata.owner_references.iter().flatten();
    marks.into_iter().any(|(name, value)| name == EXTENDED_RESOURCE_CLAIM && value == "true")
        && owners.any(|owner| owner.controller == Some(true) && owner.uid == *pod.uid)
}

/// The claim that a pod's status mentions.
pub(in crate::act) fn mentioned(pod: &core::Pod) -> Option<String> {
    let status = pod.status.as_ref()?.extended_resource_claim_status.as_ref()?;
    Some(status.resource_claim_name.clone())
}

fn version_of(pod: &core::Pod) -> u64 {
    let version = pod.metadata.resource_version.as_deref().and_then(|text| text.parse().ok());
    version.unwrap_or(0)
}

/// The pod, if it has not changed since it was announced.
async fn read_pod(actor: &Actor, order: &BindOrder) -> Result<core::Pod, BindOutcome> {
    let pods: Api<core::Pod> = Api::namespaced(actor.client.clone(), &order.pod.namespace);
    let mut attempts = attempts();
    loop {
        match tokio::time::timeout(CALL, pods.get_opt(&order.pod.name)).await {
            Ok(Ok(Some(pod))) if pod.metadata.uid.as_deref() == Some(&*order.pod.uid) => {
                let same = version_of(&pod) == order.version;
                return if same { Ok(pod) } else { Err(BindOutcome::Conflict) };
            }
            Ok(Ok(_)) => return Err(BindOutcome::Gone),
            Ok(Err(_)) | Err(_) if retry(actor, &mut attempts).await => {}
            Ok(Err(_)) | Err(_) => return Err(BindOutcome::Unprepared),
        }
    }
}

async fn create(
    actor: &Actor,
    order: &BindOrder,
    spec: resource::ResourceClaimSpec,
) -> Result<resource::ResourceClaim, BindOutcome> {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: order.pod.name.to_string(),
        uid: order.pod.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let metadata = ObjectMeta {
        generate_name: Some(format!("{}-extended-resources-", order.pod.name)),
        namespace: Some(order.pod.namespace.to_string()),
        annotations: Some([(EXTENDED_RESOURCE_CLAIM.to_owned(), "true".to_owned())].into()),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    let claim = resource::ResourceClaim { metadata, spec, status: None };
    let parameters = PostParams::default();
    let api = api(actor, order);
    match answer(tokio::time::timeout(CALL, api.create(&parameters, &claim)).await) {
        Written::Done(claim) => {
            tell(actor, &claim);
            Ok(*claim)
        }
        Written::Busy => Err(BindOutcome::Busy),
        Written::Conflict | Written::Missing | Written::Refused => Err(BindOutcome::Refused),
        // It may exist. Fencing deletes it, and the next attempt creates another.
        Written::Unclear => Err(BindOutcome::Unprepared),
    }
}

/// Mentions the claim in the pod's status. Returns the pod's version after that.
async fn mention(
    actor: &Actor,
    order: &BindOrder,
    claim: &resource::ResourceClaim,
    placed: &Placement,
) -> Result<u64, BindOutcome> {
    let name = claim.metadata.name.clone().unwrap_or_default();
    let made = placed.extended.iter().flat_map(|made| &made.mappings);
    let mappings: Vec<serde_json::Value> = made
        .map(|mapping| {
            json!({ "containerName": mapping.container, "requestName": mapping.request,
                    "resourceName": mapping.resource.as_str() })
        })
        .collect();
    let patch = Patch::Strategic(json!({
        "metadata": { "uid": order.pod.uid, "resourceVersion": order.version.to_string() },
        "status": { "extendedResourceClaimStatus": {
            "resourceClaimName": name, "requestMappings": mappings,
        } },
    }));
    let pods: Api<core::Pod> = Api::namespaced(actor.client.clone(), &order.pod.namespace);
    let parameters = PatchParams::default();
    let mut attempts = attempts();
    let outcome = loop {
        let patched = pods.patch_status(&order.pod.name, &parameters, &patch);
        match answer(tokio::time::timeout(CALL, patched).await) {
            Written::Done(pod) => return Ok(version_of(&pod)),
            // An earlier attempt may have succeeded: then the status mentions the claim already.
            Written::Conflict => break BindOutcome::Conflict,
            Written::Missing => break BindOutcome::Gone,
            Written::Refused => break BindOutcome::Refused,
            Written::Busy | Written::Unclear if retry(actor, &mut attempts).await => {}
            Written::Busy | Written::Unclear => return Err(BindOutcome::Unprepared),
        }
    };
    let found = pods.get_opt(&order.pod.name).await.ok().flatten();
    if found.and_then(|pod| mentioned(&pod)).as_deref() != Some(&name) {
        discard(&actor.client, &order.pod, claim.clone()).await;
    }
    Err(outcome)
}

/// Deletes a claim, unless it has changed since it was read.
pub(in crate::act) async fn discard(
    client: &Client,
    pod: &PodRef,
    mut claim: resource::ResourceClaim,
) {
    let api: Api<resource::ResourceClaim> = Api::namespaced(client.clone(), &pod.namespace);
    let name = claim.metadata.name.clone().unwrap_or_default();
    let finalizers = claim.metadata.finalizers.get_or_insert_default();
    if finalizers.iter().any(|one| one == FINALIZER) {
        finalizers.retain(|one| one != FINALIZER);
        let parameters = PostParams::default();
        let put = api.replace(&name, &parameters, &claim);
        match answer(tokio::time::timeout(CALL, put).await) {
            Written::Done(freed) => claim = *freed,
            _ => return warn!(claim = name, "could not delete unused claim"),
        }
    }
    let preconditions = Preconditions {
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
    };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..Default::default() };
    let deleted = tokio::time::timeout(CALL, api.delete(&name, &parameters)).await;
    if !matches!(answer(deleted), Written::Done(_) | Written::Missing) {
        warn!(claim = name, "could not delete unused claim");
    }
}
