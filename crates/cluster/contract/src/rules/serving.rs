//! Rules on serving on GPUs: spread, replicas and GPU sharing.

use berth_api::workload::WorkloadKind;
use berth_model::spec::PodSpec;
use serde_json::json;

use super::{Breach, Scope};
use crate::context::{Context, label_of, labels_of};
use crate::finding::Fix;
use crate::pool::NodeGroup;
use crate::rule::{Rule, Severity, Topic};
use crate::sharing::Method;
use crate::view::{GpuAsk, PodView};

pub(crate) static NO_SPREAD: Rule = Rule {
    code: "BERTH-301",
    name: "no-spread",
    topic: Topic::Serving,
    severity: Severity::Warning,
    summary: "Serving replicas on GPUs are spread over zones or nodes.",
    why: "GPU nodes have eight GPUs or more, and a scheduler that packs well places all replicas of a \
          small service on one. When that node or its zone fails, the service is down for minutes of \
          provisioning and model loading.",
    remedy: "Add topologySpreadConstraints over topology.kubernetes.io/zone, or pod anti-affinity.",
    safe_fix: Some(
        "Adds a constraint over zones with whenUnsatisfiable: ScheduleAnyway, which keeps no pod \
         pending.",
    ),
};

pub(crate) static SHARED_GPU: Rule = Rule {
    code: "BERTH-302",
    name: "shared-gpu-serving",
    topic: Topic::Serving,
    severity: Severity::Warning,
    summary: "Serving does not use time-sliced GPUs, or MPS without a limit.",
    why: "Without a limit, other pods on the GPU determine the latency. Measured on an H200 with \
          BERT-large: p99 2.4 ms alone, 4.5 and 6.8 ms time-sliced with one and two busy pods, 51 ms \
          under MPS without a limit, 3.8 ms under MPS with a limit of 50 % each. Time-slicing and MPS \
          without a limit do not protect memory either.",
    remedy: "Use a MIG slice, or MPS with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE below 100 for all pods. \
             NVIDIA's device plugin sets it when it shares GPUs by MPS.",
    safe_fix: None,
};

pub(crate) static SINGLE_REPLICA: Rule = Rule {
    code: "BERTH-304",
    name: "single-replica",
    topic: Topic::Serving,
    severity: Severity::Info,
    summary: "Services on GPUs have more than one replica.",
    why: "With one replica, every drain, repartition, node upgrade and preemption is an outage that \
          lasts for provisioning, image pull and model loading.",
    remedy: "Run two replicas on smaller slices instead of one on a whole GPU, or ignore the rule with \
             berth.dev/lint-ignore and a reason.",
    safe_fix: None,
};

const SHARING_LABEL: &str = "nvidia.com/gpu.sharing-strategy";
const PRODUCT_LABEL: &str = "nvidia.com/gpu.product";
const CAP: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const MPS_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";

pub(crate) fn check(view: &PodView<'_>, scope: &mut Scope<'_>) {
    if !view.serves_on_gpus() {
        return;
    }
    let Ok(spec) = &view.lowered else { return };
    check_spread(view, spec, scope);
    check_single(view, scope);
    for ask in &view.gpus {
        if let Some(message) = unlimited(view, spec, ask, scope.context) {
            let list =
                if ask.container.limit(ask.resource).is_some() { "limits" } else { "requests" };
            let field = ask.container.field(list, ask.resource);
            scope.add(Breach::new(&SHARED_GPU, field, message));
        }
    }
}

fn check_spread(view: &PodView<'_>, spec: &PodSpec, scope: &mut Scope<'_>) {
    let Some((_, selector)) = &view.template.selector else { return };
    let apart = &spec.pod_affinity;
    let several = view.copies().is_some_and(|copies| copies > 1);
    let spread = !spec.spread.is_empty()
        || !apart.anti_required.is_empty()
        || !apart.anti_preferred.is_empty();
    if !several || spread {
        return;
    }
    let field = view.spec_field("topologySpreadConstraints");
    let copies = view.copies().unwrap_or(0);
    let message = format!("{copies} replicas without spread constraints or anti-affinity");
    let mut breach = Breach::new(&NO_SPREAD, field.clone(), message);
    if let Some(labels) = selector.match_labels.as_ref().filter(|labels| !labels.is_empty()) {
        let value = json!({
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": labels },
        });
        breach = breach.fix([Fix::Append { path: field, value }]);
    }
    scope.add(breach);
}

