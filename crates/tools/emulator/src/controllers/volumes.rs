//! Claims and volumes of storage: binding, provisioning and release.
//!
//! A claim binds to the smallest volume that satisfies it, else a class of this provisioner gets a new volume.
//! Claims of classes with `WaitForFirstConsumer` wait until the scheduler reserves a volume for them or selects
//! a node. Volumes of this provisioner hold no data and can be reached from every node.

use std::sync::Arc;

use berth_model::quantity::Quantity as Amount;
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PersistentVolumeClaimStatus, PersistentVolumeSpec,
    PersistentVolumeStatus,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::events::Note;
use crate::key::{
    Key, annotation, delete_this, is_already_exists, name, namespace, uid, unless_gone,
};
use crate::queue::{Queue, Requeue};

use super::context::Context;
use super::pods;

/// The provisioner of the classes that [`register_classes`] creates.
const PROVISIONER: &str = "volumes.berth.dev";

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const COMPONENT: &str = "persistentvolume-controller";

/// Creates the classes `standard`, the default, and `standard-immediate`, unless they exist.
///
/// # Errors
/// When the API server refuses one of them.
pub async fn register_classes(client: &Client) -> Result<(), kube::Error> {
    let classes: Api<StorageClass> = Api::all(client.clone());
    for (name, mode) in [("standard", "WaitForFirstConsumer"), ("standard-immediate", "Immediate")]
    {
        let is_default = name == "standard";
        let class = StorageClass {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                annotations: is_default
                    .then(|| [(DEFAULT_CLASS.to_owned(), "true".to_owned())].into()),
                ..ObjectMeta::default()
            },
            provisioner: PROVISIONER.to_owned(),
            reclaim_policy: Some("Delete".to_owned()),
            volume_binding_mode: Some(mode.to_owned()),
            allow_volume_expansion: Some(true),
            ..StorageClass::default()
        };
        match classes.create(&PostParams::default(), &class).await {
            Err(error) if is_already_exists(&error) => {}
            answer => drop(answer?),
        }
    }
    Ok(())
}

fn bytes(amounts: Option<&std::collections::BTreeMap<String, Quantity>>) -> i128 {
    let amount = amounts.and_then(|amounts| amounts.get("storage"));
    let amount = amount.and_then(|amount| Amount::parse(&amount.0).ok());
    amount.map_or(0, |amount| amount.value().into())
}

fn requested(spec: &PersistentVolumeClaimSpec) -> i128 {
    bytes(spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()))
}

fn capacity(volume: &PersistentVolume) -> i128 {
    bytes(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))
}

