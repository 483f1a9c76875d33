//! Groups of nodes for pods: existing nodes, and pools of Karpenter with the labels that their nodes can have.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::Lower;
use berth_model::affinity::NodeTerm;
use berth_model::label::Operator;
use berth_model::node::Node;
use berth_model::spec::PodSpec;
use berth_model::taint::{Effect, Taint};
use k8s_openapi::api::core::v1 as core;
use serde_json::Value;

use crate::object::{Object, What};
use crate::topology::NodeKubelet;

const HOSTNAME: &str = "kubernetes.io/hostname";

/// Prefixes of labels that Karpenter sets for the instance that it chooses.
const WELL_KNOWN: [&str; 9] = [
    "kubernetes.io/",
    "node.kubernetes.io/",
    "topology.kubernetes.io/",
    "topology.ebs.csi.aws.com/",
    "topology.k8s.aws/",
    "karpenter.sh/",
    "karpenter.k8s.aws/",
    "karpenter.azure.com/",
    "karpenter.k8s.gcp/",
];

/// Nodes that pods cannot distinguish.
pub(crate) struct NodeGroup {
    /// `node NAME`, of the first of several, or `node pool NAME`.
    pub(crate) name: String,
    /// Existing nodes; empty for a pool that grows.
    names: Vec<Arc<str>>,
    /// Labels that only some of the nodes have are in `varied`.
    pub(crate) node: Node,
    /// Whether it creates nodes for pods. Their instances are unknown.
    pub(crate) grows: bool,
    /// `None` if the topology is unknown.
    pub(crate) kubelet: Option<NodeKubelet>,
    varied: BTreeMap<Arc<str>, Varied>,
}

enum Varied {
    Listed(Vec<Arc<str>>),
    Any,
}

impl NodeGroup {
    /// Of a Node or a pool of Karpenter.
    pub(crate) fn of(object: &Object) -> Option<Self> {
        match &object.what {
            What::Node(node) => Self::of_node(node),
            _ if object.is("karpenter.sh", "NodePool") => {
                let template = object.json.pointer("/spec/template")?;
                let labels = template.pointer("/metadata/labels");
                Some(Self::of_karpenter(object, labels, template.get("spec")?))
            }
            _ if object.is("karpenter.sh", "Provisioner") => {
                let spec = object.json.get("spec")?;
                Some(Self::of_karpenter(object, spec.get("labels"), spec))
            }
            _ => None,
        }
    }

    fn of_node(node: &core::Node) -> Option<Self> {
        let mut node = node.lower().ok()?;
        let host = node.labels.get(HOSTNAME).unwrap_or(&node.name).clone();
        let others = node.labels.iter().filter(|(key, _)| key.as_ref() != HOSTNAME);
        node.labels = others.map(|(key, value)| (key.clone(), value.clone())).collect();
        // The kubelet sets these, so they may be missing in a manifest.
        let unset = ["kubernetes.io/os", "kubernetes.io/arch"];
        let unset = unset.into_iter().filter(|key| node.labels.get(key).is_none());
        let unset = unset.map(|key| (key.into(), Varied::Any));
        let varied = unset.chain([(HOSTNAME.into(), Varied::Listed(vec![host]))]).collect();
        let (name, names) = (format!("node {}", node.name), vec![node.name.clone()]);
        Some(Self { name, names, node, grows: false, kubelet: None, varied })
    }

