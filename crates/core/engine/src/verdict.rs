//! Verdicts about a pod and a node: names, codes and reasons, in kube-scheduler's words where it
//! has them.

use std::fmt;
use std::sync::Arc;

use berth_model::resource::ResourceName;
use smallvec::SmallVec;

/// The plugin that judges a node, in kube-scheduler's order; Berth's own come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plugin {
    NodeName,
    NodeUnschedulable,
    TaintToleration,
    NodeAffinity,
    NodePorts,
    NodeResourcesFit,
    VolumeRestrictions,
    NodeVolumeLimits,
    VolumeBinding,
    VolumeZone,
    PodTopologySpread,
    InterPodAffinity,
    /// Scores only.
    NodeResourcesBalancedAllocation,
    /// Scores only.
    ImageLocality,
    DynamicResources,
    /// Not in kube-scheduler.
    KubeletAdmission,
}

impl Plugin {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NodeName => "NodeName",
            Self::NodeUnschedulable => "NodeUnschedulable",
            Self::TaintToleration => "TaintToleration",
            Self::NodeAffinity => "NodeAffinity",
            Self::NodePorts => "NodePorts",
            Self::NodeResourcesFit => "NodeResourcesFit",
            Self::VolumeRestrictions => "VolumeRestrictions",
            Self::NodeVolumeLimits => "NodeVolumeLimits",
            Self::VolumeBinding => "VolumeBinding",
            Self::VolumeZone => "VolumeZone",
            Self::PodTopologySpread => "PodTopologySpread",
            Self::InterPodAffinity => "InterPodAffinity",
            Self::NodeResourcesBalancedAllocation => "NodeResourcesBalancedAllocation",
            Self::ImageLocality => "ImageLocality",
            Self::DynamicResources => "DynamicResources",
            Self::KubeletAdmission => "KubeletAdmission",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// They could.
    Unschedulable,
    /// They could not; preemption skips the node.
    UnschedulableAndUnresolvable,
}

impl Code {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unschedulable => "Unschedulable",
            Self::UnschedulableAndUnresolvable => "UnschedulableAndUnresolvable",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    Text(&'static str),
    Owned(Arc<str>),
    Insufficient(ResourceName),
    TooManyPods,
    UntoleratedTaint { key: Arc<str>, value: Arc<str> },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Owned(text) => f.write_str(text),
            Self::Insufficient(resource) => write!(f, "Insufficient {resource}"),
            Self::TooManyPods => f.write_str("Too many pods"),
            Self::UntoleratedTaint { .. } => f.write_str("node(s) had untolerated taint(s)"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The first plugin that rejects the node.
    pub plugin: Plugin,
    pub code: Code,
    pub reasons: SmallVec<[Reason; 1]>,
}

impl Rejection {
    /// A rejection that evictions could change.
    pub fn resolvable(plugin: Plugin, reason: Reason) -> Self {
        let reasons = std::iter::once(reason).collect();
        Self { plugin, code: Code::Unschedulable, reasons }
    }

    /// A rejection that evictions cannot change.
    pub fn unresolvable(plugin: Plugin, reason: Reason) -> Self {
        Self { code: Code::UnschedulableAndUnresolvable, ..Self::resolvable(plugin, reason) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeVerdict {
    Feasible,
    Rejected(Rejection),
    /// Rejected before any node was evaluated: for the whole cluster, or because the search was
    /// narrowed to other nodes.
    Excluded {
        rejection: Rejection,
        /// The filters' verdict, if the search was narrowed.
        filter: Option<Result<(), Rejection>>,
    },
}

pub type NodeScores = Vec<(Arc<str>, i64)>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// By node name.
    pub nodes: Vec<(Arc<str>, NodeVerdict)>,
    /// Normalised scores per plugin, for feasible nodes by name. Empty unless at least two nodes
    /// are feasible and the nominated node is not among them.
    pub scores: Vec<(Plugin, NodeScores)>,
    pub totals: NodeScores,
    /// The best nodes, by name.
    pub best: Vec<Arc<str>>,
    /// Only if no node is feasible.
    pub preemption: Option<Preemption>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preemption {
    /// Why the pod must not preempt.
    pub barred: Option<Arc<str>>,
    /// Nodes where evictions make room, by name.
    pub candidates: Vec<Candidate>,
    /// The candidates that no rule distinguishes, by name.
    pub chosen: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub node: Arc<str>,
    /// UIDs in kube-scheduler's order.
    pub victims: Vec<Arc<str>>,
    /// Evictions that violate a disruption budget.
    pub budget_violations: usize,
}