fn claim_of(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// Whether a volume is reserved for this claim: by UID, or by name if an administrator wrote no UID.
fn is_reserved_for(volume: &PersistentVolume, claim: &ObjectMeta) -> bool {
    claim_of(volume).is_some_and(|reference| {
        reference.namespace.as_deref() == Some(namespace(claim))
            && reference.name.as_deref() == Some(name(claim))
            && reference.uid.as_deref().is_none_or(|of| of.is_empty() || of == uid(claim))
    })
}

/// Whether a free volume satisfies a claim.
fn satisfies(volume: &PersistentVolume, claim: &PersistentVolumeClaimSpec) -> bool {
    let Some(spec) = &volume.spec else { return false };
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let mode = |mode: &Option<String>| mode.as_deref().unwrap_or("Filesystem").to_owned();
    let class = |class: &Option<String>| class.as_deref().unwrap_or_default().to_owned();
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    spec.claim_ref.is_none()
        && volume.metadata.deletion_timestamp.is_none()
        && phase == Some("Available")
        && class(&spec.storage_class_name) == class(&claim.storage_class_name)
        && mode(&spec.volume_mode) == mode(&claim.volume_mode)
        && claim.access_modes.iter().flatten().all(|mode| modes.contains(mode))
        && capacity(volume) >= requested(claim)
        && claim.selector.as_ref().is_none_or(|selector| {
            pods::selector(selector).is_some_and(|found| pods::selects(&found, &volume.metadata))
        })
}

pub(super) fn wire(context: &Context, claims: &Queue, volumes: &Queue) {
    let views = &context.views;
    let to = claims.clone();
    let (also, all) = (volumes.clone(), Arc::clone(&views.volumes));
    views.volume_claims.on_change(move |change| {
        to.add(change.key.clone());
        if change.new.is_none() {
            // Volumes of a claim that is gone are released.
            let of_claim = |volume: &Arc<PersistentVolume>| {
                change.old.as_ref().is_some_and(|claim| is_reserved_for(volume, &claim.metadata))
            };
            for volume in all.all().iter().filter(|volume| of_claim(volume)) {
                also.add(Key::of(&volume.metadata));
            }
        }
    });
    let pending = |views: &crate::views::Views| -> Vec<Key> {
        let all = views.volume_claims.all();
        let unbound = all.iter().filter(|claim| phase(claim) != "Bound");
        unbound.map(|claim| Key::of(&claim.metadata)).collect()
    };
    let (to, also, all) = (volumes.clone(), claims.clone(), Arc::downgrade(views));
    views.volumes.on_change(move |change| {
        to.add(change.key.clone());
        // A new or freed volume may be what a claim waits for.
        let Some(views) = all.upgrade() else { return };
        pending(&views).into_iter().for_each(|key| also.add(key));
    });
    let (to, all) = (claims.clone(), Arc::downgrade(views));
    views.classes.on_change(move |_| {
        let Some(views) = all.upgrade() else { return };
        pending(&views).into_iter().for_each(|key| to.add(key));
    });
}

fn phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Binds a claim, or gives it a volume to bind.
pub(super) async fn reconcile_claim(context: &Context, key: Key) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(claim) = views.volume_claims.get(&key) else { return Ok(None) };
    let Some(spec) = &claim.spec else { return Ok(None) };
    if claim.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    if let Some(volume) = spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
        return match views.volumes.get(&Key::new("", volume)) {
            Some(volume) => bind(context, &claim, &volume).await,
            None if annotation(&claim.metadata, BIND_COMPLETED).is_some() => {
                set_phase(context, &claim, "Lost", None).await
            }
            None => set_phase(context, &claim, "Pending", None).await,
        }
        .map(|()| None);
    }
    let all = views.volumes.all();
    if let Some(volume) = all.iter().find(|volume| is_reserved_for(volume, &claim.metadata)) {
        return bind(context, &claim, volume).await.map(|()| None);
    }
    set_phase(context, &claim, "Pending", None).await?;
    let class = match spec.storage_class_name.as_deref() {
        Some(class) => views.classes.get(&Key::new("", class)),
        None => return adopt_default_class(context, &claim).await.map(|()| None),
    };
    let waits = class
        .as_ref()
        .is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    if waits && annotation(&claim.metadata, SELECTED_NODE).is_none() {
        let text = "waiting for first consumer to be created before binding";
        let note = Note::normal("WaitForFirstConsumer", text);
        context.events.record(COMPONENT, claim.as_ref(), note);
        return Ok(None);
    }
    if !waits {
        let fitting = all.iter().filter(|volume| satisfies(volume, spec));
        if let Some(volume) = fitting.min_by_key(|volume| capacity(volume)) {
            return bind(context, &claim, volume).await.map(|()| None);
        }
    }
    match class {
        Some(class) if class.provisioner == PROVISIONER => {
            provision(context, &claim, spec, &class).await?;
        }
        class => record_unprovisioned(context, &claim, spec, class.as_deref()),
    }
    Ok(None)
}

/// Says why a claim gets no volume from here.
fn record_unprovisioned(
    context: &Context,
    claim: &PersistentVolumeClaim,
    spec: &PersistentVolumeClaimSpec,
    class: Option<&StorageClass>,
) {
    let note = match class {
        Some(class) => {
            let text = format!(
                "Waiting for a volume to be created either by the external provisioner '{}' or manually by \
                 the system administrator",
                class.provisioner
            );
            Note::normal("ExternalProvisioning", text)
        }
        None => match spec.storage_class_name.as_deref().unwrap_or_default() {
            "" => Note::normal(
                "FailedBinding",
                "no persistent volumes available for this claim and no storage class is set",
            ),
            name => Note::warning(
                "ProvisioningFailed",
                format!("storageclass.storage.k8s.io \"{name}\" not found"),
            ),
        },
    };
    context.events.record(COMPONENT, claim, note);
}

/// Gives a claim without a class the default class, if there is one.
async fn adopt_default_class(
    context: &Context,
    claim: &Arc<PersistentVolumeClaim>,
) -> Result<(), kube::Error> {
    let classes = context.views.classes.all();
    let is_default =
        |class: &&Arc<StorageClass>| annotation(&class.metadata, DEFAULT_CLASS) == Some("true");
    let Some(class) = classes.iter().find(is_default) else { return Ok(()) };
    let change = json!({ "spec": { "storageClassName": class.metadata.name } });
    patch_claim(context, claim, change).await
}

