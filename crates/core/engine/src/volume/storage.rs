//! Tables of storage objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::storage::{
    Claim, CsiDriver, CsiNode, PersistentVolume, StorageCapacity, StorageClass, VolumeAttachment,
};

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
    /// By namespace and name.
    capacities: BTreeMap<(Arc<str>, Arc<str>), StorageCapacity>,
    attachments: ByName<VolumeAttachment>,
    attachments_by_node: Index,
}

impl Storage {
    pub(crate) fn set_claim(&mut self, claim: Claim) {
        let claims = self.claims.entry(claim.namespace.clone()).or_default();
        claims.insert(claim.name.clone(), claim);
    }

    pub(crate) fn remove_claim(&mut self, namespace: &str, name: &str) {
        let Some(claims) = self.claims.get_mut(namespace) else { return };
        claims.remove(name);
        if claims.is_empty() {
            self.claims.remove(namespace);
        }
    }

    pub(crate) fn set_volume(&mut self, volume: PersistentVolume) {
        self.remove_volume(&volume.name);
        link(&mut self.volumes_by_class, &volume.class, &volume.name);
        self.volumes.insert(volume.name.clone(), volume);
    }

    pub(crate) fn remove_volume(&mut self, name: &str) {
        if let Some(volume) = self.volumes.remove(name) {
            unlink(&mut self.volumes_by_class, &volume.class, name);
        }
    }

    pub(crate) fn set_class(&mut self, class: StorageClass) {
        self.classes.insert(class.name.clone(), class);
    }

    pub(crate) fn remove_class(&mut self, name: &str) {
        self.classes.remove(name);
    }

    pub(crate) fn set_csi_node(&mut self, csi_node: CsiNode) {
        self.csi_nodes.insert(csi_node.node.clone(), csi_node);
    }

    pub(crate) fn remove_csi_node(&mut self, node: &str) {
        self.csi_nodes.remove(node);
    }

    pub(crate) fn set_driver(&mut self, driver: CsiDriver) {
        self.drivers.insert(driver.name.clone(), driver);
    }

    pub(crate) fn remove_driver(&mut self, name: &str) {
        self.drivers.remove(name);
    }

    pub(crate) fn set_capacity(&mut self, capacity: StorageCapacity) {
        let key = (capacity.namespace.clone(), capacity.name.clone());
        self.capacities.insert(key, capacity);
    }

    pub(crate) fn remove_capacity(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        self.capacities.remove(&(namespace.clone(), name.clone()));
    }

    pub(crate) fn set_attachment(&mut self, attachment: VolumeAttachment) {
        self.remove_attachment(&attachment.name);
        link(&mut self.attachments_by_node, &attachment.node, &attachment.name);
        self.attachments.insert(attachment.name.clone(), attachment);
    }

    pub(crate) fn remove_attachment(&mut self, name: &str) {
        if let Some(attachment) = self.attachments.remove(name) {
            unlink(&mut self.attachments_by_node, &attachment.node, name);
        }
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

    pub(super) fn driver(&self, name: &str) -> Option<&CsiDriver> {
        self.drivers.get(name)
    }

    pub(super) fn capacity(
        &self,
        namespace: &Arc<str>,
        name: &Arc<str>,
    ) -> Option<&StorageCapacity> {
        self.capacities.get(&(namespace.clone(), name.clone()))
    }

    pub(super) fn attachment(&self, name: &str) -> Option<&VolumeAttachment> {
        self.attachments.get(name)
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

fn link(index: &mut Index, key: &Arc<str>, name: &Arc<str>) {
    index.entry(key.clone()).or_default().insert(name.clone());
}

fn unlink(index: &mut Index, key: &str, name: &str) {
    let Some(names) = index.get_mut(key) else { return };
    names.remove(name);
    if names.is_empty() {
        index.remove(key);
    }
}
