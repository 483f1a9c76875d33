//! Rules on whether a pod fits on an empty node, on its NUMA nodes and in its GPUs' memory.
//!
//! They are silent unless all nodes that the pod may use are known.

use berth_model::mig::{Attribute, Board, Need, ProfileName};
use berth_model::pod::PodLevelResources;
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::ResourceList;
use berth_model::spec::PodSpec;

use super::{Breach, Scope};
use crate::pool::NodeGroup;
use crate::rule::{Rule, Severity, Topic};
use crate::view::PodView;

pub(crate) static GPU_MEMORY_TOO_SMALL: Rule = Rule {
    code: "BERTH-109",
    name: "gpu-memory-too-small",
    topic: Topic::Requests,
    severity: Severity::Error,
    summary: "GPUs and slices have the memory that the pod's berth.dev/gpu-memory needs.",
    why: "A model that does not fit fails with an out-of-memory error after minutes of loading, at \
          every restart. A pod that needs more than any GPU has stays pending.",
    remedy: "Request a larger slice or a GPU with more memory, or correct berth.dev/gpu-memory.",
    safe_fix: None,
};

pub(crate) static GPU_LARGER_THAN_NEED: Rule = Rule {
    code: "BERTH-110",
    name: "gpu-larger-than-need",
    topic: Topic::Requests,
    severity: Severity::Info,
    summary: "Pods that need less than half of a GPU's memory do not request a whole GPU.",
    why: "Small models on whole GPUs are the largest waste in serving clusters. A MIG slice has its \
          own memory and compute, so other pods on the GPU do not affect its latency.",
    remedy: "Remove the GPU from the limits, so that Berth chooses by berth.dev/gpu-memory, or request a \
             slice.",
    safe_fix: None,
};

pub(crate) static NO_NUMA_NODE: Rule = Rule {
    code: "BERTH-205",
    name: "no-numa-node",
    topic: Topic::Placement,
    severity: Severity::Error,
    summary: "Pods fit on the NUMA nodes of an empty node, as its kubelet's policy requires.",
    why: "A kubelet with a strict topology policy rejects a pod whose CPUs, memory and GPUs do not \
          fit on one NUMA node, after the scheduler has bound it. Its controller creates another, which \
          is rejected as well: hundreds of failed pods (TopologyAffinityError), none running.",
    remedy: "Request no more CPUs, memory and GPUs than one NUMA node has, or select nodes with a less \
             strict topology manager policy.",
    safe_fix: None,
};

pub(crate) static TOO_LARGE: Rule = Rule {
    code: "BERTH-210",
    name: "too-large",
    topic: Topic::Placement,
    severity: Severity::Error,
    summary: "Pods fit on an empty node.",
    why: "Such a pod stays pending, and an autoscaler either ignores it or adds nodes that do not \
          help.",
    remedy: "Request less, split the work into several pods, or select larger nodes.",
    safe_fix: None,
};

const GPU_MEMORY_LABEL: &str = "nvidia.com/gpu.memory";
const GPU_PRODUCT_LABEL: &str = "nvidia.com/gpu.product";
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

pub(crate) fn check(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let Ok(spec) = &view.lowered else { return };
    if !view.uses_gpus() {
        return;
    }
    let open = scope.context.pools.iter();
    let open = open.filter(|pool| pool.is_selected(spec) && pool.refusal(spec).is_none());
    let places: Vec<&NodeGroup> = open.collect();
    let all_known = !places.is_empty() && places.iter().all(|pool| !pool.grows);
    check_memory(view, spec, if all_known { &places } else { &[] }, scope);
    if !all_known {
        return;
    }
    let asked = spec.pod.total_requests(PodLevelResources::Honoured);
    let roomy: Vec<&NodeGroup> = places.iter().copied().filter(|pool| fits(pool, &asked)).collect();
    if roomy.is_empty() {
        let field = view.gpus.first().map_or_else(
            || view.spec_field("containers"),
            |ask| ask.container.path.clone().key("resources"),
        );
        scope.add(Breach::new(&TOO_LARGE, field, shortage(&places, &asked)));
        return;
    }
    check_numa(view, spec, &roomy, scope);
}

fn amount(list: &ResourceList, name: &str) -> Quantity {
    list.get(name).copied().unwrap_or_default()
}

fn fits(pool: &NodeGroup, asked: &ResourceList) -> bool {
    let room = &pool.node.allocatable;
    // A Node in a manifest may lack its CPUs and memory.
    let counted = |name: &str| room.contains_key(name) || name.contains('/');
    asked
        .iter()
        .filter(|(name, _)| counted(name.as_str()))
        .all(|(name, quantity)| *quantity <= amount(room, name.as_str()))
}