    fn of_karpenter(object: &Object, labels: Option<&Value>, spec: &Value) -> Self {
        let mut node = Node { name: object.reference.name.as_str().into(), ..Node::default() };
        node.labels.insert("karpenter.sh/nodepool", node.name.clone());
        for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
            if let Some(value) = value.as_str() {
                node.labels.insert(key.as_str(), value);
            }
        }
        let list = |field: &str| spec.get(field).and_then(Value::as_array).into_iter().flatten();
        node.taints = list("taints").filter_map(taint).collect();
        let varied = list("requirements").filter_map(requirement).collect();
        let name = format!("node pool {}", node.name);
        Self { name, names: Vec::new(), node, grows: true, kubelet: None, varied }
    }

    /// Whether some of its nodes match the pod's node selector and affinity.
    pub(crate) fn is_selected(&self, pod: &PodSpec) -> bool {
        let wanted = pod
            .node_selector
            .iter()
            .all(|(key, value)| self.can(key, &Operator::In(vec![value.clone()])));
        let terms = pod.node_affinity.required.as_deref();
        wanted && terms.is_none_or(|terms| terms.iter().any(|term| self.can_match(term)))
    }

    fn can_match(&self, term: &NodeTerm) -> bool {
        // A node that does not exist yet has no name.
        let named = |name: Option<&str>| term.name.iter().all(|operator| operator.accepts(name));
        let is_named =
            if self.grows { named(None) } else { self.names.iter().any(|name| named(Some(name))) };
        let asks = !term.labels.is_empty() || !term.name.is_empty();
        asks && is_named && term.labels.iter().all(|one| self.can(&one.key, &one.operator))
    }

    pub(crate) fn count(&self) -> usize {
        self.names.len().max(1)
    }

    /// With any value.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.node.labels.get(key).is_some() || key == HOSTNAME
    }

    /// Whether some of its nodes have a value of the label that the operator accepts.
    pub(crate) fn can(&self, key: &str, operator: &Operator) -> bool {
        if let Some(value) = self.node.labels.get(key) {
            return operator.accepts(Some(value));
        }
        match self.varied.get(key) {
            Some(Varied::Listed(values)) => {
                values.iter().any(|value| operator.accepts(Some(value)))
            }
            Some(Varied::Any) => *operator != Operator::DoesNotExist,
            // Karpenter creates no nodes for labels that neither it nor the pool knows.
            None if self.grows && WELL_KNOWN.iter().any(|known| key.starts_with(known)) => true,
            None => operator.accepts(None),
        }
    }

    /// The first taint that the pod does not tolerate.
    pub(crate) fn refusal(&self, pod: &PodSpec) -> Option<&Taint> {
        let hard = self.node.taints.iter().filter(|taint| taint.effect.is_hard());
        hard.into_iter().find(|taint| !pod.tolerations.iter().any(|one| one.tolerates(taint)))
    }
}

/// Amounts that differ slightly between equal nodes, and how coarsely they are compared.
const FUZZY_BYTES: [&str; 2] = ["memory", "ephemeral-storage"];
const FUZZ_BYTES: i64 = 1 << 30;

/// Merges nodes that differ only by name. Of slightly different amounts the largest counts.
pub(crate) fn merge_alike(pools: Vec<NodeGroup>) -> Vec<NodeGroup> {
    let mut merged: Vec<NodeGroup> = Vec::new();
    let mut by_look: BTreeMap<String, usize> = BTreeMap::new();
    for pool in pools {
        let at = (!pool.grows).then(|| *by_look.entry(look(&pool)).or_insert(merged.len()));
        match at.and_then(|at| merged.get_mut(at)) {
            Some(first) => first.absorb(pool),
            None => merged.push(pool),
        }
    }
    merged
}

fn look(pool: &NodeGroup) -> String {
    let Node { labels, taints, unschedulable, allocatable, .. } = &pool.node;
    let amounts: Vec<(&str, i64)> = allocatable
        .iter()
        .map(|(name, amount)| {
            if FUZZY_BYTES.contains(&name.as_str()) {
                (name.as_str(), amount.value() / FUZZ_BYTES)
            } else {
                (name.as_str(), amount.milli_value())
            }
        })
        .collect();
    let kubelet = pool.kubelet.as_ref().map(|known| known.kind);
    format!("{labels:?} {taints:?} {unschedulable} {amounts:?} {kubelet:?}")
}

impl NodeGroup {
    fn absorb(&mut self, other: Self) {
        self.names.extend(other.names);
        for (name, amount) in other.node.allocatable {
            let most = self.node.allocatable.entry(name).or_insert(amount);
            *most = (*most).max(amount);
        }
        for (key, values) in other.varied {
            if let (Some(Varied::Listed(all)), Varied::Listed(more)) =
                (self.varied.get_mut(&key), values)
            {
                all.extend(more);
            }
        }
    }
}

