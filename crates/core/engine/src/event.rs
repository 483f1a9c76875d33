//! What happens to a cluster, as the engine is told.
//!
//! Owns the vocabulary only. Every event names one object and says how it is now, or that it is
//! gone; saying the same thing twice changes nothing.

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

/// What a node looks like inside, and how its kubelet is set up. Checked when it is made; nodes that
/// are alike had better share one.
#[derive(Clone, Debug)]
pub struct NodeTopology {
    kubelet: Kubelet,
    /// The GPUs that some of the devices are, or are parts of, as far as that is known.
    gpus: Option<GpuInventory>,
}

impl NodeTopology {
    /// Sockets, NUMA nodes, CPUs and memory; policies and options; devices by resource.
    pub fn new(
        machine: impl Into<Arc<Machine>>,
        config: KubeletConfig,
        devices: Vec<DevicePool>,
    ) -> Result<Self, ConfigError> {
        Ok(Self { kubelet: Kubelet::new(machine, config, devices)?, gpus: None })
    }

    /// The same, with GPUs from which the devices of their plugin follow. A plugin that refuses GPUs,
    /// such as one with MIG on and no slices yet, lists none of them: they are known all the same.
    pub fn with_gpus(
        machine: impl Into<Arc<Machine>>,
        config: KubeletConfig,
        gpus: GpuInventory,
        mut devices: Vec<DevicePool>,
    ) -> Result<Self, ConfigError> {
        devices.extend(gpus.pools().unwrap_or_default());
        Ok(Self { kubelet: Kubelet::new(machine, config, devices)?, gpus: Some(gpus) })
    }

    /// The GPUs, if they are known.
    pub fn gpus(&self) -> Option<&GpuInventory> {
        self.gpus.as_ref()
    }

    /// The same node with some of its GPUs, by place in their list, divided into other slices;
    /// `None` if its GPUs are not known.
    pub fn redivided(&self, slices: &[(usize, Layout)]) -> Option<Self> {
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

    /// Whether both are the same but for how GPUs are divided: whoever holds a device keeps it when
    /// the one becomes the other.
    pub(crate) fn is_redivision_of(&self, other: &Self) -> bool {
        let (one, two) = (&self.kubelet, &other.kubelet);
        self.gpus.is_some()
            && other.gpus.is_some()
            && one.machine() == two.machine()
            && one.config() == two.config()
    }

    /// The same with what a pod of this UID is known to hold there, so that it need not be worked out.
    /// It counts for pods that are on the node when the topology is told, while they are.
    pub fn with_held(mut self, uid: &str, held: &Admission) -> Result<Self, AdoptError> {
        self.kubelet.adopt(uid, held)?;
        Ok(self)
    }

    /// Whether both say the same.
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

    /// The kubelet of such a node, with no pods but those of which is known what they hold.
    pub fn empty_kubelet(&self) -> &Kubelet {
        &self.kubelet
    }
}

/// An object is as given, or is gone.
#[derive(Clone, Debug)]
pub enum Event {
    /// A node.
    Node(Node),
    /// No node of this name.
    NodeGone(Arc<str>),
    /// What a node looks like inside; `None`: that is not known (any more).
    Topology {
        /// The node's name. The node itself may appear later.
        node: Arc<str>,
        /// What is known.
        topology: Option<Arc<NodeTopology>>,
    },
    /// A pod.
    Pod(PodObject),
    /// No pod of this UID.
    PodGone(Arc<str>),
    /// A namespace.
    Namespace(Namespace),
    /// No namespace of this name.
    NamespaceGone(Arc<str>),
    /// A disruption budget.
    Budget(DisruptionBudget),
    /// No disruption budget of this namespace and name.
    BudgetGone(Arc<str>, Arc<str>),
    /// A priority class.
    PriorityClass(PriorityClass),
    /// No priority class of this name.
    PriorityClassGone(Arc<str>),
    /// A resource quota.
    Quota(Quota),
    /// No resource quota of this namespace and name.
    QuotaGone(Arc<str>, Arc<str>),
    /// A team, or a group of teams. Heeded by the profile `berth` only.
    Team(Team),
    /// No team of this name.
    TeamGone(Arc<str>),
    /// A pool that can grow.
    Pool(Pool),
    /// No pool of this name.
    PoolGone(Arc<str>),
    /// Which class pods are of that do not say so.
    Classes(ClassRules),
    /// Room that is to be kept warm for a class.
    Headroom(Headroom),
    /// No room is to be kept under this name.
    HeadroomGone(Arc<str>),
    /// What one of a device resource is.
    Accelerator(Accelerator),
    /// Nothing is said about this device resource (any more).
    AcceleratorGone(ResourceName),
    /// Devices that a driver publishes.
    DeviceSlice(ResourceSlice),
    /// No slice of devices of this name.
    DeviceSliceGone(Arc<str>),
    /// A class of devices.
    DeviceClass(DeviceClass),
    /// No class of devices of this name.
    DeviceClassGone(Arc<str>),
    /// A claim of devices.
    DeviceClaim(dra::claim::Claim),
    /// No claim of devices of this namespace and name.
    DeviceClaimGone(Arc<str>, Arc<str>),
    /// A service or controller that says which pods belong together.
    Grouping(Grouping),
    /// No such service or controller: its kind, namespace and name.
    GroupingGone(Arc<str>, Arc<str>, Arc<str>),
    /// A gang that is an object of its own.
    Gang(Gang),
    /// No such gang of this namespace and name.
    GangGone(Arc<str>, Arc<str>),
    /// A claim.
    Claim(Claim),
    /// No claim of this namespace and name.
    ClaimGone(Arc<str>, Arc<str>),
    /// A persistent volume.
    Volume(PersistentVolume),
    /// No persistent volume of this name.
    VolumeGone(Arc<str>),
    /// A storage class.
    StorageClass(StorageClass),
    /// No storage class of this name.
    StorageClassGone(Arc<str>),
    /// What CSI drivers can attach on a node.
    CsiNode(CsiNode),
    /// Nothing is known of CSI drivers on the node of this name.
    CsiNodeGone(Arc<str>),
    /// A CSI driver.
    CsiDriver(CsiDriver),
    /// No CSI driver of this name.
    CsiDriverGone(Arc<str>),
    /// How much a driver can still provision somewhere.
    StorageCapacity(StorageCapacity),
    /// No such statement of this namespace and name.
    StorageCapacityGone(Arc<str>, Arc<str>),
    /// A volume that is, or is to be, attached to a node.
    Attachment(VolumeAttachment),
    /// No attachment of this name.
    AttachmentGone(Arc<str>),
}
