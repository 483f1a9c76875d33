//! What there is: slices, classes and claims, kept up to date event by event.
//!
//! Owns the state and what is taken of it. Must not know pods beyond their claims.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::dra::claim::{AllocatedDevice, Claim, Wanted};
use berth_model::dra::slice::{Device, ResourceSlice};
use berth_model::dra::{DeviceClass, DeviceId};
use berth_model::resource::ResourceName;

use crate::numa::{self, NumaNodes};
use crate::plugin::{ClaimRef, Placement};
use crate::pools::Pools;
use crate::published::Published;
use crate::selectors::{Selector, Selectors};
use crate::taken::Taken;

/// Slices, classes and claims, and what is taken.
///
/// Events may come in any order that keeps the order of events of one object.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    pub(crate) pools: Pools,
    pub(crate) classes: BTreeMap<Arc<str>, Class>,
    /// Which class serves an extended resource.
    extended: BTreeMap<ResourceName, Arc<str>>,
    /// By namespace and name.
    claims: BTreeMap<(Arc<str>, Arc<str>), Arc<KnownClaim>>,
    /// Devices that were taken for claims whose status does not say so yet, by the claim's UID.
    in_flight: BTreeMap<Arc<str>, Vec<AllocatedDevice>>,
    pub(crate) taken: Taken,
    selectors: Selectors,
}

/// A class with its selectors compiled.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) class: Arc<DeviceClass>,
    pub(crate) selectors: Vec<Arc<Selector>>,
}

/// A claim with its selectors compiled.
#[derive(Debug)]
pub(crate) struct KnownClaim {
    pub(crate) claim: Claim,
    /// By request and alternative.
    pub(crate) selectors: Vec<Vec<Vec<Arc<Selector>>>>,
}

impl Inventory {
    /// One without anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// A slice was published, or published anew.
    pub fn apply_slice(&mut self, slice: ResourceSlice) {
        self.pools.insert(Arc::new(Published::new(slice)));
    }

    /// A slice was withdrawn.
    pub fn remove_slice(&mut self, name: &str) {
        self.pools.remove(name);
    }

    /// A class was made or changed.
    pub fn apply_class(&mut self, class: DeviceClass) {
        let selectors = class.selectors.iter().map(|text| self.selectors.get(text)).collect();
        let class = Arc::new(class);
        self.classes.insert(class.name.clone(), Class { class, selectors });
        self.map_extended_resources();
    }

    /// A class was removed.
    pub fn remove_class(&mut self, name: &str) {
        self.classes.remove(name);
        self.map_extended_resources();
        self.tidy();
    }

    /// A claim was made or changed.
    pub fn apply_claim(&mut self, claim: Claim) {
        let key = (claim.namespace.clone(), claim.name.clone());
        self.forget_allocation(&key);
        if let Some(allocation) = &claim.allocation {
            // What was in flight has arrived.
            self.release(&claim.uid);
            self.taken.add(&allocation.devices);
        }
        let selectors = self.compile(&claim);
        self.claims.insert(key, Arc::new(KnownClaim { claim, selectors }));
        self.tidy();
    }

    /// A claim was removed.
    pub fn remove_claim(&mut self, namespace: &str, name: &str) {
        let key = (namespace.into(), name.into());
        self.forget_allocation(&key);
        if let Some(known) = self.claims.remove(&key) {
            self.release(&known.claim.uid);
        }
        self.tidy();
    }

    /// Takes what `placement` gives, until claims say so themselves or [`Self::release`] is called.
    pub fn take(&mut self, placement: &Placement) {
        for (claim, allocation) in &placement.allocations {
            self.release(&claim.uid);
            self.taken.add(&allocation.devices);
            self.in_flight.insert(claim.uid.clone(), allocation.devices.clone());
        }
    }

    /// Gives back what was taken for the claim of this UID. What its status says stays taken.
    pub fn release(&mut self, claim_uid: &str) {
        if let Some(devices) = self.in_flight.remove(claim_uid) {
            self.taken.remove(&devices);
        }
    }

    /// The claim of this name, as it was last told.
    pub fn claim(&self, namespace: &str, name: &str) -> Option<&Claim> {
        self.known(namespace, name).map(|known| &known.claim)
    }

    /// The extended resources that classes serve through devices, in the order of their names.
    pub fn extended_resources(&self) -> impl Iterator<Item = ResourceName> {
        self.extended.keys().cloned()
    }

    /// The class that serves an extended resource through devices.
    pub fn class_for(&self, resource: &ResourceName) -> Option<&DeviceClass> {
        let name = self.extended.get(resource)?;
        self.classes.get(name).map(|class| class.class.as_ref())
    }

    /// A device, as it was last published.
    pub fn device(&self, id: &DeviceId) -> Option<&Device> {
        let (published, at) = self.pools.find(id)?;
        published.slice.devices.get(at)
    }

    /// The NUMA nodes that devices are on, as far as their attributes say.
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
            self.taken.remove(&allocation.devices);
        }
    }

    fn compile(&mut self, claim: &Claim) -> Vec<Vec<Vec<Arc<Selector>>>> {
        let mut of = |texts: &[Arc<str>]| -> Vec<Arc<Selector>> {
            texts.iter().map(|text| self.selectors.get(text)).collect()
        };
        let requests = claim.spec.requests.iter().map(|request| match &request.wanted {
            Wanted::Exactly(ask) => vec![of(&ask.selectors)],
            Wanted::FirstOf(list) => list.iter().map(|(_, ask)| of(&ask.selectors)).collect(),
            Wanted::Unknown => Vec::new(),
        });
        requests.collect()
    }

    /// Which class serves which extended resource, as kube-scheduler finds out when it starts: of
    /// classes with the same one the newest, then the first by name. A class that comes too late is
    /// not even known by the resource of its own name; that is a defect, and kept.
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

    /// Forgets selectors that nobody uses any more, now and then.
    fn tidy(&mut self) {
        if self.selectors.forget_idle() {
            let kept = self.selectors.numbers();
            for published in self.pools.slices() {
                published.forget(|number| kept.contains(&number));
            }
        }
    }
}
