//! Volumes that are bound or provisioned on a pod's node before the pod is bound.

use super::{Owner, PodVolumes};
use crate::Engine;
use crate::decision::DelayedVolume;

impl Engine {
    /// What has to be bound or provisioned for a pod before it can be bound to a node.
    pub fn delayed_volumes(&self, uid: &str, node: &str) -> Vec<DelayedVolume> {
        let (Some(at), Some(node)) = (self.state.pod_by_uid(uid), self.state.node_by_name(node))
        else {
            return Vec::new();
        };
        let pod = &self.state.pods[at];
        let spec = &self.state.class(pod.class).spec;
        if spec.volumes.is_empty() {
            return Vec::new();
        }
        let owner = Owner { name: &pod.name, uid: &pod.uid };
        PodVolumes::delayed(&self.state.storage, spec, owner, &self.state.nodes[node].object)
    }
}
