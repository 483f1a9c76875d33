//! Topologies of nodes, from Nodes, NodeResourceTopologies and Pools that arrive in any order. Nodes report every
//! few seconds that they are alive; only real changes become updates. Similar nodes share one topology.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use berth_api::Lower as _;
use berth_api::crd::{Pool, PoolTopology};
use berth_api::topology::NodeResourceTopology;
use berth_engine::event::Event;
use berth_inspect::NodeFacts;
use berth_kubelet::NodeTopology;
use berth_model::workload::pool_of;
use berth_topology::{DeviceCounts, Inside, fingerprint};
use k8s_openapi::api::core::v1 as core;

use crate::core::{Residents, Update};
use crate::metrics::Metrics;

/// So many different node_topologies are kept to be shared.
const SHARED_MAX: usize = 256;

#[derive(Default)]
struct Known {
    node: Option<(core::Node, u64)>,
    exported: Option<NodeResourceTopology>,
    inside: Option<Arc<Inside>>,
    exported_free: DeviceCounts,
}

pub(crate) struct NodeTopologies {
    metrics: Metrics,
    by_name: HashMap<Arc<str>, Known>,
    /// Topologies stated by Pools.
    pools: HashMap<Arc<str>, PoolTopology>,
    shared: Vec<(Arc<Inside>, Option<Arc<NodeTopology>>)>,
}

impl NodeTopologies {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { metrics, by_name: HashMap::new(), pools: HashMap::new(), shared: Vec::new() }
    }

    /// A node was added or has changed.
    pub(crate) fn node(&mut self, node: core::Node) -> Result<Vec<Update>, String> {
        let name: Arc<str> = node.metadata.name.as_deref().unwrap_or_default().into();
        let digest = digest(&node);
        let known = self.by_name.entry(name.clone()).or_default();
        if known.node.as_ref().is_some_and(|(_, before)| *before == digest) {
            // Its conditions may have changed, which reports show.
            known.node = Some((node, digest));
            return Ok(Vec::new());
        }
        let lowered = node.lower().map_err(|error| error.to_string())?;
        known.node = Some((node, digest));
        let mut news = vec![Update::Other(Event::Node(lowered))];
        news.extend(self.topology(&name, false)?);
        Ok(news)
    }

    /// Names of all nodes, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let there = self.by_name.iter().filter(|(_, known)| known.node.is_some());
        let mut names: Vec<&Arc<str>> = there.map(|(name, _)| name).collect();
        names.sort_unstable();
        names.into_iter()
    }

    /// What reports need to know of a node.
    pub(crate) fn facts(&self, name: &str) -> Option<NodeFacts<'_>> {
        let (name, known) = self.by_name.get_key_value(name)?;
        let (node, _) = known.node.as_ref()?;
        Some(NodeFacts::new(Some(node), name, known.inside.as_deref()?, &known.exported_free))
    }

    pub(crate) fn node_gone(&mut self, name: &Arc<str>) -> Vec<Update> {
        if let Some(known) = self.by_name.get_mut(name) {
            known.node = None;
        }
        vec![
            Update::Other(Event::NodeGone(name.clone())),
            Update::Topology { node: name.clone(), topology: None, fresh: false },
        ]
    }

    /// A NodeResourceTopology was added or has changed. `pods` are the known pods of a node.
    pub(crate) fn exported(
        &mut self,
        exported: NodeResourceTopology,
        pods: impl Fn(&str) -> Residents,
    ) -> Result<Vec<Update>, String> {
        let name: Arc<str> = exported.metadata.name.as_deref().unwrap_or_default().into();
        let known = self.by_name.entry(name.clone()).or_default();
        // A watch that was restarted repeats objects.
        let is_new = known.exported.as_ref().is_none_or(|before| !says_same(before, &exported));
        let fresh = is_new && has_seen(&exported, &pods(&name));
        known.exported = Some(exported);
        self.topology(&name, fresh)
    }

    /// A Pool was added or has changed.
    pub(crate) fn pool(&mut self, pool: &Pool) -> Result<Vec<Update>, String> {
        let lowered = pool.lower().map_err(|error| error.to_string())?;
        let name = lowered.name.clone();
        let mut news = vec![Update::Other(Event::Pool(lowered))];
        news.extend(self.set_pool(name, pool.spec.topology.clone())?);
        Ok(news)
    }

    pub(crate) fn pool_gone(&mut self, name: Arc<str>) -> Result<Vec<Update>, String> {
        let mut news = vec![Update::Other(Event::PoolGone(name.clone()))];
        news.extend(self.set_pool(name, None)?);
        Ok(news)
    }

    fn set_pool(
        &mut self,
        name: Arc<str>,
        topology: Option<PoolTopology>,
    ) -> Result<Vec<Update>, String> {
        let before = match topology.clone() {
            Some(topology) => self.pools.insert(name, topology),
            None => self.pools.remove(&name),
        };
        if before == topology {
            return Ok(Vec::new());
        }
        // All nodes are checked: pools seldom change.
        let mut news = Vec::new();
        for node in self.names().cloned().collect::<Vec<_>>() {
            news.extend(self.topology(&node, false)?);
        }
        Ok(news)
    }

    pub(crate) fn exported_gone(&mut self, name: &Arc<str>) -> Result<Vec<Update>, String> {
        if let Some(known) = self.by_name.get_mut(name) {
            known.exported = None;
        }
        self.topology(name, false)
    }

    fn topology(&mut self, name: &Arc<str>, fresh: bool) -> Result<Vec<Update>, String> {
        let Some(Known { node: Some((node, _)), exported, .. }) = self.by_name.get(name) else {
            return Ok(Vec::new());
        };
        let lowered = node.lower().map_err(|error| error.to_string())?;
        let pool = pool_of(&lowered.labels).and_then(|pool| self.pools.get(pool));
        let mut inside = match berth_topology::read(node, &lowered, exported.as_ref(), pool) {
            Ok(inside) => inside,
            Err(error) => {
                tracing::warn!(node = %name, %error, "invalid topology; it counts as unknown");
                self.metrics.skipped("topology of Node");
                Inside::of_unknown_machine(&lowered)
            }
        };
        let exported_free = std::mem::take(&mut inside.free);
        let (inside, topology) = self.share(inside)?;
        if let Some(known) = self.by_name.get_mut(name) {
            (known.inside, known.exported_free) = (Some(inside), exported_free);
        }
        Ok(vec![Update::Topology { node: name.clone(), topology, fresh }])
    }

    fn share(
        &mut self,
        inside: Inside,
    ) -> Result<(Arc<Inside>, Option<Arc<NodeTopology>>), String> {
        if let Some(shared) = self.shared.iter().find(|(known, _)| **known == inside) {
            return Ok(shared.clone());
        }
        let topology = inside.topology().map_err(|error| error.to_string())?.map(Arc::new);
        if self.shared.len() >= SHARED_MAX {
            self.shared.remove(0);
        }
        let shared = (Arc::new(inside), topology);
        self.shared.push(shared.clone());
        Ok(shared)
    }
}

