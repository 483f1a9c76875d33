//! The node's NodeResourceTopology, as it stands in the API.
//!
//! Owns whose it is. The rule: whoever else has written any of its content publishes this node, and the object
//! is left alone, whatever it says, until it is deleted; one of which nobody tells who wrote it is somebody
//! else's.
//! Must not know what is to be published.

use berth_api::topology::NodeResourceTopology;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::Event;

use super::owners::others;

/// What it says.
const CONTENT: [&str; 3] = ["attributes", "topologyPolicies", "zones"];

/// What is known of the object.
#[derive(Debug, Default)]
pub(super) struct Standing {
    current: Option<NodeResourceTopology>,
    /// Found in a list that is not complete.
    coming: Option<NodeResourceTopology>,
    /// Whether it has been told once whether there is one.
    pub(super) known: bool,
    /// Whether the API has no such kind.
    pub(super) no_kind: bool,
}

fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Standing {
    /// Takes news in.
    pub(super) fn see(&mut self, event: Event<NodeResourceTopology>) {
        match event {
            Event::Init => self.coming = None,
            Event::InitApply(object) => self.coming = Some(object),
            Event::InitDone => {
                self.current = self.coming.take();
                (self.known, self.no_kind) = (true, false);
            }
            Event::Apply(object) => self.wrote(object),
            Event::Delete(_) => self.current = None,
        }
    }

    /// The API does not have the kind.
    pub(super) fn has_no_kind(&mut self) {
        *self = Self { known: true, no_kind: true, ..Self::default() };
    }

    /// The object is as given, unless a newer one is known.
    pub(super) fn wrote(&mut self, object: NodeResourceTopology) {
        let known = self.current.as_ref().map_or(0, |known| version(&known.metadata));
        if version(&object.metadata) >= known {
            self.current = Some(object);
        }
    }

    /// Whose it is, if it is not ours.
    pub(super) fn theirs(&self) -> Option<String> {
        let meta = &self.current.as_ref()?.metadata;
        let mut owners: Vec<String> =
            CONTENT.iter().flat_map(|field| others(meta, &[field])).collect();
        owners.sort_unstable();
        owners.dedup();
        (!owners.is_empty()).then(|| owners.join(", "))
    }

    /// Whether it says this already.
    pub(super) fn says(&self, wanted: &NodeResourceTopology) -> bool {
        let said = |one: &NodeResourceTopology| {
            let owners = one.metadata.owner_references.clone().unwrap_or_default();
            let owners: Vec<String> = owners.into_iter().map(|owner| owner.uid).collect();
            (one.topology_policies.clone(), one.attributes.clone(), one.zones.clone(), owners)
        };
        self.current.as_ref().is_some_and(|current| said(current) == said(wanted))
    }
}
