//! Objects for the tests of controllers.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde_json::{from_value, json};

pub(crate) fn time(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

pub(crate) fn set(name: &str, replicas: i32) -> ReplicaSet {
    from_value(json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("{name}-uid") },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "main", "image": "nginx" }] },
            },
        },
    }))
    .unwrap()
}

pub(crate) struct PodBuilder(Pod);

pub(crate) fn pod(name: &str) -> PodBuilder {
    PodBuilder(
        from_value(json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": format!("{name}-uid"),
                "labels": { "app": "web" }, "creationTimestamp": time(0),
            },
            "spec": { "containers": [{ "name": "main", "image": "nginx" }] },
            "status": { "phase": "Pending" },
        }))
        .unwrap(),
    )
}

impl From<Pod> for PodBuilder {
    fn from(pod: Pod) -> Self {
        Self(pod)
    }
}

impl PodBuilder {
    pub(crate) fn never_restarted(mut self) -> Self {
        self.0.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
        self
    }

    pub(crate) fn owned_by(mut self, owner: &ObjectMeta) -> Self {
        self.0.metadata.owner_references = Some(vec![OwnerReference {
            uid: owner.uid.clone().unwrap(),
            name: owner.name.clone().unwrap(),
            controller: Some(true),
            ..OwnerReference::default()
        }]);
        self
    }

    pub(crate) fn phase(mut self, phase: &str) -> Self {
        self.0.status.as_mut().unwrap().phase = Some(phase.to_owned());
        self
    }

    pub(crate) fn on(mut self, node: &str) -> Self {
        self.0.spec.as_mut().unwrap().node_name = Some(node.to_owned());
        self
    }

    pub(crate) fn ready_at(mut self, second: i64) -> Self {
        let status = self.0.status.as_mut().unwrap();
        status.phase = Some("Running".to_owned());
        status.conditions = Some(vec![PodCondition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            last_transition_time: Some(time(second)),
            ..PodCondition::default()
        }]);
        self
    }

    /// It was ready until then.
    pub(crate) fn ready_was(mut self, second: i64) -> Self {
        let phase = self.0.status.as_ref().unwrap().phase.clone();
        self = self.ready_at(second);
        let status = self.0.status.as_mut().unwrap();
        status.phase = phase;
        status.conditions.as_mut().unwrap()[0].status = "False".to_owned();
        self
    }

    pub(crate) fn terminating(mut self) -> Self {
        self.0.metadata.deletion_timestamp = Some(time(50));
        self
    }

    pub(crate) fn annotated(mut self, key: &str, value: &str) -> Self {
        let annotations = self.0.metadata.annotations.get_or_insert_default();
        annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn labelled(mut self, key: &str, value: &str) -> Self {
        let labels = self.0.metadata.labels.get_or_insert_default();
        labels.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn finalized_by(mut self, finalizer: &str) -> Self {
        self.0.metadata.finalizers.get_or_insert_default().push(finalizer.to_owned());
        self
    }

    pub(crate) fn arc(self) -> Arc<Pod> {
        Arc::new(self.0)
    }

    pub(crate) fn plain(self) -> Pod {
        self.0
    }
}
