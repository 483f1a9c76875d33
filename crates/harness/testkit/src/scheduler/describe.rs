//! The objects of a case told in text.
//!
//! Owns the wording for people. Must not know what was recorded or decided.

use std::fmt::Write;

use berth_engine::event::Event;
use berth_model::affinity::{NodeTerm, PodTerm, SpreadConstraint};
use berth_model::label::{Labels, Operator, Requirement, Selector};
use berth_model::node::Node;
use berth_model::pod::{ContainerKind, Pod, PodLevelResources};
use berth_model::resource::ResourceList;
use berth_model::spec::{Phase, PodObject, PodSpec, PreemptionPolicy};
use berth_model::taint::{Toleration, TolerationOperator};

use super::case::full_name;

/// The node and the pods on it. Pods started at `since_ms` or later.
pub(super) fn node(node: &Node, pods: &[&PodObject], since_ms: i64) -> String {
    let mut out =
        format!("  {}{}\n", node.name, if node.unschedulable { "  cordoned" } else { "" });
    let alive: Vec<_> = pods.iter().filter(|pod| pod.phase != Phase::Finished).collect();
    let mut used = ResourceList::new();
    for (name, quantity) in alive.iter().flat_map(|pod| total(&pod.spec.pod)) {
        let sum = used.get(&name).map_or(quantity, |sum| sum.saturating_add(quantity));
        used.insert(name, sum);
    }
    let taints = node.taints.iter().map(|taint| {
        let value = if taint.value.is_empty() { "" } else { &format!("={}", taint.value) };
        format!("{}{value}:{:?}", taint.key, taint.effect)
    });
    let images = node.images.iter().map(|image| {
        let names: Vec<&str> = image.names.iter().map(AsRef::as_ref).collect();
        format!("{} ({} bytes)", names.join(" = "), image.size_bytes)
    });
    line(&mut out, "allocatable", &resources(&node.allocatable));
    line(&mut out, "used", &format!("{} by {} pods", resources(&used), alive.len()));
    line(&mut out, "labels", &labels(&node.labels));
    line(&mut out, "taints", &joined(taints, " "));
    line(&mut out, "images", &joined(images, ", "));
    for pod in pods {
        let _ = write!(out, "    {}", self::pod(pod, since_ms).replace("\n", "\n    ").trim_end());
        out.push('\n');
    }
    out
}

/// The pod: one line for what it is, and one for each of its wishes.
pub(super) fn pod(pod: &PodObject, since_ms: i64) -> String {
    let spec = &pod.spec;
    let mut out = format!("pod {}  {}", full_name(pod), resources(&total(&spec.pod)));
    let _ = write!(out, ", priority {}", spec.priority);
    if spec.preemption == PreemptionPolicy::Never {
        out += ", never preempts";
    }
    if let Some(started_at_ms) = pod.started_at_ms {
        let _ = write!(out, ", started at +{} s", (started_at_ms - since_ms) / 1000);
    }
    if let Some(nominated) = &pod.nominated {
        let _ = write!(out, ", nominated to {nominated}");
    }
    match pod.phase {
        Phase::Alive => {}
        Phase::Terminating { by_preemption: false } => out += ", terminating",
        Phase::Terminating { by_preemption: true } => out += ", terminating by preemption",
        Phase::Finished => out += ", finished",
    }
    out.push('\n');
    line(&mut out, "labels", &labels(&spec.labels));
    out += &wishes(spec);
    out
}

/// The containers one by one, where the sum alone does not tell.
pub(super) fn containers(pod: &Pod) -> String {
    let mut out = String::new();
    for container in &pod.containers {
        let kind = match container.kind {
            ContainerKind::Init => "init",
            ContainerKind::Sidecar => "sidecar",
            ContainerKind::App => "container",
        };
        let requests = resources(&container.resources.requests);
        line(&mut out, kind, &format!("{} {requests}", container.name));
    }
    let of_pod = pod.resources.as_ref().map(|of_pod| resources(&of_pod.requests));
    line(&mut out, "pod-level", &of_pod.unwrap_or_default());
    line(&mut out, "overhead", &resources(&pod.overhead));
    out
}

fn wishes(spec: &PodSpec) -> String {
    let mut out = String::new();
    let affinity = &spec.node_affinity;
    let required =
        affinity.required.iter().map(|terms| joined(terms.iter().map(node_term), " or "));
    line(&mut out, "node name", spec.node_name.as_deref().unwrap_or(""));
    line(&mut out, "node selector", &labels(&spec.node_selector));
    line(&mut out, "needs nodes", &joined(required, ""));
    for (weight, term) in &affinity.preferred {
        line(&mut out, "likes nodes", &format!("{} by {weight}", node_term(term)));
    }
    line(&mut out, "tolerates", &joined(spec.tolerations.iter().map(toleration), " "));
    let pods = &spec.pod_affinity;
    let required = [("needs pods", &pods.required), ("refuses pods", &pods.anti_required)];
    for (what, terms) in required {
        terms.iter().for_each(|term| line(&mut out, what, &pod_term(term)));
    }
    let preferred = [("likes pods", &pods.preferred), ("avoids pods", &pods.anti_preferred)];
    for (what, terms) in preferred {
        for (weight, term) in terms {
            line(&mut out, what, &format!("{} by {weight}", pod_term(term)));
        }
    }
    spec.spread.iter().for_each(|constraint| line(&mut out, "spreads", &spread(constraint)));
    let ports = spec.host_ports.iter().map(|port| {
        format!("{}:{}/{:?}", port.ip.as_deref().unwrap_or("*"), port.port, port.protocol)
    });
    line(&mut out, "host ports", &joined(ports, " "));
    line(&mut out, "volumes", &joined(spec.volumes.iter().map(|one| format!("{one:?}")), ", "));
    out
}

