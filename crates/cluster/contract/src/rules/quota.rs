//! Rules on ResourceQuotas. They assume that the quota is unused.

use berth_api::FieldPath;
use berth_model::pod::PodLevelResources;
use berth_model::quantity::Quantity;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::{Breach, Scope};
use crate::context::Context;
use crate::finding::Fix;
use crate::rule::{Rule, Severity, Topic};
use crate::view::PodView;

pub(crate) static REQUESTS_ONLY: Rule = Rule {
    code: "BERTH-503",
    name: "quota-requests-only",
    topic: Topic::Tenancy,
    severity: Severity::Warning,
    summary: "Quotas on CPU or memory requests also limit CPU or memory limits.",
    why: "Requests reserve, limits cap usage. With a quota on requests alone a team can use many times \
          its quota, and on GPU nodes the memory that other teams' GPU pods need.",
    remedy: "Add limits.cpu or limits.memory to the quota. GPUs need only requests.nvidia.com/gpu.",
    safe_fix: None,
};

pub(crate) static NOT_COUNTED: Rule = Rule {
    code: "BERTH-504",
    name: "quota-not-counted",
    topic: Topic::Tenancy,
    severity: Severity::Warning,
    summary: "Quotas name GPUs as requests.RESOURCE.",
    why: "Kubernetes counts extended resources under requests. only. A quota on limits.nvidia.com/gpu or \
          nvidia.com/gpu is stored but never enforced.",
    remedy: "Use requests.nvidia.com/gpu.",
    safe_fix: Some("Removes the entry if the quota also has the right one."),
};

pub(crate) static EXCEEDED: Rule = Rule {
    code: "BERTH-506",
    name: "quota-too-small",
    topic: Topic::Tenancy,
    severity: Severity::Warning,
    summary: "Workloads fit into the quotas of their namespace.",
    why: "Pods beyond the quota are rejected: the workload runs with fewer replicas or none, and a \
          rollout never completes.",
    remedy: "Request less, or raise the quota.",
    safe_fix: None,
};

pub(crate) fn check(quota: &core::ResourceQuota, scope: &mut Scope<'_>) {
    let Some(hard) = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()) else { return };
    let field = |key: &str| FieldPath::root().key("spec").key("hard").key(key);
    for resource in ["cpu", "memory"] {
        // Without a prefix, requests are meant.
        let written = [format!("requests.{resource}"), resource.to_owned()];
        let Some(key) = written.iter().find(|key| hard.contains_key(*key)) else { continue };
        if !hard.contains_key(&format!("limits.{resource}")) {
            let message = format!("{key} is limited, but limits.{resource} is not");
            scope.add(Breach::new(&REQUESTS_ONLY, field(key), message));
        }
    }
    for key in hard.keys() {
        let named = key.strip_prefix("limits.").unwrap_or(key);
        if !scope.settings.is_gpu(named) {
            continue;
        }
        let right = format!("requests.{named}");
        let breach = Breach::new(&NOT_COUNTED, field(key), format!("{key} is never enforced"))
            .remedy(format!("Use {right}."));
        let fixable = hard.contains_key(&right);
        let fix = Fix::Remove { path: field(key) };
        scope.add(if fixable { breach.fix([fix]).remedy("Remove it.") } else { breach });
    }
}

pub(crate) fn check_pod(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let Ok(spec) = &view.lowered else { return };
    let asked = spec.pod.total_requests(PodLevelResources::Honoured);
    let mut found = Vec::new();
    for quota in Context::in_namespace(&scope.context.quotas, view.namespace) {
        let Some(terms) = &quota.spec else { continue };
        // A quota with scopes may not count this pod.
        if terms.scopes.is_some() || terms.scope_selector.is_some() {
            continue;
        }
        let name = quota.metadata.name.as_deref().unwrap_or("?");
        for (key, Text(text)) in terms.hard.iter().flatten() {
            let Some(resource) = key.strip_prefix("requests.") else { continue };
            let (Some(each), Ok(most)) = (asked.get(resource), Quantity::parse(text)) else {
                continue;
            };
            let copies = view.copies().unwrap_or(1).max(1);
            // More copies than could ever fit need not be added up.
            let together = (0..copies.min(10_000)).try_fold(Quantity::default(), |sum, _| {
                (sum <= most).then(|| sum.saturating_add(*each))
            });
            if together.is_some_and(|together| together <= most) {
                continue;
            }
            let message = if *each > most {
                format!("one pod requests {each} of {resource}, but quota {name} allows {most}")
            } else {
                format!("{copies} pods with {each} {resource} each exceed quota {name} ({most})")
            };
            let of_pod = || view.spec_field("containers");
            let field = match (&view.template.copies, *each > most) {
                (berth_api::workload::Copies::Count { field, .. }, false) => field.clone(),
                _ => of_pod(),
            };
            found.push(Breach::new(&EXCEEDED, field, message));
        }
    }
    scope.found.extend(found);
}
