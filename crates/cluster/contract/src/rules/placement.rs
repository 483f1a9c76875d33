//! Rules on node selectors, scheduler names and topology spread constraints.

use berth_api::FieldPath;
use berth_api::workload::WorkloadKind;
use berth_model::affinity::WhenUnsatisfiable;
use berth_model::label::Operator;
use berth_model::spec::PodSpec;

use super::{Breach, Scope};
use crate::pool::NodeGroup;
use crate::rule::{Rule, Severity, Topic};
use crate::view::{PodView, Work};

pub(crate) static NO_POOL: Rule = Rule {
    code: "BERTH-204",
    name: "no-pool",
    topic: Topic::Placement,
    severity: Severity::Error,
    summary: "Node selectors and affinities match a known node or node pool.",
    why: "Such a pod stays pending, and autoscaling does not help: Karpenter and the Cluster Autoscaler \
          add nodes only for selectors that one of their pools satisfies. Karpenter knows the labels \
          of its pools and those that it sets itself, not those that GPU feature discovery adds \
          later.",
    remedy: "Correct the label, or add it to the intended node pool.",
    safe_fix: None,
};

pub(crate) static PINNED_TO_NODE: Rule = Rule {
    code: "BERTH-206",
    name: "pinned-to-node",
    topic: Topic::Placement,
    severity: Severity::Warning,
    summary: "Workloads are not pinned to a single node.",
    why: "When the node is full, drained or gone, the workload is down until somebody edits it. nodeName \
          also bypasses the scheduler, so the kubelet rejects pods that do not fit.",
    remedy: "Select a label of several nodes, such as the GPU product or the pool.",
    safe_fix: None,
};

pub(crate) static UNKNOWN_SCHEDULER: Rule = Rule {
    code: "BERTH-207",
    name: "unknown-scheduler",
    topic: Topic::Placement,
    severity: Severity::Warning,
    summary: "schedulerName is a known scheduler.",
    why: "Only the named scheduler looks at the pod. If it does not exist, the pod stays pending without \
          any event.",
    remedy: "Correct schedulerName, or add the scheduler to the settings.",
    safe_fix: None,
};

pub(crate) static SPREAD_SKIPS_SELF: Rule = Rule {
    code: "BERTH-208",
    name: "spread-skips-self",
    topic: Topic::Placement,
    severity: Severity::Warning,
    summary: "Spread constraints select the pod's own labels.",
    why: "A constraint whose selector does not match the pod's own labels does not count the replicas, \
          so all of them may end up in one zone. Kubernetes reports nothing.",
    remedy: "Select labels of the pod template.",
    safe_fix: None,
};

pub(crate) static SPREAD_KEY_UNKNOWN: Rule = Rule {
    code: "BERTH-209",
    name: "spread-key-unknown",
    topic: Topic::Placement,
    severity: Severity::Error,
    summary: "Nodes have the topology key of required spread constraints.",
    why: "With whenUnsatisfiable: DoNotSchedule, nodes without the label are excluded, so the pod stays \
          pending.",
    remedy: "Use a label of the nodes, such as topology.kubernetes.io/zone.",
    safe_fix: None,
};

/// Karpenter's label of the NodePool that created a node.
const NODE_POOL: &str = "karpenter.sh/nodepool";
const HOSTNAME: &str = "kubernetes.io/hostname";
const AFFINITY: &str = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution";

pub(crate) fn check(view: &PodView<'_>, scope: &mut Scope<'_>) {
    check_pinned(view, scope);
    check_scheduler(view, scope);
    let Ok(spec) = &view.lowered else { return };
    check_pools(view, spec, scope);
    check_spread(view, spec, scope);
}

/// The nodeName of an existing pod was set by a scheduler.
fn is_placed(view: &PodView<'_>) -> bool {
    let metadata = &view.workload.metadata;
    view.workload.kind == WorkloadKind::Pod
        && (metadata.uid.is_some() || metadata.owner_references.is_some())
}

fn check_pinned(view: &PodView<'_>, scope: &mut Scope<'_>) {
    if view.work == Work::System || is_placed(view) {
        return;
    }
    if let Some(node) = view.template.spec.node_name.as_deref().filter(|node| !node.is_empty()) {
        let message = format!("is bound to node {node:?} without a scheduler");
        scope.add(Breach::new(&PINNED_TO_NODE, view.spec_field("nodeName"), message));
    }
    let selector = view.template.spec.node_selector.as_ref();
    if let Some(node) = selector.and_then(|selector| selector.get(HOSTNAME)) {
        let field = view.spec_field("nodeSelector").key(HOSTNAME);
        let message = format!("can only run on node {node:?}");
        scope.add(Breach::new(&PINNED_TO_NODE, field, message));
    }
}

