//! Detailed causes: the label, domain or amount behind a node's rejection, and what is missing
//! there.
//!
//! Describes verdicts; never changes one.

use std::cmp::Reverse;
use std::sync::Arc;

use berth_kubelet::{Kubelet, PodDemand};
use berth_model::label::Requirement;
use berth_model::node::Node;
use berth_model::spec::PodSpec;
use berth_model::taint::Taint;
use berth_model::workload::{ClassSet, PoolClasses, WorkloadClass};

use super::data::{Cause, Lack, Offered, PodName, Shortage, quantity};
use super::parts::{NodeParts, distance};
use super::probe::{Probe, RejectedBy};
use crate::amounts;
use crate::census::TermKind;
use crate::decision::GangName;
use crate::filter::Inquiry;
use crate::gang::Reservation;
use crate::mirror::Mirror;
use crate::overlay::Overlay;
use crate::placement::room::Obstacle;
use crate::state::headroom::Turn;
use crate::state::{NodeState, State};
use crate::table::{NodeIx, PodIx, ResourceIx, TallyIx};
use crate::verdict::{Code, Plugin, Reason, Rejection};

const NAME_FIELD: &str = "metadata.name";

pub(super) fn pod_name(state: &State, pod: PodIx) -> PodName {
    let row = &state.pods[pod];
    let spec = &state.class(row.class).spec;
    PodName { namespace: spec.namespace.clone(), name: row.name.clone(), priority: spec.priority }
}

pub(super) fn of(probe: &mut Probe<'_>, at: NodeIx, rejected_by: &RejectedBy) -> Cause {
    match rejected_by {
        RejectedBy::Filter(rejection) => {
            filtered(&probe.inquiry, at, rejection).unwrap_or_else(|| plugin_message(rejection))
        }
        RejectedBy::Room(obstacle) => room_cause(probe, at, obstacle),
        RejectedBy::Pool(class) => other_classes(probe.state, at, *class),
        RejectedBy::Headroom(turn) => headroom_cause(probe.state, at, turn),
        RejectedBy::Nominated => {
            let first = probe.inquiry.ahead(at).first().copied();
            let reservation = first.and_then(|pod| probe.state.reservation_of(pod));
            if let Some(Reservation { gang, max_ms, .. }) = reservation {
                return Cause::ReservedForGang { gang: GangName::of(gang), max_ms: *max_ms };
            }
            let by = first.map(|pod| pod_name(probe.state, pod));
            Cause::Reserved { by: by.unwrap_or_default() }
        }
    }
}

fn other_classes(state: &State, at: NodeIx, class: WorkloadClass) -> Cause {
    let pool = state.pool_of(&state.nodes[at].object);
    let classes = match pool.map(|pool| pool.classes) {
        Some(PoolClasses::Only(classes) | PoolClasses::Preferred(classes)) => classes,
        Some(PoolClasses::Any) | None => ClassSet::default(),
    };
    let pool = pool.map_or_else(|| "".into(), |pool| pool.name.clone());
    Cause::OtherClasses { pool, classes, class }
}

/// Names the devices reserved by headroom; without devices, all requests.
fn headroom_cause(state: &State, at: NodeIx, turn: &Turn) -> Cause {
    let (Reverse(class), headroom) = turn.clone();
    let mirror = state.nodes[at].mirror.as_ref().filter(|mirror| mirror.is_trusted());
    let kept = state.headrooms.get(turn);
    let on_one = mirror.zip(kept).and_then(|(mirror, kept)| {
        let kubelet = mirror.kubelet();
        let mut demands = kept.ask.demands.clone();
        let demand = demands.get(&kept.spec.pod, kubelet.config().version, None)?;
        NodeParts::of(kubelet, demand)?.single()
    });
    let asked = kept.map_or(&[][..], |kept| match kept.ask.devices.is_empty() {
        false => &kept.ask.devices,
        true if kept.spec.gpu.is_some() => &[],
        true => &kept.ask.requests,
    });
    let amount = |(one, amount): &(ResourceIx, i64)| {
        let resource = state.resources.name(*one).clone();
        let amount = quantity(&resource, *amount);
        (resource, amount)
    };
    let room = asked.iter().map(amount).collect();
    let need = kept.and_then(|kept| kept.spec.gpu);
    Cause::Headroom { headroom, class, room, need, on_one }
}

pub(super) fn plugin_message(rejection: &Rejection) -> Cause {
    let reason = rejection.reasons.first().cloned().unwrap_or(Reason::Text("no reason given"));
    Cause::Plugin { plugin: rejection.plugin, reason }
}

