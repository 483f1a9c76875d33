//! Repair: which few pods to move so that one that waits fits, or so that more of what is left can be
//! used.
//!
//! Owns the search and its bounds. Everything is tried on the state itself under a checkpoint, by the
//! code that decides, and rolled back: a proposal is never carried out here. Pods without a
//! controller would be lost by moving them, and those that say that they are not to be disturbed are
//! left alone; so is whatever a disruption budget protects. Must not know when moving is worth it.

use std::cmp::Reverse;
use std::sync::Arc;

use berth_model::spec::{Phase, PodObject};

use crate::berth::foresee::Foresight;
use crate::berth::plan::{Evictor, Plan};
use crate::berth::preempt::Preemption;
use crate::berth::room::{Room, View};
use crate::engine::{Engine, Found};
use crate::event::Event;
use crate::kube::preempt::split_by_budgets;
use crate::state::{Place, State};
use crate::table::{NodeIx, PodIx};

/// So many nodes are tried for a pod that waits, those first where fewest pods have to go.
const NODES_MAX: usize = 32;

/// A pod that goes elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Its UID.
    pub pod: Arc<str>,
    /// The node it is on.
    pub from: Arc<str>,
    /// The node it goes to.
    pub to: Arc<str>,
    /// How long it has been running, which is lost unless it saves its work.
    pub lost_run_ms: i64,
}

/// Moves after which a pod that waits has its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The UID of the pod that waits.
    pub pod: Arc<str>,
    /// Where it would go.
    pub node: Arc<str>,
    /// In the order in which they are made.
    pub moves: Vec<Move>,
}

/// A move after which more of the GPUs can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consolidation {
    /// The move.
    pub step: Move,
    /// How much more the work that arrives can use, in millionths of a GPU.
    pub gain_micro: i64,
}

impl Engine {
    /// The fewest moves, `moves_max` at most, after which a pod that waits would have its place.
    pub fn repair(&mut self, uid: &str, moves_max: usize, now_ms: i64) -> Option<Repair> {
        let at = self.state.pod_by_uid(uid)?;
        // One member of a gang does not start by itself.
        let with_its_gang = self.head_for(at).is_some();
        if matches!(self.state.pods[at].place, Place::Bound(..)) || with_its_gang || moves_max == 0
        {
            return None;
        }
        let mut plans = self.clearings(at, now_ms);
        plans.retain(|plan| plan.victims.len() <= moves_max && plan.cost.budget_violations == 0);
        if let Some((nodes, _)) = self.near_mates(at).filter(|(_, required)| *required) {
            plans.retain(|plan| nodes.contains(plan.node));
        }
        plans.sort_by_key(|plan| (plan.victims.len(), plan.cost, self.state.nodes[plan.node].tie));
        plans.iter().find_map(|plan| self.try_moves(uid, plan, now_ms))
    }

    /// Moves, `moves_max` at most, each of which lets the work that arrives use at least so much more
    /// of the GPUs than it can now. Each counts on those before it.
    pub fn consolidate(
        &mut self,
        moves_max: usize,
        gain_min_micro: i64,
        now_ms: i64,
    ) -> Vec<Consolidation> {
        let checkpoint = self.checkpoint();
        let mut found = Vec::new();
        let mut moved: Vec<PodIx> = Vec::new();
        while found.len() < moves_max {
            let pods = self.movable();
            let candidates = pods.into_iter().filter(|pod| !moved.contains(pod));
            let gains: Vec<(i64, PodIx, NodeIx)> =
                candidates.filter_map(|pod| self.gain(pod)).collect();
            let by_gain = |(gain, pod, _): &(i64, PodIx, NodeIx)| {
                (Reverse(*gain), self.state.pods[*pod].uid.clone())
            };
            let best = gains.into_iter().min_by_key(by_gain);
            let Some((gain_micro, pod, to)) = best.filter(|(gain, ..)| *gain >= gain_min_micro)
            else {
                break;
            };
            let Some(step) = self.try_move(pod, Some(to), now_ms) else { break };
            moved.extend(self.state.pod_by_uid(&step.pod));
            found.push(Consolidation { step, gain_micro });
        }
        self.rollback(checkpoint);
        found
    }

    /// Nodes that could be cleared for a pod by moving others.
    fn clearings(&mut self, at: PodIx, now_ms: i64) -> Vec<Plan> {
        let evictor = Evictor::new(&self.state, at, now_ms, 0).moving();
        self.with_inquiry(at, |inquiry, ranking| {
            Preemption::default().plans(inquiry, ranking, &evictor, NODES_MAX)
        })
        .unwrap_or_default()
    }

    /// Where everybody goes if the victims of a plan make room for the pod that waits; `None` if one
    /// of them has no place.
    fn try_moves(&mut self, uid: &str, plan: &Plan, now_ms: i64) -> Option<Repair> {
        let checkpoint = self.checkpoint();
        let repair = self.moves(uid, plan, now_ms);
        self.rollback(checkpoint);
        repair
    }