fn shortage(places: &[&NodeGroup], asked: &ResourceList) -> String {
    for (name, quantity) in asked {
        let most = places.iter().map(|pool| amount(&pool.node.allocatable, name.as_str())).max();
        if let Some(most) = most.filter(|most| most < quantity) {
            return format!(
                "requests {quantity} of {name}, but the largest matching node has {most}"
            );
        }
    }
    "no matching node has all requested resources at once".to_owned()
}

fn check_numa(view: &PodView<'_>, spec: &PodSpec, places: &[&NodeGroup], scope: &mut Scope<'_>) {
    let mut refused = Vec::new();
    for pool in places {
        let Some(kubelet) = pool.kubelet.as_ref().map(|known| &*known.kubelet) else { return };
        let Ok(demand) = kubelet.demand(&spec.pod) else { return };
        if kubelet.would_admit(&demand).admits() {
            return;
        }
        refused.push(kubelet);
    }
    let Some(kubelet) = refused.first() else { return };
    let Ok(demand) = kubelet.demand(&spec.pod) else { return };
    let total = demand.total();
    let mut asked = vec![format!("{} CPUs", total.cpus)];
    asked.extend(total.devices().iter().map(|(name, count)| format!("{count} {name}")));
    let who = match places {
        [pool] if pool.count() == 1 => format!("the kubelet of {} would reject", pool.name),
        _ => {
            let nodes: usize = places.iter().map(|pool| pool.count()).sum();
            format!("the kubelets of all {nodes} matching nodes would reject")
        }
    };
    let message = format!(
        "{who} {} (policy {}, {} NUMA nodes)",
        asked.join(" with "),
        kubelet.config().topology_policy,
        kubelet.machine().numa().len(),
    );
    let field = match view.gpus.first() {
        Some(ask) => ask.container.path.clone().key("resources"),
        None => view.spec_field("containers"),
    };
    scope.add(Breach::new(&NO_NUMA_NODE, field, message));
}

fn check_memory(view: &PodView<'_>, spec: &PodSpec, places: &[&NodeGroup], scope: &mut Scope<'_>) {
    let Some(need_bytes) = spec.gpu.as_ref().map(|need| need.memory_bytes).filter(|need| *need > 0)
    else {
        return;
    };
    let field = view.annotation_field(berth_api::keys::GPU_MEMORY);
    let need = bytes(need_bytes);
    for ask in &view.gpus {
        let Ok(profile) = ProfileName::from_resource(ask.resource) else { continue };
        // An upper bound, because the driver reserves some.
        let most_bytes = u64::from(profile.gb) * GIB;
        if need_bytes > most_bytes {
            let message =
                format!("{need} does not fit into {} ({})", ask.resource, bytes(most_bytes));
            scope.add(Breach::new(&GPU_MEMORY_TOO_SMALL, field, message));
            return;
        }
    }
    let label = |pool: &NodeGroup| pool.node.labels.get(GPU_MEMORY_LABEL)?.parse::<u64>().ok();
    let of_gpus: Option<Vec<u64>> = places.iter().map(|pool| label(pool)).collect();
    let Some((least, most)) =
        of_gpus.and_then(|all| Some((*all.iter().min()?, *all.iter().max()?)))
    else {
        return;
    };
    if need_bytes > most.saturating_mul(MIB) {
        let message = format!(
            "{need} exceeds the memory of every GPU of the matching nodes ({})",
            bytes(most.saturating_mul(MIB)),
        );
        scope.add(Breach::new(&GPU_MEMORY_TOO_SMALL, field, message));
        return;
    }
    let whole = view.gpus.iter().any(|ask| ask.resource == berth_model::gpu::WHOLE_GPU);
    if whole && view.gpus_max() == 1 && need_bytes.saturating_mul(2) <= least.saturating_mul(MIB) {
        check_waste(need_bytes, places, view, scope);
    }
}

fn check_waste(need_bytes: u64, places: &[&NodeGroup], view: &PodView<'_>, scope: &mut Scope<'_>) {
    let slice = |pool: &&NodeGroup| {
        let label = |key: &str| pool.node.labels.get(key);
        let memory_mib = label(GPU_MEMORY_LABEL)?.parse().ok();
        let board = Board::by_product(label(GPU_PRODUCT_LABEL)?, memory_mib).ok()?;
        let need = Need {
            memory_bytes: need_bytes,
            compute_per_mille: 0,
            attribute: Some(Attribute::Plain),
        };
        board.smallest(&need)
    };
    let Some(slices) = places.iter().map(slice).collect::<Option<Vec<_>>>() else { return };
    let Some(first) = slices.first() else { return };
    let field = view.annotation_field(berth_api::keys::GPU_MEMORY);
    let message = format!(
        "requests a whole GPU, but {} is enough for {}",
        first.name().resource(),
        bytes(need_bytes),
    );
    scope.add(Breach::new(&GPU_LARGER_THAN_NEED, field, message));
}

fn bytes(bytes: u64) -> Quantity {
    Quantity::from_units(i64::try_from(bytes).unwrap_or(i64::MAX), Format::BinarySi)
}
