//! Rules on PodDisruptionBudgets.

use berth_api::FieldPath;
use berth_api::workload::WorkloadKind;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Breach, Scope};
use crate::context::{Context, labels_of};
use crate::rule::{Rule, Severity, Topic};
use crate::view::PodView;

pub(crate) static NO_BUDGET: Rule = Rule {
    code: "BERTH-303",
    name: "no-budget",
    topic: Topic::Serving,
    severity: Severity::Info,
    summary: "Serving replicas on GPUs have a PodDisruptionBudget.",
    why: "Drains, consolidation and preemption may evict all replicas at once, and replacements need \
          minutes to load their model.",
    remedy: "Add a PodDisruptionBudget with maxUnavailable: 1 that selects the pods.",
    safe_fix: None,
};

pub(crate) static BLOCKS_EVICTION: Rule = Rule {
    code: "BERTH-305",
    name: "budget-blocks-eviction",
    topic: Topic::Serving,
    severity: Severity::Warning,
    summary: "PodDisruptionBudgets allow at least one eviction.",
    why: "A budget that allows none blocks every drain: nodes cannot be upgraded, Karpenter cannot \
          consolidate, and GPUs cannot be repartitioned until somebody deletes pods.",
    remedy: "Set maxUnavailable: 1, with more than one replica.",
    safe_fix: None,
};

pub(crate) fn check_pod(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let kind = view.workload.kind;
    let replicated = matches!(kind, WorkloadKind::Deployment | WorkloadKind::StatefulSet);
    if !replicated || !view.serves_on_gpus() || view.copies().is_none_or(|copies| copies < 2) {
        return;
    }
    let labels = labels_of(&view.template.metadata);
    let budgets = Context::in_namespace(&scope.context.budgets, view.namespace);
    if !budgets.iter().any(|selector| selector.matches(&labels)) {
        let message = "no PodDisruptionBudget selects the pods";
        scope.add(Breach::new(&NO_BUDGET, FieldPath::root().key("metadata").key("name"), message));
    }
}

pub(crate) fn check(budget: &PodDisruptionBudget, scope: &mut Scope<'_>) {
    let Some(spec) = &budget.spec else { return };
    let field = |name: &str| FieldPath::root().key("spec").key(name);
    match &spec.max_unavailable {
        Some(IntOrString::Int(0)) => {
            let message = "allows no evictions";
            scope.add(Breach::new(&BLOCKS_EVICTION, field("maxUnavailable"), message));
            return;
        }
        Some(IntOrString::String(text)) if percent(text) == Some(0) => {
            let message = format!("{text} allows no evictions");
            scope.add(Breach::new(&BLOCKS_EVICTION, field("maxUnavailable"), message));
            return;
        }
        _ => {}
    }
    let message = match &spec.min_available {
        Some(IntOrString::String(text)) if percent(text).is_some_and(|part| part >= 100) => {
            format!("{text} must be available, so no eviction is allowed")
        }
        Some(IntOrString::Int(wanted)) => {
            let Some(copies) = selected(budget, scope) else { return };
            let wanted = u32::try_from(*wanted).unwrap_or(0);
            if copies == 0 || wanted < copies {
                return;
            }
            format!(
                "{wanted} must be available, but the selected workloads have only {copies} pods"
            )
        }
        _ => return,
    };
    scope.add(Breach::new(&BLOCKS_EVICTION, field("minAvailable"), message));
}

fn percent(text: &str) -> Option<u32> {
    text.strip_suffix('%')?.parse().ok()
}

/// How many pods the budget selects; `None` if that is not known.
fn selected(budget: &PodDisruptionBudget, scope: &Scope<'_>) -> Option<u32> {
    let namespace = scope.object.namespace();
    let selector = budget.spec.as_ref()?.selector.as_ref().and_then(berth_api::read_selector)?;
    let mut total: u32 = 0;
    for workload in Context::in_namespace(&scope.context.workloads, namespace) {
        for template in &workload.templates {
            if selector.matches(&labels_of(&template.metadata)) {
                if scope.context.is_scaled(namespace, workload) {
                    return None;
                }
                total = total.saturating_add(template.copies.at_once()?);
            }
        }
    }
    Some(total)
}
