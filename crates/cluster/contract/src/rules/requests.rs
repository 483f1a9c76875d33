//! Rules on the GPU resources of containers.

use std::collections::BTreeMap;

use berth_model::mig::Board;
use berth_model::quantity::Quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde_json::json;

use super::{Breach, Scope};
use crate::finding::Fix;
use crate::pool::NodeGroup;
use crate::rule::{Rule, Severity, Topic};
use crate::view::{ContainerView, PodView};

pub(crate) static GPU_REQUEST_LIMIT: Rule = Rule {
    code: "BERTH-101",
    name: "gpu-request-limit",
    topic: Topic::Requests,
    severity: Severity::Error,
    summary: "GPU requests have an equal limit.",
    why: "GPUs cannot be overcommitted: Kubernetes rejects a pod whose GPU request differs from its \
          limit, or that has a request and no limit. A Deployment or Job is stored all the same, but \
          its pods are never created.",
    remedy: "Set the number of GPUs under limits. requests can be omitted.",
    safe_fix: Some("Adds the missing limit, equal to the request."),
};

pub(crate) static GPU_FRACTION: Rule = Rule {
    code: "BERTH-102",
    name: "gpu-fraction",
    topic: Topic::Requests,
    severity: Severity::Error,
    summary: "GPU counts are integers.",
    why: "Extended resources are integers, so the API server rejects half a GPU. A part of a GPU is a \
          MIG slice, or a need that Berth meets with the smallest slice or share that is enough.",
    remedy: "Request a MIG slice such as nvidia.com/mig-1g.10gb: 1, or set the annotations \
             berth.dev/gpu-memory and berth.dev/gpu-compute.",
    safe_fix: None,
};

pub(crate) static GPU_MIXED: Rule = Rule {
    code: "BERTH-105",
    name: "gpu-mixed",
    topic: Topic::Requests,
    severity: Severity::Warning,
    summary: "Containers request whole GPUs or MIG slices of one profile, not both.",
    why: "A CUDA process uses whole GPUs or a single MIG slice. Other devices of the container stay \
          idle.",
    remedy: "Request one kind of GPU resource per container.",
    safe_fix: None,
};

pub(crate) static UNKNOWN_PROFILE: Rule = Rule {
    code: "BERTH-111",
    name: "unknown-mig-profile",
    topic: Topic::Requests,
    severity: Severity::Warning,
    summary: "MIG resources name a profile that some GPU has.",
    why: "No device plugin offers a profile that its GPU does not have, so the pod stays pending. Profiles \
          differ between GPUs: an A100 40GB has 1g.5gb, an A100 80GB 1g.10gb.",
    remedy: "Use a profile of the cluster's GPUs; `nvidia-smi mig -lgip` lists them.",
    safe_fix: None,
};

pub(crate) fn check(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let mut kinds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for ask in &view.gpus {
        check_amounts(&ask.container, ask.resource, scope);
        check_profile(&ask.container, ask.resource, scope);
        kinds.entry(&ask.container.spec.name).or_default().push(ask.resource);
    }
    for container in &view.containers {
        let Some(asked) = kinds.get(container.spec.name.as_str()) else { continue };
        let slices: Vec<&&str> = asked.iter().filter(|name| name.contains("/mig-")).collect();
        if let (Some(slice), true) = (slices.first(), asked.len() > 1) {
            let message = format!("requests {}", asked.join(" and "));
            let list = if container.limit(slice).is_some() { "limits" } else { "requests" };
            let field = container.field(list, slice);
            scope.add(Breach::new(&GPU_MIXED, field, message));
        }
    }
}

/// Boards that are newer than this program have profiles that it does not know, so nodes are asked, too.
fn check_profile(container: &ContainerView<'_>, resource: &str, scope: &mut Scope<'_>) {
    if !resource.starts_with("nvidia.com/mig-") {
        return;
    }
    let boards = Board::all().iter();
    let offered = |pool: &NodeGroup| pool.node.allocatable.contains_key(resource);
    if boards.clone().any(|board| board.profile_by_resource(resource).is_ok())
        || scope.context.pools.iter().any(offered)
    {
        return;
    }
    let list = if container.limit(resource).is_some() { "limits" } else { "requests" };
    let message = format!("no GPU has the MIG profile of {resource}");
    scope.add(Breach::new(&UNKNOWN_PROFILE, container.field(list, resource), message));
}

fn check_amounts(container: &ContainerView<'_>, resource: &str, scope: &mut Scope<'_>) {
    let (request, limit) = (container.request(resource), container.limit(resource));
    let number = |text: &Text| Quantity::parse(&text.0).ok();
    for (list, text) in [("limits", limit), ("requests", request)] {
        let Some(quantity) = text.and_then(number) else { continue };
        if quantity.as_i64().is_none() {
            let message = format!("GPU count must be an integer (got {quantity})");
            scope.add(Breach::new(&GPU_FRACTION, container.field(list, resource), message));
            return;
        }
    }
    match (request, limit) {
        (Some(request), None) => {
            let field = container.field("limits", resource);
            let message = format!("request of {} {resource} without a limit", request.0);
            // Without quotes, as people write it.
            let value = request.0.parse::<i64>().map_or_else(|_| json!(request.0), |n| json!(n));
            let fix = Fix::Set { path: field.clone(), value };
            scope.add(Breach::new(&GPU_REQUEST_LIMIT, field, message).fix([fix]));
        }
        (Some(request), Some(limit)) if number(request) != number(limit) => {
            let field = container.field("requests", resource);
            let message = format!("request of {} differs from the limit of {}", request.0, limit.0);
            let breach = Breach::new(&GPU_REQUEST_LIMIT, field, message);
            scope.add(breach.remedy("Set the same number in both places, or only the limit."));
        }
        _ => {}
    }
}
