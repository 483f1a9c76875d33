//! ResourceClaims: created for pods from templates, released and unprotected when their pods are done. The
//! scheduler allocates the devices.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim, PodResourceClaimStatus};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimStatus, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::key::{
    Key, annotation, controller_reference, has_finalizer, is_controlled_by, name, namespace, uid,
    unless_gone,
};
use crate::queue::{Queue, Requeue};

use super::context::Context;
use super::pods::{is_finished, is_terminating, node_of};

/// Annotation with the name of the pod's claim that the object was created for.
const FOR_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// Keeps a claim while it holds devices.
const PROTECTION: &str = "resource.kubernetes.io/delete-protection";

/// Claims from templates that a pod's status lacks, each with the object if it was created already.
fn missing<'a>(
    pod: &'a Pod,
    claims: &[Arc<ResourceClaim>],
) -> Vec<(&'a PodResourceClaim, Option<Arc<ResourceClaim>>)> {
    if is_finished(pod) || is_terminating(pod) {
        return Vec::new();
    }
    let noted = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    let asked = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let of_template = asked.filter(|claim| claim.resource_claim_template_name.is_some());
    let open = of_template
        .filter(|claim| noted.into_iter().flatten().all(|noted| noted.name != claim.name));
    open.map(|claim| {
        let made = claims.iter().find(|made| {
            annotation(&made.metadata, FOR_CLAIM) == Some(&claim.name)
                && is_controlled_by(&made.metadata, &pod.metadata)
                && made.metadata.deletion_timestamp.is_none()
        });
        (claim, made.cloned())
    })
    .collect()
}

fn from_template(pod: &Pod, claim: &str, template: &ResourceClaimTemplate) -> ResourceClaim {
    let of_template = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = of_template.annotations.unwrap_or_default();
    annotations.insert(FOR_CLAIM.to_owned(), claim.to_owned());
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-{claim}-", name(&pod.metadata))),
            namespace: pod.metadata.namespace.clone(),
            labels: of_template.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference::<Pod>(&pod.metadata)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

/// The status without users that are gone; `None` if nothing changes.
fn released(
    claim: &ResourceClaim,
    uses: impl Fn(&str, &str) -> bool,
) -> Option<ResourceClaimStatus> {
    let before = claim.status.clone().unwrap_or_default();
    let users = before.reserved_for.clone().unwrap_or_default();
    let mut left = users.clone();
    left.retain(|user| {
        let is_pod = user.resource == "pods" && user.api_group.as_deref().unwrap_or("").is_empty();
        !is_pod || uses(&user.name, &user.uid)
    });
    if left.len() == users.len() {
        return None;
    }
    // Without users the allocation is released.
    let allocation = before.allocation.filter(|_| !left.is_empty());
    let devices = before.devices.filter(|_| allocation.is_some());
    let reserved_for = Some(left).filter(|left| !left.is_empty());
    Some(ResourceClaimStatus { allocation, devices, reserved_for })
}

pub(super) fn wire(context: &Context, pods: &Queue, claims: &Queue) {
    let views = &context.views;
    let (to_pods, to_claims) = (pods.clone(), claims.clone());
    views.pods.on_change(move |change| {
        for pod in change.both() {
            let asked = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
            let mut any = false;
            let noted = pod.status.as_ref().and_then(|one| one.resource_claim_statuses.as_ref());
            for claim in asked {
                any = true;
                let made = noted.into_iter().flatten().find(|noted| noted.name == claim.name);
                let made = made.and_then(|made| made.resource_claim_name.as_ref());
                if let Some(claim) = claim.resource_claim_name.as_ref().or(made) {
                    to_claims.add(Key::new(namespace(&pod.metadata), claim.as_str()));
                }
            }
            if any {
                to_pods.add(change.key.clone());
            }
        }
    });
    let to = claims.clone();
    views.claims.on_change(move |change| to.add(change.key.clone()));
}

pub(super) async fn reconcile_pod(context: &Context, key: Key) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(pod) = views.pods.get(&key) else { return Ok(None) };
    let claims = views.claims.in_namespace(&key.namespace);
    let mut made: Vec<PodResourceClaimStatus> = Vec::new();
    for (claim, known) in missing(&pod, &claims) {
        let claim_name = match known {
            Some(known) => known.metadata.name.clone(),
            None => {
                let template = claim.resource_claim_template_name.as_deref().unwrap_or_default();
                let templates = context.api::<ResourceClaimTemplate>(&key.namespace);
                let template = templates.get(template).await?;
                let wanted = from_template(&pod, &claim.name, &template);
                context.create(&views.claims, &wanted).await?.metadata.name
            }
        };
        made.push(PodResourceClaimStatus {
            name: claim.name.clone(),
            resource_claim_name: claim_name,
        });
    }
    if made.is_empty() {
        return Ok(None);
    }
    let change = json!({
        "metadata": { "uid": pod.metadata.uid },
        "status": { "resourceClaimStatuses": made },
    });
    let pods = context.api::<Pod>(&key.namespace);
    let patch = Patch::Strategic(&change);
    let written = pods.patch_status(&key.name, &PatchParams::default(), &patch).await;
    if let Some(written) = unless_gone(written)? {
        views.pods.observe(written);
    }
    Ok(None)
}

