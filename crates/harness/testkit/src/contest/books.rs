//! GPUs counted by hand: who is where, what is left, and whether a gang would fit.
//!
//! Owns the second opinion. Must share nothing with the engine but its vocabulary.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::node::Node;

use super::plan::{Drawn, gpus_of};

/// A pod as the world knows it.
#[derive(Clone, Debug)]
pub(super) struct Pod {
    /// The number of its gang.
    pub(super) gang: Option<usize>,
    pub(super) gpus: i64,
    pub(super) node: Option<Arc<str>>,
    pub(super) priority: i32,
    /// The node that is kept for it.
    pub(super) awaits: Option<Arc<str>>,
    /// Whether that is reserved until others have ended, without evictions.
    pub(super) is_reserved: bool,
    pub(super) leaving: bool,
}

/// Pods and nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Books {
    pub(super) nodes: Vec<Node>,
    pub(super) pods: BTreeMap<Arc<str>, Pod>,
}

impl Books {
    fn free(&self, node: &Node) -> i64 {
        let on = self.pods.values().filter(|pod| pod.node.as_ref() == Some(&node.name));
        gpus_of(node) - on.map(|pod| pod.gpus).sum::<i64>()
    }

    /// A node on which a pod fits, of those that are kept for no pod of some kind.
    pub(super) fn taker(&self, gpus: i64, keeps: impl Fn(&Pod) -> bool) -> Option<&Node> {
        let is_open = |node: &&Node| {
            let mut awaiting =
                self.pods.values().filter(|pod| pod.awaits.as_ref() == Some(&node.name));
            !awaiting.any(&keeps) && self.free(node) >= gpus
        };
        self.nodes.iter().find(is_open)
    }

    /// How many GPUs of a node are free, and how many are reserved for pods of at least some priority.
    pub(super) fn reserved(&self, name: &Arc<str>, priority: i32) -> (i64, i64) {
        let reserved = |pod: &&Pod| {
            pod.is_reserved && pod.awaits.as_ref() == Some(name) && pod.priority >= priority
        };
        let wanted = self.pods.values().filter(reserved).map(|pod| pod.gpus).sum();
        let node = self.nodes.iter().find(|node| node.name == *name);
        (node.map_or(0, |node| self.free(node)), wanted)
    }

    /// All GPUs there are.
    pub(super) fn gpus(&self) -> i64 {
        self.nodes.iter().map(gpus_of).sum()
    }

    /// A node of which more is taken than there is.
    pub(super) fn overcommitted(&self) -> Option<&Arc<str>> {
        self.nodes.iter().find(|node| self.free(node) < 0).map(|node| &node.name)
    }

    /// How many members of a gang are bound, and to how many values of its key.
    pub(super) fn bound(&self, gang: usize, drawn: &Drawn) -> (usize, usize) {
        let bound = self.pods.values().filter(|pod| pod.gang == Some(gang) && !pod.leaving);
        let nodes: Vec<&Arc<str>> = bound.filter_map(|pod| pod.node.as_ref()).collect();
        let value = |name: &&Arc<str>| {
            let node = self.nodes.iter().find(|node| node.name == **name)?;
            node.labels.get(drawn.key?).cloned()
        };
        let values: BTreeSet<Arc<str>> = nodes.iter().filter_map(value).collect();
        (nodes.len(), values.len())
    }

    /// Whether a gang would certainly fit with `free` GPUs on each node: there is room for as many
    /// members as it needs even if all were as large as the largest. Then it does not matter in
    /// which order they are placed.
    fn certainly_fits(drawn: &Drawn, nodes: &[(&Node, i64)]) -> bool {
        let largest = drawn.gpus.iter().copied().max().unwrap_or(1);
        let value = |node: &Node| drawn.key.and_then(|key| node.labels.get(key)).cloned();
        let domains: BTreeSet<Option<Arc<str>>> =
            nodes.iter().map(|(node, _)| value(node)).collect();
        domains.iter().any(|domain| {
            let on = nodes.iter().filter(|(node, _)| value(node) == *domain);
            let copies: i64 = on.map(|(_, free)| free.max(&0) / largest).sum();
            copies >= drawn.min as i64
        })
    }

    /// Whether a gang fits when nobody else is there.
    pub(super) fn fits_when_empty(&self, drawn: &Drawn) -> bool {
        let nodes: Vec<(&Node, i64)> = self.nodes.iter().map(|one| (one, gpus_of(one))).collect();
        Self::certainly_fits(drawn, &nodes)
    }

    /// Whether a gang fits now on nodes that are kept for nobody.
    pub(super) fn fits_now(&self, drawn: &Drawn) -> bool {
        let kept: BTreeSet<&Arc<str>> =
            self.pods.values().filter_map(|pod| pod.awaits.as_ref()).collect();
        let open = self.nodes.iter().filter(|node| !kept.contains(&node.name));
        let nodes: Vec<(&Node, i64)> = open.map(|node| (node, self.free(node))).collect();
        Self::certainly_fits(drawn, &nodes)
    }
}
