//! The present as all futures begin: who runs and how long they may still, who waits, who may come.
//!
//! Owns what is worked out once for all futures of one question. Must not know what happens in them.

use std::cmp::Reverse;

use berth_engine::outline::accepts;

use crate::forecast::{End, HORIZON_MS, PlannedNode};
use crate::lifetime::{CurveIx, Curves, Lifetimes};
use crate::room::{Ask, Got, Room};
use crate::scene::{KindIx, NodeIx, PodIx, Scene, Stay};
use crate::table::Index as _;
use berth_model::dice::Dice;

/// The first stretch of time that is looked at; each next one is as long as all before, times this.
const WINDOW_MS: u64 = 60_000;
const WINDOW_GROWTH: u64 = 4;

/// The first stretch is lengthened until so many are expected to leave in it.
const LEAVING_MIN: f64 = 8.0;

/// All of a draw.
const CERTAIN: u64 = 1 << 32;

/// Who runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    pub(crate) pod: PodIx,
    pub(crate) node: NodeIx,
    pub(crate) kind: KindIx,
    pub(crate) got: Got,
    age_ms: u64,
    curve: CurveIx,
    limit: Limit,
}

/// What is known of an end besides the curve; times from now.
#[derive(Clone, Copy, Debug)]
enum Limit {
    None,
    By(u64),
    At(u64),
    /// It has been told to leave: any time up to this one.
    Leaving(u64),
}

/// Pods of one kind that wait; they take their turns in order.
#[derive(Clone, Debug)]
pub(crate) struct Crowd<'a> {
    pub(crate) kind: KindIx,
    pub(crate) ask: &'a Ask,
    pub(crate) priority: Reverse<i32>,
    pub(crate) curve: CurveIx,
    /// Their places in the whole queue.
    pub(crate) places: Vec<u64>,
    /// Nodes that had room when the future began, fullest first; found when first asked for.
    open: Option<Vec<NodeIx>>,
}

/// A stretch of time, and for each resident up to which draw it has left by its end.
struct Window {
    end_ms: u64,
    left_up_to: Vec<u64>,
}