fn check_scheduler(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let Some(name) = view.template.spec.scheduler_name.as_deref() else { return };
    if !name.is_empty() && !scope.settings.schedulers.contains(name) {
        let known: Vec<&str> = scope.settings.schedulers.iter().map(String::as_str).collect();
        let message = format!("unknown scheduler {name:?}");
        let remedy = format!(
            "Use a known scheduler ({}), or add it to `schedulers` in the settings.",
            known.join(", ")
        );
        let field = view.spec_field("schedulerName");
        scope.add(Breach::new(&UNKNOWN_SCHEDULER, field, message).remedy(remedy));
    }
}

fn check_pools(view: &PodView<'_>, spec: &PodSpec, scope: &mut Scope<'_>) {
    let pools = &scope.context.pools;
    let asks = !spec.node_selector.is_empty() || spec.node_affinity.required.is_some();
    if pools.is_empty() || !asks || pools.iter().any(|pool| pool.is_selected(spec)) {
        return;
    }
    let known = known(pools);
    let (field, message) = match lone_label(pools, spec) {
        Some((key, value)) => (
            view.spec_field("nodeSelector").key(key),
            format!("no node has {key}={value} (known: {known})"),
        ),
        None => {
            let field = match &spec.node_affinity.required {
                Some(_) => view.spec_field(AFFINITY),
                None => view.spec_field("nodeSelector"),
            };
            (field, format!("matches no node (known: {known})"))
        }
    };
    let breach = Breach::new(&NO_POOL, field, message);
    scope.add(if all_groups_known(pools) {
        breach
    } else {
        breach.at_most(Severity::Warning).remedy(
            "Correct the label, unless it is the label of an autoscaled node group without nodes.",
        )
    });
}

/// A node that no known pool creates is static, or of a group of the Cluster Autoscaler: such a group has
/// no object, and one without nodes cannot be seen.
fn all_groups_known(pools: &[NodeGroup]) -> bool {
    let growing = |name: &str| pools.iter().any(|pool| pool.grows && *pool.node.name == *name);
    pools
        .iter()
        .all(|pool| pool.grows || pool.node.labels.get(NODE_POOL).is_some_and(|name| growing(name)))
}

/// A label of the node selector that no pool has.
fn lone_label<'s>(pools: &[NodeGroup], spec: &'s PodSpec) -> Option<(&'s str, &'s str)> {
    let mut labels = spec.node_selector.iter();
    let (key, value) = labels.find(|(key, value)| {
        let wanted = Operator::In(vec![(*value).clone()]);
        !pools.iter().any(|pool| pool.can(key, &wanted))
    })?;
    Some((key, value))
}

fn known(pools: &[NodeGroup]) -> String {
    let growing: Vec<&str> =
        pools.iter().filter(|pool| pool.grows).map(|pool| pool.name.as_str()).collect();
    let nodes: usize = pools.iter().filter(|pool| !pool.grows).map(NodeGroup::count).sum();
    let mut parts: Vec<String> = growing.iter().take(3).map(|name| (*name).to_owned()).collect();
    if growing.len() > 3 {
        parts.push(format!("{} more node pools", growing.len() - 3));
    }
    match (nodes, pools.iter().find(|pool| !pool.grows)) {
        (1, Some(pool)) => parts.push(pool.name.clone()),
        (0, _) | (_, None) => {}
        (nodes, _) => parts.push(format!("{nodes} nodes")),
    }
    parts.join(", ")
}

fn check_spread(view: &PodView<'_>, spec: &PodSpec, scope: &mut Scope<'_>) {
    let nodes = || scope.context.pools.iter().filter(|pool| !pool.grows);
    let grows = scope.context.pools.iter().any(|pool| pool.grows);
    let mut found = Vec::new();
    for (index, constraint) in spec.spread.iter().enumerate() {
        let field = |name: &str| -> FieldPath {
            view.spec_field("topologySpreadConstraints").at(index).key(name)
        };
        let counted = constraint.merged_selector(&spec.labels);
        if !counted.is_some_and(|selector| selector.matches(&spec.labels)) {
            let message = "the selector does not match the pod's own labels";
            found.push(Breach::new(&SPREAD_SKIPS_SELF, field("labelSelector"), message));
        }
        let key = &*constraint.topology_key;
        let hard = constraint.unsatisfiable == WhenUnsatisfiable::DoNotSchedule;
        let mut matching = nodes().filter(|pool| pool.is_selected(spec)).peekable();
        let some = matching.peek().is_some();
        if hard && some && !grows && !matching.any(|pool| pool.has(key)) {
            let message = format!("no matching node has the label {key}");
            found.push(Breach::new(&SPREAD_KEY_UNKNOWN, field("topologyKey"), message));
        }
    }
    scope.found.extend(found);
}
