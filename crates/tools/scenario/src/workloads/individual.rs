//! Pods with claims of their own: volume claims of StatefulSets and of ephemeral volumes, and device
//! claims from templates.

use std::sync::Arc;

use berth_api::{FieldPath, Lower};
use berth_engine::event::Event;
use berth_manifest::Problem;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{NewPod, Template, WorkloadPods};
use crate::cluster::Cluster;

pub(super) fn has_own_claims(pod: &core::Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let ephemeral = spec.volumes.iter().flatten().any(|volume| volume.ephemeral.is_some());
    ephemeral || spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty())
}

pub(super) fn pod(
    template: &Template,
    workload: &WorkloadPods,
    name: &str,
    uid: &str,
    cluster: &Cluster,
) -> Result<NewPod, Problem> {
    let mut pod = template.pod.clone();
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.uid = Some(uid.to_owned());
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let meta = |name: String, owned: bool| ObjectMeta {
        name: Some(name),
        namespace: Some(namespace.clone()),
        owner_references: owned.then(|| vec![owner(&pod.metadata)]),
        ..ObjectMeta::default()
    };
    let mut claims: Vec<core::PersistentVolumeClaim> = Vec::new();
    let mut volumes = Vec::new();
    for one in &template.claims {
        let volume = one.metadata.name.clone().unwrap_or_default();
        let claim_name = format!("{volume}-{name}");
        let spec = one.spec.clone();
        claims.push(core::PersistentVolumeClaim {
            metadata: meta(claim_name.clone(), false),
            spec,
            status: None,
        });
        let source = core::PersistentVolumeClaimVolumeSource { claim_name, read_only: None };
        volumes.push(core::Volume {
            name: volume,
            persistent_volume_claim: Some(source),
            ..core::Volume::default()
        });
    }
    let spec = template.pod.spec.as_ref();
    for volume in spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        let ephemeral = volume.ephemeral.as_ref();
        if let Some(from) = ephemeral.and_then(|one| one.volume_claim_template.as_ref()) {
            claims.push(core::PersistentVolumeClaim {
                metadata: meta(format!("{name}-{}", volume.name), true),
                spec: Some(from.spec.clone()),
                status: None,
            });
        }
    }
    let (devices, device_events) = device_claims(template, workload, &meta, name, cluster)?;
    if let Some(spec) = pod.spec.as_mut() {
        spec.volumes.get_or_insert_default().extend(volumes);
    }
    pod.status.get_or_insert_default().resource_claim_statuses = Some(devices);
    let problem = |error| workload.document.lower_problem(&template.path, &error);
    let mut lowered = pod.lower().map_err(problem)?;
    lowered.created_at_ms = cluster.now_ms;
    let mut events = device_events;
    for claim in claims {
        let claim = claim.lower().map_err(problem)?;
        // Existing claims are reused.
        let is_known = cluster.others.iter().any(|event| match event {
            Event::Claim(one) => (&one.namespace, &one.name) == (&claim.namespace, &claim.name),
            _ => false,
        });
        if !is_known {
            events.push(Event::Claim(claim));
        }
    }
    Ok(NewPod { pod: lowered, claims: events })
}

fn owner(pod: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        block_owner_deletion: None,
        controller: Some(true),
        kind: "Pod".to_owned(),
        name: pod.name.clone().unwrap_or_default(),
        uid: pod.uid.clone().unwrap_or_default(),
    }
}

/// Device claims from templates, and the pod's status that refers to them.
fn device_claims(
    template: &Template,
    workload: &WorkloadPods,
    meta: &dyn Fn(String, bool) -> ObjectMeta,
    name: &str,
    cluster: &Cluster,
) -> Result<(Vec<core::PodResourceClaimStatus>, Vec<Event>), Problem> {
    let spec = template.pod.spec.as_ref();
    let requested = spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let (mut statuses, mut events) = (Vec::new(), Vec::new());
    for (index, claim) in requested.enumerate() {
        let Some(from) = &claim.resource_claim_template_name else { continue };
        let key = (template.spec.namespace.clone(), Arc::from(from.as_str()));
        let path = template.path.clone().key("spec").key("resourceClaims").at(index);
        let Some(found) = cluster.claim_templates.get(&key) else {
            let field = path.key("resourceClaimTemplateName");
            let message = format!("ResourceClaimTemplate {}/{from} not found", key.0);
            let problem = workload.document.problem(field, message);
            return Err(problem.with_remedy("create it, or correct the name"));
        };
        let claim_name = format!("{name}-{}", claim.name);
        let new_claim = resource::ResourceClaim {
            metadata: meta(claim_name.clone(), true),
            spec: found.spec.clone(),
            status: None,
        };
        let problem = |error: berth_api::LowerError| {
            let field = FieldPath::parse(&error.field);
            workload.document.problem(path.clone().join(&field), error.problem)
        };
        events.push(Event::DeviceClaim(new_claim.lower().map_err(problem)?));
        statuses.push(core::PodResourceClaimStatus {
            name: claim.name.clone(),
            resource_claim_name: Some(claim_name),
        });
    }
    Ok((statuses, events))
}
