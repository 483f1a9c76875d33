//! What happened, told in another order that is just as true.
//!
//! Owns which acts of a round commute: what is said of one object stays in order, and so does what
//! comes to a node and leaves it; everything else may be told in any order. Must not know engines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_engine::decision::Decision;
use berth_engine::event::Event;

use super::happening::{Act, Round};
use super::run::Run;
use crate::cluster::Dice;

/// What an act must keep its place in.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lane {
    /// What is said of an object, by kind and name.
    Object(&'static str, Arc<str>),
    /// What comes to a node and leaves it.
    Node(Arc<str>),
}

impl Run {
    /// The same rounds, each told in another order.
    pub fn reordered(&self, dice: &mut Dice) -> Vec<Round> {
        let mut nodes: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::new();
        let mut absent: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut rounds = Vec::new();
        for (number, (round, decisions)) in self.rounds.iter().zip(&self.decisions).enumerate() {
            for act in &round.acts {
                if let Act::Tell(event) = act
                    && let Event::Pod(pod) = &**event
                    && let Some(node) = &pod.node
                {
                    nodes.insert(pod.uid.clone(), node.clone());
                }
            }
            let mut lanes: Vec<Vec<Lane>> =
                round.acts.iter().map(|act| lanes(act, &nodes)).collect();
            for (act, lanes) in round.acts.iter().zip(&mut lanes) {
                let Act::Tell(event) = act else { continue };
                match &**event {
                    Event::NodeGone(name) => {
                        absent.insert(name.clone());
                    }
                    // A node that comes back finds the pods there that have not left meanwhile.
                    Event::Node(node) if absent.remove(&node.name) => {
                        lanes.push(Lane::Node(node.name.clone()));
                    }
                    _ => {}
                }
            }
            if number == 0 {
                // Everything that runs at the beginning says itself when it started.
                lanes.iter_mut().for_each(|of| of.retain(|lane| !matches!(lane, Lane::Node(_))));
            }
            rounds.push(Round { acts: shuffled(&round.acts, &lanes, dice), ..round.clone() });
            for decision in decisions {
                let bindings = match decision {
                    Decision::Bind(binding) => std::slice::from_ref(binding),
                    Decision::BindAll(all) => &all.bindings,
                    _ => &[],
                };
                for binding in bindings {
                    nodes.insert(binding.pod.clone(), binding.node.clone());
                }
            }
        }
        rounds
    }
}

/// An arbitrary order that keeps the order in each lane.
fn shuffled(acts: &[Act], lanes: &[Vec<Lane>], dice: &mut Dice) -> Vec<Act> {
    let mut left: Vec<usize> = (0..acts.len()).collect();
    let mut order = Vec::with_capacity(acts.len());
    while !left.is_empty() {
        let free = |at: &usize| {
            let mut before = left.iter().take_while(|other| *other < at);
            !before.any(|other| lanes[*other].iter().any(|lane| lanes[*at].contains(lane)))
        };
        let ready: Vec<usize> = left.iter().copied().filter(free).collect();
        let next = ready[dice.below(ready.len())];
        left.retain(|at| *at != next);
        order.push(acts[next].clone());
    }
    order
}

/// The lanes of an act; `nodes` are those of the pods that are bound.
fn lanes(act: &Act, nodes: &BTreeMap<Arc<str>, Arc<str>>) -> Vec<Lane> {
    let object = |kind, name: &Arc<str>| Lane::Object(kind, name.clone());
    let pod = |uid: &Arc<str>| {
        let on = nodes.get(uid).map(|node| Lane::Node(node.clone()));
        on.into_iter().chain([object("pod", uid)]).collect::<Vec<Lane>>()
    };
    let event = match act {
        Act::Undo(uid) => return pod(uid),
        Act::Tell(event) => event,
    };
    match &**event {
        Event::Pod(told) => {
            // What a pod got that does not say so depends on what its node offers.
            let guessed = told.spec.gpu.is_some() && told.gpu_grant.is_none();
            let node = told.node.as_ref().filter(|_| guessed);
            let mut lanes = pod(&told.uid);
            lanes.extend(node.map(|node| object("node", node)));
            lanes
        }
        Event::PodGone(uid) => pod(uid),
        Event::Node(node) => vec![object("node", &node.name)],
        Event::NodeGone(name) => vec![object("node", name), Lane::Node(name.clone())],
        Event::Topology { node, .. } => vec![object("topology", node), Lane::Node(node.clone())],
        Event::Namespace(namespace) => vec![object("namespace", &namespace.name)],
        Event::NamespaceGone(name) => vec![object("namespace", name)],
        Event::Budget(budget) => vec![object("budget", &budget.name)],
        Event::BudgetGone(_, name) => vec![object("budget", name)],
        Event::Quota(quota) => vec![object("quota", &quota.name)],
        Event::QuotaGone(_, name) => vec![object("quota", name)],
        Event::Team(team) => vec![object("team", &team.name)],
        Event::TeamGone(name) => vec![object("team", name)],
        Event::Pool(pool) => vec![object("pool", &pool.name)],
        Event::PoolGone(name) => vec![object("pool", name)],
        Event::Headroom(headroom) => vec![object("headroom", &headroom.name)],
        Event::HeadroomGone(name) => vec![object("headroom", name)],
        Event::Classes(_) => vec![object("classes", &"".into())],
        Event::Gang(gang) => vec![object("gang", &gang.name)],
        Event::GangGone(_, name) => vec![object("gang", name)],
        _ => Vec::new(),
    }
}
