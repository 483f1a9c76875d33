//! Events: the vocabulary in which the engine learns about a cluster.
//!
//! Every event names one object and gives its current state, or that it was deleted. Applying the
//! same event twice changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_kubelet::NodeTopology;
use berth_model::dra::slice::ResourceSlice;
use berth_model::dra::{self, DeviceClass};
use berth_model::gang::Gang;
use berth_model::node::Node;
use berth_model::policy::{
    Accelerator, DisruptionBudget, Grouping, Namespace, Pool, PriorityClass, Quota,
};
use berth_model::resource::ResourceName;
use berth_model::spec::PodObject;
use berth_model::storage::{
    Claim, CsiDriver, CsiNode, PersistentVolume, StorageCapacity, StorageClass, VolumeAttachment,
};
use berth_model::workload::{ClassRules, Headroom};
use berth_tenancy::share::Team;

#[derive(Clone, Debug)]
pub enum Event {
    Node(Node),
    NodeGone(Arc<str>),
    /// A node's topology; `None` if unknown. The node itself may follow later.
    Topology {
        node: Arc<str>,
        topology: Option<Arc<NodeTopology>>,
    },
    Pod(PodObject),
    PodGone(Arc<str>),
    Namespace(Namespace),
    NamespaceGone(Arc<str>),
    Budget(DisruptionBudget),
    BudgetGone(Arc<str>, Arc<str>),
    PriorityClass(PriorityClass),
    PriorityClassGone(Arc<str>),
    Quota(Quota),
    QuotaGone(Arc<str>, Arc<str>),
    /// A team or group of teams. Used by the profile `berth` only.
    Team(Team),
    TeamGone(Arc<str>),
    Pool(Pool),
    PoolGone(Arc<str>),
    /// How to classify pods without a class label.
    Classes(ClassRules),
    /// Room to keep free for a class of work.
    Headroom(Headroom),
    /// By name.
    HeadroomGone(Arc<str>),
    Accelerator(Accelerator),
    /// By resource.
    AcceleratorGone(ResourceName),
    DeviceSlice(ResourceSlice),
    DeviceSliceGone(Arc<str>),
    DeviceClass(DeviceClass),
    DeviceClassGone(Arc<str>),
    DeviceClaim(dra::claim::Claim),
    DeviceClaimGone(Arc<str>, Arc<str>),
    /// A Service or controller that groups pods.
    Grouping(Grouping),
    /// By kind, namespace and name.
    GroupingGone(Arc<str>, Arc<str>, Arc<str>),
    Gang(Gang),
    GangGone(Arc<str>, Arc<str>),
    Claim(Claim),
    ClaimGone(Arc<str>, Arc<str>),
    Volume(PersistentVolume),
    VolumeGone(Arc<str>),
    StorageClass(StorageClass),
    StorageClassGone(Arc<str>),
    /// How many volumes CSI drivers can attach on a node.
    CsiNode(CsiNode),
    /// By node name.
    CsiNodeGone(Arc<str>),
    CsiDriver(CsiDriver),
    CsiDriverGone(Arc<str>),
    /// Capacity that a driver can still provision.
    StorageCapacity(StorageCapacity),
    /// By namespace and name.
    StorageCapacityGone(Arc<str>, Arc<str>),
    Attachment(VolumeAttachment),
    AttachmentGone(Arc<str>),
}

/// Sets or removes an object; returns the event that undoes it if anything changed.
pub(crate) fn set<K: Ord + Clone, T: PartialEq>(
    table: &mut BTreeMap<K, T>,
    key: K,
    object: Option<T>,
    event: impl Fn(T) -> Event,
    gone: impl Fn(K) -> Event,
) -> Option<Event> {
    if table.get(&key) == object.as_ref() {
        return None;
    }
    let before = match object {
        Some(object) => table.insert(key.clone(), object),
        None => table.remove(&key),
    };
    Some(before.map_or_else(|| gone(key), event))
}
