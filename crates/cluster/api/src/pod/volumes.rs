//! Volumes, as far as they restrict the nodes of a pod.

use berth_model::spec::{Disk, Volume};
use berth_model::storage::InTreePlugin::{AzureDisk, Cinder, Portworx};
use k8s_openapi::api::core::v1 as core;

use crate::meta::text;
use crate::storage::{in_tree_disk, managed_azure_disk};

/// The pool of an RBD image that names none.
const DEFAULT_RBD_POOL: &str = "rbd";

/// The volume of the pod named `pod`; `None` if it can be had on every node.
pub(super) fn volume(volume: &core::Volume, pod: &str) -> Option<Volume> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(Volume::Claim { name: claim.claim_name.as_str().into(), ephemeral: false });
    }
    if volume.ephemeral.is_some() {
        let name = format!("{pod}-{}", volume.name).into();
        return Some(Volume::Claim { name, ephemeral: true });
    }
    shared_with_care(volume).or_else(|| counted(volume)).map(Volume::Disk)
}

fn shared_with_care(volume: &core::Volume) -> Option<Disk> {
    if let Some(gce) = &volume.gce_persistent_disk {
        let read_only = gce.read_only.unwrap_or(false);
        return Some(Disk::Gce { name: gce.pd_name.as_str().into(), read_only });
    }
    if let Some(ebs) = &volume.aws_elastic_block_store {
        return Some(Disk::Ebs { id: ebs.volume_id.as_str().into() });
    }
    if let Some(iscsi) = &volume.iscsi {
        let read_only = iscsi.read_only.unwrap_or(false);
        return Some(Disk::Iscsi { iqn: iscsi.iqn.as_str().into(), read_only });
    }
    volume.rbd.as_ref().map(|rbd| Disk::Rbd {
        monitors: rbd.monitors.iter().map(|monitor| monitor.as_str().into()).collect(),
        pool: rbd.pool.as_ref().map_or(DEFAULT_RBD_POOL.into(), |pool| text(Some(pool))),
        image: rbd.image.as_str().into(),
        read_only: rbd.read_only.unwrap_or(false),
    })
}

fn counted(volume: &core::Volume) -> Option<Disk> {
    let disks = [
        (AzureDisk, volume.azure_disk.as_ref().and_then(managed_azure_disk)),
        (Cinder, volume.cinder.as_ref().map(|disk| &disk.volume_id)),
        (Portworx, volume.portworx_volume.as_ref().map(|disk| &disk.volume_id)),
    ];
    let mut disks = disks.into_iter();
    disks.find_map(|(plugin, id)| Some(Disk::Counted(in_tree_disk(plugin, id?))))
}
