//! Repair: which few pods to move so that a pending pod fits, or so that more of what is free can
//! be used.
//!
//! Everything is tried under a checkpoint by the code that decides, and rolled back. Pods without a
//! controller, pods that opt out and pods protected by disruption budgets are not moved.

use std::cmp::Reverse;
use std::sync::Arc;

use berth_model::spec::{Phase, PodObject};

use crate::engine::{Engine, FoundPlace};
use crate::event::Event;
use crate::kube::preempt::split_by_budgets;
use crate::placement::preemption::PreemptionSearch;
use crate::placement::projection::Projection;
use crate::placement::room::{Room, View};
use crate::placement::victims::{EvictionPlan, Preemptor};
use crate::state::{Place, State};
use crate::table::{NodeIx, PodIx};

/// Limit of nodes tried for a pending pod, those with the fewest pods to move first.
const NODES_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    pub pod: Arc<str>,
    pub from: Arc<str>,
    pub to: Arc<str>,
    /// Run time so far, lost unless the pod saves its work.
    pub lost_run_ms: i64,
}

/// Moves after which a pending pod fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    pub pod: Arc<str>,
    pub node: Arc<str>,
    pub moves: Vec<Move>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consolidation {
    pub step: Move,
    /// Additional usable GPU value, in millionths of a GPU.
    pub gain_micro: i64,
}

impl Engine {
    /// The fewest moves, at most `moves_max`, after which a pending pod fits.
    pub fn repair(&mut self, uid: &str, moves_max: usize, now_ms: i64) -> Option<Repair> {
        let at = self.state.pod_by_uid(uid)?;
        // A gang does not start one member at a time.
        let with_its_gang = self.head_for(at).is_some();
        if matches!(self.state.pods[at].place, Place::Bound(..)) || with_its_gang || moves_max == 0
        {
            return None;
        }
        let mut plans = self.clearings(at, now_ms);
        plans.retain(|plan| plan.victims.len() <= moves_max && plan.cost.budget_violations == 0);
        if let Some((nodes, _)) = self.gang_nodes(at).filter(|(_, required)| *required) {
            plans.retain(|plan| nodes.contains(plan.node));
        }
        plans.sort_by_key(|plan| (plan.victims.len(), plan.cost, self.state.nodes[plan.node].tie));
        plans.iter().find_map(|plan| self.try_moves(uid, plan, now_ms))
    }

    /// At most `moves_max` moves, each of which gains at least `gain_min_micro` of usable GPU
    /// value. Each builds on those before it.
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
    fn clearings(&mut self, at: PodIx, now_ms: i64) -> Vec<EvictionPlan> {
        let preemptor = Preemptor::new(&self.state, at, now_ms, 0).moving();
        self.with_inquiry(at, |inquiry, ranking| {
            PreemptionSearch::default().plans(inquiry, ranking, &preemptor, NODES_MAX)
        })
        .unwrap_or_default()
    }

    fn try_moves(&mut self, uid: &str, plan: &EvictionPlan, now_ms: i64) -> Option<Repair> {
        let checkpoint = self.checkpoint();
        let repair = self.moves(uid, plan, now_ms);
        self.rollback(checkpoint);
        repair
    }

    fn moves(&mut self, uid: &str, plan: &EvictionPlan, now_ms: i64) -> Option<Repair> {
        let node = plan.node;
        // The largest first, as they are the hardest to place again.
        let mut victims = plan.victims.clone();
        victims.sort_by_key(|pod| (Reverse(self.size(*pod)), self.state.pods[*pod].uid.clone()));
        let leaving_pods: Vec<PodObject> =
            victims.into_iter().map(|pod| self.state.object(pod)).collect();
        leaving_pods.iter().for_each(|pod| self.apply(Event::PodGone(pod.uid.clone())));
        let waiting = self.state.pod_by_uid(uid)?;
        let room = self.room_on(waiting, node)?;
        let name = self.state.nodes[node].object.name.clone();
        self.bind(waiting, room);
        let moves: Option<Vec<Move>> =
            leaving_pods.into_iter().map(|pod| self.settle(pod, None, now_ms)).collect();
        Some(Repair { pod: uid.into(), node: name, moves: moves? })
    }

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
        // Others may have used up what its team could have.
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

    /// A pod's place on a node, if the node has room and is open to it.
    fn room_on(&mut self, at: PodIx, node: NodeIx) -> Option<FoundPlace> {
        self.with_inquiry(at, |inquiry, ranking| {
            let state = inquiry.state;
            crate::engine::is_open(inquiry, ranking, node).then_some(())?;
            let room = ranking.judge(state, View::of(&state.nodes[node])).ok()?;
            crate::engine::found(inquiry, node, &room)
        })?
    }

    fn gain(&mut self, pod: PodIx) -> Option<(i64, PodIx, NodeIx)> {
        let here = self.state.pods[pod].place.node()?;
        let now = self.with_inquiry(pod, |inquiry, ranking| {
            let mut without = Projection::now(inquiry.state, here);
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

    fn movable(&self) -> Vec<PodIx> {
        let rows = self.state.pods.iter();
        let on_nodes = rows.filter(|(_, row)| row.place.node().is_some()).map(|(at, _)| at);
        on_nodes.filter(|at| may_move(&self.state, *at)).collect()
    }

    /// Its devices, then all other requests.
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

/// The GPU value lost by a place. A slice costs no whole GPUs.
fn cost_micro(room: &Room) -> Option<i64> {
    room.cost_micro.or_else(|| room.grant.is_some().then_some(0))
}

/// Whether a pod can be moved on its own.
pub(crate) fn may_move(state: &State, pod: PodIx) -> bool {
    is_movable(state, pod)
        // A gang would not run on with too few members.
        && state.gang_victims(&[pod]).is_empty()
        // Budgets that allow no disruption protect it.
        && split_by_budgets(state, &[pod]).0.is_empty()
}

/// Whether a pod is recreated elsewhere when it is deleted, and does not opt out.
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
