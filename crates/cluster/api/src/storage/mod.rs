//! PersistentVolumeClaims, PersistentVolumes, StorageClasses and CSI objects.

use berth_model::storage::InTreePlugin::{self, AwsEbs, AzureDisk, Cinder, GcePd, Portworx};
use berth_model::storage::{
    AccessMode, Claim, ClaimRef, CsiDriver, CsiNode, CsiSource, InTreeDisk, PersistentVolume,
    StorageCapacity, StorageClass, VolumeAttachment, VolumeMode, VolumeSource,
};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::Lower;
use crate::error::{self, LowerError, Problem, each};
use crate::meta::{self, annotation};
use crate::resource::{quantity, resource_list};
use crate::selector::{NodeNames, node_term, optional_selector, topology_term};

/// Where a class was written before it had a field. It still goes before the field.
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";

impl Lower for core::PersistentVolumeClaim {
    type Model = Claim;

    fn lower(&self) -> Result<Claim, LowerError> {
        error::of(self, claim(self))
    }
}

impl Lower for core::PersistentVolume {
    type Model = PersistentVolume;

    fn lower(&self) -> Result<PersistentVolume, LowerError> {
        error::of(self, volume(self))
    }
}

impl Lower for storage::StorageClass {
    type Model = StorageClass;

    fn lower(&self) -> Result<StorageClass, LowerError> {
        error::of(self, class(self))
    }
}

impl Lower for storage::CSINode {
    type Model = CsiNode;

    fn lower(&self) -> Result<CsiNode, LowerError> {
        let driver = |driver: &storage::CSINodeDriver| {
            let limit = driver.allocatable.as_ref().and_then(|allocatable| allocatable.count);
            (driver.name.as_str().into(), limit)
        };
        let migrated = annotation(&self.metadata, MIGRATED_PLUGINS).unwrap_or_default();
        let plugins = migrated.split(',').filter(|plugin| !plugin.is_empty());
        let lowered = meta::name(&self.metadata).map(|node| CsiNode {
            node,
            drivers: self.spec.drivers.iter().map(driver).collect(),
            migrated_plugins: plugins.map(Into::into).collect(),
        });
        error::of(self, lowered)
    }
}

impl Lower for storage::CSIDriver {
    type Model = CsiDriver;

    fn lower(&self) -> Result<CsiDriver, LowerError> {
        let tracks_capacity = self.spec.storage_capacity.unwrap_or(false);
        let lowered = meta::name(&self.metadata).map(|name| CsiDriver { name, tracks_capacity });
        error::of(self, lowered)
    }
}

impl Lower for storage::CSIStorageCapacity {
    type Model = StorageCapacity;

    fn lower(&self) -> Result<StorageCapacity, LowerError> {
        let lower = || -> Result<StorageCapacity, Problem> {
            let bytes = |field: &str, text: Option<&Quantity>| -> Result<Option<i64>, Problem> {
                let quantity = text.map(|Quantity(text)| quantity(text)).transpose();
                let quantity = quantity.map_err(|problem| problem.under(field))?;
                Ok(quantity.map(|quantity| quantity.value()))
            };
            let largest = bytes("maximumVolumeSize", self.maximum_volume_size.as_ref())?;
            let capacity = bytes("capacity", self.capacity.as_ref())?;
            Ok(StorageCapacity {
                namespace: meta::namespace(&self.metadata),
                name: meta::name(&self.metadata)?,
                class: self.storage_class_name.as_str().into(),
                nodes: optional_selector("nodeTopology", self.node_topology.as_ref())?,
                largest_bytes: largest.or(capacity),
            })
        };
        error::of(self, lower())
    }
}

impl Lower for storage::VolumeAttachment {
    type Model = VolumeAttachment;

    fn lower(&self) -> Result<VolumeAttachment, LowerError> {
        let lowered = meta::name(&self.metadata).map(|name| VolumeAttachment {
            name,
            driver: self.spec.attacher.as_str().into(),
            node: self.spec.node_name.as_str().into(),
            volume: meta::filled(self.spec.source.persistent_volume_name.as_ref()),
        });
        error::of(self, lowered)
    }
}

fn claim(claim: &core::PersistentVolumeClaim) -> Result<Claim, Problem> {
    let no_spec = core::PersistentVolumeClaimSpec::default();
    let spec = claim.spec.as_ref().unwrap_or(&no_spec);
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let requests = resource_list("spec.resources.requests", requests)?;
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    let meta = &claim.metadata;
    let in_spec = |problem: Problem| problem.under("spec");
    Ok(Claim {
        namespace: meta::namespace(meta),
        name: meta::name(meta)?,
        uid: meta::text(meta.uid.as_ref()),
        controller_uid: meta::controller(meta).map(|owner| owner.uid.as_str().into()),
        access: access_modes(spec.access_modes.as_ref())?,
        request_bytes: requests.get("storage").map_or(0, |quantity| quantity.value()),
        class: storage_class(meta, spec.storage_class_name.as_ref()).map(Into::into),
        volume: meta::filled(spec.volume_name.as_ref()),
        attributes_class: meta::text(spec.volume_attributes_class_name.as_ref()),
        selector: optional_selector("spec.selector", spec.selector.as_ref())?,
        mode: volume_mode(spec.volume_mode.as_deref()).map_err(in_spec)?,
        bind_completed: annotation(meta, BIND_COMPLETED).is_some(),
        selected_node: annotation(meta, SELECTED_NODE).map(Into::into),
        lost: phase == Some("Lost"),
        deleting: meta.deletion_timestamp.is_some(),
    })
}