fn says_same(one: &NodeResourceTopology, other: &NodeResourceTopology) -> bool {
    (&one.topology_policies, &one.attributes, &one.zones)
        == (&other.topology_policies, &other.attributes, &other.zones)
}

/// Whether the exporter has seen these pods. An exporter without a fingerprint is trusted.
fn has_seen(exported: &NodeResourceTopology, pods: &Residents) -> bool {
    let Some(written) = exported.attribute(fingerprint::ATTRIBUTE) else { return true };
    let method = exported.attribute(fingerprint::METHOD_ATTRIBUTE);
    let exclusive = method == Some(fingerprint::METHOD_EXCLUSIVE);
    let counted = pods.iter().filter(|(.., has_own)| *has_own || !exclusive);
    fingerprint::of(counted.map(|(namespace, name, _)| (&**namespace, &**name))) == written
}

/// Changes with everything that scheduling reads.
fn digest(node: &core::Node) -> u64 {
    let mut hasher = DefaultHasher::new();
    let meta = &node.metadata;
    (&meta.uid, &meta.labels, &meta.annotations).hash(&mut hasher);
    if let Some(spec) = &node.spec {
        spec.unschedulable.hash(&mut hasher);
        for taint in spec.taints.iter().flatten() {
            (&taint.key, &taint.value, &taint.effect).hash(&mut hasher);
        }
    }
    if let Some(status) = &node.status {
        for list in [&status.capacity, &status.allocatable] {
            for (name, amount) in list.iter().flatten() {
                (name, &amount.0).hash(&mut hasher);
            }
        }
        for image in status.images.iter().flatten() {
            (&image.names, image.size_bytes).hash(&mut hasher);
        }
        let info = status.node_info.as_ref();
        info.map(|info| (&info.kubelet_version, &info.boot_id)).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn exported(free: &str, fingerprint: Option<&str>) -> NodeResourceTopology {
        let written =
            fingerprint.map(|text| json!({ "name": fingerprint::ATTRIBUTE, "value": text }));
        let attributes: Vec<_> = written.into_iter().collect();
        let resources = json!([{ "name": "cpu", "capacity": "8", "allocatable": free }]);
        let zone = json!({ "name": "node-0", "type": "Node", "resources": resources });
        let object =
            json!({ "metadata": { "name": "n1" }, "attributes": attributes, "zones": [zone] });
        serde_json::from_value(object).unwrap_or_default()
    }

    /// Whether what is exported makes the node's own account believable again.
    fn is_fresh(
        node_topologies: &mut NodeTopologies,
        exported: NodeResourceTopology,
        pods: &Residents,
    ) -> bool {
        let news = node_topologies.exported(exported, |_| pods.clone()).unwrap_or_default();
        news.iter().any(|news| matches!(news, Update::Topology { fresh: true, .. }))
    }

    fn with_node() -> NodeTopologies {
        let mut node_topologies = NodeTopologies::new(Metrics::new());
        let status = json!({ "allocatable": { "cpu": "8" }, "capacity": { "cpu": "8" } });
        let node = json!({ "metadata": { "name": "n1" }, "status": status });
        let node = serde_json::from_value(node).unwrap_or_default();
        assert!(node_topologies.node(node).is_ok());
        node_topologies
    }

    #[test]
    fn what_is_exported_once_more_is_no_news() {
        let mut node_topologies = with_node();
        let none = Residents::new();
        assert!(is_fresh(&mut node_topologies, exported("7", None), &none));
        assert!(!is_fresh(&mut node_topologies, exported("7", None), &none));
        assert!(is_fresh(&mut node_topologies, exported("6", None), &none));
    }

    #[test]
    fn an_exporter_that_has_not_seen_the_pods_is_not_believed() {
        let mut node_topologies = with_node();
        let pods: Residents = vec![("ns".into(), "a".into(), true)];
        let before = fingerprint::of(std::iter::empty());
        let after = fingerprint::of([("ns", "a")]);
        assert!(!is_fresh(&mut node_topologies, exported("7", Some(&before)), &pods));
        assert!(is_fresh(&mut node_topologies, exported("7", Some(&after)), &pods));
    }
}
