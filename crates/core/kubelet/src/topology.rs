//! What a node looks like inside, and how its kubelet is configured.

use std::sync::Arc;

use berth_model::device::DevicePool;
use berth_model::gpu::GpuInventory;
use berth_model::machine::Machine;
use berth_model::mig::Layout;

use crate::config::{ConfigError, KubeletConfig};
use crate::node::{AdoptError, Kubelet};
use crate::outcome::Admission;

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
    pub fn differs_in_layout_only(&self, other: &Self) -> bool {
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

    pub fn is_same(self: &Arc<Self>, other: &Arc<Self>) -> bool {
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
