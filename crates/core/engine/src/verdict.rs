//! What the engine says about a pod and a node: the vocabulary of verdicts.
//!
//! Owns the names, codes and reasons, in kube-scheduler's own words where it has them. Must not know
//! how any verdict is arrived at.

use std::fmt;
use std::sync::Arc;

use berth_model::resource::ResourceName;
use smallvec::SmallVec;

/// Who judges a node. In the order in which kube-scheduler asks; Berth's own come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plugin {
    /// `spec.nodeName` of the pod.
    NodeName,
    /// Cordoned nodes.
    NodeUnschedulable,
    /// Taints and tolerations.
    TaintToleration,
    /// Node selector and node affinity.
    NodeAffinity,
    /// Host ports.
    NodePorts,
    /// Resource requests.
    NodeResourcesFit,
    /// Volumes that cannot be shared.
    VolumeRestrictions,
    /// How many volumes can be attached.
    NodeVolumeLimits,
    /// Claims and what can be bound to them.
    VolumeBinding,
    /// Zones of bound volumes.
    VolumeZone,
    /// Topology spread constraints.
    PodTopologySpread,
    /// Affinity and anti-affinity between pods.
    InterPodAffinity,
    /// Balance between resources; scores only.
    NodeResourcesBalancedAllocation,
    /// Images on nodes; scores only.
    ImageLocality,
    /// Devices that pods claim.
    DynamicResources,
    /// What the kubelet would do. Not in kube-scheduler.
    KubeletAdmission,
}

impl Plugin {
    /// The name kube-scheduler gives it.
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

/// Whether evicting pods could change the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// It could.
    Unschedulable,
    /// It could not; preemption leaves the node alone.
    UnschedulableAndUnresolvable,
}

impl Code {
    /// The name kube-scheduler gives it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unschedulable => "Unschedulable",
            Self::UnschedulableAndUnresolvable => "UnschedulableAndUnresolvable",
        }
    }
}

/// Why a node is turned down. `Display` gives kube-scheduler's own words where it has them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// In words that need no figures.
    Text(&'static str),
    /// In words with something of this case in them.
    Owned(Arc<str>),
    /// A resource is short.
    Insufficient(ResourceName),
    /// The node holds as many pods as it may.
    TooManyPods,
    /// A taint is not tolerated.
    UntoleratedTaint {
        /// Its key.
        key: Arc<str>,
        /// Its value.
        value: Arc<str>,
    },
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

/// A node is turned down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// By whom first.
    pub plugin: Plugin,
    /// Whether eviction could help.
    pub code: Code,
    /// Why.
    pub reasons: SmallVec<[Reason; 1]>,
}

impl Rejection {
    /// One that evictions could change.
    pub fn resolvable(plugin: Plugin, reason: Reason) -> Self {
        let reasons = std::iter::once(reason).collect();
        Self { plugin, code: Code::Unschedulable, reasons }
    }

    /// One that evictions cannot change.
    pub fn unresolvable(plugin: Plugin, reason: Reason) -> Self {
        Self { code: Code::UnschedulableAndUnresolvable, ..Self::resolvable(plugin, reason) }
    }
}

/// What comes of asking about one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeVerdict {
    /// The pod can go there.
    Feasible,
    /// A filter turns it down.
    Rejected(Rejection),
    /// It was turned down before any node was looked at: for the whole cluster, or because the
    /// search was narrowed to other nodes.
    Excluded {
        /// By whom and why.
        rejection: Rejection,
        /// What the filters alone say about the node, if the search was narrowed.
        filter: Option<Result<(), Rejection>>,
    },
}

/// Scores by node name.
pub type NodeScores = Vec<(Arc<str>, i64)>;

/// Everything the engine can say about one pod against all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// The verdict on each node, in name order.
    pub nodes: Vec<(Arc<str>, NodeVerdict)>,
    /// Normalised scores of each plugin that took part, for the feasible nodes in name order. Empty
    /// unless at least two nodes are feasible and none is chosen for being nominated.
    pub scores: Vec<(Plugin, NodeScores)>,
    /// Weighted sums of the scores.
    pub totals: NodeScores,
    /// The nodes that are equally good, in name order.
    pub best: Vec<Arc<str>>,
    /// What preemption would do; only if no node is feasible.
    pub preemption: Option<Preemption>,
}

/// What preemption would do for one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preemption {
    /// Why the pod may not preempt; `None` if it may.
    pub barred: Option<Arc<str>>,
    /// Nodes where evictions make room, in name order.
    pub candidates: Vec<Candidate>,
    /// The candidates, by node name, that no rule tells apart.
    pub chosen: Vec<Arc<str>>,
}

/// A node where evictions make room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub node: Arc<str>,
    /// UIDs of the pods to evict, in the order in which kube-scheduler would name them.
    pub victims: Vec<Arc<str>>,
    /// How many of these evictions violate a disruption budget.
    pub budget_violations: usize,
}