    fn moves(&mut self, uid: &str, plan: &Plan, now_ms: i64) -> Option<Repair> {
        let node = plan.node;
        // The largest first, as they are the hardest to place again.
        let mut victims = plan.victims.clone();
        victims.sort_by_key(|pod| (Reverse(self.size(*pod)), self.state.pods[*pod].uid.clone()));
        let leavers: Vec<PodObject> =
            victims.into_iter().map(|pod| self.state.object(pod)).collect();
        leavers.iter().for_each(|pod| self.apply(Event::PodGone(pod.uid.clone())));
        let waiting = self.state.pod_by_uid(uid)?;
        let room = self.room_on(waiting, node)?;
        let name = self.state.nodes[node].object.name.clone();
        self.bind(waiting, room);
        let moves: Option<Vec<Move>> =
            leavers.into_iter().map(|pod| self.settle(pod, None, now_ms)).collect();
        Some(Repair { pod: uid.into(), node: name, moves: moves? })
    }

    /// Takes a pod off its node and puts it elsewhere, under whatever checkpoint there is.
    fn try_move(&mut self, pod: PodIx, to: Option<NodeIx>, now_ms: i64) -> Option<Move> {
        let object = self.state.object(pod);
        self.apply(Event::PodGone(object.uid.clone()));
        self.settle(object, to, now_ms)
    }

    /// Finds a place for a pod that has left its node.
    pub(crate) fn settle(
        &mut self,
        pod: PodObject,
        to: Option<NodeIx>,
        now_ms: i64,
    ) -> Option<Move> {
        let from = pod.node.clone()?;
        let lost_run_ms = pod.started_at_ms.map_or(0, |start| now_ms.saturating_sub(start).max(0));
        let uid = pod.uid.clone();
        self.apply(Event::Pod(PodObject {
            node: None,
            nominated: None,
            gpu_grant: None,
            started_at_ms: None,
            ..pod
        }));
        let at = self.state.pod_by_uid(&uid)?;
        // Others may have taken what its team could have.
        if self.held_by(at).is_some() {
            return None;
        }
        let found = match to {
            Some(node) => self.room_on(at, node)?,
            None => self.place_near(at)?,
        };
        let to = self.state.nodes[found.node].object.name.clone();
        self.bind(at, found);
        Some(Move { pod: uid, from, to, lost_run_ms })
    }

    /// What a node gives a pod, if it has room and may be taken.
    fn room_on(&mut self, at: PodIx, node: NodeIx) -> Option<Found> {
        self.with_inquiry(at, |inquiry, ranking| {
            let state = inquiry.state;
            crate::engine::is_open(inquiry, ranking, node).then_some(())?;
            let room = ranking.judge(state, View::of(&state.nodes[node])).ok()?;
            crate::engine::found(inquiry, node, &room)
        })?
    }

    /// How much more can be used if a pod goes to its best other node.
    fn gain(&mut self, pod: PodIx) -> Option<(i64, PodIx, NodeIx)> {
        let here = self.state.pods[pod].place.node()?;
        let now = self.with_inquiry(pod, |inquiry, ranking| {
            let mut without = Foresight::now(inquiry.state, here);
            without.remove(pod);
            cost_micro(&ranking.judge(inquiry.state, without.view()).ok()?)
        })??;
        let there = self.place_near(pod).filter(|found| found.node != here)?;
        let cost = self.with_inquiry(pod, |inquiry, ranking| {
            let view = View::of(&inquiry.state.nodes[there.node]);
            cost_micro(&ranking.judge(inquiry.state, view).ok()?)
        })??;
        Some((now.saturating_sub(cost), pod, there.node))
    }

    /// Pods that could be moved.
    fn movable(&self) -> Vec<PodIx> {
        let rows = self.state.pods.iter();
        let on_nodes = rows.filter(|(_, row)| row.place.node().is_some()).map(|(at, _)| at);
        on_nodes.filter(|at| may_move(&self.state, *at)).collect()
    }

    /// How much of what is hard to find a pod asks for: devices, then everything else.
    fn size(&self, pod: PodIx) -> (i64, i64) {
        let requests = &self.state.class_of(pod).requests;
        let sum = |devices: bool| {
            let of = requests.iter();
            let of = of.filter(|(one, _)| self.state.resources.name(*one).is_extended() == devices);
            of.map(|(_, amount)| *amount).fold(0, i64::saturating_add)
        };
        (sum(true), sum(false))
    }
}

/// What a place costs in GPUs that the work that arrives can no longer use. A slice takes nothing from
/// the whole ones.
fn cost_micro(room: &Room) -> Option<i64> {
    room.cost_micro.or_else(|| room.grant.is_some().then_some(0))
}

/// Whether a pod could be moved by itself.
pub(crate) fn may_move(state: &State, pod: PodIx) -> bool {
    is_movable(state, pod)
        // Nor does a gang go on with fewer than it needs.
        && state.evicted_too(&[pod]).is_empty()
        // One at a time: a budget that allows none is used up.
        && split_by_budgets(state, &[pod]).0.is_empty()
}

/// Whether moving a pod loses nothing that cannot be made again, and it does not object.
pub(crate) fn is_movable(state: &State, pod: PodIx) -> bool {
    let row = &state.pods[pod];
    let spec = &state.class(row.class).spec;
    row.phase == Phase::Alive
        && row.evicted_at_ms.is_none()
        && !spec.stays
        && spec
            .controller
            .as_ref()
            .is_some_and(|controller| controller.kind.as_ref() != "DaemonSet")
}