fn taint(json: &Value) -> Option<Taint> {
    let text = |field: &str| json.get(field).and_then(Value::as_str);
    let effect = match text("effect")? {
        "NoSchedule" => Effect::NoSchedule,
        "NoExecute" => Effect::NoExecute,
        _ => Effect::PreferNoSchedule,
    };
    Some(Taint { key: text("key")?.into(), value: text("value").unwrap_or("").into(), effect })
}

fn requirement(json: &Value) -> Option<(Arc<str>, Varied)> {
    let key = json.get("key")?.as_str()?;
    let values = json.get("values").and_then(Value::as_array).into_iter().flatten();
    let values = values.filter_map(Value::as_str).map(Arc::from).collect();
    match json.get("operator")?.as_str()? {
        "In" => Some((key.into(), Varied::Listed(values))),
        "DoesNotExist" => Some((key.into(), Varied::Listed(Vec::new()))),
        _ => Some((key.into(), Varied::Any)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pool(version: &str) -> NodeGroup {
        let object = Object::new(json!({
            "apiVersion": version, "kind": "NodePool", "metadata": { "name": "gpu" },
            "spec": { "template": {
                "metadata": { "labels": { "accelerator": "nvidia-a100" } },
                "spec": {
                    "requirements": [
                        { "key": "karpenter.k8s.aws/instance-family", "operator": "In",
                          "values": ["p4d", "p5"] },
                        { "key": "tier", "operator": "Exists" },
                    ],
                    "taints": [{ "key": "nvidia.com/gpu", "value": "present",
                                 "effect": "NoSchedule" }],
                },
            } },
        }));
        NodeGroup::of(&object.unwrap()).unwrap()
    }

    #[test]
    fn a_growing_pool_has_what_it_says_and_what_karpenter_fills_in() {
        let pool = pool("karpenter.sh/v1");
        let is = |value: &str| Operator::In(vec![value.into()]);
        for (key, operator, expected) in [
            ("accelerator", is("nvidia-a100"), true),
            ("accelerator", is("nvidia-h100"), false),
            ("karpenter.k8s.aws/instance-family", is("p5"), true),
            ("karpenter.k8s.aws/instance-family", is("g5"), false),
            ("tier", is("gold"), true),
            ("tier", Operator::DoesNotExist, false),
            ("topology.kubernetes.io/zone", is("eu-1a"), true),
            ("karpenter.sh/nodepool", is("gpu"), true),
            ("karpenter.sh/nodepool", is("cpu"), false),
            ("nvidia.com/gpu.product", is("NVIDIA-A100"), false),
            ("nvidia.com/gpu.product", Operator::DoesNotExist, true),
        ] {
            assert_eq!(pool.can(key, &operator), expected, "{key} {operator:?}");
        }
        assert_eq!(pool.node.taints.len(), 1);
    }

    fn node(name: &str, memory: &str, gpus: u32) -> NodeGroup {
        let object = Object::new(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name, "pool": "a" } },
            "status": { "allocatable": { "cpu": "64", "memory": memory, "nvidia.com/gpu": gpus } },
        }));
        NodeGroup::of(&object.unwrap()).unwrap()
    }

    #[test]
    fn nodes_that_differ_by_name_alone_are_one_and_still_known_by_name() {
        let pools = merge_alike(vec![
            node("n1", "263000000Ki", 8),
            node("n2", "263000044Ki", 8),
            node("n3", "263000000Ki", 4),
        ]);
        assert_eq!(pools.iter().map(NodeGroup::count).collect::<Vec<_>>(), [2, 1]);
        let memory = pools[0].node.allocatable["memory"];
        assert_eq!(memory.value(), 263_000_044 * 1024);
        let is = |value: &str| Operator::In(vec![value.into()]);
        for (host, expected) in [("n1", true), ("n2", true), ("n3", false)] {
            assert_eq!(pools[0].can(HOSTNAME, &is(host)), expected, "{host}");
            let term = NodeTerm { labels: vec![], name: vec![is(host)] };
            assert_eq!(pools[0].can_match(&term), expected, "{host}");
        }
        assert!(pools[0].has(HOSTNAME) && !pools[0].has("zone"));
    }
}
