//! Pods as last seen. Watches repeat events after a failure, and one API server may lag behind another, so older
//! versions are ignored, and UIDs of pods that are gone never come back.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use berth_model::pod::{Container, Pod, PodLevelResources, QosClass};
use berth_model::resource::ResourceName;
use berth_model::spec::{Phase, PodObject};

use super::effect::SeenPod;
use super::tombstones::Tombstones;

/// Namespace and name.
type FullName = (Arc<str>, Arc<str>);

/// Pods of a node: namespace, name, and whether they have exclusive CPUs or devices.
pub type Residents = Vec<(Arc<str>, Arc<str>, bool)>;

/// Whether the kubelet gives a pod exclusive CPUs or devices.
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

fn gang(pod: &PodObject) -> Option<(Arc<str>, Arc<str>)> {
    let gang = pod.spec.gang.as_ref()?;
    Some((pod.spec.namespace.clone(), gang.name.clone()))
}

#[derive(Debug, Default)]
pub(crate) struct Pods {
    by_uid: HashMap<Arc<str>, SeenPod>,
    by_node: HashMap<Arc<str>, HashSet<Arc<str>>>,
    /// Pending pods that Berth schedules.
    waiting: HashSet<Arc<str>>,
    /// Those of them in a gang, by the namespace and name of the gang.
    by_gang: HashMap<FullName, BTreeSet<Arc<str>>>,
    tombstones: Tombstones,
}

impl Pods {
    pub(crate) fn get(&self, uid: &str) -> Option<&SeenPod> {
        self.by_uid.get(uid)
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = &SeenPod> {
        self.waiting.iter().filter_map(|uid| self.by_uid.get(uid))
    }

    /// Pending pods of the pod's gang, including itself; empty if it is in none.
    pub(super) fn mates(&self, pod: &PodObject) -> Vec<Arc<str>> {
        let waiting = gang(pod).and_then(|gang| self.by_gang.get(&gang));
        waiting.into_iter().flatten().cloned().collect()
    }

    fn wait(&mut self, pod: &PodObject) {
        self.waiting.insert(pod.uid.clone());
        if let Some(gang) = gang(pod) {
            self.by_gang.entry(gang).or_default().insert(pod.uid.clone());
        }
    }

    fn stop_waiting(&mut self, uid: &Arc<str>) {
        if !self.waiting.remove(uid) {
            return;
        }
        let Some(gang) = self.by_uid.get(uid).and_then(|pod| gang(&pod.object)) else { return };
        if let Some(mates) = self.by_gang.get_mut(&gang) {
            mates.remove(uid);
            if mates.is_empty() {
                self.by_gang.remove(&gang);
            }
        }
    }

    /// Pods bound to a node that have not finished.
    pub(crate) fn on(&self, node: &str) -> impl Iterator<Item = &SeenPod> {
        let there = self.by_node.get(node).into_iter().flatten();
        let there = there.filter_map(|uid| self.by_uid.get(uid));
        there.filter(|pod| pod.object.phase != Phase::Finished)
    }

    /// Pods on a node, as fingerprints of exporters count them.
    pub(super) fn residents(&self, node: &str) -> Residents {
        self.on(node)
            .map(|pod| {
                let PodObject { spec, name, .. } = &pod.object;
                (spec.namespace.clone(), name.clone(), has_own(&spec.pod))
            })
            .collect()
    }

    /// Returns the pod as it was before; `None` if what was seen is older than what is known.
    pub(super) fn see(&mut self, seen: &SeenPod) -> Option<Option<SeenPod>> {
        let uid = &seen.object.uid;
        let known = self.by_uid.get(uid);
        let is_old = known.is_some_and(|known| known.version > seen.version);
        if is_old || self.tombstones.contains(uid) {
            return None;
        }
        // Of the previous gang: labels can change.
        self.stop_waiting(uid);
        if seen.ours && seen.object.node.is_none() {
            self.wait(&seen.object);
        }
        let before = self.by_uid.insert(uid.clone(), seen.clone());
        if let Some(node) = &seen.object.node {
            self.by_node.entry(node.clone()).or_default().insert(uid.clone());
        }
        Some(before)
    }

    /// A pod has finished. It is kept while it exists, so that older events do not revive it.
    pub(super) fn finish(&mut self, uid: &Arc<str>) {
        self.stop_waiting(uid);
    }

    pub(super) fn remove(&mut self, uid: &Arc<str>) {
        self.stop_waiting(uid);
        if let Some(pod) = self.by_uid.remove(uid)
            && let Some(node) = &pod.object.node
            && let Some(there) = self.by_node.get_mut(node)
        {
            there.remove(uid);
            if there.is_empty() {
                self.by_node.remove(node);
            }
        }
        self.tombstones.add(uid);
    }
}
