//! Applies events about storage and returns the events that undo them.

use super::Storage;
use crate::event::Event;

impl Storage {
    /// Applies an event; returns the event that undoes it if anything changed.
    pub(crate) fn apply(&mut self, event: Event) -> Option<Event> {
        if self.is_unchanged(&event) {
            return None;
        }
        match event {
            Event::Claim(claim) => {
                let gone = Event::ClaimGone(claim.namespace.clone(), claim.name.clone());
                let before = self.claim(&claim.namespace, &claim.name).cloned();
                self.set_claim(claim);
                Some(before.map_or(gone, Event::Claim))
            }
            Event::ClaimGone(namespace, name) => {
                let before = self.claim(&namespace, &name).cloned().map(Event::Claim);
                self.remove_claim(&namespace, &name);
                before
            }
            Event::Volume(volume) => {
                let gone = Event::VolumeGone(volume.name.clone());
                let before = self.volume(&volume.name).cloned();
                self.set_volume(volume);
                Some(before.map_or(gone, Event::Volume))
            }
            Event::VolumeGone(name) => {
                let before = self.volume(&name).cloned().map(Event::Volume);
                self.remove_volume(&name);
                before
            }
            Event::StorageClass(class) => {
                let gone = Event::StorageClassGone(class.name.clone());
                let before = self.class(&class.name).cloned();
                self.set_class(class);
                Some(before.map_or(gone, Event::StorageClass))
            }
            Event::StorageClassGone(name) => {
                let before = self.class(&name).cloned().map(Event::StorageClass);
                self.remove_class(&name);
                before
            }
            other => self.apply_csi(other),
        }
    }

    fn apply_csi(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::CsiNode(node) => {
                let gone = Event::CsiNodeGone(node.node.clone());
                let before = self.csi_node(&node.node).cloned();
                self.set_csi_node(node);
                Some(before.map_or(gone, Event::CsiNode))
            }
            Event::CsiNodeGone(name) => {
                let before = self.csi_node(&name).cloned().map(Event::CsiNode);
                self.remove_csi_node(&name);
                before
            }
            Event::CsiDriver(driver) => {
                let gone = Event::CsiDriverGone(driver.name.clone());
                let before = self.driver(&driver.name).cloned();
                self.set_driver(driver);
                Some(before.map_or(gone, Event::CsiDriver))
            }
            Event::CsiDriverGone(name) => {
                let before = self.driver(&name).cloned().map(Event::CsiDriver);
                self.remove_driver(&name);
                before
            }
            Event::StorageCapacity(capacity) => {
                let (namespace, name) = (capacity.namespace.clone(), capacity.name.clone());
                let before = self.capacity(&namespace, &name).cloned();
                self.set_capacity(capacity);
                let gone = Event::StorageCapacityGone(namespace, name);
                Some(before.map_or(gone, Event::StorageCapacity))
            }
            Event::StorageCapacityGone(namespace, name) => {
                let before = self.capacity(&namespace, &name).cloned();
                self.remove_capacity(&namespace, &name);
                before.map(Event::StorageCapacity)
            }
            Event::Attachment(attachment) => {
                let gone = Event::AttachmentGone(attachment.name.clone());
                let before = self.attachment(&attachment.name).cloned();
                self.set_attachment(attachment);
                Some(before.map_or(gone, Event::Attachment))
            }
            Event::AttachmentGone(name) => {
                let before = self.attachment(&name).cloned().map(Event::Attachment);
                self.remove_attachment(&name);
                before
            }
            _ => None,
        }
    }

    fn is_unchanged(&self, event: &Event) -> bool {
        match event {
            Event::Claim(new) => self.claim(&new.namespace, &new.name) == Some(new),
            Event::Volume(new) => self.volume(&new.name) == Some(new),
            Event::StorageClass(new) => self.class(&new.name) == Some(new),
            Event::CsiNode(new) => self.csi_node(&new.node) == Some(new),
            Event::CsiDriver(new) => self.driver(&new.name) == Some(new),
            Event::StorageCapacity(new) => self.capacity(&new.namespace, &new.name) == Some(new),
            Event::Attachment(new) => self.attachment(&new.name) == Some(new),
            _ => false,
        }
    }
}
