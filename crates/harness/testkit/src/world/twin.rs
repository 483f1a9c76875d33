//! The kubelet of one node, fed with the pods that are bound there in the order in which they are.
//!
//! Owns the log of what the kubelet saw, so that what it never saw after all can be left out. Must
//! not know the engine's own idea of the kubelet.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_kubelet::NodeTopology;
use berth_kubelet::{Admission, Kubelet, PodDemand, Rejection};
use berth_model::idset::{CpuSet, DeviceSet};
use berth_model::pod::{ContainerKind, Pod};
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::ResourceName;

use super::books::Entry;

/// A node's kubelet.
#[derive(Clone, Debug)]
pub(super) struct Twin {
    empty: Kubelet,
    kubelet: Kubelet,
    /// What happened since the kubelet was empty.
    log: Vec<Seen>,
    /// Pods that are bound to the node although it does not take them.
    refused: Vec<Arc<str>>,
    trusted: bool,
}

/// What a kubelet saw.
#[derive(Clone, Debug)]
enum Seen {
    /// It was there with this when the kubelet began anew.
    Had(Arc<str>, Admission),
    Came(Arc<str>, Option<Arc<PodDemand>>),
    Went(Arc<str>),
}

impl Twin {
    /// The kubelet of an empty node.
    pub(super) fn new(topology: &NodeTopology) -> Self {
        let kubelet = topology.empty_kubelet().clone();
        Self {
            empty: kubelet.clone(),
            kubelet,
            log: Vec::new(),
            refused: Vec::new(),
            trusted: true,
        }
    }

    pub(super) fn kubelet(&self) -> &Kubelet {
        &self.kubelet
    }

    /// The same kubelet after its GPUs were divided into other slices, if everybody still has the
    /// devices that they held.
    pub(super) fn redivided(&self, topology: &NodeTopology) -> Option<Self> {
        let mut twin = Self::new(topology);
        for uid in self.kubelet.pods().filter(|_| self.is_known()) {
            let mut held = self.kubelet.assignment(uid)?;
            for given in held.containers.iter_mut().flat_map(|one| &mut one.devices) {
                let old = self.kubelet.pools().nth(given.pool)?;
                let pools: Vec<_> = twin.kubelet.pools().collect();
                given.pool = pools.iter().position(|pool| pool.resource == given.resource)?;
                let new = pools[given.pool];
                let found = |device: usize| {
                    new.devices.iter().position(|one| one.id == old.devices[device].id)
                };
                for set in [&mut given.devices, &mut given.certain, &mut given.candidates] {
                    *set = set.iter().map(found).collect::<Option<DeviceSet>>()?;
                }
            }
            twin.see(Seen::Had(uid.into(), held));
        }
        (self.is_known() && twin.is_known()).then_some(twin)
    }

    /// The devices that pods may hold but for some of them, by id.
    pub(super) fn may_be_held(&self, but: &[Arc<str>]) -> BTreeSet<String> {
        let mut ids = BTreeSet::new();
        for uid in self.kubelet.pods().filter(|uid| !but.iter().any(|one| **one == **uid)) {
            let held = self.kubelet.assignment(uid).map(|held| held.containers);
            for given in held.iter().flatten().flat_map(|one| &one.devices) {
                let Some(pool) = self.kubelet.pools().nth(given.pool) else { continue };
                let all = given.devices | given.certain | given.candidates;
                ids.extend(all.iter().map(|device| pool.devices[device].id.clone()));
            }
        }
        ids
    }

    /// What it says is not to be relied on until the node has been empty.
    pub(super) fn distrust(&mut self) {
        self.trusted = false;
    }

    /// Whether the kubelet's books can be known by whoever saw all events.
    pub(super) fn is_known(&self) -> bool {
        self.trusted && self.refused.is_empty()
    }

    /// What the kubelet sees of a pod.
    pub(super) fn demand(&self, pod: &Pod, grant: Option<&ResourceName>) -> Option<PodDemand> {
        match grant {
            None => self.kubelet.demand(pod).ok(),
            Some(grant) => self.kubelet.demand(&with_device(pod, grant)).ok(),
        }
    }

    /// A pod comes, and is taken or not.
    pub(super) fn admit(&mut self, pod: &Entry) {
        let demand = self.demand(&pod.spec().pod, pod.grant.as_ref()).map(Arc::new);
        self.see(Seen::Came(pod.object.uid.clone(), demand));
    }

