//! Nodes whose kubelet state, as modelled, contradicts what is observed.

use std::collections::BTreeMap;

use berth_engine::Engine;
use berth_kubelet::Kubelet;
use berth_model::resource::ResourceName;
use berth_topology::DeviceCounts;

const NODES_NAMED_MAX: usize = 3;

/// Resources of which the exporter reports other free devices by NUMA node than the kubelet model.
pub(crate) fn contradicted(kubelet: &Kubelet, exported_free: &DeviceCounts) -> Vec<ResourceName> {
    let mut contradicted = Vec::new();
    for (position, pool) in kubelet.pools().enumerate() {
        let mut exported = exported_free.iter().filter_map(|(numa, free)| {
            Some((*numa, usize::try_from(*free.get(&pool.resource)?).ok()?))
        });
        let free: BTreeMap<_, _> = kubelet.free_by_numa(position).collect();
        if exported.any(|(numa, exported)| *free.get(&numa).unwrap_or(&0) != exported) {
            contradicted.push(pool.resource.clone());
        }
    }
    contradicted
}

/// Notes on nodes, given by name and with the free devices that their exporters report: one note for all
/// nodes with the same contradiction.
pub fn doubts<'a>(
    engine: &Engine,
    nodes: impl IntoIterator<Item = (&'a str, &'a DeviceCounts)>,
) -> Vec<String> {
    let mut distrusted = Vec::new();
    let mut contradicting: BTreeMap<ResourceName, Vec<&str>> = BTreeMap::new();
    for (name, exported_free) in nodes {
        match engine.kubelet(name) {
            Some((_, false)) => distrusted.push(name),
            Some((kubelet, true)) => {
                for resource in contradicted(kubelet, exported_free) {
                    contradicting.entry(resource).or_default().push(name);
                }
            }
            None => {}
        }
    }
    let mut notes = Vec::new();
    if !distrusted.is_empty() {
        notes.push(format!(
            "{}: a pod runs there that the kubelet, as the node describes it, would have rejected; the \
             topology counts as unknown",
            some_of(&distrusted)
        ));
    }
    notes.extend(contradicting.iter().map(|(resource, nodes)| {
        format!(
            "{}: the exporter reports other free {resource} by NUMA node than the pods there account for; \
             which pod holds which device is uncertain",
            some_of(nodes)
        )
    }));
    notes
}

/// Some nodes by name, and how many there are.
fn some_of(nodes: &[&str]) -> String {
    let names = nodes.iter().take(NODES_NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    match nodes.len() {
        1 => format!("node {names}"),
        count if count <= NODES_NAMED_MAX => format!("nodes {names}"),
        count => format!("{count} nodes ({names}, …)"),
    }
}