async fn provision(
    context: &Context,
    claim: &Arc<PersistentVolumeClaim>,
    spec: &PersistentVolumeClaimSpec,
    class: &StorageClass,
) -> Result<(), kube::Error> {
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let storage = requests.and_then(|requests| requests.get("storage")).cloned();
    let own = format!("pvc-{}", uid(&claim.metadata));
    let volume = PersistentVolume {
        metadata: ObjectMeta {
            name: Some(own.clone()),
            annotations: Some([(PROVISIONED_BY.to_owned(), PROVISIONER.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes.clone(),
            capacity: Some([("storage".to_owned(), storage.unwrap_or_default())].into()),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: claim.metadata.namespace.clone(),
                name: claim.metadata.name.clone(),
                uid: claim.metadata.uid.clone(),
                ..ObjectReference::default()
            }),
            csi: Some(CSIPersistentVolumeSource {
                driver: PROVISIONER.to_owned(),
                volume_handle: own.clone(),
                ..CSIPersistentVolumeSource::default()
            }),
            persistent_volume_reclaim_policy: class.reclaim_policy.clone(),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: spec.volume_mode.clone(),
            mount_options: class.mount_options.clone(),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    };
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    match volumes.create(&PostParams::default(), &volume).await {
        Err(error) if is_already_exists(&error) => Ok(()),
        Err(error) => Err(error),
        Ok(created) => {
            context.views.volumes.observe(created);
            let text = format!("Successfully provisioned volume {own}");
            let note = Note::normal("ProvisioningSucceeded", text);
            context.events.record(PROVISIONER, claim.as_ref(), note);
            Ok(())
        }
    }
}

/// Completes a binding, in the order of Kubernetes: the volume's claim, the claim's volume, their phases.
async fn bind(
    context: &Context,
    claim: &Arc<PersistentVolumeClaim>,
    volume: &Arc<PersistentVolume>,
) -> Result<(), kube::Error> {
    let meta = &claim.metadata;
    if claim_of(volume).is_some() && !is_reserved_for(volume, meta) {
        let note = Note::warning(
            "FailedBinding",
            format!("volume \"{}\" already bound to a different claim.", name(&volume.metadata)),
        );
        context.events.record(COMPONENT, claim.as_ref(), note);
        return set_phase(context, claim, "Pending", None).await;
    }
    let mut volume = Arc::clone(volume);
    if claim_of(&volume).and_then(|reference| reference.uid.as_deref()) != Some(uid(meta)) {
        let mut change = json!({ "spec": { "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": meta.namespace, "name": meta.name, "uid": meta.uid,
        } } });
        if claim_of(&volume).is_none() {
            change["metadata"]["annotations"] = json!({ BOUND_BY_CONTROLLER: "yes" });
        }
        change["metadata"]["resourceVersion"] = json!(volume.metadata.resource_version);
        let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
        let patch = Patch::Merge(&change);
        let written =
            volumes.patch(name(&volume.metadata), &PatchParams::default(), &patch).await?;
        context.views.volumes.observe(written.clone());
        volume = Arc::new(written);
    }
    set_volume_phase(context, &volume, "Bound").await?;
    let is_named = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref())
        == Some(name(&volume.metadata));
    if !is_named || annotation(meta, BIND_COMPLETED).is_none() {
        let mut annotations = json!({ BIND_COMPLETED: "yes" });
        if !is_named {
            annotations[BOUND_BY_CONTROLLER] = json!("yes");
        }
        let change = json!({
            "metadata": { "annotations": annotations },
            "spec": { "volumeName": volume.metadata.name },
        });
        patch_claim(context, claim, change).await?;
    }
    let claim = context.views.volume_claims.get(&Key::of(meta));
    let claim = claim.filter(|found| found.metadata.uid == meta.uid);
    match claim {
        Some(claim) => set_phase(context, &claim, "Bound", Some(&volume)).await,
        None => Ok(()),
    }
}

async fn patch_claim(
    context: &Context,
    claim: &Arc<PersistentVolumeClaim>,
    mut change: Value,
) -> Result<(), kube::Error> {
    change["metadata"]["resourceVersion"] = json!(claim.metadata.resource_version);
    let claims = context.api::<PersistentVolumeClaim>(namespace(&claim.metadata));
    let patch = Patch::Merge(&change);
    let written = claims.patch(name(&claim.metadata), &PatchParams::default(), &patch).await?;
    context.views.volume_claims.observe(written);
    Ok(())
}