/// The present.
pub(crate) struct Stage<'a> {
    pub(crate) scene: &'a Scene,
    curves: Curves<'a>,
    pub(crate) residents: Vec<Resident>,
    pub(crate) crowds: Vec<Crowd<'a>>,
    /// By kind: its crowd.
    crowd_of: Vec<Option<usize>>,
    pub(crate) planned: Vec<&'a (PlannedNode, Room)>,
    windows: Vec<Window>,
    /// By kind and node: whether that was asked, and the answer.
    accepted: Vec<Vec<Option<bool>>>,
    now_ms: i64,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(scene: &'a Scene, lifetimes: &'a Lifetimes, now_ms: i64) -> Self {
        let since = |at_ms: i64| now_ms.saturating_sub(at_ms).max(0) as u64;
        let running = scene.pods.iter().filter_map(|(_, pod)| match pod.stay {
            Stay::Runs { since_ms, .. } => Some((scene.kinds.get(pod.kind)?.life, since(since_ms))),
            Stay::Waits => None,
        });
        let mut stage = Self {
            scene,
            curves: lifetimes.curves(running),
            residents: Vec::new(),
            crowds: Vec::new(),
            crowd_of: vec![None; scene.kinds.end()],
            planned: scene.planned.values().collect(),
            windows: Vec::new(),
            accepted: vec![Vec::new(); scene.kinds.end()],
            now_ms,
        };
        for (at, pod) in scene.pods.iter() {
            let Stay::Runs { node, got, since_ms } = pod.stay else { continue };
            let Some(kind) = scene.kinds.get(pod.kind) else { continue };
            let until = |at_ms: i64| at_ms.saturating_sub(now_ms).max(0) as u64;
            let limit = match (pod.leaves_by_ms, pod.end) {
                (Some(by_ms), _) => Limit::Leaving(until(by_ms)),
                (None, Some(End::By(by_ms))) => Limit::By(until(by_ms)),
                (None, Some(End::At(at_ms))) => Limit::At(until(at_ms)),
                (None, None) => Limit::None,
            };
            let (curve, age_ms) = (stage.curves.number(kind.life), since(since_ms));
            let (pod, kind) = (at, pod.kind);
            stage.residents.push(Resident { pod, node, kind, got, age_ms, curve, limit });
        }
        for (place, pod) in (0..).zip(scene.waiting.values()) {
            let Some(row) = scene.pods.get(*pod) else { continue };
            if let Some(crowd) = stage.crowd(row.kind) {
                stage.crowds[crowd].places.push(place);
            }
        }
        stage
    }

    /// The crowd of a kind; it may be empty.
    pub(crate) fn crowd(&mut self, kind: KindIx) -> Option<usize> {
        if let Some(crowd) = self.crowd_of.get(kind.at()).copied().flatten() {
            return Some(crowd);
        }
        let row = self.scene.kinds.get(kind)?;
        let (priority, curve) = (Reverse(row.spec.priority), self.curves.number(row.life));
        let (ask, places) = (&row.ask, Vec::new());
        self.crowds.push(Crowd { kind, ask, priority, curve, places, open: None });
        let crowd = self.crowds.len() - 1;
        *self.crowd_of.get_mut(kind.at())? = Some(crowd);
        Some(crowd)
    }

    pub(crate) fn ask(&self, kind: KindIx) -> Option<&'a Ask> {
        self.scene.kinds.get(kind).map(|kind| &kind.ask)
    }

    /// A node that is planned counts from where the numbers of real ones end.
    pub(crate) fn planned_at(&self, node: NodeIx) -> Option<&'a (PlannedNode, Room)> {
        let number = node.at().checked_sub(self.scene.nodes.end())?;
        self.planned.get(number).copied()
    }

    /// All nodes, planned ones last.
    pub(crate) fn nodes_end(&self) -> usize {
        self.scene.nodes.end() + self.planned.len()
    }

    /// What a node has left now; planned ones are empty.
    pub(crate) fn room(&self, node: NodeIx) -> Option<&'a Room> {
        match self.planned_at(node) {
            Some((_, room)) => Some(room),
            None => self.scene.nodes.get(node).map(|row| &row.left),
        }
    }

    /// Whether a node would do for a kind of pod, whatever runs there.
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
            None => self.scene.nodes.get(node).and_then(|row| row.object.as_ref()),
        };
        let spec = self.scene.kinds.get(kind).map(|kind| &kind.spec);
        let answer = object.zip(spec).is_some_and(|(object, spec)| accepts(spec, object));
        if let Some(slot) = self.accepted.get_mut(kind.at()).and_then(|all| all.get_mut(node.at()))
        {
            *slot = Some(answer);
        }
        answer
    }

    /// Nodes that have room for a crowd's pods now, fullest first. None if some of them wait: then the
    /// engine knows a reason why these nodes will not do.
    pub(crate) fn open(&mut self, crowd: usize) -> &[NodeIx] {
        if self.crowds[crowd].open.is_none() {
            let Crowd { kind, ask, .. } = self.crowds[crowd];
            let mut open: Vec<(i64, NodeIx)> = Vec::new();
            if self.crowds[crowd].places.is_empty() {
                for (node, row) in self.scene.nodes.iter() {
                    if row.left.fits(ask).is_some() && self.accepts(kind, node) {
                        open.push((row.left.spare(), node));
                    }
                }
            }
            open.sort_unstable();
            self.crowds[crowd].open = Some(open.into_iter().map(|(_, node)| node).collect());
        }
        self.crowds[crowd].open.as_deref().unwrap_or_default()
    }

    /// When a stretch of time ends; `None`: nothing later is looked at.
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

    /// Below which draw a resident has left by then.
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

    /// Those who leave within a stretch of time, with the time.
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

    /// How long a pod of a crowd runs once it has started; `None`: beyond anything that is looked at.
    pub(crate) fn life_ms(&self, crowd: usize, luck: f64) -> Option<u64> {
        self.curves.get(self.crowds[crowd].curve).remaining_ms(0, luck)
    }

    /// When a planned node comes, from now; `None`: it does not.
    pub(crate) fn comes_ms(&self, planned: usize, dice: Dice) -> Option<u64> {
        let (plan, _) = self.planned.get(planned)?;
        let comes = dice.roll(planned as u64) % 1000 < u32::from(plan.chance_milli);
        let span_ms = plan.latest_ms.saturating_sub(plan.earliest_ms).max(0) as f64;
        let late_ms = (span_ms * dice.of(1).share(planned as u64)) as i64;
        let at_ms = plan.earliest_ms.saturating_add(late_ms);
        comes.then(|| at_ms.saturating_sub(self.now_ms).max(0) as u64)
    }
}
