//! Devices of Dynamic Resource Allocation: the inventory, allocations by decisions that no claim
//! shows yet, and the last filter, as in kube-scheduler. The rules are in the dra crate.
//!
//! Kubernetes allocates devices without regard to NUMA nodes. Here devices near the pod's CPUs are
//! tried first, others only if that fails.

use std::sync::Arc;

use berth_dra::{Demand, Inventory, NumaNodes, Options, Placement, Preference};
use berth_kubelet::Kubelet;
use berth_model::dra::claim::Claim;
use berth_model::dra::pod::{DeviceNeeds, PodClaim};
use berth_model::numa::NumaMask;
use berth_model::resource::ResourceName;
use berth_model::spec::PodSpec;

use crate::event::Event;
use crate::filter::IncomingPod;
use crate::partitions::Partitions;
use crate::state::State;
use crate::table::{NodeIx, PodIx};
use crate::verdict::{Plugin, Reason, Rejection};

/// The order in which devices are tried. It decides what is allocated, not whether anything can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As listed, which is kube-scheduler's order.
    Listed,
    /// Slices in the order that leaves most for later pods.
    LeavingMost,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Devices {
    inventory: Arc<Inventory>,
    /// Devices that are parts of GPUs.
    partitions: Partitions,
    /// Whether there ever was a DRA object; without any, pods are not prepared.
    in_use: bool,
}

impl Devices {
    pub(crate) fn claim(&self, namespace: &str, name: &str) -> Option<&Claim> {
        self.inventory.claim(namespace, name)
    }

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

    /// The device demand of a pod; `None` if it needs no devices.
    pub(crate) fn prepare(
        &self,
        spec: &PodSpec,
        pod: &IncomingPod<'_>,
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
    // Where kube-scheduler fails with an error, the pod waits for another claim, class or slice.
    let reason = Reason::Owned(rejection.to_string().into());
    Rejection::unresolvable(Plugin::DynamicResources, reason)
}

impl State {
    /// The allocation for a pod's claims on a node, from devices on some NUMA nodes if given.
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

    /// The NUMA nodes of allocated devices, by position on the node, as far as published.
    pub(crate) fn numa_of_devices(&self, placement: &Placement, at: NodeIx) -> Option<NumaMask> {
        let kubelet = self.nodes[at].mirror.as_ref()?.kubelet();
        let devices = placement.allocations.iter().flat_map(|(_, one)| &one.devices);
        let ids = self.devices.inventory.numa_nodes(devices.map(|device| &device.id));
        let numa = kubelet.machine().numa().iter().enumerate();
        let positions = numa.filter(|(_, node)| ids.contains(&(node.id)));
        let mask = positions.fold(NumaMask::EMPTY, |all, (at, _)| all | NumaMask::single(at));
        (!mask.is_empty()).then_some(mask)
    }

    /// Takes a bound pod's devices until its claims show the allocation.
    pub(crate) fn take_devices(&mut self, at: PodIx, placement: &Placement) {
        if placement.allocations.is_empty() {
            return;
        }
        let given = placement.allocations.iter().flat_map(|(_, one)| &one.devices);
        for device in given.filter_map(|one| self.devices.inventory.device(&one.id)) {
            self.devices.partitions.record_allocation(device);
        }
        Arc::make_mut(&mut self.devices.inventory).take(placement);
        let claims = placement.allocations.iter().map(|(claim, _)| claim.uid.clone());
        self.pods[at].devices = claims.collect();
    }

    pub(crate) fn release_devices(&mut self, at: PodIx) {
        let claims = std::mem::take(&mut self.pods[at].devices);
        if !claims.is_empty() {
            let inventory = Arc::make_mut(&mut self.devices.inventory);
            claims.iter().for_each(|claim| inventory.release(claim));
            self.changes.everything();
        }
    }

    /// The inventory may be that of a checkpoint.
    pub(crate) fn restore_devices(&mut self, devices: Devices) {
        self.devices = devices;
        self.list_served();
    }

    pub(crate) fn apply_devices(&mut self, event: Event) {
        self.devices.apply(event);
        self.list_served();
        self.changes.everything();
    }

    fn list_served(&mut self) {
        let names: Vec<ResourceName> = self.devices.inventory.extended_resources().collect();
        self.served = names.iter().map(|name| self.resources.number(name)).collect();
    }

    /// Includes claims generated for the pod.
    pub(crate) fn set_claims(&mut self, at: PodIx, claims: &Arc<[PodClaim]>) {
        if self.pods[at].claims != *claims {
            self.pods[at].claims = claims.clone();
            self.changes.everything();
        }
    }
}

fn numa_ids(kubelet: &Kubelet, numa: NumaMask) -> NumaNodes {
    let nodes = kubelet.machine().numa();
    numa.iter().filter_map(|at| nodes.get(at)).map(|node| node.id).collect()
}