fn volume(volume: &core::PersistentVolume) -> Result<PersistentVolume, Problem> {
    let no_spec = core::PersistentVolumeSpec::default();
    let spec = volume.spec.as_ref().unwrap_or(&no_spec);
    let capacity = resource_list("spec.capacity", spec.capacity.as_ref())?;
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let meta = &volume.metadata;
    let claim = spec.claim_ref.as_ref().map(|claim| ClaimRef {
        namespace: meta::text(claim.namespace.as_ref()),
        name: meta::text(claim.name.as_ref()),
        uid: meta::text(claim.uid.as_ref()),
    });
    let required = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    let terms = required.map(|selector| {
        let field = "spec.nodeAffinity.required.nodeSelectorTerms";
        let term = |term: &core::NodeSelectorTerm| node_term(term, NodeNames::Ignored);
        each(field, Some(&selector.node_selector_terms), term)
    });
    Ok(PersistentVolume {
        name: meta::name(meta)?,
        labels: meta::labels(meta),
        access: access_modes(spec.access_modes.as_ref())?,
        capacity_bytes: capacity.get("storage").map_or(0, |quantity| quantity.value()),
        class: storage_class(meta, spec.storage_class_name.as_ref()).unwrap_or("").into(),
        attributes_class: meta::text(spec.volume_attributes_class_name.as_ref()),
        claim,
        mode: volume_mode(spec.volume_mode.as_deref()).map_err(|problem| problem.under("spec"))?,
        available: phase == Some("Available"),
        deleting: meta.deletion_timestamp.is_some(),
        node_affinity: terms.transpose()?,
        source: source(spec),
    })
}

fn source(spec: &core::PersistentVolumeSpec) -> VolumeSource {
    if let Some(csi) = &spec.csi {
        return VolumeSource::Csi(CsiSource {
            driver: csi.driver.as_str().into(),
            handle: csi.volume_handle.as_str().into(),
        });
    }
    let azure = spec.azure_disk.as_ref();
    let disks = [
        (AwsEbs, spec.aws_elastic_block_store.as_ref().map(|disk| &disk.volume_id)),
        (AzureDisk, azure.and_then(managed_azure_disk)),
        (Cinder, spec.cinder.as_ref().map(|disk| &disk.volume_id)),
        (GcePd, spec.gce_persistent_disk.as_ref().map(|disk| &disk.pd_name)),
        (Portworx, spec.portworx_volume.as_ref().map(|disk| &disk.volume_id)),
    ];
    let disk = disks.into_iter().find_map(|(plugin, id)| Some(in_tree_disk(plugin, id?)));
    disk.map_or(VolumeSource::Other, VolumeSource::InTree)
}

pub(crate) fn in_tree_disk(plugin: InTreePlugin, id: &str) -> InTreeDisk {
    InTreeDisk { plugin, id: id.into() }
}

/// Where the disk is, unless it is one that no CSI driver attaches.
pub(crate) fn managed_azure_disk(disk: &core::AzureDiskVolumeSource) -> Option<&String> {
    let managed = disk.kind.as_deref().is_none_or(|kind| kind.eq_ignore_ascii_case("Managed"));
    managed.then_some(&disk.disk_uri)
}

fn class(class: &storage::StorageClass) -> Result<StorageClass, Problem> {
    let waits_for_consumer = match class.volume_binding_mode.as_deref() {
        None => None,
        Some("Immediate") => Some(false),
        Some("WaitForFirstConsumer") => Some(true),
        Some(other) => {
            let known = "Immediate or WaitForFirstConsumer";
            return Err(Problem::unknown("volumeBindingMode", other, known));
        }
    };
    let meta = &class.metadata;
    let marked = |key: &&str| annotation(meta, key) == Some("true");
    Ok(StorageClass {
        name: meta::name(meta)?,
        provisioner: class.provisioner.as_str().into(),
        waits_for_consumer,
        allowed_topologies: each(
            "allowedTopologies",
            class.allowed_topologies.as_ref(),
            topology_term,
        )?,
        is_default: DEFAULT_CLASS.iter().any(marked),
        created_at_ms: meta::unix_ms(meta.creation_timestamp.as_ref()).unwrap_or(0),
    })
}

fn storage_class<'a>(meta: &'a ObjectMeta, field: Option<&'a String>) -> Option<&'a str> {
    annotation(meta, OLD_CLASS).or(field.map(String::as_str))
}

fn access_modes(modes: Option<&Vec<String>>) -> Result<Vec<AccessMode>, Problem> {
    each("spec.accessModes", modes, |mode| match mode.as_str() {
        "ReadWriteOnce" => Ok(AccessMode::ReadWriteOnce),
        "ReadOnlyMany" => Ok(AccessMode::ReadOnlyMany),
        "ReadWriteMany" => Ok(AccessMode::ReadWriteMany),
        "ReadWriteOncePod" => Ok(AccessMode::ReadWriteOncePod),
        other => {
            let known = "ReadWriteOnce, ReadOnlyMany, ReadWriteMany or ReadWriteOncePod";
            Err(Problem::unknown("", other, known))
        }
    })
}

fn volume_mode(mode: Option<&str>) -> Result<VolumeMode, Problem> {
    match mode {
        None | Some("" | "Filesystem") => Ok(VolumeMode::Filesystem),
        Some("Block") => Ok(VolumeMode::Block),
        Some(other) => Err(Problem::unknown("volumeMode", other, "Filesystem or Block")),
    }
}

#[cfg(test)]
mod tests;
