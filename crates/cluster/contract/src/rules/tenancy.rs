//! Rules on team and cost center labels.

use serde_json::json;

use super::{Breach, Scope};
use crate::context::label_of;
use crate::finding::Fix;
use crate::rule::{Rule, Severity, Topic};
use crate::view::{PodView, Work};

pub(crate) static NO_TEAM: Rule = Rule {
    code: "BERTH-501",
    name: "no-team",
    topic: Topic::Tenancy,
    severity: Severity::Warning,
    summary: "GPU pods, or their namespace, have a team label.",
    why: "Shares, borrowing and alerts are per team. Pods without a team have no owner, and their cost \
          is shared by all.",
    remedy: "Add the label to the pod template, or to the namespace.",
    safe_fix: Some("Copies a label of the workload to its pods."),
};

pub(crate) static NO_COST_CENTER: Rule = Rule {
    code: "BERTH-502",
    name: "no-cost-center",
    topic: Topic::Tenancy,
    severity: Severity::Warning,
    summary: "GPU pods, or their namespace, have a cost center label.",
    why: "GPU nodes cost ten times as much as others. Without a cost center their cost cannot be charged \
          back.",
    remedy: "Add the label to the pod template, or to the namespace.",
    safe_fix: Some("Copies a label of the workload to its pods."),
};

pub(crate) fn check(view: &PodView<'_>, scope: &mut Scope<'_>) {
    // Agents of the platform are overhead.
    if !view.uses_gpus() || view.work == Work::System {
        return;
    }
    let settings = scope.settings;
    for (rule, keys) in
        [(&NO_TEAM, &settings.team_labels), (&NO_COST_CENTER, &settings.cost_center_labels)]
    {
        let Some(usual) = keys.last() else { continue };
        let of_pods = keys.iter().any(|key| label_of(&view.template.metadata, key).is_some());
        let namespace = scope.context.namespaces.get(view.namespace);
        let of_namespace = namespace
            .is_some_and(|one| keys.iter().any(|key| label_of(&one.metadata, key).is_some()));
        if of_pods || of_namespace {
            continue;
        }
        let written =
            keys.iter().find_map(|key| Some((key, label_of(&view.workload.metadata, key)?)));
        let (field, message) = match written {
            Some((key, _)) => {
                (view.label_field(key), format!("the workload has {key}, but its pods do not"))
            }
            None => (view.label_field(usual), format!("pods have no label {usual}")),
        };
        let mut breach = Breach::new(rule, field.clone(), message);
        if let Some((_, value)) = written {
            breach = breach.fix([Fix::Set { path: field, value: json!(value) }]);
        }
        scope.add(breach);
    }
}
