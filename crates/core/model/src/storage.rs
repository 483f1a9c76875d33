//! Storage as far as it ties pods to nodes: claims, volumes, classes, attach limits.

use std::sync::Arc;

use crate::affinity::NodeTerm;
use crate::label::{Labels, Selector};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccessMode {
    ReadWriteOnce,
    ReadOnlyMany,
    ReadWriteMany,
    ReadWriteOncePod,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeMode {
    #[default]
    Filesystem,
    Block,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
    /// The pod that owns it, if it was created for a generic ephemeral volume.
    pub controller_uid: Option<Arc<str>>,
    pub access: Vec<AccessMode>,
    /// 0 if not written.
    pub request_bytes: i64,
    /// From the old annotation (`volume.beta.kubernetes.io/storage-class`), else the field; `None`
    /// if neither is written.
    pub class: Option<Arc<str>>,
    /// `volumeAttributesClassName`; empty: none.
    pub attributes_class: Arc<str>,
    /// `None` if it is empty.
    pub volume: Option<Arc<str>>,
    /// `None`: any volume.
    pub selector: Option<Selector>,
    pub mode: VolumeMode,
    /// `pv.kubernetes.io/bind-completed`.
    pub bind_completed: bool,
    /// The node it is being provisioned for (`volume.kubernetes.io/selected-node`).
    pub selected_node: Option<Arc<str>>,
    /// Whether its phase is `Lost`.
    pub lost: bool,
    pub deleting: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PersistentVolume {
    pub name: Arc<str>,
    pub labels: Labels,
    pub access: Vec<AccessMode>,
    pub capacity_bytes: i64,
    /// From the old annotation, else the field; empty: none.
    pub class: Arc<str>,
    /// `volumeAttributesClassName`; empty: none.
    pub attributes_class: Arc<str>,
    /// `claimRef`.
    pub claim: Option<ClaimRef>,
    pub mode: VolumeMode,
    /// Whether `status.phase` is `Available`.
    pub available: bool,
    pub deleting: bool,
    /// One of these must match; `None`: all nodes. Node names are ignored, as in Kubernetes.
    pub node_affinity: Option<Vec<NodeTerm>>,
    pub source: VolumeSource,
}

/// A volume's storage, as far as it counts against attach limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VolumeSource {
    /// Not counted: NFS, a local disk.
    #[default]
    Other,
    Csi(CsiSource),
    /// A disk of a former in-tree plugin, which a CSI driver attaches today.
    InTree(InTreeDisk),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiSource {
    pub driver: Arc<str>,
    pub handle: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InTreeDisk {
    pub plugin: InTreePlugin,
    /// Name, id or URI, as written.
    pub id: Arc<str>,
}

/// A former in-tree plugin whose disks a CSI driver attaches. Azure File and vSphere are left out:
/// kube-scheduler does not count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InTreePlugin {
    AwsEbs,
    /// Unmanaged disks are [`VolumeSource::Other`].
    AzureDisk,
    Cinder,
    GcePd,
    Portworx,
}

impl InTreePlugin {
    const ALL: [Self; 5] =
        [Self::AwsEbs, Self::AzureDisk, Self::Cinder, Self::GcePd, Self::Portworx];

    /// By the plugin's name, which is also that of its provisioner.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| plugin.name() == name)
    }

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

    /// The driver's label of a node's zone, if zones of in-tree volumes are translated to it.
    pub const fn zone_key(self) -> Option<&'static str> {
        match self {
            Self::AwsEbs => Some("topology.ebs.csi.aws.com/zone"),
            Self::Cinder => Some("topology.cinder.csi.openstack.org/zone"),
            Self::GcePd => Some("topology.gke.io/zone"),
            Self::AzureDisk | Self::Portworx => None,
        }
    }
}

/// `claimRef` of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// Empty: any claim of that name.
    pub uid: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageClass {
    pub name: Arc<str>,
    pub provisioner: Arc<str>,
    /// `volumeBindingMode: WaitForFirstConsumer`; `None` if not written.
    pub waits_for_consumer: Option<bool>,
    /// One of these must match; empty: anywhere.
    pub allowed_topologies: Vec<NodeTerm>,
    pub is_default: bool,
    /// The newest default class wins.
    pub created_at_ms: i64,
}

/// CSINode: attach limits of CSI drivers on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiNode {
    pub node: Arc<str>,
    /// Drivers with their attach limits; `None`: no limit is known.
    pub drivers: Vec<(Arc<str>, Option<i32>)>,
    /// `storage.alpha.kubernetes.io/migrated-plugins`.
    pub migrated_plugins: Vec<Arc<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiDriver {
    pub name: Arc<str>,
    /// `storageCapacity`: whether it publishes how much it can still provision, and where.
    pub tracks_capacity: bool,
}

/// CSIStorageCapacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageCapacity {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub class: Arc<str>,
    /// `None`: no nodes.
    pub nodes: Option<Selector>,
    /// `maximumVolumeSize`, else `capacity`; `None`: unknown, counts as 0.
    pub largest_bytes: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeAttachment {
    pub name: Arc<str>,
    pub driver: Arc<str>,
    pub node: Arc<str>,
    /// `None` if the volume is inline.
    pub volume: Option<Arc<str>>,
}
