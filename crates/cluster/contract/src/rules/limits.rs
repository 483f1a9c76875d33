//! The rule on LimitRanges, as the admission plugin LimitRanger applies them.

use berth_api::FieldPath;
use berth_model::pod::PodLevelResources;
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceList;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::{Breach, Scope};
use crate::context::Context;
use crate::rule::{Rule, Severity, Topic};
use crate::view::PodView;

pub(crate) static OUTSIDE_RANGE: Rule = Rule {
    code: "BERTH-505",
    name: "outside-limit-range",
    topic: Topic::Tenancy,
    severity: Severity::Error,
    summary: "Pods are within the LimitRanges of their namespace.",
    why: "The API server rejects other pods. A Deployment or Job is stored all the same, but its pods \
          are never created.",
    remedy: "Request an amount within the range, or change the range.",
    safe_fix: None,
};

pub(crate) fn check(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let Ok(spec) = &view.lowered else { return };
    let mut found = Vec::new();
    for range in Context::in_namespace(&scope.context.limit_ranges, view.namespace) {
        let name = range.metadata.name.as_deref().unwrap_or("?");
        for item in range.spec.iter().flat_map(|spec| &spec.limits) {
            match item.type_.as_str() {
                "Container" => {
                    for (counted, written) in spec.pod.containers.iter().zip(&view.containers) {
                        let (requests, limits) =
                            (&counted.resources.requests, &counted.resources.limits);
                        let field = |resource: &str| {
                            let limit = written.limit(resource).is_some();
                            written.field(if limit { "limits" } else { "requests" }, resource)
                        };
                        found.extend(outside(item, name, requests, limits, field));
                    }
                }
                "Pod" => {
                    let requests = spec.pod.total_requests(PodLevelResources::Honoured);
                    let limits = spec.pod.total_limits(PodLevelResources::Honoured);
                    let field = |_: &str| view.spec_field("containers");
                    found.extend(outside(item, name, &requests, &limits, field));
                }
                _ => {}
            }
        }
    }
    scope.found.extend(found);
}

/// Defaults have been filled in, so a missing amount is not reported.
fn outside(
    item: &core::LimitRangeItem,
    range: &str,
    requests: &ResourceList,
    limits: &ResourceList,
    field: impl Fn(&str) -> FieldPath,
) -> Vec<Breach> {
    let mut found = Vec::new();
    let of = item.type_.to_lowercase();
    for (resource, Text(text)) in item.max.iter().flatten() {
        let Ok(most) = Quantity::parse(text) else { continue };
        let asked = limits.get(resource.as_str()).max(requests.get(resource.as_str()));
        if let Some(asked) = asked.filter(|asked| **asked > most) {
            let message = format!(
                "{asked} of {resource} exceeds the maximum of {most} per {of} in LimitRange {range}"
            );
            found.push(Breach::new(&OUTSIDE_RANGE, field(resource), message));
        }
    }
    for (resource, Text(text)) in item.min.iter().flatten() {
        let Ok(least) = Quantity::parse(text) else { continue };
        let asked = requests.get(resource.as_str());
        if let Some(asked) = asked.filter(|asked| **asked < least) {
            let message = format!(
                "{asked} of {resource} is below the minimum of {least} per {of} in LimitRange {range}"
            );
            found.push(Breach::new(&OUTSIDE_RANGE, field(resource), message));
        }
    }
    found
}
