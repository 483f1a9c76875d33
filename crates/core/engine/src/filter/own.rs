//! Filters about one node: name, cordon, taints, node affinity, resources.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_model::affinity::NodeAffinity;
use berth_model::label::Operator;
use berth_model::node::Node;
use berth_model::spec::PodSpec;
use berth_model::taint::{Effect, Taint, Toleration};
use smallvec::SmallVec;

use super::Narrowed;
use crate::amounts::{self, Amounts, Resources};
use crate::state::NodeState;
use crate::table::ResourceIx;
use crate::verdict::{Code, Plugin, Reason, Rejection};

/// The taint that stands for a cordoned node.
pub(crate) const CORDON: &str = "node.kubernetes.io/unschedulable";

pub(crate) fn object(spec: &PodSpec, node: &Node) -> Result<(), Rejection> {
    let reject = |plugin, reason| Err(Rejection::unresolvable(plugin, reason));
    if spec.node_name.as_ref().is_some_and(|name| *name != node.name) {
        let reason = "node(s) didn't match the requested node name";
        return reject(Plugin::NodeName, Reason::Text(reason));
    }
    if node.unschedulable && !tolerates_cordon(&spec.tolerations) {
        let reason = Reason::Text("node(s) were unschedulable");
        return reject(Plugin::NodeUnschedulable, reason);
    }
    let hard = node.taints.iter().filter(|taint| taint.effect.is_hard());
    if let Some(taint) = hard.into_iter().find(|taint| !tolerated(taint, &spec.tolerations)) {
        let (key, value) = (taint.key.clone(), taint.value.clone());
        return reject(Plugin::TaintToleration, Reason::UntoleratedTaint { key, value });
    }
    let affinity = spec.node_affinity.required.as_ref();
    let matches = node.labels.contains_all(&spec.node_selector)
        && affinity.is_none_or(|terms| terms.iter().any(|term| term.matches(node)));
    if !matches {
        let reason = "node(s) didn't match Pod's node affinity/selector";
        return reject(Plugin::NodeAffinity, Reason::Text(reason));
    }
    Ok(())
}

fn tolerates_cordon(tolerations: &[Toleration]) -> bool {
    // Built only for cordoned nodes.
    let taint = Taint { key: CORDON.into(), value: "".into(), effect: Effect::NoSchedule };
    tolerated(&taint, tolerations)
}

fn tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| toleration.tolerates(taint))
}

pub(crate) fn untolerated_soft_taints(spec: &PodSpec, node: &Node) -> i64 {
    let soft = node.taints.iter().filter(|taint| taint.effect == Effect::PreferNoSchedule);
    soft.filter(|taint| !tolerated(taint, &spec.tolerations)).count() as i64
}

/// The node names that required terms list, if every term does: kube-scheduler evaluates no others
/// then. `Err` if the terms conflict.
pub(crate) fn named_nodes(affinity: &NodeAffinity) -> Result<Narrowed, Rejection> {
    let Some(terms) = affinity.required.as_ref().filter(|terms| !terms.is_empty()) else {
        return Ok(None);
    };
    let mut names: BTreeSet<&Arc<str>> = BTreeSet::new();
    for term in terms {
        let lists = term.name.iter().filter_map(|operator| match operator {
            Operator::In(names) => Some(names.iter().collect::<BTreeSet<_>>()),
            _ => None,
        });
        match lists.reduce(|one, other| &one & &other) {
            Some(of_term) => names.extend(of_term),
            None => return Ok(None),
        }
    }
    if names.is_empty() {
        let reason = Reason::Text("pod affinity terms conflict");
        return Err(Rejection::unresolvable(Plugin::NodeAffinity, reason));
    }
    Ok(Some(names.into_iter().cloned().collect()))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    too_many_pods: bool,
    resources: SmallVec<[ResourceIx; 2]>,
    /// The node is too small even when empty.
    never: bool,
}

/// Whether a node with `used` taken by `pods` pods has room. Resources that are `served` by claims
/// are not counted on nodes that do not offer them.
pub(crate) fn fit(
    requests: &Amounts,
    node: &NodeState,
    used: &[i64],
    pods: i64,
    served: &[ResourceIx],
) -> Result<(), Shortage> {
    let too_many_pods = pods >= node.pods_max;
    let free = |resource: ResourceIx| {
        amounts::at(&node.capacity, resource).saturating_sub(amounts::at(used, resource))
    };
    let short = |(resource, amount): &&(ResourceIx, i64)| {
        let elsewhere = || amounts::at(&node.capacity, *resource) == 0 && served.contains(resource);
        *amount > free(*resource) && !elsewhere()
    };
    if !too_many_pods && !requests.iter().any(|request| short(&request)) {
        return Ok(());
    }
    let short: SmallVec<[&(ResourceIx, i64); 2]> = requests.iter().filter(short).collect();
    let never =
        short.iter().any(|(resource, amount)| *amount > amounts::at(&node.capacity, *resource));
    let resources = short.into_iter().map(|(resource, _)| *resource).collect();
    Err(Shortage { too_many_pods, resources, never })
}

impl Shortage {
    pub(crate) fn of(resource: ResourceIx) -> Self {
        let resources = std::iter::once(resource).collect();
        Self { too_many_pods: false, resources, never: false }
    }

    pub(crate) fn rejection(&self, resources: &Resources) -> Rejection {
        let short = self.resources.iter();
        let short = short.map(|resource| Reason::Insufficient(resources.name(*resource).clone()));
        let too_many = self.too_many_pods.then_some(Reason::TooManyPods);
        let code =
            if self.never { Code::UnschedulableAndUnresolvable } else { Code::Unschedulable };
        let reasons = too_many.into_iter().chain(short).collect();
        Rejection { plugin: Plugin::NodeResourcesFit, code, reasons }
    }
}