/// Releases and deallocates a claim whose pods are done.
pub(super) async fn reconcile_claim(context: &Context, key: Key) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(claim) = views.claims.get(&key) else { return Ok(None) };
    let mut claim = (*claim).clone();
    let uses = |pod: &str, id: &str| {
        let pod = views.pods.get(&Key::new(&*key.namespace, pod));
        pod.filter(|pod| uid(&pod.metadata) == id).is_some_and(|pod| {
            // An unbound terminating pod will never use it.
            !(is_finished(&pod) || is_terminating(&pod) && node_of(&pod).is_none())
        })
    };
    if let Some(status) = released(&claim, uses) {
        claim.status = Some(status);
        claim = context.write_status(&views.claims, &claim).await?;
    }
    let status = claim.status.as_ref();
    let holds = status.is_some_and(|status| status.allocation.is_some());
    if !holds && has_finalizer(&claim.metadata, PROTECTION) {
        claim.metadata.finalizers.get_or_insert_default().retain(|one| one != PROTECTION);
        claim = match unless_gone(context.replace(&views.claims, &claim).await)? {
            Some(claim) => claim,
            None => return Ok(None),
        };
    }
    // A claim created for one pod is deleted with it.
    let owner = crate::key::controller(&claim.metadata).filter(|owner| owner.kind == "Pod");
    if let Some(owner) = owner.filter(|_| claim.metadata.deletion_timestamp.is_none()) {
        let pod = views.pods.get(&Key::new(&*key.namespace, &*owner.name));
        let done = pod.is_some_and(|pod| uid(&pod.metadata) == owner.uid && is_finished(&pod));
        if done {
            context.delete(&views.claims, &claim).await?;
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    fn pod() -> Pod {
        from_value(json!({
            "metadata": { "name": "p", "namespace": "default", "uid": "p-uid" },
            "spec": {
                "containers": [],
                "resourceClaims": [
                    { "name": "gpu", "resourceClaimTemplateName": "one-gpu" },
                    { "name": "nic", "resourceClaimTemplateName": "one-nic" },
                    { "name": "shared", "resourceClaimName": "common" },
                ],
            },
            "status": { "resourceClaimStatuses": [{ "name": "nic", "resourceClaimName": "p-nic-x" }] },
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_is_made_once_for_each_template() {
        let pod = pod();
        let open = missing(&pod, &[]);
        assert_eq!(open.iter().map(|(claim, _)| claim.name.as_str()).collect::<Vec<_>>(), ["gpu"]);
        let template = from_value(json!({
            "metadata": { "name": "one-gpu" },
            "spec": { "metadata": { "labels": { "a": "b" } }, "spec": { "devices": {} } },
        }));
        let mut made = from_template(&pod, "gpu", &template.unwrap());
        assert_eq!(made.metadata.generate_name.as_deref(), Some("p-gpu-"));
        made.metadata.name = Some("p-gpu-1".to_owned());
        let open = missing(&pod, &[Arc::new(made)]);
        assert!(open[0].1.is_some(), "the claim that is there is found again");
    }

    #[test]
    fn devices_are_free_when_the_last_user_is_gone() {
        let mut claim: ResourceClaim = from_value(json!({
            "metadata": { "name": "common" },
            "spec": {},
            "status": {
                "allocation": {},
                "reservedFor": [
                    { "resource": "pods", "name": "a", "uid": "1" },
                    { "resource": "pods", "name": "b", "uid": "2" },
                ],
            },
        }))
        .unwrap();
        assert_eq!(released(&claim, |_, _| true), None);
        let status = released(&claim, |_, uid| uid == "2").unwrap();
        assert_eq!(status.reserved_for.as_ref().unwrap().len(), 1);
        assert!(status.allocation.is_some());
        claim.status = Some(status);
        let status = released(&claim, |_, _| false).unwrap();
        assert_eq!((status.allocation, status.reserved_for), (None, None));
    }
}