    /// A pod has left.
    pub(super) fn remove(&mut self, uid: &Arc<str>) {
        self.see(Seen::Went(uid.clone()));
        if self.kubelet.pods().next().is_none() && self.refused.is_empty() {
            self.kubelet = self.empty.clone();
            self.log.clear();
            self.trusted = true;
        }
    }

    /// A pod never came.
    pub(super) fn unsee(&mut self, uid: &Arc<str>) {
        let mut log = std::mem::take(&mut self.log);
        log.retain(|seen| match seen {
            Seen::Had(one, _) | Seen::Came(one, _) | Seen::Went(one) => one != uid,
        });
        self.kubelet = self.empty.clone();
        self.refused.clear();
        log.into_iter().for_each(|seen| self.see(seen));
    }

    fn see(&mut self, seen: Seen) {
        match &seen {
            Seen::Had(uid, held) => {
                if self.kubelet.adopt(uid, held).is_err() {
                    self.refused.push(uid.clone());
                }
            }
            Seen::Came(uid, demand) => {
                let taken = demand.as_ref().map(|demand| self.kubelet.admit(uid, demand));
                if !matches!(taken, Some(Ok(_))) {
                    self.refused.push(uid.clone());
                }
            }
            Seen::Went(uid) => {
                self.kubelet.remove(uid);
                self.refused.retain(|one| one != uid);
            }
        }
        self.log.push(seen);
    }

    /// The kubelet's answer to a pod, in words if it is a rejection.
    pub(super) fn answer(&self, uid: &str, demand: &PodDemand) -> Result<Admission, Rejection> {
        self.kubelet.clone().admit(uid, demand)
    }

    /// Something that this pod and another one both hold, in words.
    pub(super) fn held_twice(&self, uid: &str) -> Option<String> {
        let own = holdings(&self.kubelet.assignment(uid)?);
        self.kubelet.pods().filter(|other| *other != uid).find_map(|other| {
            let others = holdings(&self.kubelet.assignment(other)?);
            let cpus = own.0 & others.0;
            if !cpus.is_empty() {
                return Some(format!("CPUs {cpus} by {uid} and {other}"));
            }
            own.1.iter().zip(&others.1).enumerate().find_map(|(pool, (one, other_set))| {
                let both = *one & *other_set;
                (!both.is_empty()).then(|| format!("pool {pool}: {both} by {uid} and {other}"))
            })
        })
    }

    /// NUMA memory of which more is handed out than there is, in words.
    pub(super) fn memory_overdrawn(&self) -> Option<String> {
        let pods: Vec<Admission> =
            self.kubelet.pods().filter_map(|pod| self.kubelet.assignment(pod)).collect();
        let machine = self.kubelet.machine();
        for kind in machine.memory_kinds() {
            let all = self.empty.free_memory();
            let Some(free) = all.iter().find(|free| free.kind == *kind) else { continue };
            let total: u64 = free.bytes.iter().flatten().sum();
            let blocks = pods.iter().flat_map(|pod| &pod.containers).flat_map(|one| &one.memory);
            let held: u64 = blocks.filter(|block| block.kind == *kind).map(|one| one.bytes).sum();
            if held > total {
                return Some(format!("{held} bytes of {kind} are pinned, {total} exist"));
            }
        }
        None
    }
}

/// CPUs and, by pool, devices that a pod holds.
fn holdings(admission: &Admission) -> (CpuSet, Vec<DeviceSet>) {
    let mut cpus = CpuSet::EMPTY;
    let mut pools: Vec<DeviceSet> = Vec::new();
    for container in &admission.containers {
        cpus |= container.cpus.unwrap_or(CpuSet::EMPTY);
        for given in &container.devices {
            if given.pool >= pools.len() {
                pools.resize(given.pool + 1, DeviceSet::EMPTY);
            }
            pools[given.pool] |= given.devices;
        }
    }
    (cpus, pools)
}

/// The pod as it is when its first app container has been given one device.
fn with_device(pod: &Pod, resource: &ResourceName) -> Pod {
    let mut pod = pod.clone();
    let app = pod.containers.iter_mut().find(|one| one.kind == ContainerKind::App);
    if let Some(container) = app {
        let one = Quantity::from_units(1, Format::DecimalSi);
        container.resources.requests.insert(resource.clone(), one);
        container.resources.limits.insert(resource.clone(), one);
    }
    pod
}
