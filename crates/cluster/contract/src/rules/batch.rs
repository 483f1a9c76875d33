//! Rules on batch jobs and priority classes.

use berth_api::FieldPath;
use berth_api::workload::WorkloadKind;
use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::{Breach, Scope};
use berth_model::workload::WorkloadClass;

use crate::rule::{Rule, Severity, Topic};
use crate::view::{PodView, Work};

pub(crate) static NO_DEADLINE: Rule = Rule {
    code: "BERTH-401",
    name: "no-deadline",
    topic: Topic::Batch,
    severity: Severity::Warning,
    summary: "Batch jobs on GPUs have activeDeadlineSeconds.",
    why: "A job that hangs, or that is evicted and restarted repeatedly, holds GPUs without end.",
    remedy: "Set activeDeadlineSeconds to the longest expected duration. On a Job it covers all retries.",
    safe_fix: None,
};

pub(crate) static MAY_PREEMPT: Rule = Rule {
    code: "BERTH-402",
    name: "batch-may-preempt",
    topic: Topic::Batch,
    severity: Severity::Warning,
    summary: "Batch jobs have a priority class with preemptionPolicy: Never.",
    why: "Preempting batch jobs evict each other, so GPUs spend their time on restarts. They may also \
          evict serving pods with a lower priority.",
    remedy: "Set preemptionPolicy: Never on the priority class. The field is immutable: delete the class \
             and create it again.",
    safe_fix: None,
};

pub(crate) static UNKNOWN_PRIORITY: Rule = Rule {
    code: "BERTH-403",
    name: "unknown-priority-class",
    topic: Topic::Batch,
    severity: Severity::Warning,
    summary: "priorityClassName is a known PriorityClass.",
    why: "The API server rejects pods with an unknown class. Controllers retry, and only their events \
          show it.",
    remedy: "Correct the name, or create the PriorityClass first.",
    safe_fix: None,
};

pub(crate) fn check_pod(view: &PodView<'_>, scope: &mut Scope<'_>) {
    check_deadline(view, scope);
    let Some(name) = view.template.spec.priority_class_name.as_deref() else { return };
    let classes = &scope.context.priority_classes;
    let field = view.spec_field("priorityClassName");
    match classes.get(name) {
        Some(class) => {
            let policy = view.template.spec.preemption_policy.as_deref();
            let never = policy.or(class.preemption_policy.as_deref()) == Some("Never");
            // With equal priorities there is nothing to evict.
            let above_some = classes.values().any(|other| value(other) < value(class));
            if view.work == Work::Batch && view.uses_gpus() && !never && above_some {
                let message =
                    format!("batch pods with priority class {name:?} may evict other pods");
                scope.add(Breach::new(&MAY_PREEMPT, field, message));
            }
        }
        None if classes.is_empty() || name.is_empty() || name.starts_with("system-") => {}
        None => {
            let known: Vec<&str> = classes.keys().map(String::as_str).take(5).collect();
            let message = format!("unknown PriorityClass {name:?}");
            let remedy =
                format!("Create the class, or use a known one, such as {}.", known.join(", "));
            scope.add(Breach::new(&UNKNOWN_PRIORITY, field, message).remedy(remedy));
        }
    }
}

fn value(class: &PriorityClass) -> i32 {
    class.value.unwrap_or(0)
}

fn check_deadline(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let bounded = view.template.spec.active_deadline_seconds.is_some()
        || view.template.job.as_ref().is_some_and(|job| job.active_deadline_seconds.is_some());
    let ends = view.template.job.is_some() || view.workload.kind == WorkloadKind::Pod;
    if view.work != Work::Batch || !view.uses_gpus() || bounded || !ends {
        return;
    }
    let field = match &view.template.job {
        Some(job) => job.path.clone().key("activeDeadlineSeconds"),
        None => view.spec_field("activeDeadlineSeconds"),
    };
    scope.add(Breach::new(&NO_DEADLINE, field, "activeDeadlineSeconds is not set"));
}

/// Reports classes that are batch by name.
pub(crate) fn check_class(class: &PriorityClass, scope: &mut Scope<'_>) {
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let class_of_work = scope.settings.class_rules().by_name(name);
    if class_of_work.is_none_or(WorkloadClass::is_serving)
        || class.preemption_policy.as_deref() == Some("Never")
    {
        return;
    }
    let field = FieldPath::root().key("preemptionPolicy");
    let message = format!("pods with priority class {name:?} may evict others");
    scope.add(Breach::new(&MAY_PREEMPT, field, message));
}
