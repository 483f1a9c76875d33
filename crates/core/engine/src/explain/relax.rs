//! Single changes to a pod's spec that could let it fit. A change becomes a remedy only if the
//! changed pod was found to fit.

use std::sync::Arc;

use berth_model::affinity::{PodTerm, SpreadConstraint, WhenUnsatisfiable};
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::ResourceName;
use berth_model::spec::{GpuNeed, HostPort, PodSpec};
use berth_model::taint::{Taint, Toleration, TolerationOperator};

use super::data::Cause;
use super::group::Row;
use crate::amounts::{CPU, MEMORY};
use crate::state::{NodeState, State};
use crate::table::{NodeIx, ResourceIx};

/// Limits of resources for which smaller amounts are tried, and of amounts each.
const RESOURCES_MAX: usize = 4;
const AMOUNTS_MAX: usize = 16;

/// Amounts are rounded down to multiples of these.
const CPU_STEP_MILLI: i64 = 1000;
const MEMORY_STEP_BYTES: i64 = 1 << 30;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relaxation {
    AnyNode,
    Tolerate(Taint),
    DropNodeLabel { key: Arc<str>, value: Arc<str> },
    DropNodeAffinity,
    DropPort(HostPort),
    SpreadSoftly(SpreadConstraint),
    DropPodAffinity,
    DropAntiAffinity(PodTerm),
    Less { resource: ResourceName, from: Quantity, to: Quantity },
    SmallerNeed { from: GpuNeed, to: GpuNeed },
}

impl Relaxation {
    /// The changed spec; `None` if the change does not apply or is ambiguous.
    pub fn applied_to(&self, spec: &PodSpec) -> Option<PodSpec> {
        let mut relaxed = spec.clone();
        match self {
            Self::AnyNode => relaxed.node_name = None,
            Self::Tolerate(taint) => {
                relaxed.tolerations.push(Toleration {
                    key: taint.key.clone(),
                    operator: TolerationOperator::Equal(taint.value.clone()),
                    effect: Some(taint.effect),
                });
            }
            Self::DropNodeLabel { key, .. } => {
                let labels = spec.node_selector.iter().filter(|(one, _)| *one != key);
                relaxed.node_selector =
                    labels.map(|(key, value)| (key.clone(), value.clone())).collect();
            }
            Self::DropNodeAffinity => relaxed.node_affinity.required = None,
            Self::DropPort(port) => relaxed.host_ports.retain(|one| one != port),
            Self::SpreadSoftly(constraint) => {
                let wanted = |one: &&mut SpreadConstraint| *one == constraint;
                let one = relaxed.spread.iter_mut().find(wanted)?;
                one.unsatisfiable = WhenUnsatisfiable::ScheduleAnyway;
            }
            Self::DropPodAffinity => relaxed.pod_affinity.required.clear(),
            Self::DropAntiAffinity(term) => {
                relaxed.pod_affinity.anti_required.retain(|one| one != term);
            }
            Self::Less { resource, to, .. } => reduce_request(&mut relaxed, resource, *to)?,
            Self::SmallerNeed { to, .. } => relaxed.gpu = Some(*to),
        }
        (relaxed != *spec).then_some(relaxed)
    }
}

/// Only a request of a single container can be reduced without guessing.
fn reduce_request(spec: &mut PodSpec, resource: &ResourceName, to: Quantity) -> Option<()> {
    let of_pod = spec.pod.resources.as_ref();
    if of_pod.is_some_and(|of_pod| of_pod.requests.contains_key(resource)) {
        return None;
    }
    let asks = |one: &&mut berth_model::pod::Container| {
        let asked = one.resources.requests.get(resource.as_str());
        asked.is_some_and(|asked| asked.sign() > 0)
    };
    let mut asking = spec.pod.containers.iter_mut().filter(asks);
    let container = asking.next()?;
    if asking.next().is_some() {
        return None;
    }
    container.resources.requests.insert(resource.clone(), to);
    if let Some(limit) = container.resources.limits.get_mut(resource.as_str()) {
        *limit = to;
    }
    Some(())
}

/// A change that could help, and the nodes rejected for what it removes.
pub(super) struct Candidate {
    pub(super) change: Relaxation,
    pub(super) nodes: Vec<NodeIx>,
}

/// Changes that could help. A change helps only on nodes rejected for what it removes.
pub(super) fn candidates(spec: &PodSpec, rows: &[Row]) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = Vec::new();
    for row in rows {
        let Some(change) = change(spec, &row.cause) else { continue };
        match all.iter_mut().find(|one| one.change == change) {
            Some(one) => one.nodes.extend_from_slice(&row.nodes),
            None => all.push(Candidate { change, nodes: row.nodes.clone() }),
        }
    }
    all
}

