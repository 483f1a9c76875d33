//! The node's pods, from a watch.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::runtime::watcher::Event;

use crate::publish::Resident;
use berth_api::keys::ALIGNMENT;

/// The kubelet's own UID of a static pod.
const STATIC_UID: &str = "kubernetes.io/config.hash";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownPod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// The UID that the kubelet uses.
    pub(super) kubelet_uid: String,
    /// Whether the kubelet has admitted it.
    started: bool,
    /// Whether one of its containers has started; before, only the sandbox exists.
    pub(super) runs: bool,
    ended: bool,
    /// The alignment annotation.
    pub(super) alignment: Option<String>,
}

impl KnownPod {
    fn of(pod: Pod) -> Self {
        let status = pod.status.unwrap_or_default();
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let uid = pod.metadata.uid.unwrap_or_default();
        Self {
            namespace: pod.metadata.namespace.unwrap_or_default(),
            name: pod.metadata.name.unwrap_or_default(),
            kubelet_uid: annotations.get(STATIC_UID).unwrap_or(&uid).clone(),
            uid,
            started: status.start_time.is_some(),
            runs: has_container(&status),
            ended: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            alignment: annotations.get(ALIGNMENT).cloned(),
        }
    }
}

fn has_container(status: &PodStatus) -> bool {
    let ordinary = status.container_statuses.iter().flatten();
    let mut all = ordinary.chain(status.init_container_statuses.iter().flatten());
    all.any(|one| one.container_id.as_ref().is_some_and(|id| !id.is_empty()))
}

#[derive(Debug, Default)]
pub(super) struct Pods {
    by_uid: BTreeMap<String, KnownPod>,
    /// From a list that is not complete.
    listed_pods: BTreeMap<String, KnownPod>,
    /// Whether the first list is complete.
    pub(super) listed: bool,
}

impl Pods {
    /// Returns whether anything has changed.
    pub(super) fn apply(&mut self, event: Event<Pod>) -> bool {
        match event {
            Event::Init => self.listed_pods.clear(),
            Event::InitApply(pod) => {
                let pod = KnownPod::of(pod);
                self.listed_pods.insert(pod.uid.clone(), pod);
            }
            Event::InitDone => {
                let listed_pods = std::mem::take(&mut self.listed_pods);
                let differs = !self.listed || listed_pods != self.by_uid;
                (self.by_uid, self.listed) = (listed_pods, true);
                return differs;
            }
            Event::Apply(pod) => {
                let pod = KnownPod::of(pod);
                let known = self.by_uid.insert(pod.uid.clone(), pod.clone());
                return known != Some(pod);
            }
            Event::Delete(pod) => {
                let uid = pod.metadata.uid.unwrap_or_default();
                return self.by_uid.remove(&uid).is_some();
            }
        }
        false
    }

    /// Pods that the kubelet has admitted and that have not ended.
    pub(super) fn residents(&self) -> Vec<Resident> {
        let there = self.by_uid.values().filter(|pod| pod.started && !pod.ended);
        let resident = |pod: &KnownPod| Resident {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.kubelet_uid.clone(),
        };
        there.map(resident).collect()
    }

    /// The pod with a UID of the kubelet's. The API's UID takes precedence, since anybody can write the annotation.
    pub(super) fn of_kubelet(&self, uid: &str) -> Option<&KnownPod> {
        let found = self.by_uid.get(uid);
        let found = found.or_else(|| self.by_uid.values().find(|pod| pod.kubelet_uid == uid));
        found.filter(|pod| !pod.ended)
    }

    /// Sets the alignment annotation until the watch reports it.
    pub(super) fn set_alignment(&mut self, uid: &str, text: String) {
        if let Some(pod) = self.by_uid.get_mut(uid) {
            pod.alignment = Some(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_runs_once_a_container_has_an_id() {
        let known = |statuses: serde_json::Value| {
            let pod = json!({ "status": { "startTime": "2026-01-01T00:00:00Z", "containerStatuses": statuses } });
            KnownPod::of(serde_json::from_value(pod).unwrap_or_default())
        };
        let status = |id: &str| json!({ "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0, "containerID": id });
        assert!(!known(json!(null)).runs);
        assert!(!known(json!([status("")])).runs, "its image is being pulled");
        assert!(known(json!([status(""), status("containerd://1")])).runs);
    }
}
