//! Explanations: why a pod is pending and what would help, or why it is on its node.
//!
//! All answers come from the code that decides, applied to the current state, and leave it
//! unchanged: an engine decides the same whether it was asked or not. Every node is evaluated once;
//! trials beyond that are bounded.

mod audience;
mod cause;
mod data;
mod group;
mod parts;
mod placed;
mod probe;
mod relax;
mod remedy;
mod render;
mod words;

use berth_model::spec::Phase;

pub use self::data::{
    Cause, DomainRoom, Explanation, FreeDevices, GangReport, Group, HeldDevices, Holding, Lack,
    Miss, Offered, Others, Part, PartKind, PartUse, PodName, Preference, Remedy, Shortage, Tenant,
    Unreserved, Why,
};
pub use self::relax::Relaxation;
pub use self::render::{group as render_group, remedy as render_remedy, render};

use self::cause::pod_name;
use self::group::{Grouping, Row, groups};
use self::probe::Probe;
use self::remedy::Search;
use crate::config::{Config, Profile};
use crate::filter::IncomingPod;
use crate::state::{Place, State};
use crate::table::{NodeIx, PodIx};

const NEAREST_MAX: usize = 3;

pub(crate) fn explain(
    state: &mut State,
    config: &Config,
    uid: &str,
    now_ms: i64,
) -> Option<Explanation> {
    let pod = state.pod_by_uid(uid)?;
    let class = state.pods[pod].class;
    let had_rules = state.class(class).rules.is_some();
    state.rules(class);
    let explanation = match state.pods[pod].place.clone() {
        Place::Bound(name, node) => placed::explain(state, config, pod, name, node),
        _ => unplaced(state, config, pod, now_ms),
    };
    if !had_rules {
        state.drop_rules(class);
    }
    Some(explanation)
}

fn unplaced(state: &mut State, config: &Config, at: PodIx, now_ms: i64) -> Explanation {
    let (row, pod) = (&state.pods[at], pod_name(state, at));
    let gates = &state.class(row.class).spec.gates;
    if row.phase != Phase::Alive {
        return Explanation::Leaving { pod };
    }
    if !gates.is_empty() {
        return Explanation::Gated { pod, gates: gates.clone() };
    }
    let held = Some(()).filter(|()| config.profile == Profile::Berth);
    if let Some(by) = held.and_then(|()| state.held_by(at)) {
        let team = state.tenancy.ledger.name(state.class_of(at).team_charge.team).clone();
        return Explanation::Held { pod, team, by };
    }
    let leaving = in_name_order(state, state.making_room(at));
    let overdue = match config.profile {
        Profile::Berth => in_name_order(state, state.overdue_for(pod.priority)),
        _ => Vec::new(),
    };
    if let (Place::Nominated(node, _), false) = (&row.place, leaving.is_empty()) {
        return Explanation::AwaitsRoom { pod, node: node.clone(), leaving, overdue };
    }
    let Survey { nodes, fitting, rows, nearest } = survey(state, config, at);
    let groups = groups(state, &rows);
    let remedies = if fitting > 0 {
        Vec::new()
    } else {
        Search { state, config, pod: at, rows: &rows, now_ms }.run()
    };
    Explanation::Waiting { pod, nodes, fitting, groups, nearest, remedies, overdue }
}

fn in_name_order(state: &State, pods: impl Iterator<Item = PodIx>) -> Vec<PodName> {
    let mut names: Vec<PodName> = pods.map(|one| pod_name(state, one)).collect();
    names.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    names
}

struct Survey {
    nodes: usize,
    fitting: usize,
    rows: Vec<Row>,
    nearest: Vec<Miss>,
}

fn survey(state: &State, config: &Config, at: PodIx) -> Survey {
    let nodes = state.nodes_by_name();
    let mut survey =
        Survey { nodes: nodes.len(), fitting: 0, rows: Vec::new(), nearest: Vec::new() };
    let pod = IncomingPod::of(state, at);
    let mut probe = match Probe::new(state, pod, config) {
        Ok(probe) => probe,
        Err(rejection) => {
            let all = Row { cause: cause::plugin_message(&rejection), nodes };
            survey.rows = if all.nodes.is_empty() { Vec::new() } else { vec![all] };
            return survey;
        }
    };
    let mut grouping = Grouping::default();
    let mut nearest: Vec<(u64, NodeIx, Vec<Lack>)> = Vec::new();
    for node in nodes {
        let Err(rejected_by) = probe.verdict(node) else {
            survey.fitting += 1;
            continue;
        };
        let cause = cause::of(&mut probe, node, &rejected_by);
        if let Some((far, lacks)) = cause::lacks(&mut probe, node, &cause) {
            // Among equals, the first by name stays first.
            let place = nearest.partition_point(|(one, _, _)| *one <= far);
            nearest.insert(place, (far, node, lacks));
            nearest.truncate(NEAREST_MAX);
        }
        grouping.add(node, cause);
    }
    let name = |node: NodeIx| state.nodes[node].object.name.clone();
    let miss = |(_, node, lacks)| Miss { node: name(node), lacks };
    survey.nearest = nearest.into_iter().map(miss).collect();
    survey.rows = grouping.rows();
    for row in &mut survey.rows {
        if let (Cause::Kubelet { words, .. }, Some(node)) = (&mut row.cause, row.nodes.first()) {
            *words = cause::kubelet_words(&mut probe, *node).unwrap_or_default();
        }
    }
    survey
}
