//! The node's NodeResourceTopology, and labels and annotations of its Node, as plain objects. Pure: the same
//! reading gives the same objects, so a change is easy to detect.
//!
//! Zones and attributes follow NFD's topology updater: CPUs and memory only if the kubelet assigns them by NUMA
//! node, devices if their plugin reported a NUMA node. What NFD has no name for is in attributes `berth.dev/…`.

mod facts;
mod labels;
mod offered;
mod zones;

use std::collections::BTreeSet;

use berth_api::topology::{Attribute, NodeResourceTopology};
use berth_model::machine::Machine as ModelMachine;
use berth_topology::fingerprint;
use k8s_openapi::Resource as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::report::Reading;
use facts::{Facts, deprecated_policy};
pub use labels::labels;
pub use offered::{Offered, offered};
use zones::zones;

/// A pod that the kubelet has admitted and that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resident {
    pub namespace: String,
    pub name: String,
    /// The UID that the kubelet uses.
    pub uid: String,
}

/// Everything that the published objects depend on.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub reading: &'a Reading,
    /// Devices that the kubelet can allocate.
    pub offered: &'a [Offered],
    pub residents: &'a [Resident],
}

impl Subject<'_> {
    /// Whether a pod still exists: the kubelet's files keep ended pods until the next admission.
    fn is_there(&self, uid: &str) -> bool {
        self.residents.iter().any(|resident| resident.uid == uid)
            || self.reading.cgroups.pod(uid).is_some()
    }

    /// The machine as the kubelet sees it, if valid.
    fn planned(&self) -> Option<ModelMachine> {
        self.reading.machine.to_model().ok()
    }
}

/// The NodeResourceTopology, owned by the Node if its UID is known.
pub fn topology(subject: Subject<'_>, node: &str, uid: Option<&str>) -> NodeResourceTopology {
    let planned = subject.planned();
    let facts = Facts::of(subject.reading, planned.as_ref());
    let owner = uid.map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    });
    let configuration = subject.reading.kubelet.configuration.as_ref();
    NodeResourceTopology {
        api_version: NodeResourceTopology::API_VERSION.to_owned(),
        kind: NodeResourceTopology::KIND.to_owned(),
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        topology_policies: configuration.map(deprecated_policy).into_iter().collect(),
        attributes: attributes(subject, &facts),
        zones: zones(subject, planned.as_ref(), &facts),
    }
}

fn attributes(subject: Subject<'_>, facts: &Facts) -> Vec<Attribute> {
    let mut all = Vec::new();
    let mut add = |name: &str, value: String| all.push(Attribute { name: name.to_owned(), value });
    if let Some(configuration) = &subject.reading.kubelet.configuration {
        add("topologyManagerPolicy", configuration.topology_manager_policy.clone());
        add("topologyManagerScope", configuration.topology_manager_scope.clone());
    }
    let pods: BTreeSet<(&str, &str)> =
        subject.residents.iter().map(|one| (one.namespace.as_str(), one.name.as_str())).collect();
    add(fingerprint::ATTRIBUTE, fingerprint::of(pods));
    add(fingerprint::METHOD_ATTRIBUTE, fingerprint::METHOD_ALL.to_owned());
    for (name, value) in facts.attributes() {
        add(&name, value);
    }
    all
}

/// The kubelet's configuration as annotations, for a node whose NodeResourceTopology another exporter publishes.
pub fn annotations(reading: &Reading) -> Vec<(String, String)> {
    let planned = reading.machine.to_model().ok();
    Facts::of(reading, planned.as_ref()).attributes()
}
