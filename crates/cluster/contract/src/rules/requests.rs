//! How GPUs are asked for.
//!
//! Owns the rules on the numbers of devices. Must not know where devices are.

use std::collections::BTreeMap;

use berth_model::quantity::Quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde_json::json;

use super::{Breach, Scope};
use crate::finding::Fix;
use crate::rule::{Rule, Severity, Topic};
use crate::view::{ContainerView, PodView};

pub(crate) static GPU_REQUEST_LIMIT: Rule = Rule {
    code: "BERTH-101",
    name: "gpu-request-limit",
    topic: Topic::Requests,
    severity: Severity::Error,
    summary: "A container that requests GPUs has a limit of as many.",
    why: "GPUs cannot be overcommitted: Kubernetes refuses a pod whose GPU request differs from its \
          limit, or that has a request and no limit. Behind a Deployment or a Job nobody sees the \
          refusal, because the object itself is stored and only its pods never appear.",
    remedy: "Write the number of GPUs under limits; requests may be left out.",
    safe_fix: Some(
        "A missing limit becomes what is requested, the only number that Kubernetes accepts there.",
    ),
};

pub(crate) static GPU_FRACTION: Rule = Rule {
    code: "BERTH-102",
    name: "gpu-fraction",
    topic: Topic::Requests,
    severity: Severity::Error,
    summary: "GPUs are requested in whole numbers.",
    why: "Extended resources are counted in whole units, so the API server refuses half a GPU. A part \
          of a GPU is a resource of its own (a MIG slice), or a need that Berth meets with the \
          smallest slice or share that will do.",
    remedy: "Ask for a MIG slice such as nvidia.com/mig-1g.10gb: 1, or say what is needed with the \
             annotations berth.dev/gpu-memory and berth.dev/gpu-compute.",
    safe_fix: None,
};

pub(crate) static GPU_MIXED: Rule = Rule {
    code: "BERTH-105",
    name: "gpu-mixed",
    topic: Topic::Requests,
    severity: Severity::Warning,
    summary: "A container asks for whole GPUs or for MIG slices of one profile, not for both.",
    why: "A CUDA process works on whole GPUs or on a single MIG slice. What else the container was \
          given is paid for, held back from others, and never used.",
    remedy: "Keep one kind of GPU resource per container.",
    safe_fix: None,
};

pub(crate) fn check(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let mut kinds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for ask in &view.gpus {
        check_amounts(&ask.container, ask.resource, scope);
        kinds.entry(&ask.container.spec.name).or_default().push(ask.resource);
    }
    for container in &view.containers {
        let Some(asked) = kinds.get(container.spec.name.as_str()) else { continue };
        let slices: Vec<&&str> = asked.iter().filter(|name| name.contains("/mig-")).collect();
        if let (Some(slice), true) = (slices.first(), asked.len() > 1) {
            let message = format!("asks for {} at once", asked.join(" and "));
            let list = if container.limit(slice).is_some() { "limits" } else { "requests" };
            let field = container.field(list, slice);
            scope.add(Breach::new(&GPU_MIXED, field, message));
        }
    }
}

fn check_amounts(container: &ContainerView<'_>, resource: &str, scope: &mut Scope<'_>) {
    let (request, limit) = (container.request(resource), container.limit(resource));
    let number = |text: &Text| Quantity::parse(&text.0).ok();
    for (list, text) in [("limits", limit), ("requests", request)] {
        let Some(quantity) = text.and_then(number) else { continue };
        if quantity.as_i64().is_none() {
            let message = format!("{quantity} is no whole number of devices");
            scope.add(Breach::new(&GPU_FRACTION, container.field(list, resource), message));
            return;
        }
    }
    match (request, limit) {
        (Some(request), None) => {
            let field = container.field("limits", resource);
            let message = format!("{} of {resource} requested, but there is no limit", request.0);
            // As people write it: a number without quotes.
            let value = request.0.parse::<i64>().map_or_else(|_| json!(request.0), |n| json!(n));
            let fix = Fix::Set { path: field.clone(), value };
            scope.add(Breach::new(&GPU_REQUEST_LIMIT, field, message).fix([fix]));
        }
        (Some(request), Some(limit)) if number(request) != number(limit) => {
            let field = container.field("requests", resource);
            let message = format!("{} requested, but the limit is {}", request.0, limit.0);
            let breach = Breach::new(&GPU_REQUEST_LIMIT, field, message);
            scope.add(breach.remedy("Write the same number in both places, or only the limit."));
        }
        _ => {}
    }
}
