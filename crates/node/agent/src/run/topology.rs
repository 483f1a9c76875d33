//! The node's NodeResourceTopology as it is in the API, and who owns it.
//!
//! If another client has written any of its content, that client publishes this node, and the object is left
//! alone until it is deleted. So is an object whose writers are unknown.

use berth_api::topology::NodeResourceTopology;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;

use super::owners::others;

const CONTENT: [&str; 3] = ["attributes", "topologyPolicies", "zones"];

#[derive(Debug, Default)]
pub(super) struct PublishedTopology {
    current: Option<NodeResourceTopology>,
    /// From a list that is not complete.
    listed: Option<NodeResourceTopology>,
    /// Whether the first list is complete.
    pub(super) known: bool,
    /// Whether the API does not have the kind.
    pub(super) kind_missing: bool,
}

fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl PublishedTopology {
    pub(super) fn apply(&mut self, event: Event<NodeResourceTopology>) {
        match event {
            Event::Init => self.listed = None,
            Event::InitApply(object) => self.listed = Some(object),
            Event::InitDone => {
                self.current = self.listed.take();
                (self.known, self.kind_missing) = (true, false);
            }
            Event::Apply(object) => self.update(object),
            Event::Delete(_) => self.current = None,
        }
    }

    pub(super) fn set_kind_missing(&mut self) {
        *self = Self { known: true, kind_missing: true, ..Self::default() };
    }

    /// Ignores versions older than the known one.
    pub(super) fn update(&mut self, object: NodeResourceTopology) {
        let known = self.current.as_ref().map_or(0, |known| version(&known.metadata));
        if version(&object.metadata) >= known {
            self.current = Some(object);
        }
    }

    /// Names of the other clients that own it, if any.
    pub(super) fn foreign_owners(&self) -> Option<String> {
        let meta = &self.current.as_ref()?.metadata;
        let mut owners: Vec<String> =
            CONTENT.iter().flat_map(|field| others(meta, &[field])).collect();
        owners.sort_unstable();
        owners.dedup();
        (!owners.is_empty()).then(|| owners.join(", "))
    }

    /// Whether it has this content and owner already.
    pub(super) fn matches(&self, wanted: &NodeResourceTopology) -> bool {
        let content = |one: &NodeResourceTopology| {
            let owners = one.metadata.owner_references.clone().unwrap_or_default();
            let owners: Vec<String> = owners.into_iter().map(|owner| owner.uid).collect();
            (one.topology_policies.clone(), one.attributes.clone(), one.zones.clone(), owners)
        };
        self.current.as_ref().is_some_and(|current| content(current) == content(wanted))
    }
}