/// Everything else that the pod's place may depend on.
pub(super) fn others(events: &[Event]) -> String {
    let mut out = String::new();
    for event in events {
        let _ = match event {
            Event::Node(_) | Event::Pod(_) => continue,
            Event::Budget(budget) => writeln!(
                out,
                "budget {}/{}: protects {}, allows {}, has counted {:?}",
                budget.namespace,
                budget.name,
                selector(budget.selector.as_ref()),
                budget.disruptions_allowed,
                budget.disrupted_pods
            ),
            Event::Namespace(namespace) => {
                writeln!(out, "namespace {}: {}", namespace.name, labels(&namespace.labels))
            }
            Event::PriorityClass(class) => {
                writeln!(out, "priority class {}: {}", class.name, class.value)
            }
            Event::Grouping(group) => writeln!(
                out,
                "{} {}/{}: {}",
                group.kind,
                group.namespace,
                group.name,
                selector(group.selector.as_ref())
            ),
            storage => writeln!(out, "{storage:?}"),
        };
    }
    out
}

fn total(pod: &Pod) -> ResourceList {
    pod.total_requests(PodLevelResources::HonouredIfEmptyToo)
}

/// A line of its own, if there is something to say.
fn line(out: &mut String, what: &str, text: &str) {
    if !text.is_empty() {
        let _ = writeln!(out, "    {what:<13} {text}");
    }
}

fn joined(parts: impl Iterator<Item = String>, between: &str) -> String {
    parts.collect::<Vec<_>>().join(between)
}

fn resources(list: &ResourceList) -> String {
    joined(list.iter().map(|(name, quantity)| format!("{name}={quantity}")), " ")
}

fn labels(labels: &Labels) -> String {
    joined(labels.iter().map(|(key, value)| format!("{key}={value}")), " ")
}

fn selector(selector: Option<&Selector>) -> String {
    match selector {
        None => "nothing".to_owned(),
        Some(selector) if selector.is_empty() => "everything".to_owned(),
        Some(selector) => joined(selector.0.iter().map(requirement), ","),
    }
}

fn requirement(requirement: &Requirement) -> String {
    let key = &requirement.key;
    match &requirement.operator {
        Operator::In(values) if values.len() == 1 => format!("{key}={}", values.join(",")),
        Operator::In(values) => format!("{key} in ({})", values.join(",")),
        Operator::NotIn(values) => format!("{key} notin ({})", values.join(",")),
        Operator::Exists => key.to_string(),
        Operator::DoesNotExist => format!("!{key}"),
        Operator::Gt(bound) => format!("{key}>{bound}"),
        Operator::Lt(bound) => format!("{key}<{bound}"),
        Operator::Never => format!("{key} never matches"),
    }
}

fn node_term(term: &NodeTerm) -> String {
    let of_name = term.name.iter().map(|operator| {
        requirement(&Requirement { key: "name".into(), operator: operator.clone() })
    });
    format!("[{}]", joined(term.labels.iter().map(requirement).chain(of_name), ","))
}

fn pod_term(term: &PodTerm) -> String {
    let mut text = format!("{} by {}", selector(term.selector.as_ref()), term.topology_key);
    if !term.namespaces.is_empty() {
        let _ = write!(text, " in namespaces {}", term.namespaces.join(","));
    }
    if let Some(namespaces) = &term.namespace_selector {
        let _ = write!(text, " in namespaces with {}", selector(Some(namespaces)));
    }
    text
}

fn spread(constraint: &SpreadConstraint) -> String {
    format!(
        "{} by {}, skew {}, {:?}, at least {} domains, node affinity {:?}, taints {:?}, keys {:?}",
        selector(constraint.selector.as_ref()),
        constraint.topology_key,
        constraint.max_skew,
        constraint.unsatisfiable,
        constraint.min_domains,
        constraint.node_affinity,
        constraint.node_taints,
        constraint.match_label_keys
    )
}

fn toleration(toleration: &Toleration) -> String {
    let key = if toleration.key.is_empty() { "*" } else { &toleration.key };
    let value = match &toleration.operator {
        TolerationOperator::Equal(value) => format!("={value}"),
        TolerationOperator::Exists => String::new(),
        TolerationOperator::Lt(bound) => format!("<{bound:?}"),
        TolerationOperator::Gt(bound) => format!(">{bound:?}"),
    };
    let effect = toleration.effect.map_or("*".to_owned(), |effect| format!("{effect:?}"));
    format!("{key}{value}:{effect}")
}
