//! Rules on taints of GPU nodes and their tolerations.

use berth_model::spec::PodSpec;
use berth_model::taint::Taint;
use k8s_openapi::api::core::v1 as core;
use serde_json::json;

use super::{Breach, Scope};
use crate::finding::Fix;
use crate::pool::NodeGroup;
use crate::rule::{Rule, Severity, Topic};
use crate::settings::Settings;
use crate::view::{PodView, Work};

pub(crate) static NO_TOLERATION: Rule = Rule {
    code: "BERTH-201",
    name: "no-toleration",
    topic: Topic::Placement,
    severity: Severity::Warning,
    summary: "Pods that request GPUs tolerate the taint of GPU nodes.",
    why: "GPU nodes are tainted to keep other pods off. A pod that requests a GPU and does not tolerate \
          the taint stays pending, unless the cluster adds tolerations (the admission plugin \
          ExtendedResourceToleration, as on GKE).",
    remedy: "Add a toleration for the taint of the GPU nodes.",
    safe_fix: Some("Adds the toleration."),
};

pub(crate) static IDLE_TOLERATION: Rule = Rule {
    code: "BERTH-202",
    name: "idle-toleration",
    topic: Topic::Placement,
    severity: Severity::Warning,
    summary: "Pods that tolerate the taint of GPU nodes request a GPU.",
    why: "Such a pod may take CPUs and memory of a node that costs ten times as much, and strand its \
          GPUs. If it uses a GPU without a request, the GPU is not accounted for.",
    remedy: "Remove the toleration, or request the GPU that the pod uses.",
    safe_fix: None,
};

pub(crate) static SYSTEM_ON_GPU_NODES: Rule = Rule {
    code: "BERTH-203",
    name: "system-on-gpu-nodes",
    topic: Topic::Placement,
    severity: Severity::Warning,
    summary: "DaemonSets not needed on GPU nodes do not run there.",
    why: "Every agent takes CPUs and memory from the GPUs' sockets, on each of the most expensive \
          nodes.",
    remedy: "Remove the toleration. If GPU nodes need the agent, ignore the rule with \
             berth.dev/lint-ignore and a reason.",
    safe_fix: None,
};

/// Parts of the names of images, volumes and workloads of GPU agents.
const GPU_AGENTS: [&str; 11] = [
    "nvidia",
    "dcgm",
    "gpu",
    "device-plugin",
    "mig-",
    "rdma",
    "mellanox",
    "amd-smi",
    "rocm",
    "efa",
    "pod-resources",
];

/// Parts of keys and values of GPU taints.
const GPU_WORDS: [&str; 4] = ["gpu", "accelerator", "nvidia.com", "amd.com"];

pub(crate) fn check(view: &PodView<'_>, scope: &mut Scope<'_>) {
    // Tolerations do not matter for a bound pod.
    if view.template.spec.node_name.is_some() {
        return;
    }
    let tolerations = view.template.spec.tolerations.iter().flatten().enumerate();
    if view.uses_gpus() {
        check_missing(view, scope);
        return;
    }
    let critical = view.template.spec.priority_class_name.as_deref();
    let is_critical = critical.is_some_and(|name| name.starts_with("system-"));
    if view.claims_devices() || is_critical {
        return;
    }
    let Some((index, toleration)) =
        tolerations.into_iter().find(|(_, one)| means_gpus(one, scope.settings))
    else {
        return;
    };
    let field = view.spec_field("tolerations").at(index);
    let key = toleration.key.as_deref().unwrap_or_default();
    if view.work != Work::System {
        let message = format!("tolerates {key}, but requests no GPU");
        scope.add(Breach::new(&IDLE_TOLERATION, field, message));
    } else if !is_gpu_agent(view) {
        let message = format!("runs on all nodes with the taint {key}, but requests no GPU");
        scope.add(Breach::new(&SYSTEM_ON_GPU_NODES, field, message));
    }
}

fn means_gpus(toleration: &core::Toleration, settings: &Settings) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    settings.gpu_taints.iter().any(|taint| taint == key)
        || GPU_WORDS.iter().any(|word| key.contains(word) || value.contains(word))
}

fn check_missing(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let Ok(spec) = &view.lowered else { return };
    let has_them = |name: &str| scope.settings.is_gpu(name);
    let offering = scope.context.pools.iter().filter(|pool| {
        let gpus = pool
            .node
            .allocatable
            .iter()
            .any(|(name, amount)| has_them(name.as_str()) && amount.sign() > 0);
        (pool.grows || gpus) && pool.is_selected(spec)
    });
    let refusals: Vec<Option<(&NodeGroup, &Taint)>> =
        offering.map(|pool| Some((pool, pool.refusal(spec)?))).collect();
    let (key, effect, message) = match refusals.iter().copied().collect::<Option<Vec<_>>>() {
        // Its nodes are unknown: the usual taint is expected.
        Some(all) if all.is_empty() => {
            let tolerations = view.template.spec.tolerations.iter().flatten();
            let everything = |one: &core::Toleration| one.key.as_deref().unwrap_or("").is_empty();
            let mut answers =
                tolerations.filter(|one| everything(one) || means_gpus(one, scope.settings));
            let Some(key) = scope.settings.gpu_taints.first() else { return };
            if answers.next().is_some() || is_on_gke(spec) {
                return;
            }
            (key.clone(), "NoSchedule", format!("requests GPUs, but does not tolerate {key}"))
        }
        Some(all) => {
            let Some((pool, taint)) = all.first() else { return };
            let key = &taint.key;
            let (name, count) = (&pool.name, all.iter().map(|(pool, _)| pool.count()).sum());
            let message = match count {
                1_usize => format!("requests GPUs, but does not tolerate {key} of {name}"),
                count => format!(
                    "requests GPUs, but does not tolerate the taints of the {count} nodes and pools \
                     that it selects, such as {key} of {name}"
                ),
            };
            let hard = matches!(taint.effect, berth_model::taint::Effect::NoExecute);
            (key.to_string(), if hard { "NoExecute" } else { "NoSchedule" }, message)
        }
        None => return,
    };
    let field = view.spec_field("tolerations");
    let value = json!({ "key": key, "operator": "Exists", "effect": effect });
    let fix = Fix::Append { path: field.clone(), value };
    let remedy = format!("Add a toleration: {{key: {key}, operator: Exists, effect: {effect}}}.");
    scope.add(Breach::new(&NO_TOLERATION, field, message).remedy(remedy).fix([fix]));
}

/// GKE adds the toleration to every pod that requests GPUs.
fn is_on_gke(spec: &PodSpec) -> bool {
    let selected = spec.node_selector.iter().map(|(key, _)| key);
    let required = spec.node_affinity.required.iter().flatten();
    let terms = required.flat_map(|term| term.labels.iter().map(|one| &one.key));
    selected.chain(terms).any(|key| key.starts_with("cloud.google.com/"))
}

fn is_gpu_agent(view: &PodView<'_>) -> bool {
    let name = view.workload.metadata.name.as_deref().unwrap_or_default();
    let images = view.containers.iter().filter_map(|one| one.spec.image.as_deref());
    let volumes = view.template.spec.volumes.iter().flatten();
    let paths = volumes.filter_map(|volume| Some(volume.host_path.as_ref()?.path.as_str()));
    images
        .chain(paths)
        .chain([name])
        .any(|text| GPU_AGENTS.iter().any(|agent| text.contains(agent)))
}