fn check_single(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let kind = view.workload.kind;
    let scalable = matches!(kind, WorkloadKind::Deployment | WorkloadKind::StatefulSet);
    if !scalable
        || view.copies() != Some(1)
        || scope.context.is_scaled(view.namespace, view.workload)
    {
        return;
    }
    let labels = labels_of(&view.template.metadata);
    let services = Context::in_namespace(&scope.context.services, view.namespace);
    let served = services.iter().any(|one| !one.is_empty() && one.matches(&labels));
    let has_class = label_of(&view.template.metadata, berth_api::keys::CLASS).is_some();
    if served || has_class {
        let field = berth_api::FieldPath::parse("spec.replicas");
        scope.add(Breach::new(
            &SINGLE_REPLICA,
            field,
            "one replica: every disruption is an outage",
        ));
    }
}

/// How the requested GPU is shared without a limit, if it is.
fn unlimited(
    view: &PodView<'_>,
    spec: &PodSpec,
    ask: &GpuAsk<'_>,
    context: &Context,
) -> Option<String> {
    let cap = ask.container.env(CAP).map(|(_, value)| value.parse::<f64>().unwrap_or(100.0));
    let capped = cap.is_some_and(|percent| percent < 100.0);
    if runs_own_mps(view, ask) {
        return (!capped).then(|| format!("uses MPS without {CAP} below 100"));
    }
    match method(spec, ask, context)? {
        Some(Method::TimeSlicing) => {
            Some(format!("{} is time-sliced: pods take turns", ask.resource))
        }
        Some(Method::Mps) => cap
            .filter(|percent| *percent >= 100.0)
            .map(|_| format!("{CAP} removes the limit that MPS sets for each share")),
        None if capped => None,
        None => Some(format!("{} is a share of a GPU without a known limit", ask.resource)),
    }
}

/// Whether the pod uses an MPS daemon other than the device plugin's. Such a daemon sets no limits.
fn runs_own_mps(view: &PodView<'_>, ask: &GpuAsk<'_>) -> bool {
    let volumes = view.template.spec.volumes.iter().flatten();
    let mounted = volumes
        .filter_map(|volume| volume.host_path.as_ref())
        .any(|host| host.path.contains("nvidia-mps"));
    mounted || ask.container.env(MPS_DIRECTORY).is_some()
}

/// `None` if the resource is not known to be shared; `Some(None)` if it is shared by an unknown method.
fn method(spec: &PodSpec, ask: &GpuAsk<'_>, context: &Context) -> Option<Option<Method>> {
    let wanted = |key: &str| spec.node_selector.get(key).map(AsRef::as_ref);
    match wanted(SHARING_LABEL) {
        Some("time-slicing") => return Some(Some(Method::TimeSlicing)),
        Some("mps") => return Some(Some(Method::Mps)),
        Some("none") => return None,
        _ => {}
    }
    let has = |pool: &&NodeGroup| pool.node.allocatable.contains_key(ask.resource);
    let places = context.pools.iter().filter(|pool| pool.is_selected(spec)).filter(has);
    let labels: Vec<Option<&str>> =
        places.map(|pool| pool.node.labels.get(SHARING_LABEL).map(AsRef::as_ref)).collect();
    if !labels.is_empty() {
        // A scheduler may choose the node where it is not shared.
        let all = |method: &str| labels.iter().all(|label| *label == Some(method));
        return match () {
            () if all("time-slicing") => Some(Some(Method::TimeSlicing)),
            () if all("mps") => Some(Some(Method::Mps)),
            () => None,
        };
    }
    let shared = context.sharing.iter().filter(|one| one.replicas > 1);
    let offers: Vec<_> = shared.filter(|one| one.offered_as == ask.resource).collect();
    if let Some(first) = offers.first() {
        // Which nodes use which configuration is unknown, but a name that only shares have means the same
        // on all of them.
        let certain = offers.iter().all(|one| one.everywhere || one.renamed);
        let agreed = offers.iter().all(|one| one.method == first.method);
        if certain && agreed {
            return Some(Some(first.method));
        }
    }
    let by_name = ask.resource.ends_with(".shared")
        || wanted(PRODUCT_LABEL).is_some_and(|product| product.ends_with("-SHARED"));
    by_name.then_some(None)
}
