//! Events: the vocabulary in which the engine learns about a cluster.
//!
//! Every event names one object and gives its current state, or that it was deleted. Applying the
//! same event twice changes nothing.

use std::sync::Arc;

use berth_kubelet::{Admission, AdoptError, ConfigError, Kubelet, KubeletConfig};
use berth_model::device::DevicePool;
use berth_model::dra::slice::ResourceSlice;
use berth_model::dra::{self, DeviceClass};
use berth_model::gang::Gang;
use berth_model::gpu::GpuInventory;
use berth_model::machine::Machine;
use berth_model::mig::Layout;
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

/// A node's topology and its kubelet's configuration, validated on construction. Equal nodes should
/// share one.
#[derive(Clone, Debug)]
pub struct NodeTopology {
    kubelet: Kubelet,
    gpus: Option<GpuInventory>,
}

impl NodeTopology {
    pub fn new(
        machine: impl Into<Arc<Machine>>,
        config: KubeletConfig,
        devices: Vec<DevicePool>,
    ) -> Result<Self, ConfigError> {
        Ok(Self { kubelet: Kubelet::new(machine, config, devices)?, gpus: None })
    }

    /// With GPUs, from which the devices of their plugin follow. A plugin that fails for its GPUs
    /// (MIG enabled, but no slices) lists none; the GPUs are known all the same.
    pub fn with_gpus(
        machine: impl Into<Arc<Machine>>,
        config: KubeletConfig,
        gpus: GpuInventory,
        mut devices: Vec<DevicePool>,
    ) -> Result<Self, ConfigError> {
        devices.extend(gpus.pools().unwrap_or_default());
        Ok(Self { kubelet: Kubelet::new(machine, config, devices)?, gpus: Some(gpus) })
    }

    pub fn gpus(&self) -> Option<&GpuInventory> {
        self.gpus.as_ref()
    }

    /// The same node with other MIG layouts on some GPUs, by index; `None` if its GPUs are unknown.
    pub fn repartitioned(&self, slices: &[(usize, Layout)]) -> Option<Self> {
        let mut gpus = self.gpus.clone()?;
        let own = gpus.pools().unwrap_or_default();
        for (at, layout) in slices {
            gpus.gpus.get_mut(*at)?.mig = Some(*layout);
        }
        let others = self.kubelet.pools();
        let others = others.filter(|pool| !own.iter().any(|one| one.resource == pool.resource));
        let (machine, config) = (self.kubelet.machine().clone(), self.kubelet.config().clone());
        Self::with_gpus(machine, config, gpus, others.cloned().collect()).ok()
    }

    /// Whether the topologies differ in MIG layouts only: pods keep the devices they hold across
    /// the change.
    pub(crate) fn differs_in_layout_only(&self, other: &Self) -> bool {
        let (one, two) = (&self.kubelet, &other.kubelet);
        self.gpus.is_some()
            && other.gpus.is_some()
            && one.machine() == two.machine()
            && one.config() == two.config()
    }

    /// Adds the devices that a pod is known to hold. Counts for pods that are on the node when the
    /// topology is applied.
    pub fn with_held(mut self, uid: &str, held: &Admission) -> Result<Self, AdoptError> {
        self.kubelet.adopt(uid, held)?;
        Ok(self)
    }

    pub(crate) fn is_same(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        let (one, two) = (&self.kubelet, &other.kubelet);
        let held = |kubelet: &Kubelet| -> Vec<Option<Admission>> {
            kubelet.pods().map(|pod| kubelet.assignment(pod)).collect()
        };
        Arc::ptr_eq(self, other)
            || one.machine() == two.machine()
                && one.config() == two.config()
                && one.pools().eq(two.pools())
                && self.gpus == other.gpus
                && one.pods().eq(two.pods())
                && held(one) == held(two)
    }

    /// The kubelet model without pods, except those of known assignments.
    pub fn empty_kubelet(&self) -> &Kubelet {
        &self.kubelet
    }
}

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
