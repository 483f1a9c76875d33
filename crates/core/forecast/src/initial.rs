//! The state in which all futures of one forecast begin, and what is derived once for all of them.

use std::cmp::Reverse;

use berth_engine::node_rules::accepts;

use crate::cluster::{ClusterState, KindIx, NodeIx, PodIx, RunState};
use crate::forecast::{End, HORIZON_MS, PlannedNode};
use crate::lifetime::{CurveIx, Curves, Lifetimes};
use crate::room::{Allocation, Ask, Room};
use berth_model::dice::Dice;
use berth_model::table::Index as _;

/// Length of the first window; each next one multiplies the time covered by the growth.
const WINDOW_MS: u64 = 60_000;
const WINDOW_GROWTH: u64 = 4;

/// The first window is extended until this many pods are expected to end in it.
const LEAVING_MIN: f64 = 8.0;

/// The range of a draw.
const CERTAIN: u64 = 1 << 32;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    pub(crate) pod: PodIx,
    pub(crate) node: NodeIx,
    pub(crate) kind: KindIx,
    pub(crate) allocation: Allocation,
    age_ms: u64,
    curve: CurveIx,
    limit: Limit,
}

/// A known end besides the curve; times from now.
#[derive(Clone, Copy, Debug)]
enum Limit {
    None,
    By(u64),
    At(u64),
    /// It is terminating: uniformly distributed up to this time.
    Leaving(u64),
}

/// Pending pods of one kind, in order.
#[derive(Clone, Debug)]
pub(crate) struct KindQueue<'a> {
    pub(crate) kind: KindIx,
    pub(crate) ask: &'a Ask,
    pub(crate) priority: Reverse<i32>,
    pub(crate) curve: CurveIx,
    /// Positions in the whole queue.
    pub(crate) places: Vec<u64>,
    /// Nodes with room at the start, fullest first; computed on demand.
    open: Option<Vec<NodeIx>>,
}

/// A window of time, and for each resident the draw up to which it has ended by its end.
struct Window {
    end_ms: u64,
    left_up_to: Vec<u64>,
}

pub(crate) struct InitialState<'a> {
    pub(crate) cluster: &'a ClusterState,
    curves: Curves<'a>,
    pub(crate) residents: Vec<Resident>,
    pub(crate) queues: Vec<KindQueue<'a>>,
    /// By kind.
    queue_of: Vec<Option<usize>>,
    pub(crate) planned: Vec<&'a (PlannedNode, Room)>,
    windows: Vec<Window>,
    /// By kind and node, computed on demand.
    accepted: Vec<Vec<Option<bool>>>,
    now_ms: i64,
}

impl<'a> InitialState<'a> {
    pub(crate) fn new(cluster: &'a ClusterState, lifetimes: &'a Lifetimes, now_ms: i64) -> Self {
        let since = |at_ms: i64| now_ms.saturating_sub(at_ms).max(0) as u64;
        let running = cluster.pods.iter().filter_map(|(_, pod)| match pod.run_state {
            RunState::Running { since_ms, .. } => {
                Some((cluster.kinds.get(pod.kind)?.life, since(since_ms)))
            }
            RunState::Waiting => None,
        });
        let mut initial = Self {
            cluster,
            curves: lifetimes.curves(running),
            residents: Vec::new(),
            queues: Vec::new(),
            queue_of: vec![None; cluster.kinds.bound()],
            planned: cluster.planned.values().collect(),
            windows: Vec::new(),
            accepted: vec![Vec::new(); cluster.kinds.bound()],
            now_ms,
        };
        for (at, pod) in cluster.pods.iter() {
            let RunState::Running { node, allocation, since_ms } = pod.run_state else { continue };
            let Some(kind) = cluster.kinds.get(pod.kind) else { continue };
            let until = |at_ms: i64| at_ms.saturating_sub(now_ms).max(0) as u64;
            let limit = match (pod.leaves_by_ms, pod.end) {
                (Some(by_ms), _) => Limit::Leaving(until(by_ms)),
                (None, Some(End::By(by_ms))) => Limit::By(until(by_ms)),
                (None, Some(End::At(at_ms))) => Limit::At(until(at_ms)),
                (None, None) => Limit::None,
            };
            let (curve, age_ms) = (initial.curves.number(kind.life), since(since_ms));
            let (pod, kind) = (at, pod.kind);
            initial.residents.push(Resident { pod, node, kind, allocation, age_ms, curve, limit });
        }
        for (place, pod) in (0..).zip(cluster.waiting.values()) {
            let Some(row) = cluster.pods.get(*pod) else { continue };
            if let Some(queue) = initial.queue(row.kind) {
                initial.queues[queue].places.push(place);
            }
        }
        initial
    }

