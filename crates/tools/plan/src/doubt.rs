//! Nodes of which something shows that what we take their kubelets to hold is wrong.
//!
//! Owns the comparison of the mirror with what exporters saw. Must not know what is placed.

use std::collections::BTreeMap;

use berth_engine::Engine;
use berth_model::resource::ResourceName;
use berth_scenario::cluster::{Cluster, ClusterNode};

/// So many nodes are named where many are meant.
const NAMED_MAX: usize = 3;

/// Resources of which the exporter saw others free on NUMA nodes than follow from the pods.
pub(crate) fn seen_otherwise(engine: &Engine, node: &ClusterNode) -> Vec<ResourceName> {
    let Some((kubelet, true)) = engine.kubelet(&node.node.name) else { return Vec::new() };
    let mut differ = Vec::new();
    for (position, pool) in kubelet.pools().enumerate() {
        let mut told = node.inside.free.iter().filter_map(|(numa, free)| {
            Some((*numa, usize::try_from(*free.get(&pool.resource)?).ok()?))
        });
        let free: BTreeMap<_, _> = kubelet.free_by_numa(position).collect();
        if told.any(|(numa, told)| *free.get(&numa).unwrap_or(&0) != told) {
            differ.push(pool.resource.clone());
        }
    }
    differ
}

/// What is doubtful, in words, many nodes in one note.
pub(crate) fn notes(engine: &Engine, cluster: &Cluster) -> Vec<String> {
    let mut doubted = Vec::new();
    let mut differ: BTreeMap<ResourceName, Vec<&str>> = BTreeMap::new();
    for node in &cluster.nodes {
        let name: &str = &node.node.name;
        if let Some((_, false)) = engine.kubelet(name) {
            doubted.push(name);
        }
        for resource in seen_otherwise(engine, node) {
            differ.entry(resource).or_default().push(name);
        }
    }
    let mut notes = Vec::new();
    if !doubted.is_empty() {
        notes.push(format!(
            "{}: a pod runs there that the kubelet, as described, would not have taken; the inside \
             counts as unknown",
            some_of(&doubted)
        ));
    }
    notes.extend(differ.iter().map(|(resource, nodes)| {
        format!(
            "{}: the exporter saw other {resource} free on NUMA nodes than follow from the pods; what \
             was given to whom is a guess there",
            some_of(nodes)
        )
    }));
    notes
}

/// Some nodes by name, and how many there are.
fn some_of(nodes: &[&str]) -> String {
    let names = nodes.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    match nodes.len() {
        1 => format!("node {names}"),
        count if count <= NAMED_MAX => format!("nodes {names}"),
        count => format!("{count} nodes ({names}, …)"),
    }
}
