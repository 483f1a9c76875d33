//! The cluster as forecasts see it: what nodes have left, which pods run since when, which are
//! pending.
//!
//! Updated from the same events and decisions as the engine.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use berth_engine::decision::Binding;
use berth_model::node::Node;
use berth_model::spec::{GpuGrant, Phase, PodObject, PodSpec};
use berth_model::table::Slab;
use hashbrown::HashMap;

use crate::arrivals::Arrivals;
use crate::forecast::{End, Hold, PlannedNode};
use crate::lifetime::LifeKey;
use crate::room::{Allocation, Ask, Resources, Room};

const GRACE_MS: i64 = 30_000;

berth_model::row_numbers! {
    pub(crate) NodeIx;
    pub(crate) PodIx;
    pub(crate) KindIx;
}

/// Highest priority first, then oldest, then by UID: the engine's order.
pub(crate) type Turn = (Reverse<i32>, i64, Arc<str>);

#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) spec: Arc<PodSpec>,
    pub(crate) ask: Ask,
    pub(crate) life: LifeKey,
    /// Number of pods and remembered arrivals.
    holders: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct NodeRow {
    /// `None` if known only from pods bound to it.
    pub(crate) object: Option<Node>,
    pub(crate) empty: Room,
    pub(crate) left: Room,
    pods: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct PodRow {
    pub(crate) uid: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) kind: KindIx,
    pub(crate) turn: Turn,
    pub(crate) run_state: RunState,
    pub(crate) end: Option<End>,
    /// When it must be gone, if it is terminating.
    pub(crate) leaves_by_ms: Option<i64>,
    pub(crate) hold: Option<Hold>,
    /// Its age at the end is not a lifetime.
    made_to_leave: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum RunState {
    Waiting,
    Running { node: NodeIx, allocation: Allocation, since_ms: i64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Started { uid: Arc<str> },
    Abandoned { uid: Arc<str> },
    Ended { life: LifeKey, age_ms: u64, natural: bool },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterState {
    resources: Resources,
    pub(crate) kinds: Slab<KindIx, Kind>,
    by_spec: HashMap<Arc<PodSpec>, KindIx, foldhash::fast::FixedState>,
    pub(crate) nodes: Slab<NodeIx, NodeRow>,
    by_name: BTreeMap<Arc<str>, NodeIx>,
    pub(crate) pods: Slab<PodIx, PodRow>,
    by_uid: BTreeMap<Arc<str>, PodIx>,
    /// In queue order, without held and gated pods.
    pub(crate) waiting: BTreeMap<Turn, PodIx>,
    pub(crate) arrivals: Arrivals,
    pub(crate) planned: BTreeMap<Arc<str>, (PlannedNode, Room)>,
}

impl ClusterState {
    pub(crate) fn pod(&self, uid: &str) -> Option<(PodIx, &PodRow)> {
        let at = *self.by_uid.get(uid)?;
        Some((at, self.pods.get(at)?))
    }

    fn kind(&mut self, spec: &Arc<PodSpec>) -> KindIx {
        if let Some(kind) = self.by_spec.get(spec) {
            if let Some(row) = self.kinds.get_mut(*kind) {
                row.holders += 1;
            }
            return *kind;
        }
        let ask = self.resources.ask(spec);
        let hash = |key: u64| key.wrapping_mul(2).wrapping_add(1);
        let seeds = foldhash::quality::FixedState::default();
        let of = |controller| seeds.hash_one((&spec.namespace, controller));
        let life = LifeKey {
            workload: spec.controller.as_ref().map(|controller| hash(of(controller))),
            class: hash(seeds.hash_one((&spec.namespace, &ask, spec.priority))),
        };
        let kind = self.kinds.insert(Kind { spec: spec.clone(), ask, life, holders: 1 });
        self.by_spec.insert(spec.clone(), kind);
        kind
    }

    fn release(&mut self, kind: KindIx) {
        let Some(row) = self.kinds.get_mut(kind) else { return };
        row.holders -= 1;
        if row.holders == 0
            && let Some(row) = self.kinds.remove(kind)
        {
            self.by_spec.remove(&row.spec);
        }
    }

    pub(crate) fn set_node(&mut self, node: Node) {
        self.planned.remove(&node.name);
        let at = self.node(&node.name);
        let Some(row) = self.nodes.get_mut(at) else { return };
        if row.object.as_ref() == Some(&node) {
            return;
        }
        row.empty = self.resources.room(&node);
        row.object = Some(node);
        self.recount(at);
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        let Some(at) = self.by_name.get(name).copied() else { return };
        if let Some(row) = self.nodes.get_mut(at) {
            (row.object, row.empty, row.left) = (None, Room::none(), Room::none());
        }
        self.drop_node(at, name);
    }

    fn node(&mut self, name: &Arc<str>) -> NodeIx {
        if let Some(at) = self.by_name.get(name) {
            return *at;
        }
        let row = NodeRow { object: None, empty: Room::none(), left: Room::none(), pods: 0 };
        let at = self.nodes.insert(row);
        self.by_name.insert(name.clone(), at);
        at
    }

    fn drop_node(&mut self, at: NodeIx, name: &str) {
        if self.nodes.get(at).is_some_and(|row| row.object.is_none() && row.pods == 0) {
            self.nodes.remove(at);
            self.by_name.remove(name);
        }
    }

    /// Recomputes what a node has left.
    fn recount(&mut self, at: NodeIx) {
        let Some(row) = self.nodes.get_mut(at) else { return };
        row.left = row.empty.clone();
        for (_, pod) in self.pods.iter() {
            if let RunState::Running { node, allocation, .. } = pod.run_state
                && node == at
                && let Some(kind) = self.kinds.get(pod.kind)
            {
                row.left.take(&kind.ask, allocation, 1);
            }
        }
    }

    pub(crate) fn plan(&mut self, planned: PlannedNode) {
        if !self.by_name.contains_key(&planned.node.name) {
            let room = self.resources.room(&planned.node);
            self.planned.insert(planned.node.name.clone(), (planned, room));
        }
    }

    pub(crate) fn set_pod(&mut self, pod: &PodObject, now_ms: i64) -> Option<Outcome> {
        if pod.phase == Phase::Finished {
            return self.remove_pod(&pod.uid, now_ms);
        }
        let at = match self.by_uid.get(&pod.uid).copied() {
            Some(at) => {
                self.respec(at, &pod.spec);
                at
            }
            None => self.admit(pod, now_ms),
        };
        let row = self.pods.get_mut(at)?;
        if let Phase::Terminating { by_preemption } = pod.phase {
            row.leaves_by_ms.get_or_insert(now_ms.saturating_add(GRACE_MS));
            row.made_to_leave |= by_preemption;
        }
        let waits = matches!(row.run_state, RunState::Waiting);
        match &pod.node {
            Some(node) if waits => {
                let since_ms = pod.started_at_ms.unwrap_or(now_ms).min(now_ms);
                self.start(at, node, pod.gpu_grant.as_ref(), since_ms)
            }
            _ => {
                self.enqueue(at);
                None
            }
        }
    }

    fn admit(&mut self, pod: &PodObject, now_ms: i64) -> PodIx {
        let kind = self.kind(&pod.spec);
        let turn = (Reverse(pod.spec.priority), pod.created_at_ms, pod.uid.clone());
        let gates = &pod.spec.gates;
        let row = PodRow {
            uid: pod.uid.clone(),
            name: pod.name.clone(),
            kind,
            turn,
            run_state: RunState::Waiting,
            end: None,
            leaves_by_ms: None,
            hold: (!gates.is_empty()).then(|| Hold::Gates(gates.clone())),
            made_to_leave: false,
        };
        let at = self.pods.insert(row);
        self.by_uid.insert(pod.uid.clone(), at);
        // Pods already running at the start are not arrivals.
        if pod.node.is_none() {
            let kind = self.kind(&pod.spec);
            let forgotten = self.arrivals.record(now_ms, kind);
            forgotten.into_iter().for_each(|kind| self.release(kind));
        }
        at
    }

    /// Applies a changed spec: resized, relabelled or without gates.
    fn respec(&mut self, at: PodIx, spec: &Arc<PodSpec>) {
        let Some(row) = self.pods.get(at) else { return };
        let before = row.kind;
        if self.kinds.get(before).is_some_and(|kind| kind.spec == *spec) {
            return;
        }
        let run_state = row.run_state;
        self.waiting.remove(&row.turn.clone());
        let kind = self.kind(spec);
        if let Some(row) = self.pods.get_mut(at) {
            row.kind = kind;
            row.turn.0 = Reverse(spec.priority);
            if matches!(row.hold, None | Some(Hold::Gates(_))) {
                row.hold = (!spec.gates.is_empty()).then(|| Hold::Gates(spec.gates.clone()));
            }
        }
        self.release(before);
        if let RunState::Running { node, .. } = run_state {
            self.recount(node);
        }
    }

    /// Adds a pod to the pending ones or removes it, according to its state.
    fn enqueue(&mut self, at: PodIx) {
        let Some(row) = self.pods.get(at) else { return };
        let waits = matches!(row.run_state, RunState::Waiting) && row.hold.is_none();
        if waits && row.leaves_by_ms.is_none() {
            self.waiting.insert(row.turn.clone(), at);
        } else {
            self.waiting.remove(&row.turn);
        }
    }

    pub(crate) fn bind(&mut self, binding: &Binding, now_ms: i64) -> Option<Outcome> {
        let at = *self.by_uid.get(&binding.pod)?;
        self.start(at, &binding.node, binding.gpu_grant.as_ref(), now_ms)
    }

    fn start(
        &mut self,
        at: PodIx,
        node: &Arc<str>,
        grant: Option<&GpuGrant>,
        since_ms: i64,
    ) -> Option<Outcome> {
        let node = self.node(node);
        let row = self.pods.get_mut(at)?;
        let kind = self.kinds.get(row.kind)?;
        let place = self.nodes.get_mut(node)?;
        let allocation = place.left.granted(&kind.ask, grant, &mut self.resources);
        place.left.take(&kind.ask, allocation, 1);
        place.pods += 1;
        row.run_state = RunState::Running { node, allocation, since_ms };
        self.waiting.remove(&row.turn);
        Some(Outcome::Started { uid: row.uid.clone() })
    }

    pub(crate) fn unbind(&mut self, uid: &str) {
        let Some(at) = self.by_uid.get(uid).copied() else { return };
        self.vacate(at);
        if let Some(row) = self.pods.get_mut(at) {
            row.run_state = RunState::Waiting;
        }
        self.enqueue(at);
    }

    fn vacate(&mut self, at: PodIx) {
        let Some(row) = self.pods.get(at) else { return };
        let RunState::Running { node, allocation, .. } = row.run_state else { return };
        let (Some(place), Some(kind)) = (self.nodes.get_mut(node), self.kinds.get(row.kind)) else {
            return;
        };
        place.left.take(&kind.ask, allocation, -1);
        place.pods -= 1;
        if place.object.is_none() {
            let name = self.by_name.iter().find(|(_, at)| **at == node);
            let name = name.map(|(name, _)| name.clone());
            name.into_iter().for_each(|name| self.drop_node(node, &name));
        }
    }

    pub(crate) fn evict(&mut self, pods: &[Arc<str>], now_ms: i64) {
        for uid in pods {
            let at = self.by_uid.get(uid).copied();
            if let Some(row) = at.and_then(|at| self.pods.get_mut(at)) {
                row.made_to_leave = true;
                row.leaves_by_ms.get_or_insert(now_ms.saturating_add(GRACE_MS));
            }
        }
    }

    pub(crate) fn remove_pod(&mut self, uid: &str, now_ms: i64) -> Option<Outcome> {
        let at = self.by_uid.remove(uid)?;
        self.vacate(at);
        let row = self.pods.remove(at)?;
        self.waiting.remove(&row.turn);
        let life = self.kinds.get(row.kind).map(|kind| kind.life);
        self.release(row.kind);
        Some(match row.run_state {
            RunState::Waiting => Outcome::Abandoned { uid: row.uid },
            RunState::Running { since_ms, .. } => Outcome::Ended {
                life: life?,
                age_ms: now_ms.saturating_sub(since_ms).max(0) as u64,
                natural: !row.made_to_leave,
            },
        })
    }

    pub(crate) fn hold(&mut self, uid: &str, hold: Option<Hold>) {
        let Some(at) = self.by_uid.get(uid).copied() else { return };
        if let Some(row) = self.pods.get_mut(at) {
            row.hold = hold;
        }
        self.enqueue(at);
    }

    pub(crate) fn expect_end(&mut self, uid: &str, end: Option<End>) {
        let at = self.by_uid.get(uid).copied();
        if let Some(row) = at.and_then(|at| self.pods.get_mut(at)) {
            row.end = end;
        }
    }
}
