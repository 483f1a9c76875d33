//! kube-scheduler's DefaultPreemption: victims per node, and the choice of a node.

use std::sync::Arc;

use berth_model::policy::DisruptionBudget;
use berth_model::spec::{Phase, PodSpec, PreemptionPolicy};

use super::Verdicts;
use crate::filter::{IncomingPod, Inquiry};
use crate::overlay::Overlay;
use crate::placement::victims::EvictionPlan;
use crate::state::{Place, PodState, State};
use crate::table::{NodeIx, PodIx};
use crate::verdict::{Candidate, Code, NodeVerdict, Preemption};

/// Added to priorities before they are summed up, so that fewer victims weigh less.
pub(crate) const PRIORITY_SHIFT: i64 = 1 << 31;

pub(crate) struct Evictions {
    pub(crate) node: NodeIx,
    pub(crate) victims: Vec<PodIx>,
    pub(crate) budget_violations: usize,
}

impl From<EvictionPlan> for Evictions {
    fn from(plan: EvictionPlan) -> Self {
        let EvictionPlan { node, victims, cost } = plan;
        Self { node, victims, budget_violations: cost.budget_violations as usize }
    }
}

pub(super) fn run(
    inquiry: &Inquiry<'_>,
    verdicts: &Verdicts,
    nominated: Option<&Arc<str>>,
) -> Preemption {
    let state = inquiry.state;
    if let Some(reason) = barred(inquiry, verdicts, nominated) {
        return Preemption { barred: Some(reason.into()), ..Preemption::default() };
    }
    let options = options(inquiry, verdicts);
    let best = best(state, &options);
    let candidate = |option: &Evictions| Candidate {
        node: state.nodes[option.node].object.name.clone(),
        victims: option.victims.iter().map(|pod| state.pods[*pod].uid.clone()).collect(),
        budget_violations: option.budget_violations,
    };
    Preemption {
        barred: None,
        candidates: options.iter().map(candidate).collect(),
        chosen: best.iter().map(|option| state.nodes[option.node].object.name.clone()).collect(),
    }
}

/// The evictions for the pod at `at`, as described by `pod`; ties go to a stable hash of the name.
pub(crate) fn select(state: &State, at: PodIx, pod: IncomingPod<'_>) -> Option<Evictions> {
    let (inquiry, narrowed) = Inquiry::new(state, pod).ok()?;
    let verdicts = Verdicts::of(&inquiry, &narrowed);
    let nominated = match &state.pods[at].place {
        Place::Nominated(node, _) => Some(node),
        _ => None,
    };
    if barred(&inquiry, &verdicts, nominated).is_some() {
        return None;
    }
    let options = options(&inquiry, &verdicts);
    let best: Vec<NodeIx> = best(state, &options).into_iter().map(|one| one.node).collect();
    let node = best.into_iter().max_by_key(|node| state.nodes[*node].tie)?;
    options.into_iter().find(|option| option.node == node)
}

fn barred(
    inquiry: &Inquiry<'_>,
    verdicts: &Verdicts,
    nominated: Option<&Arc<str>>,
) -> Option<&'static str> {
    let state = inquiry.state;
    if inquiry.class.spec.preemption == PreemptionPolicy::Never {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let node = state.node_by_name(nominated?)?;
    let unresolvable = verdicts.nodes.iter().any(|(at, verdict)| {
        *at == node && code(verdict) == Some(Code::UnschedulableAndUnresolvable)
    });
    let leaving = |pod: &PodIx| {
        let row = &state.pods[*pod];
        row.phase == (Phase::Terminating { by_preemption: true })
            && priority(state, *pod) < inquiry.class.spec.priority
    };
    let waits = !unresolvable && state.nodes[node].pods.iter().any(leaving);
    waits.then_some("not eligible due to a terminating pod on the nominated node.")
}

fn code(verdict: &NodeVerdict) -> Option<Code> {
    match verdict {
        NodeVerdict::Feasible => None,
        NodeVerdict::Rejected(rejection) | NodeVerdict::Excluded { rejection, .. } => {
            Some(rejection.code)
        }
    }
}

fn options(inquiry: &Inquiry<'_>, verdicts: &Verdicts) -> Vec<Evictions> {
    let rejected = verdicts.nodes.iter().filter(|(_, verdict)| {
        matches!(verdict, NodeVerdict::Rejected(rejection) if rejection.code == Code::Unschedulable)
    });
    rejected.filter_map(|(at, _)| victims(inquiry, *at)).collect()
}