    /// The queue of a kind; may be empty.
    pub(crate) fn queue(&mut self, kind: KindIx) -> Option<usize> {
        if let Some(queue) = self.queue_of.get(kind.at()).copied().flatten() {
            return Some(queue);
        }
        let row = self.cluster.kinds.get(kind)?;
        let (priority, curve) = (Reverse(row.spec.priority), self.curves.number(row.life));
        let (ask, places) = (&row.ask, Vec::new());
        self.queues.push(KindQueue { kind, ask, priority, curve, places, open: None });
        let queue = self.queues.len() - 1;
        *self.queue_of.get_mut(kind.at())? = Some(queue);
        Some(queue)
    }

    pub(crate) fn ask(&self, kind: KindIx) -> Option<&'a Ask> {
        self.cluster.kinds.get(kind).map(|kind| &kind.ask)
    }

    /// Planned nodes are numbered after existing ones.
    pub(crate) fn planned_at(&self, node: NodeIx) -> Option<&'a (PlannedNode, Room)> {
        let number = node.at().checked_sub(self.cluster.nodes.bound())?;
        self.planned.get(number).copied()
    }

    /// Number of all nodes, planned ones last.
    pub(crate) fn nodes_end(&self) -> usize {
        self.cluster.nodes.bound() + self.planned.len()
    }

    /// What a node has left now; planned ones are empty.
    pub(crate) fn room(&self, node: NodeIx) -> Option<&'a Room> {
        match self.planned_at(node) {
            Some((_, room)) => Some(room),
            None => self.cluster.nodes.get(node).map(|row| &row.left),
        }
    }

    pub(crate) fn accepts(&mut self, kind: KindIx, node: NodeIx) -> bool {
        let end = self.nodes_end();
        let Some(answers) = self.accepted.get_mut(kind.at()) else { return false };
        if answers.is_empty() {
            answers.resize(end, None);
        }
        if let Some(Some(answer)) = answers.get(node.at()) {
            return *answer;
        }
        let object = match self.planned_at(node) {
            Some((planned, _)) => Some(&planned.node),
            None => self.cluster.nodes.get(node).and_then(|row| row.object.as_ref()),
        };
        let spec = self.cluster.kinds.get(kind).map(|kind| &kind.spec);
        let answer = object.zip(spec).is_some_and(|(object, spec)| accepts(spec, object));
        if let Some(slot) = self.accepted.get_mut(kind.at()).and_then(|all| all.get_mut(node.at()))
        {
            *slot = Some(answer);
        }
        answer
    }

    /// Nodes with room for a queue's pods now, fullest first. Empty if some of them are pending:
    /// then the engine rejects these nodes for other reasons.
    pub(crate) fn open(&mut self, queue: usize) -> &[NodeIx] {
        if self.queues[queue].open.is_none() {
            let KindQueue { kind, ask, .. } = self.queues[queue];
            let mut open: Vec<(i64, NodeIx)> = Vec::new();
            if self.queues[queue].places.is_empty() {
                for (node, row) in self.cluster.nodes.iter() {
                    if row.left.fits(ask).is_some() && self.accepts(kind, node) {
                        open.push((row.left.spare(), node));
                    }
                }
            }
            open.sort_unstable();
            self.queues[queue].open = Some(open.into_iter().map(|(_, node)| node).collect());
        }
        self.queues[queue].open.as_deref().unwrap_or_default()
    }

    pub(crate) fn window_end_ms(&mut self, window: usize) -> Option<u64> {
        while self.windows.len() <= window {
            let last_ms = self.windows.last().map_or(0, |window| window.end_ms);
            if last_ms >= HORIZON_MS {
                return None;
            }
            let mut end_ms = (last_ms * WINDOW_GROWTH).max(WINDOW_MS);
            let left_up_to = loop {
                end_ms = end_ms.min(HORIZON_MS);
                let left_up_to: Vec<u64> =
                    self.residents.iter().map(|one| self.left_up_to(one, end_ms)).collect();
                let leaving: f64 = left_up_to.iter().map(|draw| *draw as f64).sum();
                let enough = leaving >= LEAVING_MIN * CERTAIN as f64;
                if enough || end_ms >= HORIZON_MS || !self.windows.is_empty() {
                    break left_up_to;
                }
                end_ms *= WINDOW_GROWTH;
            };
            self.windows.push(Window { end_ms, left_up_to });
        }
        self.windows.get(window).map(|window| window.end_ms)
    }

    /// The draw below which a resident has ended by a time.
    fn left_up_to(&self, resident: &Resident, by_ms: u64) -> u64 {
        let share = match resident.limit {
            Limit::At(at_ms) | Limit::By(at_ms) if at_ms <= by_ms => 1.0,
            Limit::At(_) => 0.0,
            Limit::Leaving(until_ms) if until_ms <= by_ms => 1.0,
            Limit::Leaving(until_ms) => by_ms as f64 / until_ms as f64,
            _ => self.curves.get(resident.curve).ends_within(resident.age_ms, by_ms),
        };
        (share * CERTAIN as f64) as u64
    }

    /// Calls `each` with the end of every resident that ends within a window.
    pub(crate) fn leaving(&self, window: usize, dice: Dice, mut each: impl FnMut(u64, usize)) {
        let Some(now) = self.windows.get(window) else { return };
        let before = window.checked_sub(1).and_then(|before| self.windows.get(before));
        for (number, up_to) in now.left_up_to.iter().enumerate() {
            let draw = u64::from(dice.roll(number as u64));
            if draw >= *up_to || before.is_some_and(|before| draw < before.left_up_to[number]) {
                continue;
            }
            let resident = &self.residents[number];
            let luck = draw as f64 / CERTAIN as f64;
            let drawn_ms = || self.curves.get(resident.curve).remaining_ms(resident.age_ms, luck);
            let end_ms = match resident.limit {
                Limit::At(at_ms) => at_ms,
                Limit::By(by_ms) => drawn_ms().map_or(by_ms, |ms| ms.min(by_ms)),
                Limit::Leaving(until_ms) => (until_ms as f64 * luck) as u64,
                Limit::None => drawn_ms().unwrap_or(now.end_ms),
            };
            each(end_ms.min(now.end_ms), number);
        }
    }

    /// Run time of a pod of a queue; `None` if beyond all bins.
    pub(crate) fn life_ms(&self, queue: usize, luck: f64) -> Option<u64> {
        self.curves.get(self.queues[queue].curve).remaining_ms(0, luck)
    }

    /// When a planned node joins, from now; `None` if it does not.
    pub(crate) fn comes_ms(&self, planned: usize, dice: Dice) -> Option<u64> {
        let (plan, _) = self.planned.get(planned)?;
        let comes = dice.roll(planned as u64) % 1000 < u32::from(plan.chance_milli);
        let span_ms = plan.latest_ms.saturating_sub(plan.earliest_ms).max(0) as f64;
        let late_ms = (span_ms * dice.of(1).share(planned as u64)) as i64;
        let at_ms = plan.earliest_ms.saturating_add(late_ms);
        comes.then(|| at_ms.saturating_sub(self.now_ms).max(0) as u64)
    }
}
