//! ResourceQuotas: what they leave open, what they do not count, and who cannot fit.
//!
//! Owns the rules on quotas. Must not know who uses how much: they are taken to be unused.

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
    summary: "A quota that bounds requests of CPU or memory bounds their limits too.",
    why: "Requests say what is set aside, limits what may be used. With a quota on requests alone a \
          team may use many times its part, and on GPU nodes the memory that feeds everybody's GPUs.",
    remedy: "Add limits.cpu or limits.memory beside requests.cpu or requests.memory. GPUs need no limits \
             of their own: only requests.nvidia.com/gpu counts.",
    safe_fix: None,
};

pub(crate) static NOT_COUNTED: Rule = Rule {
    code: "BERTH-504",
    name: "quota-not-counted",
    topic: Topic::Tenancy,
    severity: Severity::Warning,
    summary: "A quota names GPUs as requests.RESOURCE.",
    why: "Kubernetes counts extended resources under requests. alone. A quota on limits.nvidia.com/gpu \
          or on nvidia.com/gpu is stored and never enforced.",
    remedy: "Write requests.nvidia.com/gpu.",
    safe_fix: Some(
        "The line goes where the quota has the right one as well: it was never counted.",
    ),
};

pub(crate) static EXCEEDED: Rule = Rule {
    code: "BERTH-506",
    name: "quota-too-small",
    topic: Topic::Tenancy,
    severity: Severity::Warning,
    summary: "A workload fits into the quotas of its namespace.",
    why: "Pods beyond the quota are refused one by one; the workload runs with fewer replicas than it \
          says, or not at all, and a rollout never finishes.",
    remedy: "Ask for less, or have the quota raised.",
    safe_fix: None,
};

pub(crate) fn check(quota: &core::ResourceQuota, scope: &mut Scope<'_>) {
    let Some(hard) = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()) else { return };
    let field = |key: &str| FieldPath::root().key("spec").key("hard").key(key);
    for resource in ["cpu", "memory"] {
        // A bare name means requests.
        let written = [format!("requests.{resource}"), resource.to_owned()];
        let Some(key) = written.iter().find(|key| hard.contains_key(*key)) else { continue };
        if !hard.contains_key(&format!("limits.{resource}")) {
            let message = format!("{key} is bounded, but limits.{resource} is not");
            scope.add(Breach::new(&REQUESTS_ONLY, field(key), message));
        }
    }
    for key in hard.keys() {
        let named = key.strip_prefix("limits.").unwrap_or(key);
        if !scope.settings.is_gpu(named) {
            continue;
        }
        let right = format!("requests.{named}");
        let breach = Breach::new(&NOT_COUNTED, field(key), format!("{key} is never counted"))
            .remedy(format!("Write {right}."));
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
        // One that counts some pods only may not mean this one.
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
            // Many more copies than could fit change nothing.
            let together = (0..copies.min(10_000)).try_fold(Quantity::default(), |sum, _| {
                (sum <= most).then(|| sum.saturating_add(*each))
            });
            if together.is_some_and(|together| together <= most) {
                continue;
            }
            let message = if *each > most {
                format!(
                    "one pod asks for {each} of {resource}, but quota {name} allows {most} in all"
                )
            } else {
                format!("{copies} pods of {each} {resource} each exceed the {most} of quota {name}")
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