fn victims(inquiry: &Inquiry<'_>, at: NodeIx) -> Option<Evictions> {
    let state = inquiry.state;
    let node = &state.nodes[at];
    let lower = |pod: &&PodIx| priority(state, **pod) < inquiry.class.spec.priority;
    let mut potential: Vec<PodIx> = node.pods.iter().filter(lower).copied().collect();
    if potential.is_empty() {
        return None;
    }
    let mut overlay = Overlay::default();
    potential.iter().for_each(|pod| overlay.remove(state, node, *pod));
    inquiry.filter_nominated(at, &overlay).ok()?;
    potential.sort_by(|one, other| importance(state, *one).cmp(&importance(state, *other)));
    let (violating, others) = split_by_budgets(state, &potential);
    let mixed = !violating.is_empty() && !others.is_empty();
    let mut victims = Vec::new();
    let mut budget_violations = 0;
    for (at_stake, pod) in
        violating.iter().map(|pod| (true, pod)).chain(others.iter().map(|pod| (false, pod)))
    {
        overlay.restore(state, node, *pod);
        if inquiry.filter_nominated(at, &overlay).is_err() {
            overlay.remove(state, node, *pod);
            victims.push(*pod);
            budget_violations += usize::from(at_stake);
        }
    }
    if mixed {
        victims.sort_by(|one, other| importance(state, *one).cmp(&importance(state, *other)));
    }
    (!victims.is_empty()).then_some(Evictions { node: at, victims, budget_violations })
}

pub(crate) fn priority(state: &State, pod: PodIx) -> i32 {
    state.class_of(pod).spec.priority
}

/// Most important first: by priority, then by start. Pods that have not started are the youngest.
pub(crate) fn importance(state: &State, pod: PodIx) -> (std::cmp::Reverse<i32>, i64, &Arc<str>) {
    let row = &state.pods[pod];
    (std::cmp::Reverse(priority(state, pod)), started(row), &row.uid)
}

fn started(pod: &PodState) -> i64 {
    pod.started_at_ms.unwrap_or(i64::MAX)
}

pub(crate) fn protects(budget: &DisruptionBudget, spec: &PodSpec) -> bool {
    let selector = budget.selector.as_ref().filter(|selector| !selector.is_empty());
    budget.namespace == spec.namespace
        && !spec.labels.is_empty()
        && selector.is_some_and(|selector| selector.matches(&spec.labels))
}

/// Splits pods, most important first, into those whose eviction would violate a budget and others.
/// Evictions in progress count first.
pub(crate) fn split_by_budgets(state: &State, pods: &[PodIx]) -> (Vec<PodIx>, Vec<PodIx>) {
    let mut left: Vec<(&DisruptionBudget, i32)> =
        state.budgets.values().map(|budget| (budget, budget.disruptions_allowed)).collect();
    let mut violates = |pod: &PodIx| {
        let row = &state.pods[*pod];
        let spec = &state.class(row.class).spec;
        let mut violated = false;
        for (budget, allowed) in &mut left {
            if protects(budget, spec) && !budget.disrupted_pods.contains(&row.name) {
                *allowed = allowed.saturating_sub(1);
                violated |= *allowed < 0;
            }
        }
        violated
    };
    state.leaving().for_each(|pod| {
        violates(&pod);
    });
    pods.iter().copied().partition(violates)
}

/// The candidates that no rule distinguishes.
fn best<'o>(state: &State, options: &'o [Evictions]) -> Vec<&'o Evictions> {
    let rank = |option: &Evictions| {
        let priorities = || option.victims.iter().map(|pod| priority(state, *pod));
        let highest = priorities().next().unwrap_or(i32::MIN);
        let top = priorities().max().unwrap_or(i32::MIN);
        let sum: i64 = priorities().map(|priority| i64::from(priority) + PRIORITY_SHIFT).sum();
        let of_top = option.victims.iter().filter(|pod| priority(state, **pod) == top);
        let earliest = of_top.map(|pod| started(&state.pods[*pod])).min();
        let latest = std::cmp::Reverse(earliest);
        (option.budget_violations, highest, sum, option.victims.len(), latest)
    };
    let least = options.iter().map(rank).min();
    options.iter().filter(|option| Some(rank(option)) == least).collect()
}