fn filtered(inquiry: &Inquiry<'_>, at: NodeIx, rejection: &Rejection) -> Option<Cause> {
    let spec = inquiry.spec();
    let node = &inquiry.state.nodes[at];
    match rejection.plugin {
        Plugin::NodeName => spec.node_name.clone().map(|wanted| Cause::OtherNode { wanted }),
        Plugin::NodeUnschedulable => Some(Cause::Cordoned),
        Plugin::TaintToleration => {
            let tolerated = |taint: &Taint| spec.tolerations.iter().any(|one| one.tolerates(taint));
            let hard = node.object.taints.iter().filter(|taint| taint.effect.is_hard());
            hard.into_iter().find(|taint| !tolerated(taint)).cloned().map(Cause::Taint)
        }
        Plugin::NodeAffinity => node_affinity(spec, &node.object),
        Plugin::NodePorts => {
            let taken = |wanted: &&berth_model::spec::HostPort| {
                node.ports.iter().any(|(port, _)| port.conflicts(wanted))
            };
            spec.host_ports.iter().find(taken).cloned().map(Cause::Port)
        }
        Plugin::NodeResourcesFit => shortages(inquiry, node),
        Plugin::PodTopologySpread => spread(inquiry, at),
        Plugin::InterPodAffinity => neighbours(inquiry, at, rejection.code),
        _ => None,
    }
}

fn node_affinity(spec: &PodSpec, node: &Node) -> Option<Cause> {
    let lacks = |(key, value): &(&Arc<str>, &Arc<str>)| node.labels.get(key) != Some(value);
    if let Some((key, value)) = spec.node_selector.iter().find(lacks) {
        return Some(Cause::NodeLabel { key: key.clone(), value: value.clone() });
    }
    let [term] = spec.node_affinity.required.as_deref()? else {
        return Some(Cause::NodeAffinity { requirement: None });
    };
    let label = term.labels.iter().find(|requirement| !requirement.matches(&node.labels)).cloned();
    let name = || {
        let operator = term.name.iter().find(|operator| !operator.accepts(Some(&node.name)))?;
        Some(Requirement { key: NAME_FIELD.into(), operator: operator.clone() })
    };
    Some(Cause::NodeAffinity { requirement: label.or_else(name) })
}

/// If devices are short, nothing else is named: they decide which nodes are candidates.
fn shortages(inquiry: &Inquiry<'_>, node: &NodeState) -> Option<Cause> {
    let short = inquiry.class.requests.iter().filter(|(one, wanted)| *wanted > node.free(*one));
    let mut all: Vec<Shortage> = short
        .map(|(one, wanted)| {
            let capacity = amounts::at(&node.capacity, *one);
            let resource = inquiry.state.resources.name(*one).clone();
            let ever = *wanted <= capacity;
            let most = if ever { node.free(*one).max(0) } else { capacity };
            let [wanted, most] = [*wanted, most].map(|amount| quantity(&resource, amount));
            Shortage { resource, wanted, most, ever }
        })
        .collect();
    if all.is_empty() {
        return Some(Cause::TooManyPods);
    }
    if all.iter().any(|one| one.resource.is_extended()) {
        all.retain(|one| one.resource.is_extended());
    }
    Some(Cause::Short(all))
}

fn spread(inquiry: &Inquiry<'_>, at: NodeIx) -> Option<Cause> {
    let census = &inquiry.state.census;
    let plain = Overlay::default();
    inquiry.rules.hard_spread.iter().find_map(|rule| {
        let key = census.key_name(rule.key).clone();
        let domain = census.domain(rule.key, at);
        if !domain.exists() {
            return Some(Cause::SpreadLabel { key });
        }
        let (skew, max_skew) = (inquiry.skew(rule, at, &plain), rule.max_skew);
        let domain = census.domain_name(rule.key, domain).cloned();
        let too_much = skew > i64::from(max_skew);
        too_much.then_some(Cause::Spread { key, domain, skew, max_skew })
    })
}

fn neighbours(inquiry: &Inquiry<'_>, at: NodeIx, code: Code) -> Option<Cause> {
    let (census, spec) = (&inquiry.state.census, inquiry.spec());
    let near = |tally: TallyIx| {
        let domain = census.domain(census.count(tally).key, at);
        domain.exists() && census.tally(tally).at(domain) > 0
    };
    let place = |tally: TallyIx| {
        let key = census.count(tally).key;
        let domain = census.domain_name(key, census.domain(key, at)).cloned();
        (census.key_name(key).clone(), domain)
    };
    // Only a missing required neighbour cannot be resolved by evictions.
    if code == Code::UnschedulableAndUnresolvable {
        let rule = inquiry.rules.affinity.as_ref()?;
        let tally = rule.tallies.iter().find(|tally| !near(**tally)).or(rule.tallies.first())?;
        let (key, _) = place(*tally);
        let terms = &spec.pod_affinity.required;
        let term = terms.iter().find(|term| term.topology_key == key)?;
        return Some(Cause::NoNeighbour { key, selector: term.selector.clone() });
    }
    let own = inquiry.rules.anti.iter().zip(&spec.pod_affinity.anti_required);
    if let Some((tally, term)) = own.into_iter().find(|(tally, _)| near(**tally)) {
        let (key, domain) = place(*tally);
        return Some(Cause::Unwelcome { key, domain, selector: term.selector.clone() });
    }
    let asked = census.terms_about(inquiry.class_at);
    let (tally, _) =
        asked.into_iter().find(|(one, kind)| *kind == TermKind::AntiAffinity && near(*one))?;
    let (key, domain) = place(tally);
    let mut pods = inquiry.state.nodes[at].pods.iter();
    let refuses = |pod: &&PodIx| census.term_count(inquiry.state.pods[**pod].class, tally) > 0;
    let by = pods.find(refuses).map(|pod| pod_name(inquiry.state, *pod));
    Some(Cause::Refused { key, domain, by })
}

