//! The pods there are, as last seen.
//!
//! Owns which news is newer than what is known. Watches repeat themselves after a failure, and an API
//! server behind another may be older: a pod's resource version only grows, and the UID of a pod that is
//! gone never comes back. Must not know what is decided.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use berth_model::pod::{Container, Pod, PodLevelResources, QosClass};
use berth_model::resource::ResourceName;
use berth_model::spec::{Phase, PodObject};

use super::buried::Buried;
use super::effect::SeenPod;

/// Pods of a node: namespace, name, and whether they have CPUs or devices for themselves.
pub type Residents = Vec<(Arc<str>, Arc<str>, bool)>;

/// Whether the kubelet gives a pod CPUs or devices that nobody else has.
fn has_own(pod: &Pod) -> bool {
    let level = PodLevelResources::HonouredIfEmptyToo;
    let requests = pod.total_requests(level);
    let devices = requests.keys().any(ResourceName::is_extended);
    let whole = |container: &Container| {
        let cpu = container
            .resources
            .requests
            .get(&ResourceName::cpu())
            .map_or(0, |cpu| cpu.milli_value());
        cpu > 0 && cpu % 1000 == 0
    };
    devices || pod.qos(level) == QosClass::Guaranteed && pod.containers.iter().any(whole)
}

/// Everything known of pods.
#[derive(Debug, Default)]
pub(super) struct Pods {
    by_uid: HashMap<Arc<str>, SeenPod>,
    by_name: HashMap<(Arc<str>, Arc<str>), Arc<str>>,
    by_node: HashMap<Arc<str>, HashSet<Arc<str>>>,
    /// Ours that have no node.
    waiting: HashSet<Arc<str>>,
    buried: Buried,
}

impl Pods {
    pub(super) fn get(&self, uid: &str) -> Option<&SeenPod> {
        self.by_uid.get(uid)
    }

    pub(super) fn uid_of(&self, namespace: &str, name: &str) -> Option<Arc<str>> {
        self.by_name.get(&(Arc::from(namespace), Arc::from(name))).cloned()
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &SeenPod> {
        self.waiting.iter().filter_map(|uid| self.by_uid.get(uid))
    }

    /// Pods that are on a node and have not ended.
    pub(super) fn residents(&self, node: &str) -> Residents {
        let there = self.by_node.get(node).into_iter().flatten();
        let there = there.filter_map(|uid| self.by_uid.get(uid));
        there
            .filter(|pod| pod.object.phase != Phase::Finished)
            .map(|pod| {
                let PodObject { spec, name, .. } = &pod.object;
                (spec.namespace.clone(), name.clone(), has_own(&spec.pod))
            })
            .collect()
    }

    /// Takes news in, and gives how the pod was before; `None`: the news is old.
    pub(super) fn see(&mut self, seen: &SeenPod) -> Option<Option<SeenPod>> {
        let uid = &seen.object.uid;
        let known = self.by_uid.get(uid);
        let is_old = known.is_some_and(|known| known.version > seen.version);
        if is_old || self.buried.contains(uid) {
            return None;
        }
        let name = (seen.object.spec.namespace.clone(), seen.object.name.clone());
        self.by_name.insert(name, uid.clone());
        if seen.ours && seen.object.node.is_none() {
            self.waiting.insert(uid.clone());
        } else {
            self.waiting.remove(uid);
        }
        let before = self.by_uid.insert(uid.clone(), seen.clone());
        if let Some(node) = &seen.object.node {
            self.by_node.entry(node.clone()).or_default().insert(uid.clone());
        }
        Some(before)
    }

    /// A pod has ended. It holds nothing, and its end must not be forgotten while it is still shown.
    pub(super) fn finish(&mut self, uid: &Arc<str>) {
        self.waiting.remove(uid);
    }

    /// A pod is gone for good.
    pub(super) fn bury(&mut self, uid: &Arc<str>) {
        self.waiting.remove(uid);
        if let Some(pod) = self.by_uid.remove(uid) {
            let name = (pod.object.spec.namespace.clone(), pod.object.name.clone());
            if self.by_name.get(&name) == Some(uid) {
                self.by_name.remove(&name);
            }
            if let Some(node) = &pod.object.node
                && let Some(there) = self.by_node.get_mut(node)
            {
                there.remove(uid);
                if there.is_empty() {
                    self.by_node.remove(node);
                }
            }
        }
        self.buried.add(uid);
    }
}
