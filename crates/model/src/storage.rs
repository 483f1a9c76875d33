//! Storage as far as it ties pods to nodes: claims, volumes, classes, what drivers can attach.
//!
//! Owns the data only.

use std::sync::Arc;

use crate::affinity::NodeTerm;
use crate::label::Labels;

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
    /// What it asks for.
    pub request_bytes: i64,
    /// Its class; `None` if not written.
    pub class: Option<Arc<str>>,
    /// The volume it names.
    pub volume: Option<Arc<str>>,
    /// Labels the volume must have; `None`: any.
    pub selector: Option<crate::label::Selector>,
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
    /// Its class; empty: none.
    pub class: Arc<str>,
    /// The claim it is kept for.
    pub claim: Option<ClaimRef>,
    /// As what.
    pub mode: VolumeMode,
    /// Whether it is free to be bound (`status.phase` is `Available`).
    pub available: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// From which nodes it can be reached: one of these must match; `None`: from all.
    pub node_affinity: Option<Vec<NodeTerm>>,
    /// The CSI driver and handle, if it is such a volume or an in-tree one that CSI serves today.
    pub csi: Option<CsiSource>,
}

/// A CSI volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiSource {
    /// The driver.
    pub driver: Arc<str>,
    /// Its handle on the volume.
    pub handle: Arc<str>,
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
