//! Tables of storage objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::storage::{
    Claim, CsiDriver, CsiNode, PersistentVolume, StorageCapacity, StorageClass, VolumeAttachment,
};

use crate::event::{Event, set};
use crate::state::FullName;

type ByName<T> = BTreeMap<Arc<str>, T>;
type Index = ByName<BTreeSet<Arc<str>>>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Storage {
    /// By namespace, then by name.
    claims: ByName<ByName<Claim>>,
    volumes: ByName<PersistentVolume>,
    volumes_by_class: Index,
    classes: ByName<StorageClass>,
    csi_nodes: ByName<CsiNode>,
    drivers: ByName<CsiDriver>,
    capacities: BTreeMap<FullName, StorageCapacity>,
    attachments: ByName<VolumeAttachment>,
    attachments_by_node: Index,
}

impl Storage {
    /// Applies an event; returns the event that undoes it if anything changed.
    pub(crate) fn apply(&mut self, event: Event) -> Option<Event> {
        use Event::{CsiDriverGone, CsiNodeGone, StorageClassGone};
        match event {
            Event::Claim(claim) => {
                let name = (claim.namespace.clone(), claim.name.clone());
                self.set_claim(name, Some(claim))
            }
            Event::ClaimGone(namespace, name) => self.set_claim((namespace, name), None),
            Event::Volume(volume) => self.set_volume(volume.name.clone(), Some(volume)),
            Event::VolumeGone(name) => self.set_volume(name, None),
            Event::StorageClass(class) => {
                let (name, class) = (class.name.clone(), Some(class));
                set(&mut self.classes, name, class, Event::StorageClass, StorageClassGone)
            }
            StorageClassGone(name) => {
                set(&mut self.classes, name, None, Event::StorageClass, StorageClassGone)
            }
            Event::CsiNode(node) => {
                let (name, node) = (node.node.clone(), Some(node));
                set(&mut self.csi_nodes, name, node, Event::CsiNode, CsiNodeGone)
            }
            CsiNodeGone(name) => set(&mut self.csi_nodes, name, None, Event::CsiNode, CsiNodeGone),
            Event::CsiDriver(driver) => {
                let (name, driver) = (driver.name.clone(), Some(driver));
                set(&mut self.drivers, name, driver, Event::CsiDriver, CsiDriverGone)
            }
            CsiDriverGone(name) => {
                set(&mut self.drivers, name, None, Event::CsiDriver, CsiDriverGone)
            }
            Event::StorageCapacity(capacity) => {
                let name = (capacity.namespace.clone(), capacity.name.clone());
                self.set_capacity(name, Some(capacity))
            }
            Event::StorageCapacityGone(namespace, name) => {
                self.set_capacity((namespace, name), None)
            }
            Event::Attachment(one) => self.set_attachment(one.name.clone(), Some(one)),
            Event::AttachmentGone(name) => self.set_attachment(name, None),
            _ => None,
        }
    }

    fn set_claim(&mut self, (namespace, name): FullName, claim: Option<Claim>) -> Option<Event> {
        let claims = self.claims.entry(namespace.clone()).or_default();
        let gone = |name| Event::ClaimGone(namespace.clone(), name);
        let undo = set(claims, name, claim, Event::Claim, gone);
        if claims.is_empty() {
            self.claims.remove(&namespace);
        }
        undo
    }

    fn set_volume(&mut self, name: Arc<str>, volume: Option<PersistentVolume>) -> Option<Event> {
        let class = volume.as_ref().map(|volume| volume.class.clone());
        let undo = set(&mut self.volumes, name.clone(), volume, Event::Volume, Event::VolumeGone)?;
        if let Event::Volume(before) = &undo {
            unlink(&mut self.volumes_by_class, &before.class, &name);
        }
        link(&mut self.volumes_by_class, class, name);
        Some(undo)
    }

    fn set_capacity(&mut self, name: FullName, capacity: Option<StorageCapacity>) -> Option<Event> {
        let gone = |(namespace, name)| Event::StorageCapacityGone(namespace, name);
        set(&mut self.capacities, name, capacity, Event::StorageCapacity, gone)
    }

    fn set_attachment(&mut self, name: Arc<str>, one: Option<VolumeAttachment>) -> Option<Event> {
        let node = one.as_ref().map(|attachment| attachment.node.clone());
        let table = &mut self.attachments;
        let undo = set(table, name.clone(), one, Event::Attachment, Event::AttachmentGone)?;
        if let Event::Attachment(before) = &undo {
            unlink(&mut self.attachments_by_node, &before.node, &name);
        }
        link(&mut self.attachments_by_node, node, name);
        Some(undo)
    }

    pub(super) fn claim(&self, namespace: &str, name: &str) -> Option<&Claim> {
        self.claims.get(namespace)?.get(name)
    }

    pub(super) fn volume(&self, name: &str) -> Option<&PersistentVolume> {
        self.volumes.get(name)
    }

    /// By name.
    pub(super) fn volumes_of_class(&self, class: &str) -> impl Iterator<Item = &PersistentVolume> {
        let names = self.volumes_by_class.get(class).into_iter().flatten();
        names.filter_map(|name| self.volumes.get(name))
    }

    pub(super) fn class(&self, name: &str) -> Option<&StorageClass> {
        self.classes.get(name)
    }

    /// `None` if the claim has no class, or one that does not exist.
    pub(super) fn class_of(&self, claim: &Claim) -> Option<&StorageClass> {
        self.class(claim.class.as_deref().filter(|name| !name.is_empty())?)
    }

    pub(super) fn csi_node(&self, node: &str) -> Option<&CsiNode> {
        self.csi_nodes.get(node)
    }

    pub(super) fn tracks_capacity(&self, driver: &str) -> bool {
        self.drivers.get(driver).is_some_and(|driver| driver.tracks_capacity)
    }

    pub(super) fn capacities(&self) -> impl Iterator<Item = &StorageCapacity> {
        self.capacities.values()
    }

    pub(super) fn attachments_to(&self, node: &str) -> impl Iterator<Item = &VolumeAttachment> {
        let names = self.attachments_by_node.get(node).into_iter().flatten();
        names.filter_map(|name| self.attachments.get(name))
    }
}

fn link(index: &mut Index, key: Option<Arc<str>>, name: Arc<str>) {
    if let Some(key) = key {
        index.entry(key).or_default().insert(name);
    }
}

fn unlink(index: &mut Index, key: &str, name: &str) {
    let Some(names) = index.get_mut(key) else { return };
    names.remove(name);
    if names.is_empty() {
        index.remove(key);
    }
}
