//! Node and pod affinity, and topology spread constraints.

use std::sync::Arc;

use crate::label::{Labels, Operator, Requirement, Selector};
use crate::node::Node;

/// One alternative of a node selector: all conditions must hold. A term without conditions matches
/// no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeTerm {
    pub labels: Vec<Requirement>,
    /// `matchFields` on `metadata.name`.
    pub name: Vec<Operator>,
}

impl NodeTerm {
    pub fn matches(&self, node: &Node) -> bool {
        let asks = !self.labels.is_empty() || !self.name.is_empty();
        asks && self.labels.iter().all(|requirement| requirement.matches(&node.labels))
            && self.name.iter().all(|operator| operator.accepts(Some(&node.name)))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeAffinity {
    /// One of these must match; `None`: any node. An empty list matches no node.
    pub required: Option<Vec<NodeTerm>>,
    /// The weights (1 to 100) of matching terms are added up.
    pub preferred: Vec<(i32, NodeTerm)>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodTerm {
    /// `None` matches no pod.
    pub selector: Option<Selector>,
    /// If this is empty and there is no `namespace_selector`: the namespace of the pod that has the
    /// term.
    pub namespaces: Vec<Arc<str>>,
    /// Added to `namespaces`; `None` adds none.
    pub namespace_selector: Option<Selector>,
    /// Nodes with the same value of this label are one topology domain.
    pub topology_key: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodAffinity {
    /// Some pod in the domain must match all of these.
    pub required: Vec<PodTerm>,
    /// By weight.
    pub preferred: Vec<(i32, PodTerm)>,
    /// No pod in the domain may match any of these, now or later.
    pub anti_required: Vec<PodTerm>,
    /// By weight.
    pub anti_preferred: Vec<(i32, PodTerm)>,
}

impl PodAffinity {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `whenUnsatisfiable` of a spread constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WhenUnsatisfiable {
    DoNotSchedule,
    ScheduleAnyway,
}

/// Whether nodes that the pod's node affinity or tolerations exclude count for spreading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeInclusionPolicy {
    Honor,
    Ignore,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpreadConstraint {
    /// By how many pods a domain may exceed the domain with the fewest.
    pub max_skew: i32,
    pub topology_key: Arc<str>,
    pub unsatisfiable: WhenUnsatisfiable,
    /// Pods of the same namespace that count; `None` matches none.
    pub selector: Option<Selector>,
    /// With fewer domains than this, the minimum is taken as 0.
    pub min_domains: i32,
    pub node_affinity: NodeInclusionPolicy,
    pub node_taints: NodeInclusionPolicy,
    /// The pod's values of these labels are added to the selector.
    pub match_label_keys: Vec<Arc<str>>,
}

impl SpreadConstraint {
    /// The selector with the requirements of `match_label_keys`, for a pod with these labels.
    /// `None` stays `None` and matches nothing.
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
