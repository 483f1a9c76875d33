//! Serving on GPUs: spread, copies, and GPUs that are shared without bounds.
//!
//! Owns the rules on replicas and on sharing. Must not know probes and budgets.

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
    summary: "Replicas that serve on GPUs are spread over zones or nodes.",
    why: "GPU nodes hold eight GPUs and more, and whoever packs them well puts all replicas of a small \
          service onto one. That node, or its zone, then takes the whole service down, and it comes \
          back only after minutes of provisioning and loading.",
    remedy: "Add topologySpreadConstraints over topology.kubernetes.io/zone, or pod anti-affinity.",
    safe_fix: Some(
        "A constraint over zones with whenUnsatisfiable: ScheduleAnyway is added. It is a wish: no pod \
         waits because of it.",
    ),
};

pub(crate) static SHARED_GPU: Rule = Rule {
    code: "BERTH-302",
    name: "shared-gpu-serving",
    topic: Topic::Serving,
    severity: Severity::Warning,
    summary: "Serving does not run on time-sliced GPUs, nor under MPS without a cap.",
    why: "Sharing without bounds has no bound on latency either. Measured on an H200 with BERT-large: \
          p99 2.4 ms alone, 4.5 and 6.8 ms time-sliced with one and two busy neighbours, 51 ms under \
          MPS without a cap, 3.8 ms under MPS with a cap of 50 % for both. Neither protects memory \
          from a neighbour's allocations.",
    remedy: "Use a MIG slice, or MPS with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE below 100 for everybody; \
             NVIDIA's device plugin sets that by itself when it shares by MPS.",
    safe_fix: None,
};

pub(crate) static SINGLE_REPLICA: Rule = Rule {
    code: "BERTH-304",
    name: "single-replica",
    topic: Topic::Serving,
    severity: Severity::Info,
    summary: "A service on GPUs has more than one replica.",
    why: "Every drain, repartition, node upgrade and preemption is an outage of the service, as long as \
          provisioning, pulling and model loading take together.",
    remedy: "Run two replicas on smaller slices rather than one on a whole GPU, or say that an outage is \
             acceptable.",
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
        if let Some(message) = unbounded(view, spec, ask, scope.context) {
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
    let message = format!("nothing keeps the {copies} replicas apart");
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
    let said = label_of(&view.template.metadata, berth_api::keys::CLASS).is_some();
    if served || said {
        let field = berth_api::FieldPath::parse("spec.replicas");
        scope.add(Breach::new(&SINGLE_REPLICA, field, "is one: every disruption is an outage"));
    }
}

/// How the GPU that is asked for is shared without bounds, if it is.
fn unbounded(
    view: &PodView<'_>,
    spec: &PodSpec,
    ask: &GpuAsk<'_>,
    context: &Context,
) -> Option<String> {
    let cap = ask.container.env(CAP).map(|(_, value)| value.parse::<f64>().unwrap_or(100.0));
    let capped = cap.is_some_and(|percent| percent < 100.0);
    if runs_own_mps(view, ask) {
        return (!capped).then(|| format!("uses MPS, and {CAP} sets no cap below 100"));
    }
    match method(spec, ask, context)? {
        Some(Method::TimeSlicing) => {
            Some(format!("{} is time-sliced here: neighbours take turns with it", ask.resource))
        }
        Some(Method::Mps) => cap
            .filter(|percent| *percent >= 100.0)
            .map(|_| format!("{CAP} lifts the cap that MPS gives to every share")),
        None if capped => None,
        None => Some(format!(
            "{} is a share of a GPU, and nothing says that it is capped",
            ask.resource
        )),
    }
}

/// A daemon for MPS that is not the device plugin's, which caps nobody by itself.
fn runs_own_mps(view: &PodView<'_>, ask: &GpuAsk<'_>) -> bool {
    let volumes = view.template.spec.volumes.iter().flatten();
    let mounted = volumes
        .filter_map(|volume| volume.host_path.as_ref())
        .any(|host| host.path.contains("nvidia-mps"));
    mounted || ask.container.env(MPS_DIRECTORY).is_some()
}

/// How the resource is shared: `None` if it is not, as far as known; inside, `None` if that it is
/// shared is all that is known.
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
        // One place without neighbours is enough for a scheduler that knows which to take.
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
        // Of several configurations it is not known which nodes pick which, but a name that only
        // shares have means the same on all of them.
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
