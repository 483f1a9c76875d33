//! Slices, classes and claims, and the devices in use, kept up to date event by event.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::dra::claim::{AllocatedDevice, Claim, RequestKind};
use berth_model::dra::slice::{Device, ResourceSlice};
use berth_model::dra::{DeviceClass, DeviceId};
use berth_model::resource::ResourceName;

use crate::in_use::DevicesInUse;
use crate::numa::{self, NumaNodes};
use crate::plugin::{ClaimRef, Placement};
use crate::pools::Pools;
use crate::published::PublishedSlice;
use crate::selectors::{Selector, Selectors};

/// Events may come in any order that keeps the order of events of one object.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    pub(crate) pools: Pools,
    pub(crate) classes: BTreeMap<Arc<str>, Class>,
    /// The class that serves an extended resource.
    extended: BTreeMap<ResourceName, Arc<str>>,
    /// By namespace and name.
    claims: BTreeMap<(Arc<str>, Arc<str>), Arc<KnownClaim>>,
    /// Devices of allocations that are not in the claim's status yet, by the claim's UID.
    in_flight: BTreeMap<Arc<str>, Vec<AllocatedDevice>>,
    pub(crate) in_use: DevicesInUse,
    selectors: Selectors,
}

#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) class: Arc<DeviceClass>,
    pub(crate) selectors: Vec<Arc<Selector>>,
}

#[derive(Debug)]
pub(crate) struct KnownClaim {
    pub(crate) claim: Claim,
    /// By request and alternative.
    pub(crate) selectors: Vec<Vec<Vec<Arc<Selector>>>>,
}

impl Inventory {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn apply_slice(&mut self, slice: ResourceSlice) {
        self.pools.insert(Arc::new(PublishedSlice::new(slice)));
    }

    pub fn remove_slice(&mut self, name: &str) {
        self.pools.remove(name);
    }

    pub fn apply_class(&mut self, class: DeviceClass) {
        let selectors = class.selectors.iter().map(|text| self.selectors.get(text)).collect();
        let class = Arc::new(class);
        self.classes.insert(class.name.clone(), Class { class, selectors });
        self.map_extended_resources();
    }

    pub fn remove_class(&mut self, name: &str) {
        self.classes.remove(name);
        self.map_extended_resources();
        self.tidy();
    }

    pub fn apply_claim(&mut self, claim: Claim) {
        let key = (claim.namespace.clone(), claim.name.clone());
        self.forget_allocation(&key);
        if let Some(allocation) = &claim.allocation {
            // The in-flight allocation is in the status now.
            self.release(&claim.uid);
            self.in_use.add(&allocation.devices);
        }
        let selectors = self.compile(&claim);
        self.claims.insert(key, Arc::new(KnownClaim { claim, selectors }));
        self.tidy();
    }

    pub fn remove_claim(&mut self, namespace: &str, name: &str) {
        let key = (namespace.into(), name.into());
        self.forget_allocation(&key);
        if let Some(known) = self.claims.remove(&key) {
            self.release(&known.claim.uid);
        }
        self.tidy();
    }

    /// Records the allocations of `placement` as in flight, until claims have them in their status
    /// or [`Self::release`] is called.
    pub fn take(&mut self, placement: &Placement) {
        for (claim, allocation) in &placement.allocations {
            self.release(&claim.uid);
            self.in_use.add(&allocation.devices);
            self.in_flight.insert(claim.uid.clone(), allocation.devices.clone());
        }
    }

    /// Drops the in-flight allocation of a claim. What its status lists stays in use.
    pub fn release(&mut self, claim_uid: &str) {
        if let Some(devices) = self.in_flight.remove(claim_uid) {
            self.in_use.remove(&devices);
        }
    }

    pub fn claim(&self, namespace: &str, name: &str) -> Option<&Claim> {
        self.known(namespace, name).map(|known| &known.claim)
    }

    /// Extended resources that classes serve through devices, in order of name.
    pub fn extended_resources(&self) -> impl Iterator<Item = ResourceName> {
        self.extended.keys().cloned()
    }

    /// The class that serves an extended resource through devices.
    pub fn class_for(&self, resource: &ResourceName) -> Option<&DeviceClass> {
        let name = self.extended.get(resource)?;
        self.classes.get(name).map(|class| class.class.as_ref())
    }

    pub fn device(&self, id: &DeviceId) -> Option<&Device> {
        let (published, at) = self.pools.find(id)?;
        published.slice.devices.get(at)
    }

    /// The NUMA nodes of devices, as far as their attributes state them.
    pub fn numa_nodes<'a>(&self, devices: impl IntoIterator<Item = &'a DeviceId>) -> NumaNodes {
        let of = |id: &DeviceId| {
            let (published, at) = self.pools.find(id)?;
            numa::of(&published.slice, published.slice.devices.get(at)?)
        };
        devices.into_iter().filter_map(of).collect()
    }

    pub(crate) fn known(&self, namespace: &str, name: &str) -> Option<&Arc<KnownClaim>> {
        self.claims.get(&(namespace.into(), name.into()))
    }

    pub(crate) fn all_claims(&self) -> impl Iterator<Item = &Arc<KnownClaim>> {
        self.claims.values()
    }

    pub(crate) fn is_in_flight(&self, claim: &ClaimRef) -> bool {
        self.in_flight.contains_key(&claim.uid)
    }

    fn forget_allocation(&mut self, key: &(Arc<str>, Arc<str>)) {
        let old = self.claims.get(key).and_then(|known| known.claim.allocation.as_ref());
        if let Some(allocation) = old {
            self.in_use.remove(&allocation.devices);
        }
    }

    fn compile(&mut self, claim: &Claim) -> Vec<Vec<Vec<Arc<Selector>>>> {
        let mut of = |texts: &[Arc<str>]| -> Vec<Arc<Selector>> {
            texts.iter().map(|text| self.selectors.get(text)).collect()
        };
        let requests = claim.spec.requests.iter().map(|request| match &request.kind {
            RequestKind::Exactly(ask) => vec![of(&ask.selectors)],
            RequestKind::FirstOf(list) => list.iter().map(|(_, ask)| of(&ask.selectors)).collect(),
            RequestKind::Unknown => Vec::new(),
        });
        requests.collect()
    }

    /// Maps extended resources to classes as kube-scheduler does when it starts: of classes for one
    /// resource the newest, then the first by name. A class that is created later is not even known
    /// by its implicit resource; that is a defect of kube-scheduler, and modelled.
    fn map_extended_resources(&mut self) {
        let mut map: BTreeMap<ResourceName, Arc<str>> = BTreeMap::new();
        for (name, class) in &self.classes {
            if let Some(resource) = &class.class.extended_resource {
                let other = map.get(resource).and_then(|other| self.classes.get(other));
                let created = class.class.created_at_ms;
                if other.is_some_and(|other| other.class.created_at_ms >= created) {
                    continue;
                }
                map.insert(resource.clone(), name.clone());
            }
            map.insert(class.class.implicit_resource(), name.clone());
        }
        self.extended = map;
    }

    /// Occasionally drops unused selectors.
    fn tidy(&mut self) {
        if self.selectors.forget_idle() {
            let kept = self.selectors.numbers();
            for published in self.pools.slices() {
                published.forget(|number| kept.contains(&number));
            }
        }
    }
}
