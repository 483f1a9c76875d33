//! Where a pod wants to be: near which nodes, near or far from which pods, spread over what.
//!
//! Owns these wishes as data, and the matching of node selector terms. Must not know who is where.

use std::sync::Arc;

use crate::label::{Labels, Operator, Requirement, Selector};
use crate::node::Node;

/// One alternative of a node selector. All of its conditions must hold; one without any matches no
/// node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeTerm {
    /// Conditions on the node's labels.
    pub labels: Vec<Requirement>,
    /// Conditions on the node's name (`matchFields` on `metadata.name`).
    pub name: Vec<Operator>,
}

impl NodeTerm {
    /// Whether `node` satisfies it.
    pub fn matches(&self, node: &Node) -> bool {
        let asks = !self.labels.is_empty() || !self.name.is_empty();
        asks && self.labels.iter().all(|requirement| requirement.matches(&node.labels))
            && self.name.iter().all(|operator| operator.accepts(Some(&node.name)))
    }
}

/// Which nodes a pod needs and prefers.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeAffinity {
    /// One of these must match; `None`: any node will do. An empty list matches no node.
    pub required: Option<Vec<NodeTerm>>,
    /// The weights of those that match are added up. Weights are 1 to 100.
    pub preferred: Vec<(i32, NodeTerm)>,
}

/// Which pods are meant, and how near is near.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodTerm {
    /// Their labels; `None` matches no pod.
    pub selector: Option<Selector>,
    /// Their namespaces by name. If this is empty and there is no `namespace_selector`: the
    /// namespace of the pod that has the term.
    pub namespaces: Vec<Arc<str>>,
    /// Their namespaces by label, besides those named; `None` adds none.
    pub namespace_selector: Option<Selector>,
    /// Nodes with the same value of this label are near each other.
    pub topology_key: Arc<str>,
}

/// Which pods a pod needs, prefers, refuses and avoids near it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodAffinity {
    /// There must be a pod near that all of these match.
    pub required: Vec<PodTerm>,
    /// Welcome, by weight.
    pub preferred: Vec<(i32, PodTerm)>,
    /// There must not be a pod near that any of these matches, nor may such a pod come later.
    pub anti_required: Vec<PodTerm>,
    /// Unwelcome, by weight.
    pub anti_preferred: Vec<(i32, PodTerm)>,
}

impl PodAffinity {
    /// Whether it asks for nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What happens if pods cannot be spread as wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unsatisfiable {
    /// The pod waits.
    DoNotSchedule,
    /// The pod goes where the skew grows least.
    ScheduleAnyway,
}

/// Whether a property of nodes decides which of them count for spreading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Inclusion {
    /// Only nodes that the pod could use in this respect count.
    Honor,
    /// All nodes count.
    Ignore,
}

/// Pods alike are to be spread evenly.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpreadConstraint {
    /// By how many pods a domain may exceed the least of them.
    pub max_skew: i32,
    /// Nodes with the same value of this label are one domain.
    pub topology_key: Arc<str>,
    /// What if not.
    pub unsatisfiable: Unsatisfiable,
    /// Which pods of the same namespace count; `None` matches none.
    pub selector: Option<Selector>,
    /// With fewer domains than this, the least is taken to be 0.
    pub min_domains: i32,
    /// Whether nodes that the pod's node selector and affinity exclude count.
    pub node_affinity: Inclusion,
    /// Whether nodes that the pod's tolerations exclude count.
    pub node_taints: Inclusion,
    /// Labels of the pod whose values are wanted too.
    pub match_label_keys: Vec<Arc<str>>,
}

impl SpreadConstraint {
    /// The selector with what `match_label_keys` adds for a pod with these labels. An absent
    /// selector stays absent: it goes on matching nothing.
    pub fn merged_selector(&self, labels: &Labels) -> Option<Selector> {
        let mut selector = self.selector.clone()?;
        for key in &self.match_label_keys {
            if let Some(value) = labels.get(key) {
                let operator = Operator::In(vec![value.clone()]);
                selector.0.push(Requirement { key: key.clone(), operator });
            }
        }
        Some(selector)
    }
}
