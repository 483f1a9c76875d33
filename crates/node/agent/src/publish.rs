//! What is published of a node, as objects: its NodeResourceTopology, and labels and annotations of the Node.
//!
//! Owns what stands in them. It is pure: what was read comes in, objects go out, the same for the same
//! reading, so that whoever writes them can tell whether anything changed. Zones and attributes are as
//! NFD's topology updater writes them: CPUs and memory only where the kubelet hands them out by NUMA node,
//! devices where their plugin told the kubelet so. What it has no words for is said in attributes named
//! `berth.dev/…`. Must not know who else publishes, nor when anything is written.

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

/// A pod that the kubelet has taken in and that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resident {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The UID by which the kubelet knows it.
    pub uid: String,
}

/// What all that is published follows from.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// What was read.
    pub reading: &'a Reading,
    /// Devices that the kubelet can give.
    pub offered: &'a [Offered],
    /// The pods that are there.
    pub residents: &'a [Resident],
}

impl Subject<'_> {
    /// Whether a pod still is there: the kubelet's files keep those that ended until another comes.
    fn is_there(&self, uid: &str) -> bool {
        self.residents.iter().any(|resident| resident.uid == uid)
            || self.reading.cgroups.pod(uid).is_some()
    }

    /// The machine as the kubelet sees it, if it is one.
    fn planned(&self) -> Option<ModelMachine> {
        self.reading.machine.to_model().ok()
    }
}

/// The NodeResourceTopology of the node of a name and, if it is known, a UID, with which it goes.
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
    let mut say = |name: &str, value: String| all.push(Attribute { name: name.to_owned(), value });
    if let Some(configuration) = &subject.reading.kubelet.configuration {
        say("topologyManagerPolicy", configuration.topology_manager_policy.clone());
        say("topologyManagerScope", configuration.topology_manager_scope.clone());
    }
    let pods: BTreeSet<(&str, &str)> =
        subject.residents.iter().map(|one| (one.namespace.as_str(), one.name.as_str())).collect();
    say(fingerprint::ATTRIBUTE, fingerprint::of(pods));
    say(fingerprint::METHOD_ATTRIBUTE, fingerprint::METHOD_ALL.to_owned());
    for (name, value) in facts.said() {
        say(&name, value);
    }
    all
}

/// What the kubelet is set up to do, for a node whose NodeResourceTopology somebody else writes: names
/// and values of annotations.
pub fn annotations(reading: &Reading) -> Vec<(String, String)> {
    let planned = reading.machine.to_model().ok();
    Facts::of(reading, planned.as_ref()).said()
}