fn change(spec: &PodSpec, cause: &Cause) -> Option<Relaxation> {
    let affinity = &spec.pod_affinity;
    Some(match cause {
        Cause::OtherNode { .. } => Relaxation::AnyNode,
        Cause::Taint(taint) => Relaxation::Tolerate(taint.clone()),
        Cause::NodeLabel { key, value } => {
            Relaxation::DropNodeLabel { key: key.clone(), value: value.clone() }
        }
        Cause::NodeAffinity { .. } => Relaxation::DropNodeAffinity,
        Cause::Plugin { plugin: crate::verdict::Plugin::NodeAffinity, .. } => {
            Relaxation::DropNodeAffinity
        }
        Cause::Port(port) => Relaxation::DropPort(port.clone()),
        Cause::SpreadLabel { key } | Cause::Spread { key, .. } => {
            let hard = |one: &&SpreadConstraint| {
                one.topology_key == *key && one.unsatisfiable == WhenUnsatisfiable::DoNotSchedule
            };
            Relaxation::SpreadSoftly(spec.spread.iter().find(hard)?.clone())
        }
        Cause::NoNeighbour { .. } => Relaxation::DropPodAffinity,
        Cause::Unwelcome { key, selector, .. } => {
            let mut terms = affinity.anti_required.iter();
            let same = |one: &&PodTerm| one.topology_key == *key && one.selector == *selector;
            Relaxation::DropAntiAffinity(terms.find(same)?.clone())
        }
        _ => return None,
    })
}

/// Smaller amounts that could fit, largest first, with the nodes that are short of the resource.
pub(super) fn smaller(
    state: &State,
    requests: &[(ResourceIx, i64)],
    rows: &[Row],
) -> Vec<(Vec<Relaxation>, Vec<NodeIx>)> {
    let mut all = Vec::new();
    for (one, wanted) in requests {
        let name = state.resources.name(*one);
        let short = rows.iter().filter(|row| is_short_of(&row.cause, name));
        let nodes: Vec<NodeIx> = short.flat_map(|row| row.nodes.iter().copied()).collect();
        let free = nodes.iter().map(|at| state.nodes[*at].free(*one)).max().unwrap_or(0);
        let most = free.min(wanted - 1);
        let amounts: Vec<i64> = match *one {
            CPU => vec![most / CPU_STEP_MILLI * CPU_STEP_MILLI],
            MEMORY => vec![most / MEMORY_STEP_BYTES * MEMORY_STEP_BYTES],
            _ if name.is_extended() => (1..=most).rev().take(AMOUNTS_MAX).collect(),
            _ => Vec::new(),
        };
        let less = |to: i64| Relaxation::Less {
            resource: name.clone(),
            from: amount(*one, *wanted),
            to: amount(*one, to),
        };
        let amounts: Vec<Relaxation> = amounts.into_iter().filter(|to| *to > 0).map(less).collect();
        if !amounts.is_empty() {
            all.push((amounts, nodes));
        }
    }
    all.truncate(RESOURCES_MAX);
    all
}

/// As the API server would store it.
fn amount(resource: ResourceIx, amount: i64) -> Quantity {
    match resource {
        CPU => Quantity::from_milli(amount),
        MEMORY => Quantity::from_bytes(amount),
        _ => Quantity::from_units(amount, Format::DecimalSi),
    }
}

fn is_short_of(cause: &Cause, resource: &ResourceName) -> bool {
    match cause {
        Cause::Short(all) => all.iter().any(|one| one.resource == *resource),
        Cause::Split { resource: one, .. } | Cause::Crowded { resource: one, .. } => {
            one == resource
        }
        Cause::Apart { wanted, .. } => wanted.iter().any(|(one, _)| one == resource),
        _ => false,
    }
}

/// The largest part of a GPU that is free anywhere, if smaller than needed, with the nodes that
/// have too little.
pub(super) fn smaller_need(
    state: &State,
    need: GpuNeed,
    rows: &[Row],
) -> Option<(Relaxation, Vec<NodeIx>)> {
    let lacking = rows
        .iter()
        .filter(|row| matches!(row.cause, Cause::NoOffer { .. } | Cause::OffersTaken { .. }));
    let nodes: Vec<NodeIx> = lacking.flat_map(|row| row.nodes.iter().copied()).collect();
    let free = |node: &NodeState| {
        let offers = node.offers.iter().filter(|offer| node.free(offer.resource) > 0);
        offers.map(|offer| (offer.memory_bytes, offer.compute_milli)).max()
    };
    let (memory, compute) = nodes.iter().filter_map(|at| free(&state.nodes[*at])).max()?;
    let to = GpuNeed {
        memory_bytes: need.memory_bytes.min(memory),
        compute_milli: need.compute_milli.min(compute),
    };
    (to != need).then_some((Relaxation::SmallerNeed { from: need, to }, nodes))
}
