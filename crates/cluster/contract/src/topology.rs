//! What the kubelet of an empty node would admit, by the scheduler's reading of the node's objects.
//!
//! Linter, webhook and scheduler see the same machine. What no object says is taken in the pod's favour:
//! a node of unknown topology has no kubelet here, and rules are silent about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::Lower;
use berth_api::crd::PoolTopology;
use berth_api::topology::NodeResourceTopology;
use berth_kubelet::Kubelet;
use berth_model::workload::pool_of;
use berth_topology::Inside;
use k8s_openapi::api::core::v1 as core;
use serde::Deserialize;

use crate::object::{Object, What};

/// A kubelet, and the number of its kind: nodes of the same kind are alike inside.
#[derive(Clone)]
pub(crate) struct NodeKubelet {
    pub(crate) kubelet: Arc<Kubelet>,
    pub(crate) kind: usize,
}

/// Kubelets by name of node.
pub(crate) fn kubelets<'a>(
    objects: impl IntoIterator<Item = &'a Object>,
) -> BTreeMap<String, NodeKubelet> {
    let mut nodes: Vec<&core::Node> = Vec::new();
    let mut exported: BTreeMap<&str, NodeResourceTopology> = BTreeMap::new();
    let mut pools: BTreeMap<&str, PoolTopology> = BTreeMap::new();
    for object in objects {
        let name = object.reference.name.as_str();
        match &object.what {
            What::Node(node) => nodes.push(node),
            _ if object.is("topology.node.k8s.io", "NodeResourceTopology") => {
                let topology = NodeResourceTopology::deserialize(&object.json);
                exported.extend(topology.ok().map(|topology| (name, topology)));
            }
            _ if object.is("berth.dev", "Pool") => {
                let topology = object.json.pointer("/spec/topology").map(PoolTopology::deserialize);
                pools.extend(topology.and_then(Result::ok).map(|topology| (name, topology)));
            }
            _ => {}
        }
    }
    let mut kinds: Vec<(Inside, Option<Arc<Kubelet>>)> = Vec::new();
    let mut kubelets = BTreeMap::new();
    for node in nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let Ok(model) = node.lower() else { continue };
        let pool = pool_of(&model.labels).and_then(|pool| pools.get(&**pool));
        let inside = berth_topology::read(node, &model, exported.get(name), pool);
        let Ok(mut inside) = inside else { continue };
        inside.free.clear();
        let kind = kinds.iter().position(|(known, _)| *known == inside).unwrap_or_else(|| {
            let topology = inside.topology().ok().flatten();
            let kubelet = topology.map(|topology| Arc::new(topology.empty_kubelet().clone()));
            kinds.push((inside, kubelet));
            kinds.len() - 1
        });
        let kubelet = kinds.get(kind).and_then(|(_, kubelet)| kubelet.clone());
        kubelets.extend(kubelet.map(|kubelet| (name.to_owned(), NodeKubelet { kubelet, kind })));
    }
    kubelets
}

#[cfg(test)]
mod tests {
    use berth_model::pod::{Container, ContainerKind, Pod, Resources};
    use serde_json::{Value, json};

    use super::*;

    fn node() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" },
            "status": {
                "capacity": { "cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "2" },
                "allocatable": { "cpu": "14", "memory": "64Gi", "nvidia.com/gpu": "2" },
            },
        })
    }

    /// Two NUMA nodes of four cores. Only attributes of ours say which CPUs are siblings.
    fn exported(options: &str) -> Value {
        let zone = |id: u32, cores: &str| {
            json!({
                "name": format!("node-{id}"), "type": "Node",
                "attributes": [{ "name": "berth.dev/cores", "value": cores }],
                "resources": [
                    { "name": "cpu", "capacity": "8", "allocatable": "7", "available": "7" },
                    { "name": "nvidia.com/gpu", "capacity": "1", "allocatable": "1", "available": "1" },
                ],
            })
        };
        json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": { "name": "n1" },
            "attributes": [
                { "name": "topologyManagerPolicy", "value": "single-numa-node" },
                { "name": "cpuManagerPolicyOptions", "value": options },
            ],
            "zones": [zone(0, "0-3/8-11"), zone(1, "4-7/12-15")],
        })
    }

    fn guaranteed(cpus: &str) -> Pod {
        let limits = [("cpu", cpus), ("memory", "1Gi"), ("nvidia.com/gpu", "1")];
        let limits = limits.map(|(name, amount)| (name.into(), amount.parse().unwrap()));
        let resources = Resources { limits: limits.into(), ..Resources::default() };
        let server = Container { name: "c".into(), kind: ContainerKind::App, resources };
        Pod { name: "p".into(), containers: vec![server], ..Pod::default() }.checked().unwrap()
    }

    #[test]
    fn contract_and_scheduler_judge_a_node_alike() {
        for options in ["", "full-pcpus-only=true"] {
            let objects = [node(), exported(options)].map(|json| Object::new(json).unwrap());
            let own = &kubelets(&objects)["n1"].kubelet;
            let node: core::Node = serde_json::from_value(node()).unwrap();
            let topology = serde_json::from_value(exported(options)).unwrap();
            let inside =
                berth_topology::read(&node, &node.lower().unwrap(), Some(&topology), None).unwrap();
            let topology = inside.topology().unwrap().unwrap();
            let mut verdicts = Vec::new();
            for cpus in ["2", "3", "6", "7", "8"] {
                let demand = own.demand(&guaranteed(cpus)).unwrap();
                let admits = own.would_admit(&demand).admits();
                assert_eq!(
                    admits,
                    topology.empty_kubelet().would_admit(&demand).admits(),
                    "{cpus}"
                );
                verdicts.push(admits);
            }
            // Odd numbers of CPUs are no whole cores. Without the attributes every CPU would be one.
            let odd = options.is_empty();
            assert_eq!(verdicts, [true, odd, true, odd, false], "{options}");
        }
    }

    #[test]
    fn alike_nodes_share_a_kubelet_and_unknown_ones_have_none() {
        let renamed = |mut json: Value, name: &str| {
            json["metadata"]["name"] = json!(name);
            Object::new(json).unwrap()
        };
        let objects = [
            renamed(node(), "n1"),
            renamed(node(), "n2"),
            renamed(node(), "n3"),
            renamed(exported(""), "n1"),
            renamed(exported(""), "n2"),
        ];
        let known = kubelets(&objects);
        assert_eq!(known.keys().collect::<Vec<_>>(), ["n1", "n2"]);
        assert!(Arc::ptr_eq(&known["n1"].kubelet, &known["n2"].kubelet));
    }
}
