//! Devices that pods claim (Dynamic Resource Allocation), as the engine keeps them.
//!
//! Owns the inventory, which pods took what by decisions that no claim tells of yet, and where the
//! search for devices enters: as one more filter, the last one, as in kube-scheduler. The rules are
//! those of the dra crate. Must not know how nodes are ranked.
//!
//! Kubernetes places devices without regard to NUMA nodes. Here the devices are looked for near the
//! pod's CPUs first, wherever its kubelet would put them, and elsewhere only if that cannot be.

use std::sync::Arc;

use berth_dra::{Demand, Inventory, NumaNodes, Options, Placement, Preference};
use berth_kubelet::Kubelet;
use berth_model::dra::pod::{DeviceNeeds, PodClaim};
use berth_model::numa::NumaMask;
use berth_model::resource::ResourceName;
use berth_model::spec::PodSpec;

use crate::event::Event;
use crate::filter::Newcomer;
use crate::partitions::Partitions;
use crate::state::State;
use crate::table::{NodeIx, PodIx};
use crate::verdict::{Plugin, Reason, Rejection};

/// In which order devices are tried. What can be given does not depend on it, but what is given does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they are listed, which is kube-scheduler's order.
    Listed,
    /// Parts of GPUs so that most is left to those that come later.
    LeavingMost,
}

/// What there is of devices. Cheap to clone, so that it can be restored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Devices {
    inventory: Arc<Inventory>,
    /// Those that are parts of GPUs.
    partitions: Partitions,
    /// Whether anything was ever told: without it nothing of this costs anything.
    in_use: bool,
}

impl Devices {
    /// An event about devices.
    pub(crate) fn apply(&mut self, event: Event) {
        self.in_use = true;
        let inventory = Arc::make_mut(&mut self.inventory);
        match event {
            Event::DeviceSlice(slice) => {
                self.partitions.learn(&slice);
                inventory.apply_slice(slice);
            }
            Event::DeviceSliceGone(name) => inventory.remove_slice(&name),
            Event::DeviceClass(class) => inventory.apply_class(class),
            Event::DeviceClassGone(name) => inventory.remove_class(&name),
            Event::DeviceClaim(claim) => inventory.apply_claim(claim),
            Event::DeviceClaimGone(namespace, name) => inventory.remove_claim(&namespace, &name),
            _ => {}
        }
    }

    /// Looks at a pod before any node: what it needs, if it needs any devices.
    pub(crate) fn prepare(
        &self,
        spec: &PodSpec,
        pod: &Newcomer<'_>,
    ) -> Result<Option<Demand>, Rejection> {
        let may_be_served = || {
            let requests = spec.pod.containers.iter().flat_map(|one| one.resources.requests.keys());
            requests.into_iter().any(|name| self.inventory.class_for(name).is_some())
        };
        if pod.claims.is_empty() && (!self.in_use || !may_be_served()) {
            return Ok(None);
        }
        let needs = DeviceNeeds {
            namespace: spec.namespace.clone(),
            name: pod.name.into(),
            uid: pod.uid.into(),
            claims: pod.claims.to_vec(),
            pod: spec.pod.clone(),
        };
        self.inventory.prepare(&needs).map_err(|rejection| rejected(&rejection))
    }
}

fn rejected(rejection: &berth_dra::Rejection) -> Rejection {
    // Where kube-scheduler gives up with an error, the pod waits here as well: for a claim, a class or
    // a slice that is another one.
    let reason = Reason::Owned(rejection.to_string().into());
    Rejection::unresolvable(Plugin::DynamicResources, reason)
}

impl State {
    /// What a pod's claims would be given on a node, of devices on some NUMA nodes if they are said.
    pub(crate) fn devices_on(
        &self,
        demand: &Demand,
        at: NodeIx,
        numa: Option<NumaMask>,
        order: Order,
    ) -> Result<Placement, Rejection> {
        let node = &self.nodes[at];
        let kubelet = node.mirror.as_ref().map(|mirror| mirror.kubelet());
        let numa = numa.zip(kubelet).map(|(numa, kubelet)| numa_ids(kubelet, numa));
        let partitions = &self.devices.partitions;
        let prefers = order == Order::LeavingMost && !partitions.is_empty();
        let preference = prefers.then_some(partitions as &dyn Preference);
        let options = Options { numa, preference, ..Options::default() };
        let placed = self.devices.inventory.place(demand, &node.object, &options);
        placed.map_err(|rejection| rejected(&rejection))
    }

    /// The NUMA nodes of the devices of a placement, by position on a node, as far as they say.
    pub(crate) fn numa_of_devices(&self, placement: &Placement, at: NodeIx) -> Option<NumaMask> {
        let kubelet = self.nodes[at].mirror.as_ref()?.kubelet();
        let devices = placement.allocations.iter().flat_map(|(_, one)| &one.devices);
        let ids = self.devices.inventory.numa_nodes(devices.map(|device| &device.id));
        let numa = kubelet.machine().numa().iter().enumerate();
        let positions = numa.filter(|(_, node)| ids.contains(&(node.id)));
        let mask = positions.fold(NumaMask::EMPTY, |all, (at, _)| all | NumaMask::single(at));
        (!mask.is_empty()).then_some(mask)
    }

    /// A pod is bound: what its claims are given is taken until they say so themselves.
    pub(crate) fn take_devices(&mut self, at: PodIx, placement: &Placement) {
        if placement.allocations.is_empty() {
            return;
        }
        let given = placement.allocations.iter().flat_map(|(_, one)| &one.devices);
        for device in given.filter_map(|one| self.devices.inventory.device(&one.id)) {
            self.devices.partitions.gave(device);
        }
        Arc::make_mut(&mut self.devices.inventory).take(placement);
        let claims = placement.allocations.iter().map(|(claim, _)| claim.uid.clone());
        self.pods[at].devices = claims.collect();
    }

    /// A pod has gone, or was not bound after all.
    pub(crate) fn release_devices(&mut self, at: PodIx) {
        let claims = std::mem::take(&mut self.pods[at].devices);
        if !claims.is_empty() {
            let inventory = Arc::make_mut(&mut self.devices.inventory);
            claims.iter().for_each(|claim| inventory.release(claim));
            self.changes.everything();
        }
    }

    /// Devices are as they were at some other time.
    pub(crate) fn restore_devices(&mut self, devices: Devices) {
        self.devices = devices;
        self.list_served();
    }

    /// An event about devices.
    pub(crate) fn apply_devices(&mut self, event: Event) {
        self.devices.apply(event);
        self.list_served();
        self.changes.everything();
    }

    fn list_served(&mut self) {
        let names: Vec<ResourceName> = self.devices.inventory.extended_resources().collect();
        self.served = names.iter().map(|name| self.resources.number(name)).collect();
    }

    /// A pod refers to other claims now: those that were made for it since it was told of last.
    pub(crate) fn set_claims(&mut self, at: PodIx, claims: &Arc<[PodClaim]>) {
        if self.pods[at].claims != *claims {
            self.pods[at].claims = claims.clone();
            self.changes.everything();
        }
    }
}

/// The ids of NUMA nodes, from their positions.
fn numa_ids(kubelet: &Kubelet, numa: NumaMask) -> NumaNodes {
    let nodes = kubelet.machine().numa();
    numa.iter().filter_map(|at| nodes.get(at)).map(|node| node.id).collect()
}