async fn set_phase(
    context: &Context,
    claim: &Arc<PersistentVolumeClaim>,
    phase: &str,
    volume: Option<&PersistentVolume>,
) -> Result<(), kube::Error> {
    let spec = volume.and_then(|volume| volume.spec.as_ref());
    let before = claim.status.clone().unwrap_or_default();
    let status = PersistentVolumeClaimStatus {
        phase: Some(phase.to_owned()),
        access_modes: spec
            .and_then(|spec| spec.access_modes.clone())
            .or(before.access_modes.clone()),
        capacity: spec.and_then(|spec| spec.capacity.clone()).or(before.capacity.clone()),
        ..before.clone()
    };
    if status == before {
        return Ok(());
    }
    let mut written = (**claim).clone();
    written.status = Some(status);
    context.write_status(&context.views.volume_claims, &written).await.map(drop)
}

async fn set_volume_phase(
    context: &Context,
    volume: &PersistentVolume,
    phase: &str,
) -> Result<(), kube::Error> {
    let before = volume.status.clone().unwrap_or_default();
    if before.phase.as_deref() == Some(phase) {
        return Ok(());
    }
    let mut written = volume.clone();
    written.status = Some(PersistentVolumeStatus { phase: Some(phase.to_owned()), ..before });
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let name = name(&volume.metadata);
    let written = volumes.replace_status(name, &PostParams::default(), &written).await?;
    context.views.volumes.observe(written);
    Ok(())
}

/// Makes a volume available, or releases it when its claim is gone.
pub(super) async fn reconcile_volume(context: &Context, key: Key) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(volume) = views.volumes.get(&key) else { return Ok(None) };
    if volume.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let reference = claim_of(&volume);
    let Some(of) = reference.and_then(|reference| reference.uid.as_deref()) else {
        return set_volume_phase(context, &volume, "Available").await.map(|()| None);
    };
    let at = |field: fn(&ObjectReference) -> &Option<String>| {
        reference.and_then(|reference| field(reference).clone()).unwrap_or_default()
    };
    let claim = Key::new(at(|one| &one.namespace), at(|one| &one.name));
    match views.volume_claims.get(&claim) {
        // The claim's own pass completes the binding.
        Some(claim) if uid(&claim.metadata) == of => return Ok(None),
        _ => {}
    }
    // The watch of claims may lag behind that of volumes.
    let claims = context.api::<PersistentVolumeClaim>(&claim.namespace);
    let there = claims.get_metadata_opt(&claim.name).await?;
    if there.is_some_and(|claim| uid(&claim.metadata) == of) {
        return Ok(None);
    }
    set_volume_phase(context, &volume, "Released").await?;
    let policy =
        volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let ours = annotation(&volume.metadata, PROVISIONED_BY) == Some(PROVISIONER);
    if ours && policy == Some("Delete") {
        let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
        unless_gone(volumes.delete(&key.name, &delete_this(&volume.metadata)).await)?;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    fn volume(size: &str, more: Value) -> PersistentVolume {
        let mut spec = json!({
            "capacity": { "storage": size }, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
            "storageClassName": "fast",
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        from_value(json!({
            "metadata": { "name": "v", "labels": { "disk": "ssd" } },
            "spec": spec, "status": { "phase": "Available" },
        }))
        .unwrap()
    }

    fn claim(more: Value) -> PersistentVolumeClaimSpec {
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "5Gi" } },
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        from_value(spec).unwrap()
    }

    #[test]
    fn a_volume_satisfies_a_claim_in_size_class_modes_and_labels() {
        let plain = volume("5Gi", json!({}));
        assert!(satisfies(&plain, &claim(json!({}))));
        assert!(!satisfies(&volume("4Gi", json!({})), &claim(json!({}))));
        for other in [
            json!({ "storageClassName": "slow" }),
            json!({ "accessModes": ["ReadWriteMany"] }),
            json!({ "volumeMode": "Block" }),
            json!({ "selector": { "matchLabels": { "disk": "hdd" } } }),
        ] {
            assert!(!satisfies(&plain, &claim(other.clone())), "{other}");
        }
        let taken = json!({ "claimRef": { "namespace": "n", "name": "other" } });
        assert!(!satisfies(&volume("5Gi", taken), &claim(json!({}))));
    }

    #[test]
    fn a_volume_is_reserved_by_name_or_by_uid() {
        let meta = ObjectMeta {
            namespace: Some("n".to_owned()),
            name: Some("c".to_owned()),
            uid: Some("u".to_owned()),
            ..ObjectMeta::default()
        };
        let reserved = |uid: Option<&str>| {
            let reference = json!({ "namespace": "n", "name": "c", "uid": uid });
            is_reserved_for(&volume("1Gi", json!({ "claimRef": reference })), &meta)
        };
        assert_eq!([reserved(None), reserved(Some("u")), reserved(Some("x"))], [true, true, false]);
    }
}