fn room_cause(probe: &mut Probe<'_>, at: NodeIx, obstacle: &Obstacle) -> Cause {
    let node = &probe.state.nodes[at];
    let need = probe.inquiry.spec().gpu;
    match (obstacle, need) {
        (Obstacle::Kubelet(reason), _) => {
            let demand = demand(probe, at);
            let figures =
                demand.and_then(|(kubelet, demand)| NodeParts::of(kubelet, &demand)?.cause());
            figures.unwrap_or(Cause::Kubelet { reason: *reason, words: String::new() })
        }
        (Obstacle::Uncertain, _) => Cause::Uncertain,
        (Obstacle::UnknownTopology, _) => Cause::UnknownTopology { doubted: node.mirror.is_some() },
        (Obstacle::NoOffer, Some(need)) => {
            let largest = node.offers.iter().max_by_key(|offer| offer.memory_bytes);
            let largest = largest.map(|offer| Offered {
                resource: probe.state.resources.name(offer.resource).clone(),
                memory_bytes: offer.memory_bytes,
                compute_milli: offer.compute_milli,
            });
            Cause::NoOffer { need, largest }
        }
        // Other resources were checked before.
        (Obstacle::Short(_), Some(need)) => Cause::OffersTaken { need },
        (Obstacle::Ports | Obstacle::Short(_) | Obstacle::NoOffer, _) => {
            shortages(&probe.inquiry, node).unwrap_or(Cause::TooManyPods)
        }
    }
}

/// A node's kubelet model, and its view of the pod with the smallest free part of a GPU if it needs
/// one. `None` if kubelets are not modelled.
pub(super) fn demand<'s>(
    probe: &mut Probe<'s>,
    at: NodeIx,
) -> Option<(&'s Kubelet, Arc<PodDemand>)> {
    let state = probe.state;
    let node = &state.nodes[at];
    let asked = |mirror: &&Mirror| probe.kubelets && mirror.is_trusted();
    let mirror = node.mirror.as_deref().filter(asked)?;
    let spec = probe.ranking.spec.clone();
    let grant = match &spec.gpu {
        None => None,
        Some(need) => {
            let mut offers = node.offers.iter().filter(|offer| offer.satisfies(need));
            let offer = offers.find(|offer| offer.divisible || node.free(offer.resource) > 0)?;
            (!offer.divisible).then_some(offer.resource)
        }
    };
    let named = grant.map(|grant| (grant, state.resources.name(grant)));
    let version = mirror.kubelet().config().version;
    let demands = &mut probe.ranking.ask.demands;
    Some((mirror.kubelet(), demands.get(&spec.pod, version, named)?.clone()))
}

pub(super) fn kubelet_words(probe: &mut Probe<'_>, at: NodeIx) -> Option<String> {
    let uid = probe.inquiry.uid;
    let (kubelet, demand) = demand(probe, at)?;
    kubelet.clone().admit(uid, &demand).err().map(|rejection| rejection.message)
}

/// What is missing on a node rejected for amounts, with its distance; `None` if the node is too
/// small even when empty, or is rejected for something else.
pub(super) fn lacks(probe: &mut Probe<'_>, at: NodeIx, cause: &Cause) -> Option<(u64, Vec<Lack>)> {
    let by_amount = matches!(
        cause,
        Cause::Short(_) | Cause::Split { .. } | Cause::Crowded { .. } | Cause::Apart { .. }
    );
    if !by_amount {
        return None;
    }
    let demand = demand(probe, at);
    let inside = demand.as_ref().and_then(|(kubelet, demand)| NodeParts::of(kubelet, demand));
    let (mut far, mut lacks) = match inside {
        Some(inside) => inside.lacks()?,
        None => (0, Vec::new()),
    };
    let node = &probe.state.nodes[at];
    for (one, wanted) in &probe.inquiry.class.requests {
        let free = node.free(*one);
        if *wanted > amounts::at(&node.capacity, *one) {
            return None;
        }
        let resource = probe.state.resources.name(*one);
        if *wanted <= free || lacks.iter().any(|lack| lack.resource == *resource) {
            continue;
        }
        far += distance(*wanted, free);
        let amount = quantity(resource, wanted - free.max(0));
        lacks.push(Lack { resource: resource.clone(), amount, on: None });
    }
    lacks.sort_by_key(|lack| !lack.resource.is_extended());
    (!lacks.is_empty()).then_some((far, lacks))
}
