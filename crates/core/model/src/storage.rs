//! Storage as far as it ties pods to nodes: claims, volumes, classes, what drivers can attach.
//!
//! Owns the data only.

use std::sync::Arc;

use crate::affinity::NodeTerm;
use crate::label::{Labels, Selector};

/// How a volume may be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccessMode {
    /// Written from one node.
    ReadWriteOnce,
    /// Read from many nodes.
    ReadOnlyMany,
    /// Written from many nodes.
    ReadWriteMany,
    /// Written from one pod.
    ReadWriteOncePod,
}

/// Whether a volume is mounted as a file system or given as a block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeMode {
    /// A file system.
    #[default]
    Filesystem,
    /// A block device.
    Block,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: Arc<str>,
    /// The pod that owns it, if it was made for a generic ephemeral volume: the UID of its
    /// controller.
    pub controller_uid: Option<Arc<str>>,
    /// How it is to be mounted.
    pub access: Vec<AccessMode>,
    /// What it asks for; 0 if not written.
    pub request_bytes: i64,
    /// Its class, by its old annotation (`volume.beta.kubernetes.io/storage-class`) or else its
    /// field; `None` if neither is written.
    pub class: Option<Arc<str>>,
    /// The class of its attributes (`volumeAttributesClassName`); empty: none.
    pub attributes_class: Arc<str>,
    /// The volume it names; `None` if that is empty.
    pub volume: Option<Arc<str>>,
    /// Labels the volume must have; `None`: any.
    pub selector: Option<Selector>,
    /// As what.
    pub mode: VolumeMode,
    /// Whether the binding is complete (`pv.kubernetes.io/bind-completed`).
    pub bind_completed: bool,
    /// The node for which it is being provisioned (`volume.kubernetes.io/selected-node`).
    pub selected_node: Option<Arc<str>>,
    /// Whether its phase is `Lost`.
    pub lost: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PersistentVolume {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: Labels,
    /// How it may be mounted.
    pub access: Vec<AccessMode>,
    /// Its size.
    pub capacity_bytes: i64,
    /// Its class, by its old annotation or else its field; empty: none.
    pub class: Arc<str>,
    /// The class of its attributes (`volumeAttributesClassName`); empty: none.
    pub attributes_class: Arc<str>,
    /// The claim it is kept for.
    pub claim: Option<ClaimRef>,
    /// As what.
    pub mode: VolumeMode,
    /// Whether it is free to be bound (`status.phase` is `Available`).
    pub available: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// From which nodes it can be reached: one of these must match; `None`: from all. Names of
    /// nodes do not count here, as Kubernetes does not look at them.
    pub node_affinity: Option<Vec<NodeTerm>>,
    /// What it is stored on.
    pub source: VolumeSource,
}

/// What a volume is stored on, as far as it matters who attaches it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VolumeSource {
    /// Something that nobody counts: NFS, a local disk.
    #[default]
    Other,
    /// A volume of a CSI driver.
    Csi(CsiSource),
    /// A disk of a former in-tree plugin, which a CSI driver attaches today.
    InTree(InTreeDisk),
}

/// A CSI volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiSource {
    /// The driver.
    pub driver: Arc<str>,
    /// Its handle on the volume.
    pub handle: Arc<str>,
}

/// A disk of a former in-tree plugin.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InTreeDisk {
    /// Whose disk it is.
    pub plugin: InTreePlugin,
    /// Its name, id or URI, as written.
    pub id: Arc<str>,
}

/// A former in-tree plugin whose disks a CSI driver attaches. Azure File and vSphere are left out:
/// kube-scheduler does not count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InTreePlugin {
    /// AWS EBS.
    AwsEbs,
    /// Azure Disk; unmanaged disks are [`VolumeSource::Other`].
    AzureDisk,
    /// OpenStack Cinder.
    Cinder,
    /// GCE persistent disks.
    GcePd,
    /// Portworx.
    Portworx,
}

impl InTreePlugin {
    const ALL: [Self; 5] =
        [Self::AwsEbs, Self::AzureDisk, Self::Cinder, Self::GcePd, Self::Portworx];

    /// The plugin of this name, which is also that of its provisioner.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| plugin.name() == name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AwsEbs => "kubernetes.io/aws-ebs",
            Self::AzureDisk => "kubernetes.io/azure-disk",
            Self::Cinder => "kubernetes.io/cinder",
            Self::GcePd => "kubernetes.io/gce-pd",
            Self::Portworx => "kubernetes.io/portworx-volume",
        }
    }

    /// The CSI driver that attaches its disks.
    pub const fn driver(self) -> &'static str {
        match self {
            Self::AwsEbs => "ebs.csi.aws.com",
            Self::AzureDisk => "disk.csi.azure.com",
            Self::Cinder => "cinder.csi.openstack.org",
            Self::GcePd => "pd.csi.storage.gke.io",
            Self::Portworx => "pxd.portworx.com",
        }
    }

    /// The label by which that driver says in which zone a node is, where zones of in-tree volumes
    /// are taken over to it.
    pub const fn zone_key(self) -> Option<&'static str> {
        match self {
            Self::AwsEbs => Some("topology.ebs.csi.aws.com/zone"),
            Self::Cinder => Some("topology.cinder.csi.openstack.org/zone"),
            Self::GcePd => Some("topology.gke.io/zone"),
            Self::AzureDisk | Self::Portworx => None,
        }
    }
}

/// The claim a volume is kept for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID; empty: any claim of that name.
    pub uid: Arc<str>,
}

/// A StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageClass {
    /// Its name.
    pub name: Arc<str>,
    /// Who provisions.
    pub provisioner: Arc<str>,
    /// Whether volumes are bound when a pod is placed rather than at once; `None` if not written.
    pub waits_for_consumer: Option<bool>,
    /// Where volumes can be provisioned: one of these must match; empty: anywhere.
    pub allowed_topologies: Vec<NodeTerm>,
    /// Whether it is the default class.
    pub is_default: bool,
    /// When it was created, to tell the newest default.
    pub created_at_ms: i64,
}

/// What CSI drivers can attach on a node (CSINode).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiNode {
    /// The node's name.
    pub node: Arc<str>,
    /// Each driver with how many volumes it can attach; `None`: no limit is known.
    pub drivers: Vec<(Arc<str>, Option<i32>)>,
    /// In-tree plugins that are served by CSI (`storage.alpha.kubernetes.io/migrated-plugins`).
    pub migrated_plugins: Vec<Arc<str>>,
}

/// A CSI driver (CSIDriver).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiDriver {
    /// Its name.
    pub name: Arc<str>,
    /// Whether it says how much it can still provision, and where (`storageCapacity`).
    pub tracks_capacity: bool,
}

/// How much a driver can still provision somewhere (CSIStorageCapacity).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageCapacity {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Of which storage class.
    pub class: Arc<str>,
    /// For which nodes; `None`: none.
    pub nodes: Option<Selector>,
    /// The largest volume: `maximumVolumeSize`, or else `capacity`; `None`: not known, so none.
    pub largest_bytes: Option<i64>,
}

/// A volume that is, or is to be, attached to a node (VolumeAttachment).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeAttachment {
    /// Its name.
    pub name: Arc<str>,
    /// The driver.
    pub driver: Arc<str>,
    /// The node.
    pub node: Arc<str>,
    /// The persistent volume; `None` if the volume is inline.
    pub volume: Option<Arc<str>>,
}
